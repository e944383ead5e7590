"""Pods that leave and have no new node yet: the room that is free now is reserved for them.

A controller creates the replacement as soon as the old pod begins to terminate, and the upper scheduler binds it some
time later. A pod without a controller is re-created once the old one is gone. Without this, a decision in between, for
another lower cluster or in another engine, would use the same room twice.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import orjson

from tensile.kube.store import Entry
from tensile.objects import controller_of, deleted_at, metadata, moment_of
from tensile.policy.descheduler.drain import is_bare, is_emptied, kept
from tensile.policy.descheduler.limits import nodes_left, told_lately
from tensile.policy.descheduler.replacement import BACKUP, PodBackup, backup_in, backup_of, uses_claims
from tensile.policy.descheduler.targets import Targets
from tensile.reconcile.copies import bound
from tensile.reconcile.pods.index import lives_below
from tensile.reconcile.world import World


class InFlight(NamedTuple):
    """A pod that leaves, or its replacement, and since when.

    `node` is the virtual node that it leaves, "" if it has left; `owner` is the UID of its controller, "" for none.
    """

    pod: Entry
    node: str
    owner: str
    since: datetime


def in_flight(world: World) -> Iterator[InFlight]:
    """Yield the pods that leave and have no new node: evicted in this interval, drained, or being re-created.

    For each pod that its controller has created since and that is bound, one leaving pod is left out, whichever it was.
    """
    told = list(_told(world))
    known = {one.pod.uid for one in told}
    told += [one for one in _drained(world) if one.pod.uid not in known]
    come = _come(told, world)
    for one in told:
        if one.owner and come[one.owner] > 0:
            come[one.owner] -= 1
        else:
            yield one
    yield from _backed_up(world)
    yield from _unbound(world)


def settle(one: InFlight, world: World, ground: Targets) -> None:
    """Take the room for a pod that is on its way."""
    targets, _ = ground.others(one.pod, one.node, left_by(one.owner, world))
    if targets:
        ground.move(one.pod, one.node, targets[0])


def left_by(owner: str, world: World) -> frozenset[str]:
    """Return the virtual nodes that an owner's pods left lately; empty for pods without an owner."""
    if not owner:
        return frozenset()
    return nodes_left(world.upper.nodes, world.topology.descheduler, world.now, owner)


def _told(world: World) -> Iterator[InFlight]:
    """Yield the pods evicted with a record on the Node, without those that have a backup."""
    for lower in world.lowers.values():
        for note in told_lately(lower, world):
            for upper in lower.upper_pods.select("uid", note.pod):
                if note.owner or backup_of(upper, world) is None:
                    yield InFlight(upper, lower.node, note.owner, note.at)


def _drained(world: World) -> Iterator[InFlight]:
    """Yield the pods that a drain evicts, or has evicted, and whose controller creates them again."""
    for lower in world.lowers.values():
        if not is_emptied(lower, world):
            continue
        for upper in lower.upper_pods:
            is_there = upper.facts.terminating or lives_below(upper, world.topology.exclude_namespaces)
            if not is_there or upper.facts.bare or kept(upper) is not None:
                continue
            pod = upper.manifest()
            if not uses_claims(pod):
                yield InFlight(upper, lower.node, str(controller_of(pod).get("uid") or ""), _since(upper, world))


def _since(upper: Entry, world: World) -> datetime:
    """Return since when a replacement may exist: it is created as soon as the old pod begins to terminate."""
    return deleted_at(upper.manifest()) if upper.facts.terminating else world.now


def _come(told: list[InFlight], world: World) -> Counter[str]:
    """Return the number of each owner's pods that were created since its first one left, and are bound.

    Times are compared in whole seconds, as in the API.
    """
    begun: dict[str, datetime] = {}
    for one in told:
        since = one.since.replace(microsecond=0)
        begun[one.owner] = min(since, begun.get(one.owner, since))
    begun.pop("", None)
    gone = {one.pod.uid for one in told}
    pods = (entry for lower in world.lowers.values() for entry in lower.upper_pods) if begun else ()
    return Counter(_owner_since(entry, begun) for entry in pods if not entry.facts.bare and entry.uid not in gone)


def _owner_since(entry: Entry, begun: dict[str, datetime]) -> str:
    """Return the owner of a pod that was created since its owner's pods left, "" for other pods."""
    pod = entry.manifest()
    owner, made = str(controller_of(pod).get("uid") or ""), str(metadata(pod).get("creationTimestamp") or "")
    return owner if owner in begun and made and moment_of(made) >= begun[owner] else ""


def _backed_up(world: World) -> Iterator[InFlight]:
    """Yield the replacement of each backed-up pod that leaves or has left."""
    told = {note.pod for lower in world.lowers.values() for note in told_lately(lower, world)}
    for secret in world.upper.secrets:
        kept = backup_in(secret, world.owner) if secret.name.startswith(BACKUP) else None
        if kept is None or kept.pod is None:
            continue
        entry = Entry(secret.namespace, metadata(kept.pod)["name"], kept.uid, 0, orjson.dumps(kept.pod), None)
        node = _left(entry, kept, told, world)
        if node is not None:
            yield InFlight(entry, node, "", world.now)


def _left(pod: Entry, kept: PodBackup, told: set[str], world: World) -> str | None:
    """Return the virtual node that a backed-up pod leaves, "" if it has left, None if it stays or is re-created."""
    found = bound(kept.uid, world)
    if found is not None:
        is_evicted = kept.uid in told and kept.withdrawn is None and is_bare(found.pod)
        return found.lower.node if found.pod.facts.terminating or is_evicted else None
    made = world.upper.remade.get(pod.namespace, pod.name)
    return None if made is not None and made.facts == kept.uid else ""


def _unbound(world: World) -> Iterator[InFlight]:
    """Yield re-created pods that have no node yet."""
    for entry in world.upper.remade:
        if entry.raw and bound(entry.uid, world) is None:
            yield InFlight(entry, "", "", world.now)
