"""Tests of the preview of a drain of a lower cluster."""

import pytest
from deschedulingkit import ON, A, B, crowd, ground, owned_by, seeker, stranger
from worldkit import put, twin

from tensile.objects import Manifest
from tensile.policy.descheduler.moves import DrainPreview, as_document, as_text, drain_preview
from tensile.reconcile.world import World

DAEMON = [{**owned_by("agent")[0], "kind": "DaemonSet"}]


def running(*pods: Manifest, cpus: tuple[tuple[str, ...], ...] = (("8",), ("4", "2"))) -> World:
    """Return a world with running pods in lower-a."""
    here = ground(cpus=cpus)
    for pod in pods:
        put(here.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    return here


def found(here: World) -> dict[str, DrainPreview]:
    """Return the preview by the pods' names."""
    return {one.name: one for one in drain_preview(here, A)}


def test_each_pod_of_a_drain_has_a_target_with_room() -> None:
    """Earlier pods use up room; a pod that fits on no node would stay Pending, with the reason."""
    told = found(running(seeker("one", cpu="3"), seeker("two", cpu="2"), seeker("three", cpu="2")))
    assert told["one"] == DrainPreview("default", "one", leaves=True, target=B, node="lower-b-n1")
    assert told["three"] == DrainPreview("default", "three", leaves=True, target=B, node="lower-b-n2")
    assert (told["two"].leaves, told["two"].target, told["two"].is_lost) == (True, "", True)
    assert "it would stay Pending: lower-b: " in told["two"].why
    assert "Insufficient cpu" in told["two"].why


def test_room_of_pods_of_other_owners_does_not_count_in_the_preview() -> None:
    """The upper cluster has no record of those pods."""
    here = running(seeker("one", cpu="3"))
    crowd(here, B, stranger("theirs", "lower-b-n1", "2"))
    assert found(here)["one"].target == ""


def test_the_preview_lists_pods_that_the_drain_does_not_evict() -> None:
    """The reasons are those that the drain itself reports."""
    told = found(running(seeker("bare", cpu="5", ownerReferences=[]), seeker("agent", ownerReferences=DAEMON)))
    assert [one.leaves for one in told.values()] == [False, False]
    assert "it fits in no other lower cluster: lower-b: " in told["bare"].why
    assert "DaemonSet" in told["agent"].why


def test_a_bare_pod_is_evicted_only_if_room_remains() -> None:
    """Pods with a controller use the room first; a bare pod with claims stays, because nothing recreates it."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    bare = seeker("bare", cpu="4", ownerReferences=[])
    told = found(
        running(bare, seeker("later", cpu="2"), seeker("stored", ownerReferences=[], spec={"volumes": volumes}))
    )
    assert list(told) == ["bare", "later", "stored"]
    assert (told["bare"].leaves, told["later"].node) == (False, "lower-b-n1")
    assert found(running(bare))["bare"] == DrainPreview("default", "bare", leaves=True, target=B, node="lower-b-n1")
    assert (told["stored"].leaves, told["stored"].why.partition(":")[0]) == (False, "not moved")


def test_a_bare_pod_stays_in_the_preview_without_recreate_bare_pods() -> None:
    """It stays although there may be room for it, and uses no room of other pods."""
    here = ground(cpus=(("8",), ("4",)), more="")
    for pod in (seeker("bare", ownerReferences=[]), seeker("owned")):
        put(here.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    told = found(here)
    why = (
        "not moved: it has no controller; with descheduler.recreateBarePods it moves if another lower cluster has room"
    )
    assert told["bare"] == DrainPreview("default", "bare", leaves=False, why=why)
    assert told["owned"].target == B


def test_a_terminated_pod_is_evicted_without_a_target() -> None:
    """No controller creates it again, so it is not counted as lost."""
    here = running()
    put(here.lowers[A].upper_pods, {**seeker("done", ownerReferences=[]), "status": {"phase": "Succeeded"}})
    assert found(here)["done"] == DrainPreview("default", "done", leaves=True)
    assert not found(here)["done"].is_lost


def test_a_controllers_pod_with_claims_is_evicted_and_would_stay_pending() -> None:
    """Its volumes are in the drained lower cluster."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    told = found(running(seeker(spec={"volumes": volumes})))["web"]
    assert (told.leaves, told.is_lost, told.why) == (True, True, "its volumes are in lower-a: it would stay Pending")


def test_an_unknown_lower_raises_key_error() -> None:
    """The caller has to pass a lower cluster of the topology."""
    with pytest.raises(KeyError):
        drain_preview(running(), "lower-x")


def test_the_table_has_one_line_for_each_pod_and_a_summary() -> None:
    """The summary counts the pods to evict, those that fit in no other lower cluster, and those that stay."""
    told = drain_preview(running(seeker("one", cpu="3"), seeker("bare", cpu="5", ownerReferences=[])), A)
    head, bare, one, empty, last = as_text(A, told).splitlines()
    assert head.split("   ")[0].strip() == "POD"
    assert bare.split()[:3] == ["default/bare", "stays", "-"]
    assert one.split() == ["default/one", B, "lower-b-n1"]
    assert (empty, last) == ("", "Drain of lower-a: 1 to evict, 0 of them fit in no other lower cluster, 1 to stay.")
    assert as_text(A, []) == "Drain of lower-a: 0 to evict, 0 of them fit in no other lower cluster, 0 to stay."


def test_the_document_has_every_field_of_each_pod() -> None:
    """The document also names the drained lower cluster."""
    told = as_document(A, drain_preview(running(seeker("one", cpu="3")), A))
    assert told["lower"] == A
    (pod,) = told["pods"]
    assert pod.pop("others") == pod.pop("full") == ()
    assert pod == {
        "namespace": "default",
        "name": "one",
        "leaves": True,
        "target": B,
        "node": "lower-b-n1",
        "why": "",
    }


def elsewhere(*pods: Manifest, cpus: tuple[tuple[str, ...], ...], more: str = ON) -> World:
    """Return a world of three lowers with running pods in the first."""
    here = ground(*(f"name: lower-{letter}" for letter in "abc"), cpus=cpus, more=more)
    for pod in pods:
        put(here.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    return here


def test_the_preview_names_all_lowers_with_room() -> None:
    """The upper scheduler chooses one of them."""
    here = elsewhere(seeker("one"), cpus=(("8",), ("4",), ("4",)))
    assert (found(here)["one"].target, found(here)["one"].others) == (B, ("lower-c",))
    assert as_text(A, drain_preview(here, A)).splitlines()[1].split()[1:4] == [B, "or", "lower-c"]


def test_two_pods_that_fit_two_lowers_both_list_both() -> None:
    """Either pod may get either lower cluster, and the room of each is counted once."""
    told = found(elsewhere(seeker("one"), seeker("two"), cpus=(("8",), ("4",), ("4",))))
    assert (told["one"].target, told["one"].others) == (B, ("lower-c",))
    assert (told["two"].target, told["two"].others) == ("lower-c", (B,))


def test_a_lower_with_only_fragmented_capacity_is_reported_as_full() -> None:
    """The upper scheduler sees only the sum and may bind a pod there; with the extender it does not."""
    cpus = (("8",), ("4",), ("2", "2"))
    told = found(elsewhere(seeker("one"), cpus=cpus))["one"]
    assert (told.target, told.others, told.full) == (B, (), ("lower-c",))
    assert (
        as_text(A, [told])
        .splitlines()[1]
        .endswith("the upper scheduler may bind it to lower-c, which has no free capacity")
    )
    asking = elsewhere(seeker("one"), cpus=cpus, more=ON + "extender: {enabled: true}\n")
    assert found(asking)["one"].full == (), "it asks the extender, which knows better"


def test_control_characters_in_a_reason_are_escaped() -> None:
    """A reason may contain text of other sources, and must remain on its line."""
    text = as_text(A, [DrainPreview("default", "web", leaves=False, why="held\x1b[2J\nback")])
    assert text.splitlines()[1].endswith("held\\u001b[2J\\nback")


def test_unschedulable_virtual_nodes_count_as_topology_spread_domains() -> None:
    """The upper scheduler counts their pods, so with one pod in each domain no domain can have a second one."""
    spread = {"topologyKey": "clusterID", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    spec = {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": {"app": "web"}}}]}
    lowers = (f"name: {A}, maintenance: drain", f"name: {B}", "name: lower-c")
    here = ground(*lowers, cpus=(("8",), ("8",), ("8",)))
    for number, lower in enumerate(here.lowers.values()):
        meta = {"labels": {"app": "web"}, "ownerReferences": owned_by("web")}
        pod = seeker(f"web-{number}", node=lower.node, cpu="1", spec=spec, **meta)
        put(lower.upper_pods, pod)
        put(lower.pods, twin(pod, {"phase": "Running"}, node=lower.node))
    (row,) = drain_preview(here, A)
    assert (row.leaves, row.target) == (True, "")
    assert "topology spread" in row.why
