"""The rule for Services: below for each one above whose namespace has pods there, and gone with it.

The Service below has no selector, so that Kubernetes leaves its endpoints alone; they are the rule for slices'. A name
that is taken is said on the Service above, and the Service below that has it is not touched.
"""

from collections.abc import Iterator

from tensile.cache import Cache, Delta, Entry
from tensile.names import UPPER_UID
from tensile.objects import SERVICE, UPPER, Manifest, Ref, annotations
from tensile.reconcile import namespaces, ownership
from tensile.reconcile.adoption import claim, conflict
from tensile.reconcile.alias import alias_service
from tensile.reconcile.desired import Absent, Decision, Present, Route, Told, Wanted
from tensile.reconcile.exposure import (
    KUBE_SYSTEM,
    SERVICE_RULE,
    began,
    ended,
    ended_below,
    exposed,
    is_exposed,
    is_kept,
    is_known,
    is_made_for,
    service_key,
)
from tensile.reconcile.observed import has_node, node_begins
from tensile.reconcile.servicespec import cannot_become, lower_service, sections
from tensile.world import Key, LowerWorld, Problem, World

NAME = SERVICE_RULE
PAUSE = 5.0
"""Seconds for which Services outlast the last pod of their namespace: often the next one is about to come."""
_API_SERVER = ("default", "kubernetes")


class ServiceRule:
    """One key for each Service of a namespace with pods, and for each that was made below."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Hear of Services on both sides, of the first and the last pod of a namespace, and of the node."""
        return (
            Route("upper.Service", _above),
            Route("Service", _below),
            Route("upper_pods", _first_pod),
            Route("upper_pods", _last_pod, delay=PAUSE),
            Route("pods", _last_pod_below, delay=PAUSE),
            Route("upper.nodes", _node),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Give a key for each Service that is below, or belongs there."""
        here = world.lowers[lower]
        found = {key for namespace in exposed(here, world) for key in _of_namespace(world, lower, namespace)}
        found |= {key for one in here.more[SERVICE] for key in _of_copy(here, one)}
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Want the Service below while its namespace has pods there, and it exists above or is the alias."""
        lower = world.lowers[key.lower]
        if not is_known(lower, world):
            return Decision()
        ref = Ref(lower.name, SERVICE, lower.namespace(key.namespace), key.name)
        copy = lower.more[SERVICE].get(ref.namespace, key.name)
        if not is_exposed(lower, key.namespace, world):
            return _unasked(world, key, ref, copy)
        wanted = _wanted(world, key, ref.namespace)
        if wanted is None:
            return _gone(world, key, ref, copy)
        return _kept(world, key, ref, copy, wanted)


def original(world: World, namespace: str, name: str) -> Entry | None:
    """Give the Service above that has a copy below; the apiserver's own has none."""
    return None if (namespace, name) == _API_SERVER else world.upper.more[SERVICE].get(namespace, name)


def is_alias(world: World, namespace: str, name: str) -> bool:
    """Say whether a name is the alias' in a namespace: not where the upper cluster has a Service of that name."""
    return (
        name == world.topology.services.upper_alias
        and namespace != KUBE_SYSTEM
        and original(world, namespace, name) is None
    )


def _unasked(world: World, key: Key, ref: Ref, copy: Entry | None) -> Decision:
    """End a Service that no upper pod asks for; one that a lower pod of ours keeps goes only with its original."""
    if not is_kept(world.lowers[key.lower], key.namespace):
        return _end(world, ref, copy, "no pod of its namespace is here any more")
    return Decision() if original(world, key.namespace, key.name) is not None else _gone(world, key, ref, copy)


def _wanted(world: World, key: Key, namespace: str) -> Manifest | None:
    """Give the Service as it should be below, None where there should be none."""
    above = original(world, key.namespace, key.name)
    if above is not None:
        families = frozenset[str]().union(*(node.facts.families for node in world.lowers[key.lower].nodes))
        return lower_service(above.manifest(), world.owner, namespace, families)
    if world.upper_server is None or not is_alias(world, key.namespace, key.name):
        return None
    return alias_service(world.upper_server, key.name, world.owner, namespace)


def _kept(world: World, key: Key, ref: Ref, copy: Entry | None, manifest: Manifest) -> Decision:
    lower = world.lowers[key.lower]
    if not has_node(lower, world) or (copy is None and not _may_be_made(lower, key.namespace)):
        return Decision()
    if not namespaces.ready(lower, key.namespace):
        return Decision(waits=(namespaces.key_of(lower.name, key.namespace),))
    obstacle = "" if copy is None else cannot_become(copy.manifest(), manifest)
    if copy is not None and obstacle:
        if copy.facts.owner == world.owner.mark:
            return _end(world, ref, copy, obstacle)
        return Decision(tuple(_said(world, key)), problem=_refused(ref, copy, obstacle, manifest, world))
    reason = f"pods of namespace {key.namespace} are in {lower.name}"
    wanted = Present(ref, manifest, reason, sections=sections(manifest), replaceable=True)
    return Decision((*_said(world, key), wanted))


def _may_be_made(lower: LowerWorld, namespace: str) -> bool:
    return namespace == KUBE_SYSTEM or ownership.may_be_made(iter(lower.upper_pods.select("living", namespace)))


def _refused(ref: Ref, copy: Entry, obstacle: str, manifest: Manifest, world: World) -> Problem:
    """Say why somebody's Service is not taken over: it would have to be made anew, and would lose its address."""
    upper_uid = annotations(manifest)[UPPER_UID]
    return claim(ref, copy.manifest(), upper_uid, world, ref.cluster) or conflict(ref, obstacle)


def _said(world: World, key: Key) -> list[Wanted]:
    """Tell on the Service above what stands in its way below."""
    problem, above = world.problems.get(key), original(world, key.namespace, key.name)
    if problem is None or above is None:
        return []
    return [Told(Ref(UPPER, SERVICE, key.namespace, key.name), above.uid, problem.reason, problem.message)]


def _gone(world: World, key: Key, ref: Ref, copy: Entry | None) -> Decision:
    """Follow a deletion that was seen, and an alias that has another name now; the rest has to be looked into."""
    departed = world.upper.more[SERVICE].departed(key.namespace, key.name)
    if copy is None:
        return Decision()
    if is_made_for(copy, world.owner, world.owner.upper):
        return _end(world, ref, copy, "it does not lead to the upper cluster any more")
    if departed is not None and departed.seen and is_made_for(copy, world.owner, departed.uid):
        return _end(world, ref, copy, "the upper Service was deleted")
    return Decision()


def _end(world: World, ref: Ref, copy: Entry | None, reason: str) -> Decision:
    if copy is None or copy.facts.owner != world.owner.mark:
        return Decision()
    return Decision((Absent(ref, copy.uid, reason),))


def _of_namespace(world: World, lower: str, namespace: str) -> Iterator[Key]:
    """Give the keys of every Service of an upper namespace, on either side, and of the alias."""
    here = world.lowers[lower]
    below: Cache = here.more[SERVICE]
    names = {entry.name for entry in world.upper.more[SERVICE].select("namespace", namespace)}
    names |= {entry.name for entry in below.select("namespace", here.namespace(namespace))}
    for name in sorted(names | {world.topology.services.upper_alias}):
        yield service_key(lower, namespace, name)


def _above(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    here, entry = world.lowers[lower], delta.entry
    is_below = here.more[SERVICE].get(here.namespace(entry.namespace), entry.name) is not None
    if is_below or is_exposed(here, entry.namespace, world):
        yield service_key(lower, entry.namespace, entry.name)


def _below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    yield from _of_copy(world.lowers[lower], delta.entry)


def _of_copy(lower: LowerWorld, copy: Entry) -> Iterator[Key]:
    for namespace in lower.above(copy.namespace):
        yield service_key(lower.name, namespace, copy.name)


def _first_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    namespace = began(world.lowers[lower], delta)
    if namespace:
        yield from _of_namespace(world, lower, namespace)


def _last_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    namespace = ended(world.lowers[lower], delta)
    if namespace:
        yield from _of_namespace(world, lower, namespace)


def _last_pod_below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    namespace = ended_below(world.lowers[lower], delta)
    if namespace:
        yield from _of_namespace(world, lower, namespace)


def _node(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Hear of the node when it comes, or becomes ours: without it nothing was made."""
    here = world.lowers[lower]
    if node_begins(here, delta):
        for namespace in exposed(here, world):
            yield from _of_namespace(world, lower, namespace)
