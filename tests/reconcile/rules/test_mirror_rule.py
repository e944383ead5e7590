"""Tests of the skeleton of mirrored kinds, with a kind that this file defines by as little code as a file in rules/."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from loopkit import RecordingLoopObserver
from rulekit import RuleUnderTest
from virtualtime import in_virtual_time
from worldkit import (
    NOW,
    STRANGER,
    A,
    B,
    add_namespace,
    add_virtual_node,
    apply_topology,
    change_as_other_client,
    decision_and_plan,
    delete_observed,
    make_lower_pod,
    make_namespace,
    make_object,
    make_upper_pod,
    make_world,
    mark_synced,
    put,
    relist_without,
    spec_with_references,
    with_owner_marks,
)

from tensile.kube.cluster import Selection
from tensile.kube.store import Cache, Entry
from tensile.names import OWNER, UPPER_UID
from tensile.objects import NAMESPACE, NETWORK_POLICY, UPPER, Kind, Manifest, Ref, annotations, labels, uid
from tensile.reconcile import mirrored_kinds
from tensile.reconcile.copies import has_lower_pods, has_pods
from tensile.reconcile.desired import Decision
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.pods.index import by_namespace
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.rules import namespaces
from tensile.reconcile.rules.mirror_rule import (
    PAUSE,
    MirroredKind,
    MirrorRule,
    Need,
    Pair,
    follow_deletion,
    names_in,
    pods_of_namespace,
    pods_referring,
)
from tensile.reconcile.world import Key, LowerWorld, World

# What the file of a new kind would contain: NetworkPolicies, in each lower that has pods of their namespace.


def _need(pair: Pair) -> Need:
    is_enabled = "Service" in pair.lower.spec.controllers
    if is_enabled and has_pods(pair.lower, pair.key.namespace, pair.world):
        return Need.ASKED
    return Need.KEPT if has_lower_pods(pair.lower, pair.key.namespace) else Need.NONE


def _present(pair: Pair, original: Entry) -> Decision:
    obstacle = pair.obstacle(pair.lower.upper_pods.select("living", pair.key.namespace))
    if obstacle is not None:
        return obstacle
    content = {"spec": original.manifest()["spec"]}
    return Decision(
        (*pair.report_problem(), pair.copied(original, content, "pods of its namespace are there", ("spec",)))
    )


def _concerns(world: World, lower: LowerWorld, _: Kind, original: Entry) -> bool:
    return has_pods(lower, original.namespace, world)


def _of_namespace(world: World, lower: LowerWorld, namespace: str) -> Iterator[Key]:
    for name in sorted(names_in(NETWORK_POLICY, world, lower, namespace)):
        yield Key("policy", lower.name, namespace, name)


RULE = MirrorRule(
    name="policy",
    kinds=(
        MirroredKind(
            kind=NETWORK_POLICY,
            need=_need,
            present=_present,
            unneeded="no pod of its namespace is in this cluster any more",
            concerns=_concerns,
            upper_indexes={"namespace": by_namespace},
            lower_indexes={"namespace": by_namespace},
        ),
    ),
    controller="Service",
    users=pods_of_namespace(_of_namespace),
)

# What the line in `mirrored_kinds.MIRRORED` would cause.


def watching(of: World) -> World:
    """Add the caches of the kind to a world, for both clusters."""
    upper_kind, below = followed()
    of.upper.more[NETWORK_POLICY], of.lowers[A].more[NETWORK_POLICY] = (
        mirrored_kinds.cache_of(upper_kind),
        mirrored_kinds.cache_of(below),
    )
    mark_synced(*of.upper.more.values())
    mark_synced(*of.lowers[A].more.values())
    return of


def followed() -> list[mirrored_kinds.WatchedKind]:
    """Return what is watched of the kind once its rule is in the table."""
    table = mirrored_kinds.follows([*mirrored_kinds.MIRRORED, RULE])
    return [one for one in table["Service"] if one.kind == NETWORK_POLICY]


KEY = Key("policy", A, "default", "shut")
REF = Ref(A, NETWORK_POLICY, "default", "shut")


def policy(*types: str) -> Manifest:
    """Return the upper policy."""
    made = make_object("NetworkPolicy", "shut", api=NETWORK_POLICY.api, labels={"team": "blue"})
    return {**made, "spec": {"podSelector": {}, "policyTypes": list(types or ("Ingress",))}}


def inhabited() -> World:
    """Create a world in which a pod is bound to lower-a, whose node and namespace exist, and no pod to lower-b."""
    world = watching(make_world())
    add_virtual_node(world)
    add_namespace(world)
    put(world.lowers[A].upper_pods, make_upper_pod())
    return world


def copied(world: World) -> World:
    """Add the upper policy, and its copy as the engine makes it."""
    original = put(world.upper.more[NETWORK_POLICY], policy())
    put(world.lowers[A].more[NETWORK_POLICY], with_owner_marks(original.manifest(), original.uid, uid="below"))
    return world


def verbs(world: World) -> list[str]:
    """Return the verbs of the rule's steps."""
    return [step.verb for step in decision_and_plan(RULE, KEY, world)[1].steps]


def clusters_with_namespace(world: World) -> dict[str, DryRunCluster]:
    """Return clusters in memory with the namespace, which feed the world's caches of the kind."""
    clusters = {name: DryRunCluster(name, now=lambda: NOW) for name in (UPPER, A)}
    clusters[UPPER].follow(NETWORK_POLICY, world.upper.more[NETWORK_POLICY], lambda _: True)
    clusters[A].follow(NETWORK_POLICY, world.lowers[A].more[NETWORK_POLICY], lambda one: OWNER in labels(one))
    for cluster in clusters.values():
        cluster.place(NAMESPACE, make_namespace())
    return clusters


@in_virtual_time
async def test_a_copy_is_created_patched_and_deleted_with_its_upper_object() -> None:
    """The whole loop runs on clusters in memory.

    The copy is also deleted after the last pod of its namespace.
    """
    world, noted = inhabited(), RecordingLoopObserver()
    clusters = clusters_with_namespace(world)
    above, below = clusters[UPPER], clusters[A]
    loop = Loop(world, (RULE,), clusters, noted, Timing(lambda: NOW, lambda: 0.5))
    loop.open(A)

    async def copy() -> Manifest:
        """Return the copy when the loop is idle, {} for none."""
        await loop.wait_idle()
        return below.find(*REF[1:]) or {}

    stored = above.place(NETWORK_POLICY, policy())
    made = await copy()
    assert (made["spec"], labels(made)["team"]) == (policy()["spec"], "blue")
    assert (labels(made)[OWNER], annotations(made)[UPPER_UID]) == (world.owner.mark, uid(stored))
    above.alter(REF._replace(cluster=UPPER), lambda one: one["spec"].update(policyTypes=["Egress"]))
    assert (await copy())["spec"] == policy("Egress")["spec"]
    await above.delete(REF._replace(cluster=UPPER), uid=uid(stored))
    assert await copy() == {}
    above.place(NETWORK_POLICY, {**policy(), "metadata": policy()["metadata"] | {"uid": "anew"}})
    assert await copy() != {}
    delete_observed(world.lowers[A].upper_pods, "web")
    await asyncio.sleep(PAUSE + 1)
    assert await copy() == {}
    assert noted.verbs() == [f"{verb} shut" for verb in ("create", "patch", "delete", "create", "delete")]
    await loop.close(A)


FATES = {
    ("switched off", "there"): ["delete"],
    ("switched off and used", "changed"): [],
    ("switched off and used", "deleted"): ["delete"],
    ("asked", "there"): [],
    ("asked", "deleted"): ["delete"],
    ("asked", "missing"): [],
    ("asked", "read missing"): [],
    ("kept", "changed"): [],
    ("kept", "deleted"): ["delete"],
    ("kept", "missing"): [],
    ("kept", "read missing"): [],
    ("unneeded", "there"): ["delete"],
    ("unneeded", "deleted"): ["delete"],
    ("unneeded", "missing"): ["delete"],
}
"""What is done with an up-to-date copy, by what needs it and by the state of its upper object."""


@pytest.mark.parametrize(("need", "original"), FATES, ids=map(" ".join, FATES))
def test_a_copy_is_kept_or_deleted_by_its_need_and_the_state_of_its_upper_object(need: str, original: str) -> None:
    """The cases are those of the table in mirror.py.

    A copy of another owner is kept in each case.
    """
    world = copied(inhabited())
    lower = world.lowers[A]
    if need.startswith("switched off"):
        apply_topology(world, f"name: {A}, controllers: []")
    elif need != "asked":
        delete_observed(lower.upper_pods, "web")
    if need in ("kept", "switched off and used"):
        put(lower.pods, make_lower_pod(make_upper_pod()))
    originals = world.upper.more[NETWORK_POLICY]
    if original == "changed":
        put(originals, policy("Egress"))
    elif original == "deleted":
        delete_observed(originals, "shut")
    elif original != "there":
        relist_without(originals, "shut")
    if original == "read missing":
        originals.confirm_absent("default", "shut", uid="NetworkPolicy-shut")
    assert verbs(world) == FATES[need, original]
    put(lower.more[NETWORK_POLICY], with_owner_marks(policy(), "NetworkPolicy-shut", STRANGER))
    assert verbs(world) == []


@pytest.mark.parametrize("guarded", [False, True])
def test_an_older_copy_is_deleted_if_the_deletion_of_its_successor_is_observed(guarded: bool) -> None:  # noqa: FBT001 - a parameter
    """If the kind has an orphan rule, that rule decides within the guard."""
    world = copied(inhabited())
    originals, copies = world.upper.more[NETWORK_POLICY], world.lowers[A].more[NETWORK_POLICY]
    put(originals, {**policy(), "metadata": policy()["metadata"] | {"uid": "successor"}})
    delete_observed(originals, "shut")
    pair = Pair(KEY, REF, None, copies.get("default", "shut"), originals, copies, world.lowers[A], world)
    assert bool(follow_deletion(pair, guarded=guarded).wanted) is not guarded


def test_the_deletion_of_an_older_upper_object_does_not_delete_a_newer_ones_copy() -> None:
    """Another engine received the newer object first, and made the copy."""
    world = copied(inhabited())
    originals = world.upper.more[NETWORK_POLICY]
    relist_without(originals, "shut")
    put(originals, {**policy(), "metadata": policy()["metadata"] | {"uid": "older"}})
    delete_observed(originals, "shut")
    assert verbs(world) == []


def test_a_copy_of_an_older_upper_object_is_replaced() -> None:
    """The upper object is another one.

    A changed spec of a current copy is reverted, and labels of other clients stay.
    """
    world = copied(inhabited())
    put(world.upper.more[NETWORK_POLICY], {**policy(), "metadata": policy()["metadata"] | {"uid": "another"}})
    assert verbs(world) == ["delete"]
    world = copied(inhabited())
    copies = world.lowers[A].more[NETWORK_POLICY]
    change_as_other_client(copies, "shut", lambda one: one["metadata"]["labels"].update(theirs="yes"))
    assert verbs(world) == []
    change_as_other_client(copies, "shut", lambda one: one["spec"].update(policyTypes=["Egress"]))
    assert verbs(world) == ["patch"]


def test_an_object_of_another_owner_with_the_name_is_a_conflict_and_not_changed() -> None:
    """It has no marks, or those of another owner."""
    world = inhabited()
    put(world.upper.more[NETWORK_POLICY], policy())
    for theirs in (policy(), with_owner_marks(policy(), "NetworkPolicy-shut", STRANGER)):
        put(world.lowers[A].more[NETWORK_POLICY], theirs)
        assert RuleUnderTest(RULE, KEY).reason(world) == "NameConflict"


def test_no_copy_is_created_before_pods_can_use_it() -> None:
    """It requires the namespace and our node, and a pod that is not being deleted."""
    world = inhabited()
    put(world.upper.more[NETWORK_POLICY], policy())
    assert verbs(world) == ["create"]
    put(world.lowers[A].upper_pods, make_upper_pod(deletionTimestamp="2026-03-01T12:00:00Z"))
    assert verbs(world) == []
    put(world.lowers[A].upper_pods, make_upper_pod())
    delete_observed(world.lowers[A].namespaces, "default", "")
    assert decision_and_plan(RULE, KEY, world)[0] == Decision(depends_on=(namespaces.key_of(A, "default"),))
    add_namespace(world)
    delete_observed(world.upper.nodes, A, "")
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


@pytest.mark.parametrize("which", ["originals", "copies", "pods"])
def test_nothing_is_decided_from_caches_that_are_not_synced(which: str) -> None:
    """An object that they lack may exist."""
    world = copied(inhabited())
    delete_observed(world.lowers[A].upper_pods, "web")
    lower = world.lowers[A]
    caches = {"originals": world.upper.more[NETWORK_POLICY], "copies": lower.more[NETWORK_POLICY], "pods": lower.pods}
    assert verbs(world) == ["delete"]
    caches[which].mark_stale()
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


# Keys that changes enqueue.

LAST = {"delay": PAUSE}


def test_every_needed_object_and_every_copy_has_a_key() -> None:
    """Objects of a namespace with pods are needed, copies may be in any namespace, and the other lower has no keys."""
    world = inhabited()
    put(world.upper.more[NETWORK_POLICY], policy(), {**make_object("NetworkPolicy", "far", "shop"), "spec": {}})
    put(world.lowers[A].more[NETWORK_POLICY], with_owner_marks(make_object("NetworkPolicy", "left", "gone"), "x"))
    assert RuleUnderTest(RULE, KEY).keys_in_lower(world) == ["default/shut", "gone/left"]


def test_a_change_of_an_upper_object_or_a_copy_enqueues_its_key() -> None:
    """An upper object matters if it is needed or has a copy."""
    world, rule_under_test = copied(inhabited()), RuleUnderTest(RULE, KEY)
    far = put(world.upper.more[NETWORK_POLICY], make_object("NetworkPolicy", "far", "shop"))
    assert rule_under_test.affected_keys(world, "upper.NetworkPolicy", None, far) == []
    original, copy = (cache.get("default", "shut") for cache in _both(world))
    assert rule_under_test.affected_keys(world, "upper.NetworkPolicy", original, original) == ["default/shut"]
    assert rule_under_test.affected_keys(world, "NetworkPolicy", copy, None) == ["default/shut"]
    delete_observed(world.lowers[A].upper_pods, "web")
    assert rule_under_test.affected_keys(world, "upper.NetworkPolicy", original, None) == ["default/shut"], (
        "it has a copy"
    )
    delete_observed(world.lowers[A].more[NETWORK_POLICY], "shut")
    assert rule_under_test.affected_keys(world, "upper.NetworkPolicy", original, None) == []


def _both(world: World) -> tuple[Cache, Cache]:
    return world.upper.more[NETWORK_POLICY], world.lowers[A].more[NETWORK_POLICY]


def test_the_first_and_the_last_pod_of_a_namespace_enqueue_its_keys() -> None:
    """Otherwise a thousand pods would enqueue all keys a thousand times.

    A pod that ends counts like one that is deleted.
    """
    world, rule_under_test = copied(inhabited()), RuleUnderTest(RULE, KEY)
    pods = world.lowers[A].upper_pods
    (first,) = pods
    assert rule_under_test.affected_keys(world, "upper_pods", None, first) == ["default/shut"]
    assert rule_under_test.affected_keys(world, "upper_pods", first, first) == []
    second = put(pods, make_upper_pod("second"))
    assert rule_under_test.affected_keys(world, "upper_pods", None, second) == []
    delete_observed(pods, "second")
    assert rule_under_test.affected_keys(world, "upper_pods", second, None, **LAST) == []
    ended = put(pods, make_upper_pod(status={"phase": "Succeeded"}))
    assert rule_under_test.affected_keys(world, "upper_pods", first, ended, **LAST) == ["default/shut"]
    lower_entry = put(world.lowers[A].pods, make_lower_pod(make_upper_pod()))
    assert rule_under_test.affected_keys(world, "pods", lower_entry, lower_entry, **LAST) == []
    delete_observed(world.lowers[A].pods, "web")
    assert rule_under_test.affected_keys(world, "pods", lower_entry, None, **LAST) == ["default/shut"]


def test_a_node_that_becomes_ours_enqueues_the_keys() -> None:
    """No copy is created without it, and later changes of the node do not matter."""
    world, rule_under_test = copied(inhabited()), RuleUnderTest(RULE, KEY)
    node = world.upper.nodes.get("", A)
    theirs = put(world.upper.nodes, make_object("Node", A, ""))
    assert rule_under_test.affected_keys(world, "upper.nodes", None, node) == rule_under_test.affected_keys(
        world, "upper.nodes", theirs, node
    )
    assert rule_under_test.affected_keys(world, "upper.nodes", None, node) == ["default/shut"]
    assert rule_under_test.affected_keys(world, "upper.nodes", node, node) == []


def _referred(_: World, lower: str, namespace: str, references: Iterable[Reference]) -> Iterator[Key]:
    return (Key("policy", lower, namespace, one.name) for one in references if one.kind == "Secret")


BY_REFERENCE = RuleUnderTest(replace(RULE, users=pods_referring(_referred)), KEY)
"""A rule as if pods referred to the objects by name."""


@pytest.mark.parametrize("cache", ["upper_pods", "pods"])
def test_a_created_or_deleted_pod_enqueues_the_keys_of_its_references(cache: str) -> None:
    """This applies to upper and lower pods, but not to other changes of a pod."""
    world, pod = inhabited(), make_upper_pod("refers", spec_with_references(secrets=["shut"]))
    pods = world.lowers[A].upper_pods if cache == "upper_pods" else world.lowers[A].pods
    entry = put(pods, pod if cache == "upper_pods" else make_lower_pod(pod))
    assert BY_REFERENCE.affected_keys(world, cache, None, entry) == ["default/shut"]
    assert BY_REFERENCE.affected_keys(world, cache, entry, None) == ["default/shut"]
    assert BY_REFERENCE.affected_keys(world, cache, entry, entry) == []
    assert BY_REFERENCE.keys_in_lower(world) == (["default/shut"] if cache == "upper_pods" else [])
    assert BY_REFERENCE.keys_in_lower(world, B) == []
    ended = put(pods, {**entry.manifest(), "status": {"phase": "Failed"}})
    is_needed = [] if cache == "upper_pods" else ["default/shut"]
    assert BY_REFERENCE.affected_keys(world, cache, ended, None) == is_needed, (
        "a lower pod keeps what it has to its end"
    )
    assert BY_REFERENCE.affected_keys(world, cache, entry, ended) == (["default/shut"] if cache == "upper_pods" else [])


def test_the_entry_in_the_table_determines_what_is_watched() -> None:
    """All upper objects are watched, but only our own copies in the lower cluster, each with its marks."""
    upper_kind, below = followed()
    owner = make_world().owner
    assert (upper_kind.kind, upper_kind.is_upper, upper_kind.selection(owner)) == (NETWORK_POLICY, True, Selection())
    assert (below.kind, below.is_upper) == (NETWORK_POLICY, False)
    assert below.selection(owner) == Selection(labels=f"{OWNER}={owner.mark}")
    (copy,) = copied(inhabited()).lowers[A].more[NETWORK_POLICY]
    assert (copy.facts.owner, copy.facts.upper_uid) == (owner.mark, "NetworkPolicy-shut")
