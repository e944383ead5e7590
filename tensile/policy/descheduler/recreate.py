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
from tensile.policy.descheduler.limits import is_being_drained
from tensile.policy.descheduler.moves import candidates
from tensile.policy.descheduler.replacement import BACKUP, PodBackup, backup_in, backup_ref
from tensile.reconcile.copies import BoundPod, bound
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Patched, Present, Watch
from tensile.reconcile.ownership import conflict
from tensile.reconcile.world import REMAKING, Key, Problem, World

REFUSED: ProblemReason = "RecreateFailed"
"""On a Secret: the pod in it, which left its node, cannot be created again yet. Remedy: see the message; delete the
Secret to give the pod up."""
_CHECK_SECONDS = 30.0
"""Seconds between checks of a pod that has not left yet, or has a problem."""
_RECHECK_SECONDS = 2.0
"""Seconds until the next check whether the watches have reported all pods; longer than `plan` waits."""
_WITHDRAWAL_PERIOD = timedelta(minutes=2)
"""How long a backup outlasts the reason for it: longer than an eviction that was sent can be in flight."""


class RecreateRule:
    """One key per backup Secret, in the queue of the first lower cluster.

    The pod's own lower cluster may leave the topology before the pod is created again.
    """

    name = REMAKING

    def watches(self) -> tuple[Watch, ...]:
        """Watch the backup Secrets, the pods that they back up, and the re-created pods."""
        return (
            Watch("upper.secrets", _on_secret),
            Watch("upper_pods", _on_old_pod, facts=("terminal", "terminating", "disrupted")),
            Watch("upper.remade", _on_new_pod),
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
        backup = backup_in(secret, world.owner) if secret is not None else None
        if key.lower != world.speaker or secret is None or backup is None:
            return Decision()
        if not all(lower.upper_pods.synced for lower in world.lowers.values()):
            # A cache that has synced wakes only the queue of its own lower.
            return Decision(requeue_after=_RECHECK_SECONDS)
        bound_pod = bound(backup.uid, world)
        if bound_pod is not None:
            return _keep_backup(bound_pod, secret, backup, world)
        return _recreate(key, secret, backup, world)


def _keep_backup(bound_pod: BoundPod, secret: Entry, backup: PodBackup, world: World) -> Decision:
    """Keep the backup as long as the pod has to leave, and for a while after that."""
    pod, lower = bound_pod
    if pod.facts.terminating and pod.facts.disrupted:
        return Decision()  # it was evicted, and not deleted by a user: its object is removed later
    if pod.facts.terminating or pod.facts.terminal:
        return Decision((_deletion(secret, "a user deleted the pod, or it has terminated"),))
    is_known = lower.pods.synced and world.upper.nodes.synced
    if not is_known or (backup.withdrawn is None and _has_to_leave(bound_pod, world)):
        return Decision(requeue_after=_CHECK_SECONDS)
    if backup.withdrawn is None:
        return Decision((_withdrawal(secret, world),), requeue_after=_CHECK_SECONDS)
    if world.now - backup.withdrawn < _WITHDRAWAL_PERIOD:
        return Decision(requeue_after=_CHECK_SECONDS)
    return Decision((_deletion(secret, "the pod does not have to be evicted any more"),))


def _has_to_leave(bound_pod: BoundPod, world: World) -> bool:
    """Report whether the pod is to be evicted, now or when its turn comes."""
    pod, lower = bound_pod
    policy = world.topology.descheduler
    is_enabled = is_being_drained(lower, world) if lower.drain_requested else policy.enabled
    if not is_enabled or policy.dry_run or not policy.recreate_bare_pods:
        return False
    return any(one.upper.uid == pod.uid for one in candidates(lower, world))


def _recreate(key: Key, secret: Entry, backup: PodBackup, world: World) -> Decision:
    """Create the new pod, and delete the Secret once the pod exists."""
    if backup.pod is None:
        message = f"Secret {secret.namespace}/{secret.name} does not contain a pod: correct it, or delete it"
        return Decision(problem=Problem(REFUSED, message), requeue_after=_CHECK_SECONDS)
    ref = Ref(UPPER, POD, secret.namespace, metadata(backup.pod)["name"])
    recreated = world.upper.remade.get(ref.namespace, ref.name)
    if recreated is not None and recreated.facts == backup.uid:
        return Decision((_deletion(secret, "the pod in it was created again"),))
    if recreated is not None and recreated.uid == backup.uid:
        # The watch on re-created pods has not reported yet that it is gone.
        return Decision(requeue_after=_RECHECK_SECONDS)
    if recreated is not None:
        problem = conflict(ref)
        return Decision((_refusal_event(secret, problem),), problem=problem, requeue_after=_CHECK_SECONDS)
    reported = world.problems.get(key)
    events = (_refusal_event(secret, reported),) if reported is not None else ()
    new_pod = Present(ref, backup.pod, "it was evicted, and no controller creates it again")
    return Decision((*events, new_pod))


def _refusal_event(secret: Entry, problem: Problem) -> EmitEvent:
    """Return the event on a Secret that says what prevents the pod's creation."""
    message = f"the pod in this Secret cannot be created yet (to abandon the pod, delete the Secret): {problem.message}"
    return EmitEvent(_ref(secret), secret.uid, REFUSED, message)


def _withdrawal(secret: Entry, world: World) -> Patched:
    """Return the patch that records since when a Secret is not needed, if it is unchanged since this decision."""
    marks = {WITHDRAWN: timestamp(world.now)}
    patch = Patch("merge-patch", {"metadata": {**as_read(secret.manifest()), "annotations": marks}})
    return Patched(_ref(secret), patch, "the pod does not have to be evicted any more")


def _deletion(secret: Entry, reason: str) -> Absent:
    """Return the deletion of the Secret, if it is unchanged since this decision."""
    return Absent(_ref(secret), secret.uid, reason, version=str(secret.version))


def _ref(secret: Entry) -> Ref:
    return backup_ref(secret.namespace, secret.name.removeprefix(BACKUP))


def _on_secret(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name.startswith(BACKUP) and lower == world.speaker:
        yield Key(REMAKING, lower, delta.entry.namespace, delta.entry.name)


def _on_old_pod(world: World, _lower: str, delta: Delta) -> Iterator[Key]:
    yield from _backup_keys(world, delta.entry, delta.entry.uid)


def _on_new_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    for entry in delta if lower == world.speaker else ():
        if entry is not None:
            yield from _backup_keys(world, entry, entry.facts)


def _backup_keys(world: World, pod: Entry, pod_uid: str) -> Iterator[Key]:
    """Yield the key of the Secret that backs up the pod of a UID, if it exists."""
    name = BACKUP + pod_uid
    if pod_uid and world.upper.secrets.get(pod.namespace, name) is not None:
        yield Key(REMAKING, world.speaker, pod.namespace, name)
