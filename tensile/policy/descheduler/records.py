"""Records of evictions on Nodes, and backups of bare pods in Secrets.

A record is written on the virtual node before its pod is evicted. From the records follow how many pods may leave now,
and which nodes a re-created pod must avoid; an engine that starts later, or runs beside this one, reads the same. They
are kept on the Node because they concern it and are deleted with it.

A backup holds a pod without a controller while it moves. It is written before the pod is evicted and deleted once the
replacement exists, so that after any crash the next engine finds all it needs. It is a Secret because only those who
may read pods may see a pod's content. It is in the pod's namespace so that it is deleted with that namespace.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import orjson
from msgspec.structs import replace

from tensile.kube.cluster import Patch
from tensile.kube.store import Entry
from tensile.names import KEPT_POD, PLACE_TAKEN, REPLACES, TRIED, WITHDRAWN, Owner
from tensile.objects import NODE, SECRET, UPPER, Manifest, Ref, annotations, as_read, metadata, moment_of, timestamp
from tensile.reconcile.desired import Patched, Present
from tensile.reconcile.ownership import is_ours, upper_uid_of
from tensile.reconcile.pods.pod_schema import is_pod
from tensile.reconcile.world import LowerWorld, World
from tensile.topology import Descheduler

MOST = 1_000
"""Maximum of records on one Node: without their lists of nodes they fit into its annotations several times."""
_MOST_BYTES = 160 * 1024
"""Maximum bytes of the records; all annotations of an object together may have 256 KiB."""
PREFIX = "tensile-pod-"
_CONTENT = "pod.json"
_MARK = TRIED.encode()


class EvictionRecord(msgspec.Struct, frozen=True):
    """One evicted pod: the UIDs of its controller and of the pod, when, and the virtual nodes that are unsuitable."""

    owner: str
    pod: str
    at: datetime
    nodes: tuple[str, ...] = ()


_NOTES = msgspec.json.Decoder(list[EvictionRecord])


class PodBackup(NamedTuple):
    """The content of a backup Secret.

    `uid` is the UID of the pod it backs up, `pod` the pod to create in its place, None if it is not readable. `taken`
    is whether another pod has the name, `withdrawn` since when the pod is to stay after all.
    """

    uid: str
    pod: Manifest | None
    taken: bool = False
    withdrawn: datetime | None = None

    @property
    def is_safe(self) -> bool:
        """Whether the pod may leave: the backup is readable and not withdrawn."""
        return self.pod is not None and self.withdrawn is None


def notes_on(node: Manifest) -> list[EvictionRecord]:
    """Return the records on a Node; an empty list if they cannot be decoded."""
    try:
        found = _NOTES.decode(annotations(node).get(TRIED) or "[]")
    except (msgspec.DecodeError, RecursionError):
        return []
    return [note for note in found if note.at.tzinfo is not None]


def recent(notes: Iterable[EvictionRecord], now: datetime, within: timedelta) -> list[EvictionRecord]:
    """Return the records that are younger than `within`; a clock that was set back makes none older."""
    return [note for note in notes if now - note.at < within]


def written(notes: Iterable[EvictionRecord]) -> str:
    """Return records as the annotation's text; if that is too long, the oldest ones without their nodes.

    Limits need only who left and when; the nodes matter in the latest record of a controller.
    """
    every, cut = list(notes), set[str]()
    over = sum(map(_size, every)) - _MOST_BYTES
    for note in sorted(every, key=lambda one: one.at):
        if over > 0:
            over -= _size(note) - _size(_bare(note))
            cut.add(note.pod)
    return msgspec.json.encode([_bare(note) if note.pod in cut else note for note in every]).decode()


def _bare(note: EvictionRecord) -> EvictionRecord:
    return replace(note, nodes=())


def _size(note: EvictionRecord) -> int:
    return len(msgspec.json.encode(note)) + 1


def kept_for(policy: Descheduler) -> timedelta:
    """Return how long a record has any effect."""
    return max(policy.cooldown, policy.interval)


def nodes_left(nodes: Iterable[Entry], policy: Descheduler, now: datetime, owner: str) -> frozenset[str]:
    """Return the virtual nodes from which pods of a controller (its UID) were evicted within the cooldown."""
    return frozenset(
        node.name
        for node in nodes
        if any(note.owner == owner for note in recent(notes_on(node.manifest()), now, policy.cooldown))
    )


def nodes_tried(nodes: Iterable[Entry], policy: Descheduler, now: datetime, owner: str) -> tuple[str, ...]:
    """Return the virtual nodes to which a pod of a controller (its UID) must not go now, sorted.

    These are the nodes that its pods left, and those that could not have taken the last evicted one either. Empty while
    the descheduler is off, because then nothing would move the pod again. This is called for each pod that is created,
    so records are decoded only on Nodes that mention the controller.
    """
    if not policy.enabled:
        return ()
    sought = owner.encode(errors="replace")
    known = tuple(node for node in nodes if _MARK in node.raw and sought in node.raw)
    every = (note for node in known for note in notes_on(node.manifest()))
    found = [note for note in recent(every, now, policy.cooldown) if note.owner == owner]
    latest = max((note.at for note in found), default=None)
    others = {name for note in found if note.at == latest for name in note.nodes}
    return tuple(sorted(others | nodes_left(known, policy, now, owner)))


def node_ref(node: Manifest) -> Ref:
    """Return the ref of a Node."""
    return Ref(UPPER, NODE, "", metadata(node)["name"])


def ref_of(namespace: str, pod_uid: str) -> Ref:
    """Return the ref of the Secret that backs up the pod of a UID."""
    return Ref(UPPER, SECRET, namespace, PREFIX + pod_uid)


def present(successor: Manifest, pod: Entry, owner: Owner, reason: str) -> Present:
    """Return the backup Secret of a pod as desired; if it is refused, later steps still run."""
    ref = ref_of(pod.namespace, pod.uid)
    marks = {"labels": owner.label, "annotations": owner.signed(pod.uid)}
    manifest = {
        "apiVersion": SECRET.api,
        "kind": SECRET.name,
        "metadata": {"name": ref.name, "namespace": ref.namespace, **marks},
        "type": KEPT_POD,
        "immutable": True,
        "data": {_CONTENT: b64encode(orjson.dumps(successor)).decode()},
    }
    return Present(ref, manifest, reason, independent=True)


def kept_of(pod: Entry, world: World) -> PodBackup | None:
    """Return the backup of an upper pod, None for none; a backup of another name counts as unreadable."""
    ref = ref_of(pod.namespace, pod.uid)
    entry = world.upper.secrets.get(ref.namespace, ref.name)
    kept = kept_in(entry, world.owner) if entry is not None else None
    is_other = kept is not None and kept.pod is not None and metadata(kept.pod)["name"] != pod.name
    return kept._replace(pod=None) if kept is not None and is_other else kept


def kept_in(entry: Entry, owner: Owner) -> PodBackup | None:
    """Return the content of a backup Secret, None for a Secret that is not ours."""
    secret = entry.manifest()
    pod_uid = upper_uid_of(secret)
    if entry.name != PREFIX + pod_uid or not is_ours(secret, owner):
        return None
    notes = annotations(secret)
    return PodBackup(pod_uid, _content(secret, pod_uid), PLACE_TAKEN in notes, _moment(notes.get(WITHDRAWN)))


def _moment(noted: str | None) -> datetime | None:
    """Return a timestamp, None if it is not valid."""
    try:
        return moment_of(noted) if noted else None
    except ValueError:
        return None


def _content(secret: Manifest, pod_uid: str) -> Manifest | None:
    """Return the pod of a Secret, None if it is not valid: no pod, or of another namespace or UID than the Secret.

    Anyone who may write Secrets in that namespace can have written it; an unreadable one must not block other pods.
    """
    try:
        pod: Manifest = orjson.loads(b64decode(secret["data"][_CONTENT]))
    except (KeyError, TypeError, ValueError):
        return None
    if not is_pod(pod) or not metadata(pod).get("name"):
        return None
    is_there = metadata(pod).get("namespace") == metadata(secret)["namespace"]
    return pod if is_there and annotations(pod).get(REPLACES) == pod_uid else None


def of_pod(secret: Entry, lower: LowerWorld) -> Iterator[Entry]:
    """Yield the pod on a lower's node that a backup Secret is for, none for other Secrets."""
    if secret.name.startswith(PREFIX):
        yield from lower.upper_pods.select("uid", secret.name.removeprefix(PREFIX))


def noted(entry: Entry, key: str, value: str | None, reason: str) -> Patched:
    """Return the patch of an annotation of a backup Secret (None removes it).

    The resourceVersion that was read is its precondition.
    """
    patch = Patch("merge-patch", {"metadata": {**as_read(entry.manifest()), "annotations": {key: value}}})
    return Patched(Ref(UPPER, SECRET, entry.namespace, entry.name), patch, reason)


def withdrawal(pod: Entry, world: World, reason: str) -> Patched:
    """Return the patch that marks a pod's backup as withdrawn: it is not used any more, and deleted after a while."""
    ref = ref_of(pod.namespace, pod.uid)
    entry = world.upper.secrets.get(ref.namespace, ref.name)
    assert entry is not None
    return noted(entry, WITHDRAWN, timestamp(world.now), reason)
