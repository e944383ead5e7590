"""The oracles tell what broke, each on the smallest case, and say nothing where all is well."""

import pytest
from faultkit import MARK, A, B, Manifest, above, below, record

from bench.kit import oracles

WELL = {A: [below()], B: list[Manifest]()}


def test_a_whole_world_breaks_nothing() -> None:
    """One pod above, the same below: no oracle has anything to say."""
    upper = [above()]
    assert oracles.not_once_below(upper, WELL) == []
    assert oracles.orphans(upper, WELL) == []
    assert oracles.living_twice(WELL) == []
    assert oracles.failed(upper) == []
    assert oracles.unlike(upper, WELL) == {}
    assert oracles.not_ready(upper, "upper") == []


def test_what_is_ours_carries_our_mark() -> None:
    """Another owner's pods, and those of nobody, are not looked at."""
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
def test_a_living_pod_runs_once_and_in_its_place(lowers: oracles.Lowers, places: str) -> None:
    """Not at all, in another cluster, or twice is said with where it is."""
    assert oracles.not_once_below([above()], lowers) == [f"default/pod-u1 is bound to lower-a and runs in {places}"]


@pytest.mark.parametrize(
    "pod",
    [above(ending=True), above(phase="Succeeded"), above(node=""), above(node="other")],
    ids=["ending", "ended", "unbound", "on another node"],
)
def test_other_pods_need_no_lower_one(pod: Manifest) -> None:
    """Nothing is asked of what ends, ended, or is not on a virtual node."""
    assert oracles.not_once_below([pod], {A: [], B: []}) == []
    assert oracles.unlike([pod], {A: [], B: []}) == {}


def test_a_lower_pod_without_its_upper_one_is_an_orphan() -> None:
    """Also one whose annotation was taken away."""
    nameless = below("l2")
    nameless["metadata"]["annotations"] = {}
    said = oracles.orphans([above("u2")], {A: [below()], B: [nameless]})
    assert said == [
        "lower-a: default/pod-l1 is for u1, which is not there",
        "lower-b: default/pod-l2 is for nobody, which is not there",
    ]


def test_two_living_lower_pods_are_one_too_many() -> None:
    """One that ends beside one that lives is a change of place."""
    assert oracles.living_twice({A: [below()], B: [below("l2")]}) == ["2 lower pods live for the upper pod u1"]
    assert oracles.living_twice({A: [below()], B: [below("l2", ending=True)]}) == []
    assert oracles.living_twice({A: [below()], B: [below("l2", phase="Failed")]}) == []


def test_a_name_is_created_once_in_all_lowers() -> None:
    """A second success counts wherever it was; a refusal, a binding and a status are no creation."""
    assert oracles.created_twice({A: [record("create")], B: [record("create")]}) == [
        "default/one was created 2 times below"
    ]
    single = [record("create"), record("create", code=409), record("create", "pods/binding"), record("patch")]
    assert oracles.created_twice({A: single, B: [record("create", name="two"), record("create", "events")]}) == []


def test_a_failed_pod_is_told_with_its_reason() -> None:
    """Failed is what no fault may do to a pod."""
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
def test_a_status_that_differs_is_told(upper: Manifest, words: str) -> None:
    """With the first thing in which it does."""
    uid = upper["metadata"]["uid"]
    assert oracles.unlike([upper], WELL) == {uid: f"default/pod-{uid}: {words}"}


def test_what_was_deleted_is_gone_on_both_sides() -> None:
    """By the UID of the upper pod."""
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
def test_pods_outlast_a_pause(after: list[Manifest], said: list[str]) -> None:
    """The same objects, with the same containers."""
    assert oracles.replaced([above()], after, "upper") == said


def test_a_container_of_another_identity_was_restarted() -> None:
    """Even where the count says otherwise."""
    later = above()
    later["status"]["containerStatuses"][0]["containerID"] = "run://2"
    assert oracles.replaced([above()], [later], "upper") == ["upper: default/pod-u1 was restarted"]


def test_a_pod_that_is_not_ready_is_told() -> None:
    """One without conditions is not."""
    bare = above()
    del bare["status"]["conditions"]
    assert oracles.not_ready([above(ready=False), bare], A) == ["lower-a: default/pod-u1 is not Ready"] * 2


def test_deletions_of_pods_are_found() -> None:
    """Whoever made them; a refused one did nothing."""
    gone = [
        record("delete", code=200, agent="kube-controller-manager/v1"),
        record("deletecollection", code=200, name=""),
    ]
    said = ["kube-controller-manager deleted one", "tensile deleted "]
    assert oracles.deletions(gone) == said
    kept = [record("delete", code=409), record("delete", "configmaps", code=200), record("create")]
    assert oracles.deletions(kept) == []


def test_heartbeats_are_no_noise() -> None:
    """A lease every ten seconds, and now and then a node's status."""
    beats = [record("patch", "leases")] * 5 + [record("patch", "nodes/status")] * 2
    assert oracles.not_quiet(beats, 30.0, "upper") == []


@pytest.mark.parametrize("resource", ["pods", "pods/status", "nodes", "events"])
def test_any_other_write_is_noise(resource: str) -> None:
    """It is told with what was written."""
    said = [f"upper: patch {resource} one in a quiet time"]
    assert oracles.not_quiet([record("patch", resource)], 30.0, "upper") == said


def test_heartbeats_that_come_too_often_are_noise() -> None:
    """Each node's are counted for themselves."""
    leases = [record("patch", "leases")] * 6 + [record("patch", "leases", "two")] * 5
    statuses = [record("patch", "nodes/status")] * 3
    assert oracles.not_quiet([*leases, *statuses], 30.0, "upper") == [
        "upper: leases one was written 6 times",
        "upper: nodes/status one was written 3 times",
    ]


def test_a_swept_collection_is_found() -> None:
    """Only the engine's: a namespace controller sweeps by profession."""
    sweep, other = record("deletecollection"), record("deletecollection", agent="kube-controller-manager/v1")
    assert oracles.swept([sweep, other, record("delete")], "tensile/") == ["deletecollection pods"]
