"""What becomes of lowers that are joined when the topology says something else: a node is one lower's at any time."""

import pytest
from worldkit import OWNER_HERE, A, B, marked, opened, put, raised, thing, twin, upper_pod, world

from tensile.engine.lower import left_behind
from tensile.engine.transitions import Action, Transition, defer, leaving_nodes, plan_transition, removed_lowers
from tensile.names import LOWER
from tensile.objects import VOLUME
from tensile.reconcile.world import LowerWorld, World
from tensile.topology import Topology, parse

FIRST, SECOND = f"name: {A}, kubeconfig: k/0", f"name: {B}, kubeconfig: k/1"
RENAMED = f"name: lower-z, kubeconfig: k/0, node: {{name: {A}}}"
"""The first lower, called otherwise."""
MIRRORED = f"waits until no pods are mirrored to {A}; `maintenance: drain` lets them leave"


def edited(*lowers: str) -> Topology:
    """Read a topology of lowers in flow style; those of `world` have the kubeconfigs of FIRST and SECOND."""
    items = "".join(f"- {{{lower}}}\n" for lower in lowers) or " []"
    return parse(f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers:\n{items}")


def said(of: World, *lowers: str) -> list[Transition]:
    """Return what is to be done about each lower of a topology."""
    wanted = edited(*lowers)
    return [plan_transition(spec, wanted, of) for spec in wanted.lowers]


def deeds(of: World, *lowers: str) -> list[str]:
    """Return it in a word each, with the node that the lower has then."""
    return [f"{one.action.name} {one.spec.node.name}" for one in said(of, *lowers)]


def waits(of: World, *lowers: str) -> list[str]:
    """Return what has to wait."""
    return [words for one in said(of, *lowers) for words in one.waits]


def leaving(of: World, *lowers: str) -> list[str]:
    """Name those that have left."""
    return [lower.name for lower in removed_lowers(edited(*lowers), of)]


def busy(of: World, name: str = A) -> World:
    """Bind a pod to a lower's node, and let it run there."""
    lower = of.lowers[name]
    pod = upper_pod(f"web-{name}", {"nodeName": lower.node})
    put(lower.upper_pods, pod)
    put(lower.pods, twin(pod, node=lower.node))
    return of


def stray(of: World, node: str) -> LowerWorld:
    """Create a node that an earlier engine left behind."""
    found = opened(left_behind(thing("Node", node, "")))
    found.connected = found.in_topology = False
    of.lowers[found.name] = found
    return found


def keep_volume(of: World, lower: str) -> None:
    """Create a placeholder volume for a claim in a lower."""
    put(of.upper.more[VOLUME], marked(thing("PersistentVolume", "pvc-1", "", annotations={LOWER: lower}), "claim"))


def test_at_the_start_every_lower_joins() -> None:
    """Nothing is before them, and nothing waits."""
    here = world()
    here.lowers.clear()
    assert said(here, FIRST, SECOND) == [Transition(Action.JOIN, spec) for spec in edited(FIRST, SECOND).lowers]


def test_what_did_not_change_goes_on() -> None:
    """As it is, whether it has pods or not."""
    here = busy(world())
    assert deeds(here, FIRST, SECOND) == [f"KEEP {A}", f"KEEP {B}"]
    assert (waits(here, FIRST, SECOND), leaving(here, FIRST, SECOND)) == ([], [])
    (first, _) = said(here, FIRST, SECOND)
    assert (first.before, first.spec) == (here.lowers[A], here.lowers[A].spec)


def test_a_lower_that_is_in_the_file_no_more_has_left() -> None:
    """Others come and go beside it."""
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
def test_a_lower_is_joined_anew_only_for_what_its_connection_is_made_of(fields: str, action: str) -> None:
    """Everything else changes under it."""
    (found, _) = said(here := world(), f"{FIRST}, {fields}", SECOND)
    assert (found.action.name, found.before, found.waits) == (action, here.lowers[A], ())
    assert found.spec == edited(f"{FIRST}, {fields}").lowers[0]


# One node, two lowers.


def test_a_lower_that_is_renamed_goes_on_under_its_new_name() -> None:
    """With its node and the pods on it: it is the same cluster."""
    here = busy(world())
    (found, _) = said(here, RENAMED, SECOND)
    assert (found.action, found.before, found.spec.name) == (Action.JOIN, here.lowers[A], "lower-z")
    assert (waits(here, RENAMED, SECOND), leaving(here, RENAMED, SECOND)) == ([], [])


def test_a_lower_that_never_met_its_cluster_makes_way_for_the_name_that_it_should_have_kept() -> None:
    """It was renamed without its node's name, and refused: written beside it, the one before goes on."""
    here = busy(world())
    here.lowers["lower-z"] = opened(edited("name: lower-z, kubeconfig: k/0").lowers[0])
    here.lowers["lower-z"].met = False
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
def test_where_no_cluster_was_met_no_pods_can_be_mirrored(*, met: bool) -> None:
    """One that has answered once has to be read before its node goes by another name."""
    here = world()
    here.lowers[A].met = met
    here.lowers[A].pods.mark_stale()
    fields = f"{FIRST}, node: {{name: other}}"
    words = "waits until it is certain that no pods are mirrored" if met else f"waits until node {A} is deleted"
    assert waits(here, fields, SECOND) == [f"lowers[{A}].node.name: {A} -> other: {words}"]


@pytest.mark.parametrize(
    "way", ["kubeconfig: k/9", "kubeconfig: k/0, context: other", "kubeconfigSecret: {namespace: n, name: s}"]
)
def test_another_cluster_does_not_get_a_node_that_has_pods(way: str) -> None:
    """The one that has it keeps it until it is empty, as any that leaves; the other one waits, and says for what."""
    here = busy(world())
    wanted = (f"name: lower-z, {way}, node: {{name: {A}}}", SECOND)
    assert deeds(here, *wanted) == [f"WAIT {A}", f"KEEP {B}"]
    assert leaving(here, *wanted) == [A]
    (words,) = waits(here, *wanted)
    assert words.startswith(f"lowers[lower-z]: not connected: node {A} belongs to lower {A} until that one is empty")
    del here.lowers[A]
    assert deeds(here, *wanted) == [f"JOIN {A}", f"KEEP {B}"]


def test_a_lower_whose_name_is_on_volumes_keeps_it() -> None:
    """They are looked for by that name: under another one their pods would find no place."""
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


def test_as_long_as_volumes_are_not_known_they_may_be_there() -> None:
    """Where nobody looks after storage there are none to lose sight of."""
    here = busy(world())
    here.upper.more[VOLUME].mark_stale()
    assert deeds(here, RENAMED, SECOND)[0] == f"WAIT {A}"
    here.lowers[A].spec = edited(f"{FIRST}, controllers: []").lowers[0]
    assert deeds(here, f"{RENAMED}, controllers: []", SECOND)[0] == f"JOIN {A}"


def test_volumes_of_others_hold_up_nothing() -> None:
    """Another topology may have a lower of that name."""
    here = busy(world())
    stranger = OWNER_HERE._replace(mark="0" * 16)
    foreign = thing("PersistentVolume", "pvc-1", "", annotations={LOWER: A})
    put(here.upper.more[VOLUME], marked(foreign, "claim", stranger))
    assert deeds(here, RENAMED, SECOND)[0] == f"JOIN {A}"


def test_a_lower_takes_the_place_of_what_was_left_behind() -> None:
    """Of that nothing but the node is known: whoever has that node in the file is who it waited for."""
    here = world()
    found = stray(here, "pool")
    (_, _, pool) = said(here, FIRST, SECOND, "name: pool, kubeconfig: p")
    assert (pool.action, pool.before, pool.waits) == (Action.JOIN, found, ())
    assert leaving(here, FIRST, SECOND) == ["(pool)"]


def test_a_lower_may_move_to_a_node_that_was_left_behind() -> None:
    """It leaves its own first, as it would for any other."""
    here = world()
    stray(here, "pool")
    assert deeds(here, f"{FIRST}, node: {{name: pool}}", SECOND)[0] == "LEAVE pool"


# Names of nodes that change.


def test_a_node_is_renamed_by_way_of_its_end() -> None:
    """That is told as long as it lasts."""
    here = world()
    edit = (f"{FIRST}, node: {{name: north}}", SECOND)
    assert deeds(here, *edit) == ["LEAVE north", f"KEEP {B}"]
    assert waits(here, *edit) == [f"lowers[{A}].node.name: {A} -> north: waits until node {A} is deleted"]
    assert leaving(here, *edit) == []


def test_a_node_with_pods_keeps_its_name_and_gets_the_other_fields() -> None:
    """The refusal of one field is none of the edit."""
    here = busy(world())
    edit = f"{FIRST}, node: {{name: north, taints: []}}, maintenance: drain, qps: 7"
    (found, _) = said(here, edit, SECOND)
    assert (found.action, found.spec.node.name, found.spec.node.taints) == (Action.KEEP, A, ())
    assert (found.spec.maintenance, found.spec.qps) == ("drain", 7)
    assert found.waits == (f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",)


def test_a_mapping_waits_for_the_last_pod_too() -> None:
    """Beside it the other fields are in force; both are told."""
    here = busy(world())
    edit = f"{FIRST}, node: {{name: north}}, maintenance: cordon, namespaces: {{mapping: prefix}}"
    (found, _) = said(here, edit, SECOND)
    assert (found.action, found.spec.maintenance) == (Action.KEEP, "cordon")
    assert found.waits == (
        f"lowers[{A}].namespaces.mapping: same -> prefix: {MIRRORED}",
        f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",
    )


@pytest.mark.parametrize("cache", ["upper_pods", "pods"])
def test_pods_may_be_where_nobody_has_looked(cache: str) -> None:
    """An engine that has just started knows of none, and neither does one whose lower is away."""
    here = world()
    getattr(here.lowers[A], cache).mark_stale()
    edit = (f"{FIRST}, node: {{name: north}}, namespaces: {{mapping: prefix}}", SECOND)
    assert deeds(here, *edit)[0] == f"KEEP {A}"
    assert [words.rpartition(": ")[2] for words in waits(here, *edit)] == [
        "waits until it is certain that no pods are mirrored"
    ] * 2


@pytest.mark.parametrize("where", ["upper_pods", "pods"])
def test_a_pod_on_either_side_is_mirrored(where: str) -> None:
    """One that is gone above may be ending below, and one that is new has yet to be made there."""
    here = world()
    pod = upper_pod()
    put(getattr(here.lowers[A], where), pod if where == "upper_pods" else twin(pod))
    assert waits(here, f"{FIRST}, node: {{name: north}}", SECOND)[0].endswith(MIRRORED)


def test_a_daemon_sets_pod_holds_up_nothing() -> None:
    """It is there because the node is, and never mirrored."""
    here = world()
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "proxy", "uid": "d", "controller": True}
    put(here.lowers[A].upper_pods, upper_pod(ownerReferences=[daemon]))
    assert deeds(here, f"{FIRST}, node: {{name: north}}", SECOND) == ["LEAVE north", f"KEEP {B}"]


def test_a_node_that_is_passed_on_waits_for_who_has_it() -> None:
    """The first one keeps its node as it has pods, so the second one keeps its own, and says whose the other is."""
    here = busy(world())
    edit = (f"{FIRST}, node: {{name: north}}", f"{SECOND}, node: {{name: {A}}}")
    assert deeds(here, *edit) == [f"KEEP {A}", f"KEEP {B}"]
    assert waits(here, *edit) == [
        f"lowers[{A}].node.name: {A} -> north: {MIRRORED}",
        f"lowers[{B}].node.name: {B} -> {A}: node {A} belongs to lower {A}",
    ]


def test_a_new_lower_waits_for_a_node_that_is_passed_on() -> None:
    """Until the one before has moved; it is not joined beside it."""
    here = busy(world())
    edit = (f"{FIRST}, node: {{name: north}}", SECOND, f"name: new, kubeconfig: n, node: {{name: {A}}}")
    assert deeds(here, *edit)[2] == f"WAIT {A}"
    assert waits(here, *edit)[1] == f"lowers[new]: not connected: node {A} belongs to lower {A}, which still uses it"


def test_two_empty_lowers_can_swap_their_nodes() -> None:
    """Each gives up what the other waits for."""
    edit = (f"{FIRST}, node: {{name: {B}}}", f"{SECOND}, node: {{name: {A}}}")
    assert deeds(world(), *edit) == [f"LEAVE {B}", f"LEAVE {A}"]


def test_of_a_ring_nobody_gives_up_a_node_for_one_that_stays() -> None:
    """Whose way is blocked at its end keeps its node, and so does everybody behind it."""
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


def test_a_node_may_be_had_of_a_lower_that_leaves_empty() -> None:
    """Of one that leaves with pods it may not."""
    here = world()
    assert deeds(here, f"{SECOND}, node: {{name: {A}}}") == [f"LEAVE {A}"]
    assert deeds(busy(here), f"{SECOND}, node: {{name: {A}}}") == [f"KEEP {B}"]


# Credentials that cannot be read.


def test_a_connection_that_is_kept_keeps_what_it_was_made_of() -> None:
    """Whatever would have it made anew; the other fields of the edit hold, and what waits is told by its keys."""
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


def test_a_lower_whose_credentials_come_from_elsewhere_is_told_by_the_files_keys() -> None:
    """As the file writes them."""
    here = world()
    (found, _) = said(here, f"name: {A}, kubeconfigSecret: {{namespace: n, name: s}}", SECOND)
    (words,) = defer(found, "no such Secret").waits
    assert words.startswith(f"lowers[{A}].kubeconfig, kubeconfigSecret: no such Secret; ")


def test_a_renamed_lower_keeps_its_name_with_its_connection() -> None:
    """It is told under the name that the file has, and goes on to be in the topology."""
    here = busy(world())
    (found, _) = said(here, f"{RENAMED}, maintenance: cordon", SECOND)
    kept = defer(found, "k/0: no such file")
    assert (kept.spec.name, kept.spec.maintenance, kept.action) == (A, "cordon", Action.KEEP)
    assert kept.waits == ("lowers[lower-z].name: k/0: no such file; the last good connection is kept",)


def test_the_node_of_a_removed_lower_is_named_until_it_is_gone() -> None:
    """From when the engine has told so on the Node: before, a plan says it of the change."""
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
