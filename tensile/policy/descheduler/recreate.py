"""The rule that re-creates a pod without a controller from its backup Secret.

It waits until the old pod has left, creates the new one, and deletes the Secret once the new pod exists. Each step
follows from the Secrets and pods alone, so that after a crash at any point another engine continues from there. No pod
is lost: while the new pod is refused, or its name is taken, the Secret stays and an event says why. A pod that a user
deletes while it is backed up is not re-created, and a pod does not leave once the reason has gone.
"""

from collections.abc import Iterator
from datetime import timedelta

from tensile.kube.store import Delta, Entry
from tensile.kubelet.pods.conditions import DISRUPTION, conditions_of
from tensile.names import PLACE_TAKEN, WITHDRAWN
from tensile.objects import POD, UPPER, Ref, metadata, timestamp
from tensile.policy.descheduler.drain import is_emptied
from tensile.policy.descheduler.records import PREFIX, PodBackup, kept_in, noted, ref_of
from tensile.policy.descheduler.targets import stuck_in
from tensile.reconcile.adoption import REASON as TAKEN
from tensile.reconcile.copies import BoundPod, bound
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Present, Watch
from tensile.reconcile.world import REMAKING, Key, Problem, World

STOPPED = "PodPlaceTaken"
REFUSED = "PodNotMadeAgain"
_LOOK = 30.0
"""Seconds between checks of a pod that has not left yet, or has a problem."""
_SOON = 2.0
"""Seconds until the next check whether all pod caches are synced; longer than `plan` waits."""
_WITHDRAWN_FOR = timedelta(minutes=2)
"""How long a withdrawn Secret stays: longer than an eviction that was sent can be in flight."""
_NOTHING = Decision()


class RecreateRule:
    """One key per backup Secret, in the queue of the first lower cluster.

    The pod's own lower cluster may leave the topology before the pod is re-created.
    """

    name = REMAKING

    def watches(self) -> tuple[Watch, ...]:
        """Watch the backup Secrets, the pods that they back up, and the re-created pods."""
        return (
            Watch("upper.secrets", _secret),
            Watch("upper_pods", _old),
            Watch("upper.remade", _new),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of all backups in one lower's queue, and in the others those with a reported problem."""
        yield from [key for key in world.problems if key.rule == REMAKING and key.lower == lower != world.speaker]
        if lower == world.speaker:
            for entry in world.upper.secrets:
                if entry.name.startswith(PREFIX):
                    yield _key(lower, entry.namespace, entry.name)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the next step of a backup; nothing if another lower's queue handles it."""
        if key.lower != world.speaker:
            return _NOTHING
        secret = world.upper.secrets.get(key.namespace, key.name)
        kept = kept_in(secret, world.owner) if secret is not None else None
        if secret is None or kept is None:
            return _NOTHING
        if not all(lower.upper_pods.synced for lower in world.lowers.values()):
            return Decision(requeue_after=_SOON)  # a cache that has synced wakes only the queue of its own lower
        standing = bound(kept.uid, world)
        if standing is not None:
            return _while_it_stands(standing, secret, kept, world)
        return _in_its_place(key, secret, kept, world)


def _key(lower: str, namespace: str, name: str) -> Key:
    return Key(REMAKING, lower, namespace, name)


def _while_it_stands(standing: BoundPod, secret: Entry, kept: PodBackup, world: World) -> Decision:
    """Keep the backup as long as there is a reason for the pod to leave; other rules evict the pod."""
    pod, lower = standing
    if pod.facts.terminating:
        # An evicted pod gets a terminal phase before its object is removed: that does not mean it is no longer wanted.
        return _NOTHING if _is_disrupted(pod) else Decision((_done(secret, kept, "somebody deleted the pod"),))
    if pod.facts.terminal:
        return Decision((_done(secret, kept, "the pod that it keeps has ended"),))
    if kept.withdrawn is None and (is_emptied(lower, world) or _is_stuck(standing, world)):
        return Decision(requeue_after=_LOOK)
    is_known = lower.pods.synced and world.upper.nodes.synced
    return _withdrawn(secret, kept, world) if is_known else Decision(requeue_after=_LOOK)


def _is_stuck(standing: BoundPod, world: World) -> bool:
    """Report whether the descheduler would evict the pod, now or when its turn comes."""
    policy = world.topology.descheduler
    stuck = stuck_in(standing.lower, world) if policy.enabled and not policy.dry_run else ()
    return any(one.upper.uid == standing.pod.uid for one in stuck)


def _is_disrupted(pod: Entry) -> bool:
    """Report whether a terminating pod was evicted, by condition DisruptionTarget, rather than deleted by a user."""
    return (conditions_of(pod.manifest()).get(DISRUPTION) or {}).get("status") == "True"


def _withdrawn(secret: Entry, kept: PodBackup, world: World) -> Decision:
    """Delete the Secret after a while; if the pod has to leave after all, it then gets a new backup."""
    if kept.withdrawn is None:
        return Decision((noted(secret, WITHDRAWN, timestamp(world.now), "the pod may stay"),), requeue_after=_LOOK)
    if world.now - kept.withdrawn < _WITHDRAWN_FOR:
        return Decision(requeue_after=_LOOK)
    return Decision((_done(secret, kept, "nothing rests on it any more"),))


def _in_its_place(key: Key, secret: Entry, kept: PodBackup, world: World) -> Decision:
    """Create the new pod, and delete the Secret once the pod exists."""
    if kept.pod is None:
        problem = Problem(REFUSED, f"{_named(secret)} does not hold a pod: mend it, or delete it")
        return Decision(problem=problem, requeue_after=_LOOK)
    ref = Ref(UPPER, POD, secret.namespace, metadata(kept.pod)["name"])
    known = world.problems.get(key)
    if kept.taken:
        problem = _stopped(ref, secret)
        return Decision((_told(secret, problem),), problem=problem, requeue_after=_LOOK)
    made = world.upper.remade.get(ref.namespace, ref.name)
    if made is not None and made.facts == kept.uid:
        return Decision((_done(secret, kept, "the pod that it kept is made again"),))
    if made is not None and made.uid == kept.uid:
        return _NOTHING
    if made is not None or (known is not None and known.reason == TAKEN):
        return Decision((noted(secret, PLACE_TAKEN, "true", "another pod has the name of the one that it keeps"),))
    wanted = Present(ref, kept.pod, "it left its node, and has no controller that would make it again")
    return Decision((*_refusal(secret, known), wanted))


def _refusal(secret: Entry, known: Problem | None) -> Iterator[EmitEvent]:
    """Yield an event on the Secret with what prevents the pod's creation; an earlier `STOPPED` no longer applies."""
    if known is not None and known.reason != STOPPED:
        words = f"the pod is kept here and tried again until it is made: {known.message}"
        yield _told(secret, Problem(REFUSED, words))


def _stopped(ref: Ref, secret: Entry) -> Problem:
    words = (
        f"another pod has the name {ref.namespace}/{ref.name} of one that was evicted and is kept in {_named(secret)}: "
        f"delete that Secret to give the pod up; to have it made, remove the other pod and then the annotation "
        f"{PLACE_TAKEN} of the Secret"
    )
    return Problem(STOPPED, words)


def _told(secret: Entry, problem: Problem) -> EmitEvent:
    about = ref_of(secret.namespace, secret.name.removeprefix(PREFIX))
    return EmitEvent(about, secret.uid, problem.reason, problem.message)


def _named(secret: Entry) -> str:
    return f"Secret {secret.namespace}/{secret.name}"


def _done(secret: Entry, kept: PodBackup, reason: str) -> Absent:
    """Return the deletion of the Secret, if it is unchanged since this decision."""
    return Absent(ref_of(secret.namespace, kept.uid), secret.uid, reason, version=str(secret.version))


def _secret(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name.startswith(PREFIX) and lower == world.speaker:
        yield _key(lower, delta.entry.namespace, delta.entry.name)


def _old(world: World, _lower: str, delta: Delta) -> Iterator[Key]:
    yield from _of(world, delta.entry, delta.entry.uid)


def _new(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if lower == world.speaker:
        for entry in delta:
            if entry is not None:
                yield from _of(world, entry, entry.facts)
                yield from _of(world, entry, entry.uid)


def _of(world: World, pod: Entry, pod_uid: str) -> Iterator[Key]:
    """Yield the key of the Secret that backs up the pod of a UID, if it exists."""
    name = PREFIX + pod_uid
    if pod_uid and world.upper.secrets.get(pod.namespace, name) is not None:
        yield _key(world.speaker, pod.namespace, name)
