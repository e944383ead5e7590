"""Tests of the end of a deleted pod: the deletion of the lower pod, and the last status of the upper pod."""

from datetime import UTC, datetime
from typing import Any

import pytest
from podviewkit import delete_lower, remove_upper
from worldkit import A, delete_observed, make_lower_pod, make_upper_pod, make_world, put

from tensile.kube.store import Cache, Entry
from tensile.kubelet.pods.deletion import has_run, last_known_status
from tensile.objects import POD, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Patched
from tensile.reconcile.pods.index import transform_lower_pod
from tensile.reconcile.world import LowerWorld

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ABOVE = Ref(UPPER, POD, "default", "web")
BELOW = Ref(A, POD, "default", "web")
RAN = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
SUCCEEDED = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}


def deleted(grace: int = 30, status: Manifest | None = None, **more: Any) -> Manifest:
    """Return an upper pod that is being deleted."""
    spec = more.pop("spec", None)
    return make_upper_pod(
        spec=spec, status=status, deletionTimestamp="2026-03-01T12:00:30Z", deletionGracePeriodSeconds=grace, **more
    )


def lower(of: Manifest, status: Manifest | None = None, grace: int | None = None) -> Entry:
    """Store its lower pod, which is terminating if a grace period is given."""
    meta = {} if grace is None else {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": grace}
    return put(make_world().lowers[A].pods, make_lower_pod(of, status, **meta))


def test_an_unrequested_deletion_only_mirrors_the_status() -> None:
    """The guard decides about the lower pod elsewhere; until then its status is still reported."""
    pod = deleted()
    decision = delete_lower(pod, lower(pod, RAN), BELOW, requested=False)
    assert [type(one) for one in decision.wanted] == [Patched]


def test_the_status_is_mirrored_while_the_pod_terminates() -> None:
    """It follows the deletion, and a status that is already reported causes no write."""
    pod = deleted()
    assert [type(one) for one in delete_lower(pod, lower(pod, RAN), BELOW, requested=True).wanted] == [Absent, Patched]
    assert delete_lower(pod, lower(pod, {"phase": "Pending"}, grace=30), BELOW, requested=True).wanted == ()


def test_a_plain_pod_is_removed_without_a_status_write() -> None:
    """No controller waits for its phase."""
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
def test_a_pod_that_controllers_count_gets_a_terminal_phase_before_its_removal(more: dict[str, Any]) -> None:
    """The phase is Failed, and the status write has the UID as its precondition."""
    status_write, gone = remove_upper(deleted(status=RAN, **more), None, NOW).wanted
    assert isinstance(status_write, Patched)
    assert status_write.patch.body["status"]["phase"] == "Failed"
    assert status_write.patch.body["metadata"] == {"uid": "Pod-web"}
    assert isinstance(gone, Absent)


def test_an_interrupted_deletion_is_sent_again() -> None:
    """Kubernetes sets the grace period to 0 before it removes the object, and a crash in between leaves it."""
    assert remove_upper(deleted(0, RAN), None, NOW).wanted == (Absent(ABOVE, "Pod-web", "its lower pod is gone", 0),)


def departing(*pods: Manifest, remembers: int = 1) -> tuple[Entry, LowerWorld]:
    """Return the entry of an upper pod, and a lower in which these lower pods of its name were removed."""
    world = make_world()
    lower_world = world.lowers[A]
    lower_world.pods = Cache(transform_lower_pod, remembers=remembers)
    for pod in pods:
        put(lower_world.pods, pod)
        delete_observed(lower_world.pods, "web")
    return put(lower_world.upper_pods, make_upper_pod()), lower_world


def test_the_last_known_status_is_that_of_the_pods_own_lower_pod() -> None:
    """The status of an older pod of the name does not count, and a forgotten one is not known."""
    mine, older = make_lower_pod(make_upper_pod(), SUCCEEDED), make_lower_pod(make_upper_pod(uid="older"), SUCCEEDED)
    last = last_known_status(*departing(mine))
    assert last is not None
    assert last.phase == "Succeeded"
    assert last_known_status(*departing(older)) is None
    assert last_known_status(*departing(mine, remembers=0)) is None
    assert last_known_status(*departing()) is None


def test_a_pod_has_run_if_the_status_of_either_side_reports_it() -> None:
    """A lower pod may have been removed before its status was mirrored."""
    assert has_run(*departing(make_lower_pod(make_upper_pod(), RAN)))
    assert not has_run(*departing(make_lower_pod(make_upper_pod())))
    assert not has_run(*departing(make_lower_pod(make_upper_pod(uid="older"), RAN)))
    assert not has_run(*departing())
    upper, lower_world = departing()
    assert has_run(put(lower_world.upper_pods, make_upper_pod(status=RAN)), lower_world)
    assert not has_run(upper, lower_world)
