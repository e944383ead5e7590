"""Helpers for the tests of adoption and of namespace mapping: a storage class, and nodes whose owner is gone."""

from enginekit import A, Edit, EngineHarness, edit_lower
from storekit import class_name

from tensile.names import OWNER, Owner

UNKNOWN = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "stopped"}


def map_storage_class(harness: EngineHarness) -> Edit:
    """Map a storage class of the upper cluster to one of lower-a."""
    return edit_lower(A, storageClasses={class_name(harness, "goes"): class_name(harness, "disk")})


async def wait_for_adoption(harness: EngineHarness, owner: Owner) -> None:
    """Set the nodes' Ready condition to Unknown, as Kubernetes does, and wait until an owner has adopted them."""
    for node in harness.nodes.values():
        await harness.upper.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [UNKNOWN]}}, "strategic")
    for node in harness.nodes.values():
        await harness.upper.until(f"/api/v1/nodes/{node}", lambda one: one["metadata"]["labels"][OWNER] == owner.mark)
