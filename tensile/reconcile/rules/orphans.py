"""The rule for lower Services and slices whose upper object is missing without a seen deletion.

It may have been deleted while the engine was down, or be missing from a wrong or restored cluster, and without its copy
the lower pods cannot reach each other. So each is read at quorum first, and all of one lower are decided in one plan,
which the guard can hold as a whole.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.objects import ENDPOINT_SLICE, SERVICE, UPPER, Kind, Ref
from tensile.reconcile.desired import Absent, Decision, MapKeys, VerifyAbsent, Watch
from tensile.reconcile.rules.endpoint_slices import is_held
from tensile.reconcile.rules.service_index import is_exposed, is_kept, is_known, is_made_for
from tensile.reconcile.world import Key, LowerWorld, World

NAME = "strays"
_COLLECT = 0.5


def key_of(lower: str) -> Key:
    """Return the one key of a lower."""
    return Key(NAME, lower, "", "")


class ServiceOrphanRule:
    """The rule with one key for each lower."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch upper Services and slices that are deleted, and lower ones that appear without an upper one."""
        return (
            Watch("upper.Service", _above(SERVICE), delay=_COLLECT),
            Watch("upper.EndpointSlice", _above(ENDPOINT_SLICE), delay=_COLLECT),
            Watch("Service", _below(SERVICE), delay=_COLLECT),
            Watch("EndpointSlice", _below(ENDPOINT_SLICE), delay=_COLLECT),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key."""
        yield key_of(world.lowers[lower].name)

    def decide(self, key: Key, world: World) -> Decision:
        """Return deletions of copies whose upper object is certainly gone, and quorum reads of uncertain ones."""
        lower = world.lowers[key.lower]
        if not is_known(lower, world) or lower.unreachable_seconds:
            return Decision()
        found: list[Absent | VerifyAbsent] = [*_strays(SERVICE, lower, world), *_strays(ENDPOINT_SLICE, lower, world)]
        found.sort(key=lambda one: one.ref)
        return Decision(tuple(found))


def _strays(kind: Kind, lower: LowerWorld, world: World) -> Iterator[Absent | VerifyAbsent]:
    """Yield the steps for copies without an upper object; copies that their own rule deletes anyway are left to it."""
    originals = world.upper.more[kind]
    for copy in lower.more[kind]:
        above = Ref(UPPER, kind, lower.upper_namespace(copy.namespace), copy.name)
        if not above.namespace or originals.get(above.namespace, above.name) is not None:
            continue
        if _is_left(kind, copy, above.namespace, lower, world):
            departed, made_for = originals.tombstone(above.namespace, above.name), copy.facts.upper_uid
            if departed is None or not originals.is_deleted(above.namespace, above.name, made_for):
                yield VerifyAbsent(above, made_for, f"the {kind.name} made for it still stands", requested=False)
            elif not (departed.seen and departed.uid == made_for):
                reason = f"the upper {kind.name} is gone, and nobody is known to have deleted it"
                ref = Ref(lower.name, kind, copy.namespace, copy.name)
                yield Absent(
                    ref,
                    copy.uid,
                    reason,
                    requested=False,
                    after_rollback=originals.is_lost(above.namespace, above.name),
                )


def _is_left(kind: Kind, copy: Entry, namespace: str, lower: LowerWorld, world: World) -> bool:
    """Report whether a copy is ours, would stay if its upper object existed, and is not the alias."""
    if copy.facts.owner != world.owner.mark or is_made_for(copy, world.owner, world.owner.upper):
        return False
    stays = is_exposed(lower, namespace, world) or is_kept(lower, namespace)
    return stays and (kind == SERVICE or is_held(copy, lower, world))


def _above(kind: Kind) -> MapKeys:
    def keys(world: World, lower: str, delta: Delta) -> Iterator[Key]:
        """Yield the key when an upper object that has a copy is deleted or created."""
        entry, here = delta.entry, world.lowers[lower]
        is_below = here.more[kind].get(here.namespace(entry.namespace), entry.name) is not None
        if is_below and (delta.before is None or delta.after is None):
            yield key_of(lower)

    return keys


def _below(kind: Kind) -> MapKeys:
    def keys(world: World, lower: str, delta: Delta) -> Iterator[Key]:
        """Yield the key when a copy appears without an upper object."""
        after, here = delta.after, world.lowers[lower]
        for namespace in here.above(after.namespace) if after else ():
            if world.upper.more[kind].get(namespace, delta.entry.name) is None:
                yield key_of(lower)

    return keys
