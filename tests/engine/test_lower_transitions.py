"""Tests of the transitions of joined lowers after an edit; a virtual node belongs to one lower at any time."""

import pytest
from worldkit import (
    OWNER_HERE,
    A,
    B,
    add_virtual_node,
    make_lower,
    make_lower_pod,
    make_object,
    make_upper_pod,
    make_world,
    put,
    with_owner_marks,
)

from tensile.engine.lower import placeholder_spec
from tensile.engine.lower_transitions import Action, Transition, defer, leaving_nodes, plan_transition, removed_lowers
from tensile.names import LOWER
from tensile.objects import VOLUME
from tensile.reconcile.world import LowerWorld, World
from tensile.topology import Topology, parse

FIRST, SECOND = f"name: {A}, kubeconfig: k/0", f"name: {B}, kubeconfig: k/1"
RENAMED = f"name: lower-z, kubeconfig: k/0, node: {{name: {A}}}"
"""The first lower under another name."""
MIRRORED = f"waits until no pods are mirrored to {A}; `maintenance: drain` lets them leave"


def edited(*lowers: str) -> Topology:
    """Parse a topology of lowers in flow style; those of `make_world` have the kubeconfigs of FIRST and SECOND."""
    items = "".join(f"- {{{lower}}}\n" for lower in lowers) or " []"
    return parse(f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers:\n{items}")


def transitions_by_lower(of: World, *lowers: str) -> list[Transition]:
    """Return the transition of each lower of a topology."""
    wanted = edited(*lowers)
    return [plan_transition(spec, wanted, of) for spec in wanted.lowers]


def actions_with_nodes(of: World, *lowers: str) -> list[str]:
    """Return the action and the node name of each transition."""
    return [f"{one.action.name} {one.spec.node.name}" for one in transitions_by_lower(of, *lowers)]


def waits(of: World, *lowers: str) -> list[str]:
    """Return the messages about what has to wait."""
    return [message for one in transitions_by_lower(of, *lowers) for message in one.waits]


def leaving(of: World, *lowers: str) -> list[str]:
    """Return the names of the lowers that have left."""
    return [lower.name for lower in removed_lowers(edited(*lowers), of)]


def busy(of: World, name: str = A) -> World:
    """Bind a pod to the node of a lower, with its lower pod."""
    lower = of.lowers[name]
    pod = make_upper_pod(f"web-{name}", {"nodeName": lower.node})
    put(lower.upper_pods, pod)
    put(lower.pods, make_lower_pod(pod, node=lower.node))
    return of


def stray(of: World, node: str) -> LowerWorld:
    """Add a node that an earlier engine left behind."""
    found = make_lower(placeholder_spec(make_object("Node", node, "")))
    found.connected = found.in_topology = False
    of.lowers[found.name] = found
    return found


def keep_volume(of: World, lower: str) -> None:
    """Create a placeholder volume for a claim in a lower."""
    put(
        of.upper.more[VOLUME],
        with_owner_marks(make_object("PersistentVolume", "pvc-1", "", annotations={LOWER: lower}), "claim"),
    )


def test_every_lower_joins_if_none_is_joined_yet() -> None:
    """No lower is replaced, and nothing waits."""
    world = make_world()
    world.lowers.clear()
    assert transitions_by_lower(world, FIRST, SECOND) == [
        Transition(Action.JOIN, spec) for spec in edited(FIRST, SECOND).lowers
    ]


def test_an_unchanged_lower_is_kept() -> None:
    """It does not matter whether it has pods."""
    world = busy(make_world())
    assert actions_with_nodes(world, FIRST, SECOND) == [f"KEEP {A}", f"KEEP {B}"]
    assert (waits(world, FIRST, SECOND), leaving(world, FIRST, SECOND)) == ([], [])
    (first, _) = transitions_by_lower(world, FIRST, SECOND)
    assert (first.before, first.spec) == (world.lowers[A], world.lowers[A].spec)


def test_a_lower_that_the_topology_no_longer_has_leaves() -> None:
    """Other lowers join and continue at the same time."""
    world = busy(make_world())
    assert actions_with_nodes(world, SECOND, "name: new, kubeconfig: n") == [f"KEEP {B}", "JOIN new"]
    assert leaving(world, SECOND, "name: new, kubeconfig: n") == [A]


@pytest.mark.parametrize(
    ("fields", "action"),
    [
        ("maintenance: drain", "KEEP"),
        ("node: {taints: []}", "KEEP"),
        ("unreachable: {evictAfter: 5m}", "KEEP"),
        ("qps: 7, burst: 7", "KEEP"),
        ("context: other", "JOIN"),
        ("namespaces: {mapping: prefix}", "JOIN"),
    ],
)
def test_a_lower_is_only_joined_again_if_a_field_of_its_connection_changes(fields: str, action: str) -> None:
    """All other fields become active without that."""
    (found, _) = transitions_by_lower(world := make_world(), f"{FIRST}, {fields}", SECOND)
    assert (found.action.name, found.before, found.waits) == (action, world.lowers[A], ())
    assert found.spec == edited(f"{FIRST}, {fields}").lowers[0]


# Two lowers with one node.


def test_a_renamed_lower_continues_under_its_new_name() -> None:
    """It is the same cluster, so it keeps its node and the pods on it."""
    world = busy(make_world())
    (found, _) = transitions_by_lower(world, RENAMED, SECOND)
    assert (found.action, found.before, found.spec.name) == (Action.JOIN, world.lowers[A], "lower-z")
    assert (waits(world, RENAMED, SECOND), leaving(world, RENAMED, SECOND)) == ([], [])


def test_a_lower_that_was_never_connected_is_replaced_by_the_one_whose_node_it_names() -> None:
    """It was renamed without its node's name, and refused; once the name is added, the former lower continues."""
    world = busy(make_world())
    world.lowers["lower-z"] = make_lower(edited("name: lower-z, kubeconfig: k/0").lowers[0])
    world.lowers["lower-z"].was_identified = False
    world.lowers[A].in_topology = False
    world.lowers["lower-z"].pods.mark_stale()
    assert actions_with_nodes(world, RENAMED, SECOND) == [f"LEAVE {A}", f"KEEP {B}"]
    assert transitions_by_lower(world, RENAMED, SECOND)[0].before is world.lowers["lower-z"]
    assert waits(world, RENAMED, SECOND) == [
        f"lowers[lower-z].node.name: lower-z -> {A}: waits until node lower-z is deleted"
    ]
    del world.lowers["lower-z"]
    assert actions_with_nodes(world, RENAMED, SECOND) == [f"JOIN {A}", f"KEEP {B}"]


@pytest.mark.parametrize("has_responded", [True, False])
def test_a_node_rename_waits_for_lists_only_if_the_cluster_has_responded_once(*, has_responded: bool) -> None:
    """A lower that was never connected has no mirrored pods."""
    world = make_world()
    world.lowers[A].was_identified = has_responded
    world.lowers[A].pods.mark_stale()
    fields = f"{FIRST}, node: {{name: other}}"
    message = (
        "waits until it is certain that no pods are mirrored" if has_responded else f"waits until node {A} is deleted"
    )
    assert waits(world, fields, SECOND) == [f"lowers[{A}].node.name: {A} -> other: {message}"]


@pytest.mark.parametrize(
    "way", ["kubeconfig: k/9", "kubeconfig: k/0, context: other", "kubeconfigSecret: {namespace: n, name: s}"]
)
def test_another_cluster_waits_for_a_node_that_has_pods(way: str) -> None:
    """The former lower keeps its node until it is empty, and the message of the new one has that reason."""
    world = busy(make_world())
    wanted = (f"name: lower-z, {way}, node: {{name: {A}}}", SECOND)
    assert actions_with_nodes(world, *wanted) == [f"WAIT {A}", f"KEEP {B}"]
    assert leaving(world, *wanted) == [A]
    (message,) = waits(world, *wanted)
    assert message.startswith(f"lowers[lower-z]: not connected: node {A} belongs to lower {A} until that one is empty")
    del world.lowers[A]
    assert actions_with_nodes(world, *wanted) == [f"JOIN {A}", f"KEEP {B}"]


def test_a_lower_cannot_be_renamed_while_volumes_record_its_name() -> None:
    """Volumes are found by that name, so their pods could not be placed otherwise."""
    world = busy(make_world())
    keep_volume(world, B)
    assert actions_with_nodes(world, RENAMED, SECOND) == [f"JOIN {A}", f"KEEP {B}"]
    keep_volume(world, A)
    assert actions_with_nodes(world, RENAMED, SECOND) == [f"WAIT {A}", f"KEEP {B}"]
    assert waits(world, RENAMED, SECOND) == [
        (
            f"lowers[lower-z]: not connected: node {A} belongs to lower {A}, "
            "whose name is recorded in volumes: restore that name"
        )
    ]


def test_a_rename_waits_until_volumes_are_listed() -> None:
    """Without the controller for storage, no volumes exist that could be lost."""
    world = busy(make_world())
    world.upper.more[VOLUME].mark_stale()
    assert actions_with_nodes(world, RENAMED, SECOND)[0] == f"WAIT {A}"
    world.lowers[A].spec = edited(f"{FIRST}, controllers: []").lowers[0]
    assert actions_with_nodes(world, f"{RENAMED}, controllers: []", SECOND)[0] == f"JOIN {A}"


def test_volumes_of_another_owner_do_not_block_a_rename() -> None:
    """Another topology may have a lower of that name."""
    world = busy(make_world())
    stranger = OWNER_HERE._replace(mark="0" * 16)
    foreign = make_object("PersistentVolume", "pvc-1", "", annotations={LOWER: A})
    put(world.upper.more[VOLUME], with_owner_marks(foreign, "claim", stranger))
    assert actions_with_nodes(world, RENAMED, SECOND)[0] == f"JOIN {A}"


def test_a_new_lower_takes_over_a_node_that_was_left_behind() -> None:
    """Only the Node of the former lower is known, so any lower with that node name continues it."""
    world = make_world()
    found = stray(world, "pool")
    (_, _, pool) = transitions_by_lower(world, FIRST, SECOND, "name: pool, kubeconfig: p")
    assert (pool.action, pool.before, pool.waits) == (Action.JOIN, found, ())
    assert leaving(world, FIRST, SECOND) == ["(pool)"]


def test_an_existing_lower_can_move_to_a_node_that_was_left_behind() -> None:
    """It first leaves its own node, as for any other new name."""
    world = make_world()
    stray(world, "pool")
    assert actions_with_nodes(world, f"{FIRST}, node: {{name: pool}}", SECOND)[0] == "LEAVE pool"


# Changes of node names.


def test_a_node_is_renamed_after_its_deletion() -> None:
    """The change is reported as waiting until then."""
    world = make_world()
    edit = (f"{FIRST}, node: {{name: north}}", SECOND)
    assert actions_with_nodes(world, *edit) == ["LEAVE north", f"KEEP {B}"]
    assert waits(world, *edit) == [f"lowers[{A}].node.name: {A} -> north: waits until node {A} is deleted"]
    assert leaving(world, *edit) == []


def test_a_node_with_pods_keeps_its_name_while_other_fields_change() -> None:
    """A field that has to wait does not delay the rest of the edit."""
    world = busy(make_world())
    edit = f"{FIRST}, node: {{name: north, taints: []}}, maintenance: drain, qps: 7"
    (found, _) = transitions_by_lower(world, edit, SECOND)
    assert (found.action, found.spec.node.name, found.spec.node.taints) == (Action.KEEP, A, ())
    assert (found.spec.maintenance, found.spec.qps) == ("drain", 7)
    assert found.waits == (f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",)


def test_a_namespace_mapping_waits_until_no_pods_are_mirrored() -> None:
    """Other fields become active, and both waiting changes are reported."""
    world = busy(make_world())
    edit = f"{FIRST}, node: {{name: north}}, maintenance: cordon, namespaces: {{mapping: prefix}}"
    (found, _) = transitions_by_lower(world, edit, SECOND)
    assert (found.action, found.spec.maintenance) == (Action.KEEP, "cordon")
    assert found.waits == (
        f"lowers[{A}].namespaces.mapping: same -> prefix: {MIRRORED}",
        f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",
    )


@pytest.mark.parametrize("cache", ["upper_pods", "pods"])
def test_a_node_keeps_its_name_while_pods_are_not_listed(cache: str) -> None:
    """An engine that has just started or whose lower is unreachable does not know whether pods exist."""
    world = make_world()
    getattr(world.lowers[A], cache).mark_stale()
    edit = (f"{FIRST}, node: {{name: north}}, namespaces: {{mapping: prefix}}", SECOND)
    assert actions_with_nodes(world, *edit)[0] == f"KEEP {A}"
    assert [message.rpartition(": ")[2] for message in waits(world, *edit)] == [
        "waits until it is certain that no pods are mirrored"
    ] * 2


@pytest.mark.parametrize("where", ["upper_pods", "pods"])
def test_a_pod_on_either_side_counts_as_mirrored(where: str) -> None:
    """A deleted upper pod may still have a terminating lower pod, and a new one may not have a lower pod yet."""
    world = make_world()
    pod = make_upper_pod()
    put(getattr(world.lowers[A], where), pod if where == "upper_pods" else make_lower_pod(pod))
    assert waits(world, f"{FIRST}, node: {{name: north}}", SECOND)[0].endswith(MIRRORED)


def test_a_daemon_set_pod_does_not_block_a_node_rename() -> None:
    """It exists because the node does, and is never mirrored."""
    world = make_world()
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "proxy", "uid": "d", "controller": True}
    put(world.lowers[A].upper_pods, make_upper_pod(ownerReferences=[daemon]))
    assert actions_with_nodes(world, f"{FIRST}, node: {{name: north}}", SECOND) == ["LEAVE north", f"KEEP {B}"]


def test_a_lower_waits_for_a_node_that_another_lower_has_to_keep() -> None:
    """The first lower keeps its node because of its pods, so the second one keeps its own and reports the reason."""
    world = busy(make_world())
    edit = (f"{FIRST}, node: {{name: north}}", f"{SECOND}, node: {{name: {A}}}")
    assert actions_with_nodes(world, *edit) == [f"KEEP {A}", f"KEEP {B}"]
    assert waits(world, *edit) == [
        f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",
        f"lowers[{B}].node.name: {B} -> {A}: node {A} belongs to lower {A}",
    ]


def test_a_new_lower_waits_for_a_node_that_is_still_in_use() -> None:
    """It is not joined before the former lower has left that node."""
    world = busy(make_world())
    edit = (f"{FIRST}, node: {{name: north}}", SECOND, f"name: new, kubeconfig: n, node: {{name: {A}}}")
    assert actions_with_nodes(world, *edit)[2] == f"WAIT {A}"
    assert waits(world, *edit)[1] == f"lowers[new]: not connected: node {A} belongs to lower {A}, which still uses it"


def test_two_empty_lowers_can_swap_their_nodes() -> None:
    """Each one leaves the node that the other one waits for."""
    edit = (f"{FIRST}, node: {{name: {B}}}", f"{SECOND}, node: {{name: {A}}}")
    assert actions_with_nodes(make_world(), *edit) == [f"LEAVE {B}", f"LEAVE {A}"]


def test_in_a_cycle_of_node_names_no_lower_leaves_its_node_if_one_is_blocked() -> None:
    """A lower that waits for a blocked one keeps its node, and so does every lower that waits for it."""
    world = make_world(f"name: {A}", f"name: {B}", "name: c", "name: d")
    third, fourth = "name: c, kubeconfig: k/2", "name: d, kubeconfig: k/3"
    ring = (
        f"{FIRST}, node: {{name: {B}}}",
        f"{SECOND}, node: {{name: c}}",
        f"{third}, node: {{name: {A}}}",
        f"{fourth}, node: {{name: e}}",
    )
    assert actions_with_nodes(world, *ring) == [f"LEAVE {B}", "LEAVE c", f"LEAVE {A}", "LEAVE e"]
    assert actions_with_nodes(busy(world, "c"), *ring) == [f"KEEP {A}", f"KEEP {B}", "KEEP c", "LEAVE e"]


def test_a_lower_gets_the_node_of_a_removed_lower_only_if_that_is_empty() -> None:
    """It keeps its own node while the removed one has pods."""
    world = make_world()
    assert actions_with_nodes(world, f"{SECOND}, node: {{name: {A}}}") == [f"LEAVE {A}"]
    assert actions_with_nodes(busy(world), f"{SECOND}, node: {{name: {A}}}") == [f"KEEP {B}"]


# Unreadable credentials.


def test_a_deferred_transition_keeps_the_connection_and_applies_the_other_fields() -> None:
    """The fields that wait are reported with their keys."""
    world = busy(make_world())
    fields = "context: new, qps: 7, maintenance: cordon, node: {name: north, labels: {x: y}}"
    edit = f"{FIRST.replace('k/0', 'typo')}, {fields}"
    (found, _) = transitions_by_lower(world, edit, SECOND)
    kept = defer(found, "typo: no such file")
    assert (kept.action, kept.before) == (Action.KEEP, world.lowers[A])
    assert (kept.spec.kubeconfig, kept.spec.qps, kept.spec.maintenance) == ("k/0", 7, "cordon")
    assert (kept.spec.node.name, kept.spec.node.labels["x"]) == (A, "y")
    message = "typo: no such file; the last good connection is kept"
    assert kept.objection == message
    assert kept.waits == (
        f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",
        f"lowers[{A}].kubeconfig, context: {message}",
    )


def test_a_deferred_change_of_credentials_is_reported_with_the_keys_of_the_file() -> None:
    """Both the former and the new key are named as the topology file spells them."""
    world = make_world()
    (found, _) = transitions_by_lower(world, f"name: {A}, kubeconfigSecret: {{namespace: n, name: s}}", SECOND)
    (message,) = defer(found, "no such Secret").waits
    assert message.startswith(f"lowers[{A}].kubeconfig, kubeconfigSecret: no such Secret; ")


def test_a_deferred_rename_keeps_the_former_name() -> None:
    """It is reported under the name in the file, and the lower stays in the topology."""
    world = busy(make_world())
    (found, _) = transitions_by_lower(world, f"{RENAMED}, maintenance: cordon", SECOND)
    kept = defer(found, "k/0: no such file")
    assert (kept.spec.name, kept.spec.maintenance, kept.action) == (A, "cordon", Action.KEEP)
    assert kept.waits == ("lowers[lower-z].name: k/0: no such file; the last good connection is kept",)


def test_the_node_of_a_removed_lower_is_reported_once_its_node_shows_the_removal() -> None:
    """Before the Node has that condition, a plan reports it as part of the change."""
    world = make_world(f"name: {A}")
    node = add_virtual_node(world).manifest()
    world.lowers[A].in_topology = False
    assert leaving_nodes(world) == []
    reported_node = {**node, "status": {"conditions": [{"type": "InTopology", "status": "False"}]}}
    put(world.upper.nodes, reported_node)
    (message,) = leaving_nodes(world)
    assert message.startswith(
        f"node {world.lowers[A].node}, whose lower was removed, stays until its pods are deleted;"
    )
    world.lowers[A].in_topology = True
    assert leaving_nodes(world) == []
