"""Tests of statuses that the engine sets itself: pending with a reason, lost, and unreachable."""

from typing import Any

import pytest
from podkit import EARLIER, NOW, conditions, exited, patched, pod, running, stored_condition
from podviewkit import lost, pending_because, unreachable

LATER = "2026-03-01T13:00:00Z"
MIRRORED = "tensile-kube.io/Mirrored"
RUNNING = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "podIPs": [{"ip": "10.0.0.1"}],
    "containerStatuses": [running()],
    "conditions": [stored_condition("Ready"), stored_condition("ContainersReady"), stored_condition("PodScheduled")],
}


def test_a_pod_that_is_not_mirrored_has_the_reason_in_its_status() -> None:
    """The reason is in the condition Mirrored, and in the fields that kubectl prints."""
    body = pending_because(pod(status={"phase": "Pending"}), "NameConflict", "a pod is there", NOW)
    status = body["status"]
    assert (status["reason"], status["message"]) == ("NameConflict", "a pod is there")
    assert "phase" not in status
    by_type = conditions(body)
    assert by_type[MIRRORED] == {
        "type": MIRRORED,
        "status": "False",
        "reason": "NameConflict",
        "message": "a pod is there",
        "lastTransitionTime": NOW,
    }
    assert by_type["PodReadyToStartContainers"]["status"] == "False"


def test_an_unchanged_pending_reason_is_not_written_again() -> None:
    """Another reason is written, and keeps the time of the transition."""
    upper = pod(status={"phase": "Pending"})
    after = patched(upper, pending_because(upper, "NameConflict", "m", NOW))
    assert pending_because(after, "NameConflict", "m", LATER) is None
    by_type = conditions(pending_because(after, "QuotaExceeded", "m", LATER))
    assert by_type[MIRRORED]["reason"] == "QuotaExceeded"
    assert by_type[MIRRORED]["lastTransitionTime"] == NOW


def test_a_pod_without_a_phase_becomes_pending() -> None:
    """The API sets the phase by default, but a pod in memory may have none."""
    assert pending_because(pod(), "R", "m", NOW)["status"]["phase"] == "Pending"


def test_a_running_pod_does_not_become_pending() -> None:
    """A problem of the engine never sets the phase back."""
    assert "phase" not in pending_because(pod(status=RUNNING), "R", "m", NOW)["status"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_gets_no_status_of_the_engine(phase: str) -> None:
    """Its last status is kept, whatever happens to its lower pod or cluster."""
    upper = pod(status={**RUNNING, "phase": phase})
    assert pending_because(upper, "R", "m", NOW) is None
    assert lost(upper, NOW) is None
    assert unreachable(upper, NOW) is None


def test_a_lost_pod_fails() -> None:
    """It is not ready and has no address, its containers are terminated, and it counts as disrupted."""
    body = lost(pod(status=RUNNING), NOW)
    status = body["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "LowerPodLost")
    assert (status["podIP"], status["podIPs"]) == (None, None)
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    by_type = conditions(body)
    assert {kind: one["status"] for kind, one in by_type.items()} == {
        "Ready": "False",
        "ContainersReady": "False",
        "DisruptionTarget": "True",
    }
    assert by_type["DisruptionTarget"]["reason"] == "LowerPodLost"
    assert by_type["Ready"]["reason"] == "PodFailed"
    assert status["message"] == by_type["DisruptionTarget"]["message"]
    assert "another client deleted the pod" in status["message"]


@pytest.mark.parametrize("make_patch", [lost, unreachable])
def test_a_lost_or_unreachable_pod_is_written_once(make_patch: Any) -> None:
    """The status after the write needs no other write."""
    upper = pod(status=RUNNING)
    assert make_patch(patched(upper, make_patch(upper, NOW)), LATER) is None


def test_a_known_disruption_keeps_its_reason() -> None:
    """LowerPodDeleted or an eviction happened first and is more specific; a False condition is replaced."""
    upper = pod(
        status={**RUNNING, "conditions": [stored_condition("DisruptionTarget", reason="EvictionByEvictionAPI")]}
    )
    assert "DisruptionTarget" not in conditions(lost(upper, NOW))
    denied = pod(status={**RUNNING, "conditions": [stored_condition("DisruptionTarget", "False")]})
    assert conditions(lost(denied, NOW))["DisruptionTarget"]["status"] == "True"


def test_ended_containers_of_a_lost_pod_keep_their_exit() -> None:
    """Only the end of running containers is unknown."""
    upper = pod({"containers": [{"name": "a"}, {"name": "b"}]}, {"containerStatuses": [exited("a", 3), running("b")]})
    first, second = lost(upper, NOW)["status"]["containerStatuses"]
    assert first == exited("a", 3)
    assert second["state"]["terminated"]["exitCode"] == 137


def test_a_pod_that_is_being_deleted_is_never_lost() -> None:
    """Its lower pod was deleted on request."""
    assert lost(pod(status=RUNNING, deletionTimestamp=NOW), NOW) is None


def test_an_unreachable_pod_is_only_marked_unready() -> None:
    """Phase, containers and addresses are kept as they were last observed."""
    body = unreachable(pod(status=RUNNING), NOW)
    assert body["status"].keys() == {"conditions"}
    by_type = conditions(body)
    assert by_type.keys() == {"Ready", "ContainersReady"}
    for one in by_type.values():
        assert (one["status"], one["reason"], one["lastTransitionTime"]) == ("False", "LowerUnreachable", NOW)
        assert "does not answer" in one["message"]


def test_an_unreachable_pod_that_was_not_ready_keeps_its_transition_time() -> None:
    """Only the reason changes, because it was not ready before."""
    upper = pod(
        status={"phase": "Running", "conditions": [stored_condition("Ready", "False", reason="ContainersNotReady")]}
    )
    by_type = conditions(unreachable(upper, NOW))
    assert by_type.keys() == {"Ready"}
    assert (by_type["Ready"]["reason"], by_type["Ready"]["lastTransitionTime"]) == ("LowerUnreachable", EARLIER)


def test_an_unreachable_pod_without_conditions_is_not_written() -> None:
    """No readiness conditions are added to a pod that was never reported."""
    assert unreachable(pod(status={"phase": "Pending"}), NOW) is None
    assert unreachable(pod(), NOW) is None
