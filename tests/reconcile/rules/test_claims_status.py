"""What a claim above tells of the one below: sizes, growing, and what stands in the way; once, and nobody else's."""

from typing import Any

from storagekit import claim, copy
from worldkit import NOW, stored

from tensile.kube.store import Cache, Entry
from tensile.names import MIRRORED
from tensile.objects import Manifest
from tensile.reconcile.desired import EmitEvent, Patched
from tensile.reconcile.rules import claims
from tensile.reconcile.rules.claims import given_up, told_above
from tensile.reconcile.world import Problem

DENIED = Problem("Forbidden", "only dynamically provisioned pvc can be resized")
PENDING = {"type": "FileSystemResizePending", "status": "True"}
THEIRS = {"type": "example.com/Theirs", "status": "True"}


def upper(**status: Any) -> Manifest:
    """Make a bound claim above with more in its status."""
    made = claim(volume="pvc-claim-data", resourceVersion="7")
    return {**made, "status": made["status"] | status}


def lower(**status: Any) -> Entry:
    """Make a bound claim below with more in its status."""
    made = copy(claim(), "1Gi")
    cache = Cache(claims.digest)
    cache.put(stored({**made, "status": made["status"] | status}, 5))
    found = cache.get("default", "data")
    assert found is not None
    return found


def written(above: Manifest, below: Entry | None, problem: Problem | None = None) -> Manifest:
    """Return the status that is written, which is fenced by UID and version; {} for none."""
    wanted = told_above(above, below, problem, NOW)
    if not wanted:
        return {}
    assert isinstance(wanted[0], Patched)
    body: Manifest = wanted[0].patch.body
    assert (wanted[0].subresource, wanted[0].patch.media) == ("status", "merge-patch")
    assert body["metadata"] == {"uid": "claim-data", "resourceVersion": "7"}
    status: Manifest = body["status"]
    return status


def test_a_claim_that_says_the_same_is_left_alone() -> None:
    """No write where nothing differs."""
    assert written(upper(), lower()) == {}
    assert written(upper(conditions=[THEIRS]), None) == {}


def test_the_size_below_is_the_size_above() -> None:
    """Also one that is larger than what was asked for."""
    assert written(upper(), lower(capacity={"storage": "5Gi"})) == {"capacity": {"storage": "5Gi"}}


def test_growing_is_told_in_all_its_fields() -> None:
    """And what ended below ends above, key by key."""
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


def test_conditions_of_others_stay_where_they_are() -> None:
    """A list is written whole, so all of it is in it."""
    assert written(upper(conditions=[THEIRS]), lower(conditions=[PENDING, THEIRS | {"status": "False"}])) == {
        "conditions": [THEIRS, PENDING]
    }


def test_nothing_is_told_of_a_claim_that_is_not_bound() -> None:
    """Kubernetes writes sizes when it binds; below there is none yet."""
    pending = copy(claim())
    cache = Cache(claims.digest)
    cache.put(stored(pending, 5))
    assert written(upper(conditions=[PENDING]), cache.get("default", "data")) == {}
    unbound = claim(resourceVersion="7")
    assert written(unbound, lower(capacity={"storage": "5Gi"})) == {}


def test_a_problem_is_a_condition_and_one_event() -> None:
    """Told again only when it changes, and taken away when it is over."""
    wanted = told_above(upper(conditions=[THEIRS]), lower(), DENIED, NOW)
    said = {
        "type": MIRRORED,
        "status": "False",
        "reason": "Forbidden",
        "message": DENIED.message,
        "lastProbeTime": None,
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }
    assert isinstance(wanted[0], Patched)
    assert wanted[0].patch.body["status"] == {"conditions": [THEIRS, said]}
    assert isinstance(wanted[1], EmitEvent)
    assert (wanted[1].reason, wanted[1].message, wanted[1].uid) == ("Forbidden", DENIED.message, "claim-data")
    again = upper(conditions=[said | {"lastTransitionTime": "2026-02-01T00:00:00Z"}])
    assert written(again, lower(), DENIED) == {}
    assert len(told_above(again, lower(capacity={"storage": "5Gi"}), DENIED, NOW)) == 1
    assert written(again, lower(), Problem("Other", "reason"))["conditions"][0]["reason"] == "Other"
    assert written(again, lower()) == {"conditions": None}


def test_a_claim_is_given_back_with_an_event() -> None:
    """As provisioners do; the write holds only while nobody has written since."""
    told, patch = given_up(claim(node="lower-a", resourceVersion="7"), DENIED)
    assert isinstance(told, EmitEvent)
    assert isinstance(patch, Patched)
    assert (told.reason, patch.in_plan, patch.subresource) == ("ProvisioningFailed", True, "")
    assert patch.patch.body == [
        {"op": "replace", "path": "/metadata/uid", "value": "claim-data"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "remove", "path": "/metadata/annotations/volume.kubernetes.io~1selected-node"},
    ]
