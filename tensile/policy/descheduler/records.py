"""What the descheduler remembers: which pods left which virtual node, written on that Node before they leave.

From these notes follow how many may leave now, and where a pod that is made anew shall not go; an engine that starts
afterwards, or beside this one, reads the same. They stand on the Node since they are about it and go with it.

Where a pod without a controller is kept while it moves: in a Secret of ours, beside it in its namespace above.

The Secret is written before the pod is evicted and goes when the one in its place is there, so that whatever happens in
between, the next engine finds all that it needs. It is a Secret since what a pod says is only for those who may read
pods; it is in the pod's namespace since it is that namespace's, goes with it, and needs no other place.
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
"""Notes on one Node: without the nodes in them they fit into its annotations several times."""
_MOST_BYTES = 160 * 1024
"""Of what is written: all annotations of an object may have 256 KiB together."""


class Note(msgspec.Struct, frozen=True):
    """One pod that had to leave: UIDs of its controller and of itself, when, and the virtual nodes that will not do."""

    owner: str
    pod: str
    at: datetime
    nodes: tuple[str, ...] = ()


_MARK = TRIED.encode()
_NOTES = msgspec.json.Decoder(list[Note])


def notes_on(node: Manifest) -> list[Note]:
    """Read the notes on a Node; what is no such note says nothing."""
    try:
        found = _NOTES.decode(annotations(node).get(TRIED) or "[]")
    except (msgspec.DecodeError, RecursionError):
        return []
    return [note for note in found if note.at.tzinfo is not None]


def recent(notes: Iterable[Note], now: datetime, within: timedelta) -> list[Note]:
    """Return the notes that are younger than that; a clock that was put back makes none older."""
    return [note for note in notes if now - note.at < within]


def written(notes: Iterable[Note]) -> str:
    """Write notes as the annotation has them; where that is too much, the oldest without their nodes.

    What limits need is left: who left and when. Which nodes will not do counts in the latest of a controller.
    """
    every, cut = list(notes), set[str]()
    over = sum(map(_size, every)) - _MOST_BYTES
    for note in sorted(every, key=lambda one: one.at):
        if over > 0:
            over -= _size(note) - _size(_bare(note))
            cut.add(note.pod)
    return msgspec.json.encode([_bare(note) if note.pod in cut else note for note in every]).decode()


def _bare(note: Note) -> Note:
    return replace(note, nodes=())


def _size(note: Note) -> int:
    return len(msgspec.json.encode(note)) + 1


def kept_for(policy: Descheduler) -> timedelta:
    """Return for how long a note counts for anything."""
    return max(policy.cooldown, policy.interval)


def nodes_left(nodes: Iterable[Entry], policy: Descheduler, now: datetime, owner: str) -> frozenset[str]:
    """Return the virtual nodes that pods of a controller (its UID) left within the cooldown."""
    return frozenset(
        node.name
        for node in nodes
        if any(note.owner == owner for note in recent(notes_on(node.manifest()), now, policy.cooldown))
    )


def nodes_tried(nodes: Iterable[Entry], policy: Descheduler, now: datetime, owner: str) -> tuple[str, ...]:
    """Return the virtual nodes to which a pod of a controller (its UID) shall not go now, sorted.

    Those that its pods left, and those that could not have taken the one that left last either. None while the
    descheduler is off: nobody would bring the pod away from where it was tried again. Notes are decoded only where the
    controller is named at all: this is asked for each pod that is created.
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
    """Return which Node that is."""
    return Ref(UPPER, NODE, "", metadata(node)["name"])


PREFIX = "tensile-pod-"
_CONTENT = "pod.json"


class Kept(NamedTuple):
    """What a Secret of ours says.

    `uid` is that of the pod which it is about, `pod` the one to make in its place, None where that cannot be read;
    `taken` is whether somebody else has its place, `withdrawn` since when the pod is not to leave after all.
    """

    uid: str
    pod: Manifest | None
    taken: bool = False
    withdrawn: datetime | None = None

    @property
    def is_safe(self) -> bool:
        """Whether the pod may leave: it can be made again, and nobody is about to let go of what that needs."""
        return self.pod is not None and self.withdrawn is None


def ref_of(namespace: str, pod_uid: str) -> Ref:
    """Return which Secret keeps the pod of that UID."""
    return Ref(UPPER, SECRET, namespace, PREFIX + pod_uid)


def present(successor: Manifest, pod: Entry, owner: Owner, reason: str) -> Present:
    """Want the Secret that keeps what is to be made in a pod's place; refused, it holds up nobody else's."""
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
    return Present(ref, manifest, reason, apart=True)


def kept_of(pod: Entry, world: World) -> Kept | None:
    """Return what is kept of a pod above, None for nothing; what has another name is not it."""
    ref = ref_of(pod.namespace, pod.uid)
    entry = world.upper.secrets.get(ref.namespace, ref.name)
    kept = kept_in(entry, world.owner) if entry is not None else None
    is_other = kept is not None and kept.pod is not None and metadata(kept.pod)["name"] != pod.name
    return kept._replace(pod=None) if kept is not None and is_other else kept


def kept_in(entry: Entry, owner: Owner) -> Kept | None:
    """Read such a Secret, None for one that is not ours."""
    secret = entry.manifest()
    pod_uid = upper_uid_of(secret)
    if entry.name != PREFIX + pod_uid or not is_ours(secret, owner):
        return None
    notes = annotations(secret)
    return Kept(pod_uid, _content(secret, pod_uid), PLACE_TAKEN in notes, _moment(notes.get(WITHDRAWN)))


def of_pod(secret: Entry, lower: LowerWorld) -> Iterator[Entry]:
    """Yield the pod on a lower's node that such a Secret is about, none for another Secret."""
    if secret.name.startswith(PREFIX):
        yield from lower.upper_pods.select("uid", secret.name.removeprefix(PREFIX))


def noted(entry: Entry, key: str, value: str | None, reason: str) -> Patched:
    """Want an annotation on such a Secret, None: not any more; unless somebody has written it since it was read."""
    patch = Patch("merge-patch", {"metadata": {**as_read(entry.manifest()), "annotations": {key: value}}})
    return Patched(Ref(UPPER, SECRET, entry.namespace, entry.name), patch, reason)


def withdrawal(pod: Entry, world: World, reason: str) -> Patched:
    """Want it noted on the Secret that keeps a pod that nobody may rely on it: it goes after a while."""
    ref = ref_of(pod.namespace, pod.uid)
    entry = world.upper.secrets.get(ref.namespace, ref.name)
    assert entry is not None
    return noted(entry, WITHDRAWN, timestamp(world.now), reason)


def _moment(noted: str | None) -> datetime | None:
    """Read a moment; what is none says nothing."""
    try:
        return moment_of(noted) if noted else None
    except ValueError:
        return None


def _content(secret: Manifest, pod_uid: str) -> Manifest | None:
    """Read the pod; what is none, or is not in the place that the Secret may speak of, counts as none.

    Whoever may write Secrets there can have written it, and one that cannot be read must not keep others from moving.
    """
    try:
        pod: Manifest = orjson.loads(b64decode(secret["data"][_CONTENT]))
    except (KeyError, TypeError, ValueError):
        return None
    if not is_pod(pod) or not metadata(pod).get("name"):
        return None
    is_there = metadata(pod).get("namespace") == metadata(secret)["namespace"]
    return pod if is_there and annotations(pod).get(REPLACES) == pod_uid else None
