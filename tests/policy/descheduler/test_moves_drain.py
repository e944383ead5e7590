"""Tests of the preview of a drain of a lower cluster."""

import pytest
from deschedulingkit import ON, A, B, descheduling_world, foreign_pod, owned_by, put_foreign_pods, requesting_pod
from worldkit import make_lower_pod, put

from tensile.objects import Manifest
from tensile.policy.descheduler.moves import DrainPreview, as_document, as_text, drain_preview
from tensile.reconcile.world import World

DAEMON = [{**owned_by("agent")[0], "kind": "DaemonSet"}]


def running(*pods: Manifest, cpus: tuple[tuple[str, ...], ...] = (("8",), ("4", "2"))) -> World:
    """Return a world with running pods in lower-a."""
    world = descheduling_world(cpus=cpus)
    for pod in pods:
        put(world.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    return world


def found(world: World) -> dict[str, DrainPreview]:
    """Return the evictions of the preview by the pods' names."""
    return {one.name: one for one in drain_preview(world, A)}


def test_each_pod_of_a_drain_has_a_target_with_room() -> None:
    """Earlier pods use up room; a pod that fits on no node would stay Pending, with the reason."""
    previews = found(
        running(requesting_pod("one", cpu="3"), requesting_pod("two", cpu="2"), requesting_pod("three", cpu="2"))
    )
    assert previews["one"] == DrainPreview("default", "one", leaves=True, target=B, node="lower-b-n1")
    assert previews["three"] == DrainPreview("default", "three", leaves=True, target=B, node="lower-b-n2")
    assert (previews["two"].leaves, previews["two"].target, previews["two"].is_lost) == (True, "", True)
    assert "it would stay Pending: lower-b: " in previews["two"].why
    assert "Insufficient cpu" in previews["two"].why


def test_room_of_pods_of_other_owners_does_not_count_in_the_preview() -> None:
    """The upper cluster has no record of those pods."""
    world = running(requesting_pod("one", cpu="3"))
    put_foreign_pods(world, B, foreign_pod("theirs", "lower-b-n1", "2"))
    assert found(world)["one"].target == ""


def test_the_preview_lists_pods_that_the_drain_does_not_evict() -> None:
    """The reasons are those that the drain itself reports."""
    previews = found(
        running(requesting_pod("bare", cpu="5", ownerReferences=[]), requesting_pod("agent", ownerReferences=DAEMON))
    )
    assert [one.leaves for one in previews.values()] == [False, False]
    assert "it fits in no other lower cluster: lower-b: " in previews["bare"].why
    assert "DaemonSet" in previews["agent"].why


def test_a_bare_pod_is_evicted_only_if_room_remains() -> None:
    """Pods with a controller use the room first; a bare pod with claims stays, because nothing recreates it."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    bare = requesting_pod("bare", cpu="4", ownerReferences=[])
    previews = found(
        running(
            bare,
            requesting_pod("later", cpu="2"),
            requesting_pod("stored", ownerReferences=[], spec={"volumes": volumes}),
        )
    )
    assert list(previews) == ["bare", "later", "stored"]
    assert (previews["bare"].leaves, previews["later"].node) == (False, "lower-b-n1")
    assert found(running(bare))["bare"] == DrainPreview("default", "bare", leaves=True, target=B, node="lower-b-n1")
    assert (previews["stored"].leaves, previews["stored"].why.partition(":")[0]) == (False, "not moved")


def test_a_bare_pod_stays_in_the_preview_without_recreate_bare_pods() -> None:
    """It stays although there may be room for it, and uses no room of other pods."""
    world = descheduling_world(cpus=(("8",), ("4",)), more="")
    for pod in (requesting_pod("bare", ownerReferences=[]), requesting_pod("owned")):
        put(world.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    previews = found(world)
    why = (
        "not moved: it has no controller; with descheduler.recreateBarePods it moves if another lower cluster has room"
    )
    assert previews["bare"] == DrainPreview("default", "bare", leaves=False, why=why)
    assert previews["owned"].target == B


def test_a_terminated_pod_is_evicted_without_a_target() -> None:
    """No controller creates it again, so it is not counted as lost."""
    world = running()
    put(world.lowers[A].upper_pods, {**requesting_pod("done", ownerReferences=[]), "status": {"phase": "Succeeded"}})
    assert found(world)["done"] == DrainPreview("default", "done", leaves=True)
    assert not found(world)["done"].is_lost


def test_a_controllers_pod_with_claims_is_evicted_and_would_stay_pending() -> None:
    """Its volumes are in the drained lower cluster."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    preview = found(running(requesting_pod(spec={"volumes": volumes})))["web"]
    assert (preview.leaves, preview.is_lost, preview.why) == (
        True,
        True,
        "its volumes are in lower-a: it would stay Pending",
    )


def test_an_unknown_lower_raises_key_error() -> None:
    """The caller has to pass a lower cluster of the topology."""
    with pytest.raises(KeyError):
        drain_preview(running(), "lower-x")


def test_the_table_has_one_line_for_each_pod_and_a_summary() -> None:
    """The summary counts the pods to evict, those that fit in no other lower cluster, and those that stay."""
    previews = drain_preview(
        running(requesting_pod("one", cpu="3"), requesting_pod("bare", cpu="5", ownerReferences=[])), A
    )
    head, bare, one, empty, last = as_text(A, previews).splitlines()
    assert head.split("   ")[0].strip() == "POD"
    assert bare.split()[:3] == ["default/bare", "stays", "-"]
    assert one.split() == ["default/one", B, "lower-b-n1"]
    assert (empty, last) == ("", "Drain of lower-a: 1 to evict, 0 of them fit in no other lower cluster, 1 to stay.")
    assert as_text(A, []) == "Drain of lower-a: 0 to evict, 0 of them fit in no other lower cluster, 0 to stay."


def test_the_document_has_every_field_of_each_pod() -> None:
    """The document also names the drained lower cluster."""
    document = as_document(A, drain_preview(running(requesting_pod("one", cpu="3")), A))
    assert document["lower"] == A
    (pod,) = document["pods"]
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
    world = descheduling_world(*(f"name: lower-{letter}" for letter in "abc"), cpus=cpus, more=more)
    for pod in pods:
        put(world.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    return world


def test_the_preview_names_all_lowers_with_room() -> None:
    """The upper scheduler chooses one of them."""
    world = elsewhere(requesting_pod("one"), cpus=(("8",), ("4",), ("4",)))
    assert (found(world)["one"].target, found(world)["one"].others) == (B, ("lower-c",))
    assert as_text(A, drain_preview(world, A)).splitlines()[1].split()[1:4] == [B, "or", "lower-c"]


def test_two_pods_that_fit_two_lowers_both_list_both() -> None:
    """Either pod may get either lower cluster, and the room of each is counted once."""
    previews = found(elsewhere(requesting_pod("one"), requesting_pod("two"), cpus=(("8",), ("4",), ("4",))))
    assert (previews["one"].target, previews["one"].others) == (B, ("lower-c",))
    assert (previews["two"].target, previews["two"].others) == ("lower-c", (B,))


def test_a_lower_with_only_fragmented_capacity_is_reported_as_full() -> None:
    """The upper scheduler sees only the sum and may bind a pod there; with the extender it does not."""
    cpus = (("8",), ("4",), ("2", "2"))
    preview = found(elsewhere(requesting_pod("one"), cpus=cpus))["one"]
    assert (preview.target, preview.others, preview.full) == (B, (), ("lower-c",))
    assert (
        as_text(A, [preview])
        .splitlines()[1]
        .endswith("the upper scheduler may bind it to lower-c, which has no free capacity")
    )
    asking = elsewhere(requesting_pod("one"), cpus=cpus, more=ON + "extender: {enabled: true}\n")
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
    world = descheduling_world(*lowers, cpus=(("8",), ("8",), ("8",)))
    for number, lower in enumerate(world.lowers.values()):
        meta = {"labels": {"app": "web"}, "ownerReferences": owned_by("web")}
        pod = requesting_pod(f"web-{number}", node=lower.node, cpu="1", spec=spec, **meta)
        put(lower.upper_pods, pod)
        put(lower.pods, make_lower_pod(pod, {"phase": "Running"}, node=lower.node))
    (row,) = drain_preview(world, A)
    assert (row.leaves, row.target) == (True, "")
    assert "topology spread" in row.why
