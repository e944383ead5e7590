"""Volumes: reachable from the node, free to be bound there, or makeable there."""

from typing import Any

import pytest
from placekit import ZONE, checks, claim, kind, node, on_hosts, place, pod, reasons, stock, using, volume

from tensile.policy.placement.volume_checks import CONFLICT, ELSEWHERE, MISSING, NO_SPACE, UNBINDABLE, UNBOUND

NODES = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "2"})]


def test_a_pod_without_claims_is_not_held_up() -> None:
    """Other volumes need nothing of a node."""
    assert place(pod(spec={"volumes": [{"name": "e", "emptyDir": {}}]}), NODES).fits


def test_a_bound_volume_is_where_it_is() -> None:
    """A local one on its node."""
    storage = stock(claims=[claim(volumeName="pv")], volumes=[volume(nodeAffinity=on_hosts("b"))])
    found = place(pod(spec=using("data")), NODES, storage=storage)
    assert found.fitting == ("b",)
    assert reasons(found) == {"a": (ELSEWHERE,)}
    assert checks(found) == {"a": "volumes"}


def test_a_volume_with_a_name_in_its_affinity() -> None:
    """Fields say nothing where volumes are concerned, as in the scheduler."""
    field = {"key": "metadata.name", "operator": "In", "values": ["b"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    storage = stock(claims=[claim(volumeName="pv")], volumes=[volume(nodeAffinity=affinity)])
    assert place(pod(spec=using("data")), NODES, storage=storage).fitting == ("a", "b")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (None, 'persistentvolumeclaim "data" not found'),
        (
            claim() | {"status": {"phase": "Lost"}},
            'persistentvolumeclaim "data" bound to non-existent persistentvolume ""',
        ),
        (claim(), UNBOUND),
        (claim(storageClassName="gone"), UNBOUND),
        (claim(storageClassName="now"), UNBOUND),
        (claim(volumeName="gone"), 'persistentvolume "gone" not found'),
    ],
)
def test_a_claim_that_keeps_the_pod_waiting(made: dict[str, Any] | None, why: str) -> None:
    """Wherever it goes: the reason is no node's."""
    storage = stock(claims=[made] if made else [], classes=[kind("now", volumeBindingMode="Immediate")])
    found = place(pod(spec=using("data")), NODES, storage=storage)
    assert found.nowhere is not None
    assert found.nowhere.reasons == (why,)
    assert found.message == f"0/2 nodes are available: {why}."


def test_a_claim_that_is_being_deleted() -> None:
    """Nobody gets it any more."""
    ending = claim(volumeName="pv")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = place(pod(spec=using("data")), NODES, storage=stock(claims=[ending], volumes=[volume()]))
    assert found.message == '0/2 nodes are available: persistentvolumeclaim "data" is being deleted.'


def test_a_claim_that_is_bound_in_part() -> None:
    """It names its volume, and the binding is not finished."""
    half = claim(volumeName="pv", storageClassName="later")
    half["metadata"]["annotations"] = {}
    storage = stock(claims=[half], volumes=[volume()], classes=[kind()])
    assert place(pod(spec=using("data")), NODES, storage=storage).nowhere is not None


def test_a_volume_is_made_where_the_class_can() -> None:
    """Anywhere, unless the class says where."""
    storage = stock(claims=[claim(storageClassName="later")], classes=[kind()])
    assert place(pod(spec=using("data")), NODES, storage=storage).fitting == ("a", "b")
    zoned = kind(allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["2"]}]}])
    storage = stock(claims=[claim(storageClassName="later")], classes=[zoned])
    found = place(pod(spec=using("data")), NODES, storage=storage)
    assert found.fitting == ("b",)
    assert reasons(found) == {"a": (UNBINDABLE,)}


def test_the_older_way_to_name_a_class() -> None:
    """By annotation, which comes first."""
    made = claim(storageClassName="now")
    made["metadata"]["annotations"] = {"volume.beta.kubernetes.io/storage-class": "later"}
    storage = stock(claims=[made], classes=[kind(), kind("now", volumeBindingMode="Immediate")])
    assert place(pod(spec=using("data")), NODES, storage=storage).fits


def test_a_claim_whose_node_was_chosen() -> None:
    """No other does, until its volume is made."""
    chosen = claim(storageClassName="later")
    chosen["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "b"}
    found = place(pod(spec=using("data")), NODES, storage=stock(claims=[chosen], classes=[kind()]))
    assert found.fitting == ("b",)
    assert reasons(found) == {"a": (UNBINDABLE,)}


BARE = kind("local", provisioner="kubernetes.io/no-provisioner")


def waiting(**spec: Any) -> dict[str, Any]:
    """Make a claim of the class whose volumes nobody makes."""
    return claim(storageClassName="local", **spec)


@pytest.mark.parametrize(
    ("free", "fits"),
    [
        (volume(storageClassName="local"), True),
        (volume(storageClassName="local", capacity={"storage": "512Mi"}), False),
        (volume(storageClassName="local", accessModes=["ReadWriteMany"]), False),
        (volume(storageClassName="local", volumeMode="Block"), False),
        (volume(storageClassName="local", volumeAttributesClassName="fast"), False),
        (volume(storageClassName="other"), False),
        (volume(phase="Released", storageClassName="local"), False),
        (volume(storageClassName="local", claimRef={"namespace": "default", "name": "else"}), False),
        (volume(storageClassName="local", claimRef={"namespace": "default", "name": "data"}), True),
        (volume(storageClassName="local", claimRef={"namespace": "default", "name": "data", "uid": "older"}), False),
        (volume(storageClassName="local", nodeAffinity=on_hosts("elsewhere")), False),
        (None, False),
    ],
)
def test_a_volume_that_is_there(free: dict[str, Any] | None, *, fits: bool) -> None:
    """It has to be large enough, of the class, of the kind, free, and reachable."""
    storage = stock(claims=[waiting()], volumes=[free] if free else [], classes=[BARE])
    found = place(pod(spec=using("data")), [NODES[0]], storage=storage)
    assert found.fits == fits
    assert reasons(found) == ({} if fits else {"a": (UNBINDABLE,)})


def test_a_volume_that_is_going() -> None:
    """It is not given away any more."""
    going = volume(storageClassName="local")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not place(
        pod(spec=using("data")), NODES, storage=stock(claims=[waiting()], volumes=[going], classes=[BARE])
    ).fits


def test_a_claim_may_select_volumes() -> None:
    """By labels."""
    wanted = waiting(selector={"matchLabels": {"speed": "high"}})
    for speed, fits in (("high", True), ("low", False)):
        offered = volume(storageClassName="local", labels={"speed": speed})
        storage = stock(claims=[wanted], volumes=[offered], classes=[BARE])
        assert place(pod(spec=using("data")), NODES, storage=storage).fits == fits


def test_a_volume_kept_for_the_claim_elsewhere() -> None:
    """It decides, also where another one is free."""
    kept = volume(
        "kept", storageClassName="local", claimRef={"namespace": "default", "name": "data"}, nodeAffinity=on_hosts("b")
    )
    storage = stock(claims=[waiting()], volumes=[volume(storageClassName="local"), kept], classes=[BARE])
    assert place(pod(spec=using("data")), NODES, storage=storage).fitting == ("b",)


def test_two_claims_need_two_volumes() -> None:
    """The smaller claim gets the smaller volume, so that both find theirs."""
    big = waiting(resources={"requests": {"storage": "5Gi"}})
    small = claim("small", storageClassName="local")
    offered = [
        volume("v5", storageClassName="local", capacity={"storage": "5Gi"}),
        volume("v1", storageClassName="local"),
    ]
    one = stock(claims=[big, small], volumes=offered[:1], classes=[BARE])
    both = stock(claims=[big, small], volumes=offered, classes=[BARE])
    assert not place(pod(spec=using("data", "small")), NODES, storage=one).fits
    assert place(pod(spec=using("data", "small")), NODES, storage=both).fits


def test_what_is_not_there_is_made() -> None:
    """Where the class has somebody who makes volumes, a volume that is elsewhere keeps nobody away."""
    offered = volume(storageClassName="later", nodeAffinity=on_hosts("b"))
    storage = stock(claims=[claim(storageClassName="later")], volumes=[offered], classes=[kind()])
    assert place(pod(spec=using("data")), NODES, storage=storage).fitting == ("a", "b")


def capacity(zone: str, free: str, **fields: Any) -> dict[str, Any]:
    """Make what a driver says is free in a zone."""
    where = {"matchLabels": {ZONE: zone}}
    made = {"metadata": {"name": zone, "namespace": "x"}, "storageClassName": "later", "nodeTopology": where}
    return made | {"capacity": free} | fields


@pytest.mark.parametrize(
    ("told", "fitting"),
    [
        ([capacity("1", "1Gi")], ("a",)),
        ([capacity("1", "1Gi", maximumVolumeSize="512Mi")], ()),
        ([capacity("1", "512Mi"), capacity("2", "2Gi")], ("b",)),
        ([capacity("1", "1Gi", storageClassName="other")], ()),
        ([capacity("1", "1Gi", nodeTopology=None)], ()),
        ([], ()),
    ],
)
def test_free_space_of_a_driver(told: list[dict[str, Any]], fitting: tuple[str, ...]) -> None:
    """Where a driver tells of it, it has to be enough for the claim."""
    driver = {"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": True}}
    made = claim(storageClassName="later")
    storage = stock(claims=[made], classes=[kind()], drivers=[driver], capacities=told)
    found = place(pod(spec=using("data")), NODES, storage=storage)
    assert found.fitting == fitting
    assert set(reasons(found).values()) <= {(NO_SPACE,)}
    silent = stock(claims=[made], classes=[kind()], capacities=told)
    assert place(pod(spec=using("data")), NODES, storage=silent).fitting == ("a", "b")


def own(**meta: Any) -> dict[str, Any]:
    """Make a pod with a claim of its own by a template."""
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "later"}}
    return pod(spec={"volumes": [{"name": "tmp", "ephemeral": {"volumeClaimTemplate": template}}]}, **meta)


def test_a_claim_that_comes_with_the_pod() -> None:
    """Of a pod that does not exist yet, it is as the template says; of one that does, it has to be there."""
    assert place(own(), NODES, storage=stock(classes=[kind()])).fits
    found = place(own(uid="1"), NODES, storage=stock(classes=[kind()]))
    why = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "web-tmp"'
    assert found.message == f"0/2 nodes are available: {why}."


def test_a_claim_of_another_pod_by_that_name() -> None:
    """It is not taken for the pod's own."""
    there = claim("web-tmp", storageClassName="later")
    there["metadata"] |= {"uid": "c", "ownerReferences": [{"uid": "1", "controller": True}]}
    storage = stock(claims=[there], classes=[kind()])
    assert place(own(uid="1"), NODES, storage=storage).fits
    found = place(own(uid="2"), NODES, storage=storage)
    assert "was not created for pod default/web" in found.message


def zoned(**labels: str) -> Any:
    """Make the storage of a pod whose bound volume has labels."""
    return stock(claims=[claim(volumeName="pv")], volumes=[volume(labels=labels)])


BETA = "failure-domain.beta.kubernetes.io/zone"


def test_a_volume_of_a_zone() -> None:
    """Only nodes of that zone do, and those that are in no zone at all."""
    found = place(pod(spec=using("data")), [*NODES, node("c")], storage=zoned(**{ZONE: "2"}))
    assert found.fitting == ("b", "c")
    assert reasons(found) == {"a": (CONFLICT,)}
    assert checks(found) == {"a": "zones"}
    assert found.refused["a"].detail == "volume in 2"


@pytest.mark.parametrize(("zone", "fitting"), [({ZONE: "1__2"}, ("a", "b")), ({BETA: "1"}, ("a",))])
def test_a_volume_of_several_zones_or_with_the_older_label(zone: dict[str, str], fitting: tuple[str, ...]) -> None:
    """Several zones are written in one label; a node may have the newer label where the volume has the older one."""
    assert place(pod(spec=using("data")), NODES, storage=zoned(**zone)).fitting == fitting


def test_a_node_of_another_kind_of_place() -> None:
    """In a region, and in no zone, it is not in the volume's zone."""
    region = node("r", labels={"topology.kubernetes.io/region": "x"})
    assert place(pod(spec=using("data")), [region], storage=zoned(**{ZONE: "1"})).fitting == ()


def test_a_bound_volume_that_is_gone_from_one_of_two() -> None:
    """The claim's volume has to exist, whatever the other claim has; a pod's own claim is found out at each node."""
    bound = claim("web-tmp", volumeName="gone")
    bound["metadata"] |= {"uid": "c", "ownerReferences": [{"uid": "1", "controller": True}]}
    found = place(own(uid="1"), NODES, storage=stock(claims=[bound], classes=[kind()]))
    assert reasons(found) == {"a": (MISSING,), "b": (MISSING,)}


@pytest.mark.parametrize("prefix", ["storageclass", "storageclass.beta"])
def test_the_claim_of_an_ephemeral_volume_gets_the_default_class(prefix: str) -> None:
    """As the apiserver sets it in every claim that names none; "" is a name."""
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    default = kind("standard")
    default["metadata"]["annotations"] = {f"{prefix}.kubernetes.io/is-default-class": "true"}
    for given, fits in ({}, True), ({"storageClassName": ""}, False):
        claim_template = {**template, "spec": {**template["spec"], **given}}
        wanted = pod("web", {"volumes": [{"name": "d", "ephemeral": {"volumeClaimTemplate": claim_template}}]})
        assert place(wanted, [node("n1")], storage=stock(classes=[default])).fits is fits
