"""What the descheduler remembers: which pods left which virtual node, written on that Node before they leave.

From these notes follow how many may leave now, and where a pod that is made anew shall not go; an engine that starts
afterwards, or beside this one, reads the same. They stand on the Node since they are about it and go with it.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from tensile.cache import Entry
from tensile.names import TRIED
from tensile.objects import NODE, UPPER, Manifest, Ref, annotations, metadata
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
    """Give the notes that are younger than that; a clock that was put back makes none older."""
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
    """Say for how long a note counts for anything."""
    return max(policy.cooldown, policy.interval)


def nodes_left(nodes: Iterable[Entry], policy: Descheduler, now: datetime, owner: str) -> frozenset[str]:
    """Give the virtual nodes that pods of a controller (its UID) left within the cooldown."""
    return frozenset(
        node.name
        for node in nodes
        if any(note.owner == owner for note in recent(notes_on(node.manifest()), now, policy.cooldown))
    )


def nodes_tried(nodes: Iterable[Entry], policy: Descheduler, now: datetime, owner: str) -> tuple[str, ...]:
    """Give the virtual nodes to which a pod of a controller (its UID) shall not go now, sorted.

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
    """Say which Node that is."""
    return Ref(UPPER, NODE, "", metadata(node)["name"])
