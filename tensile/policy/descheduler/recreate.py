"""The rule that creates a pod without a controller again from its backup Secret.

The descheduler writes the backup and then evicts the pod, for a drain too. This rule waits until the old pod is gone,
creates the new one, and deletes the Secret once the new pod exists. Each step follows from the Secrets and pods alone,
so that after a crash at any point another engine continues from there. No pod is lost: while the new pod is refused, or
its name is taken, the Secret stays and an event says why. None is created twice, as the new pod has the old one's name.
A pod that a user deletes while it is backed up is not created again.
"""

from collections.abc import Iterator
from datetime import timedelta

from tensile.kube.cluster import Patch
from tensile.kube.store import Delta, Entry
from tensile.names import WITHDRAWN, ProblemReason
from tensile.objects import POD, UPPER, Ref, as_read, metadata, timestamp
from tensile.policy.descheduler.limits import is_emptied
from tensile.policy.descheduler.plan import candidates
from tensile.policy.descheduler.replacement import BACKUP, PodBackup, backup_in, backup_ref
from tensile.reconcile.copies import BoundPod, bound
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Patched, Present, Watch
from tensile.reconcile.ownership import conflict
from tensile.reconcile.world import REMAKING, Key, Problem, World

REFUSED: ProblemReason = "RecreateFailed"
"""On a Secret: the pod in it, which left its node, cannot be created again yet. Remedy: see the message; delete the
Secret to give the pod up."""
_LOOK = 30.0
"""Seconds between checks of a pod that has not left yet, or has a problem."""
_SOON = 2.0
"""Seconds until the next check whether the watches have told of all pods; longer than `plan` waits."""
_WITHDRAWN_FOR = timedelta(minutes=2)
"""How long a backup outlasts the reason for it: longer than an eviction that was sent can be in flight."""


class RecreateRule:
    """One key per backup Secret, in the queue of the first lower cluster.

    The pod's own lower cluster may leave the topology before the pod is created again.
    """

    name = REMAKING

    def watches(self) -> tuple[Watch, ...]:
        """Watch the backup Secrets, the pods that they back up, and the re-created pods."""
        return (
            Watch("upper.secrets", _secret),
            Watch("upper_pods", _old, facts=("terminal", "terminating", "disrupted")),
            Watch("upper.remade", _new),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of all backups in one lower's queue, and in the others those with a reported problem."""
        yield from [key for key in world.problems if key.rule == REMAKING and key.lower == lower != world.speaker]
        for secret in world.upper.secrets if lower == world.speaker else ():
            if secret.name.startswith(BACKUP):
                yield Key(REMAKING, lower, secret.namespace, secret.name)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the next step of a backup; nothing if another lower's queue handles it."""
        secret = world.upper.secrets.get(key.namespace, key.name)
        kept = backup_in(secret, world.owner) if secret is not None else None
        if key.lower != world.speaker or secret is None or kept is None:
            return Decision()
        if not all(lower.upper_pods.synced for lower in world.lowers.values()):
            return Decision(requeue_after=_SOON)  # a cache that has synced wakes only the queue of its own lower
        found = bound(kept.uid, world)
        if found is not None:
            return _while_it_exists(found, secret, kept, world)
        return _once_it_is_gone(key, secret, kept, world)


def _while_it_exists(found: BoundPod, secret: Entry, kept: PodBackup, world: World) -> Decision:
    """Keep the backup as long as the pod has to leave, and for a while after that."""
    pod, lower = found
    if pod.facts.terminating and pod.facts.disrupted:
        return Decision()  # it was evicted, and not deleted by a user: its object is removed later
    if pod.facts.terminating or pod.facts.terminal:
        return Decision((_deleted(secret, "a user deleted the pod, or it has terminated"),))
    is_known = lower.pods.synced and world.upper.nodes.synced
    if not is_known or (kept.withdrawn is None and _has_to_leave(found, world)):
        return Decision(requeue_after=_LOOK)
    if kept.withdrawn is None:
        return Decision((_withdrawn(secret, world),), requeue_after=_LOOK)
    if world.now - kept.withdrawn < _WITHDRAWN_FOR:
        return Decision(requeue_after=_LOOK)
    return Decision((_deleted(secret, "the pod does not have to be evicted any more"),))


def _has_to_leave(found: BoundPod, world: World) -> bool:
    """Report whether the pod is to be evicted, now or when its turn comes."""
    pod, lower = found
    policy = world.topology.descheduler
    is_asked = is_emptied(lower, world) if lower.is_drained else policy.enabled
    if not is_asked or policy.dry_run or not policy.recreate_bare_pods:
        return False
    return any(one.upper.uid == pod.uid for one in candidates(lower, world))


def _once_it_is_gone(key: Key, secret: Entry, kept: PodBackup, world: World) -> Decision:
    """Create the new pod, and delete the Secret once the pod exists."""
    if kept.pod is None:
        words = f"Secret {secret.namespace}/{secret.name} does not contain a pod: correct it, or delete it"
        return Decision(problem=Problem(REFUSED, words), requeue_after=_LOOK)
    ref = Ref(UPPER, POD, secret.namespace, metadata(kept.pod)["name"])
    made = world.upper.remade.get(ref.namespace, ref.name)
    if made is not None and made.facts == kept.uid:
        return Decision((_deleted(secret, "the pod in it was created again"),))
    if made is not None and made.uid == kept.uid:
        return Decision(requeue_after=_SOON)  # the watch on re-created pods has not told yet that it is gone
    if made is not None:
        problem = conflict(ref)
        return Decision((_refusal(secret, problem),), problem=problem, requeue_after=_LOOK)
    known = world.problems.get(key)
    told = (_refusal(secret, known),) if known is not None else ()
    wanted = Present(ref, kept.pod, "it was evicted, and no controller creates it again")
    return Decision((*told, wanted))


def _refusal(secret: Entry, problem: Problem) -> EmitEvent:
    """Return the event on a Secret that says what prevents the pod's creation."""
    words = f"the pod in this Secret cannot be created yet (to abandon the pod, delete the Secret): {problem.message}"
    return EmitEvent(_ref(secret), secret.uid, REFUSED, words)


def _withdrawn(secret: Entry, world: World) -> Patched:
    """Return the patch that records since when a Secret is not needed, if it is unchanged since this decision."""
    marks = {WITHDRAWN: timestamp(world.now)}
    patch = Patch("merge-patch", {"metadata": {**as_read(secret.manifest()), "annotations": marks}})
    return Patched(_ref(secret), patch, "the pod does not have to be evicted any more")


def _deleted(secret: Entry, reason: str) -> Absent:
    """Return the deletion of the Secret, if it is unchanged since this decision."""
    return Absent(_ref(secret), secret.uid, reason, version=str(secret.version))


def _ref(secret: Entry) -> Ref:
    return backup_ref(secret.namespace, secret.name.removeprefix(BACKUP))


def _secret(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name.startswith(BACKUP) and lower == world.speaker:
        yield Key(REMAKING, lower, delta.entry.namespace, delta.entry.name)


def _old(world: World, _lower: str, delta: Delta) -> Iterator[Key]:
    yield from _of(world, delta.entry, delta.entry.uid)


def _new(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    for entry in delta if lower == world.speaker else ():
        if entry is not None:
            yield from _of(world, entry, entry.facts)


def _of(world: World, pod: Entry, pod_uid: str) -> Iterator[Key]:
    """Yield the key of the Secret that backs up the pod of a UID, if it exists."""
    name = BACKUP + pod_uid
    if pod_uid and world.upper.secrets.get(pod.namespace, name) is not None:
        yield Key(REMAKING, world.speaker, pod.namespace, name)
