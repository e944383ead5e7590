"""Keeps a running lower pod's spec in step with its upper pod's: one write for each kind of change.

Each holds only for the lower pod of that UID, and none holds up another: a policy below that forbids an image must not
keep a debug container away. What the lower cluster refuses is said on the upper pod, which runs on as it is.
"""

from datetime import datetime

from tensile.cluster import Patch
from tensile.kubelet.conditions import condition
from tensile.kubelet.place import Placement
from tensile.kubelet.podchanges import ephemeral_patch, image_patch, resize_patch, toleration_patch
from tensile.kubelet.statuspatch import conditions_of
from tensile.names import IN_STEP
from tensile.objects import Manifest, Ref, metadata, timestamp
from tensile.reconcile.desired import Patched
from tensile.world import Problem

NOT_IN_STEP = "ChangeNotApplied"
"""The reason of the event that tells of a change which does not come through."""
_RESIZE = "resize"
_DEBUG = "ephemeralcontainers"
_LONGEST = 1024


def changes_below(upper_pod: Manifest, lower_pod: Manifest, ref: Ref, place: Placement) -> list[Patched]:
    """Give the writes that bring the lower pod (`ref`) to the upper pod's spec; [] when it has that."""
    found = (
        ("", image_patch(upper_pod, lower_pod), "images or deadline differ from the upper pod's"),
        ("", toleration_patch(upper_pod, lower_pod, place), "tolerations were added to the upper pod"),
        (_RESIZE, resize_patch(upper_pod, lower_pod), "resources differ from the upper pod's"),
        (_DEBUG, ephemeral_patch(upper_pod, lower_pod, place), "ephemeral containers were added to the upper pod"),
    )
    return [
        Patched(ref, _fenced(body, lower_pod), reason, subresource, shown=True, apart=True)
        for subresource, body, reason in found
        if body is not None
    ]


def changes_images(change: Patched) -> bool:
    """Say whether a write of `changes_below` sends images, and with them the note of what was sent."""
    return "metadata" in change.patch.body and "annotations" in change.patch.body["metadata"]


def adds_containers(change: Patched) -> bool:
    """Say whether a write of `changes_below` adds ephemeral containers, which may need what other pods do not."""
    return change.subresource == _DEBUG


def in_step(
    upper_pod: Manifest, problem: Problem | None, lower: str, now: datetime, *, waiting: bool
) -> Manifest | None:
    """Give the condition that says what keeps a change out of `lower`; None where it should be absent.

    While a change is on its way (`waiting`) and nothing has been said against it, the condition stays as it is.
    """
    if problem is None:
        return conditions_of(upper_pod).get(IN_STEP) if waiting else None
    message = f"a change of this pod is not in lower cluster {lower}: {problem.message}"[:_LONGEST]
    return condition(upper_pod, IN_STEP, "False", reason=problem.reason, message=message, now=timestamp(now))


def _fenced(body: Manifest, lower_pod: Manifest) -> Patch:
    """Make the patch, for that very pod; a list that is replaced whole must not have changed since."""
    seen = metadata(lower_pod)
    fence = {"uid": seen["uid"]}
    if "tolerations" in body["spec"]:
        fence["resourceVersion"] = seen["resourceVersion"]
    return Patch("strategic-merge-patch", {**body, "metadata": {**body.get("metadata", {}), **fence}})
