"""Tests of the node rule: Nodes are created, updated, cordoned and deleted, and never taken from another owner."""

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
from tensile.kubelet.node.rule import HEARTBEAT_SECONDS, TAINTS, NodeRule, key_of
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
    """Return a world whose lower-a has one Ready node."""
    here = world(*lowers, more=more)
    put(here.lowers[A].nodes, lower_node())
    return here


def standing(*lowers: str, more: str = "") -> World:
    """Return a world in which the Node of lower-a exists and needs no change."""
    here = started(*lowers, more=more)
    raised(here)
    assert planned(here) == Plan(())
    return here


def node(here: World) -> Manifest:
    """Return the current Node."""
    entry = here.upper.nodes.get("", A)
    assert entry is not None
    return deepcopy(entry.manifest())


def the_step(here: World) -> Step:
    """Return the only step of the plan."""
    (step,) = planned(here).steps
    return step


def carried_out(here: World) -> Manifest:
    """Apply the desired metadata and spec to the Node, and return it."""
    wanted = RULE.decide(KEY, here).wanted[0].manifest  # type: ignore[union-attr]
    seen = node(here)
    meta = {**seen["metadata"], **{one: wanted["metadata"][one] for one in ("labels", "annotations")}}
    put(here.upper.nodes, written({**seen, "metadata": meta, "spec": wanted["spec"]}))
    return node(here)


def made(*lowers: str, more: str = "") -> Manifest:
    """Return the Node that is created for lower-a."""
    body = the_step(started(*lowers, more=more)).body
    assert body is not None
    return body


def operations(here: World) -> list[tuple[str, str, Any]]:
    """Return the operations of the only step in a short form."""
    return [(one["op"], one["path"], one.get("value")) for one in the_step(here).operations]


def paths(here: World) -> list[str]:
    """Return the paths of the only step's operations."""
    return [path for _, path, _ in operations(here)]


# Creation.


def test_a_node_is_created_for_a_lower_in_the_topology() -> None:
    """It is created with its current status, because a node without one would count as not ready."""
    here = started()
    step = the_step(here)
    assert (step.verb, step.ref, step.reason) == ("create", REF, "lower cluster lower-a is in the topology")
    assert step.body is not None
    assert step.body["status"]["allocatable"]["cpu"] == "4"
    assert RULE.decide(KEY, here).requeue_after == HEARTBEAT_SECONDS == 300


def test_a_node_has_the_labels_of_tensile_kube_of_schedulers_and_of_its_owner() -> None:
    """These are the labels of tensile-kube, those that schedulers read, and the owner's mark."""
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
    """They may replace clusterID, but not the label that marks the node as virtual."""
    labels = made(f"name: {A}, node: {{labels: {{clusterID: east, zone: z1, type: real}}}}")["metadata"]["labels"]
    assert (labels["clusterID"], labels["zone"], labels["type"]) == ("east", "z1", "virtual-kubelet")


def test_annotations_contain_the_owner_and_the_taints_of_the_topology() -> None:
    """The list of taints later distinguishes the topology's taints from those of other writers."""
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
        ("capacity_freed_at", ROOM, "2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z"),
    ],
    ids=["identity of the lower cluster", "freed capacity for refused pods"],
)
def test_the_node_records_facts_that_a_new_engine_does_not_know(
    field: str, annotation: str, value: str, another: str
) -> None:
    """The annotation is kept until another value is known."""
    here = standing()
    setattr(here.lowers[A], field, value)
    assert operations(here) == [("add", f"/metadata/annotations/{annotation.replace('/', '~1')}", value)]
    assert carried_out(here)["metadata"]["annotations"][annotation] == value
    setattr(here.lowers[A], field, "")
    assert planned(here) == Plan(())
    setattr(here.lowers[A], field, another)
    assert carried_out(here)["metadata"]["annotations"][annotation] == another


def test_a_node_has_its_taint_from_its_creation() -> None:
    """Otherwise pods without the toleration could be bound first; the providerID keeps cloud controllers away."""
    assert made()["spec"] == {"taints": [PROVIDER], "providerID": "tensile-kube://lower-a"}


def test_a_topology_can_have_no_taints() -> None:
    """Any pod can be bound to such a node."""
    assert "taints" not in made(f"name: {A}, node: {{taints: []}}")["spec"]


def test_a_taint_without_a_value_has_no_value_field() -> None:
    """The API drops an empty value, so it would always be a difference."""
    found = made(f"name: {A}, node: {{taints: [{{key: k, effect: NoExecute}}]}}")
    assert found["spec"]["taints"] == [{"key": "k", "effect": "NoExecute"}]


def test_the_architecture_is_that_of_most_lower_nodes() -> None:
    """If the last changed node decided, it would change with every heartbeat of a mixed cluster."""
    here = world()
    nodes = here.lowers[A].nodes
    put(nodes, lower_node("n1", arch="arm64"), lower_node("n2", arch="amd64"), lower_node("n3", arch="arm64"))
    raised(here)
    assert node(here)["metadata"]["labels"]["kubernetes.io/arch"] == "arm64"
    assert node(here)["status"]["nodeInfo"]["architecture"] == "arm64"
    put(nodes, lower_node("n1", arch="arm64"), lower_node("n3", arch="arm64"))
    assert planned(here) == Plan(())


def test_no_node_is_planned_before_the_nodes_are_synced() -> None:
    """A Node of that name may exist already."""
    here = started()
    here.upper.nodes.mark_stale()
    assert RULE.decide(KEY, here) == Decision()


# Updates.


def test_a_change_of_the_topology_updates_labels_annotations_and_taints() -> None:
    """One patch does it, with UID and resourceVersion as its preconditions."""
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


def test_a_label_removed_from_the_topology_is_removed_from_the_node() -> None:
    """It was set by the engine, and the topology has it no longer."""
    here = standing(f"name: {A}, node: {{labels: {{zone: z1}}}}")
    reload(here)
    assert operations(here) == [("remove", "/metadata/labels/zone", None)]


def test_labels_and_annotations_of_other_writers_are_kept() -> None:
    """They cause no step."""
    here = standing()

    def decorate(one: Manifest) -> None:
        """Add a label and an annotation as another writer."""
        one["metadata"]["labels"]["theirs"] = "yes"
        one["metadata"]["annotations"]["theirs"] = "yes"

    changed(here.upper.nodes, A, decorate, "")
    assert planned(here) == Plan(())


@pytest.mark.parametrize(("section", "key"), [("labels", "type"), ("labels", "clusterID"), ("annotations", OWNER_NAME)])
def test_labels_and_annotations_of_the_topology_are_restored(section: str, key: str) -> None:
    """They are restored if another writer changed or removed them."""
    here = standing()
    changed(here.upper.nodes, A, lambda one: one["metadata"][section].update({key: "wrong"}), "")
    assert [one[0] for one in operations(here)] == ["replace"]
    carried_out(here)
    changed(here.upper.nodes, A, lambda one: one["metadata"][section].pop(key), "")
    assert [one[0] for one in operations(here)] == ["add"]


def taint(here: World, *taints: Manifest) -> None:
    """Set the taints as another writer."""
    changed(here.upper.nodes, A, lambda one: one["spec"].update(taints=list(taints)), "")


THEIRS = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-03-01T12:00:00Z"}


@pytest.mark.parametrize("taints", [[PROVIDER, THEIRS], [THEIRS, PROVIDER]])
def test_taints_of_other_writers_keep_their_position(taints: list[Manifest]) -> None:
    """The node controller and kubectl add taints at either end, so their order is no difference."""
    here = standing()
    taint(here, *taints)
    assert planned(here) == Plan(())


def test_a_removed_or_changed_taint_of_the_topology_is_restored() -> None:
    """Taints of other writers are kept beside it."""
    here = standing()
    taint(here, THEIRS)
    assert carried_out(here)["spec"]["taints"] == [THEIRS, PROVIDER]
    taint(here, {**PROVIDER, "value": "wrong"}, THEIRS)
    assert carried_out(here)["spec"]["taints"] == [PROVIDER, THEIRS]


def test_a_taint_removed_from_the_topology_is_removed_and_others_are_kept() -> None:
    """The annotation on the Node lists the taints that the engine had set."""
    here = standing()
    taint(here, THEIRS, PROVIDER)
    reload(here, f"name: {A}, node: {{taints: []}}")
    assert carried_out(here)["spec"]["taints"] == [THEIRS]
    assert planned(here) == Plan(())


# Cordons.


def cordon(here: World, *, on: bool = True) -> None:
    """Run kubectl cordon, or uncordon."""

    def turn(one: Manifest) -> None:
        """Set the field as kubectl does."""
        one["spec"].pop("unschedulable", None)
        if on:
            one["spec"]["unschedulable"] = True

    changed(here.upper.nodes, A, turn, "")


@pytest.mark.parametrize("mode", ["cordon", "drain"])
def test_maintenance_cordons_a_node_and_its_end_uncordons_it(mode: str) -> None:
    """The cordon is marked, so the end of the maintenance removes only that cordon."""
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


def test_maintenance_restores_its_cordon_after_an_uncordon() -> None:
    """The topology decides as long as maintenance is set."""
    here = standing(f"name: {A}, maintenance: cordon")
    cordon(here, on=False)
    assert operations(here) == [("add", "/spec/unschedulable", True)]


def test_a_change_of_the_maintenance_mode_updates_the_cordon_mark() -> None:
    """The annotation names the mode that the cordon is for."""
    here = standing(f"name: {A}, maintenance: cordon")
    reload(here, f"name: {A}, maintenance: drain")
    assert carried_out(here)["metadata"]["annotations"][CORDONED_BY] == "maintenance-drain"


# Unreachable lower clusters.


@pytest.mark.parametrize(("silent", "tainted"), [(0.0, False), (SILENT_AFTER, False), (SILENT_AFTER + 0.1, True)])
def test_an_unreachable_lower_is_tainted_against_new_pods(silent: float, tainted: bool) -> None:  # noqa: FBT001 - a parameter
    """The taint is set after a longer silence than a restart takes; running pods are not affected."""
    here = standing()
    here.lowers[A].unreachable_seconds = silent
    step = planned(here).steps[:1]
    assert bool(step) is tainted
    assert (UNREACHABLE in carried_out(here)["spec"]["taints"]) is tainted


def test_the_unreachable_taint_is_removed_when_the_lower_answers() -> None:
    """Other taints are kept."""
    here = standing()
    taint(here, PROVIDER, THEIRS)
    here.lowers[A].unreachable_seconds = 60.0
    assert carried_out(here)["spec"]["taints"] == [PROVIDER, THEIRS, UNREACHABLE]
    here.lowers[A].unreachable_seconds = 0.0
    assert carried_out(here)["spec"]["taints"] == [PROVIDER, THEIRS]


def test_a_lower_without_a_ready_node_is_tainted_against_new_pods() -> None:
    """Pods would be Pending there, where the upper scheduler cannot move them."""
    here = standing()
    put(here.lowers[A].nodes, lower_node(ready=False))
    assert UNREACHABLE in carried_out(here)["spec"]["taints"]


# Removed lower clusters.


def test_a_node_is_deleted_when_its_lower_is_removed_and_empty() -> None:
    """The deletion has the Node's UID as its precondition."""
    here = standing()
    reload(here, f"name: {B}")
    step = the_step(here)
    assert (step.verb, step.uid, step.reason) == ("delete", "node", "its lower cluster was removed from the topology")
    drop(here.upper.nodes, A, "")
    assert planned(here) == Plan(())


def test_a_node_is_deleted_when_its_lower_has_another_node_name() -> None:
    """The reason names the new `node.name`, because the lower is still in the topology."""
    here = standing()
    reload(here, f"name: {A}, node: {{name: other}}", f"name: {B}")
    here.lowers[A].in_topology = False
    assert the_step(here).reason == "its lower cluster has another `node.name` now"


@pytest.mark.parametrize("kept", ["upper_pods", "pods"])
def test_a_node_of_a_removed_lower_is_kept_while_it_may_have_pods(kept: str) -> None:
    """Pods on either side, or a cache that is not synced, keep it."""
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
def test_the_node_of_a_lower_that_was_never_connected_is_deleted_immediately(*, noted: bool) -> None:
    """It cannot have pods, unless the Node records that an earlier engine connected to the cluster."""
    here = standing()
    here.lowers[A].was_identified = False
    here.lowers[A].pods.mark_stale()
    here.lowers[A].identity = "cluster-1" if noted else ""
    raised(here)
    here.lowers[A].identity = ""
    reload(here, f"name: {B}")
    assert [one.verb for one in planned(here).steps][:1] == (["patch"] if noted else ["delete"])


def test_a_node_is_recreated_for_a_removed_lower_with_bound_pods() -> None:
    """Otherwise Kubernetes would delete the pods; without pods no Node is created."""
    here = started()
    reload(here, f"name: {B}")
    assert planned(here) == Plan(())
    put(here.lowers[A].upper_pods, upper_pod())
    step = the_step(here)
    assert (step.verb, step.reason) == ("create", "pods are bound to it")
    assert step.body is not None
    assert step.body["spec"]["unschedulable"]


def test_the_node_of_a_disconnected_removed_lower_is_only_cordoned() -> None:
    """Its desired labels and taints are no longer known, so they are not changed."""
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


def test_a_cordon_by_another_client_is_not_marked_on_a_removed_lowers_node() -> None:
    """The engine must not remove that cordon later."""
    here = standing()
    cordon(here)
    put(here.lowers[A].upper_pods, upper_pod())
    reload(here, f"name: {B}")
    here.lowers[A].connected = False
    assert CORDONED_BY not in carried_out(here)["metadata"]["annotations"]


def test_the_node_of_a_disconnected_removed_lower_is_not_recreated() -> None:
    """Only its Node identifies such a lower."""
    here = started()
    reload(here, f"name: {B}")
    here.lowers[A].connected = False
    put(here.lowers[A].upper_pods, upper_pod())
    assert planned(here) == Plan(())


# Status.


def test_a_node_without_changes_is_written_only_when_its_heartbeat_is_due() -> None:
    """The heartbeat is a status patch that is not shown in a plan."""
    here = standing()
    here.now = here.now.replace(minute=here.now.minute + 4)
    assert planned(here) == Plan(())
    here.now = here.now.replace(minute=here.now.minute + 1)
    step = the_step(here)
    assert (step.verb, step.subresource, step.uid, step.in_plan) == ("patch", "status", "node", False)


@pytest.mark.parametrize(("cpu", "shown"), [("4100m", False), ("3900m", False), ("4300m", True), ("1", True)])
def test_a_plan_shows_capacity_changes_of_more_than_five_percent(cpu: str, shown: bool) -> None:  # noqa: FBT001 - a parameter
    """A smaller change is written too, but not shown."""
    here = standing()
    put(here.lowers[A].nodes, lower_node(cpu=cpu))
    step = the_step(here)
    assert (step.subresource, step.in_plan) == ("status", shown)


def test_the_node_depends_on_reports_of_blocked_deletions() -> None:
    """Its condition shows them, so it is notified of changes without waiting for those rules."""
    decision = RULE.decide(KEY, standing())
    rules = ("orphans", "strays", "vacancy", "claim-orphans", "rights-orphans")
    assert decision.reports_on == tuple(Key(rule, A, "", "") for rule in rules)
    assert decision.depends_on == ()


# Watches.


def heard(here: World, cache: str, delta: Delta, lower: str = A) -> list[Key]:
    """Return the keys that a change enqueues."""
    return [key for route in RULE.watches() if route.cache == cache for key in route.keys(here, lower, delta)]


def test_each_lower_has_one_key_with_its_node_name() -> None:
    """The name is `node.name` of the topology."""
    here = world(f"name: {A}, node: {{name: vk-east}}")
    assert list(RULE.keys(here, A)) == [Key("node", A, "", "vk-east")]
    assert key_of(here.lowers[A]) == Key("node", A, "", "vk-east")


def test_a_change_of_a_node_enqueues_only_its_own_key() -> None:
    """A change on another lower's name enqueues nothing."""
    here = standing()
    entry = here.upper.nodes.get("", A)
    assert heard(here, "upper.nodes", Delta(entry, None)) == [KEY]
    assert heard(here, "upper.nodes", Delta(None, entry)) == [KEY]
    assert heard(here, "upper.nodes", Delta(None, entry), B) == []


def test_changes_of_lower_nodes_and_foreign_pods_are_batched() -> None:
    """A thousand pods that appear at once cause one computation of the capacity."""
    here = standing()
    for cache in ("nodes", "foreign_pods"):
        (route,) = [one for one in RULE.watches() if one.cache == cache]
        assert route.delay == 0.5
        assert list(route.keys(here, A, Delta(None, None))) == [KEY]


@pytest.mark.parametrize("cache", ["upper_pods", "pods"])
def test_pod_changes_enqueue_the_node_only_if_its_lower_was_removed(cache: str) -> None:
    """Such a node is deleted when its last pod is removed; otherwise no pod concerns it."""
    here = standing()
    entry = put(here.lowers[A].upper_pods, upper_pod())
    assert heard(here, cache, Delta(entry, None)) == []
    reload(here, f"name: {B}")
    assert heard(here, cache, Delta(entry, None)) == [KEY]
    assert heard(here, cache, Delta(None, entry)) == []
