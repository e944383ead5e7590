"""How a deleted pod ends: the lower pod first, a terminal phase where somebody waits for one, the object last.

Nobody else ends a pod that is bound to a virtual node: without this, it would stay Terminating for ever.
"""

from datetime import datetime

import orjson

from tensile.cache import Entry
from tensile.kubelet.reflection import ending, upper_status
from tensile.kubelet.statuspatch import status_of
from tensile.kubelet.statuswrite import status_write
from tensile.objects import Manifest, Ref, metadata, timestamp
from tensile.reconcile.desired import Absent, Decision, Wanted
from tensile.reconcile.observed import upper_uid_of
from tensile.world import LowerWorld


def withdraw(upper_pod: Manifest, below: Entry, ref: Ref, *, asked: bool) -> Decision:
    """Delete the lower pod with the time that the upper one has left to it, and go on reflecting its status.

    One that nobody `asked` to end is not deleted here, for the guard has a say in it. The deletion itself counts as a
    generation, which is not worth a write of its own.
    """
    lower_pod = below.manifest()
    wanted: list[Wanted] = []
    grace = metadata(upper_pod).get("deletionGracePeriodSeconds")
    if asked and _is_too_slow(lower_pod, grace):
        wanted.append(Absent(ref, below.uid, "the upper pod was deleted", grace))
    observed = status_of(upper_pod).get("observedGeneration") or 0
    status = upper_status(upper_pod, lower_pod, generation=observed)
    if status is not None:
        wanted.append(status_write(upper_pod, status, "the lower pod says so"))
    return Decision(tuple(wanted))


def finalise(upper_pod: Manifest, last: Manifest | None, ref: Ref, now: datetime) -> Decision:
    """Let the object above go, now that its lower pod is certainly gone; `last` is how that one was last seen.

    Controllers that hold a finalizer, and those that count ended pods, wait for a terminal phase; it costs a write, so
    it is written for them only. An object whose grace period is 0 already is kept by its finalizers alone; one without
    any was left behind by a deletion that was cut off halfway, and Kubernetes removes it when it is deleted once more.
    """
    meta = metadata(upper_pod)
    wanted: list[Wanted] = []
    counted = meta.get("finalizers") or upper_pod["spec"].get("restartPolicy", "Always") != "Always"
    status = ending(upper_pod, last, timestamp(now)) if counted else None
    if status is not None:
        wanted.append(status_write(upper_pod, status, "the pod ended"))
    if meta.get("deletionGracePeriodSeconds") != 0 or not meta.get("finalizers"):
        wanted.append(Absent(ref, meta["uid"], "its lower pod is gone", 0))
    return Decision(tuple(wanted))


def has_run(upper: Entry, lower: LowerWorld) -> bool:
    """Say whether containers of a pod have been seen, above or in the lower pod that is gone by now."""
    departure = lower.pods.departed(lower.namespace(upper.namespace), upper.name)
    facts = departure.facts if departure else None
    return upper.facts.ran or (facts is not None and facts.ran and facts.upper_uid == upper.uid)


def last_words(upper: Entry, lower: LowerWorld) -> Manifest | None:
    """Give the lower pod of an upper one as the watch saw it go, None where that is not remembered."""
    raw = lower.pods.last(lower.namespace(upper.namespace), upper.name)
    last: Manifest | None = orjson.loads(raw) if raw else None
    return last if last is not None and upper_uid_of(last) == upper.uid else None


def _is_too_slow(lower_pod: Manifest, grace: int | None) -> bool:
    """Say whether the lower pod is not ending yet, or has longer for it than the upper one was given."""
    meta = metadata(lower_pod)
    if "deletionTimestamp" not in meta:
        return True
    given = meta.get("deletionGracePeriodSeconds")
    return grace is not None and given is not None and grace < given
