"""Tests of the sandbox's provisioner: it creates volumes for claims, expands them, and deletes them."""

from typing import Any

import pytest

from tensile.objects import Manifest
from tensile.sandbox import addons
from tensile.sandbox.addons import VolumeRequest
from tensile.sandbox.apiserver import LOWER_PROVISIONER

FOLDER = "/srv/lower-a/volumes"
CLAIM_PATH = "/api/v1/namespaces/shop/persistentvolumeclaims/data"


def claim(size: str = "1Gi", volume: str = "", has: str = "1Gi", **notes: Any) -> Manifest:
    """Return a claim that waits for a volume on node n-1, or is bound to one; an annotation of None is omitted."""
    basis = {addons.STORAGE_PROVISIONER: LOWER_PROVISIONER, addons.SELECTED_NODE: "n-1"}
    annotations = {key: value for key, value in {**basis, **notes}.items() if value is not None}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "standard",
        "resources": {"requests": {"storage": size}},
        **({"volumeName": volume} if volume else {}),
    }
    status = {"phase": "Bound", "capacity": {"storage": has}} if volume else {"phase": "Pending"}
    meta = {"name": "data", "namespace": "shop", "uid": "u-1", "annotations": annotations}
    return {"metadata": meta, "spec": spec, "status": status}


def volume(phase: str = "Bound", policy: str = "Delete", owner: str = LOWER_PROVISIONER, **meta: str) -> Manifest:
    """Return the volume of that claim, as the apiserver returns it."""
    made = addons.volume(claim(), FOLDER)
    made["metadata"] |= {"annotations": {addons.PROVISIONED_BY: owner}, **meta}
    made["spec"]["persistentVolumeReclaimPolicy"] = policy
    return {**made, "status": {"phase": phase}}


def provisioner_requests(claims: list[Manifest], volumes: list[Manifest]) -> list[VolumeRequest]:
    """Return all requests of the provisioner."""
    return list(addons.volume_requests(claims, volumes, FOLDER))


def test_a_claim_gets_a_volume_on_the_chosen_node() -> None:
    """The volume is bound to this very claim, in a separate folder, with the claim's size and access modes."""
    (request,) = provisioner_requests([claim("3Gi")], [])
    assert request[:2] == ("POST", "/api/v1/persistentvolumes")
    assert request.body is not None
    spec = request.body["spec"]
    assert request.body["metadata"]["name"] == "pvc-u-1"
    assert (spec["capacity"], spec["accessModes"], spec["storageClassName"]) == (
        {"storage": "3Gi"},
        ["ReadWriteOnce"],
        "standard",
    )
    assert spec["hostPath"]["path"] == f"{FOLDER}/pvc-u-1"
    assert {key: spec["claimRef"][key] for key in ("namespace", "name", "uid")} == {
        "namespace": "shop",
        "name": "data",
        "uid": "u-1",
    }
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["n-1"]


@pytest.mark.parametrize(
    "notes",
    [
        {addons.STORAGE_PROVISIONER: "disk.example.com"},
        {addons.STORAGE_PROVISIONER: None},
        {addons.SELECTED_NODE: None},
    ],
    ids=["another provisioner", "no provisioner", "no node yet"],
)
def test_claims_that_do_not_wait_for_this_provisioner_get_no_volume(notes: dict[str, Any]) -> None:
    """Claims of another or no provisioner get none, and neither do claims whose pod is not scheduled yet."""
    assert provisioner_requests([claim(**notes)], []) == []


def test_a_claim_that_is_being_deleted_gets_no_volume() -> None:
    """Its volume would be deleted immediately."""
    leaving = claim()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert provisioner_requests([leaving], []) == []


def test_a_volume_is_created_once() -> None:
    """No further request is made while Kubernetes binds the available volume to its claim."""
    assert provisioner_requests([claim()], [volume("Available")]) == []


def test_a_bound_claim_needs_no_request() -> None:
    """Neither a bound claim nor its volume is changed if the sizes agree."""
    assert provisioner_requests([claim(volume="pvc-u-1")], [volume()]) == []


def test_a_claim_that_requests_more_has_its_volume_expanded_first() -> None:
    """The volume gets the new size before the claim's status does; if both have it, no request is made."""
    requests = provisioner_requests([claim("2Gi", "pvc-u-1")], [volume()])
    assert requests == [
        VolumeRequest("PATCH", "/api/v1/persistentvolumes/pvc-u-1", {"spec": {"capacity": {"storage": "2Gi"}}}),
        VolumeRequest("PATCH", f"{CLAIM_PATH}/status", {"status": {"capacity": {"storage": "2Gi"}}}),
    ]
    grown = volume()
    grown["spec"]["capacity"] = {"storage": "2Gi"}
    assert provisioner_requests([claim("2Gi", "pvc-u-1", has="2Gi")], [grown]) == []


def test_a_released_volume_is_deleted_once() -> None:
    """A released volume with the reclaim policy Delete is deleted, unless it is being deleted already."""
    assert provisioner_requests([], [volume("Released")]) == [
        VolumeRequest("DELETE", "/api/v1/persistentvolumes/pvc-u-1")
    ]
    assert provisioner_requests([], [volume("Released", deletionTimestamp="2026-01-01T00:00:00Z")]) == []


@pytest.mark.parametrize(
    "kept", [volume(), volume("Released", "Retain"), volume("Released", owner="disk.example.com")], ids=str
)
def test_volumes_that_are_used_retained_or_of_another_provisioner_are_kept(kept: Manifest) -> None:
    """Only released volumes of this provisioner with the reclaim policy Delete are deleted."""
    assert provisioner_requests([claim(volume="pvc-u-1")], [kept]) == []
