"""The rule for ConfigMaps and Secrets that pods refer to: below before the pod, kept in step, gone with the last one.

A copy is wanted as long as a pod above that refers to it is bound here, or a pod of ours below still does. The second
half matters: what the guard keeps running must keep its configuration.
"""

from collections.abc import Iterable, Iterator

from tensile.cache import Cache, Delta, Entry
from tensile.objects import CONFIG_MAP, SECRET, Kind, Ref
from tensile.reconcile import namespaces
from tensile.reconcile.desired import Absent, Decision, Keys, Present, Route
from tensile.reconcile.observed import is_of, is_ours
from tensile.reconcile.references import Reference, copy_of, never_copied
from tensile.world import Key, LowerWorld, Problem, World

NAME = "dependency"
KINDS = {CONFIG_MAP.name: CONFIG_MAP, SECRET.name: SECRET}
_SECTIONS = ("metadata.labels", "metadata.annotations", "data", "binaryData", "immutable")


def key_of(lower: str, namespace: str, kind: str, name: str) -> Key:
    """Give the key of one copied object, by its upper namespace and name."""
    return Key(NAME, lower, namespace, f"{kind}/{name}")


def missing(world: World, lower: LowerWorld, namespace: str, wanted: Iterable[Reference]) -> list[Key]:
    """Give the keys of the referred objects that a pod has to wait for: not optional, and not below yet."""
    return sorted(
        key_of(lower.name, namespace, reference.kind, reference.name)
        for reference in wanted
        if reference.kind in KINDS and not _is_there(world, lower, namespace, reference)
    )


class DependencyRule:
    """One key for each ConfigMap and Secret that a pod on the virtual node refers to, or that has a copy below."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Hear of the originals, the copies, and of pods on both sides that begin or cease to refer to them."""
        return (
            Route("upper.config_maps", _original(CONFIG_MAP)),
            Route("upper.secrets", _original(SECRET)),
            Route("config_maps", _copy(CONFIG_MAP)),
            Route("secrets", _copy(SECRET)),
            Route("upper_pods", _referrer),
            Route("pods", _referrer_below),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Give the keys of everything referred to and of every copy."""
        here = world.lowers[lower]
        found = {
            key_of(lower, entry.namespace, reference.kind, reference.name)
            for entry in here.upper_pods
            for reference in entry.facts.references
            if reference.kind in KINDS
        }
        for kind, cache in ((CONFIG_MAP, here.config_maps), (SECRET, here.secrets)):
            found |= {key_of(lower, here.upper_namespace(entry.namespace), kind.name, entry.name) for entry in cache}
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Want the copy while something refers to it."""
        lower = world.lowers[key.lower]
        kind_name, _, name = key.name.partition("/")
        kind = KINDS[kind_name]
        originals, copies = world.upper.cache(kind), lower.below(kind)
        assert originals is not None
        assert copies is not None
        if not (originals.synced and lower.settled):
            return Decision()
        ref = Ref(lower.name, kind, lower.namespace(key.namespace), name)
        original, copy = originals.get(key.namespace, name), copies.get(ref.namespace, name)
        if not _referred(lower, key.namespace, kind, name):
            return _end(world, ref, copy, "no pod refers to it any more")
        if original is None:
            return _without_original(world, ref, copy, originals, key)
        return _kept(world, lower, ref, original, key)


def _kept(world: World, lower: LowerWorld, ref: Ref, original: Entry, key: Key) -> Decision:
    above = original.manifest()
    refused = never_copied(above)
    if refused:
        return Decision(problem=Problem("SecretNotCopied", f"{ref.kind.name} {key.namespace}/{ref.name}: {refused}"))
    if not namespaces.ready(lower, key.namespace):
        return Decision(waits=(namespaces.key_of(lower.name, key.namespace),))
    wanted = Present(
        ref,
        copy_of(above, world.owner, ref.namespace),
        f"pods on node {lower.node} refer to it",
        sections=_SECTIONS,
        replaceable=True,
    )
    return Decision((wanted,))


def _without_original(world: World, ref: Ref, copy: Entry | None, originals: Cache, key: Key) -> Decision:
    """Follow a deletion that was seen; keep the copy of an original that is merely not there."""
    departed = originals.departed(key.namespace, ref.name)
    problem = Problem(f"{ref.kind.name}NotFound", f"{ref.kind.name} {key.namespace}/{ref.name} does not exist")
    if departed is None or copy is None:
        return Decision(problem=problem)
    return _end(world, ref, copy, f"the upper {ref.kind.name} was deleted")._replace(problem=problem)


def _end(world: World, ref: Ref, copy: Entry | None, reason: str) -> Decision:
    if copy is None or not is_ours(copy.manifest(), world.owner):
        return Decision()
    return Decision((Absent(ref, copy.uid, reason),))


def _is_there(world: World, lower: LowerWorld, namespace: str, reference: Reference) -> bool:
    kind = KINDS[reference.kind]
    originals, copies = world.upper.cache(kind), lower.below(kind)
    assert originals is not None
    assert copies is not None
    original, copy = originals.get(namespace, reference.name), copies.get(lower.namespace(namespace), reference.name)
    if original is None:
        return reference.optional
    return copy is not None and is_of(copy.manifest(), world.owner, original.uid)


def _referred(lower: LowerWorld, namespace: str, kind: Kind, name: str) -> bool:
    above = lower.upper_pods.select("reference", (kind.name, namespace, name))
    below = lower.pods.select("reference", (kind.name, lower.namespace(namespace), name))
    return bool(below) or any(not entry.facts.terminal for entry in above)


def _original(kind: Kind) -> Keys:
    def keys(world: World, lower: str, delta: Delta) -> Iterator[Key]:
        entry = delta.after or delta.before
        assert entry is not None
        here = world.lowers[lower]
        copies = here.below(kind)
        assert copies is not None
        referred = here.upper_pods.select("reference", (kind.name, entry.namespace, entry.name))
        if referred or copies.get(here.namespace(entry.namespace), entry.name):
            yield key_of(lower, entry.namespace, kind.name, entry.name)

    return keys


def _copy(kind: Kind) -> Keys:
    def keys(world: World, lower: str, delta: Delta) -> Iterator[Key]:
        entry = delta.after or delta.before
        assert entry is not None
        yield key_of(lower, world.lowers[lower].upper_namespace(entry.namespace), kind.name, entry.name)

    return keys


def _referrer(_world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Give what a pod begins or ceases to refer to; one that stays the same concerns nothing."""
    before, after = _references(delta.before), _references(delta.after)
    entry = delta.after or delta.before
    assert entry is not None
    for reference in before ^ after:
        if reference.kind in KINDS:
            yield key_of(lower, entry.namespace, reference.kind, reference.name)


def _referrer_below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    here = world.lowers[lower]
    for key in _referrer(world, lower, delta):
        yield key._replace(namespace=here.upper_namespace(key.namespace))


def _references(entry: Entry | None) -> frozenset[Reference]:
    if entry is None or entry.facts.terminal:
        return frozenset()
    found: frozenset[Reference] = entry.facts.references
    return found
