"""Who was told to leave and has not come anywhere yet: room that is free now, and is theirs.

A pod's controller makes the one in its place as soon as the old one begins to end, and the upper scheduler binds it
some time after. Whoever looks in between, for another lower or in another engine, would give the same room away again.
"""

from collections.abc import Iterator
from datetime import datetime

from tensile.cache import Entry
from tensile.objects import controller_of, metadata, moment_of
from tensile.policy.tried import Note, notes_on, recent
from tensile.world import LowerWorld, World


def underway(world: World) -> Iterator[tuple[Entry, str, str]]:
    """Give each pod that was told to leave within this interval and is still there, its virtual node and its owner.

    Those of an owner in whose place others have come to a node since are not among them, whichever of them it was.
    """
    told = [(upper, lower.node, note) for lower in world.lowers.values() for upper, note in _told(lower, world)]
    begun: dict[str, datetime] = {}
    for _, _, note in told:
        begun[note.owner] = min(note.at, begun.get(note.owner, note.at))
    gone = {upper.uid for upper, _, _ in told}
    come = {owner: _come(owner, since, gone, world) for owner, since in begun.items()}
    for upper, node, note in told:
        if come[note.owner] > 0:
            come[note.owner] -= 1
        else:
            yield upper, node, note.owner


def told_lately(lower: LowerWorld, world: World) -> list[Note]:
    """Give the notes of a lower's Node that were written within this interval."""
    node = world.upper.nodes.get("", lower.node)
    return recent(notes_on(node.manifest()) if node else (), world.now, world.topology.descheduler.interval)


def _told(lower: LowerWorld, world: World) -> Iterator[tuple[Entry, Note]]:
    for note in told_lately(lower, world):
        for upper in lower.upper_pods.select("upper", note.pod):
            yield upper, note


def _come(owner: str, since: datetime, gone: set[str], world: World) -> int:
    """Count an owner's pods that were made since and have a node; the API tells times in whole seconds."""
    if not owner:
        return 0
    mark, begin = owner.encode(), since.replace(microsecond=0)
    found = (entry for lower in world.lowers.values() for entry in lower.upper_pods if mark in entry.raw)
    return sum(entry.uid not in gone and _is_since(entry, owner, begin) for entry in found)


def _is_since(entry: Entry, owner: str, begin: datetime) -> bool:
    pod = entry.manifest()
    made = str(metadata(pod).get("creationTimestamp") or "")
    return controller_of(pod).get("uid") == owner and bool(made) and moment_of(made) >= begin
