"""The one write by which an upper pod's status changes."""

from tensile.cluster import Patch
from tensile.objects import POD, UPPER, Manifest, Ref, metadata
from tensile.reconcile.desired import Patched


def status_write(
    upper_pod: Manifest, body: Manifest, reason: str, *, asked: bool = True, lost: bool = False
) -> Patched:
    """Make the write of {"status": ...}, which holds only while the pod is still the one of that UID."""
    meta = metadata(upper_pod)
    patch = Patch("strategic-merge-patch", {"metadata": {"uid": meta["uid"]}, **body})
    return Patched(Ref(UPPER, POD, meta["namespace"], meta["name"]), patch, reason, "status", asked=asked, lost=lost)
