"""Tests of the oracles: each one lists violations, on the smallest case, and nothing if there is none."""

import pytest
from faultkit import MARK, A, B, Manifest, above, below, record

from bench.kit import oracles

WELL = {A: [below()], B: list[Manifest]()}


def test_a_correct_state_has_no_violations() -> None:
    """One upper pod with its lower pod satisfies every oracle."""
    upper = [above()]
    assert oracles.not_once_below(upper, WELL) == []
    assert oracles.orphans(upper, WELL) == []
    assert oracles.living_twice(WELL) == []
    assert oracles.failed(upper) == []
    assert oracles.unlike(upper, WELL) == {}
    assert oracles.not_ready(upper, "upper") == []


def test_objects_with_the_owners_mark_are_selected() -> None:
    """Objects of another owner and unmarked ones are left out."""
    other = below("l2")
    other["metadata"]["labels"] = {"tensile-kube.io/owner": "f" * 16}
    assert oracles.owned([below(), other, above()], MARK) == [below()]


@pytest.mark.parametrize(
    ("lowers", "places"),
    [
        ({A: [], B: []}, "[]"),
        ({A: [], B: [below()]}, "['lower-b']"),
        ({A: [below()], B: [below("l2")]}, "['lower-a', 'lower-b']"),
        ({A: [below(), below("l2")], B: []}, "['lower-a', 'lower-a']"),
    ],
    ids=["nowhere", "elsewhere", "in both", "twice"],
)
def test_a_living_pod_has_to_run_exactly_once_in_its_lower_cluster(lowers: oracles.Lowers, places: str) -> None:
    """A missing, misplaced or second lower pod is listed with the lower clusters."""
    assert oracles.not_once_below([above()], lowers) == [f"default/pod-u1 is bound to lower-a and runs in {places}"]


@pytest.mark.parametrize(
    "pod",
    [above(ending=True), above(phase="Succeeded"), above(node=""), above(node="other")],
    ids=["ending", "ended", "unbound", "on another node"],
)
def test_ending_ended_and_unbound_pods_need_no_lower_pod(pod: Manifest) -> None:
    """Neither do pods on a node that is not virtual."""
    assert oracles.not_once_below([pod], {A: [], B: []}) == []
    assert oracles.unlike([pod], {A: [], B: []}) == {}


def test_a_lower_pod_without_its_upper_pod_is_an_orphan() -> None:
    """So is a lower pod whose annotation was removed."""
    nameless = below("l2")
    nameless["metadata"]["annotations"] = {}
    said = oracles.orphans([above("u2")], {A: [below()], B: [nameless]})
    assert said == [
        "lower-a: default/pod-l1 is for u1, which does not exist",
        "lower-b: default/pod-l2 is for no upper pod, which does not exist",
    ]


def test_two_living_lower_pods_of_one_upper_pod_are_a_violation() -> None:
    """A terminating or failed one beside a living one is allowed, because the pod may have moved."""
    assert oracles.living_twice({A: [below()], B: [below("l2")]}) == ["2 lower pods live for the upper pod u1"]
    assert oracles.living_twice({A: [below()], B: [below("l2", ending=True)]}) == []
    assert oracles.living_twice({A: [below()], B: [below("l2", phase="Failed")]}) == []


def test_a_pod_may_be_created_only_once_in_all_lower_clusters() -> None:
    """Refusals, bindings and patches are no creations."""
    assert oracles.created_twice({A: [record("create")], B: [record("create")]}) == [
        "default/one was created 2 times below"
    ]
    single = [record("create"), record("create", code=409), record("create", "pods/binding"), record("patch")]
    assert oracles.created_twice({A: single, B: [record("create", name="two"), record("create", "events")]}) == []


def test_a_failed_pod_is_listed_with_its_reason() -> None:
    """No fault may cause a pod to fail."""
    pod = above(phase="Failed")
    pod["status"] |= {"reason": "LowerPodLost", "message": "it is gone"}
    assert oracles.failed([pod, above("u2")]) == ["default/pod-u1 Failed: LowerPodLost it is gone"]


@pytest.mark.parametrize(
    ("upper", "words"),
    [
        (above(phase="Pending"), "phase is Pending above and Running below"),
        (above(address="10.0.0.9"), "podIP is 10.0.0.9 above and 10.0.0.1 below"),
        (above(ready=False), "Ready is False above and True below"),
        (above(restarts=1), "its containers are not those below"),
        (above("u2"), "it has no lower pod"),
    ],
    ids=["phase", "address", "ready", "containers", "none"],
)
def test_the_first_difference_between_upper_and_lower_status_is_listed(upper: Manifest, words: str) -> None:
    """A missing lower pod is a difference too."""
    uid = upper["metadata"]["uid"]
    assert oracles.unlike([upper], WELL) == {uid: f"default/pod-{uid}: {words}"}


def test_deleted_pods_have_to_be_absent_on_both_sides() -> None:
    """They are identified by the UID of the upper pod."""
    assert oracles.still_there([above()], ["u1"], "upper") == ["upper: default/pod-u1 was deleted"]
    assert oracles.still_there([below()], ["u1"], A) == ["lower-a: default/pod-l1 was deleted"]
    assert oracles.still_there([above(), below()], ["u2"], A) == []


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ([above()], []),
        ([], ["upper: default/pod-u1 is gone"]),
        ([above(ending=True)], ["upper: default/pod-u1 is being deleted"]),
        ([above(restarts=1)], ["upper: default/pod-u1 was restarted"]),
        ([above("u2")], ["upper: default/pod-u1 is gone", "upper: default/pod-u2 is new"]),
    ],
    ids=["same", "gone", "ending", "restarted", "another"],
)
def test_pods_that_are_new_deleted_or_restarted_after_a_pause_are_listed(
    after: list[Manifest], said: list[str]
) -> None:
    """Objects and containers have to be the same as before."""
    assert oracles.replaced([above()], after, "upper") == said


def test_a_container_with_another_id_counts_as_restarted() -> None:
    """This holds even if the restart count is unchanged."""
    later = above()
    later["status"]["containerStatuses"][0]["containerID"] = "run://2"
    assert oracles.replaced([above()], [later], "upper") == ["upper: default/pod-u1 was restarted"]


def test_a_pod_that_is_not_ready_is_listed() -> None:
    """A pod without conditions is not ready."""
    bare = above()
    del bare["status"]["conditions"]
    assert oracles.not_ready([above(ready=False), bare], A) == ["lower-a: default/pod-u1 is not Ready"] * 2


def test_successful_deletions_of_pods_are_listed_with_their_client() -> None:
    """Refused deletions do not count."""
    gone = [
        record("delete", code=200, agent="kube-controller-manager/v1"),
        record("deletecollection", code=200, name=""),
    ]
    said = ["kube-controller-manager deleted one", "tensile deleted "]
    assert oracles.deletions(gone) == said
    kept = [record("delete", code=409), record("delete", "configmaps", code=200), record("create")]
    assert oracles.deletions(kept) == []


def test_heartbeats_are_allowed_in_a_quiet_time() -> None:
    """A lease may be written every ten seconds, and a node's status occasionally."""
    beats = [record("patch", "leases")] * 5 + [record("patch", "nodes/status")] * 2
    assert oracles.not_quiet(beats, 30.0, "upper") == []


@pytest.mark.parametrize("resource", ["pods", "pods/status", "nodes", "events"])
def test_every_other_write_in_a_quiet_time_is_listed(resource: str) -> None:
    """The line contains what was written."""
    said = [f"upper: patch {resource} one in a quiet time"]
    assert oracles.not_quiet([record("patch", resource)], 30.0, "upper") == said


def test_heartbeats_that_are_too_frequent_are_listed() -> None:
    """Those of each node are counted separately."""
    leases = [record("patch", "leases")] * 6 + [record("patch", "leases", "two")] * 5
    statuses = [record("patch", "nodes/status")] * 3
    assert oracles.not_quiet([*leases, *statuses], 30.0, "upper") == [
        "upper: leases one was written 6 times",
        "upper: nodes/status one was written 3 times",
    ]


def test_a_deletion_of_a_collection_by_the_engine_is_listed() -> None:
    """The namespace controller may delete collections."""
    sweep, other = record("deletecollection"), record("deletecollection", agent="kube-controller-manager/v1")
    assert oracles.swept([sweep, other, record("delete")], "tensile/") == ["deletecollection pods"]
