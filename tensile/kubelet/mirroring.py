"""A living pod: what is written below and above so that the two tell the same story.

Reports come before the write that may be refused again, so that a pod which cannot start says why with its first try.
"""

from collections.abc import Iterable
from datetime import datetime

from tensile.cache import Entry
from tensile.cluster import Patch
from tensile.kubelet.ownstatus import pending_because, unreachable
from tensile.kubelet.place import Placement
from tensile.kubelet.projection import lower_pod, mutable_metadata, notes
from tensile.kubelet.reflection import upper_status
from tensile.kubelet.statuswrite import status_write
from tensile.kubelet.tolerations import tolerations_for_upper
from tensile.objects import POD, UPPER, Manifest, Ref, metadata, timestamp, uid
from tensile.reconcile import dependencies, namespaces
from tensile.reconcile.desired import Decision, Patched, Present, Told, Wanted
from tensile.reconcile.diff import changes
from tensile.reconcile.references import Reference
from tensile.world import Key, LowerWorld, Problem, World

_MUTABLE = ("metadata.labels", "metadata.annotations")


def report(upper_pod: Manifest, problem: Problem, now: datetime, waits: tuple[Key, ...] = ()) -> Decision:
    """Say on the pod, and once in an event, why it is not mirrored."""
    return Decision(tuple(_complaint(upper_pod, problem, now)), waits, problem)


def arrive(key: Key, upper_pod: Manifest, needs: Iterable[Reference], lower: LowerWorld, world: World) -> Decision:
    """Make the lower pod once its namespace and everything that it needs are below; `needs` is what it refers to."""
    namespace = namespaces.ready(lower, key.namespace)
    awaited = dependencies.missing(world, lower, key.namespace, needs)
    if not namespace:
        awaited = [namespaces.key_of(lower.name, key.namespace), *awaited]
    known = (world.problems.get(one) for one in awaited or [key])
    problem = next((one for one in known if one is not None), None)
    if awaited and problem is not None:
        return report(upper_pod, problem, world.now, tuple(awaited))
    if awaited:
        return Decision(waits=tuple(awaited))
    complaint = _complaint(upper_pod, problem, world.now) if problem is not None else []
    return Decision((*complaint, *_made(key, upper_pod, _placement(namespace, key, lower, world))))


def keep(upper_pod: Manifest, below: Entry | None, lower: LowerWorld, world: World) -> Decision:
    """Keep a mirrored pod in step; without its lower pod (None), all that is known is that nobody knows."""
    if below is None:
        body = unreachable(upper_pod, timestamp(world.now))
        lost = f"lower cluster {lower.name} does not answer"
        return Decision((status_write(upper_pod, body, lost),) if body else ())
    wanted: list[Wanted] = []
    pod = below.manifest()
    body = upper_status(upper_pod, pod, generation=metadata(upper_pod).get("generation") or 1)
    if body is not None:
        wanted.append(status_write(upper_pod, body, "the lower pod says so"))
    if not below.facts.terminating:
        wanted += _metadata(upper_pod, pod, below, lower, world)
    if body is None:
        wanted += _tolerant(upper_pod)
    return Decision(tuple(wanted))


def _complaint(upper_pod: Manifest, problem: Problem, now: datetime) -> list[Wanted]:
    body = pending_because(upper_pod, problem.reason, problem.message, timestamp(now))
    if body is None:
        return []
    written = status_write(upper_pod, body, problem.message)
    return [written, Told(written.ref, uid(upper_pod), problem.reason, problem.message)]


def _made(key: Key, upper_pod: Manifest, place: Placement) -> list[Wanted]:
    """Want the lower pod, tell what did not go down with it, and let the upper one outlast an engine that is down."""
    ref = Ref(key.lower, POD, place.namespace, key.name)
    present = Present(ref, lower_pod(upper_pod, place), f"bound to node {place.node_name}")
    above = Ref(UPPER, POD, key.namespace, key.name)
    told = [Told(above, uid(upper_pod), note.reason, note.message) for note in notes(upper_pod, place)]
    return [present, *_tolerant(upper_pod), *told]


def _metadata(upper_pod: Manifest, pod: Manifest, below: Entry, lower: LowerWorld, world: World) -> list[Wanted]:
    """Want the labels and annotations above below too; nothing where they are."""
    ignored = frozenset(lower.spec.ignore_labels)
    place = Placement(world.owner, lower.node, below.namespace, "", ignore_labels=ignored)
    wanted = {"metadata": {"name": below.name, **mutable_metadata(upper_pod, place)}}
    if not changes(wanted, pod, _MUTABLE):
        return []
    ref = Ref(lower.name, POD, below.namespace, below.name)
    return [Present(ref, wanted, "labels or annotations differ from the upper pod's", sections=_MUTABLE)]


def _tolerant(upper_pod: Manifest) -> list[Wanted]:
    """Let the pod tolerate, without limit, a node whose engine is down; only while nobody else changes it."""
    tolerations = tolerations_for_upper(upper_pod)
    if tolerations is None:
        return []
    meta = metadata(upper_pod)
    fence = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    patch = Patch("merge-patch", {"metadata": fence, "spec": {"tolerations": tolerations}})
    ref = Ref(UPPER, POD, meta["namespace"], meta["name"])
    return [Patched(ref, patch, "the pod has to outlast an engine that is down", shown=True)]


def _placement(namespace_uid: str, key: Key, lower: LowerWorld, world: World) -> Placement:
    """Say where the pods of a namespace go."""
    real = frozenset[str]().union(*(entry.facts.label_keys for entry in lower.nodes))
    taints = [taint for one in world.lowers.values() for taint in one.spec.node.taints]
    return Placement(
        world.owner,
        lower.node,
        lower.namespace(key.namespace),
        namespace_uid,
        ignore_labels=frozenset(lower.spec.ignore_labels),
        node_label_keys=frozenset(lower.spec.node.labels) - real,
        ignore_selector_keys=frozenset(world.topology.webhook.ignore_selector_keys),
        virtual_nodes=world.virtual_nodes,
        taints=tuple({"key": one.key, "value": one.value, "effect": one.effect} for one in taints),
        namespace_of=lower.namespace,
    )
