"""Tests of the transitions of joined lowers after an edit; a virtual node belongs to one lower at any time."""

import pytest
from worldkit import OWNER_HERE, A, B, marked, opened, put, raised, thing, twin, upper_pod, world

from tensile.engine.lower import placeholder_spec
from tensile.engine.transitions import Action, Transition, defer, leaving_nodes, plan_transition, removed_lowers
from tensile.names import LOWER
from tensile.objects import VOLUME
from tensile.reconcile.world import LowerWorld, World
from tensile.topology import Topology, parse

FIRST, SECOND = f"name: {A}, kubeconfig: k/0", f"name: {B}, kubeconfig: k/1"
RENAMED = f"name: lower-z, kubeconfig: k/0, node: {{name: {A}}}"
"""The first lower under another name."""
MIRRORED = f"waits until no pods are mirrored to {A}; `maintenance: drain` lets them leave"


def edited(*lowers: str) -> Topology:
    """Parse a topology of lowers in flow style; those of `world` have the kubeconfigs of FIRST and SECOND."""
    items = "".join(f"- {{{lower}}}\n" for lower in lowers) or " []"
    return parse(f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers:\n{items}")


def said(of: World, *lowers: str) -> list[Transition]:
    """Return the transition of each lower of a topology."""
    wanted = edited(*lowers)
    return [plan_transition(spec, wanted, of) for spec in wanted.lowers]


def deeds(of: World, *lowers: str) -> list[str]:
    """Return the action and the node name of each transition."""
    return [f"{one.action.name} {one.spec.node.name}" for one in said(of, *lowers)]


def waits(of: World, *lowers: str) -> list[str]:
    """Return the messages about what has to wait."""
    return [words for one in said(of, *lowers) for words in one.waits]


def leaving(of: World, *lowers: str) -> list[str]:
    """Return the names of the lowers that have left."""
    return [lower.name for lower in removed_lowers(edited(*lowers), of)]


def busy(of: World, name: str = A) -> World:
    """Bind a pod to the node of a lower, with its lower pod."""
    lower = of.lowers[name]
    pod = upper_pod(f"web-{name}", {"nodeName": lower.node})
    put(lower.upper_pods, pod)
    put(lower.pods, twin(pod, node=lower.node))
    return of


def stray(of: World, node: str) -> LowerWorld:
    """Add a node that an earlier engine left behind."""
    found = opened(placeholder_spec(thing("Node", node, "")))
    found.connected = found.in_topology = False
    of.lowers[found.name] = found
    return found


def keep_volume(of: World, lower: str) -> None:
    """Create a placeholder volume for a claim in a lower."""
    put(of.upper.more[VOLUME], marked(thing("PersistentVolume", "pvc-1", "", annotations={LOWER: lower}), "claim"))


def test_every_lower_joins_if_none_is_joined_yet() -> None:
    """No lower is replaced, and nothing waits."""
    here = world()
    here.lowers.clear()
    assert said(here, FIRST, SECOND) == [Transition(Action.JOIN, spec) for spec in edited(FIRST, SECOND).lowers]


def test_an_unchanged_lower_is_kept() -> None:
    """It does not matter whether it has pods."""
    here = busy(world())
    assert deeds(here, FIRST, SECOND) == [f"KEEP {A}", f"KEEP {B}"]
    assert (waits(here, FIRST, SECOND), leaving(here, FIRST, SECOND)) == ([], [])
    (first, _) = said(here, FIRST, SECOND)
    assert (first.before, first.spec) == (here.lowers[A], here.lowers[A].spec)


def test_a_lower_that_the_topology_no_longer_has_leaves() -> None:
    """Other lowers join and continue at the same time."""
    here = busy(world())
    assert deeds(here, SECOND, "name: new, kubeconfig: n") == [f"KEEP {B}", "JOIN new"]
    assert leaving(here, SECOND, "name: new, kubeconfig: n") == [A]


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
    (found, _) = said(here := world(), f"{FIRST}, {fields}", SECOND)
    assert (found.action.name, found.before, found.waits) == (action, here.lowers[A], ())
    assert found.spec == edited(f"{FIRST}, {fields}").lowers[0]


# Two lowers with one node.


def test_a_renamed_lower_continues_under_its_new_name() -> None:
    """It is the same cluster, so it keeps its node and the pods on it."""
    here = busy(world())
    (found, _) = said(here, RENAMED, SECOND)
    assert (found.action, found.before, found.spec.name) == (Action.JOIN, here.lowers[A], "lower-z")
    assert (waits(here, RENAMED, SECOND), leaving(here, RENAMED, SECOND)) == ([], [])


def test_a_lower_that_was_never_connected_is_replaced_by_the_one_whose_node_it_names() -> None:
    """It was renamed without its node's name, and refused; once the name is added, the former lower continues."""
    here = busy(world())
    here.lowers["lower-z"] = opened(edited("name: lower-z, kubeconfig: k/0").lowers[0])
    here.lowers["lower-z"].was_identified = False
    here.lowers[A].in_topology = False
    here.lowers["lower-z"].pods.mark_stale()
    assert deeds(here, RENAMED, SECOND) == [f"LEAVE {A}", f"KEEP {B}"]
    assert said(here, RENAMED, SECOND)[0].before is here.lowers["lower-z"]
    assert waits(here, RENAMED, SECOND) == [
        f"lowers[lower-z].node.name: lower-z -> {A}: waits until node lower-z is deleted"
    ]
    del here.lowers["lower-z"]
    assert deeds(here, RENAMED, SECOND) == [f"JOIN {A}", f"KEEP {B}"]


@pytest.mark.parametrize("met", [True, False])
def test_a_node_rename_waits_for_lists_only_if_the_cluster_has_responded_once(*, met: bool) -> None:
    """A lower that was never connected has no mirrored pods."""
    here = world()
    here.lowers[A].was_identified = met
    here.lowers[A].pods.mark_stale()
    fields = f"{FIRST}, node: {{name: other}}"
    words = "waits until it is certain that no pods are mirrored" if met else f"waits until node {A} is deleted"
    assert waits(here, fields, SECOND) == [f"lowers[{A}].node.name: {A} -> other: {words}"]


@pytest.mark.parametrize(
    "way", ["kubeconfig: k/9", "kubeconfig: k/0, context: other", "kubeconfigSecret: {namespace: n, name: s}"]
)
def test_another_cluster_waits_for_a_node_that_has_pods(way: str) -> None:
    """The former lower keeps its node until it is empty, and the message of the new one has that reason."""
    here = busy(world())
    wanted = (f"name: lower-z, {way}, node: {{name: {A}}}", SECOND)
    assert deeds(here, *wanted) == [f"WAIT {A}", f"KEEP {B}"]
    assert leaving(here, *wanted) == [A]
    (words,) = waits(here, *wanted)
    assert words.startswith(f"lowers[lower-z]: not connected: node {A} belongs to lower {A} until that one is empty")
    del here.lowers[A]
    assert deeds(here, *wanted) == [f"JOIN {A}", f"KEEP {B}"]


def test_a_lower_cannot_be_renamed_while_volumes_record_its_name() -> None:
    """Volumes are found by that name, so their pods could not be placed otherwise."""
    here = busy(world())
    keep_volume(here, B)
    assert deeds(here, RENAMED, SECOND) == [f"JOIN {A}", f"KEEP {B}"]
    keep_volume(here, A)
    assert deeds(here, RENAMED, SECOND) == [f"WAIT {A}", f"KEEP {B}"]
    assert waits(here, RENAMED, SECOND) == [
        (
            f"lowers[lower-z]: not connected: node {A} belongs to lower {A}, "
            "whose name is recorded in volumes: restore that name"
        )
    ]


def test_a_rename_waits_until_volumes_are_listed() -> None:
    """Without the controller for storage, no volumes exist that could be lost."""
    here = busy(world())
    here.upper.more[VOLUME].mark_stale()
    assert deeds(here, RENAMED, SECOND)[0] == f"WAIT {A}"
    here.lowers[A].spec = edited(f"{FIRST}, controllers: []").lowers[0]
    assert deeds(here, f"{RENAMED}, controllers: []", SECOND)[0] == f"JOIN {A}"


def test_volumes_of_another_owner_do_not_block_a_rename() -> None:
    """Another topology may have a lower of that name."""
    here = busy(world())
    stranger = OWNER_HERE._replace(mark="0" * 16)
    foreign = thing("PersistentVolume", "pvc-1", "", annotations={LOWER: A})
    put(here.upper.more[VOLUME], marked(foreign, "claim", stranger))
    assert deeds(here, RENAMED, SECOND)[0] == f"JOIN {A}"


def test_a_new_lower_takes_over_a_node_that_was_left_behind() -> None:
    """Only the Node of the former lower is known, so any lower with that node name continues it."""
    here = world()
    found = stray(here, "pool")
    (_, _, pool) = said(here, FIRST, SECOND, "name: pool, kubeconfig: p")
    assert (pool.action, pool.before, pool.waits) == (Action.JOIN, found, ())
    assert leaving(here, FIRST, SECOND) == ["(pool)"]


def test_an_existing_lower_can_move_to_a_node_that_was_left_behind() -> None:
    """It first leaves its own node, as for any other new name."""
    here = world()
    stray(here, "pool")
    assert deeds(here, f"{FIRST}, node: {{name: pool}}", SECOND)[0] == "LEAVE pool"


# Changes of node names.


def test_a_node_is_renamed_after_its_deletion() -> None:
    """The change is reported as waiting until then."""
    here = world()
    edit = (f"{FIRST}, node: {{name: north}}", SECOND)
    assert deeds(here, *edit) == ["LEAVE north", f"KEEP {B}"]
    assert waits(here, *edit) == [f"lowers[{A}].node.name: {A} -> north: waits until node {A} is deleted"]
    assert leaving(here, *edit) == []


def test_a_node_with_pods_keeps_its_name_while_other_fields_change() -> None:
    """A field that has to wait does not delay the rest of the edit."""
    here = busy(world())
    edit = f"{FIRST}, node: {{name: north, taints: []}}, maintenance: drain, qps: 7"
    (found, _) = said(here, edit, SECOND)
    assert (found.action, found.spec.node.name, found.spec.node.taints) == (Action.KEEP, A, ())
    assert (found.spec.maintenance, found.spec.qps) == ("drain", 7)
    assert found.waits == (f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",)


def test_a_namespace_mapping_waits_until_no_pods_are_mirrored() -> None:
    """Other fields become active, and both waiting changes are reported."""
    here = busy(world())
    edit = f"{FIRST}, node: {{name: north}}, maintenance: cordon, namespaces: {{mapping: prefix}}"
    (found, _) = said(here, edit, SECOND)
    assert (found.action, found.spec.maintenance) == (Action.KEEP, "cordon")
    assert found.waits == (
        f"lowers[{A}].namespaces.mapping: same -> prefix: {MIRRORED}",
        f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",
    )


@pytest.mark.parametrize("cache", ["upper_pods", "pods"])
def test_a_node_keeps_its_name_while_pods_are_not_listed(cache: str) -> None:
    """An engine that has just started or whose lower is unreachable does not know whether pods exist."""
    here = world()
    getattr(here.lowers[A], cache).mark_stale()
    edit = (f"{FIRST}, node: {{name: north}}, namespaces: {{mapping: prefix}}", SECOND)
    assert deeds(here, *edit)[0] == f"KEEP {A}"
    assert [words.rpartition(": ")[2] for words in waits(here, *edit)] == [
        "waits until it is certain that no pods are mirrored"
    ] * 2


@pytest.mark.parametrize("where", ["upper_pods", "pods"])
def test_a_pod_on_either_side_counts_as_mirrored(where: str) -> None:
    """A deleted upper pod may still have a terminating lower pod, and a new one may not have a lower pod yet."""
    here = world()
    pod = upper_pod()
    put(getattr(here.lowers[A], where), pod if where == "upper_pods" else twin(pod))
    assert waits(here, f"{FIRST}, node: {{name: north}}", SECOND)[0].endswith(MIRRORED)


def test_a_daemon_set_pod_does_not_block_a_node_rename() -> None:
    """It exists because the node does, and is never mirrored."""
    here = world()
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "proxy", "uid": "d", "controller": True}
    put(here.lowers[A].upper_pods, upper_pod(ownerReferences=[daemon]))
    assert deeds(here, f"{FIRST}, node: {{name: north}}", SECOND) == ["LEAVE north", f"KEEP {B}"]


def test_a_lower_waits_for_a_node_that_another_lower_has_to_keep() -> None:
    """The first lower keeps its node because of its pods, so the second one keeps its own and reports the reason."""
    here = busy(world())
    edit = (f"{FIRST}, node: {{name: north}}", f"{SECOND}, node: {{name: {A}}}")
    assert deeds(here, *edit) == [f"KEEP {A}", f"KEEP {B}"]
    assert waits(here, *edit) == [
        f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",
        f"lowers[{B}].node.name: {B} -> {A}: node {A} belongs to lower {A}",
    ]


def test_a_new_lower_waits_for_a_node_that_is_still_in_use() -> None:
    """It is not joined before the former lower has left that node."""
    here = busy(world())
    edit = (f"{FIRST}, node: {{name: north}}", SECOND, f"name: new, kubeconfig: n, node: {{name: {A}}}")
    assert deeds(here, *edit)[2] == f"WAIT {A}"
    assert waits(here, *edit)[1] == f"lowers[new]: not connected: node {A} belongs to lower {A}, which still uses it"


def test_two_empty_lowers_can_swap_their_nodes() -> None:
    """Each one leaves the node that the other one waits for."""
    edit = (f"{FIRST}, node: {{name: {B}}}", f"{SECOND}, node: {{name: {A}}}")
    assert deeds(world(), *edit) == [f"LEAVE {B}", f"LEAVE {A}"]


def test_in_a_cycle_of_node_names_no_lower_leaves_its_node_if_one_is_blocked() -> None:
    """A lower that waits for a blocked one keeps its node, and so does every lower that waits for it."""
    here = world(f"name: {A}", f"name: {B}", "name: c", "name: d")
    third, fourth = "name: c, kubeconfig: k/2", "name: d, kubeconfig: k/3"
    ring = (
        f"{FIRST}, node: {{name: {B}}}",
        f"{SECOND}, node: {{name: c}}",
        f"{third}, node: {{name: {A}}}",
        f"{fourth}, node: {{name: e}}",
    )
    assert deeds(here, *ring) == [f"LEAVE {B}", "LEAVE c", f"LEAVE {A}", "LEAVE e"]
    assert deeds(busy(here, "c"), *ring) == [f"KEEP {A}", f"KEEP {B}", "KEEP c", "LEAVE e"]


def test_a_lower_gets_the_node_of_a_removed_lower_only_if_that_is_empty() -> None:
    """It keeps its own node while the removed one has pods."""
    here = world()
    assert deeds(here, f"{SECOND}, node: {{name: {A}}}") == [f"LEAVE {A}"]
    assert deeds(busy(here), f"{SECOND}, node: {{name: {A}}}") == [f"KEEP {B}"]


# Unreadable credentials.


def test_a_deferred_transition_keeps_the_connection_and_applies_the_other_fields() -> None:
    """The fields that wait are reported with their keys."""
    here = busy(world())
    fields = "context: new, qps: 7, maintenance: cordon, node: {name: north, labels: {x: y}}"
    edit = f"{FIRST.replace('k/0', 'typo')}, {fields}"
    (found, _) = said(here, edit, SECOND)
    kept = defer(found, "typo: no such file")
    assert (kept.action, kept.before) == (Action.KEEP, here.lowers[A])
    assert (kept.spec.kubeconfig, kept.spec.qps, kept.spec.maintenance) == ("k/0", 7, "cordon")
    assert (kept.spec.node.name, kept.spec.node.labels["x"]) == (A, "y")
    words = "typo: no such file; the last good connection is kept"
    assert kept.objection == words
    assert kept.waits == (
        f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",
        f"lowers[{A}].kubeconfig, context: {words}",
    )


def test_a_deferred_change_of_credentials_is_reported_with_the_keys_of_the_file() -> None:
    """Both the former and the new key are named as the topology file spells them."""
    here = world()
    (found, _) = said(here, f"name: {A}, kubeconfigSecret: {{namespace: n, name: s}}", SECOND)
    (words,) = defer(found, "no such Secret").waits
    assert words.startswith(f"lowers[{A}].kubeconfig, kubeconfigSecret: no such Secret; ")


def test_a_deferred_rename_keeps_the_former_name() -> None:
    """It is reported under the name in the file, and the lower stays in the topology."""
    here = busy(world())
    (found, _) = said(here, f"{RENAMED}, maintenance: cordon", SECOND)
    kept = defer(found, "k/0: no such file")
    assert (kept.spec.name, kept.spec.maintenance, kept.action) == (A, "cordon", Action.KEEP)
    assert kept.waits == ("lowers[lower-z].name: k/0: no such file; the last good connection is kept",)


def test_the_node_of_a_removed_lower_is_reported_once_its_node_shows_the_removal() -> None:
    """Before the Node has that condition, a plan reports it as part of the change."""
    here = world(f"name: {A}")
    node = raised(here).manifest()
    here.lowers[A].in_topology = False
    assert leaving_nodes(here) == []
    told = {**node, "status": {"conditions": [{"type": "InTopology", "status": "False"}]}}
    put(here.upper.nodes, told)
    (words,) = leaving_nodes(here)
    assert words.startswith(f"node {here.lowers[A].node}, whose lower was removed, stays until its pods are deleted;")
    here.lowers[A].in_topology = True
    assert leaving_nodes(here) == []
