"""The skeleton of the rules for mirrored kinds: whether a copy is needed, whether it has an original, what follows.

| | original exists | deletion seen | merely missing |
|---|---|---|---|
| needed by upper pods | create, update | delete | leave as it is |
| kept by lower pods of ours alone | leave as it is (Services: update) | delete | leave as it is |
| needed by nothing | delete | delete | delete |

Disabling a controller takes nothing from running pods but rights: a copy that they may use is then kept by them alone.

Each mirrored kind is one file, which states what is particular to it in a `MirroredKind`: what needs an object, and
what its copy contains. A `MirrorRule` has the watches and keys that they share. The list of the rules is in
`reconcile/mirrored_kinds.py`.

CONTRIBUTING.md says how to add a kind. `services.py` is an example of a kind that pods use by their namespace, and
`service_accounts.py` of one that they refer to by name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import NamedTuple

from tensile.kube.store import Cache, Delta, Entry, Index, Transform, keep_all
from tensile.objects import UPPER, Kind, Manifest, Ref
from tensile.reconcile.copies import (
    changed_references,
    first_pod_namespace,
    is_referenced_in_lower,
    last_lower_pod_namespace,
    last_pod_namespace,
    may_be_created,
    namespaces_with_pods,
    pods_referring_to,
)
from tensile.reconcile.desired import Absent, Decision, EmitEvent, MapKeys, Present, Watch, problem_events
from tensile.reconcile.ownership import copy_metadata, has_node, is_copy, node_appears, transform_copy
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.rules import namespaces
from tensile.reconcile.world import Key, LowerWorld, World
from tensile.topology import Controller

PAUSE = 5.0
"""Seconds for which copies stay after the last pod of their namespace: often the next one comes soon."""


class Need(Enum):
    """What needs an object in a lower cluster: nothing, only lower pods of ours (`KEPT`), or upper pods (`ASKED`)."""

    NONE = 0
    KEPT = 1
    ASKED = 2


class Pair(NamedTuple):
    """An upper object and its copy, either of which may be missing, and the caches that they are from.

    `ref` is the place of the copy. The key has the upper namespace.
    """

    key: Key
    ref: Ref
    original: Entry | None
    copy: Entry | None
    originals: Cache
    copies: Cache
    lower: LowerWorld
    world: World

    @property
    def upper_ref(self) -> Ref:
        """The upper object."""
        return Ref(UPPER, self.ref.kind, self.key.namespace, self.ref.name)

    @property
    def is_kept(self) -> bool:
        """Whether a lower pod of ours refers to the copy by its name."""
        return is_referenced_in_lower(self.lower, self.ref.kind.name, self.key.namespace, self.ref.name)

    def referring(self) -> Iterator[Entry]:
        """Yield the running or starting upper pods that refer to the object by its name."""
        return pods_referring_to(self.lower, self.world, self.ref.kind.name, self.key.namespace, self.ref.name)

    def end(self, reason: str) -> Decision:
        """Return the deletion of the copy, if there is one and it is ours."""
        if self.copy is None or not is_copy(self.copy, self.world.owner):
            return Decision()
        return Decision((Absent(self.ref, self.copy.uid, reason),))

    def copied(
        self, original: Entry, content: Manifest, reason: str, sections: tuple[str, ...], *, independent: bool = False
    ) -> Present:
        """Return the copy as it should be: `content`, and the original's name, labels and annotations."""
        kind, meta = self.ref.kind, copy_metadata(original.manifest(), self.world.owner, self.ref.namespace)
        manifest = {"apiVersion": kind.api, "kind": kind.name, "metadata": meta, **content}
        sections = ("metadata.labels", "metadata.annotations", *sections)
        return Present(self.ref, manifest, reason, sections, replaceable=True, independent=independent)

    def obstacle(self, pods: Iterable[Entry] | None = None) -> Decision | None:
        """Return the decision while the copy must not be written, None if it may be.

        Nothing is written while the Node is not ours or the namespace is not ready, and nothing is created for upper
        pods (`pods`) that are all being deleted.
        """
        is_new = self.copy is None and pods is not None
        if not has_node(self.lower, self.world) or (is_new and not may_be_created(pods or ())):
            return Decision()
        if not namespaces.ready(self.lower, self.key.namespace):
            return Decision(depends_on=(namespaces.key_of(self.lower.name, self.key.namespace),))
        return None

    def report_problem(self, prefix: str = "") -> Iterator[EmitEvent]:
        """Yield an event on the original about the problem of the last attempt. `prefix` precedes the message."""
        if self.original is not None and self.key in self.world.problems:
            yield from problem_events(self.key, self.world, self.upper_ref, self.original.uid, prefix)


def follow_deletion(pair: Pair, _: Need = Need.KEPT, *, guarded: bool = False, reason: str = "") -> Decision:
    """Delete a copy whose original was seen deleted. One whose original is merely missing stays.

    `guarded`: an orphan rule decides about copies of all but the object that was last seen deleted.
    """
    name, copy = (pair.key.namespace, pair.ref.name), pair.copy
    tombstone = pair.originals.tombstone(*name)
    if copy is None or tombstone is None or not tombstone.seen:
        return Decision()
    made_for = copy.facts.upper_uid
    is_its = tombstone.uid == made_for or (not guarded and pair.originals.is_deleted(*name, made_for))
    return pair.end(reason or f"the upper {pair.ref.kind.name} was deleted") if is_its else Decision()


@dataclass(frozen=True, kw_only=True, slots=True)
class MirroredKind:
    """What is particular to one mirrored kind.

    `need` returns what needs an object. `present` returns the decision while upper pods need it, `kept` while only
    lower pods do, and `missing` while it does not exist in the upper cluster. `unneeded` is the reason to delete a copy
    that nothing needs. `concerns` reports whether a lower without a copy has to look at an original that changed.

    `on_original` and `on_copy` replace the keys for a change of one. `is_copy` reports whether a lower object of ours
    is a copy at all. `transform_upper`, `transform_lower` and the indexes are those of the caches; the facts of lower
    objects have `owner` and `upper_uid`. `cache` names the caches where they are fields of UpperWorld and LowerWorld.
    """

    kind: Kind
    need: Callable[[Pair], Need]
    present: Callable[[Pair, Entry], Decision]
    kept: Callable[[Pair, Entry], Decision] = lambda *_: Decision()
    missing: Callable[[Pair, Need], Decision] = follow_deletion
    unneeded: str
    concerns: Callable[[World, LowerWorld, Kind, Entry], bool]
    on_original: MapKeys | None = None
    on_copy: MapKeys | None = None
    is_copy: Callable[[Entry], bool] = lambda _: True
    transform_upper: Transform = keep_all
    transform_lower: Transform = transform_copy
    upper_indexes: Mapping[str, Index] = field(default_factory=dict)
    lower_indexes: Mapping[str, Index] = field(default_factory=dict)
    cache: str = ""


class Users(NamedTuple):
    """What needs the objects of a rule: a function for the keys of all that is needed now, and what changes that."""

    used: Callable[[World, LowerWorld], Iterable[Key]]
    watches: tuple[Watch, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorRule:
    """The rule for one mirrored kind, or for several that are needed together: then a key's name begins with the kind.

    `controller` enables it; it is None for kinds whose caches all lowers have. `users` are what needs the objects.
    `is_known` reports whether all that decisions rest on is listed, besides the originals and copies.
    """

    name: str
    kinds: tuple[MirroredKind, ...]
    controller: Controller | None = None
    users: Users
    is_known: Callable[[World, LowerWorld], bool] = lambda _, lower: lower.settled

    def key_of(self, kind: Kind, lower: str, namespace: str, name: str) -> Key:
        """Return the key of an object, by its upper namespace and name."""
        return Key(self.name, lower, namespace, f"{kind.name}/{name}" if len(self.kinds) > 1 else name)

    def watches(self) -> tuple[Watch, ...]:
        """Watch the originals, the copies, and what needs them."""
        return (*(watch for kind in self.kinds for watch in self._own_watches(kind)), *self.users.watches)

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of everything that is needed, and of every copy."""
        lower_world = world.lowers[lower]
        found = set(self.users.used(world, lower_world))
        for one in self.kinds:
            for copy in filter(one.is_copy, lower_world.cache(one.kind) or ()):
                found.update(self._on_copy(one.kind, world, lower, Delta(None, copy)))
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Return what should become of one copy; nothing from incomplete caches."""
        lower = world.lowers[key.lower]
        one, name = self.kinds[0], key.name
        if len(self.kinds) > 1:
            first, _, name = key.name.partition("/")
            (one,) = [one for one in self.kinds if one.kind.name == first]
        originals, copies = world.upper.cache(one.kind), lower.cache(one.kind)
        assert originals is not None
        assert copies is not None
        if not (originals.synced and copies.synced and self.is_known(world, lower)):
            return Decision()
        ref = Ref(lower.name, one.kind, lower.namespace(key.namespace), name)
        original, copy = originals.get(key.namespace, name), copies.get(ref.namespace, name)
        if copy is not None and not one.is_copy(copy):
            return Decision()
        pair = Pair(key, ref, original, copy, originals, copies, lower, world)
        need = one.need(pair)
        if need is Need.NONE:
            return pair.end(one.unneeded)
        if original is None:
            return one.missing(pair, need)
        return one.present(pair, original) if need is Need.ASKED else one.kept(pair, original)

    def _own_watches(self, one: MirroredKind) -> Iterator[Watch]:
        name = one.cache or one.kind.name
        yield Watch(f"upper.{name}", one.on_original or partial(self._on_original, one))
        yield Watch(name, one.on_copy or partial(self._on_copy, one.kind))

    def _on_original(self, one: MirroredKind, world: World, lower: str, delta: Delta) -> tuple[Key, ...]:
        lower_world, entry = world.lowers[lower], delta.entry
        copies = lower_world.cache(one.kind)
        assert copies is not None
        has_copy = copies.get(lower_world.namespace(entry.namespace), entry.name) is not None
        if has_copy or one.concerns(world, lower_world, one.kind, entry):
            return (self.key_of(one.kind, lower, entry.namespace, entry.name),)
        return ()

    def _on_copy(self, kind: Kind, world: World, lower: str, delta: Delta) -> Iterator[Key]:
        copy = delta.entry
        for namespace in world.lowers[lower].upper_namespaces_of(copy.namespace):
            yield self.key_of(kind, lower, namespace, copy.name)


def when_node_appears(used: Callable[[World, LowerWorld], Iterable[Key]]) -> MapKeys:
    """Return the keys for a change of a Node: all that is needed, when the Node is created or becomes ours again.

    Nothing was written while it was missing.
    """

    def keys(world: World, lower: str, delta: Delta) -> Iterable[Key]:
        lower_world = world.lowers[lower]
        return used(world, lower_world) if node_appears(lower_world, delta) else ()

    return keys


def pods_referring(keys: Callable[[World, str, str, Iterable[Reference]], Iterable[Key]]) -> Users:
    """Return the users of objects that pods refer to by name.

    `keys` returns the keys for references of a pod, from the lower's name and the upper namespace.
    """

    def used(world: World, lower: LowerWorld) -> Iterator[Key]:
        for pod in lower.upper_pods:
            yield from keys(world, lower.name, pod.namespace, pod.facts.references)

    def on_upper_pod(world: World, lower: str, delta: Delta) -> Iterable[Key]:
        changed = changed_references(delta, world.topology.exclude_namespaces)
        return keys(world, lower, delta.entry.namespace, changed) if changed else ()

    def on_lower_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
        changed = changed_references(delta)
        for namespace in world.lowers[lower].upper_namespaces_of(delta.entry.namespace) if changed else ():
            yield from keys(world, lower, namespace, changed)

    lives = ("terminal", "daemon", "references")
    watches = (
        Watch("upper_pods", on_upper_pod, facts=lives),
        Watch("pods", on_lower_pod, facts=("references",)),
        Watch("upper.nodes", when_node_appears(used)),
    )
    return Users(used, watches)


def pods_of_namespace(
    keys: Callable[[World, LowerWorld, str], Iterable[Key]],
    namespaces: Callable[[LowerWorld, World], Iterable[str]] = namespaces_with_pods,
) -> Users:
    """Return the users of objects that all pods of their namespace need, with the node that those pods are bound to.

    `keys` returns the keys of an upper namespace, and `namespaces` those that need such objects in a lower.
    """

    def used(world: World, lower: LowerWorld) -> Iterator[Key]:
        for namespace in namespaces(lower, world):
            yield from keys(world, lower, namespace)

    def on(change: Callable[[LowerWorld, Delta], str]) -> MapKeys:
        def keys_of_change(world: World, lower: str, delta: Delta) -> Iterable[Key]:
            lower_world = world.lowers[lower]
            namespace = change(lower_world, delta)
            return keys(world, lower_world, namespace) if namespace else ()

        return keys_of_change

    lives = ("terminal", "daemon")
    watches = (
        Watch("upper_pods", on(first_pod_namespace), facts=lives),
        Watch("upper_pods", on(last_pod_namespace), delay=PAUSE, facts=lives),
        Watch("pods", on(last_lower_pod_namespace), delay=PAUSE, facts=()),
        Watch("upper.nodes", when_node_appears(used)),
    )
    return Users(used, watches)


def names_in(kind: Kind, world: World, lower: LowerWorld, namespace: str) -> set[str]:
    """Return the names of all objects of a kind in an upper namespace, on either side, by the index "namespace"."""
    originals = world.upper.more[kind].select("namespace", namespace)
    return {one.name for one in (*originals, *lower.more[kind].select("namespace", lower.namespace(namespace)))}
