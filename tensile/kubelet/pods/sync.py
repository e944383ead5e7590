"""Keep a living pod in sync: what is written to the lower pod and to the upper pod's status.

Reports come before the write that may be refused again, so that a pod that cannot start shows why after its first try.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

import orjson

from tensile.kube.cluster import Patch
from tensile.kube.store import Entry
from tensile.kubelet.pods import service_account, token_rule
from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.projection import mutable_metadata, notes, to_lower_pod
from tensile.kubelet.pods.status import pending_status, status_write, unreachable_status, upper_status
from tensile.kubelet.pods.update import (
    CHANGE_NOT_APPLIED,
    MODIFIED_IN_LOWER,
    LastingChange,
    adds_containers,
    changes_images,
    drift,
    lasting_change_condition,
    lasting_changes,
    lower_pod_updates,
    sync_condition,
)
from tensile.names import BOOKKEEPING, HOSTNAME, SYNCED, WRITTEN_IMAGES, WRITTEN_KEYS
from tensile.objects import POD, Manifest, Ref, annotations, as_read, labels, metadata, timestamp
from tensile.reconcile.desired import Decision, EmitEvent, Patched, Present, Wanted
from tensile.reconcile.diff import changes
from tensile.reconcile.pods.index import TERMINAL, PodView, view_of
from tensile.reconcile.pods.references import Reference, references
from tensile.reconcile.pods.scheduling import taints_of, tolerations_for_upper
from tensile.reconcile.rules import config, namespaces
from tensile.reconcile.world import Key, LowerWorld, Problem, World

_MUTABLE = ("metadata.labels", "metadata.annotations")
_NOTHING = Decision()
_STATUS_CHANGED = "the status of the lower pod changed"


def report_blocked(upper: PodView, problem: Problem, now: datetime, waits: tuple[Key, ...] = ()) -> Decision:
    """Report on the pod, and once in an event, why it is not mirrored."""
    return Decision(tuple(_blocked_steps(upper, problem, now)), waits, problem)


def create(key: Key, upper: PodView, references: Iterable[Reference], lower: LowerWorld, world: World) -> Decision:
    """Create the lower pod once its namespace and all that it refers to (`references`) exist in the lower cluster."""
    refusal = service_account.creation_problem(upper.manifest)
    if refusal is not None:
        return report_blocked(upper, refusal, world.now)
    awaited_keys = service_account.missing_keys(key.namespace, references, lower, world) or token_rule.missing(
        lower, upper.manifest, world.owner
    )
    problem = _first_problem(awaited_keys or (key,), world)
    if awaited_keys and problem is not None:
        return report_blocked(upper, problem, world.now, tuple(awaited_keys))
    if awaited_keys:
        return Decision(depends_on=tuple(awaited_keys))
    steps = _blocked_steps(upper, problem, world.now) if problem is not None else []
    context = lower_context_of(namespaces.ready(lower, key.namespace), key, lower, world)
    return Decision((*steps, *_creation_steps(key, upper, context)))


def out_of_reach(upper: PodView, lower: LowerWorld, world: World) -> Decision:
    """Report on a pod that its lower cluster does not answer."""
    body = unreachable_status(upper, timestamp(world.now))
    reason = f"lower cluster {lower.name} does not answer"
    return Decision((status_write(upper, body, reason),) if body else ())


def sync(key: Key, upper: PodView, lower_pod: Entry, lower: LowerWorld, world: World) -> Decision:
    """Keep a mirrored pod in sync: its status in the upper cluster, and changes of its spec in the lower cluster.

    If a pair of pods needed no changes, only the status is compared until spec, labels or annotations of one change, or
    the topology or a joined lower does.
    """
    pod = view_of(lower_pod.manifest())
    known = _synced_pairs(lower, world).get((key.namespace, key.name))
    if known is None or known != _pair_hash(upper, pod):
        return _sync_all(key, upper, pod, lower, world)
    body = upper_status(upper, pod, generation=upper.meta.get("generation") or 1)
    return _NOTHING if body is None else Decision((status_write(upper, body, _STATUS_CHANGED),))


def _sync_all(key: Key, upper: PodView, pod: PodView, lower: LowerWorld, world: World) -> Decision:
    """Compare both pods as a whole. A pair that needs no change is noted.

    The status comes first; its observedGeneration is the generation whose spec the lower pod has.
    """
    changed, metadata_steps = _differences(upper, pod, lower, world)
    is_ending = "deletionTimestamp" in pod.meta or pod.phase in TERMINAL
    waits = () if is_ending else _awaited_keys(upper, changed, lower, world)
    lower_steps: list[Wanted] = [one for one in changed if not (waits and adds_containers(one))]
    lower_steps = [] if is_ending else lower_steps + metadata_steps
    problem = _first_problem((key, *waits), world) if lower_steps or waits else None
    condition = sync_condition(upper, problem, lower.name, world.now, waiting=bool(lower_steps or waits))
    if not (problem or lower_steps or waits or is_ending):
        condition = _drift_condition(upper, pod, lower, world)
    toleration_steps = _toleration_patch(upper)
    pair_hash = _pair_hash(upper, pod)
    if pair_hash and not (changed or metadata_steps or condition or toleration_steps):
        lower.synced_pairs[key.namespace, key.name] = pair_hash
    observed = upper.status.get("observedGeneration") or 0
    body = upper_status(
        upper, pod, generation=observed if changed else upper.meta.get("generation") or 1, synced=condition
    )
    wanted = (
        toleration_steps
        if body is None
        else [status_write(upper, body, _STATUS_CHANGED), *_refusal_events(upper, condition)]
    )
    return Decision((*wanted, *lower_steps), waits)


def _drift_condition(upper: PodView, pod: PodView, lower: LowerWorld, world: World) -> Manifest | None:
    """Return the condition of a pod that another client has changed irreversibly in the lower cluster, else None."""
    message = drift(upper.manifest, pod.manifest, _update_context(pod.meta["namespace"], lower, world))
    return lasting_change_condition(upper, message, lower.name, world.now) if message else None


def irreversible(upper_pod: Manifest, pod: Manifest, lower: LowerWorld, world: World) -> list[LastingChange]:
    """Return what another client has changed irreversibly in the lower pod of a living pod."""
    context = _update_context(metadata(pod)["namespace"], lower, world)
    return lasting_changes(upper_pod, pod, context)


def _differences(upper: PodView, pod: PodView, lower: LowerWorld, world: World) -> tuple[list[Patched], list[Wanted]]:
    """Return the changes of spec and of metadata that the lower pod needs."""
    namespace, name = pod.meta["namespace"], pod.meta["name"]
    context, ref = _update_context(namespace, lower, world), Ref(lower.name, POD, namespace, name)
    spec_changes = lower_pod_updates(upper.manifest, pod.manifest, ref, context)
    return spec_changes, _metadata_steps(
        upper.manifest, pod.manifest, ref, context, sent=any(map(changes_images, spec_changes))
    )


def _pair_hash(upper: PodView, lower: PodView) -> int:
    """Return a hash of two pods without status, by which an unchanged pair is recognized; 0 without generations."""
    upper_meta, lower_meta = upper.meta, lower.meta
    if not (upper_meta.get("generation") and lower_meta.get("generation")):
        return 0
    maps = [
        tuple((meta.get(one) or {}).items()) for meta in (upper_meta, lower_meta) for one in ("labels", "annotations")
    ]
    return hash((upper_meta["uid"], upper_meta["generation"], lower_meta["uid"], lower_meta["generation"], *maps))


def _awaited_keys(upper: PodView, changed: list[Patched], lower: LowerWorld, world: World) -> tuple[Key, ...]:
    """Return the keys of what new ephemeral containers refer to and the lower cluster does not have yet."""
    if not any(map(adds_containers, changed)):
        return ()
    return tuple(config.missing(world, lower, upper.meta["namespace"], references(upper.manifest)))


def _first_problem(keys: Iterable[Key], world: World) -> Problem | None:
    """Return the first known problem of the keys."""
    return next((world.problems[one] for one in keys if one in world.problems), None)


def _refusal_events(upper: PodView, condition: Manifest | None) -> list[Wanted]:
    """Return one event about a change that is refused; none where the condition already says so."""
    if condition is None or condition == upper.conditions.get(SYNCED):
        return []
    reason = MODIFIED_IN_LOWER if condition["reason"] == MODIFIED_IN_LOWER else CHANGE_NOT_APPLIED
    return [EmitEvent(upper.ref, upper.meta["uid"], reason, condition["message"])]


def _blocked_steps(upper: PodView, problem: Problem, now: datetime) -> list[Wanted]:
    body = pending_status(upper, problem.reason, problem.message, timestamp(now))
    if body is None:
        return []
    step = status_write(upper, body, problem.message)
    return [step, EmitEvent(upper.ref, upper.meta["uid"], problem.reason, problem.message)]


def _creation_steps(key: Key, upper: PodView, context: LowerContext) -> list[Wanted]:
    """Return the lower pod, events about what was not mirrored, and the tolerations of the upper pod."""
    ref = Ref(key.lower, POD, context.namespace, key.name)
    present = Present(ref, to_lower_pod(upper.manifest, context), f"bound to node {context.node_name}")
    events = [EmitEvent(upper.ref, upper.meta["uid"], note.reason, note.message) for note in notes(upper.manifest)]
    return [present, *_toleration_patch(upper), *events]


def _metadata_steps(upper_pod: Manifest, pod: Manifest, ref: Ref, context: LowerContext, *, sent: bool) -> list[Wanted]:
    """Return the write of labels and annotations of the lower pod, [] where it has them.

    Where images are `sent` in this round, only that write changes the note of them. Most pods are in sync, which our
    keys on them show: a key that was removed from the upper pod is still in the note of written keys. A pod without
    notes, created before there were any, gets them with its next change.
    """
    meta = mutable_metadata(upper_pod, context)
    if meta["labels"].items() <= labels(pod).items() and meta["annotations"].items() <= annotations(pod).items():
        return []
    if WRITTEN_KEYS not in annotations(pod) and not changes({"metadata": _without_notes(meta)}, pod, _MUTABLE):
        return []
    meta = mutable_metadata(upper_pod, context, pod)
    if sent:
        del meta["annotations"][WRITTEN_IMAGES]
        meta["annotations"] |= {key: note for key, note in annotations(pod).items() if key == WRITTEN_IMAGES}
    wanted = {"metadata": {"name": ref.name, **meta}}
    if not changes(wanted, pod, _MUTABLE):
        return []
    return [Present(ref, wanted, "labels or annotations differ from the upper pod's", sections=_MUTABLE)]


def _without_notes(meta: Manifest) -> Manifest:
    """Return labels and annotations without the notes of what was written."""
    kept = {key: value for key, value in meta["annotations"].items() if key not in BOOKKEEPING}
    return {**meta, "annotations": kept}


def _update_context(namespace: str, lower: LowerWorld, world: World) -> LowerContext:
    """Return a `LowerContext` with what updates of a lower pod depend on."""
    return LowerContext(
        world.owner,
        lower.node,
        namespace,
        "",
        ignore_labels=frozenset(lower.spec.ignore_labels),
        taints=_virtual_taints(world),
        upper_server=world.upper_server,
    )


def _synced_pairs(lower: LowerWorld, world: World) -> dict[tuple[str, str], int]:
    """Return the pairs of pods that needed no change; none after a change of what their comparison depends on.

    An edit changes the topology first, and each lower when its turn comes. A lower that was removed stays joined until
    it is empty. While nothing changes, the comparison of these inputs is one of identities.
    """
    inputs = (world.topology, world.upper_server, *(one.spec for one in world.lowers.values()))
    if inputs != lower.synced_under:
        lower.synced_pairs.clear()
    lower.synced_under = inputs
    return lower.synced_pairs


def _virtual_taints(world: World) -> tuple[Manifest, ...]:
    """Return the taints of all virtual nodes."""
    return taints_of([one.spec for one in world.lowers.values()])


def _toleration_patch(upper: PodView) -> list[Wanted]:
    """Return the patch that makes the pod tolerate a node whose engine is down; it fails if the pod changed."""
    tolerations = tolerations_for_upper(upper.manifest)
    if tolerations is None:
        return []
    patch = Patch("merge-patch", {"metadata": as_read(upper.manifest), "spec": {"tolerations": tolerations}})
    reason = "the pod must not be evicted while the engine is down"
    return [Patched(upper.ref, patch, reason, in_plan=True, independent=True)]


def lower_context_of(namespace_uid: str, key: Key, lower: LowerWorld, world: World) -> LowerContext:
    """Return the `LowerContext` for the pods of a namespace."""
    lower_label_keys = frozenset(map(str, lower.nodes.values("label")))
    node_labels = _node_labels(lower, world)
    return LowerContext(
        world.owner,
        lower.node,
        lower.namespace(key.namespace),
        namespace_uid,
        identity=lower.spec.service_accounts.identity,
        ignore_labels=frozenset(lower.spec.ignore_labels),
        node_label_keys=frozenset(lower.spec.node.labels) - lower_label_keys,
        domain_keys=frozenset(node_labels or ()) - lower_label_keys - {HOSTNAME} if lower_label_keys else frozenset(),
        node_labels=node_labels,
        ignore_selector_keys=frozenset(world.topology.webhook.ignore_selector_keys),
        virtual_nodes=world.virtual_nodes,
        taints=_virtual_taints(world),
        storage_classes=lower.spec.storage_classes,
        namespace_of=lower.namespace,
        upper_server=world.upper_server,
    )


def _node_labels(lower: LowerWorld, world: World) -> dict[str, str] | None:
    """Return the labels of a lower's virtual node, None while it does not exist."""
    node = world.upper.nodes.get("", lower.node)
    return None if node is None else _labels_in(node.raw)


@lru_cache(maxsize=64)
def _labels_in(node: bytes) -> dict[str, str]:
    """Return a Node's labels; cached, since each new pod needs them and a Node is written only every few minutes."""
    return labels(orjson.loads(node))
