"""The rule that deletes lower namespaces of ours once their upper namespace is gone.

Deleting a namespace deletes all that is in it, so three things must be certain. It is ours; the upper one is gone (read
at quorum if its deletion was not seen); and it is empty, which is checked just before. A namespace that holds anything
else stays and is reported. All of one lower are decided in one plan, which the guard can hold.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.objects import NAMESPACE, UPPER, Ref
from tensile.reconcile import watches
from tensile.reconcile.desired import Absent, Decision, VerifyAbsent, Watch
from tensile.reconcile.world import Key, LowerWorld, World

NAME = "vacancy"
_COLLECT = 0.5
_OURS = ("pods", "config_maps", "secrets")


def key_of(lower: str) -> Key:
    """Return the one key of a lower."""
    return Key(NAME, lower, "", "")


class NamespaceCleanupRule:
    """The rule with one key for each lower."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch namespaces on both sides, and objects whose deletion may leave a lower one empty."""
        kinds = watches.watched_kinds(watches.FOLLOWS, above=False).values()
        more = tuple(follow.kind.name for follow in kinds if follow.ours and follow.kind.namespaced)
        leaving = tuple(Watch(cache, _left, delay=_COLLECT, facts=()) for cache in (*_OURS, *more))
        spaces = tuple(Watch(cache, _space, delay=_COLLECT) for cache in ("upper.namespaces", "namespaces"))
        return (*spaces, *leaving)

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key."""
        yield key_of(world.lowers[lower].name)

    def decide(self, key: Key, world: World) -> Decision:
        """Return deletions of namespaces that are ours, empty and not needed; nothing from incomplete caches."""
        lower = world.lowers[key.lower]
        if not (lower.settled and world.upper.namespaces.synced) or lower.unreachable_seconds:
            return Decision()
        ours = [one for one in lower.namespaces if one.facts.mark == world.owner.mark and not one.facts.ending]
        left = [one for one in ours if not _is_needed(one, lower, world)]
        used = _used(lower) if left else frozenset[str]()
        vacant = sorted((one for one in left if one.name not in used), key=lambda one: one.name)
        return Decision(tuple(_wanted(one, lower, world) for one in vacant))


def _is_needed(space: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a namespace of ours has its upper namespace, and is named after it."""
    name = _above(space)
    return world.upper.namespaces.get("", name) is not None and lower.namespace(name) == space.name


def _above(space: Entry) -> str:
    return str(space.facts.above or space.name)


def _wanted(space: Entry, lower: LowerWorld, world: World) -> Absent | VerifyAbsent:
    """Return the deletion of a vacant namespace, or a quorum read if its upper one was not seen deleted."""
    name = _above(space)
    if world.upper.namespaces.get("", name) is not None:
        return _absent(space, lower, "namespaces are called otherwise now", asked=False)
    departure = world.upper.namespaces.tombstone("", name)
    if departure is None:
        return VerifyAbsent(
            Ref(UPPER, NAMESPACE, "", name), "", f"namespace {space.name} is left below", requested=False
        )
    seen = departure.seen and departure.uid == space.facts.upper_uid
    lost = world.upper.namespaces.is_lost("", name)
    return _absent(space, lower, f"namespace {name} is gone above", asked=seen, lost=lost)


def _absent(space: Entry, lower: LowerWorld, reason: str, *, asked: bool, lost: bool = False) -> Absent:
    ref = Ref(lower.name, NAMESPACE, "", space.name)
    return Absent(ref, space.uid, reason, requested=asked, after_rollback=lost, only_if_empty=True, independent=True)


def _used(lower: LowerWorld) -> frozenset[str]:
    """Return the lower namespaces with any object in our caches."""
    caches = (lower.pods, lower.config_maps, lower.secrets, *lower.more.values())
    return frozenset(entry.namespace for cache in caches for entry in cache)


def _space(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key when a namespace appears, is deleted or changes its marks."""
    if delta.before is None or delta.after is None or delta.before.facts != delta.after.facts:
        yield key_of(world.lowers[lower].name)


def _left(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key when an object is deleted, if that may leave a namespace of ours empty."""
    here = world.lowers[lower]
    if delta.after is None and here.namespaces.get("", delta.entry.namespace) is not None:
        yield key_of(here.name)
