"""Helpers for the tests of adoption and of namespace mapping: a storage class, and nodes whose owner is gone."""

from enginekit import A, Edit, Ground, edit_lower
from storekit import mark

from tensile.names import OWNER, Owner

UNKNOWN = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "stopped"}


def stored(ground: Ground) -> Edit:
    """Map a storage class of the upper cluster to one of lower-a."""
    return edit_lower(A, storageClasses={mark(ground, "goes"): mark(ground, "disk")})


async def nodes_taken(ground: Ground, owner: Owner) -> None:
    """Set the nodes' Ready condition to Unknown, as Kubernetes does, and wait until an owner has adopted them."""
    for node in ground.nodes.values():
        await ground.upper.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [UNKNOWN]}}, "strategic")
    for node in ground.nodes.values():
        await ground.upper.until(f"/api/v1/nodes/{node}", lambda one: one["metadata"]["labels"][OWNER] == owner.mark)
