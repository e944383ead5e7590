"""The virtual node: made, kept in step with the topology, cordoned and let go, and never taken from anybody."""

from copy import deepcopy
from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    A,
    B,
    changed,
    decided,
    drop,
    lower_node,
    put,
    raised,
    reload,
    twin,
    upper_pod,
    world,
    written,
)

from tensile.kube.store import Delta
from tensile.kubelet.node.rule import HEARTBEAT, TAINTS, NodeRule, key_of
from tensile.kubelet.node.status import SILENT_AFTER
from tensile.names import (
    CORDONED_BY,
    LOWER_UID,
    NAMESPACE_MAPPING,
    OWNER,
    OWNER_NAME,
    ROOM,
    UNREACHABLE_TAINT,
    UPPER_UID,
)
from tensile.objects import NODE, UPPER, Manifest, Ref
from tensile.reconcile.desired import Decision
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import Key, World

RULE = NodeRule()
KEY = Key("node", A, "", A)
REF = Ref(UPPER, NODE, "", A)
PROVIDER = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
UNREACHABLE = {"key": UNREACHABLE_TAINT, "effect": "NoSchedule"}


def planned(here: World) -> Plan:
    """Plan the node of lower-a."""
    return decided(RULE, KEY, here)[1]


def started(*lowers: str, more: str = "") -> World:
    """Make a world whose lower-a has one Ready node."""
    here = world(*lowers, more=more)
    put(here.lowers[A].nodes, lower_node())
    return here


def standing(*lowers: str, more: str = "") -> World:
    """Make a world where the node of lower-a is there, just as it should be."""
    here = started(*lowers, more=more)
    raised(here)
    assert planned(here) == Plan(())
    return here


def node(here: World) -> Manifest:
    """Return the Node as it is."""
    entry = here.upper.nodes.get("", A)
    assert entry is not None
    return deepcopy(entry.manifest())


def the_step(here: World) -> Step:
    """Return the one step of the plan."""
    (step,) = planned(here).steps
    return step


def carried_out(here: World) -> Manifest:
    """Let the Node become what the rule wants of its metadata and spec, and give it."""
    wanted = RULE.decide(KEY, here).wanted[0].manifest  # type: ignore[union-attr]
    seen = node(here)
    meta = {**seen["metadata"], **{one: wanted["metadata"][one] for one in ("labels", "annotations")}}
    put(here.upper.nodes, written({**seen, "metadata": meta, "spec": wanted["spec"]}))
    return node(here)


def made(*lowers: str, more: str = "") -> Manifest:
    """Return the Node that is made for lower-a."""
    body = the_step(started(*lowers, more=more)).body
    assert body is not None
    return body


def operations(here: World) -> list[tuple[str, str, Any]]:
    """Return the operations of the one step, as a person reads them."""
    return [(one["op"], one["path"], one.get("value")) for one in the_step(here).operations]


def paths(here: World) -> list[str]:
    """Return the paths of the one step's operations."""
    return [path for _, path, _ in operations(here)]


# Made.


def test_a_node_is_made_for_a_lower() -> None:
    """With the status that it has now: a node without one would count as not ready."""
    here = started()
    step = the_step(here)
    assert (step.verb, step.ref, step.reason) == ("create", REF, "lower cluster lower-a is in the topology")
    assert step.body is not None
    assert step.body["status"]["allocatable"]["cpu"] == "4"
    assert RULE.decide(KEY, here).requeue_after == HEARTBEAT == 300


def test_a_node_has_the_labels_by_which_users_know_it() -> None:
    """Those of tensile-kube, those that schedulers read, and the mark."""
    assert made()["metadata"]["labels"] == {
        "type": "virtual-kubelet",
        "kubernetes.io/role": "agent",
        "kubernetes.io/hostname": A,
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "clusterID": A,
        "node.kubernetes.io/exclude-from-external-load-balancers": "",
        OWNER: OWNER_HERE.mark,
    }


def test_labels_of_the_topology_are_added() -> None:
    """The clusterID too can be given; what says that the node is virtual cannot."""
    labels = made(f"name: {A}, node: {{labels: {{clusterID: east, zone: z1, type: real}}}}")["metadata"]["labels"]
    assert (labels["clusterID"], labels["zone"], labels["type"]) == ("east", "z1", "virtual-kubelet")


def test_annotations_say_whose_it_is_and_what_was_set_by_us() -> None:
    """The taints' own list is what tells ours from others' later."""
    found = made(f"name: {A}, node: {{annotations: {{note: hello}}}}")
    assert found["metadata"]["annotations"] == {
        "note": "hello",
        OWNER_NAME: "demo",
        UPPER_UID: OWNER_HERE.upper,
        TAINTS: "virtual-kubelet.io/provider:NoSchedule",
        NAMESPACE_MAPPING: "same",
    }


@pytest.mark.parametrize(
    ("field", "annotation", "value", "another"),
    [
        ("identity", LOWER_UID, "cluster-1", "cluster-2"),
        ("room", ROOM, "2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z"),
    ],
    ids=["which cluster is behind it", "room that came for refused pods"],
)
def test_the_node_notes_what_an_engine_that_starts_does_not_know(
    field: str, annotation: str, value: str, another: str
) -> None:
    """It leaves the note until it knows better."""
    here = standing()
    setattr(here.lowers[A], field, value)
    assert operations(here) == [("add", f"/metadata/annotations/{annotation.replace('/', '~1')}", value)]
    assert carried_out(here)["metadata"]["annotations"][annotation] == value
    setattr(here.lowers[A], field, "")
    assert planned(here) == Plan(())
    setattr(here.lowers[A], field, another)
    assert carried_out(here)["metadata"]["annotations"][annotation] == another


def test_a_node_is_tainted_from_the_first_moment() -> None:
    """Or pods that do not tolerate it would be bound before the taint comes; a provider of its own keeps clouds off."""
    assert made()["spec"] == {"taints": [PROVIDER], "providerID": "tensile-kube://lower-a"}


def test_a_topology_can_do_without_taints() -> None:
    """Then any pod can be bound to it."""
    assert "taints" not in made(f"name: {A}, node: {{taints: []}}")["spec"]


def test_a_taint_without_a_value_has_none() -> None:
    """The API drops an empty one, and it would differ for ever."""
    found = made(f"name: {A}, node: {{taints: [{{key: k, effect: NoExecute}}]}}")
    assert found["spec"]["taints"] == [{"key": "k", "effect": "NoExecute"}]


def test_the_architecture_is_that_of_most_nodes_below_whatever_came_last() -> None:
    """Told by the last one that moved, it would change with every heartbeat of a mixed cluster."""
    here = world()
    nodes = here.lowers[A].nodes
    put(nodes, lower_node("n1", arch="arm64"), lower_node("n2", arch="amd64"), lower_node("n3", arch="arm64"))
    raised(here)
    assert node(here)["metadata"]["labels"]["kubernetes.io/arch"] == "arm64"
    assert node(here)["status"]["nodeInfo"]["architecture"] == "arm64"
    put(nodes, lower_node("n1", arch="arm64"), lower_node("n3", arch="arm64"))
    assert planned(here) == Plan(())


def test_nothing_is_decided_before_the_nodes_are_known() -> None:
    """It may be there."""
    here = started()
    here.upper.nodes.mark_stale()
    assert RULE.decide(KEY, here) == Decision()


# Kept.


def test_a_change_of_the_topology_changes_the_node() -> None:
    """Labels, annotations and taints, in one write that holds only if nobody wrote since."""
    here = standing()
    reload(here, f"name: {A}, node: {{labels: {{zone: z1}}, annotations: {{note: hello}}, taints: []}}")
    patch = planned(here).steps[0]
    assert patch.patch is not None
    version = node(here)["metadata"]["resourceVersion"]
    fences = [
        {"op": "replace", "path": "/metadata/uid", "value": "node"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
    ]
    assert patch.patch.body[:2] == fences
    seen = carried_out(here)
    assert seen["metadata"]["labels"]["zone"] == "z1"
    assert seen["metadata"]["annotations"]["note"] == "hello"
    assert "taints" not in seen["spec"]


def test_what_left_the_topology_leaves_the_node() -> None:
    """A label that we set and nobody wants any more."""
    here = standing(f"name: {A}, node: {{labels: {{zone: z1}}}}")
    reload(here)
    assert operations(here) == [("remove", "/metadata/labels/zone", None)]


def test_labels_and_annotations_of_others_stay() -> None:
    """Whoever set them wants them."""
    here = standing()

    def decorate(one: Manifest) -> None:
        """Put something there as another writer."""
        one["metadata"]["labels"]["theirs"] = "yes"
        one["metadata"]["annotations"]["theirs"] = "yes"

    changed(here.upper.nodes, A, decorate, "")
    assert planned(here) == Plan(())


@pytest.mark.parametrize(("section", "key"), [("labels", "type"), ("labels", "clusterID"), ("annotations", OWNER_NAME)])
def test_what_is_ours_is_put_back(section: str, key: str) -> None:
    """Changed or taken away by somebody."""
    here = standing()
    changed(here.upper.nodes, A, lambda one: one["metadata"][section].update({key: "wrong"}), "")
    assert [one[0] for one in operations(here)] == ["replace"]
    carried_out(here)
    changed(here.upper.nodes, A, lambda one: one["metadata"][section].pop(key), "")
    assert [one[0] for one in operations(here)] == ["add"]


def taint(here: World, *taints: Manifest) -> None:
    """Let somebody set the taints."""
    changed(here.upper.nodes, A, lambda one: one["spec"].update(taints=list(taints)), "")


THEIRS = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-03-01T12:00:00Z"}


@pytest.mark.parametrize("taints", [[PROVIDER, THEIRS], [THEIRS, PROVIDER]])
def test_taints_of_others_stay_where_they_are(taints: list[Manifest]) -> None:
    """The controller of the nodes and kubectl put theirs at either end: an order is no difference."""
    here = standing()
    taint(here, *taints)
    assert planned(here) == Plan(())


def test_a_taint_of_ours_is_put_back_beside_others() -> None:
    """Taken away, or given another value."""
    here = standing()
    taint(here, THEIRS)
    assert carried_out(here)["spec"]["taints"] == [THEIRS, PROVIDER]
    taint(here, {**PROVIDER, "value": "wrong"}, THEIRS)
    assert carried_out(here)["spec"]["taints"] == [PROVIDER, THEIRS]


def test_a_taint_that_left_the_topology_goes_and_others_stay() -> None:
    """Ours of before are known by our own list."""
    here = standing()
    taint(here, THEIRS, PROVIDER)
    reload(here, f"name: {A}, node: {{taints: []}}")
    assert carried_out(here)["spec"]["taints"] == [THEIRS]
    assert planned(here) == Plan(())


# Cordoned.


def cordon(here: World, *, on: bool = True) -> None:
    """Run kubectl cordon, or uncordon."""

    def turn(one: Manifest) -> None:
        """Set the field as kubectl does."""
        one["spec"].pop("unschedulable", None)
        if on:
            one["spec"]["unschedulable"] = True

    changed(here.upper.nodes, A, turn, "")


@pytest.mark.parametrize("mode", ["cordon", "drain"])
def test_maintenance_cordons_and_its_end_lifts_that(mode: str) -> None:
    """Marked as ours, so that the end of the maintenance lifts it and nothing else."""
    here = standing()
    reload(here, f"name: {A}, maintenance: {mode}")
    assert carried_out(here)["spec"]["unschedulable"]
    assert node(here)["metadata"]["annotations"][CORDONED_BY] == f"maintenance-{mode}"
    assert planned(here) == Plan(())
    reload(here)
    seen = carried_out(here)
    assert "unschedulable" not in seen["spec"]
    assert CORDONED_BY not in seen["metadata"]["annotations"]
    assert planned(here) == Plan(())


def test_maintenance_holds_against_an_uncordon() -> None:
    """The topology decides as long as it says so."""
    here = standing(f"name: {A}, maintenance: cordon")
    cordon(here, on=False)
    assert operations(here) == [("add", "/spec/unschedulable", True)]


def test_a_change_of_maintenance_is_said() -> None:
    """The mark tells for what."""
    here = standing(f"name: {A}, maintenance: cordon")
    reload(here, f"name: {A}, maintenance: drain")
    assert carried_out(here)["metadata"]["annotations"][CORDONED_BY] == "maintenance-drain"


# Out of reach.


@pytest.mark.parametrize(("silent", "tainted"), [(0.0, False), (SILENT_AFTER, False), (SILENT_AFTER + 0.1, True)])
def test_a_lower_that_is_silent_for_long_takes_no_new_pods(silent: float, tainted: bool) -> None:  # noqa: FBT001 - a parameter
    """Longer than a restart takes; the pods that run there are left alone."""
    here = standing()
    here.lowers[A].unreachable_seconds = silent
    step = planned(here).steps[:1]
    assert bool(step) is tainted
    assert (UNREACHABLE in carried_out(here)["spec"]["taints"]) is tainted


def test_the_taint_goes_when_the_lower_answers() -> None:
    """And only that one."""
    here = standing()
    taint(here, PROVIDER, THEIRS)
    here.lowers[A].unreachable_seconds = 60.0
    assert carried_out(here)["spec"]["taints"] == [PROVIDER, THEIRS, UNREACHABLE]
    here.lowers[A].unreachable_seconds = 0.0
    assert carried_out(here)["spec"]["taints"] == [PROVIDER, THEIRS]


def test_a_lower_without_a_ready_node_takes_no_new_pods() -> None:
    """They would wait there, where the upper scheduler cannot move them."""
    here = standing()
    put(here.lowers[A].nodes, lower_node(ready=False))
    assert UNREACHABLE in carried_out(here)["spec"]["taints"]


# Left.


def test_a_node_goes_once_its_lower_left_and_is_empty() -> None:
    """By its UID."""
    here = standing()
    reload(here, f"name: {B}")
    step = the_step(here)
    assert (step.verb, step.uid, step.reason) == ("delete", "node", "its lower cluster was removed from the topology")
    drop(here.upper.nodes, A, "")
    assert planned(here) == Plan(())


def test_a_node_goes_once_its_lower_has_another_one() -> None:
    """The lower is still in the topology, so its removal is not the reason."""
    here = standing()
    reload(here, f"name: {A}, node: {{name: other}}", f"name: {B}")
    here.lowers[A].in_topology = False
    assert the_step(here).reason == "its lower cluster has another `node.name` now"


@pytest.mark.parametrize("kept", ["upper_pods", "pods"])
def test_a_node_stays_while_a_pod_is_there(kept: str) -> None:
    """On either side, or while that is not known."""
    here = standing()
    reload(here, f"name: {B}")
    pod = upper_pod() if kept == "upper_pods" else twin(upper_pod())
    cache = getattr(here.lowers[A], kept)
    put(cache, pod)
    assert [one.verb for one in planned(here).steps] == ["patch", "patch"]
    drop(cache, "web")
    cache.mark_stale()
    assert [one.verb for one in planned(here).steps] == ["patch", "patch"]


@pytest.mark.parametrize("noted", [True, False])
def test_the_node_of_a_cluster_that_was_never_met_goes_at_once(*, noted: bool) -> None:
    """Nothing can be there, so it need not be read first: unless the Node notes that an engine before knew it."""
    here = standing()
    here.lowers[A].met = False
    here.lowers[A].pods.mark_stale()
    here.lowers[A].identity = "cluster-1" if noted else ""
    raised(here)
    here.lowers[A].identity = ""
    reload(here, f"name: {B}")
    assert [one.verb for one in planned(here).steps][:1] == (["patch"] if noted else ["delete"])


def test_a_node_that_is_missed_by_pods_is_made_even_for_a_lower_that_left() -> None:
    """Or Kubernetes would delete them; without pods nobody misses it."""
    here = started()
    reload(here, f"name: {B}")
    assert planned(here) == Plan(())
    put(here.lowers[A].upper_pods, upper_pod())
    step = the_step(here)
    assert (step.verb, step.reason) == ("create", "pods are bound to it")
    assert step.body is not None
    assert step.body["spec"]["unschedulable"]


def test_a_node_left_behind_is_cordoned_and_otherwise_as_it_was() -> None:
    """Nobody knows any more what it should look like."""
    here = standing(f"name: {A}, node: {{labels: {{zone: z1}}}}")
    put(here.lowers[A].upper_pods, upper_pod())
    reload(here, f"name: {B}")
    here.lowers[A].connected = False
    here.lowers[A].spec = here.topology.lowers[0]
    before = node(here)
    after = carried_out(here)
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert after["spec"] == {**before["spec"], "unschedulable": True}
    assert after["metadata"]["annotations"][CORDONED_BY] == "not-in-topology"
    assert [one.subresource for one in planned(here).steps] == ["status"]


def test_a_cordon_of_somebodys_stays_theirs_on_a_node_left_behind() -> None:
    """It is not marked as ours."""
    here = standing()
    cordon(here)
    put(here.lowers[A].upper_pods, upper_pod())
    reload(here, f"name: {B}")
    here.lowers[A].connected = False
    assert CORDONED_BY not in carried_out(here)["metadata"]["annotations"]


def test_a_node_that_nobody_can_reach_again_stays_gone() -> None:
    """A lower that was left behind is known by its Node alone."""
    here = started()
    reload(here, f"name: {B}")
    here.lowers[A].connected = False
    put(here.lowers[A].upper_pods, upper_pod())
    assert planned(here) == Plan(())


# Status.


def test_a_quiet_node_is_not_written() -> None:
    """Until its heartbeat is due."""
    here = standing()
    here.now = here.now.replace(minute=here.now.minute + 4)
    assert planned(here) == Plan(())
    here.now = here.now.replace(minute=here.now.minute + 1)
    step = the_step(here)
    assert (step.verb, step.subresource, step.uid, step.in_plan) == ("patch", "status", "node", False)


@pytest.mark.parametrize(("cpu", "shown"), [("4100m", False), ("3900m", False), ("4300m", True), ("1", True)])
def test_a_person_sees_what_moved_by_more_than_a_twentieth(cpu: str, shown: bool) -> None:  # noqa: FBT001 - a parameter
    """Less is written, and not shown in a plan."""
    here = standing()
    put(here.lowers[A].nodes, lower_node(cpu=cpu))
    step = the_step(here)
    assert (step.subresource, step.in_plan) == ("status", shown)


def test_deletions_that_are_held_back_are_looked_for() -> None:
    """The Node's condition tells of them, so it hears when they come and go, without waiting for anything."""
    decision = RULE.decide(KEY, standing())
    rules = ("orphans", "strays", "vacancy", "claim-orphans", "rights-orphans")
    assert decision.reports_on == tuple(Key(rule, A, "", "") for rule in rules)
    assert decision.depends_on == ()


# Which changes concern it.


def heard(here: World, cache: str, delta: Delta, lower: str = A) -> list[Key]:
    """Return the keys that a change concerns."""
    return [key for route in RULE.watches() if route.cache == cache for key in route.keys(here, lower, delta)]


def test_each_lower_has_one_node() -> None:
    """By its name in the topology."""
    here = world(f"name: {A}, node: {{name: vk-east}}")
    assert list(RULE.keys(here, A)) == [Key("node", A, "", "vk-east")]
    assert key_of(here.lowers[A]) == Key("node", A, "", "vk-east")


def test_a_node_hears_of_itself() -> None:
    """Not of others."""
    here = standing()
    entry = here.upper.nodes.get("", A)
    assert heard(here, "upper.nodes", Delta(entry, None)) == [KEY]
    assert heard(here, "upper.nodes", Delta(None, entry)) == [KEY]
    assert heard(here, "upper.nodes", Delta(None, entry), B) == []


def test_changes_below_are_gathered_before_the_capacity_is_counted() -> None:
    """A thousand pods that come at once are one look."""
    here = standing()
    for cache in ("nodes", "foreign_pods"):
        (route,) = [one for one in RULE.watches() if one.cache == cache]
        assert route.delay == 0.5
        assert list(route.keys(here, A, Delta(None, None))) == [KEY]


@pytest.mark.parametrize("cache", ["upper_pods", "pods"])
def test_only_a_lower_that_left_waits_for_its_pods_to_go(cache: str) -> None:
    """Else no pod concerns the node."""
    here = standing()
    entry = put(here.lowers[A].upper_pods, upper_pod())
    assert heard(here, cache, Delta(entry, None)) == []
    reload(here, f"name: {B}")
    assert heard(here, cache, Delta(entry, None)) == [KEY]
    assert heard(here, cache, Delta(None, entry)) == []
