"""Tests of the pod rule: its decision by the state of the upper pod, the lower pod, and the clusters."""

from datetime import timedelta
from typing import Any

import pytest
from worldkit import (
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
    make_upper_pod,
    make_world,
    put,
    relist_without,
    sorted_names,
    with_managed_fields,
    with_owner_marks,
)

from tensile.kube.store import Delta
from tensile.kubelet.pods.rule import PodRule, key_of
from tensile.names import UPPER_NAMESPACE
from tensile.objects import POD, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Decision, VerifyAbsent
from tensile.reconcile.world import Key, World

RULE = PodRule()
KEY = key_of(A, "default", "web")
ABOVE = Ref(UPPER, POD, "default", "web")
BELOW = Ref(A, POD, "default", "web")
RUNNING: Manifest = {
    "phase": "Running",
    "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "main", "ready": True, "restartCount": 1, "state": {"running": {"startedAt": "x"}}}],
}
DELETED = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}


def bound(*lowers: str, more: str = "", **pod: Any) -> World:
    """Return a world in which a pod is bound to the node of lower-a, and can be created there."""
    world = make_world(*lowers, more=more)
    add_namespace(world)
    add_virtual_node(world)
    put(world.lowers[A].upper_pods, make_upper_pod(**pod))
    return world


def mirrored(world: World, status: Manifest | None = None, **meta: Any) -> World:
    """Add the pod's lower pod, as the engine creates it."""
    upper = world.lowers[A].upper_pods.get("default", "web")
    assert upper is not None
    put(world.lowers[A].pods, make_lower_pod(upper.manifest(), status, **meta))
    return world


def verbs(world: World, key: Key = KEY) -> list[str]:
    """Return the steps of the rule in the form "create lower-a" or "patch upper status"."""
    _, plan = decision_and_plan(RULE, key, world)
    return [f"{step.verb} {step.ref.cluster or 'upper'} {step.subresource}".rstrip() for step in plan.steps]


def reason(world: World, key: Key = KEY) -> str:
    """Return the reason of the rule's problem with a pod, "" for none."""
    problem = decision_and_plan(RULE, key, world)[1].problem
    return problem.reason if problem else ""


# Running pods.


def test_a_pod_that_ended_in_the_upper_cluster_needs_nothing() -> None:
    """This holds with and without its lower pod."""
    world = bound(status={"phase": "Succeeded"})
    assert verbs(world) == []
    assert verbs(mirrored(world, RUNNING)) == []


def test_the_older_of_two_pods_of_a_name_is_verified_before_one_is_deleted() -> None:
    """Another engine may have observed the other pod first, in which case the known one is the older."""
    world = bound(uid="second")
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(uid="unheard of"), RUNNING))
    (wanted,) = decision_and_plan(RULE, KEY, world)[0].wanted
    assert wanted == VerifyAbsent(ABOVE, "unheard of", "its lower pod blocks a new pod of this name")
    world = bound(uid="first")
    put(world.lowers[A].upper_pods, make_upper_pod(uid="second"))
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(uid="first"), RUNNING))
    assert verbs(world)[0] == "delete lower-a"
    assert reason(world) == "PredecessorTerminating"


def test_an_older_lower_pod_is_not_deleted_while_caches_are_not_synced() -> None:
    """A stale cache may have the pods of another cluster."""
    world = bound(uid="second")
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(uid="first")))
    world.lowers[A].pods.mark_stale()
    assert verbs(world) == []


# Pods without a lower pod.


def test_a_removed_lower_gets_no_new_pods_and_keeps_its_old_ones() -> None:
    """The status of its running pods is still mirrored."""
    world = bound()
    apply_topology(world, "name: lower-b")
    assert reason(world) == "NotInTopology"
    assert verbs(mirrored(world, RUNNING)) == ["patch upper status"]


def test_nothing_is_decided_about_a_lower_without_a_connection() -> None:
    """Statuses are not updated, and deleted pods are kept."""
    world = bound(**DELETED)
    world.lowers[A].connected = False
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


def test_nothing_is_decided_before_the_upper_pods_are_synced() -> None:
    """Otherwise a missing upper pod would be mistaken for a deleted one."""
    world = bound()
    world.lowers[A].upper_pods.mark_stale()
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


def test_pods_on_a_node_of_another_owner_are_not_changed() -> None:
    """They belong to a real machine; the rule depends on the key of the Node."""
    world = bound(**DELETED)
    delete_observed(world.upper.nodes, A, "")
    decision, plan = decision_and_plan(RULE, KEY, world)
    assert (plan.steps, decision.depends_on) == ((), (Key("node", A, "", A),))


# Unreachable lowers.


def test_no_pod_is_created_before_the_lower_pods_are_synced() -> None:
    """A lower pod of that name may exist already."""
    world = bound()
    world.lowers[A].pods.mark_stale()
    assert verbs(world) == []


# Pods of the same name in another lower.


def elsewhere(silent: float, status: Manifest | None = None) -> World:
    """Return a world in which a new pod is bound to lower-a, and the old pod's lower pod exists in lower-b."""
    world = bound(uid="second")
    old = make_lower_pod(make_upper_pod(uid="first"), status, node=B)
    put(world.lowers[B].pods, {**old, "spec": {**old["spec"], "nodeName": "real-node"}})
    world.lowers[B].unreachable_seconds = silent
    return world


def test_a_predecessor_in_another_lower_gets_a_limited_grace_period() -> None:
    """Its own grace period may be years, while a new pod waits for its name."""
    world = elsewhere(0.0)
    there, lower = key_of(B, "default", "web"), world.lowers[B]
    put(lower.upper_pods, make_upper_pod(uid="first", node=B))
    delete_observed(lower.upper_pods, "web")
    old = make_lower_pod(make_upper_pod(uid="first"), node=B, **(DELETED | {"deletionGracePeriodSeconds": 10**9}))
    put(lower.pods, {**old, "spec": {**old["spec"], "nodeName": "real"}})
    (absent,) = decision_and_plan(RULE, there, world)[0].wanted
    assert isinstance(absent, Absent)
    assert absent.grace == 30


# Lowers whose pods are not known yet.


def unread(since: float | None, owner: str = "", **other: Any) -> World:
    """Return a world in which a pod of such an owner is bound to lower-a, and the pods of lower-b are unknown.

    lower-b has been watched for `since` seconds, None for not yet; `other` are further fields of it.
    """
    owners = [{"apiVersion": "x/v1", "kind": owner, "name": "web", "uid": "o", "controller": True}] if owner else []
    world = bound(ownerReferences=owners)
    world.lowers[B].pods.mark_stale()
    world.lowers[B].since = None if since is None else world.now - timedelta(seconds=since)
    for field, value in other.items():
        setattr(world.lowers[B], field, value)
    return world


@pytest.mark.parametrize(
    ("owner", "since"),
    [(owner, since) for owner in ("", "StatefulSet", "SparkApplication") for since in (None, 0.0, 5.0)]
    + [("StatefulSet", 40.0)],
)
def test_a_reusable_pod_name_waits_until_every_lower_is_synced(owner: str, since: float | None) -> None:
    """An older pod of the name may still run there; the requeue is soon, but later than a plan waits."""
    world = unread(since, owner)
    decision, plan = decision_and_plan(RULE, KEY, world)
    assert (plan.steps, decision.problem) == ((), None)
    assert decision.requeue_after is not None
    assert 1.0 < decision.requeue_after <= 2.0
    world.lowers[B].pods.replace((), 5)
    assert "create lower-a" in verbs(world)


@pytest.mark.parametrize("owner", ["ReplicaSet", "Job", "ReplicationController"])
def test_a_unique_pod_name_does_not_wait_for_other_lowers(owner: str) -> None:
    """Names of these controllers' pods are never reused, so one bad lower does not delay them."""
    assert "create lower-a" in verbs(unread(0.0, owner))


@pytest.mark.parametrize("silent", [0.0, 41.0], ids=["reachable", "unreachable"])
def test_a_lower_that_is_not_synced_in_time_is_not_waited_for(silent: float) -> None:
    """A reachable lower whose pods may not be listed would otherwise block all other lowers indefinitely."""
    assert "create lower-a" in verbs(unread(40.1, "StatefulSet", unreachable_seconds=silent))


@pytest.mark.parametrize("owner", ["", "SparkApplication"])
def test_only_stateful_set_pods_wait_long_for_an_unsynced_lower(owner: str) -> None:
    """Only a StatefulSet promises unique pods, so one bad lower does not delay other owners."""
    assert "create lower-a" in verbs(unread(5.1, owner, unreachable_seconds=5.1))


def test_a_disconnected_removed_lower_is_not_waited_for() -> None:
    """Its connection is not known any more."""
    assert "create lower-a" in verbs(unread(0.0, connected=False, in_topology=False))


def test_a_lower_that_is_not_opened_yet_is_waited_for_with_a_limit() -> None:
    """Lowers are opened in turn; one that never opens delays only pods of lowers that were opened just before."""
    world = unread(None, "StatefulSet")
    del world.lowers[B]
    assert "create lower-a" not in verbs(world)
    for seconds, is_made in ((40.0, False), (40.1, True)):
        world.lowers[A].since = world.now - timedelta(seconds=seconds)
        assert ("create lower-a" in verbs(world)) is is_made


def test_the_known_pods_of_a_lower_count_while_it_is_listed_again() -> None:
    """A known predecessor is waited for, however long that takes."""
    world = elsewhere(0.0)
    world.lowers[B].pods.mark_stale()
    world.lowers[B].since = world.now - timedelta(hours=1)
    assert decision_and_plan(RULE, KEY, world)[0].depends_on == (key_of(B, "default", "web"),)


# Deleted pods.


def test_the_lower_pod_of_a_deleted_pod_is_deleted_first() -> None:
    """It gets the grace period that the upper pod has left."""
    world = mirrored(bound(**DELETED))
    (wanted,) = decision_and_plan(RULE, KEY, world)[0].wanted
    assert wanted == Absent(BELOW, "below-Pod-web", "the upper pod was deleted", 30)


def test_a_missing_lower_pod_is_verified_before_the_upper_pod_is_removed() -> None:
    """A name that is only missing from the cache may exist in the cluster."""
    world = mirrored(bound(**DELETED))
    relist_without(world.lowers[A].pods, "web")
    (wanted,) = decision_and_plan(RULE, KEY, world)[0].wanted
    assert isinstance(wanted, VerifyAbsent)
    assert (wanted.ref, wanted.uid) == (BELOW, "Pod-web")


@pytest.mark.parametrize("stands", [True, False], ids=["existing", "deleted"])
def test_a_missing_lower_pod_is_verified_even_if_an_older_one_was_known(stands: bool) -> None:  # noqa: FBT001 - a parameter
    """Another engine may have created this pod's lower pod, so it is read before the upper pod is removed."""
    world = bound(uid="second", **DELETED)
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(uid="first")))
    if not stands:
        delete_observed(world.lowers[A].pods, "web")
    (wanted,) = decision_and_plan(RULE, KEY, world)[0].wanted
    assert isinstance(wanted, VerifyAbsent)
    assert (wanted.ref, wanted.uid) == (BELOW, "second")


def test_a_deleted_pod_does_not_wait_for_other_pods_of_its_name() -> None:
    """A pod of another owner is not changed, and the lower pod of an older pod is deleted too."""
    world = bound(uid="second", **DELETED)
    old = put(world.lowers[A].pods, make_lower_pod(make_upper_pod(uid="first")))
    world.lowers[A].upper_pods.mark_deleted("default", "web", "first")
    world.lowers[A].pods.mark_deleted("default", "web", "second")
    assert [wanted.ref for wanted in decision_and_plan(RULE, KEY, world)[0].wanted if isinstance(wanted, Absent)] == [
        BELOW,
        ABOVE,
    ]
    delete_observed(world.lowers[A].pods, "web")
    put(world.lowers[A].pods, with_owner_marks(make_upper_pod(uid=f"not-{old.uid}"), ""))
    assert verbs(world) == ["delete upper"]


# Removed upper pods.


def gone(status: Manifest | None = None, lower_object: Manifest | None = None) -> World:
    """Return a world in which the deletion of a mirrored upper pod was observed."""
    world = mirrored(bound(status=status), **(lower_object or {}))
    delete_observed(world.lowers[A].upper_pods, "web")
    return world


def test_a_terminating_lower_pod_is_not_deleted_again() -> None:
    """A second deletion would change nothing."""
    assert decision_and_plan(RULE, KEY, gone(lower_object=DELETED))[0] == Decision()


def test_a_lower_pod_is_kept_if_only_a_write_found_its_upper_pod_missing() -> None:
    """The store may have been restored; the lower pod is deleted when the watch reports the deletion."""
    world = mirrored(bound())
    world.lowers[A].upper_pods.confirm_absent("default", "web")
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


def test_a_lower_pod_of_a_different_upper_uid_is_not_deleted() -> None:
    """It has the name of the deleted pod, but belongs to another one."""
    world = gone()
    change_as_other_client(world.lowers[A].pods, "web", lambda pod: pod["metadata"]["annotations"].update(_other_uid()))
    assert decision_and_plan(RULE, KEY, world)[0] == Decision()


def _other_uid() -> dict[str, str]:
    return {"tensile-kube.io/upper-uid": "another"}


# Watches and keys.


def test_every_pod_of_either_side_has_one_key() -> None:
    """Both sides of a pod have the same key."""
    world = mirrored(bound())
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod("orphan")))
    put(world.lowers[A].upper_pods, make_upper_pod("new"))
    assert list(sorted_names(RULE.keys(world, A))) == ["default/new", "default/orphan", "default/web"]
    assert list(RULE.keys(world, B)) == []


def test_pods_have_no_keys_before_the_lower_pods_are_synced() -> None:
    """Thousands of useless syncs would delay others; an unreachable lower has keys, to mark its pods."""
    world = mirrored(bound())
    world.lowers[A].pods.mark_stale()
    assert list(RULE.keys(world, A)) == []
    world.lowers[A].unreachable_seconds = 41.0
    assert list(sorted_names(RULE.keys(world, A))) == ["default/web"]


OTHERWISE: dict[str, Manifest] = {
    "phase": {"phase": "Succeeded"},
    "ready": {"conditions": [{"type": "Ready", "status": "False"}]},
    "a restart": {"containerStatuses": [RUNNING["containerStatuses"][0] | {"restartCount": 2}]},
    "a state": {"containerStatuses": [RUNNING["containerStatuses"][0] | {"state": {"waiting": {}}}]},
}


@pytest.mark.parametrize("other", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_pods_with_an_outdated_status_are_listed_first(other: Manifest) -> None:
    """After an engine's start users wait for those few, and not for the thousands that are in sync."""
    world = bound()
    for name in ("a", "b", "c"):
        upper_object = put(world.lowers[A].upper_pods, make_upper_pod(name, status=RUNNING)).manifest()
        put(world.lowers[A].pods, make_lower_pod(upper_object, RUNNING | (other if name == "b" else {})))
    world.lowers[A].upper_pods.confirm_absent("default", "web")
    assert [key.name for key in RULE.keys(world, A)] == ["b", "a", "c"]


def test_changes_on_either_side_enqueue_the_pods_key() -> None:
    """The key has the upper namespace and name."""
    world = mirrored(bound())
    routes = {route.cache: route.keys for route in RULE.watches()}
    upper, lower = world.lowers[A].upper_pods.get("default", "web"), world.lowers[A].pods.get("default", "web")
    assert list(routes["upper_pods"](world, A, Delta(None, upper))) == [KEY]
    assert list(routes["upper_pods"](world, A, Delta(upper, None))) == [KEY]
    assert list(routes["pods"](world, A, Delta(lower, None))) == [KEY]


def test_a_pod_of_another_owner_enqueues_only_when_it_uses_or_frees_a_bound_name() -> None:
    """Its changes do not matter, and neither does a name without a bound upper pod."""
    world = bound()
    keys = {route.cache: route.keys for route in RULE.watches()}["foreign_pods"]
    web, other = (put(world.lowers[A].foreign_pods, make_upper_pod(name, uid="theirs")) for name in ("web", "other"))
    assert list(keys(world, A, Delta(None, web))) == [KEY]
    assert list(keys(world, A, Delta(web, None))) == [KEY]
    assert list(keys(world, A, Delta(web, web))) == []
    assert list(keys(world, A, Delta(None, other))) == []


# Observed deletions count, whatever changed in the namespace or the topology since.


def test_a_lower_pod_is_deleted_after_its_upper_pod_and_upper_namespace() -> None:
    """The lower may have been unreachable at the deletion, and its namespace need not belong to this topology."""
    world = mirrored(bound(status=RUNNING), RUNNING)
    world.lowers[A].upper_namespaces = world.upper.namespaces
    delete_observed(world.upper.namespaces, "default", "")
    assert verbs(world) == []
    delete_observed(world.lowers[A].upper_pods, "web")
    assert verbs(world) == [f"delete {A}"]


def kept_out(status: Manifest, **meta: Any) -> World:
    """Return a world in which a pod whose status reports its exclusion is being deleted."""
    condition = {"type": "tensile-kube.io/Mirrored", "status": "False", "reason": "NamespaceExcluded"}
    stored_status = {**status, "conditions": [condition]}
    return bound(more="excludeNamespaces: [default]", status=stored_status, **DELETED, **meta)


def test_an_excluded_pod_that_never_ran_is_removed_before_its_lower_answers() -> None:
    """It cannot have a lower pod, while a pod that ran may have one."""
    for status, done in (({"phase": "Pending"}, ["delete upper"]), (RUNNING, [])):
        world = kept_out(status)
        world.lowers[A].mapping_known = False
        assert verbs(world) == done


def test_an_excluded_pod_that_ran_is_removed_after_its_lower_pod_is_verified_absent() -> None:
    """Its present status proves nothing, because an unreachable lower may still run it."""
    world = kept_out(RUNNING)
    world.lowers[A].pods.synced = False
    (confirm,) = decision_and_plan(RULE, KEY, world)[0].wanted
    assert isinstance(confirm, VerifyAbsent)


def test_a_pod_that_ran_is_not_marked_excluded_while_its_lower_pod_may_run() -> None:
    """It is marked unready like other pods of that lower, and excluded once the lower pods are synced."""
    world = bound(more="excludeNamespaces: [default]", status=RUNNING)
    world.lowers[A].pods.synced = False
    world.lowers[A].unreachable_seconds = 100
    assert reason(world) == ""
    assert verbs(world) == ["patch upper status"]
    world.lowers[A].pods.synced, world.lowers[A].unreachable_seconds = True, 0
    assert reason(world) == "NamespaceExcluded"


# Lower namespaces that lose their marks, with `mapping: prefix`.


def astray(*, marked_space: bool) -> World:
    """Return a world in which a pod runs in namespace demo-default of lower-a, with or without the owner's marks."""
    world = make_world("name: lower-a, namespaces: {mapping: prefix}")
    put(world.upper.namespaces, make_namespace("default"))
    add_virtual_node(world)
    world.lowers[A].namespace("default")
    put(world.lowers[A].namespaces, own_space() if marked_space else make_namespace("demo-default", uid="ns"))
    upper = make_upper_pod(status=RUNNING)
    put(world.lowers[A].upper_pods, upper)
    put(
        world.lowers[A].pods,
        make_lower_pod({**upper, "metadata": {**upper["metadata"], "namespace": "demo-default"}}, RUNNING),
    )
    return world


def own_space() -> Manifest:
    """Return the lower namespace as the engine creates it."""
    made = with_owner_marks(make_namespace("demo-default", uid="ns"), "Namespace-default")
    made["metadata"]["annotations"][UPPER_NAMESPACE] = "default"
    return with_managed_fields(made)


def woken(world: World, cache: str, delta: Delta) -> list[Key]:
    """Return the keys that a change in a cache enqueues."""
    return [key for watch in RULE.watches() if watch.cache == cache for key in watch.keys(world, A, delta)]


def test_a_namespace_that_regains_its_marks_enqueues_its_pods() -> None:
    """They wait for nothing else; a new namespace enqueues none, because pods depend on its key."""
    world = astray(marked_space=False)
    before = world.lowers[A].namespaces.get("", "demo-default")
    after = put(world.lowers[A].namespaces, own_space())
    assert woken(world, "namespaces", Delta(before, after)) == [KEY]
    assert woken(world, "namespaces", Delta(None, after)) == []


def test_a_lower_pod_in_an_unmarked_namespace_enqueues_its_upper_pod() -> None:
    """It may be deleted there, as the status of its upper pod advises, or end."""
    world = astray(marked_space=False)
    lower_entry = world.lowers[A].pods.get("demo-default", "web")
    delete_observed(world.lowers[A].pods, "web", "demo-default")
    assert woken(world, "pods", Delta(lower_entry, None)) == [KEY]


def test_an_image_is_updated_even_if_the_tolerations_cannot_be_patched() -> None:
    """A policy of the upper cluster may reject that patch permanently, so the steps are independent."""
    world = bound(status=RUNNING, spec={"containers": [{"name": "main", "image": "app:2"}]})
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(status=RUNNING), RUNNING))
    steps = decision_and_plan(RULE, KEY, world)[1].steps
    assert [(step.ref.cluster, step.independent) for step in steps] == [(UPPER, True), (A, True)]
