"""The rules for what is left in lower clusters though its upper object is missing without a seen deletion.

The upper object may have been deleted while the engine was down. But it may also be missing from a wrong or restored
cluster, and pods need what was made for it: Services to reach each other, rights, claims. So each is read at quorum
first, and all of one lower and one rule are decided in one plan, which the guard can hold as a whole. What was seen
deleted is left to the rule of its kind.

A claim with a volume stays, whatever is missing in the upper cluster: only its placeholder's reclaim policy deletes it.
Deleting a namespace deletes all that is in it, so it must be empty too, which is checked just before. A namespace that
holds anything else stays and is reported.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tensile.kube.store import Delta, Entry
from tensile.objects import CLAIM, ENDPOINT_SLICE, NAMESPACE, ROLE, ROLE_BINDING, SERVICE, UPPER, VOLUME, Kind, Ref
from tensile.reconcile import mirrored_kinds
from tensile.reconcile.desired import Absent, Decision, Rule, VerifyAbsent, Watch
from tensile.reconcile.ownership import is_copy, is_copy_of
from tensile.reconcile.rules import claims, endpoint_slices, rbac, services
from tensile.reconcile.world import Key, LowerWorld, World

_COLLECT = 0.5
_OURS = ("pods", "config_maps", "secrets")


def key_of(rule: str, lower: str) -> Key:
    """Return the one key that a rule has for a lower."""
    return Key(rule, lower, "", "")


@dataclass(frozen=True, slots=True)
class OrphanedKind:
    """One kind whose copies may lose their upper object.

    `is_left` reports whether the rule of the kind would leave such a copy (the arguments: the copy, its upper
    namespace). `is_versioned`: a copy is deleted only in the state in which it was seen.
    """

    kind: Kind
    is_left: Callable[[Entry, str, LowerWorld, World], bool] = lambda *_: True
    is_versioned: bool = False


@dataclass(frozen=True, slots=True)
class OrphanRule:
    """The rule for kinds whose orphans are decided together, with one key for each lower.

    `is_known` reports whether everything that the decision rests on is listed.
    """

    name: str
    is_known: Callable[[World, LowerWorld], bool]
    kinds: tuple[OrphanedKind, ...]

    def watches(self) -> tuple[Watch, ...]:
        """Watch upper objects that are deleted or created, and lower ones that appear without an upper one."""
        kinds = [one.kind for one in self.kinds]
        upper_watches = (Watch(f"upper.{kind.name}", partial(self._on_upper, kind), delay=_COLLECT) for kind in kinds)
        return (*upper_watches, *(Watch(kind.name, partial(self._on_lower, kind), delay=_COLLECT) for kind in kinds))

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key."""
        yield key_of(self.name, world.lowers[lower].name)

    def decide(self, key: Key, world: World) -> Decision:
        """Return deletions of copies whose upper object is certainly gone, and quorum reads of uncertain ones."""
        lower = world.lowers[key.lower]
        if not self.is_known(world, lower) or lower.unreachable_seconds:
            return Decision()
        found = [step for one in self.kinds for copy in lower.more[one.kind] for step in _step(one, copy, lower, world)]
        found.sort(key=lambda step: step.ref)
        return Decision(tuple(found))

    def _on_upper(self, kind: Kind, world: World, lower: str, delta: Delta) -> Iterator[Key]:
        entry, lower_world = delta.entry, world.lowers[lower]
        has_copy = lower_world.more[kind].get(lower_world.namespace(entry.namespace), entry.name) is not None
        if has_copy and (delta.before is None or delta.after is None):
            yield key_of(self.name, lower)

    def _on_lower(self, kind: Kind, world: World, lower: str, delta: Delta) -> Iterator[Key]:
        after, lower_world = delta.after, world.lowers[lower]
        for namespace in lower_world.upper_namespaces_of(after.namespace) if after else ():
            if world.upper.more[kind].get(namespace, delta.entry.name) is None:
                yield key_of(self.name, lower)


def _step(one: OrphanedKind, copy: Entry, lower: LowerWorld, world: World) -> Iterator[Absent | VerifyAbsent]:
    """Yield the step for a copy without an upper object."""
    namespace, originals = lower.upper_namespace(copy.namespace), world.upper.more[one.kind]
    if not namespace or originals.get(namespace, copy.name) is not None or not is_copy(copy, world.owner):
        return
    if not one.is_left(copy, namespace, lower, world):
        return
    upper_name, made_for = (namespace, copy.name), copy.facts.upper_uid
    tombstone = originals.tombstone(*upper_name)
    if tombstone is None or not originals.is_deleted(*upper_name, made_for):
        upper_ref = Ref(UPPER, one.kind, *upper_name)
        yield VerifyAbsent(upper_ref, made_for, f"its lower {one.kind.name} still exists", requested=False)
    elif not (tombstone.seen and tombstone.uid == made_for):
        yield Absent(
            Ref(lower.name, one.kind, copy.namespace, copy.name),
            copy.uid,
            f"the upper {one.kind.name} is gone, but its deletion was not observed",
            requested=False,
            after_restore=originals.is_lost(*upper_name),
            version=str(copy.version) if one.is_versioned else "",
        )


def _is_service_left(copy: Entry, namespace: str, lower: LowerWorld, world: World) -> bool:
    """Report whether a Service or slice would stay if its upper object existed, and is not the alias."""
    return services.is_served(lower, namespace, world) and not is_copy_of(copy, world.owner, world.owner.upper)


def _is_slice_left(copy: Entry, namespace: str, lower: LowerWorld, world: World) -> bool:
    """Report whether the same holds for a slice, which goes with its Service."""
    return endpoint_slices.is_held(copy, lower, world) and _is_service_left(copy, namespace, lower, world)


def _is_claim_left(copy: Entry, _: str, _lower: LowerWorld, world: World) -> bool:
    """Report whether a claim never had a volume, and no placeholder names it."""
    is_spared = claims.may_hold_data(copy) or copy.facts.terminating
    return not is_spared and not world.upper.more[VOLUME].select("lower_claim", copy.uid)


class NamespaceCleanupRule:
    """The rule for lower namespaces of ours whose upper namespace is gone, with one key for each lower.

    Namespaces have no upper namespace of their own and may be named otherwise in the lower cluster, and a deletion that
    was seen is decided here too: so they are no `OrphanedKind`.
    """

    name = "vacancy"

    def watches(self) -> tuple[Watch, ...]:
        """Watch namespaces on both sides, and objects whose deletion may leave a lower one empty."""
        kinds = mirrored_kinds.watched_kinds(mirrored_kinds.FOLLOWS, is_upper=False).values()
        more = tuple(follow.kind.name for follow in kinds if follow.ours and follow.kind.namespaced)
        deletions = tuple(Watch(cache, _left, delay=_COLLECT, facts=()) for cache in (*_OURS, *more))
        namespaces = tuple(Watch(cache, _space, delay=_COLLECT) for cache in ("upper.namespaces", "namespaces"))
        return (*namespaces, *deletions)

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key."""
        yield key_of(self.name, world.lowers[lower].name)

    def decide(self, key: Key, world: World) -> Decision:
        """Return deletions of namespaces that are ours, empty and not needed; nothing from incomplete caches."""
        lower = world.lowers[key.lower]
        if not (lower.settled and world.upper.namespaces.synced) or lower.unreachable_seconds:
            return Decision()
        ours = [one for one in lower.namespaces if one.facts.mark == world.owner.mark and not one.facts.ending]
        left = [one for one in ours if not _is_needed(one, lower, world)]
        used = namespaces_in_use(lower) if left else frozenset[str]()
        vacant = sorted((one for one in left if one.name not in used), key=lambda one: one.name)
        return Decision(tuple(_vacated(one, lower, world) for one in vacant))


def _is_needed(namespace: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a namespace of ours has its upper namespace, and is named after it."""
    name = namespace.facts.upper_name or namespace.name
    return world.upper.namespaces.get("", name) is not None and lower.namespace(name) == namespace.name


def _vacated(namespace: Entry, lower: LowerWorld, world: World) -> Absent | VerifyAbsent:
    """Return the deletion of a vacant namespace, or a quorum read if its upper one was not seen deleted."""
    name, spaces = namespace.facts.upper_name or namespace.name, world.upper.namespaces
    tombstone = spaces.tombstone("", name)
    if tombstone is None and spaces.get("", name) is None:
        upper_ref = Ref(UPPER, NAMESPACE, "", name)
        return VerifyAbsent(upper_ref, "", f"lower namespace {namespace.name} still exists", requested=False)
    return Absent(
        Ref(lower.name, NAMESPACE, "", namespace.name),
        namespace.uid,
        f"upper namespace {name} is gone" if tombstone is not None else "the namespace mapping has changed",
        requested=tombstone is not None and tombstone.seen and tombstone.uid == namespace.facts.upper_uid,
        after_restore=tombstone is not None and spaces.is_lost("", name),
        only_if_empty=True,
        independent=True,
    )


def namespaces_in_use(lower: LowerWorld) -> frozenset[str]:
    """Return the lower namespaces with any object in our caches."""
    caches = (lower.pods, lower.config_maps, lower.secrets, *lower.more.values())
    return frozenset(entry.namespace for cache in caches for entry in cache)


def _space(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key when a namespace appears, is deleted or changes its marks."""
    if delta.before is None or delta.after is None or delta.before.facts != delta.after.facts:
        yield key_of(NamespaceCleanupRule.name, world.lowers[lower].name)


def _left(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key when an object is deleted, if that may leave a namespace of ours empty."""
    lower_world = world.lowers[lower]
    if delta.after is None and lower_world.namespaces.get("", delta.entry.namespace) is not None:
        yield key_of(NamespaceCleanupRule.name, lower_world.name)


SERVICES = OrphanRule(
    "strays",
    services.is_known,
    (OrphanedKind(SERVICE, _is_service_left), OrphanedKind(ENDPOINT_SLICE, _is_slice_left)),
)
CLAIMS = OrphanRule("claim-orphans", claims.is_listed, (OrphanedKind(CLAIM, _is_claim_left, is_versioned=True),))
RIGHTS = OrphanRule("rights-orphans", rbac.is_known, (OrphanedKind(ROLE), OrphanedKind(ROLE_BINDING)))
NAMESPACES = NamespaceCleanupRule()

RULES: tuple[Rule, ...] = (SERVICES, NAMESPACES, CLAIMS, RIGHTS)
"""The rules for deletions that no client is known to have requested, besides those of pods."""
