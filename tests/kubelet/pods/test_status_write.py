"""Tests of the write of an upper pod's status: its target and its preconditions."""

import pytest
from podviewkit import status_write
from worldkit import make_upper_pod

from tensile.objects import POD, UPPER, Manifest, Ref

POD_ABOVE = make_upper_pod(resourceVersion="7")


def written(status: Manifest) -> Manifest:
    """Return the body of a write."""
    body: Manifest = status_write(POD_ABOVE, {"status": status}, "why").patch.body
    return body


def test_a_write_with_a_phase_has_the_resource_version_as_its_precondition() -> None:
    """A write that was already being sent must not revert a phase that another writer has set."""
    for phase in ("Pending", "Running", "Failed"):
        fence = {"uid": POD_ABOVE["metadata"]["uid"], "resourceVersion": "7"}
        assert written({"phase": phase}) == {"metadata": fence, "status": {"phase": phase}}


@pytest.mark.parametrize("status", ["True", "False"])
def test_a_write_with_a_disruption_target_has_the_resource_version_as_its_precondition(status: str) -> None:
    """An eviction sets the condition and deletes the pod; an outdated value would hide the eviction."""
    status_body = {"conditions": [{"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": status}]}
    fence = {"uid": POD_ABOVE["metadata"]["uid"], "resourceVersion": "7"}
    assert written(status_body) == {"metadata": fence, "status": status_body}


def test_a_write_without_a_phase_has_only_the_uid_as_its_precondition() -> None:
    """It succeeds despite other writes, as long as the pod is the same."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert written(ready) == {"metadata": {"uid": POD_ABOVE["metadata"]["uid"]}, "status": ready}


def test_a_status_write_contains_its_target_and_its_reason() -> None:
    """It also records whether it was requested, and whether it is a loss that a restored store may explain."""
    found = status_write(POD_ABOVE, {"status": {"phase": "Failed"}}, "why", requested=False, lost=True)
    assert (found.ref, found.subresource) == (Ref(UPPER, POD, "default", "web"), "status")
    assert found.patch.media == "strategic-merge-patch"
    assert (found.reason, found.requested, found.after_restore) == ("why", False, True)
