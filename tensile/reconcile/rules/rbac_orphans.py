"""The rule for lower Roles and RoleBindings whose upper object is missing without a seen deletion.

A right that was revoked while no engine ran must not stay. Yet a right that is missing from a wrong or restored cluster
was not revoked, and pods need it. So each is read at quorum first, and all of one lower are decided in one plan, which
the guard can hold as a whole.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.objects import ROLE, ROLE_BINDING, UPPER, Kind, Ref
from tensile.reconcile.desired import Absent, Decision, MapKeys, VerifyAbsent, Watch
from tensile.reconcile.ownership import is_ours, upper_uid_of
from tensile.reconcile.rules.rbac import is_known
from tensile.reconcile.world import Key, LowerWorld, World

NAME = "rights-orphans"
_COLLECT = 0.5
_KINDS = (ROLE, ROLE_BINDING)


def key_of(lower: str) -> Key:
    """Return the one key of a lower."""
    return Key(NAME, lower, "", "")


class RBACOrphanRule:
    """The rule with one key for each lower."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch upper roles and bindings that are deleted, and lower ones that have no upper one."""
        above = tuple(Watch(f"upper.{kind.name}", _above(kind), delay=_COLLECT) for kind in _KINDS)
        return (*above, *(Watch(kind.name, _below(kind), delay=_COLLECT) for kind in _KINDS))

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key."""
        yield key_of(world.lowers[lower].name)

    def decide(self, key: Key, world: World) -> Decision:
        """Return deletions of copies whose upper object is certainly gone, and quorum reads of uncertain ones."""
        lower = world.lowers[key.lower]
        if not (is_known(world, lower) and lower.settled) or lower.unreachable_seconds:
            return Decision()
        found = [one for kind in _KINDS for copy in lower.more[kind] for one in _orphan(kind, copy, lower, world)]
        found.sort(key=lambda one: one.ref)
        return Decision(tuple(found))


def _orphan(kind: Kind, copy: Entry, lower: LowerWorld, world: World) -> Iterator[Absent | VerifyAbsent]:
    """Yield the step for a copy without an upper object; the rule for rights decides if that was seen deleted."""
    above = Ref(UPPER, kind, lower.upper_namespace(copy.namespace), copy.name)
    originals, manifest = world.upper.more[kind], copy.manifest()
    is_stray = not above.namespace
    if is_stray or originals.get(above.namespace, above.name) is not None or not is_ours(manifest, world.owner):
        return
    departed, made_for = originals.tombstone(above.namespace, above.name), upper_uid_of(manifest)
    if departed is None or not originals.is_deleted(above.namespace, above.name, made_for):
        yield VerifyAbsent(above, made_for, f"the {kind.name} made for it still stands", requested=False)
    elif not (departed.seen and departed.uid == made_for):
        reason = f"the upper {kind.name} is gone, and nobody is known to have deleted it"
        ref = Ref(lower.name, kind, copy.namespace, copy.name)
        yield Absent(
            ref, copy.uid, reason, requested=False, after_rollback=originals.is_lost(above.namespace, above.name)
        )


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
