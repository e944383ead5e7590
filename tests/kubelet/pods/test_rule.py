"""The rule for pods: which of its decisions a pod gets, by what is known above, below, and of the clusters."""

from datetime import timedelta
from typing import Any

import pytest
from worldkit import (
    A,
    B,
    changed,
    decided,
    drop,
    home,
    lose,
    marked,
    names,
    put,
    raised,
    reload,
    space,
    twin,
    upper_pod,
    world,
    written,
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
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main"}]}
DELETED = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}


def bound(*lowers: str, more: str = "", **pod: Any) -> World:
    """Make a world where a pod is bound to the node of lower-a, and could be made there."""
    here = world(*lowers, more=more)
    home(here)
    raised(here)
    put(here.lowers[A].upper_pods, upper_pod(**pod))
    return here


def mirrored(here: World, status: Manifest | None = None, **meta: Any) -> World:
    """Put the pod's lower pod there, as the engine makes it."""
    upper = here.lowers[A].upper_pods.get("default", "web")
    assert upper is not None
    put(here.lowers[A].pods, twin(upper.manifest(), status, **meta))
    return here


def verbs(here: World, key: Key = KEY) -> list[str]:
    """Return what the rule would have done: "create lower-a", "patch upper status"."""
    _, plan = decided(RULE, key, here)
    return [f"{step.verb} {step.ref.cluster or 'upper'} {step.subresource}".rstrip() for step in plan.steps]


def reason(here: World, key: Key = KEY) -> str:
    """Return the reason of the problem that the rule has with a pod, "" for none."""
    problem = decided(RULE, key, here)[1].problem
    return problem.reason if problem else ""


# A pod that lives.


def test_a_pod_that_ended_above_needs_nothing() -> None:
    """Neither with its lower pod nor without."""
    here = bound(status={"phase": "Succeeded"})
    assert verbs(here) == []
    assert verbs(mirrored(here, RUNNING)) == []


def test_which_of_two_pods_of_a_name_is_the_older_is_read_before_one_ends() -> None:
    """Another engine may have heard of the other first: then the one that is known here is the older."""
    here = bound(uid="second")
    put(here.lowers[A].pods, twin(upper_pod(uid="unheard of"), RUNNING))
    (wanted,) = decided(RULE, KEY, here)[0].wanted
    assert wanted == VerifyAbsent(ABOVE, "unheard of", "its lower pod blocks a new pod of this name")
    here = bound(uid="first")
    put(here.lowers[A].upper_pods, upper_pod(uid="second"))
    put(here.lowers[A].pods, twin(upper_pod(uid="first"), RUNNING))
    assert verbs(here)[0] == "delete lower-a"
    assert reason(here) == "PredecessorTerminating"


def test_an_older_twin_is_not_believed_in_while_lists_are_incomplete() -> None:
    """What a distrusted cache says may have been somebody else's cluster."""
    here = bound(uid="second")
    put(here.lowers[A].pods, twin(upper_pod(uid="first")))
    here.lowers[A].pods.mark_stale()
    assert verbs(here) == []


# Pods that get none.


def test_a_lower_that_left_takes_no_new_pods_and_keeps_its_old_ones() -> None:
    """What runs there goes on being reflected."""
    here = bound()
    reload(here, "name: lower-b")
    assert reason(here) == "NotInTopology"
    assert verbs(mirrored(here, RUNNING)) == ["patch upper status"]


def test_nothing_is_decided_about_a_lower_that_nobody_is_connected_to() -> None:
    """Statuses freeze, deleted pods stay."""
    here = bound(**DELETED)
    here.lowers[A].connected = False
    assert decided(RULE, KEY, here)[0] == Decision()


def test_nothing_is_decided_while_the_upper_pods_are_not_all_known() -> None:
    """Absence above would be taken for deletion."""
    here = bound()
    here.lowers[A].upper_pods.mark_stale()
    assert decided(RULE, KEY, here)[0] == Decision()


def test_pods_on_a_node_that_is_not_ours_are_not_touched() -> None:
    """They belong to a real machine; the rule waits for the Node to become ours."""
    here = bound(**DELETED)
    drop(here.upper.nodes, A, "")
    decision, plan = decided(RULE, KEY, here)
    assert (plan.steps, decision.depends_on) == ((), (Key("node", A, "", A),))


# A lower that does not answer.


def test_nothing_is_made_while_what_is_below_is_not_known() -> None:
    """Not before the first list, and not after a doubtful one."""
    here = bound()
    here.lowers[A].pods.mark_stale()
    assert verbs(here) == []


# A pod of that name in another cluster.


def elsewhere(silent: float, status: Manifest | None = None) -> World:
    """Make a world where a new pod is bound to lower-a, and the old one's lower pod stands in lower-b."""
    here = bound(uid="second")
    old = twin(upper_pod(uid="first"), status, node=B)
    put(here.lowers[B].pods, {**old, "spec": {**old["spec"], "nodeName": "real-node"}})
    here.lowers[B].unreachable_seconds = silent
    return here


def test_a_predecessor_that_was_seen_deleted_is_given_less_time_too() -> None:
    """Elsewhere it was told to end with the grace that is written on it, which may be of years."""
    here = elsewhere(0.0)
    there, lower = key_of(B, "default", "web"), here.lowers[B]
    put(lower.upper_pods, upper_pod(uid="first", node=B))
    drop(lower.upper_pods, "web")
    old = twin(upper_pod(uid="first"), node=B, **(DELETED | {"deletionGracePeriodSeconds": 10**9}))
    put(lower.pods, {**old, "spec": {**old["spec"], "nodeName": "real"}})
    (absent,) = decided(RULE, there, here)[0].wanted
    assert isinstance(absent, Absent)
    assert absent.grace == 30


# Lowers of which it is not known yet what runs there.


def unread(since: float | None, owner: str = "", **other: Any) -> World:
    """Make a world where a pod of such an owner is bound to lower-a, and lower-b has told nothing yet.

    It is looked after for so many seconds, None: not yet; `other` are further fields of it.
    """
    owners = [{"apiVersion": "x/v1", "kind": owner, "name": "web", "uid": "o", "controller": True}] if owner else []
    here = bound(ownerReferences=owners)
    here.lowers[B].pods.mark_stale()
    here.lowers[B].since = None if since is None else here.now - timedelta(seconds=since)
    for field, value in other.items():
        setattr(here.lowers[B], field, value)
    return here


@pytest.mark.parametrize(
    ("owner", "since"),
    [(owner, since) for owner in ("", "StatefulSet", "SparkApplication") for since in (None, 0.0, 5.0)]
    + [("StatefulSet", 40.0)],
)
def test_a_name_that_may_come_again_waits_until_every_lower_has_told(owner: str, since: float | None) -> None:
    """An older pod of it may run there still; it is looked again soon, but later than a plan waits for."""
    here = unread(since, owner)
    decision, plan = decided(RULE, KEY, here)
    assert (plan.steps, decision.problem) == ((), None)
    assert decision.requeue_after is not None
    assert 1.0 < decision.requeue_after <= 2.0
    here.lowers[B].pods.replace((), 5)
    assert "create lower-a" in verbs(here)


@pytest.mark.parametrize("owner", ["ReplicaSet", "Job", "ReplicationController"])
def test_a_name_that_comes_only_once_waits_for_nobody(owner: str) -> None:
    """No bad lower delays the many."""
    assert "create lower-a" in verbs(unread(0.0, owner))


@pytest.mark.parametrize("silent", [0.0, 41.0], ids=["it answers", "it does not"])
def test_a_lower_that_does_not_tell_in_time_is_not_waited_for(silent: float) -> None:
    """Also where it answers: pods that we may not list there would else hold up every other lower for ever."""
    assert "create lower-a" in verbs(unread(40.1, "StatefulSet", unreachable_seconds=silent))


@pytest.mark.parametrize("owner", ["", "SparkApplication"])
def test_only_a_stateful_set_waits_long_for_a_lower_that_does_not_tell(owner: str) -> None:
    """It promises that no two pods of a name run; nobody promises it of others, and no bad lower delays them."""
    assert "create lower-a" in verbs(unread(5.1, owner, unreachable_seconds=5.1))


def test_a_lower_that_nobody_can_ask_is_not_waited_for() -> None:
    """It was left behind, and nobody knows how to reach it."""
    assert "create lower-a" in verbs(unread(0.0, connected=False, in_topology=False))


def test_a_lower_that_is_yet_to_be_opened_is_waited_for() -> None:
    """They are opened one after the other; one that never is holds up none but those that were opened just before."""
    here = unread(None, "StatefulSet")
    del here.lowers[B]
    assert "create lower-a" not in verbs(here)
    for seconds, is_made in ((40.0, False), (40.1, True)):
        here.lowers[A].since = here.now - timedelta(seconds=seconds)
        assert ("create lower-a" in verbs(here)) is is_made


def test_what_a_lower_told_before_counts_while_it_is_read_anew() -> None:
    """A predecessor that is known is waited for, however long that takes."""
    here = elsewhere(0.0)
    here.lowers[B].pods.mark_stale()
    here.lowers[B].since = here.now - timedelta(hours=1)
    assert decided(RULE, KEY, here)[0].depends_on == (key_of(B, "default", "web"),)


# A pod that is deleted.


def test_a_deleted_pod_ends_below_first() -> None:
    """With the time that the upper one has left."""
    here = mirrored(bound(**DELETED))
    (wanted,) = decided(RULE, KEY, here)[0].wanted
    assert wanted == Absent(BELOW, "below-Pod-web", "the upper pod was deleted", 30)


def test_what_a_list_lacks_is_read_before_the_upper_pod_goes() -> None:
    """A name that is merely not here may have been missed."""
    here = mirrored(bound(**DELETED))
    lose(here.lowers[A].pods, "web")
    (wanted,) = decided(RULE, KEY, here)[0].wanted
    assert isinstance(wanted, VerifyAbsent)
    assert (wanted.ref, wanted.uid) == (BELOW, "Pod-web")


@pytest.mark.parametrize("stands", [True, False], ids=["stands", "went"])
def test_what_is_known_of_an_older_lower_pod_says_nothing_of_this_one(stands: bool) -> None:  # noqa: FBT001 - a parameter
    """Another engine may have made this one's meanwhile: it is read before the upper pod goes."""
    here = bound(uid="second", **DELETED)
    put(here.lowers[A].pods, twin(upper_pod(uid="first")))
    if not stands:
        drop(here.lowers[A].pods, "web")
    (wanted,) = decided(RULE, KEY, here)[0].wanted
    assert isinstance(wanted, VerifyAbsent)
    assert (wanted.ref, wanted.uid) == (BELOW, "second")


def test_a_deleted_pod_does_not_wait_for_a_stranger_or_for_an_older_pod() -> None:
    """A stranger is left alone; the older pod's lower pod ends too."""
    here = bound(uid="second", **DELETED)
    old = put(here.lowers[A].pods, twin(upper_pod(uid="first")))
    here.lowers[A].upper_pods.mark_deleted("default", "web", "first")
    here.lowers[A].pods.mark_deleted("default", "web", "second")
    assert [wanted.ref for wanted in decided(RULE, KEY, here)[0].wanted if isinstance(wanted, Absent)] == [BELOW, ABOVE]
    drop(here.lowers[A].pods, "web")
    put(here.lowers[A].pods, marked(upper_pod(uid=f"not-{old.uid}"), ""))
    assert verbs(here) == ["delete upper"]


# A pod that is gone above.


def gone(status: Manifest | None = None, below: Manifest | None = None) -> World:
    """Make a world where a mirrored pod was seen to go above."""
    here = mirrored(bound(status=status), **(below or {}))
    drop(here.lowers[A].upper_pods, "web")
    return here


def test_what_is_ending_already_is_left_to_end() -> None:
    """A second deletion would say nothing new."""
    assert decided(RULE, KEY, gone(below=DELETED))[0] == Decision()


def test_what_a_write_found_missing_above_is_not_ended_here() -> None:
    """The store may have been restored; when the watch tells of the deletion, it is."""
    here = mirrored(bound())
    here.lowers[A].upper_pods.confirm_absent("default", "web")
    assert decided(RULE, KEY, here)[0] == Decision()


def test_the_lower_pod_of_another_pod_than_the_one_that_went_is_not_ended_here() -> None:
    """The names are the same, the UIDs are not."""
    here = gone()
    changed(here.lowers[A].pods, "web", lambda pod: pod["metadata"]["annotations"].update(_other_uid()))
    assert decided(RULE, KEY, here)[0] == Decision()


def _other_uid() -> dict[str, str]:
    return {"tensile-kube.io/upper-uid": "another"}


# What the rule hears of.


def test_every_pod_of_either_side_has_a_key() -> None:
    """One for both sides of a pod."""
    here = mirrored(bound())
    put(here.lowers[A].pods, twin(upper_pod("orphan")))
    put(here.lowers[A].upper_pods, upper_pod("new"))
    assert list(names(RULE.keys(here, A))) == ["default/new", "default/orphan", "default/web"]
    assert list(RULE.keys(here, B)) == []


def test_pods_have_no_keys_while_those_below_are_being_listed() -> None:
    """Thousands would be looked at for nothing, and before those that matter; a lower that is away has them told so."""
    here = mirrored(bound())
    here.lowers[A].pods.mark_stale()
    assert list(RULE.keys(here, A)) == []
    here.lowers[A].unreachable_seconds = 41.0
    assert list(names(RULE.keys(here, A))) == ["default/web"]


RUNNING: Manifest = {
    "phase": "Running",
    "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "main", "ready": True, "restartCount": 1, "state": {"running": {"startedAt": "x"}}}],
}
OTHERWISE: dict[str, Manifest] = {
    "phase": {"phase": "Succeeded"},
    "ready": {"conditions": [{"type": "Ready", "status": "False"}]},
    "a restart": {"containerStatuses": [RUNNING["containerStatuses"][0] | {"restartCount": 2}]},
    "a state": {"containerStatuses": [RUNNING["containerStatuses"][0] | {"state": {"waiting": {}}}]},
}


@pytest.mark.parametrize("other", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_a_status_that_is_an_old_one_comes_first(other: Manifest) -> None:
    """When the engine starts among thousands that are in step, people wait for the few that are not."""
    here = bound()
    for name in ("a", "b", "c"):
        above = put(here.lowers[A].upper_pods, upper_pod(name, status=RUNNING)).manifest()
        put(here.lowers[A].pods, twin(above, RUNNING | (other if name == "b" else {})))
    here.lowers[A].upper_pods.confirm_absent("default", "web")
    assert [key.name for key in RULE.keys(here, A)] == ["b", "a", "c"]


def test_changes_on_either_side_concern_the_pods_key() -> None:
    """By the upper namespace and name."""
    here = mirrored(bound())
    routes = {route.cache: route.keys for route in RULE.watches()}
    upper, lower = here.lowers[A].upper_pods.get("default", "web"), here.lowers[A].pods.get("default", "web")
    assert list(routes["upper_pods"](here, A, Delta(None, upper))) == [KEY]
    assert list(routes["upper_pods"](here, A, Delta(upper, None))) == [KEY]
    assert list(routes["pods"](here, A, Delta(lower, None))) == [KEY]


def test_a_stranger_matters_where_it_takes_or_leaves_a_name() -> None:
    """Its changes matter to nobody, and its coming only where a pod of that name is bound."""
    here = bound()
    keys = {route.cache: route.keys for route in RULE.watches()}["foreign_pods"]
    web, other = (put(here.lowers[A].foreign_pods, upper_pod(name, uid="theirs")) for name in ("web", "other"))
    assert list(keys(here, A, Delta(None, web))) == [KEY]
    assert list(keys(here, A, Delta(web, None))) == [KEY]
    assert list(keys(here, A, Delta(web, web))) == []
    assert list(keys(here, A, Delta(None, other))) == []


# What was seen of an upper pod counts, whatever has become of its namespace or of the topology since.


def test_a_pod_that_was_seen_deleted_ends_below_though_its_namespace_is_gone_too() -> None:
    """The lower cluster may have been away when it was deleted; its namespace there need not be ours."""
    here = mirrored(bound(status=RUNNING), RUNNING)
    here.lowers[A].upper_namespaces = here.upper.namespaces
    drop(here.upper.namespaces, "default", "")
    assert verbs(here) == []
    drop(here.lowers[A].upper_pods, "web")
    assert verbs(here) == [f"delete {A}"]


def kept_out(status: Manifest, **meta: Any) -> World:
    """Make a world where a pod that is not mirrored any more, and whose status says so, is being deleted."""
    said = {"type": "tensile-kube.io/Mirrored", "status": "False", "reason": "NamespaceExcluded"}
    told = {**status, "conditions": [said]}
    return bound(more="excludeNamespaces: [default]", status=told, **DELETED, **meta)


def test_a_pod_that_never_ran_and_is_kept_out_goes_before_its_lower_ever_answers() -> None:
    """Nothing of it can be below; what may be there of one that ran is not known yet."""
    for status, done in (({"phase": "Pending"}, ["delete upper"]), (RUNNING, [])):
        here = kept_out(status)
        here.lowers[A].mapping_known = False
        assert verbs(here) == done


def test_a_pod_that_ran_before_it_was_excluded_goes_after_its_lower_pod() -> None:
    """What its status says since proves nothing: a lower that does not answer may still run it."""
    here = kept_out(RUNNING)
    here.lowers[A].pods.synced = False
    (asked,) = decided(RULE, KEY, here)[0].wanted
    assert isinstance(asked, VerifyAbsent)


def test_a_pod_that_ran_is_not_told_to_be_excluded_while_its_lower_pod_may_run() -> None:
    """It is reported as not ready like the others of that lower; once its lower pods are listed, it is excluded."""
    here = bound(more="excludeNamespaces: [default]", status=RUNNING)
    here.lowers[A].pods.synced = False
    here.lowers[A].unreachable_seconds = 100
    assert reason(here) == ""
    assert verbs(here) == ["patch upper status"]
    here.lowers[A].pods.synced, here.lowers[A].unreachable_seconds = True, 0
    assert reason(here) == "NamespaceExcluded"


# A lower namespace that loses its marks, with `mapping: prefix`.


def astray(*, marked_space: bool) -> World:
    """Make a world where a pod runs in the namespace demo-default of lower-a, which has our marks or not."""
    here = world("name: lower-a, namespaces: {mapping: prefix}")
    put(here.upper.namespaces, space("default"))
    raised(here)
    here.lowers[A].namespace("default")
    put(here.lowers[A].namespaces, own_space() if marked_space else space("demo-default", uid="ns"))
    upper = upper_pod(status=RUNNING)
    put(here.lowers[A].upper_pods, upper)
    put(here.lowers[A].pods, twin({**upper, "metadata": {**upper["metadata"], "namespace": "demo-default"}}, RUNNING))
    return here


def own_space() -> Manifest:
    """Make the lower namespace as the engine makes it."""
    made = marked(space("demo-default", uid="ns"), "Namespace-default")
    made["metadata"]["annotations"][UPPER_NAMESPACE] = "default"
    return written(made)


def woken(here: World, cache: str, delta: Delta) -> list[Key]:
    """Return the keys that a change in a cache concerns."""
    return [key for watch in RULE.watches() if watch.cache == cache for key in watch.keys(here, A, delta)]


def test_a_namespace_that_gets_its_marks_back_concerns_its_pods() -> None:
    """They waited for nothing else; a new namespace concerns none, since its pods wait for it."""
    here = astray(marked_space=False)
    before = here.lowers[A].namespaces.get("", "demo-default")
    after = put(here.lowers[A].namespaces, own_space())
    assert woken(here, "namespaces", Delta(before, after)) == [KEY]
    assert woken(here, "namespaces", Delta(None, after)) == []


def test_a_lower_pod_concerns_its_upper_pod_whatever_marks_its_namespace_has() -> None:
    """It may be deleted there as its status advises, or end."""
    here = astray(marked_space=False)
    below = here.lowers[A].pods.get("demo-default", "web")
    drop(here.lowers[A].pods, "web", "demo-default")
    assert woken(here, "pods", Delta(below, None)) == [KEY]


def test_an_image_travels_though_the_upper_pod_cannot_be_given_tolerations() -> None:
    """A policy of the upper cluster may refuse that patch for good."""
    here = bound(status=RUNNING, spec={"containers": [{"name": "main", "image": "app:2"}]})
    put(here.lowers[A].pods, twin(upper_pod(status=RUNNING), RUNNING))
    steps = decided(RULE, KEY, here)[1].steps
    assert [(step.ref.cluster, step.independent) for step in steps] == [(UPPER, True), (A, True)]
