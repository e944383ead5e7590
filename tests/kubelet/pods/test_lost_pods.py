"""Tests of the orphan rule: missing pods are verified, and then deleted or marked lost, all in one plan."""

from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    add_namespace,
    add_virtual_node,
    change_as_other_client,
    decision_and_plan,
    delete_observed,
    make_lower_pod,
    make_upper_pod,
    make_world,
    put,
    relist_without,
    with_owner_marks,
)

from tensile.kube.store import Delta
from tensile.kubelet.pods.lost_pods import LostPodRule, key_of
from tensile.objects import POD, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Decision, VerifyAbsent
from tensile.reconcile.world import NamespaceNaming, Problem, World

RULE = LostPodRule()
KEY = key_of(A)
ABOVE = Ref(UPPER, POD, "default", "web")
BELOW = Ref(A, POD, "default", "web")
DELETED = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}
RAN = {"phase": "Running"}
TAKEN_FOR_DEAD = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]}


def mirrored(status: Manifest | None = None, **meta: Any) -> World:
    """Return a world with a running pod on both sides."""
    world = make_world()
    add_namespace(world)
    add_virtual_node(world)
    pod = make_upper_pod(status=status, **meta)
    put(world.lowers[A].upper_pods, pod)
    put(world.lowers[A].pods, make_lower_pod(pod))
    return world


def wanted(world: World) -> Any:
    """Return the only desired item of the decision."""
    (found,) = decision_and_plan(RULE, KEY, world)[0].wanted
    return found


def test_a_world_without_missing_pods_needs_nothing() -> None:
    """Pods that exist on both sides belong to the pod rule."""
    assert decision_and_plan(RULE, KEY, mirrored())[0] == Decision()


# Lower pods without their upper pods.


def test_a_verified_orphan_is_deleted_within_the_guard() -> None:
    """The deletion has the lower pod's UID, and counts as unrequested."""
    world = mirrored()
    relist_without(world.lowers[A].upper_pods, "web")
    world.lowers[A].upper_pods.confirm_absent("default", "web", uid="Pod-web")
    found = wanted(world)
    assert isinstance(found, Absent)
    assert (found.ref, found.uid, found.requested) == (BELOW, "below-Pod-web", False)


def test_the_deletion_of_an_older_upper_pod_does_not_prove_a_newer_one_absent() -> None:
    """Another engine may have observed the newer pod first and created the lower pod, so it is verified."""
    world = mirrored()
    delete_observed(world.lowers[A].upper_pods, "web")
    delete_observed(world.lowers[A].pods, "web")
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(uid="second")))
    assert wanted(world) == VerifyAbsent(ABOVE, "second", "its lower pod still exists", requested=False)


def test_an_orphan_at_an_unmapped_place_is_not_deleted() -> None:
    """With another namespace mapping the engine would create no pod there, so its marks prove nothing."""
    world = make_world()
    add_namespace(world)
    add_virtual_node(world)
    world.lowers[A].naming = NamespaceNaming("demo", OWNER_HERE.mark)
    put(world.lowers[A].upper_pods, make_upper_pod(uid="second"))
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(uid="first")))
    world.lowers[A].upper_pods.mark_deleted("default", "web", "first")
    assert decision_and_plan(RULE, KEY, world)[0].wanted == ()


@pytest.mark.parametrize(
    "below",
    [
        with_owner_marks(make_upper_pod("other", uid="theirs"), ""),
        with_owner_marks(make_upper_pod("other", uid="theirs"), "first", STRANGER),
        make_lower_pod(make_upper_pod("other"), **DELETED),
    ],
    ids=["no UID", "another owner's", "ending"],
)
def test_unowned_and_terminating_lower_pods_are_not_deleted(below: Manifest) -> None:
    """Pods without a UID or of another owner are never orphans of this topology."""
    world = mirrored()
    put(world.lowers[A].pods, below)
    world.lowers[A].upper_pods.confirm_absent("default", "other")
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


# Lower pods of upper pods that ended.


def test_a_lower_pod_of_an_upper_pod_that_ended_is_deleted_within_the_guard() -> None:
    """The resourceVersion is a precondition, so a lower pod that ends in between keeps its logs."""
    world = mirrored(status={"phase": "Succeeded"})
    found = wanted(world)
    assert isinstance(found, Absent)
    assert (found.ref, found.uid, found.requested) == (BELOW, "below-Pod-web", False)
    seen = world.lowers[A].pods.get("default", "web")
    assert seen is not None
    assert found.version == str(seen.version) != ""


# Upper pods without their lower pods.


def test_the_deletion_of_an_older_lower_pod_does_not_prove_a_newer_one_lost() -> None:
    """Another engine may have created the newer one, so it is read before the upper pod is marked LowerPodLost."""
    world = mirrored()
    delete_observed(world.lowers[A].pods, "web")
    delete_observed(world.lowers[A].upper_pods, "web")
    put(world.lowers[A].upper_pods, make_upper_pod(status=RAN, uid="second"))
    assert wanted(world) == VerifyAbsent(BELOW, "second", "its upper pod ran and still exists", requested=False)
    world.lowers[A].pods.confirm_absent("default", "web", uid="second")
    assert wanted(world).patch.body["status"]["reason"] == "LowerPodLost"


@pytest.mark.parametrize(
    ("status", "meta"),
    [({"phase": "Pending"}, {}), ({"phase": "Succeeded"}, {}), ({"phase": "Failed"}, {}), (RAN, DELETED)],
    ids=["never ran", "succeeded", "failed", "deleted"],
)
def test_pods_that_never_ran_ended_or_are_deleted_are_not_lost(status: Manifest, meta: dict[str, Any]) -> None:
    """They are recreated, have ended, or are removed by the pod rule."""
    world = mirrored(status=status, **meta)
    delete_observed(world.lowers[A].pods, "web")
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


def test_pods_on_a_node_of_another_owner_are_not_lost() -> None:
    """They run on a real machine."""
    world = mirrored(status=RAN)
    delete_observed(world.lowers[A].pods, "web")
    delete_observed(world.upper.nodes, A, "")
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


# Missing information.


@pytest.mark.parametrize("cache", ["upper_pods", "pods", "foreign_pods", "secrets"])
def test_nothing_is_decided_before_all_caches_are_synced(cache: str) -> None:
    """A cluster that cannot list one of the kinds is not healthy."""
    world = mirrored()
    relist_without(world.lowers[A].upper_pods, "web")
    getattr(world.lowers[A], cache).mark_stale()
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


def test_nothing_is_decided_while_the_lower_does_not_answer() -> None:
    """Even half a second without an answer is enough."""
    world = mirrored()
    relist_without(world.lowers[A].upper_pods, "web")
    world.lowers[A].unreachable_seconds = 0.5
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


# Watches.


def test_only_added_and_removed_pods_without_a_counterpart_enqueue_the_rule() -> None:
    """Changes of a pod that exists on both sides do not."""
    world = mirrored()
    routes = {route.cache: route.keys for route in RULE.watches()}
    upper, lower = world.lowers[A].upper_pods.get("default", "web"), world.lowers[A].pods.get("default", "web")
    assert list(routes["upper_pods"](world, A, Delta(upper, None))) == [KEY]
    assert list(routes["upper_pods"](world, A, Delta(upper, upper))) == []
    assert list(routes["pods"](world, A, Delta(lower, None))) == [KEY]
    assert list(routes["pods"](world, A, Delta(lower, lower))) == []
    delete_observed(world.lowers[A].upper_pods, "web")
    assert list(routes["pods"](world, A, Delta(None, lower))) == [KEY]


def test_the_end_of_a_pod_enqueues_the_rule_for_older_pods_of_its_name() -> None:
    """While a pod of lower-b has the name, nothing is decided about lower-a's pod, which must be checked afterwards."""
    world = mirrored()
    delete_observed(world.lowers[A].upper_pods, "web")
    successor = put(world.lowers[B].upper_pods, make_upper_pod(spec={"nodeName": B}, uid="another"))
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()
    delete_observed(world.lowers[B].upper_pods, "web")
    keys = {route.cache: route.keys for route in RULE.watches()}["upper_pods"]
    assert list(keys(world, B, Delta(successor, None))) == [KEY, key_of(B)]
    assert list(keys(world, B, Delta(successor, successor))) == []
    other = put(world.lowers[B].upper_pods, make_upper_pod("other", {"nodeName": B}))
    assert list(keys(world, B, Delta(other, None))) == [key_of(B)]


def test_a_pod_deleted_by_kubernetes_because_of_its_node_enqueues_the_rule() -> None:
    """A pod that a user deletes does not."""
    world = mirrored(**DELETED)
    keys = {route.cache: route.keys for route in RULE.watches()}["upper_pods"]
    plain = world.lowers[A].upper_pods.get("default", "web")
    assert list(keys(world, A, Delta(None, plain))) == []
    marked_so = change_as_other_client(
        world.lowers[A].upper_pods, "web", lambda pod: pod["status"].update(TAKEN_FOR_DEAD)
    )
    assert list(keys(world, A, Delta(plain, marked_so))) == [KEY]


def test_a_pod_that_ended_only_in_the_upper_cluster_enqueues_the_rule() -> None:
    """The order of the two events does not matter.

    The end of another pod enqueues the key only while the guard blocks steps.
    """
    world = mirrored(status={"phase": "Failed"})
    keys = {route.cache: route.keys for route in RULE.watches()}
    upper, lower = world.lowers[A].upper_pods.get("default", "web"), world.lowers[A].pods.get("default", "web")
    assert list(keys["upper_pods"](world, A, Delta(upper, upper))) == [KEY]
    assert list(keys["pods"](world, A, Delta(None, lower))) == [KEY]
    ended = put(world.lowers[A].pods, make_lower_pod(make_upper_pod(), {"phase": "Failed"}))
    assert list(keys["pods"](world, A, Delta(lower, ended))) == []
    assert list(keys["upper_pods"](world, A, Delta(upper, upper))) == []
    world.problems[KEY] = Problem("DeletionLimitExceeded", "40 pods")
    assert list(keys["upper_pods"](world, A, Delta(upper, upper))) == [KEY]


def test_each_lower_has_exactly_one_key() -> None:
    """It does not depend on the lower's pods."""
    assert list(RULE.keys(make_world(), B)) == [key_of(B)]
