"""What is missing though nobody is known to have deleted it: confirmed, then ended or called lost, all in one plan."""

from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    changed,
    decided,
    drop,
    home,
    lose,
    marked,
    put,
    raised,
    twin,
    upper_pod,
    world,
)

from tensile.kube.store import Delta
from tensile.kubelet.pods.orphans import PodOrphanRule, key_of
from tensile.objects import POD, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Decision, VerifyAbsent
from tensile.reconcile.world import NamespaceNaming, Problem, World

RULE = PodOrphanRule()
KEY = key_of(A)
ABOVE = Ref(UPPER, POD, "default", "web")
BELOW = Ref(A, POD, "default", "web")
DELETED = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}
RAN = {"phase": "Running"}
TAKEN_FOR_DEAD = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]}


def mirrored(status: Manifest | None = None, **meta: Any) -> World:
    """Make a world where a pod runs, above and below."""
    here = world()
    home(here)
    raised(here)
    pod = upper_pod(status=status, **meta)
    put(here.lowers[A].upper_pods, pod)
    put(here.lowers[A].pods, twin(pod))
    return here


def wanted(here: World) -> Any:
    """Return the one thing that is wanted."""
    (found,) = decided(RULE, KEY, here)[0].wanted
    return found


def test_a_world_without_gaps_needs_nothing() -> None:
    """Pods that are there on both sides concern the other rule."""
    assert decided(RULE, KEY, mirrored())[0] == Decision()


# Lower pods without their upper one.


def test_an_orphan_that_is_certain_ends_within_the_guard() -> None:
    """By its UID, and counted."""
    here = mirrored()
    lose(here.lowers[A].upper_pods, "web")
    here.lowers[A].upper_pods.confirm_absent("default", "web", sought="Pod-web")
    found = wanted(here)
    assert isinstance(found, Absent)
    assert (found.ref, found.uid, found.requested) == (BELOW, "below-Pod-web", False)


def test_the_going_of_an_older_upper_pod_is_no_word_about_one_that_is_yet_to_be_told_of() -> None:
    """Another engine has heard of that one first, and made the lower pod."""
    here = mirrored()
    drop(here.lowers[A].upper_pods, "web")
    drop(here.lowers[A].pods, "web")
    put(here.lowers[A].pods, twin(upper_pod(uid="second")))
    assert wanted(here) == VerifyAbsent(ABOVE, "second", "its lower pod still exists", requested=False)


def test_a_lower_pod_at_no_place_is_left_alone() -> None:
    """By another mapping of namespaces nothing would be made there, so whoever wrote its marks is left to it."""
    here = world()
    home(here)
    raised(here)
    here.lowers[A].naming = NamespaceNaming("demo", OWNER_HERE.mark)
    put(here.lowers[A].upper_pods, upper_pod(uid="second"))
    put(here.lowers[A].pods, twin(upper_pod(uid="first")))
    here.lowers[A].upper_pods.mark_deleted("default", "web", "first")
    assert decided(RULE, KEY, here)[0].wanted == ()


@pytest.mark.parametrize(
    "below",
    [
        marked(upper_pod("other", uid="theirs"), ""),
        marked(upper_pod("other", uid="theirs"), "first", STRANGER),
        twin(upper_pod("other"), **DELETED),
    ],
    ids=["no UID", "another owner's", "ending"],
)
def test_what_is_not_ours_or_ending_already_is_left_alone(below: Manifest) -> None:
    """Whatever is missing above."""
    here = mirrored()
    put(here.lowers[A].pods, below)
    here.lowers[A].upper_pods.confirm_absent("default", "other")
    assert decided(RULE, KEY, here)[0] == Decision()


# Lower pods that outlive their upper one.


def test_a_lower_pod_that_turns_up_for_an_upper_one_that_ended_is_ended() -> None:
    """As it was seen, and within the guard: one that has ended meanwhile keeps its logs."""
    here = mirrored(status={"phase": "Succeeded"})
    found = wanted(here)
    assert isinstance(found, Absent)
    assert (found.ref, found.uid, found.requested) == (BELOW, "below-Pod-web", False)
    seen = here.lowers[A].pods.get("default", "web")
    assert seen is not None
    assert found.version == str(seen.version) != ""


# Upper pods without their lower one.


def test_the_going_of_an_older_lower_pod_does_not_mean_that_this_ones_is_gone() -> None:
    """Another engine has made it, and said that it runs; here, it is yet to be told of."""
    here = mirrored()
    drop(here.lowers[A].pods, "web")
    drop(here.lowers[A].upper_pods, "web")
    put(here.lowers[A].upper_pods, upper_pod(status=RAN, uid="second"))
    assert wanted(here) == VerifyAbsent(
        BELOW, "second", "its upper pod was running and is not deleted", requested=False
    )
    here.lowers[A].pods.confirm_absent("default", "web", sought="second")
    assert wanted(here).patch.body["status"]["reason"] == "LowerPodLost"


@pytest.mark.parametrize(
    ("status", "meta"),
    [({"phase": "Pending"}, {}), ({"phase": "Succeeded"}, {}), ({"phase": "Failed"}, {}), (RAN, DELETED)],
    ids=["never ran", "succeeded", "failed", "deleted"],
)
def test_pods_that_cannot_be_lost_are_not(status: Manifest, meta: dict[str, Any]) -> None:
    """One that never ran is made anew, one that ended has ended, one that is deleted goes."""
    here = mirrored(status=status, **meta)
    drop(here.lowers[A].pods, "web")
    assert decided(RULE, KEY, here)[0] == Decision()


def test_pods_on_a_node_that_is_not_ours_are_never_lost() -> None:
    """They run on somebody's machine."""
    here = mirrored(status=RAN)
    drop(here.lowers[A].pods, "web")
    drop(here.upper.nodes, A, "")
    assert decided(RULE, KEY, here)[0] == Decision()


# When nothing is decided.


@pytest.mark.parametrize("cache", ["upper_pods", "pods", "foreign_pods", "secrets"])
def test_nothing_is_decided_from_incomplete_lists(cache: str) -> None:
    """Any of them: a cluster that cannot list one kind is not well."""
    here = mirrored()
    lose(here.lowers[A].upper_pods, "web")
    getattr(here.lowers[A], cache).mark_stale()
    assert decided(RULE, KEY, here)[0] == Decision()


def test_nothing_is_decided_while_the_lower_does_not_answer() -> None:
    """Not even for a moment of silence."""
    here = mirrored()
    lose(here.lowers[A].upper_pods, "web")
    here.lowers[A].unreachable_seconds = 0.5
    assert decided(RULE, KEY, here)[0] == Decision()


# What the rule hears of.


def test_it_hears_of_what_goes_and_of_what_comes_alone() -> None:
    """A change of a pod that is whole concerns it not."""
    here = mirrored()
    routes = {route.cache: route.keys for route in RULE.watches()}
    upper, lower = here.lowers[A].upper_pods.get("default", "web"), here.lowers[A].pods.get("default", "web")
    assert list(routes["upper_pods"](here, A, Delta(upper, None))) == [KEY]
    assert list(routes["upper_pods"](here, A, Delta(upper, upper))) == []
    assert list(routes["pods"](here, A, Delta(lower, None))) == [KEY]
    assert list(routes["pods"](here, A, Delta(lower, lower))) == []
    drop(here.lowers[A].upper_pods, "web")
    assert list(routes["pods"](here, A, Delta(None, lower))) == [KEY]


def test_the_end_of_a_pod_is_news_where_an_older_one_of_its_name_runs_on() -> None:
    """While a pod of lower-b has the name, the lower pod in lower-a is left alone; after it, nothing else ends that."""
    here = mirrored()
    drop(here.lowers[A].upper_pods, "web")
    successor = put(here.lowers[B].upper_pods, upper_pod(spec={"nodeName": B}, uid="another"))
    assert decided(RULE, KEY, here)[0] == Decision()
    drop(here.lowers[B].upper_pods, "web")
    keys = {route.cache: route.keys for route in RULE.watches()}["upper_pods"]
    assert list(keys(here, B, Delta(successor, None))) == [KEY, key_of(B)]
    assert list(keys(here, B, Delta(successor, successor))) == []
    other = put(here.lowers[B].upper_pods, upper_pod("other", {"nodeName": B}))
    assert list(keys(here, B, Delta(other, None))) == [key_of(B)]


def test_it_hears_of_what_kubernetes_ends_for_its_nodes_sake() -> None:
    """And not of what somebody deletes."""
    here = mirrored(**DELETED)
    keys = {route.cache: route.keys for route in RULE.watches()}["upper_pods"]
    plain = here.lowers[A].upper_pods.get("default", "web")
    assert list(keys(here, A, Delta(None, plain))) == []
    marked_so = changed(here.lowers[A].upper_pods, "web", lambda pod: pod["status"].update(TAKEN_FOR_DEAD))
    assert list(keys(here, A, Delta(plain, marked_so))) == [KEY]


def test_it_hears_of_a_pod_that_ended_above_alone() -> None:
    """In either order of the two events. The end of another pod enqueues the key only while the guard blocks steps."""
    here = mirrored(status={"phase": "Failed"})
    keys = {route.cache: route.keys for route in RULE.watches()}
    upper, lower = here.lowers[A].upper_pods.get("default", "web"), here.lowers[A].pods.get("default", "web")
    assert list(keys["upper_pods"](here, A, Delta(upper, upper))) == [KEY]
    assert list(keys["pods"](here, A, Delta(None, lower))) == [KEY]
    ended = put(here.lowers[A].pods, twin(upper_pod(), {"phase": "Failed"}))
    assert list(keys["pods"](here, A, Delta(lower, ended))) == []
    assert list(keys["upper_pods"](here, A, Delta(upper, upper))) == []
    here.problems[KEY] = Problem("DeletionLimitExceeded", "40 pods")
    assert list(keys["upper_pods"](here, A, Delta(upper, upper))) == [KEY]


def test_there_is_one_key_for_each_lower() -> None:
    """Whatever is in it."""
    assert list(RULE.keys(world(), B)) == [key_of(B)]
