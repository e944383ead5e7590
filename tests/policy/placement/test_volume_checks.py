"""Tests of the volume checks: from a node, a volume must be reachable, available to bind, or possible to create."""

from typing import Any

import pytest
from placekit import (
    ZONE,
    checks,
    claim,
    examine_placement,
    make_storage,
    make_storage_class,
    node,
    on_hosts,
    pod,
    reasons,
    spec_with_claims,
    volume,
)

from tensile.policy.placement.volume_checks import CONFLICT, ELSEWHERE, MISSING, NO_SPACE, UNBINDABLE, UNBOUND

NODES = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "2"})]


def test_a_pod_without_claims_fits_on_every_node() -> None:
    """Volumes without a claim need nothing of a node."""
    assert examine_placement(pod(spec={"volumes": [{"name": "e", "emptyDir": {}}]}), NODES).fits


def test_a_bound_volume_needs_a_node_that_matches_its_affinity() -> None:
    """A local volume is reachable from its node only."""
    storage = make_storage(claims=[claim(volumeName="pv")], volumes=[volume(nodeAffinity=on_hosts("b"))])
    found = examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage)
    assert found.fitting == ("b",)
    assert reasons(found) == {"a": (ELSEWHERE,)}
    assert checks(found) == {"a": "volumes"}


def test_match_fields_in_a_volumes_affinity_are_ignored() -> None:
    """The scheduler ignores them too."""
    field = {"key": "metadata.name", "operator": "In", "values": ["b"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    storage = make_storage(claims=[claim(volumeName="pv")], volumes=[volume(nodeAffinity=affinity)])
    assert examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage).fitting == ("a", "b")


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
def test_a_claim_that_is_missing_or_not_usable_excludes_all_nodes(made: dict[str, Any] | None, why: str) -> None:
    """The reason belongs to the claim and not to a node."""
    storage = make_storage(
        claims=[made] if made else [], classes=[make_storage_class("now", volumeBindingMode="Immediate")]
    )
    found = examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage)
    assert found.nowhere is not None
    assert found.nowhere.reasons == (why,)
    assert found.message == f"0/2 nodes are available: {why}."


def test_a_terminating_claim_excludes_all_nodes() -> None:
    """The message says that the claim is being deleted."""
    ending = claim(volumeName="pv")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = examine_placement(
        pod(spec=spec_with_claims("data")), NODES, storage=make_storage(claims=[ending], volumes=[volume()])
    )
    assert found.message == '0/2 nodes are available: persistentvolumeclaim "data" is being deleted.'


def test_a_claim_with_an_unfinished_binding_excludes_all_nodes() -> None:
    """It names its volume, but lacks the annotation of a finished binding."""
    half = claim(volumeName="pv", storageClassName="later")
    half["metadata"]["annotations"] = {}
    storage = make_storage(claims=[half], volumes=[volume()], classes=[make_storage_class()])
    assert examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage).nowhere is not None


def test_a_volume_can_be_created_for_nodes_that_the_class_allows() -> None:
    """Without allowedTopologies every node fits."""
    storage = make_storage(claims=[claim(storageClassName="later")], classes=[make_storage_class()])
    assert examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage).fitting == ("a", "b")
    zoned = make_storage_class(allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["2"]}]}])
    storage = make_storage(claims=[claim(storageClassName="later")], classes=[zoned])
    found = examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage)
    assert found.fitting == ("b",)
    assert reasons(found) == {"a": (UNBINDABLE,)}


def test_the_beta_annotation_for_the_class_overrides_the_field() -> None:
    """The annotation is the older notation."""
    made = claim(storageClassName="now")
    made["metadata"]["annotations"] = {"volume.beta.kubernetes.io/storage-class": "later"}
    storage = make_storage(
        claims=[made], classes=[make_storage_class(), make_storage_class("now", volumeBindingMode="Immediate")]
    )
    assert examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage).fits


def test_a_claim_with_a_selected_node_fits_only_there() -> None:
    """That holds until its volume is created."""
    chosen = claim(storageClassName="later")
    chosen["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "b"}
    found = examine_placement(
        pod(spec=spec_with_claims("data")), NODES, storage=make_storage(claims=[chosen], classes=[make_storage_class()])
    )
    assert found.fitting == ("b",)
    assert reasons(found) == {"a": (UNBINDABLE,)}


BARE = make_storage_class("local", provisioner="kubernetes.io/no-provisioner")


def waiting(**spec: Any) -> dict[str, Any]:
    """Create a claim of the class without a provisioner."""
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
def test_an_existing_volume_must_match_the_claim(free: dict[str, Any] | None, *, fits: bool) -> None:
    """It must be large enough, available and reachable, with the same class, access modes and volume mode."""
    storage = make_storage(claims=[waiting()], volumes=[free] if free else [], classes=[BARE])
    found = examine_placement(pod(spec=spec_with_claims("data")), [NODES[0]], storage=storage)
    assert found.fits == fits
    assert reasons(found) == ({} if fits else {"a": (UNBINDABLE,)})


def test_a_terminating_volume_does_not_fit() -> None:
    """It cannot be bound any more."""
    going = volume(storageClassName="local")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not examine_placement(
        pod(spec=spec_with_claims("data")),
        NODES,
        storage=make_storage(claims=[waiting()], volumes=[going], classes=[BARE]),
    ).fits


def test_a_claim_may_select_volumes_by_labels() -> None:
    """A volume with another label does not fit."""
    wanted = waiting(selector={"matchLabels": {"speed": "high"}})
    for speed, fits in (("high", True), ("low", False)):
        offered = volume(storageClassName="local", labels={"speed": speed})
        storage = make_storage(claims=[wanted], volumes=[offered], classes=[BARE])
        assert examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage).fits == fits


def test_a_volume_reserved_for_the_claim_decides_the_node() -> None:
    """It does so even if another volume is free."""
    kept = volume(
        "kept", storageClassName="local", claimRef={"namespace": "default", "name": "data"}, nodeAffinity=on_hosts("b")
    )
    storage = make_storage(claims=[waiting()], volumes=[volume(storageClassName="local"), kept], classes=[BARE])
    assert examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage).fitting == ("b",)


def test_two_claims_need_two_volumes() -> None:
    """The smaller claim gets the smaller volume, so that both claims can be bound."""
    big = waiting(resources={"requests": {"storage": "5Gi"}})
    small = claim("small", storageClassName="local")
    offered = [
        volume("v5", storageClassName="local", capacity={"storage": "5Gi"}),
        volume("v1", storageClassName="local"),
    ]
    one = make_storage(claims=[big, small], volumes=offered[:1], classes=[BARE])
    both = make_storage(claims=[big, small], volumes=offered, classes=[BARE])
    assert not examine_placement(pod(spec=spec_with_claims("data", "small")), NODES, storage=one).fits
    assert examine_placement(pod(spec=spec_with_claims("data", "small")), NODES, storage=both).fits


def test_a_volume_is_created_if_the_existing_one_is_unreachable() -> None:
    """The class has a provisioner, so every node fits."""
    offered = volume(storageClassName="later", nodeAffinity=on_hosts("b"))
    storage = make_storage(claims=[claim(storageClassName="later")], volumes=[offered], classes=[make_storage_class()])
    assert examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage).fitting == ("a", "b")


def capacity(zone: str, free: str, **fields: Any) -> dict[str, Any]:
    """Create a CSIStorageCapacity for a zone."""
    where = {"matchLabels": {ZONE: zone}}
    made = {"metadata": {"name": zone, "namespace": "x"}, "storageClassName": "later", "nodeTopology": where}
    return made | {"capacity": free} | fields


@pytest.mark.parametrize(
    ("capacities", "fitting"),
    [
        ([capacity("1", "1Gi")], ("a",)),
        ([capacity("1", "1Gi", maximumVolumeSize="512Mi")], ()),
        ([capacity("1", "512Mi"), capacity("2", "2Gi")], ("b",)),
        ([capacity("1", "1Gi", storageClassName="other")], ()),
        ([capacity("1", "1Gi", nodeTopology=None)], ()),
        ([], ()),
    ],
)
def test_a_driver_that_publishes_capacity_needs_enough_for_the_claim(
    capacities: list[dict[str, Any]], fitting: tuple[str, ...]
) -> None:
    """Without published capacity every node fits."""
    driver = {"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": True}}
    made = claim(storageClassName="later")
    storage = make_storage(claims=[made], classes=[make_storage_class()], drivers=[driver], capacities=capacities)
    found = examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=storage)
    assert found.fitting == fitting
    assert set(reasons(found).values()) <= {(NO_SPACE,)}
    silent = make_storage(claims=[made], classes=[make_storage_class()], capacities=capacities)
    assert examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=silent).fitting == ("a", "b")


def own(**meta: Any) -> dict[str, Any]:
    """Create a pod with a claim template in an ephemeral volume."""
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "later"}}
    return pod(spec={"volumes": [{"name": "tmp", "ephemeral": {"volumeClaimTemplate": template}}]}, **meta)


def test_an_ephemeral_claim_of_an_existing_pod_must_exist() -> None:
    """For a pod that does not exist yet, its template counts."""
    assert examine_placement(own(), NODES, storage=make_storage(classes=[make_storage_class()])).fits
    found = examine_placement(own(uid="1"), NODES, storage=make_storage(classes=[make_storage_class()]))
    why = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "web-tmp"'
    assert found.message == f"0/2 nodes are available: {why}."


def test_an_ephemeral_claim_of_another_pod_is_not_used() -> None:
    """A claim of the right name may belong to another pod."""
    there = claim("web-tmp", storageClassName="later")
    there["metadata"] |= {"uid": "c", "ownerReferences": [{"uid": "1", "controller": True}]}
    storage = make_storage(claims=[there], classes=[make_storage_class()])
    assert examine_placement(own(uid="1"), NODES, storage=storage).fits
    found = examine_placement(own(uid="2"), NODES, storage=storage)
    assert "was not created for pod default/web" in found.message


def zoned(**labels: str) -> Any:
    """Return the storage of a pod whose bound volume has labels."""
    return make_storage(claims=[claim(volumeName="pv")], volumes=[volume(labels=labels)])


BETA = "failure-domain.beta.kubernetes.io/zone"


def test_a_volume_with_a_zone_label_needs_a_node_of_that_zone() -> None:
    """Nodes without any zone or region label fit too."""
    found = examine_placement(pod(spec=spec_with_claims("data")), [*NODES, node("c")], storage=zoned(**{ZONE: "2"}))
    assert found.fitting == ("b", "c")
    assert reasons(found) == {"a": (CONFLICT,)}
    assert checks(found) == {"a": "zones"}
    assert found.refused["a"].detail == "volume in 2"


@pytest.mark.parametrize(("zone", "fitting"), [({ZONE: "1__2"}, ("a", "b")), ({BETA: "1"}, ("a",))])
def test_a_volumes_zone_label_may_have_several_zones_or_the_beta_key(
    zone: dict[str, str], fitting: tuple[str, ...]
) -> None:
    """Several zones are in one label value; the node may have the newer key and the volume the older one."""
    assert examine_placement(pod(spec=spec_with_claims("data")), NODES, storage=zoned(**zone)).fitting == fitting


def test_a_node_with_only_a_region_is_not_in_the_volumes_zone() -> None:
    """A node with any topology label must match the zone."""
    region = node("r", labels={"topology.kubernetes.io/region": "x"})
    assert examine_placement(pod(spec=spec_with_claims("data")), [region], storage=zoned(**{ZONE: "1"})).fitting == ()


def test_a_missing_volume_of_an_ephemeral_claim_is_reported_for_each_node() -> None:
    """The claim is bound to a volume that does not exist; for an ephemeral claim each node has that reason."""
    bound = claim("web-tmp", volumeName="gone")
    bound["metadata"] |= {"uid": "c", "ownerReferences": [{"uid": "1", "controller": True}]}
    found = examine_placement(own(uid="1"), NODES, storage=make_storage(claims=[bound], classes=[make_storage_class()]))
    assert reasons(found) == {"a": (MISSING,), "b": (MISSING,)}


@pytest.mark.parametrize("prefix", ["storageclass", "storageclass.beta"])
def test_an_ephemeral_claim_without_a_class_uses_the_default_class(prefix: str) -> None:
    """The apiserver sets it if no class is given; "" is a class name, and gets no default."""
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    default = make_storage_class("standard")
    default["metadata"]["annotations"] = {f"{prefix}.kubernetes.io/is-default-class": "true"}
    for given, fits in ({}, True), ({"storageClassName": ""}, False):
        claim_template = {**template, "spec": {**template["spec"], **given}}
        wanted = pod("web", {"volumes": [{"name": "d", "ephemeral": {"volumeClaimTemplate": claim_template}}]})
        assert examine_placement(wanted, [node("n1")], storage=make_storage(classes=[default])).fits is fits
