"""How a deleted pod ends: the lower pod first, a terminal phase where somebody waits for one, the object last.

Nobody else ends a pod that is bound to a virtual node: without this, it would stay Terminating for ever.

Eviction of pods whose lower cluster is out of reach for longer than the topology allows.

Nobody knows how such pods are, and most of them run, so none is evicted unless `unreachable.evictAfter` says so. The
engine deletes the pod above itself and leaves it to no taint: what Kubernetes deletes for its node's sake is nobody's
wish, and the guard would keep the lower pod. The object stays, Terminating, until the cluster has confirmed that its
pod is gone. How long a cluster has been away is what this engine has seen: one that was just started asks anew. What
was never asked, for want of a way there, is not away; nor is what answers that our credential is not good.
"""

from datetime import datetime, timedelta

import orjson

from tensile.kube.store import Entry
from tensile.kubelet.pods.conditions import status_of
from tensile.kubelet.pods.status import ending, evicted, status_write, upper_status
from tensile.names import UNREACHABLE_TAINT
from tensile.objects import POD, UPPER, Manifest, Ref, controller_of, metadata, moment_of, timestamp, tolerates
from tensile.reconcile.desired import Absent, Decision, Told, Wanted
from tensile.reconcile.ownership import upper_uid_of
from tensile.reconcile.world import LowerWorld, World


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
    """Report whether containers of a pod have been seen, above or in the lower pod that is gone by now."""
    departure = lower.pods.departed(lower.namespace(upper.namespace), upper.name)
    facts = departure.facts if departure else None
    return upper.facts.ran or (facts is not None and facts.ran and facts.upper_uid == upper.uid)


def last_words(upper: Entry, lower: LowerWorld) -> Manifest | None:
    """Return the lower pod of an upper one as the watch saw it go, None where that is not remembered."""
    raw = lower.pods.last(lower.namespace(upper.namespace), upper.name)
    last: Manifest | None = orjson.loads(raw) if raw else None
    return last if last is not None and upper_uid_of(last) == upper.uid else None


def _is_too_slow(lower_pod: Manifest, grace: int | None) -> bool:
    """Report whether the lower pod is not ending yet, or has longer for it than the upper one was given."""
    meta = metadata(lower_pod)
    if "deletionTimestamp" not in meta:
        return True
    given = meta.get("deletionGracePeriodSeconds")
    return grace is not None and given is not None and grace < given


EVICTED = "EvictedFromUnreachable"
TAINT = {"key": UNREACHABLE_TAINT, "effect": "NoSchedule"}
"""What a node whose lower cluster is out of reach has: whoever tolerates it would come back to that node."""
_SOONEST = 1.0


def or_evicted(said: Decision, upper_pod: Manifest, lower: LowerWorld, world: World) -> Decision:
    """Return the pod's eviction if it is due, else what is `said` of it, with another look when it will be."""
    left = _left(upper_pod, lower, world)
    if left is None:
        return said
    return _evicted(upper_pod, lower, world) if left <= 0 else said._replace(again=max(left, _SOONEST))


def _left(upper_pod: Manifest, lower: LowerWorld, world: World) -> float | None:
    """Return the seconds until a pod is to be evicted, None where it never is.

    The pod itself has to be that old: what is made again for the same node, past its taint, is not evicted at once,
    over and over.
    """
    after = lower.spec.unreachable.evict_after
    if after is None or not _is_away(lower) or not lower.in_topology or _belongs_there(upper_pod):
        return None
    born = metadata(upper_pod).get("creationTimestamp")
    waited = min(timedelta(seconds=lower.silent), world.now - moment_of(born) if born else after)
    return (after - waited).total_seconds()


def _is_away(lower: LowerWorld) -> bool:
    """Report whether it is the cluster that does not answer, and not we who do not know how to ask it."""
    return lower.tried and not lower.refusal and not lower.is_wrong


def _belongs_there(upper_pod: Manifest) -> bool:
    """Report whether a pod would come back to the same node: a DaemonSet's, or one that tolerates its taint."""
    if controller_of(upper_pod).get("kind") == "DaemonSet":
        return True
    return any(tolerates(one, TAINT) for one in upper_pod["spec"].get("tolerations") or ())


def _evicted(upper_pod: Manifest, lower: LowerWorld, world: World) -> Decision:
    """Return why, and delete the pod with its own grace period."""
    meta = metadata(upper_pod)
    ref = Ref(UPPER, POD, meta["namespace"], meta["name"])
    words = f"lower cluster {lower.name} has not answered for longer than unreachable.evictAfter allows"
    body = evicted(upper_pod, words, timestamp(world.now))
    said = [status_write(upper_pod, body, words)] if body else []
    return Decision((*said, Told(ref, meta["uid"], EVICTED, words), Absent(ref, meta["uid"], words)))
