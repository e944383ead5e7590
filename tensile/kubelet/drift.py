"""What somebody did to a lower pod that Kubernetes lets nobody take back: it is said above, since it cannot be undone.

Everything else that is changed below is put back. Of these three it is known whose they are: ephemeral containers have
names, and who wrote a field last is in the API's book-keeping; what admission below added with our own write is ours.
"""

from datetime import datetime

from tensile.kubelet.conditions import condition
from tensile.kubelet.place import Placement
from tensile.kubelet.scheduling_fields import lower_tolerations
from tensile.names import IN_STEP
from tensile.objects import Manifest, timestamp
from tensile.reconcile.observed import others_wrote
from tensile.reconcile.tolerations import subject

CHANGED_BELOW = "ChangedBelow"
"""The reason of the condition and the event."""
_LONGEST = 1024


def drift(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> str:
    """Say what somebody has done to a lower pod for good, "" for nothing."""
    found = (
        *_deadline(upper_pod, lower_pod),
        *_tolerations(upper_pod, lower_pod, place),
        *_added(upper_pod, lower_pod),
    )
    return ", ".join(found)


def changed_below(upper_pod: Manifest, words: str, lower: str, now: datetime) -> Manifest:
    """Make the condition that says so."""
    message = f"somebody changed the pod in lower cluster {lower}, and Kubernetes lets nobody take it back: {words}"
    return condition(upper_pod, IN_STEP, "False", reason=CHANGED_BELOW, message=message[:_LONGEST], now=timestamp(now))


def _deadline(upper_pod: Manifest, lower_pod: Manifest) -> list[str]:
    """Name a deadline that is earlier than above: it can only shrink."""
    want, have = upper_pod["spec"].get("activeDeadlineSeconds"), lower_pod["spec"].get("activeDeadlineSeconds")
    earlier = have is not None and (want is None or have < want)
    if not earlier or not others_wrote(lower_pod, ("f:spec", "f:activeDeadlineSeconds")):
        return []
    return [f"activeDeadlineSeconds is {have}"]


def _tolerations(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> list[str]:
    """Name tolerations that were added: none can be removed."""
    if not others_wrote(lower_pod, ("f:spec", "f:tolerations")):
        return []
    wanted = {subject(one) for one in lower_tolerations(upper_pod, place)}
    return [
        f"toleration of {one.get('key') or 'everything'} added"
        for one in lower_pod["spec"].get("tolerations") or ()
        if subject(one) not in wanted and not _by_admission(one)
    ]


def _by_admission(toleration: Manifest) -> bool:
    """Say whether Kubernetes adds a toleration to every pod."""
    return str(toleration.get("key", "")).startswith("node.kubernetes.io/")


def _added(upper_pod: Manifest, lower_pod: Manifest) -> list[str]:
    """Name ephemeral containers that the upper pod does not have: none goes away again."""
    known = {one["name"] for one in upper_pod["spec"].get("ephemeralContainers") or ()}
    names = [one["name"] for one in lower_pod["spec"].get("ephemeralContainers") or ()]
    return [f"ephemeral container {name} added" for name in names if name not in known]
