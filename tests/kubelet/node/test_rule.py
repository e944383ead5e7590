"""Tests of the node rule: Nodes are created, updated, cordoned and deleted, and never taken from another owner."""

from copy import deepcopy
from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    A,
    B,
    add_virtual_node,
    apply_topology,
    change_as_other_client,
    decision_and_plan,
    delete_observed,
    make_lower_node,
    make_lower_pod,
    make_upper_pod,
    make_world,
    put,
    with_managed_fields,
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


def planned(world: World) -> Plan:
    """Plan the node of lower-a."""
    return decision_and_plan(RULE, KEY, world)[1]


def started(*lowers: str, more: str = "") -> World:
    """Return a world whose lower-a has one Ready node."""
    world = make_world(*lowers, more=more)
    put(world.lowers[A].nodes, make_lower_node())
    return world


def world_with_node(*lowers: str, more: str = "") -> World:
    """Return a world in which the Node of lower-a exists and needs no change."""
    world = started(*lowers, more=more)
    add_virtual_node(world)
    assert planned(world) == Plan(())
    return world


def node(world: World) -> Manifest:
    """Return the current Node."""
    entry = world.upper.nodes.get("", A)
    assert entry is not None
    return deepcopy(entry.manifest())


def the_step(world: World) -> Step:
    """Return the only step of the plan."""
    (step,) = planned(world).steps
    return step


def carried_out(world: World) -> Manifest:
    """Apply the desired metadata and spec to the Node, and return it."""
    wanted = RULE.decide(KEY, world).wanted[0].manifest  # type: ignore[union-attr]
    seen = node(world)
    meta = {**seen["metadata"], **{one: wanted["metadata"][one] for one in ("labels", "annotations")}}
    put(world.upper.nodes, with_managed_fields({**seen, "metadata": meta, "spec": wanted["spec"]}))
    return node(world)


def made(*lowers: str, more: str = "") -> Manifest:
    """Return the Node that is created for lower-a."""
    body = the_step(started(*lowers, more=more)).body
    assert body is not None
    return body


def operations(world: World) -> list[tuple[str, str, Any]]:
    """Return the operations of the only step in a short form."""
    return [(one["op"], one["path"], one.get("value")) for one in the_step(world).operations]


def paths(world: World) -> list[str]:
    """Return the paths of the only step's operations."""
    return [path for _, path, _ in operations(world)]


# Creation.


def test_a_node_is_created_for_a_lower_in_the_topology() -> None:
    """It is created with its current status, because a node without one would count as not ready."""
    world = started()
    step = the_step(world)
    assert (step.verb, step.ref, step.reason) == ("create", REF, "lower cluster lower-a is in the topology")
    assert step.body is not None
    assert step.body["status"]["allocatable"]["cpu"] == "4"
    assert RULE.decide(KEY, world).requeue_after == HEARTBEAT_SECONDS == 300


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
    world = world_with_node()
    setattr(world.lowers[A], field, value)
    assert operations(world) == [("add", f"/metadata/annotations/{annotation.replace('/', '~1')}", value)]
    assert carried_out(world)["metadata"]["annotations"][annotation] == value
    setattr(world.lowers[A], field, "")
    assert planned(world) == Plan(())
    setattr(world.lowers[A], field, another)
    assert carried_out(world)["metadata"]["annotations"][annotation] == another


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
    world = make_world()
    nodes = world.lowers[A].nodes
    put(
        nodes,
        make_lower_node("n1", arch="arm64"),
        make_lower_node("n2", arch="amd64"),
        make_lower_node("n3", arch="arm64"),
    )
    add_virtual_node(world)
    assert node(world)["metadata"]["labels"]["kubernetes.io/arch"] == "arm64"
    assert node(world)["status"]["nodeInfo"]["architecture"] == "arm64"
    put(nodes, make_lower_node("n1", arch="arm64"), make_lower_node("n3", arch="arm64"))
    assert planned(world) == Plan(())


def test_no_node_is_planned_before_the_nodes_are_synced() -> None:
    """A Node of that name may exist already."""
    world = started()
    world.upper.nodes.mark_stale()
    assert RULE.decide(KEY, world) == Decision()


# Updates.


def test_a_change_of_the_topology_updates_labels_annotations_and_taints() -> None:
    """One patch does it, with UID and resourceVersion as its preconditions."""
    world = world_with_node()
    apply_topology(world, f"name: {A}, node: {{labels: {{zone: z1}}, annotations: {{note: hello}}, taints: []}}")
    patch = planned(world).steps[0]
    assert patch.patch is not None
    version = node(world)["metadata"]["resourceVersion"]
    fences = [
        {"op": "replace", "path": "/metadata/uid", "value": "node"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
    ]
    assert patch.patch.body[:2] == fences
    seen = carried_out(world)
    assert seen["metadata"]["labels"]["zone"] == "z1"
    assert seen["metadata"]["annotations"]["note"] == "hello"
    assert "taints" not in seen["spec"]


def test_a_label_removed_from_the_topology_is_removed_from_the_node() -> None:
    """It was set by the engine, and the topology has it no longer."""
    world = world_with_node(f"name: {A}, node: {{labels: {{zone: z1}}}}")
    apply_topology(world)
    assert operations(world) == [("remove", "/metadata/labels/zone", None)]


def test_labels_and_annotations_of_other_writers_are_kept() -> None:
    """They cause no step."""
    world = world_with_node()

    def decorate(one: Manifest) -> None:
        """Add a label and an annotation as another writer."""
        one["metadata"]["labels"]["theirs"] = "yes"
        one["metadata"]["annotations"]["theirs"] = "yes"

    change_as_other_client(world.upper.nodes, A, decorate, "")
    assert planned(world) == Plan(())


@pytest.mark.parametrize(("section", "key"), [("labels", "type"), ("labels", "clusterID"), ("annotations", OWNER_NAME)])
def test_labels_and_annotations_of_the_topology_are_restored(section: str, key: str) -> None:
    """They are restored if another writer changed or removed them."""
    world = world_with_node()
    change_as_other_client(world.upper.nodes, A, lambda one: one["metadata"][section].update({key: "wrong"}), "")
    assert [one[0] for one in operations(world)] == ["replace"]
    carried_out(world)
    change_as_other_client(world.upper.nodes, A, lambda one: one["metadata"][section].pop(key), "")
    assert [one[0] for one in operations(world)] == ["add"]


def taint(world: World, *taints: Manifest) -> None:
    """Set the taints as another writer."""
    change_as_other_client(world.upper.nodes, A, lambda one: one["spec"].update(taints=list(taints)), "")


THEIRS = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-03-01T12:00:00Z"}


@pytest.mark.parametrize("taints", [[PROVIDER, THEIRS], [THEIRS, PROVIDER]])
def test_taints_of_other_writers_keep_their_position(taints: list[Manifest]) -> None:
    """The node controller and kubectl add taints at either end, so their order is no difference."""
    world = world_with_node()
    taint(world, *taints)
    assert planned(world) == Plan(())


def test_a_removed_or_changed_taint_of_the_topology_is_restored() -> None:
    """Taints of other writers are kept beside it."""
    world = world_with_node()
    taint(world, THEIRS)
    assert carried_out(world)["spec"]["taints"] == [THEIRS, PROVIDER]
    taint(world, {**PROVIDER, "value": "wrong"}, THEIRS)
    assert carried_out(world)["spec"]["taints"] == [PROVIDER, THEIRS]


def test_a_taint_removed_from_the_topology_is_removed_and_others_are_kept() -> None:
    """The annotation on the Node lists the taints that the engine had set."""
    world = world_with_node()
    taint(world, THEIRS, PROVIDER)
    apply_topology(world, f"name: {A}, node: {{taints: []}}")
    assert carried_out(world)["spec"]["taints"] == [THEIRS]
    assert planned(world) == Plan(())


# Cordons.


def cordon(world: World, *, on: bool = True) -> None:
    """Run kubectl cordon, or uncordon."""

    def turn(one: Manifest) -> None:
        """Set the field as kubectl does."""
        one["spec"].pop("unschedulable", None)
        if on:
            one["spec"]["unschedulable"] = True

    change_as_other_client(world.upper.nodes, A, turn, "")


@pytest.mark.parametrize("mode", ["cordon", "drain"])
def test_maintenance_cordons_a_node_and_its_end_uncordons_it(mode: str) -> None:
    """The cordon is marked, so the end of the maintenance removes only that cordon."""
    world = world_with_node()
    apply_topology(world, f"name: {A}, maintenance: {mode}")
    assert carried_out(world)["spec"]["unschedulable"]
    assert node(world)["metadata"]["annotations"][CORDONED_BY] == f"maintenance-{mode}"
    assert planned(world) == Plan(())
    apply_topology(world)
    seen = carried_out(world)
    assert "unschedulable" not in seen["spec"]
    assert CORDONED_BY not in seen["metadata"]["annotations"]
    assert planned(world) == Plan(())


def test_maintenance_restores_its_cordon_after_an_uncordon() -> None:
    """The topology decides as long as maintenance is set."""
    world = world_with_node(f"name: {A}, maintenance: cordon")
    cordon(world, on=False)
    assert operations(world) == [("add", "/spec/unschedulable", True)]


def test_a_change_of_the_maintenance_mode_updates_the_cordon_mark() -> None:
    """The annotation names the mode that the cordon is for."""
    world = world_with_node(f"name: {A}, maintenance: cordon")
    apply_topology(world, f"name: {A}, maintenance: drain")
    assert carried_out(world)["metadata"]["annotations"][CORDONED_BY] == "maintenance-drain"


# Unreachable lower clusters.


@pytest.mark.parametrize(("silent", "tainted"), [(0.0, False), (SILENT_AFTER, False), (SILENT_AFTER + 0.1, True)])
def test_an_unreachable_lower_is_tainted_against_new_pods(silent: float, tainted: bool) -> None:  # noqa: FBT001 - a parameter
    """The taint is set after a longer silence than a restart takes; running pods are not affected."""
    world = world_with_node()
    world.lowers[A].unreachable_seconds = silent
    step = planned(world).steps[:1]
    assert bool(step) is tainted
    assert (UNREACHABLE in carried_out(world)["spec"]["taints"]) is tainted


def test_the_unreachable_taint_is_removed_when_the_lower_answers() -> None:
    """Other taints are kept."""
    world = world_with_node()
    taint(world, PROVIDER, THEIRS)
    world.lowers[A].unreachable_seconds = 60.0
    assert carried_out(world)["spec"]["taints"] == [PROVIDER, THEIRS, UNREACHABLE]
    world.lowers[A].unreachable_seconds = 0.0
    assert carried_out(world)["spec"]["taints"] == [PROVIDER, THEIRS]


def test_a_lower_without_a_ready_node_is_tainted_against_new_pods() -> None:
    """Pods would be Pending there, where the upper scheduler cannot move them."""
    world = world_with_node()
    put(world.lowers[A].nodes, make_lower_node(ready=False))
    assert UNREACHABLE in carried_out(world)["spec"]["taints"]


# Removed lower clusters.


def test_a_node_is_deleted_when_its_lower_is_removed_and_empty() -> None:
    """The deletion has the Node's UID as its precondition."""
    world = world_with_node()
    apply_topology(world, f"name: {B}")
    step = the_step(world)
    assert (step.verb, step.uid, step.reason) == ("delete", "node", "its lower cluster was removed from the topology")
    delete_observed(world.upper.nodes, A, "")
    assert planned(world) == Plan(())


def test_a_node_is_deleted_when_its_lower_has_another_node_name() -> None:
    """The reason names the new `node.name`, because the lower is still in the topology."""
    world = world_with_node()
    apply_topology(world, f"name: {A}, node: {{name: other}}", f"name: {B}")
    world.lowers[A].in_topology = False
    assert the_step(world).reason == "its lower cluster has another `node.name` now"


@pytest.mark.parametrize("kept", ["upper_pods", "pods"])
def test_a_node_of_a_removed_lower_is_kept_while_it_may_have_pods(kept: str) -> None:
    """Pods on either side, or a cache that is not synced, keep it."""
    world = world_with_node()
    apply_topology(world, f"name: {B}")
    pod = make_upper_pod() if kept == "upper_pods" else make_lower_pod(make_upper_pod())
    cache = getattr(world.lowers[A], kept)
    put(cache, pod)
    assert [one.verb for one in planned(world).steps] == ["patch", "patch"]
    delete_observed(cache, "web")
    cache.mark_stale()
    assert [one.verb for one in planned(world).steps] == ["patch", "patch"]


@pytest.mark.parametrize("noted", [True, False])
def test_the_node_of_a_lower_that_was_never_connected_is_deleted_immediately(*, noted: bool) -> None:
    """It cannot have pods, unless the Node records that an earlier engine connected to the cluster."""
    world = world_with_node()
    world.lowers[A].was_identified = False
    world.lowers[A].pods.mark_stale()
    world.lowers[A].identity = "cluster-1" if noted else ""
    add_virtual_node(world)
    world.lowers[A].identity = ""
    apply_topology(world, f"name: {B}")
    assert [one.verb for one in planned(world).steps][:1] == (["patch"] if noted else ["delete"])


def test_a_node_is_recreated_for_a_removed_lower_with_bound_pods() -> None:
    """Otherwise Kubernetes would delete the pods; without pods no Node is created."""
    world = started()
    apply_topology(world, f"name: {B}")
    assert planned(world) == Plan(())
    put(world.lowers[A].upper_pods, make_upper_pod())
    step = the_step(world)
    assert (step.verb, step.reason) == ("create", "pods are bound to it")
    assert step.body is not None
    assert step.body["spec"]["unschedulable"]


def test_the_node_of_a_disconnected_removed_lower_is_only_cordoned() -> None:
    """Its desired labels and taints are no longer known, so they are not changed."""
    world = world_with_node(f"name: {A}, node: {{labels: {{zone: z1}}}}")
    put(world.lowers[A].upper_pods, make_upper_pod())
    apply_topology(world, f"name: {B}")
    world.lowers[A].connected = False
    world.lowers[A].spec = world.topology.lowers[0]
    before = node(world)
    after = carried_out(world)
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert after["spec"] == {**before["spec"], "unschedulable": True}
    assert after["metadata"]["annotations"][CORDONED_BY] == "not-in-topology"
    assert [one.subresource for one in planned(world).steps] == ["status"]


def test_a_cordon_by_another_client_is_not_marked_on_a_removed_lowers_node() -> None:
    """The engine must not remove that cordon later."""
    world = world_with_node()
    cordon(world)
    put(world.lowers[A].upper_pods, make_upper_pod())
    apply_topology(world, f"name: {B}")
    world.lowers[A].connected = False
    assert CORDONED_BY not in carried_out(world)["metadata"]["annotations"]


def test_the_node_of_a_disconnected_removed_lower_is_not_recreated() -> None:
    """Only its Node identifies such a lower."""
    world = started()
    apply_topology(world, f"name: {B}")
    world.lowers[A].connected = False
    put(world.lowers[A].upper_pods, make_upper_pod())
    assert planned(world) == Plan(())


# Status.


def test_a_node_without_changes_is_written_only_when_its_heartbeat_is_due() -> None:
    """The heartbeat is a status patch that is not shown in a plan."""
    world = world_with_node()
    world.now = world.now.replace(minute=world.now.minute + 4)
    assert planned(world) == Plan(())
    world.now = world.now.replace(minute=world.now.minute + 1)
    step = the_step(world)
    assert (step.verb, step.subresource, step.uid, step.in_plan) == ("patch", "status", "node", False)


@pytest.mark.parametrize(("cpu", "shown"), [("4100m", False), ("3900m", False), ("4300m", True), ("1", True)])
def test_a_plan_shows_capacity_changes_of_more_than_five_percent(cpu: str, shown: bool) -> None:  # noqa: FBT001 - a parameter
    """A smaller change is written too, but not shown."""
    world = world_with_node()
    put(world.lowers[A].nodes, make_lower_node(cpu=cpu))
    step = the_step(world)
    assert (step.subresource, step.in_plan) == ("status", shown)


def test_the_node_depends_on_reports_of_blocked_deletions() -> None:
    """Its condition shows them, so it is notified of changes without waiting for those rules."""
    decision = RULE.decide(KEY, world_with_node())
    rules = ("orphans", "strays", "vacancy", "claim-orphans", "rights-orphans")
    assert decision.reports_on == tuple(Key(rule, A, "", "") for rule in rules)
    assert decision.depends_on == ()


# Watches.


def enqueued_keys(world: World, cache: str, delta: Delta, lower: str = A) -> list[Key]:
    """Return the keys that a change enqueues."""
    return [key for route in RULE.watches() if route.cache == cache for key in route.keys(world, lower, delta)]


def test_each_lower_has_one_key_with_its_node_name() -> None:
    """The name is `node.name` of the topology."""
    world = make_world(f"name: {A}, node: {{name: vk-east}}")
    assert list(RULE.keys(world, A)) == [Key("node", A, "", "vk-east")]
    assert key_of(world.lowers[A]) == Key("node", A, "", "vk-east")


def test_a_change_of_a_node_enqueues_only_its_own_key() -> None:
    """A change on another lower's name enqueues nothing."""
    world = world_with_node()
    entry = world.upper.nodes.get("", A)
    assert enqueued_keys(world, "upper.nodes", Delta(entry, None)) == [KEY]
    assert enqueued_keys(world, "upper.nodes", Delta(None, entry)) == [KEY]
    assert enqueued_keys(world, "upper.nodes", Delta(None, entry), B) == []


def test_changes_of_lower_nodes_and_foreign_pods_are_batched() -> None:
    """A thousand pods that appear at once cause one computation of the capacity."""
    world = world_with_node()
    for cache in ("nodes", "foreign_pods"):
        (route,) = [one for one in RULE.watches() if one.cache == cache]
        assert route.delay == 0.5
        assert list(route.keys(world, A, Delta(None, None))) == [KEY]


@pytest.mark.parametrize("cache", ["upper_pods", "pods"])
def test_pod_changes_enqueue_the_node_only_if_its_lower_was_removed(cache: str) -> None:
    """Such a node is deleted when its last pod is removed; otherwise no pod concerns it."""
    world = world_with_node()
    entry = put(world.lowers[A].upper_pods, make_upper_pod())
    assert enqueued_keys(world, cache, Delta(entry, None)) == []
    apply_topology(world, f"name: {B}")
    assert enqueued_keys(world, cache, Delta(entry, None)) == [KEY]
    assert enqueued_keys(world, cache, Delta(None, entry)) == []
