"""Tests of what an upper claim shows of its lower claim: its sizes, resizes and problems, each once."""

from typing import Any

from storagekit import make_claim, make_lower_claim
from worldkit import NOW, stored_bytes

from tensile.kube.store import Cache, Entry
from tensile.names import MIRRORED
from tensile.objects import Manifest
from tensile.reconcile.desired import EmitEvent, Patched
from tensile.reconcile.rules import claims
from tensile.reconcile.rules.claims import release_node, status_updates
from tensile.reconcile.world import Problem

DENIED = Problem("Forbidden", "only dynamically provisioned pvc can be resized")
PENDING = {"type": "FileSystemResizePending", "status": "True"}
THEIRS = {"type": "example.com/Theirs", "status": "True"}


def upper(**status: Any) -> Manifest:
    """Return a bound upper claim with additional status."""
    made = make_claim(volume="pvc-claim-data", resourceVersion="7")
    return {**made, "status": made["status"] | status}


def lower(**status: Any) -> Entry:
    """Return a bound lower claim with additional status."""
    made = make_lower_claim(make_claim(), "1Gi")
    cache = Cache(claims.transform)
    cache.put(stored_bytes({**made, "status": made["status"] | status}, 5))
    found = cache.get("default", "data")
    assert found is not None
    return found


def written(upper_object: Manifest, lower_entry: Entry | None, problem: Problem | None = None) -> Manifest:
    """Return the status that is patched with preconditions on UID and version, {} for none."""
    wanted = status_updates(upper_object, lower_entry, problem, NOW)
    if not wanted:
        return {}
    assert isinstance(wanted[0], Patched)
    body: Manifest = wanted[0].patch.body
    assert (wanted[0].subresource, wanted[0].patch.media) == ("status", "merge-patch")
    assert body["metadata"] == {"uid": "claim-data", "resourceVersion": "7"}
    status: Manifest = body["status"]
    return status


def test_an_upper_claim_with_the_same_status_is_not_patched() -> None:
    """No patch is sent without a difference."""
    assert written(upper(), lower()) == {}
    assert written(upper(conditions=[THEIRS]), None) == {}


def test_the_capacity_of_the_lower_claim_is_written_to_the_upper_claim() -> None:
    """It may be larger than the request."""
    assert written(upper(), lower(capacity={"storage": "5Gi"})) == {"capacity": {"storage": "5Gi"}}


def test_all_fields_of_a_resize_are_written() -> None:
    """When the resize has ended in the lower cluster, they are removed key by key."""
    growing = {
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        "conditions": [PENDING],
    }
    assert written(upper(), lower(**growing)) == growing
    assert written(upper(**growing), lower()) == {
        "allocatedResources": None,
        "allocatedResourceStatuses": None,
        "conditions": None,
    }
    two = {"storage": "2Gi", "other": "1"}
    assert written(upper(allocatedResources=two), lower(allocatedResources={"storage": "3Gi"})) == {
        "allocatedResources": {"storage": "3Gi", "other": None}
    }


def test_conditions_of_other_clients_stay_unchanged() -> None:
    """The patch replaces the list as a whole, so it contains all conditions."""
    assert written(upper(conditions=[THEIRS]), lower(conditions=[PENDING, THEIRS | {"status": "False"}])) == {
        "conditions": [THEIRS, PENDING]
    }


def test_the_status_of_an_unbound_claim_is_not_patched() -> None:
    """Kubernetes writes sizes when it binds a claim."""
    pending = make_lower_claim(make_claim())
    cache = Cache(claims.transform)
    cache.put(stored_bytes(pending, 5))
    assert written(upper(conditions=[PENDING]), cache.get("default", "data")) == {}
    unbound = make_claim(resourceVersion="7")
    assert written(unbound, lower(capacity={"storage": "5Gi"})) == {}


def test_a_problem_becomes_a_condition_and_one_event() -> None:
    """The condition is written again only if the problem changes, and is removed when it ends."""
    wanted = status_updates(upper(conditions=[THEIRS]), lower(), DENIED, NOW)
    condition = {
        "type": MIRRORED,
        "status": "False",
        "reason": "Forbidden",
        "message": DENIED.message,
        "lastProbeTime": None,
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }
    assert isinstance(wanted[0], Patched)
    assert wanted[0].patch.body["status"] == {"conditions": [THEIRS, condition]}
    assert isinstance(wanted[1], EmitEvent)
    assert (wanted[1].reason, wanted[1].message, wanted[1].uid) == ("Forbidden", DENIED.message, "claim-data")
    again = upper(conditions=[condition | {"lastTransitionTime": "2026-02-01T00:00:00Z"}])
    assert written(again, lower(), DENIED) == {}
    assert len(status_updates(again, lower(capacity={"storage": "5Gi"}), DENIED, NOW)) == 1
    assert written(again, lower(), Problem("Other", "reason"))["conditions"][0]["reason"] == "Other"
    assert written(again, lower()) == {"conditions": None}


def test_a_claim_is_returned_to_the_scheduler_with_an_event() -> None:
    """Provisioners do the same, and the patch requires an unchanged claim."""
    event, patch = release_node(make_claim(node="lower-a", resourceVersion="7"), DENIED)
    assert isinstance(event, EmitEvent)
    assert isinstance(patch, Patched)
    assert (event.reason, patch.in_plan, patch.subresource) == ("ProvisioningFailed", True, "")
    assert patch.patch.body == [
        {"op": "replace", "path": "/metadata/uid", "value": "claim-data"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "remove", "path": "/metadata/annotations/volume.kubernetes.io~1selected-node"},
    ]
