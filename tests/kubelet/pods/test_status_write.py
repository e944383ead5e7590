"""The write of an upper pod's status: to whom it is, and what may not have happened meanwhile."""

import pytest
from podviewkit import status_write
from worldkit import upper_pod

from tensile.objects import POD, UPPER, Manifest, Ref

POD_ABOVE = upper_pod(resourceVersion="7")


def written(status: Manifest) -> Manifest:
    """Return the body of a write."""
    body: Manifest = status_write(POD_ABOVE, {"status": status}, "why").patch.body
    return body


def test_a_phase_holds_only_while_nobody_else_has_written() -> None:
    """An end that was told meanwhile must not be taken back by what was on its way then."""
    for phase in ("Pending", "Running", "Failed"):
        fence = {"uid": POD_ABOVE["metadata"]["uid"], "resourceVersion": "7"}
        assert written({"phase": phase}) == {"metadata": fence, "status": {"phase": phase}}


@pytest.mark.parametrize("status", ["True", "False"])
def test_what_says_of_a_disruption_holds_only_while_nobody_else_has_written(status: str) -> None:
    """An eviction says it, and deletes the pod: a word from before would have it look like somebody's will."""
    said = {"conditions": [{"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": status}]}
    fence = {"uid": POD_ABOVE["metadata"]["uid"], "resourceVersion": "7"}
    assert written(said) == {"metadata": fence, "status": said}


def test_what_says_no_phase_comes_through_whoever_else_writes() -> None:
    """As long as the pod is the same one."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert written(ready) == {"metadata": {"uid": POD_ABOVE["metadata"]["uid"]}, "status": ready}


def test_it_is_to_the_pods_status_and_says_why() -> None:
    """And whether somebody asked for it, or a store was restored."""
    found = status_write(POD_ABOVE, {"status": {"phase": "Failed"}}, "why", asked=False, lost=True)
    assert (found.ref, found.subresource) == (Ref(UPPER, POD, "default", "web"), "status")
    assert found.patch.media == "strategic-merge-patch"
    assert (found.reason, found.requested, found.after_rollback) == ("why", False, True)
