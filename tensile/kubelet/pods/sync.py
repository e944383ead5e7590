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
from tensile.kubelet.pods.conditions import conditions_of, status_of
from tensile.kubelet.pods.placement_context import LowerContext
from tensile.kubelet.pods.projection import lower_pod, mutable_metadata, notes
from tensile.kubelet.pods.status import pending_because, status_write, unreachable, upper_status
from tensile.kubelet.pods.update import (
    CHANGED_BELOW,
    NOT_IN_STEP,
    adds_containers,
    changed_below,
    changes_below,
    changes_images,
    drift,
    sync_condition,
)
from tensile.names import BOOKKEEPING, IN_STEP, WRITTEN_IMAGES, WRITTEN_KEYS
from tensile.objects import POD, UPPER, Manifest, Ref, annotations, as_read, labels, metadata, timestamp, uid
from tensile.reconcile.desired import Decision, EmitEvent, Patched, Present, Wanted
from tensile.reconcile.diff import changes
from tensile.reconcile.pods.references import Reference, references
from tensile.reconcile.pods.scheduling import HOSTNAME, taints_of, tolerations_for_upper
from tensile.reconcile.rules import config, namespaces
from tensile.reconcile.world import Key, LowerWorld, Problem, World

_MUTABLE = ("metadata.labels", "metadata.annotations")


def report_blocked(upper_pod: Manifest, problem: Problem, now: datetime, waits: tuple[Key, ...] = ()) -> Decision:
    """Report on the pod, and once in an event, why it is not mirrored."""
    return Decision(tuple(_complaint(upper_pod, problem, now)), waits, problem)


def create(key: Key, upper_pod: Manifest, named: Iterable[Reference], lower: LowerWorld, world: World) -> Decision:
    """Create the lower pod once its namespace and all that it refers to (`named`) exist in the lower cluster."""
    refused = service_account.refused(upper_pod)
    if refused is not None:
        return report_blocked(upper_pod, refused, world.now)
    awaited = service_account.awaited(key.namespace, named, lower, world) or token_rule.missing(
        lower, upper_pod, world.owner
    )
    known = (world.problems.get(one) for one in awaited or [key])
    problem = next((one for one in known if one is not None), None)
    if awaited and problem is not None:
        return report_blocked(upper_pod, problem, world.now, tuple(awaited))
    if awaited:
        return Decision(depends_on=tuple(awaited))
    complaint = _complaint(upper_pod, problem, world.now) if problem is not None else []
    namespace = namespaces.ready(lower, key.namespace)
    return Decision((*complaint, *_made(key, upper_pod, placement(namespace, key, lower, world))))


def out_of_reach(upper_pod: Manifest, lower: LowerWorld, world: World) -> Decision:
    """Report on a pod that its lower cluster does not answer."""
    body = unreachable(upper_pod, timestamp(world.now))
    lost = f"lower cluster {lower.name} does not answer"
    return Decision((status_write(upper_pod, body, lost),) if body else ())


def sync(key: Key, upper_pod: Manifest, below: Entry, lower: LowerWorld, world: World) -> Decision:
    """Keep a mirrored pod in sync: its status in the upper cluster, and changes of its spec in the lower cluster.

    The status comes first; its observedGeneration is the generation whose spec the lower pod has. If a pair of pods
    needed no changes, it is compared again when spec, labels or annotations of one change, or the topology does.
    """
    pod = below.manifest()
    pair, name = _pair(upper_pod, pod), (key.namespace, key.name)
    noted = lower.in_step.get(name)
    is_settled = noted is not None and noted[0] == pair and noted[1] is world.topology
    changed, described = ([], []) if is_settled else _differences(upper_pod, pod, lower, world)
    waits = _awaited(upper_pod, changed, lower, world)
    below_now: list[Wanted] = [one for one in changed if not (waits and adds_containers(one))]
    below_now += described
    if below.facts.terminating or below.facts.terminal:
        below_now, waits = [], ()
    known = status_of(upper_pod).get("observedGeneration") or 0
    generation = known if changed else metadata(upper_pod).get("generation") or 1
    problem = _obstacle((key, *waits), world) if below_now or waits else None
    said = sync_condition(upper_pod, problem, lower.name, world.now, waiting=bool(below_now or waits))
    if not (problem or below_now or waits or is_settled):
        said = _drifted(upper_pod, below, lower, world)
    tolerant = [] if is_settled else _tolerant(upper_pod)
    if pair and not (changed or described or said or tolerant):
        lower.in_step[name] = (pair, world.topology)
    body = upper_status(upper_pod, pod, generation=generation, in_step=said)
    wanted: list[Wanted] = [] if body is None else [status_write(upper_pod, body, "the lower pod says so")]
    wanted += _refusal(upper_pod, said) if body is not None else tolerant
    return Decision((*wanted, *below_now), waits)


def _drifted(upper_pod: Manifest, below: Entry, lower: LowerWorld, world: World) -> Manifest | None:
    """Return the condition of a pod that another client has changed irreversibly in the lower cluster, else None."""
    if below.facts.terminating or below.facts.terminal:
        return None
    words = drift(upper_pod, below.manifest(), _kept_place(below.namespace, lower, world))
    return changed_below(upper_pod, words, lower.name, world.now) if words else None


def _differences(
    upper_pod: Manifest, pod: Manifest, lower: LowerWorld, world: World
) -> tuple[list[Patched], list[Wanted]]:
    """Return the changes of spec and of metadata that the lower pod needs."""
    meta = metadata(pod)
    place, ref = _kept_place(meta["namespace"], lower, world), Ref(lower.name, POD, meta["namespace"], meta["name"])
    changed = changes_below(upper_pod, pod, ref, place)
    return changed, _metadata(upper_pod, pod, ref, place, sent=any(map(changes_images, changed)))


def _pair(*pods: Manifest) -> int:
    """Return a hash of two pods without status, by which an unchanged pair is recognized; 0 without generations."""
    forms: list[object] = []
    for meta in map(metadata, pods):
        if not meta.get("generation"):
            return 0
        maps = (tuple((meta.get(section) or {}).items()) for section in ("labels", "annotations"))
        forms += (meta["uid"], meta["generation"], *maps)
    return hash(tuple(forms))


def _awaited(upper_pod: Manifest, changed: list[Patched], lower: LowerWorld, world: World) -> tuple[Key, ...]:
    """Return the keys of what new ephemeral containers refer to and the lower cluster does not have yet."""
    if not any(map(adds_containers, changed)):
        return ()
    namespace = metadata(upper_pod)["namespace"]
    return tuple(config.missing(world, lower, namespace, references(upper_pod)))


def _obstacle(keys: Iterable[Key], world: World) -> Problem | None:
    """Return the first known problem of the keys."""
    return next((world.problems[one] for one in keys if one in world.problems), None)


def _refusal(upper_pod: Manifest, said: Manifest | None) -> list[Wanted]:
    """Return one event about a change that is refused; none where the condition already says so."""
    if said is None or said == conditions_of(upper_pod).get(IN_STEP):
        return []
    meta = metadata(upper_pod)
    reason = CHANGED_BELOW if said["reason"] == CHANGED_BELOW else NOT_IN_STEP
    return [EmitEvent(Ref(UPPER, POD, meta["namespace"], meta["name"]), meta["uid"], reason, said["message"])]


def _complaint(upper_pod: Manifest, problem: Problem, now: datetime) -> list[Wanted]:
    body = pending_because(upper_pod, problem.reason, problem.message, timestamp(now))
    if body is None:
        return []
    written = status_write(upper_pod, body, problem.message)
    return [written, EmitEvent(written.ref, uid(upper_pod), problem.reason, problem.message)]


def _made(key: Key, upper_pod: Manifest, place: LowerContext) -> list[Wanted]:
    """Return the lower pod, events about what was not mirrored, and the tolerations of the upper pod."""
    ref = Ref(key.lower, POD, place.namespace, key.name)
    present = Present(ref, lower_pod(upper_pod, place), f"bound to node {place.node_name}")
    above = Ref(UPPER, POD, key.namespace, key.name)
    told = [EmitEvent(above, uid(upper_pod), note.reason, note.message) for note in notes(upper_pod, place)]
    return [present, *_tolerant(upper_pod), *told]


def _metadata(upper_pod: Manifest, pod: Manifest, ref: Ref, place: LowerContext, *, sent: bool) -> list[Wanted]:
    """Return the write of labels and annotations of the lower pod, [] where it has them.

    Where images are `sent` in this round, only that write changes the note of them. Most pods are in sync, which our
    keys on them show: a key that was removed from the upper pod is still in the note of written keys. A pod without
    notes, created before there were any, gets them with its next change.
    """
    meta = mutable_metadata(upper_pod, place)
    if meta["labels"].items() <= labels(pod).items() and meta["annotations"].items() <= annotations(pod).items():
        return []
    if WRITTEN_KEYS not in annotations(pod) and not changes({"metadata": _without_notes(meta)}, pod, _MUTABLE):
        return []
    meta = mutable_metadata(upper_pod, place, pod)
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


def _kept_place(namespace: str, lower: LowerWorld, world: World) -> LowerContext:
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


def _virtual_taints(world: World) -> tuple[Manifest, ...]:
    """Return the taints of all virtual nodes."""
    return taints_of([one.spec for one in world.lowers.values()])


def _tolerant(upper_pod: Manifest) -> list[Wanted]:
    """Return the patch that makes the pod tolerate a node whose engine is down; it fails if the pod changed."""
    tolerations = tolerations_for_upper(upper_pod)
    if tolerations is None:
        return []
    meta = metadata(upper_pod)
    patch = Patch("merge-patch", {"metadata": as_read(upper_pod), "spec": {"tolerations": tolerations}})
    ref = Ref(UPPER, POD, meta["namespace"], meta["name"])
    return [Patched(ref, patch, "the pod has to outlast an engine that is down", in_plan=True)]


def placement(namespace_uid: str, key: Key, lower: LowerWorld, world: World) -> LowerContext:
    """Return the `LowerContext` for the pods of a namespace."""
    real = frozenset[str]().union(*(entry.facts.label_keys for entry in lower.nodes))
    above = _node_labels(lower, world)
    return LowerContext(
        world.owner,
        lower.node,
        lower.namespace(key.namespace),
        namespace_uid,
        identity=lower.spec.service_accounts.identity,
        ignore_labels=frozenset(lower.spec.ignore_labels),
        node_label_keys=frozenset(lower.spec.node.labels) - real,
        domain_keys=frozenset(above or ()) - real - {HOSTNAME} if real else frozenset(),
        node_labels=above,
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
