"""Pods that are missing without a known deletion, and lower pods that lost their owner: the rule, and adoption.

A lower pod without its upper pod may be a deletion, a wrong kubeconfig, or a store restored from a backup. So may an
upper pod that ran and has no lower pod any more. So each is read at quorum first, and all of one lower are decided in
one plan, which the guard can hold as a whole: an upper pod without its lower pod becomes Failed, with the reason
LowerPodLost. The same plan ends lower pods whose upper pod Kubernetes itself deletes because it considers the node
dead, and lower pods whose upper pod has ended.

A lower pod that lost its owner is adopted for the upper pod that it may be for, but only if it runs what that pod asks
for, whatever its marks say: anyone who may create a pod there can write marks. Kubernetes would not let us change the
program, and another program under the pod's name would be a false report.
"""

from collections.abc import Iterator

from tensile.kube.cluster import Patch
from tensile.kube.store import Delta, Entry
from tensile.kubelet.pods.deletion import has_run, last_known_status
from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.kubelet.pods.status import lost_status, status_write, upper_status
from tensile.kubelet.pods.sync import lower_context_of, report_blocked
from tensile.objects import POD, UPPER, Manifest, Ref, metadata, timestamp
from tensile.reconcile.copies import bound_as, existing_copy, upper_of
from tensile.reconcile.desired import Absent, Decision, Patched, VerifyAbsent, Watch
from tensile.reconcile.diff import marking
from tensile.reconcile.guard import is_restored
from tensile.reconcile.ownership import UNMARKED, adopts, conflict, has_node, objection
from tensile.reconcile.pods.index import TERMINAL, is_lower_pod_gone, is_own_lower_pod, view_of, was_deleted
from tensile.reconcile.pods.references import is_token_volume
from tensile.reconcile.world import Key, LowerWorld, World

NAME = "orphans"
_COLLECT_SECONDS = 0.5
_UNOBSERVED_DELETION = "its upper pod is gone, but its deletion was not observed"
_Step = Absent | VerifyAbsent | Patched
RECHECK_SECONDS = 15.0
"""Seconds until it is checked again whether the other owner is gone."""
_LISTS = ("containers", "initContainers")
_PROGRAM = ("image", "command", "args", "workingDir", "securityContext")
_POD_WIDE = ("restartPolicy", "hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "securityContext")
_SECTIONS = ("metadata.labels", "metadata.annotations", "metadata.ownerReferences")


def key_of(lower: str) -> Key:
    """Return the one key of a lower."""
    return Key(NAME, lower, "", "")


class LostPodRule:
    """The rule with one key for each lower."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch pods that are deleted on either side, appear without their counterpart, or free a name."""
        return (
            Watch(
                "upper_pods", _on_upper_pod, delay=_COLLECT_SECONDS, facts=("terminal", "terminating", "unrequested")
            ),
            Watch(
                "pods", _on_lower_pod, delay=_COLLECT_SECONDS, facts=("terminal", "terminating", "owner", "upper_uid")
            ),
            Watch("foreign_pods", _on_foreign_pod, delay=_COLLECT_SECONDS, facts=()),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key."""
        yield key_of(world.lowers[lower].name)

    def decide(self, key: Key, world: World) -> Decision:
        """Return deletions of orphans that a quorum read confirmed, and such reads; nothing from incomplete caches."""
        lower = world.lowers[key.lower]
        if not (lower.settled and world.upper.namespaces.synced) or lower.unreachable_seconds:
            return Decision()
        steps = [
            *_steps_for_lower_pods(lower, world),
            *(_steps_for_upper_pods(lower, world) if has_node(lower, world) else ()),
        ]
        steps.sort(key=lambda one: one.ref)
        return Decision(tuple(steps))


def _steps_for_lower_pods(lower: LowerWorld, world: World) -> Iterator[_Step]:
    """Yield the steps for our lower pods that should end without a requested deletion of their upper pod."""
    for lower_pod in lower.placed(lower.pods):
        if not is_own_lower_pod(lower_pod, world.owner) or lower_pod.facts.terminating:
            continue
        upper = upper_of(lower_pod, lower)
        if upper is None:
            yield from _orphan_steps(lower_pod, lower, world)
        elif upper.uid == lower_pod.facts.upper_uid and upper.facts.terminating and upper.facts.unrequested:
            grace = metadata(upper.manifest()).get("deletionGracePeriodSeconds")
            yield Absent(
                ref_of(lower_pod, lower), lower_pod.uid, "Kubernetes deleted its upper pod", grace, requested=False
            )
        elif _outlives_upper_pod(lower_pod, upper):
            reason = "its upper pod has terminated, so no lower pod may run"
            yield Absent(
                ref_of(lower_pod, lower), lower_pod.uid, reason, requested=False, version=str(lower_pod.version)
            )
        elif upper.uid != lower_pod.facts.upper_uid and may_be_lost_in_restore(lower_pod, upper, lower, world):
            reason = "the upper store was restored, and has an older pod of this name"
            yield Absent(ref_of(lower_pod, lower), lower_pod.uid, reason, requested=False, after_restore=True)


def _outlives_upper_pod(lower_pod: Entry, upper: Entry) -> bool:
    """Report whether a lower pod goes on though its upper one has ended, as one created by a late write does.

    A kubelet ends such a pod too. If it has ended meanwhile (another client may have reported that), it stays.
    """
    facts = lower_pod.facts
    return upper.uid == facts.upper_uid and upper.facts.terminal and not (facts.terminal or facts.terminating)


def may_be_lost_in_restore(lower_pod: Entry, upper: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether the upper store may have lost the upper pod of a lower one; `upper` now has that name."""
    is_lost = lower.upper_pods.is_lost(upper.namespace, upper.name, lower_pod.facts.upper_uid)
    return is_lost or is_restored(lower, world)


def _orphan_steps(lower_pod: Entry, lower: LowerWorld, world: World) -> Iterator[_Step]:
    """Yield a quorum read of the upper pod, or the deletion of the lower pod.

    The rule for pods decides where the upper pod was seen deleted, or where another pod needs the name.
    """
    upper_ref = Ref(UPPER, POD, lower.upper_namespace(lower_pod.namespace), lower_pod.name)
    successor = bound_as(upper_ref.namespace, upper_ref.name, world)
    is_terminal = lower_pod.facts.terminal
    if successor is not None and not (is_terminal or may_be_lost_in_restore(lower_pod, successor.pod, lower, world)):
        return
    tombstone = lower.upper_pods.tombstone(upper_ref.namespace, upper_ref.name)
    if not lower.upper_pods.is_deleted(upper_ref.namespace, upper_ref.name, lower_pod.facts.upper_uid):
        yield VerifyAbsent(upper_ref, lower_pod.facts.upper_uid, "its lower pod still exists", requested=False)
        return
    came_back = lower.pods.came_back(lower_pod)
    needs_person = came_back or is_restored(lower, world)
    if needs_person or tombstone is None or not was_deleted(tombstone, lower_pod.facts.upper_uid):
        lost = came_back or lower.upper_pods.is_lost(upper_ref.namespace, upper_ref.name, lower_pod.facts.upper_uid)
        yield Absent(ref_of(lower_pod, lower), lower_pod.uid, _UNOBSERVED_DELETION, requested=False, after_restore=lost)


def ref_of(lower_pod: Entry, lower: LowerWorld) -> Ref:
    """Return the reference to a lower pod."""
    return Ref(lower.name, POD, lower_pod.namespace, lower_pod.name)


def _steps_for_upper_pods(lower: LowerWorld, world: World) -> Iterator[_Step]:
    """Yield the steps for upper pods that ran and have no lower pod; those on a foreign Node run elsewhere."""
    for upper in lower.upper_pods:
        facts = upper.facts
        namespace = lower.namespace(upper.namespace)
        if (
            facts.terminal
            or facts.terminating
            or not has_run(upper, lower)
            or existing_copy(upper, lower) is not None
            or _may_be_adopted(upper, lower, world)
        ):
            continue
        if not is_lower_pod_gone(upper, lower):
            ref = Ref(lower.name, POD, namespace, upper.name)
            yield VerifyAbsent(ref, upper.uid, "its upper pod ran and still exists", requested=False)
            continue
        if _runs_unmarked(lower, namespace, upper.name):
            continue
        yield from _end_upper_pod(upper, lower, world)


def _may_be_adopted(upper: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a foreign lower pod may be this pod's: then the rule for pods decides about it."""
    foreign = lower.foreign_pods.get(lower.namespace(upper.namespace), upper.name)
    if foreign is None or not adopts(world, lower.name):
        return False
    return bool(foreign.raw) or foreign.facts.made_for == upper.uid


def _end_upper_pod(upper: Entry, lower: LowerWorld, world: World) -> Iterator[_Step]:
    """Yield the last known status of a pod if it has ended by that, else the status with reason LowerPodLost."""
    upper_pod, last = view_of(upper.manifest()), last_known_status(upper, lower)
    if last is not None and last.phase in TERMINAL:
        body = upper_status(upper_pod, last, generation=upper_pod.status.get("observedGeneration") or 0)
        yield from [status_write(upper_pod, body, "this is the last known status of the lower pod")] if body else ()
        return
    body = lost_status(upper_pod, timestamp(world.now))
    if body is not None:
        lost = lower.pods.is_lost(lower.namespace(upper.namespace), upper.name)
        yield status_write(
            upper_pod, body, "its lower pod is gone, but the upper pod was not deleted", requested=False, lost=lost
        )


def _runs_unmarked(lower: LowerWorld, namespace: str, name: str) -> bool:
    """Report whether a lower pod is missing only because another client removed our label from it."""
    foreign, tombstone = lower.foreign_pods.get(namespace, name), lower.pods.tombstone(namespace, name)
    return foreign is not None and tombstone is not None and foreign.uid == tombstone.uid


def _on_upper_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key when a pod is deleted, replaced, deleted by Kubernetes itself, or ends before its lower pod.

    While the guard blocks the key, the end of any upper pod counts: another client may have done part of the plan.

    While a pod of another lower has the name, `_orphan_steps` skips a lower pod. So its deletion is news there too.
    """
    before, after = delta
    if after is None:
        name, namespace = delta.entry.name, delta.entry.namespace
        others = (one for one in world.lowers.values() if one.name != lower)
        yield from (key_of(one.name) for one in others if one.pods.get(one.namespace(namespace), name) is not None)
    is_another = before is not None and after is not None and before.uid != after.uid
    if after is None or is_another or (after.facts.terminating and after.facts.unrequested):
        yield key_of(lower)
    elif after.facts.terminal:
        lower_world = world.lowers[lower]
        lower_pod = lower_world.pods.get(lower_world.namespace(after.namespace), after.name)
        if key_of(lower) in world.problems or (lower_pod is not None and _outlives_upper_pod(lower_pod, after)):
            yield key_of(lower)


def _on_lower_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key when a lower pod is deleted, or its upper pod is missing or has ended."""
    lower_world, after = world.lowers[lower], delta.after
    upper = upper_of(after, lower_world) if after is not None else None
    if after is None or upper is None or upper.uid != after.facts.upper_uid or _outlives_upper_pod(after, upper):
        yield key_of(lower)


def _on_foreign_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key when a foreign pod with an upper pod's name is deleted."""
    lower_world, before = world.lowers[lower], delta.before
    if before is None or delta.after is not None:
        return
    if upper_of(before, lower_world) is not None:
        yield key_of(lower)


def adopt(upper: Entry, lower_entry: Entry, lower: LowerWorld, world: World) -> Decision:
    """Adopt a lower pod that is not ours for an upper pod, or report on the upper pod why not.

    `lower_entry` is the whole pod, or only its facts where nothing indicates that it may be adopted.
    """
    ref = Ref(lower.name, POD, lower_entry.namespace, lower_entry.name)
    wanted = to_lower_pod(upper.manifest(), _context(upper, lower, world))
    problem = (
        _adoption_objection(ref, upper, lower_entry, wanted, world)
        if lower_entry.raw
        else _objection_by_facts(lower_entry)
    )
    if problem:
        decision = report_blocked(view_of(upper.manifest()), conflict(ref, problem), world.now)
        return decision._replace(requeue_after=RECHECK_SECONDS)
    operations = marking(wanted, lower_entry.manifest(), _SECTIONS)
    fence = [
        {"op": "replace", "path": "/metadata/uid", "value": lower_entry.uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": str(lower_entry.version)},
    ]
    return Decision((Patched(ref, Patch("json-patch", fence + operations), "onConflict: adopt", in_plan=True),))


def _objection_by_facts(found: Entry) -> str:
    """Return why a pod without any mark is not adopted."""
    return "it is being deleted" if found.facts.ending else UNMARKED


def _adoption_objection(ref: Ref, upper: Entry, found: Entry, wanted: Manifest, world: World) -> str:
    """Return why a whole pod is not adopted, "" where it is."""
    pod = found.manifest()
    ignored = token_volume_names(upper.manifest())
    return objection(ref, pod, upper.uid, world) or next(differences(wanted, pod, ignored), "")


def token_volume_names(upper_pod: Manifest) -> frozenset[str]:
    """Return the names of the volumes that admission added to an upper pod."""
    return frozenset(one["name"] for one in upper_pod["spec"].get("volumes") or () if is_token_volume(one))


def differences(wanted: Manifest, found: Manifest, ignored_volumes: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield how a running pod differs from the wanted one; nothing if it can be adopted.

    Node constraints were met when it was scheduled. The account, and volumes in `ignored_volumes`, which belong to it,
    are not compared.
    """
    owners = metadata(found).get("ownerReferences") or []
    if owners not in ([], metadata(wanted).get("ownerReferences")):
        yield f"it is owned by {owners[0].get('kind')} {owners[0].get('name')}"
    wanted_spec, found_spec = wanted["spec"], found["spec"]
    yield from (f"its {field} is different" for field in _POD_WIDE if _differs(wanted_spec, found_spec, field))
    for field in _LISTS:
        containers = [_without_mounts(one, ignored_volumes) for one in wanted_spec.get(field) or ()]
        yield from _container_differences(field, containers, found_spec.get(field) or [])
    known = {volume["name"]: volume for volume in found_spec.get("volumes") or ()}
    for volume in wanted_spec.get("volumes") or ():
        if volume["name"] not in ignored_volumes and known.get(volume["name"]) != volume:
            yield f"its volume {volume['name']} is different"


def _without_mounts(container: Manifest, volumes: frozenset[str]) -> Manifest:
    """Return a container without its mounts of some volumes: each cluster names token volumes differently."""
    mounts = [mount for mount in container.get("volumeMounts") or () if mount["name"] not in volumes]
    return {**container, "volumeMounts": mounts}


def _container_differences(field: str, wanted: list[Manifest], found: list[Manifest]) -> Iterator[str]:
    """Yield how containers differ."""
    if [one["name"] for one in wanted] != [one["name"] for one in found]:
        yield f"its {field} are different"
        return
    for one, other in zip(wanted, found, strict=True):
        for part in _PROGRAM:
            if _differs(one, other, part):
                yield f"container {one['name']} has a different {part}"
        yield from _environment_differences(one, other)


def _differs(wanted: Manifest, found: Manifest, field: str) -> bool:
    """Report whether a field differs; empty and absent are equal."""
    return (wanted.get(field) or None) != (found.get(field) or None)


def _environment_differences(wanted: Manifest, found: Manifest) -> Iterator[str]:
    """Yield which variable or mount differs; not those with `valueFrom`, which tensile-kube resolved to values."""
    known = {variable["name"]: variable for variable in found.get("env") or ()}
    for variable in wanted.get("env") or ():
        other = known.get(variable["name"])
        if other is None or ("valueFrom" not in variable and other.get("value") != variable.get("value")):
            yield f"container {wanted['name']} has a different value of {variable['name']}"
    mounts = [(mount["name"], mount["mountPath"]) for mount in found.get("volumeMounts") or ()]
    for mount in wanted.get("volumeMounts") or ():
        if (mount["name"], mount["mountPath"]) not in mounts:
            yield f"container {wanted['name']} does not mount {mount['name']}"


def _context(upper: Entry, lower: LowerWorld, world: World) -> LowerContext:
    """Return the `LowerContext` of the pod."""
    namespace = lower.namespaces.get("", lower.namespace(upper.namespace))
    key = Key("pod", lower.name, upper.namespace, upper.name)
    return lower_context_of(namespace.uid if namespace else "", key, lower, world)
