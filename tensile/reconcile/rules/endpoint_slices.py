"""The rule for EndpointSlices: one lower slice for each upper slice of a Service that has a copy there.

The upper cluster decides who answers to a Service, and whether they are ready: its slices are copied unchanged but for
their nodes and zones. If the lower Service is not ours, there is no slice either: it would send a foreign Service's
traffic to our pods. Endpoints change all the time, so a change of them is no step that a plan shows, and a slice that
is as it should be is not decoded.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tensile.kube.cluster import Patch
from tensile.kube.store import Delta, Entry
from tensile.objects import ENDPOINT_SLICE, SERVICE, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Patched, Present, Wanted, Watch
from tensile.reconcile.diff import changes
from tensile.reconcile.rules.service_index import (
    SLICE_RULE,
    exposed,
    is_exposed,
    is_known,
    is_made_for,
    print_of,
    service_key,
    slice_key,
)
from tensile.reconcile.rules.services import alias_slice, is_alias, marked_slice, original
from tensile.reconcile.world import Key, LowerWorld, World

NAME = SLICE_RULE
_SECTIONS = ("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "endpoints", "ports")


class SliceSource(NamedTuple):
    """What a lower slice is made from: an upper slice, or the alias; `entry` is None for the latter."""

    service: str
    service_uid: str
    uid: str
    print: bytes
    entry: Entry | None
    alias: Manifest | None = None

    def manifest(self) -> Manifest:
        """Return what is kept of it, decoded."""
        return self.alias if self.entry is None and self.alias is not None else _of(self.entry)


class EndpointSliceRule:
    """The rule with one key for each slice of a namespace with pods, and for each lower copy."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch slices on both sides, and lower Services, without which there are none."""
        return (
            Watch("upper.EndpointSlice", _above),
            Watch("EndpointSlice", _below),
            Watch("Service", _of_service),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield a key for each slice that is in the lower cluster, or belongs there."""
        here, above = world.lowers[lower], world.upper.more[ENDPOINT_SLICE]
        found = {
            slice_key(lower, namespace, name)
            for namespace in exposed(here, world)
            for name in (world.topology.services.upper_alias, *_names(above.select("namespace", namespace)))
        }
        found |= {key for one in here.more[ENDPOINT_SLICE] for key in _of_copy(here, one)}
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the lower slice while its upper slice and its lower Service exist."""
        lower = world.lowers[key.lower]
        if not is_known(lower, world):
            return Decision()
        ref = Ref(lower.name, ENDPOINT_SLICE, lower.namespace(key.namespace), key.name)
        copy, source = lower.more[ENDPOINT_SLICE].get(ref.namespace, key.name), source_of(world, key)
        name = source.service if source else copy.facts.service if copy else ""
        holder = lower.more[SERVICE].get(ref.namespace, name)
        if holder is None or holder.facts.owner != world.owner.mark:
            return _without_service(world, key, copy, source)
        if source is None:
            return _gone(world, key, ref, copy)
        if not is_exposed(lower, key.namespace, world):
            return Decision()
        if not is_made_for(holder, world.owner, source.service_uid):
            return Decision(depends_on=(service_key(lower.name, key.namespace, name),))
        return _kept(world, key, copy, source, holder)


def source_of(world: World, key: Key) -> SliceSource | None:
    """Return what a slice is made from; None if it is of no Service that is copied."""
    entry = world.upper.more[ENDPOINT_SLICE].get(key.namespace, key.name)
    if entry is not None:
        name, digest = entry.facts.service, entry.facts.print
        service = original(world, key.namespace, name)
        return None if service is None else SliceSource(name, service.uid, entry.uid, digest, entry)
    if world.upper_server is None or not is_alias(world, key.namespace, key.name):
        return None
    made = alias_slice(world.upper_server, key.name)
    upper = world.owner.upper
    return None if made is None else SliceSource(key.name, upper, upper, print_of(made), None, made)


def is_held(copy: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether the Service of a lower slice exists and is ours."""
    holder = lower.more[SERVICE].get(copy.namespace, copy.facts.service)
    return holder is not None and bool(holder.facts.owner == world.owner.mark)


def _kept(world: World, key: Key, copy: Entry | None, source: SliceSource, holder: Entry) -> Decision:
    """Create the slice, or patch what differs."""
    ref = Ref(key.lower, ENDPOINT_SLICE, holder.namespace, key.name)
    is_made = copy is not None and is_made_for(copy, world.owner, source.uid)
    if copy is not None and is_made and (copy.facts.print, copy.facts.holder) == (source.print, holder.uid):
        return Decision()
    held = {"apiVersion": SERVICE.api, "kind": SERVICE.name, "name": holder.name, "uid": holder.uid}
    wanted = marked_slice(source.manifest(), source.uid, world.owner, ref.namespace, held)
    if copy is None or not is_made:
        reason = f"endpoints of Service {holder.name}"
        return Decision((*_said(world, key, source), Present(ref, wanted, reason, replaceable=True)))
    seen = copy.manifest()
    if seen.get("addressType") != wanted["addressType"]:
        return _end(world, ref, copy, "its addresses are of another kind, which cannot be changed")
    operations = changes(wanted, seen, _SECTIONS)
    if not operations:
        return Decision()
    fence = {"op": "replace", "path": "/metadata/uid", "value": copy.uid}
    patch = Patch("json-patch", [fence, *operations])
    changed = Patched(ref, patch, f"endpoints of Service {holder.name} changed")
    return Decision((*_said(world, key, source), changed))


def _said(world: World, key: Key, source: SliceSource) -> list[Wanted]:
    """Return an event on the upper Service about what keeps its endpoints from the lower cluster."""
    problem = world.problems.get(key)
    if problem is None or source.entry is None:
        return []
    above = Ref(UPPER, SERVICE, key.namespace, source.service)
    return [EmitEvent(above, source.service_uid, problem.reason, problem.message)]


def _without_service(world: World, key: Key, copy: Entry | None, source: SliceSource | None) -> Decision:
    """Delete the slice if its Service is not in the lower cluster; wait for a Service that will be created."""
    lower = world.lowers[key.lower]
    if copy is not None:
        ref = Ref(lower.name, ENDPOINT_SLICE, copy.namespace, copy.name)
        return _end(world, ref, copy, "its Service is not here")
    if source is None or not is_exposed(lower, key.namespace, world):
        return Decision()
    return Decision(depends_on=(service_key(lower.name, key.namespace, source.service),))


def _gone(world: World, key: Key, ref: Ref, copy: Entry | None) -> Decision:
    """Delete the copy of a slice that was seen deleted, is of another Service now, or was a former alias."""
    departed = world.upper.more[ENDPOINT_SLICE].tombstone(key.namespace, key.name)
    if copy is None:
        return Decision()
    if is_made_for(copy, world.owner, world.owner.upper):
        return _end(world, ref, copy, "it does not lead to the upper cluster any more")
    above = world.upper.more[ENDPOINT_SLICE].get(key.namespace, key.name)
    if above is not None and above.facts.service != copy.facts.service:
        return _end(world, ref, copy, "it is of another Service above")
    if departed is not None and departed.seen and is_made_for(copy, world.owner, departed.uid):
        return _end(world, ref, copy, "the upper slice was deleted")
    return Decision()


def _end(world: World, ref: Ref, copy: Entry, reason: str) -> Decision:
    if copy.facts.owner != world.owner.mark:
        return Decision()
    return Decision((Absent(ref, copy.uid, reason),))


def _of(entry: Entry | None) -> Manifest:
    return {} if entry is None else entry.manifest()


def _names(entries: tuple[Entry, ...]) -> Iterator[str]:
    for entry in entries:
        yield entry.name


def _above(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    here, entry = world.lowers[lower], delta.entry
    is_below = here.more[ENDPOINT_SLICE].get(here.namespace(entry.namespace), entry.name) is not None
    if is_below or is_exposed(here, entry.namespace, world):
        yield slice_key(lower, entry.namespace, entry.name)


def _below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    yield from _of_copy(world.lowers[lower], delta.entry)


def _of_copy(lower: LowerWorld, copy: Entry) -> Iterator[Key]:
    for namespace in lower.above(copy.namespace):
        yield slice_key(lower.name, namespace, copy.name)


def _of_service(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of a lower Service's slices on both sides when it appears, changes or is deleted."""
    if delta.before and delta.after and (delta.before.uid, delta.before.facts) == (delta.after.uid, delta.after.facts):
        return
    here, entry = world.lowers[lower], delta.entry
    namespace = here.upper_namespace(entry.namespace)
    if not namespace:
        return
    names = {entry.name} if entry.name == world.topology.services.upper_alias else set[str]()
    names |= set(_names(world.upper.more[ENDPOINT_SLICE].select("service", (namespace, entry.name))))
    names |= set(_names(here.more[ENDPOINT_SLICE].select("service", (entry.namespace, entry.name))))
    for name in sorted(names):
        yield slice_key(lower, namespace, name)
