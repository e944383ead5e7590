"""How a deleted pod ends: what is asked of the lower pod, and what the upper one says last."""

from datetime import UTC, datetime
from typing import Any

import pytest
from podviewkit import delete_lower, remove_upper
from worldkit import A, drop, put, twin, upper_pod, world

from tensile.kube.store import Cache, Entry
from tensile.kubelet.pods.deletion import has_run, last_known_status
from tensile.objects import POD, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Patched
from tensile.reconcile.pods.index import digest_below
from tensile.reconcile.world import LowerWorld

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ABOVE = Ref(UPPER, POD, "default", "web")
BELOW = Ref(A, POD, "default", "web")
RAN = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
SUCCEEDED = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}


def deleted(grace: int = 30, status: Manifest | None = None, **more: Any) -> Manifest:
    """Make an upper pod that is being deleted."""
    spec = more.pop("spec", None)
    return upper_pod(
        spec=spec, status=status, deletionTimestamp="2026-03-01T12:00:30Z", deletionGracePeriodSeconds=grace, **more
    )


def lower(of: Manifest, status: Manifest | None = None, grace: int | None = None) -> Entry:
    """Make its lower pod, which is ending when a grace is given."""
    meta = {} if grace is None else {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": grace}
    return put(world().lowers[A].pods, twin(of, status, **meta))


def test_what_nobody_asked_for_is_not_deleted_and_still_reflected() -> None:
    """The guard decides about it elsewhere; people see meanwhile how the pod is."""
    pod = deleted()
    decision = delete_lower(pod, lower(pod, RAN), BELOW, asked=False)
    assert [type(one) for one in decision.wanted] == [Patched]


def test_a_status_comes_up_while_the_pod_ends() -> None:
    """After the deletion was sent; once it says so above, nothing is left to write."""
    pod = deleted()
    assert [type(one) for one in delete_lower(pod, lower(pod, RAN), BELOW, asked=True).wanted] == [Absent, Patched]
    assert delete_lower(pod, lower(pod, {"phase": "Pending"}, grace=30), BELOW, asked=True).wanted == ()


def test_a_plain_pod_goes_without_another_write() -> None:
    """Nobody waits for its phase."""
    wanted = remove_upper(deleted(status=RAN), None, NOW).wanted
    assert wanted == (Absent(ABOVE, "Pod-web", "its lower pod is gone", 0),)


@pytest.mark.parametrize(
    "more",
    [
        {"finalizers": ["example.com/hold"]},
        {"spec": {"restartPolicy": "Never"}},
        {"spec": {"restartPolicy": "OnFailure"}},
    ],
    ids=["finalizer", "Never", "OnFailure"],
)
def test_who_counts_ended_pods_gets_a_terminal_phase_first(more: dict[str, Any]) -> None:
    """Then the object goes."""
    said, gone = remove_upper(deleted(status=RAN, **more), None, NOW).wanted
    assert isinstance(said, Patched)
    assert said.patch.body["status"]["phase"] == "Failed"
    assert said.patch.body["metadata"] == {"uid": "Pod-web"}
    assert isinstance(gone, Absent)


def test_a_deletion_that_was_cut_off_halfway_is_sent_again() -> None:
    """Kubernetes sets the grace period to 0 first and then removes the object: a crash in between leaves it there."""
    assert remove_upper(deleted(0, RAN), None, NOW).wanted == (Absent(ABOVE, "Pod-web", "its lower pod is gone", 0),)


def departing(*pods: Manifest, remembers: int = 1) -> tuple[Entry, LowerWorld]:
    """Return the entry of an upper pod, and a lower where lower pods of that name came and went."""
    here = world()
    lower_world = here.lowers[A]
    lower_world.pods = Cache(digest_below, remembers=remembers)
    for pod in pods:
        put(lower_world.pods, pod)
        drop(lower_world.pods, "web")
    return put(lower_world.upper_pods, upper_pod()), lower_world


def test_last_words_are_the_pods_own() -> None:
    """Those of an older pod of that name are another's, and those that are forgotten are none."""
    mine, older = twin(upper_pod(), SUCCEEDED), twin(upper_pod(uid="older"), SUCCEEDED)
    last = last_known_status(*departing(mine))
    assert last is not None
    assert last.phase == "Succeeded"
    assert last_known_status(*departing(older)) is None
    assert last_known_status(*departing(mine, remembers=0)) is None
    assert last_known_status(*departing()) is None


def test_a_pod_has_run_when_either_side_says_so() -> None:
    """A lower pod that was gone before its status came up ran all the same."""
    assert has_run(*departing(twin(upper_pod(), RAN)))
    assert not has_run(*departing(twin(upper_pod())))
    assert not has_run(*departing(twin(upper_pod(uid="older"), RAN)))
    assert not has_run(*departing())
    upper, lower_world = departing()
    assert has_run(put(lower_world.upper_pods, upper_pod(status=RAN)), lower_world)
    assert not has_run(upper, lower_world)
