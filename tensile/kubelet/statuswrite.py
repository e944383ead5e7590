"""The one write by which an upper pod's status changes.

It holds only while the pod is still the one of that UID. What says a phase holds only while nobody has written to the
pod since, because two keys may say one, and a write that took its time must not take back an end that was told
meanwhile; so does what says of a disruption, because an eviction says it too, just before it deletes the pod. What says
neither comes through whoever else writes: it says nothing that a later look does not put right.
"""

from tensile.cluster import Patch
from tensile.kubelet.conditions import DISRUPTION
from tensile.objects import POD, UPPER, Manifest, Ref, metadata
from tensile.reconcile.desired import Patched


def status_write(
    upper_pod: Manifest, body: Manifest, reason: str, *, asked: bool = True, lost: bool = False
) -> Patched:
    """Make the write of {"status": ...}."""
    meta = metadata(upper_pod)
    fields = ("uid", "resourceVersion") if _is_shared(body["status"]) else ("uid",)
    fence = {field: meta[field] for field in fields if field in meta}
    patch = Patch("strategic-merge-patch", {"metadata": fence, **body})
    return Patched(Ref(UPPER, POD, meta["namespace"], meta["name"]), patch, reason, "status", asked=asked, lost=lost)


def _is_shared(status: Manifest) -> bool:
    """Say whether a status has what others write as well."""
    return "phase" in status or any(one["type"] == DISRUPTION for one in status.get("conditions", ()))
