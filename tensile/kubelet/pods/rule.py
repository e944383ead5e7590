"""The rule for pods: what happens to each pod bound to a virtual node, from its creation to its deletion.

An upper pod has at most one lower pod, identified by its name and the upper UID. While the upper pod lives, the lower
pod is created, kept in sync and its status reported. Once the upper pod is deleted, the lower pod is deleted first and
the upper object last, so that nothing runs unseen. The lower pod of an earlier upper pod of that name is deleted before
another one starts, in whichever lower cluster it is, so that two never run. What is missing without having been deleted
is decided in `lost_pods.py`, within the guard.
"""

from collections.abc import Collection, Iterator

from tensile.kube.store import Delta, Entry
from tensile.kubelet.node.rule import key_of as node_key
from tensile.kubelet.pods.deletion import delete_lower, has_run, last_known_status, or_eviction, remove_upper
from tensile.kubelet.pods.lost_pods import adopt, may_be_lost_in_restore, ref_of
from tensile.kubelet.pods.status import forgotten_status, status_write
from tensile.kubelet.pods.sync import create, out_of_reach, report_blocked, sync
from tensile.names import LOWER_UNREACHABLE, MIRRORED, NAMESPACE_EXCLUDED, STORE_RESTORED, VIRTUAL_POD, ProblemReason
from tensile.objects import POD, UPPER, Manifest, Ref, controller_of, metadata, timestamp
from tensile.reconcile import copies
from tensile.reconcile.copies import BoundPod
from tensile.reconcile.desired import Absent, Decision, VerifyAbsent, Wanted, Watch
from tensile.reconcile.guard import is_restored
from tensile.reconcile.ownership import NAME_CONFLICT, adopts, conflict, has_node
from tensile.reconcile.pods.index import (
    PodView,
    differ,
    is_daemon,
    is_lower_pod_gone,
    is_lower_pod_of,
    is_own_lower_pod,
    needs_lower_pod,
    view_of,
    was_deleted,
)
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "pod"
UNREACHABLE_AFTER = 40.0
"""Seconds without an answer after which pods are no longer reported ready, as Kubernetes does for a node."""
_RECHECK_SECONDS = 1.5
"""Seconds until the next check whether all lowers have listed their pods: more than what `plan` waits for."""
DAEMON_SET_NOT_MIRRORED: ProblemReason = "DaemonSetNotMirrored"
"""The pod is of a DaemonSet, which is not mirrored unless its author asks for it. Remedy: exclude nodes with the label
`type: virtual-kubelet` from the DaemonSet, as its rolling updates wait for this pod, or label its pods `virtual-pod:
"true"`."""
NOT_IN_TOPOLOGY: ProblemReason = "NotInTopology"
"""The lower cluster was removed from the topology, and takes no new pods. Remedy: put it back, or delete the pod."""
PREDECESSOR_TERMINATING: ProblemReason = "PredecessorTerminating"
"""An older pod of that name is still terminating in the lower cluster. Remedy: wait; if it stays, look at its
finalizers there."""
PREDECESSOR_UNREACHABLE: ProblemReason = "PredecessorUnreachable"
"""An older pod of that name may still run in a lower cluster that does not answer. Remedy: bring that cluster back."""
PREDECESSOR_RUNNING: ProblemReason = "PredecessorRunning"
"""An older pod of that name still runs in another lower cluster. Remedy: wait; if it stays, delete it there."""
_RANDOM_NAME_CONTROLLERS = frozenset({"ReplicaSet", "ReplicationController", "Job", "DaemonSet"})
"""Controllers that give each pod a random name: no other pod of that name exists anywhere."""
_SHORT_WAIT = 5.0
"""Seconds to wait for other lowers to list their pods, for pods of reusable names outside StatefulSets."""
_DEFAULT_GRACE = 30
"""Kubernetes' default for terminationGracePeriodSeconds."""
_NOTHING = Decision()


def key_of(lower: str, upper_namespace: str, name: str) -> Key:
    """Return the key of a pod bound to the virtual node of `lower`, by its upper namespace and name."""
    return Key(NAME, lower, upper_namespace, name)


class PodRule:
    """The rule with one key for each pod bound to a virtual node, by its upper namespace and name."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch the pod, its lower pod, foreign pods that take or free its name there, and marks of namespaces."""
        return (
            Watch("upper_pods", _on_upper_pod),
            Watch("pods", _on_lower_pod),
            Watch("foreign_pods", _on_foreign_pod),
            Watch("namespaces", _on_namespace_marks, facts=("mark", "above")),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of every upper pod and every lower pod of ours; pods with an outdated status come first.

        There are none while the lower's pods are being listed: nothing could be decided, and another call follows.
        """
        lower_world = world.lowers[lower]
        if not lower_world.pods.synced and lower_world.unreachable_seconds <= UNREACHABLE_AFTER:
            return
        found = {(entry.namespace, entry.name) for entry in lower_world.upper_pods}
        found |= {
            (namespace, entry.name)
            for entry in lower_world.pods
            for namespace in lower_world.upper_namespaces_of(entry.namespace)
        }

        def urgency(name: tuple[str, str]) -> tuple[bool, tuple[str, str]]:
            """Sort pods that are in sync last: after a restart of the engine that is nearly all of them."""
            lower_pod = lower_world.pods.get(lower_world.namespace(name[0]), name[1])
            return not differ(lower_world.upper_pods.get(*name), lower_pod), name

        yield from (key_of(lower, *name) for name in sorted(found, key=urgency))

    def decide(self, key: Key, world: World) -> Decision:
        """Return what should happen to the pod."""
        lower = world.lowers[key.lower]
        if not (lower.upper_pods.synced and lower.connected):
            return _NOTHING
        upper = lower.upper_pods.get(key.namespace, key.name)
        if upper is None:
            lower.synced_pairs.pop((key.namespace, key.name), None)
            return _without_upper(key, lower, world) if lower.mapping_known else _NOTHING
        if not has_node(lower, world):
            return Decision(depends_on=(node_key(lower),))
        lower_pod = copies.existing_copy(upper, lower)
        if upper.facts.terminating:
            return _terminating(key, upper, lower_pod, lower, world)
        if lower_pod is not None and is_lower_pod_of(lower_pod, upper, world.owner):
            return _NOTHING if upper.facts.terminal else _mirrored(key, upper, lower_pod, lower, world)
        if lower_pod is not None and is_own_lower_pod(lower_pod, world.owner) and _is_up_to_date(lower):
            return _end_predecessor(key, lower_pod, BoundPod(upper, lower), world)
        return _NOTHING if upper.facts.terminal else _unmirrored(key, upper, lower_pod, lower, world)


def excluded(upper_pod: Manifest, namespaces: Collection[str]) -> Problem | None:
    """Return why a pod is not mirrored, None when it is; `namespaces` are those that the topology excludes.

    A DaemonSet that tolerates everything lands on every node, also on virtual ones: network plugins, node exporters. In
    a lower cluster it would run a second time on each real node, with its privileges, so its pods are mirrored only if
    their author asks for it.
    """
    namespace = metadata(upper_pod)["namespace"]
    if namespace in namespaces:
        return Problem(NAMESPACE_EXCLUDED, f"pods of namespace {namespace} are not mirrored (excludeNamespaces)")
    if is_daemon(upper_pod):
        return Problem(
            DAEMON_SET_NOT_MIRRORED, f'pods of DaemonSets are mirrored only with the label {VIRTUAL_POD}: "true"'
        )
    return None


def is_kept_out(upper: PodView, namespaces: Collection[str]) -> bool:
    """Report whether a pod is not mirrored and its status says so: then no lower pod of it can exist, if it never ran.

    A pod that was mirrored before it became excluded never had that status, or has another one since.
    """
    objection = excluded(upper.manifest, namespaces)
    condition = upper.conditions.get(MIRRORED) or {}
    return objection is not None and (condition.get("status"), condition.get("reason")) == ("False", objection.reason)


def _is_up_to_date(lower: LowerWorld) -> bool:
    """Report whether the pods of a lower cluster are known as they are now."""
    return lower.pods.synced and lower.mapping_known and lower.unreachable_seconds <= UNREACHABLE_AFTER


def _without_upper(key: Key, lower: LowerWorld, world: World) -> Decision:
    """Delete the lower pod if its upper pod was seen deleted, or if another upper pod has its name.

    If Kubernetes deleted the upper pod because of its node, the lower pod stays, since the guard has to decide about
    it.
    """
    namespace, tombstone = lower.namespace(key.namespace), lower.upper_pods.tombstone(key.namespace, key.name)
    lower_pod = lower.pods.get(namespace, key.name)
    if lower_pod is None or not is_own_lower_pod(lower_pod, world.owner):
        return _NOTHING
    is_requested = tombstone is not None and was_deleted(tombstone, lower_pod.facts.upper_uid)
    if not lower.upper_namespace(namespace) and (lower.naming is not None or not is_requested):
        return _NOTHING  # with the same names, the namespace of a deleted pod may be deleted after it
    if is_requested:
        if is_restored(lower, world) or lower.pods.came_back(lower_pod):
            return _NOTHING  # an earlier state of its store brought it back: a person decides whether to delete it
        if not lower_pod.facts.terminating:
            return Decision((Absent(ref_of(lower_pod, lower), lower_pod.uid, "the upper pod was deleted"),))
    successor = copies.bound_as(key.namespace, key.name, world)
    if successor is None or lower_pod.facts.terminal or not _is_predecessor(lower_pod, successor.pod, world):
        return _NOTHING
    if not _is_up_to_date(lower):
        return _NOTHING
    is_held = may_be_lost_in_restore(lower_pod, successor.pod, lower, world)
    return _NOTHING if is_held else Decision(_predecessor_deletion(key, lower_pod, successor.pod, lower))


def _terminating(key: Key, upper: Entry, lower_pod: Entry | None, lower: LowerWorld, world: World) -> Decision:
    """Delete the lower pod, and remove the upper one once its lower pod is certainly gone.

    While the mapping is not known, as in a lower that never answered, only a pod that is kept out can be removed.
    """
    pod = view_of(upper.manifest())
    never_mirrored = not upper.facts.ran and is_kept_out(pod, world.topology.exclude_namespaces)
    if not lower.mapping_known:
        return remove_upper(pod, None, world.now) if never_mirrored else _NOTHING
    if lower_pod is not None and is_lower_pod_of(lower_pod, upper, world.owner):
        return delete_lower(pod, lower_pod, ref_of(lower_pod, lower), requested=not upper.facts.unrequested)
    ref = _lower_ref(key, lower)
    if _is_in_unmarked_namespace(upper, lower, world):
        return report_blocked(pod, _unmarked_namespace_problem(ref), world.now)
    is_foreign = lower_pod is not None and not is_own_lower_pod(lower_pod, world.owner)
    is_certainly_gone = is_foreign or is_lower_pod_gone(upper, lower)
    is_certainly_gone = is_certainly_gone or (lower.is_anothers(ref.namespace) and not upper.facts.ran)
    if not is_certainly_gone and not never_mirrored:
        return Decision((VerifyAbsent(ref, upper.uid, "the lower pod must be gone before the upper pod is removed"),))
    predecessor_has_name = lower_pod is not None and _is_predecessor(lower_pod, upper, world) and _is_up_to_date(lower)
    predecessor_steps = (
        _end_predecessor(key, lower_pod, BoundPod(upper, lower), world).wanted
        if lower_pod is not None and predecessor_has_name
        else ()
    )
    removal = remove_upper(pod, last_known_status(upper, lower), world.now)
    return Decision((*(one for one in predecessor_steps if isinstance(one, Absent | VerifyAbsent)), *removal.wanted))


def _is_in_unmarked_namespace(upper: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a pod that ran is still in a namespace that is no longer marked for the upper one."""
    namespace = lower.namespace(upper.namespace)
    if not (upper.facts.ran and lower.is_anothers(namespace)):
        return False
    lower_pod = lower.pods.get(namespace, upper.name)
    return lower_pod is not None and is_lower_pod_of(lower_pod, upper, world.owner)


def _unmarked_namespace_problem(ref: Ref) -> Problem:
    """Return the problem of a pod that cannot be deleted where it runs."""
    where = f"pod {ref.namespace}/{ref.name} in lower cluster {ref.cluster}"
    why = f"namespace {ref.namespace} there has lost its owner label and annotations"
    advice = "restore them with `--field-manager=tensile-kube`, or delete the pod"
    return Problem(NAME_CONFLICT, f"{where} is not deleted: {why}; {advice}")


def _mirrored(key: Key, upper: Entry, lower_pod: Entry, lower: LowerWorld, world: World) -> Decision:
    """Keep the lower pod of a living pod in sync, or report that it is out of reach."""
    if lower.unreachable_seconds > UNREACHABLE_AFTER:
        return _report_or_evict(upper, None, lower, world)
    if not (lower.pods.synced and lower.mapping_known):
        return _NOTHING
    return sync(key, view_of(upper.manifest()), lower_pod, lower, world)


def _unmirrored(key: Key, upper: Entry, name_holder: Entry | None, lower: LowerWorld, world: World) -> Decision:
    """Create the lower pod of a living pod, or report why not; `name_holder` is another pod under its name."""
    objection = _mirroring_problem(upper, lower, world)
    if objection is not None or lower.unreachable_seconds > UNREACHABLE_AFTER:
        return _report_or_evict(upper, objection, lower, world)
    if not (lower.pods.synced and lower.mapping_known):
        return _NOTHING
    return _create_or_report(key, upper, name_holder, lower, world)


def _report_or_evict(upper: Entry, objection: Problem | None, lower: LowerWorld, world: World) -> Decision:
    """Report why a pod is not mirrored or out of reach; evict it if its cluster is unreachable for too long."""
    pod = view_of(upper.manifest())
    decision = report_blocked(pod, objection, world.now) if objection else out_of_reach(pod, lower, world)
    is_unreachable = lower.unreachable_seconds > UNREACHABLE_AFTER and needs_lower_pod(
        upper, world.topology.exclude_namespaces
    )
    return or_eviction(decision, pod, lower, world) if is_unreachable else decision


def _mirroring_problem(upper: Entry, lower: LowerWorld, world: World) -> Problem | None:
    """Return why a pod without a lower pod gets none, whatever exists in the lower cluster."""
    objection = excluded(upper.manifest(), world.topology.exclude_namespaces)
    if upper.facts.ran:  # its containers may run until its lower pod is known to be gone
        return objection if lower.pods.synced and lower.mapping_known else None
    if objection is not None:
        return objection
    if not lower.in_topology:
        message = f"lower cluster {lower.name} was removed from the topology and takes no new pods"
        return Problem(NOT_IN_TOPOLOGY, message)
    if lower.unreachable_seconds > UNREACHABLE_AFTER:
        return Problem(LOWER_UNREACHABLE, f"lower cluster {lower.name} does not answer")
    return None


def _is_predecessor(lower_pod: Entry, upper: Entry, world: World) -> bool:
    """Report whether a lower pod under an upper pod's name is ours and made for another upper pod of that name."""
    return is_own_lower_pod(lower_pod, world.owner) and lower_pod.facts.upper_uid != upper.uid


def _is_running_predecessor(lower_pod: Entry, upper: Entry, world: World) -> bool:
    """Report whether a lower pod in another cluster is of an earlier upper pod of that name, and runs.

    A pod that was never scheduled, or has ended, does not count.
    """
    return _is_predecessor(lower_pod, upper, world) and lower_pod.facts.scheduled and not lower_pod.facts.terminal


def _end_predecessor(key: Key, lower_pod: Entry, bound: BoundPod, world: World) -> Decision:
    """Delete the lower pod of an earlier upper pod whose name is needed, and report that until it is gone.

    If the upper store was restored, the existing pod may be the newer one. Which of the two is to run is then not
    decided by this rule.
    """
    upper, lower = bound
    where = f"pod {lower_pod.namespace}/{lower_pod.name} in lower cluster {lower.name}"
    if may_be_lost_in_restore(lower_pod, upper, lower, world):
        return report_blocked(view_of(upper.manifest()), _restored_problem(where), world.now)
    deletion = _predecessor_deletion(key, lower_pod, upper, lower)
    if upper.facts.terminal or any(isinstance(one, VerifyAbsent) for one in deletion):
        return Decision(deletion)
    message = f"{where} of an earlier pod of this name must terminate first"
    waiting = Problem(PREDECESSOR_TERMINATING, f"{message}; if it does not, check its finalizers there")
    problem = _mirroring_problem(upper, lower, world) or waiting
    return Decision(deletion + report_blocked(view_of(upper.manifest()), problem, world.now).wanted, problem=problem)


def _restored_problem(where: str) -> Problem:
    """Return the problem of a pod that waits for another one which may be newer."""
    message = f"{where} was created for another pod of this name, which the restored upper cluster may have lost"
    return Problem(STORE_RESTORED, f"{message}: delete the pod that must not run, or run: tensile apply --force")


def _predecessor_deletion(key: Key, lower_pod: Entry, upper: Entry, lower: LowerWorld) -> tuple[Wanted, ...]:
    """Return the deletion of the lower pod of an earlier upper pod, within the grace period of its successor.

    That it is the earlier one is read at quorum. With another engine at work, it may be for an upper pod that has not
    been received here yet.
    """
    if not lower.upper_pods.is_deleted(key.namespace, key.name, lower_pod.facts.upper_uid):
        upper_ref = Ref(UPPER, POD, key.namespace, key.name)
        return (VerifyAbsent(upper_ref, lower_pod.facts.upper_uid, "its lower pod blocks a new pod of this name"),)
    pod, grace = lower_pod.manifest(), _grace_of(upper.manifest())
    grace_left = metadata(pod).get("deletionGracePeriodSeconds") if lower_pod.facts.terminating else None
    if grace_left is not None and grace_left <= grace:
        return ()
    reason = "its upper pod was replaced by a new pod of this name"
    return (Absent(ref_of(lower_pod, lower), lower_pod.uid, reason, min(grace, _grace_of(pod))),)


def _grace_of(pod: Manifest) -> int:
    """Return a pod's termination grace period in seconds."""
    given = pod["spec"].get("terminationGracePeriodSeconds")
    return _DEFAULT_GRACE if given is None else int(given)


def _create_or_report(key: Key, upper: Entry, lower_pod: Entry | None, lower: LowerWorld, world: World) -> Decision:
    """Create the lower pod, unless its name is taken, it has run before, or its predecessor may run elsewhere."""
    ref = _lower_ref(key, lower)
    foreign = lower.foreign_pods.get(ref.namespace, ref.name)
    existing = foreign or lower_pod
    if existing is not None and adopts(world, lower.name):
        return adopt(upper, existing, lower, world)
    if existing is not None:
        return report_blocked(view_of(upper.manifest()), conflict(ref), world.now)
    if has_run(upper, lower):
        return _report_lost_in_restore(upper, ref, lower, world)
    other = _lower_of_predecessor(key, upper, world)
    if other is None and _may_be_elsewhere(upper.manifest(), lower, world):
        return Decision(requeue_after=_RECHECK_SECONDS)
    if other is None:
        return create(key, view_of(upper.manifest()), upper.facts.references, lower, world)
    awaited = (key_of(other.name, key.namespace, key.name),)
    return report_blocked(view_of(upper.manifest()), _predecessor_problem(key, upper, other, world), world.now, awaited)


def _predecessor_problem(key: Key, upper: Entry, other: LowerWorld, world: World) -> Problem:
    """Return the problem that an earlier pod of that name runs, or may run, in another lower cluster."""
    if other.unreachable_seconds > UNREACHABLE_AFTER:
        message = f"an older pod of this name may still run in lower cluster {other.name}, which does not answer"
        return Problem(PREDECESSOR_UNREACHABLE, message)
    where = f"pod {other.namespace(key.namespace)}/{key.name} in lower cluster {other.name}"
    earlier = copies.existing_copy(upper, other)
    if earlier is not None and may_be_lost_in_restore(earlier, upper, other, world):
        return _restored_problem(where)
    advice = f"if it does not, delete it there, or remove {other.name} from the topology"
    return Problem(PREDECESSOR_RUNNING, f"{where} of an earlier pod of this name must terminate first; {advice}")


def _report_lost_in_restore(upper: Entry, ref: Ref, lower: LowerWorld, world: World) -> Decision:
    """Mark a pod unready whose lower pod was lost in a restore of its store; whether it ends is not decided here."""
    if not lower.pods.is_lost(ref.namespace, ref.name):
        return _NOTHING
    pod = view_of(upper.manifest())
    body = forgotten_status(pod, timestamp(world.now))
    return Decision((status_write(pod, body, "its lower pod is missing"),)) if body else _NOTHING


def _lower_of_predecessor(key: Key, upper: Entry, world: World) -> LowerWorld | None:
    """Return the other lower where the pod of an earlier pod of that name is known to run: two must never run."""
    for other in world.lowers.values():
        earlier = copies.existing_copy(upper, other) if other.name != key.lower else None
        if earlier is not None and _is_running_predecessor(earlier, upper, world):
            return other
    return None


def _seconds_to_wait(upper_pod: Manifest) -> float:
    """Return for how many seconds to wait for a lower that does not answer, where an older pod of that name may run.

    A StatefulSet guarantees that no two pods of one name run. For other names that may be used again, as those of bare
    pods, a lower that does not answer causes only a short delay.
    """
    kind = controller_of(upper_pod).get("kind")
    if kind in _RANDOM_NAME_CONTROLLERS:
        return 0.0
    return UNREACHABLE_AFTER if kind == "StatefulSet" else _SHORT_WAIT


def _may_be_elsewhere(upper_pod: Manifest, lower: LowerWorld, world: World) -> bool:
    """Report whether another lower may soon report a pod that runs there: lowers are connected one by one."""
    seconds = _seconds_to_wait(upper_pod)
    names = {spec.name for spec in world.topology.lowers} | world.lowers.keys() if seconds else ()
    return any(_is_unlisted(world.lowers.get(name), lower, world, seconds) for name in names)


def _is_unlisted(other: LowerWorld | None, lower: LowerWorld, world: World, seconds: float) -> bool:
    """Report whether a lower has not listed its pods yet; None is a lower that is not connected yet.

    A lower that has not listed them for too long, because it is unreachable or forbids it, does not delay the others
    any longer. What it reported before counts as long as nothing newer is known.
    """
    if other is not None and (other.pods.synced or not other.connected):
        return False
    since = (other or lower).since
    return since is None or (world.now - since).total_seconds() <= seconds


def _lower_ref(key: Key, lower: LowerWorld) -> Ref:
    return Ref(lower.name, POD, lower.namespace(key.namespace), key.name)


def _on_upper_pod(_world: World, lower: str, delta: Delta) -> Iterator[Key]:
    entry = delta.entry
    yield key_of(lower, entry.namespace, entry.name)


def _on_lower_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key of an upper pod also if its lower namespace has lost its marks, which its status reports."""
    if named := world.lowers[lower].named(delta.entry.namespace):
        yield key_of(lower, named, delta.entry.name)


def _on_namespace_marks(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of the pods of a lower namespace that loses its marks, or gets them back."""
    lower_world = world.lowers[lower]
    named = lower_world.named(delta.entry.name) if lower_world.naming is not None and delta.before is not None else ""
    yield from (
        key_of(lower, named, pod.name) for pod in (lower_world.upper_pods.select("namespace", named) if named else ())
    )


def _on_foreign_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key of an upper pod whose name a foreign pod takes or frees, or whose foreign pod changes its owner."""
    if (
        delta.before is not None
        and delta.after is not None
        and _adoption_facts(delta.before) == _adoption_facts(delta.after)
    ):
        return
    lower_world, entry = world.lowers[lower], delta.entry
    for namespace in lower_world.upper_namespaces_of(entry.namespace):
        if lower_world.upper_pods.get(namespace, entry.name) is not None:
            yield key_of(lower, namespace, entry.name)


def _adoption_facts(foreign: Entry) -> tuple[str, str, bool, bool]:
    """Return the facts that decide whether a foreign pod may be adopted."""
    facts = foreign.facts
    return facts.mark, facts.made_for, facts.ending, bool(foreign.raw)
