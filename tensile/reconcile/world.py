"""The state of all clusters at one moment: the active topology and the caches of the informers.

Rules read nothing else. It only changes between two decisions, on the event loop's thread, so a decision sees one
consistent state without a copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from tensile.kube.store import Cache, Entry
from tensile.names import Owner, prefixed
from tensile.objects import CONFIG_MAP, ENDPOINT_SLICE, NAMESPACE, NODE, POD, SECRET, SERVICE, UPPER, Kind

if TYPE_CHECKING:
    from datetime import datetime

    from tensile.topology import Lower, Topology

WAITING = "waiting"
"""The rule for upper pods without a node, which have a cache of their own."""
REMAKING = "remaking"
"""The rule for upper pods that are recreated, which have a cache of their own."""
_SERVING = (SERVICE, ENDPOINT_SLICE)
_LOWER_CACHES = (
    "upper_pods",
    "pods",
    "foreign_pods",
    "namespaces",
    "accounts",
    "config_maps",
    "secrets",
    "nodes",
)
_ARE_SYNCED = attrgetter(*(f"{name}.synced" for name in _LOWER_CACHES))
"""Every decision asks for this, so it takes one call."""
_PLACE_CACHES = ("place_nodes", "place_pods")
_CACHES = {NODE: "nodes", NAMESPACE: "namespaces", CONFIG_MAP: "config_maps", SECRET: "secrets"}
_LOWER_CACHE_NAMES = {POD: "pods", NAMESPACE: "namespaces", CONFIG_MAP: "config_maps", SECRET: "secrets"}


class Key(NamedTuple):
    """The unit of a rule's decisions. `lower` names its queue."""

    rule: str
    lower: str
    namespace: str
    name: str


class Problem(NamedTuple):
    """Why the last try for a key failed: a reason in CamelCase and a message."""

    reason: str
    message: str


class ForeignProblem(Problem):
    """One whose reason is neither of this program nor of Kubernetes: a webhook can answer with any text."""

    __slots__ = ()


class NamespaceNaming(NamedTuple):
    """What identifies our namespaces in a lower cluster: the topology's name as prefix, and the owner's `mark`."""

    topology: str
    mark: str


class UpperServer(NamedTuple):
    """The address of the upper apiserver for lower pods: an IP address or a DNS name, and a port."""

    host: str
    port: int


def mapping_note(naming: NamespaceNaming | None) -> str:
    """Return the record of a namespace mapping for a Node."""
    return "same" if naming is None else f"prefix={naming.topology}"


@dataclass(slots=True)
class UpperWorld:
    """The upper cluster: our nodes, the objects that pods may refer to, and in `more` the kinds of enabled controllers.

    `waiting` holds the pods that requested a virtual node and have no node yet, `remade` those that a descheduler
    created as replacements. `policies` are NetworkPolicies, which are only read for events. `account` is the namespace
    of the engine's ServiceAccount in the upper cluster, "" for another identity.
    """

    nodes: Cache
    namespaces: Cache
    config_maps: Cache
    secrets: Cache
    waiting: Cache
    remade: Cache
    policies: Cache = field(default_factory=Cache)
    more: dict[Kind, Cache] = field(default_factory=dict)
    account: str = ""

    def cache(self, kind: Kind) -> Cache | None:
        """Return the cache of a kind, None if that kind is not watched."""
        name = _CACHES.get(kind)
        found: Cache | None = self.more.get(kind) if name is None else getattr(self, name)
        return found

    def caches(self) -> Iterator[Cache]:
        """Yield the caches of the upper cluster that all lowers share, without those of controllers."""
        yield from (self.nodes, self.namespaces, self.config_maps, self.secrets, self.waiting, self.remade)

    def copy(self) -> "UpperWorld":
        """Return a copy with caches of its own."""
        nodes, namespaces, config_maps, secrets, waiting, remade = (cache.copy() for cache in self.caches())
        policies, more = self.policies.copy(), _copied(self.more)
        return UpperWorld(nodes, namespaces, config_maps, secrets, waiting, remade, policies, more, self.account)


@dataclass(slots=True)
class LowerWorld:
    """One lower cluster, and the upper pods bound to its virtual node: its caches, its connection, its namespaces."""

    spec: "Lower"

    upper_pods: Cache
    pods: Cache
    """Only pods with our owner label; `config_maps` and `secrets` likewise."""
    foreign_pods: Cache
    """The facts of the other pods."""
    namespaces: Cache
    accounts: Cache
    """In which namespaces the ServiceAccount `default` exists."""
    config_maps: Cache
    secrets: Cache
    nodes: Cache
    more: dict[Kind, Cache] = field(default_factory=dict)
    """The kinds of enabled controllers."""
    place_nodes: Cache = field(default_factory=Cache)
    """What placement needs of real nodes, if the topology enables placement."""
    place_pods: Cache = field(default_factory=Cache)
    """What placement needs of pods that are not ours."""

    in_topology: bool = True
    """False after it left the file."""
    was_identified: bool = True
    """Whether a cluster has ever responded as this lower, to this engine or to a previous one (recorded on the Node).

    If not, no object of ours can be there.
    """
    connected: bool = True
    """False for a lower of which only a Node is known, left by an earlier engine, and no credentials."""
    since: "datetime | None" = None
    """When the engine started to reconcile it, None before."""
    unreachable_seconds: float = 0.0
    """The time without a response."""
    silence_is_evidence: bool = True
    """False while that time is no evidence, as the access is unknown or has just changed."""
    access_error: str = ""
    """What a user has to correct about its credential or address, "" for nothing."""
    outage_error: str = ""
    """The latest error of an outage, "" for none. For people only: no decision depends on it."""
    warning: str = ""
    """What is wrong with the configured credentials while the previous ones still work."""
    denied: str = ""
    """What the cluster does not allow us to watch."""
    is_wrong: bool = False
    """Whether another cluster responds, in which nothing is done."""
    is_shared: bool = False
    """Whether that one has a node of another name, or is the upper cluster itself."""
    is_excessive: bool = False
    """Whether it sent more than allowed."""
    is_unproven: bool = False
    """Whether it denies what shows its identity, so that nothing is done there."""
    other_engine: str = ""
    """Another engine that renews the Lease of the same node, "" for none."""
    version: str = ""
    """Its Kubernetes version."""
    identity: str = ""
    """The UID of its namespace kube-system."""

    port: int | None = None
    """The port of its node's kubelet API, 0 if it is not served, None if others determine it."""
    capacity_freed_at: str = ""
    """When capacity became free for pods that had been rejected, as a timestamp, "" for not since the start."""
    synced_pairs: dict[tuple[str, str], int] = field(default_factory=dict)
    """By upper name: a hash of each pair of pods that needed no change. It saves work, and decides nothing."""
    synced_under: tuple[object, ...] = ()
    """What that depends on besides the pods: the topology, and the joined lowers."""

    naming: NamespaceNaming | None = None
    """The active mapping of namespaces, None for the same names; not `spec`'s while pods run under another one."""
    mapping_known: bool = True
    """False while no mapped name is known."""
    mark: str = ""
    """The owner's mark."""
    upper_namespaces: Cache | None = None
    """The namespaces of the upper cluster, None if all count as existing."""
    namespace_origins: dict[str, str] = field(default_factory=dict)
    """From which upper namespace each lower name was made."""
    account: str = ""
    """The namespace of the engine's ServiceAccount in this cluster, "" for another identity."""
    upper_account: str = ""
    """The same in the upper cluster."""

    @property
    def name(self) -> str:
        """The lower's name in the topology."""
        return self.spec.name

    @property
    def node(self) -> str:
        """The name of its virtual node."""
        return self.spec.node.name

    @property
    def drain_requested(self) -> bool:
        """Whether the topology drains it."""
        return self.in_topology and self.spec.maintenance == "drain"

    def cache(self, kind: Kind) -> Cache | None:
        """Return the cache of a kind of the lower cluster, None if that kind is not watched."""
        name = _LOWER_CACHE_NAMES.get(kind)
        found: Cache | None = self.more.get(kind) if name is None else getattr(self, name)
        return found

    def caches(self) -> Iterator[Cache]:
        """Yield every cache of this lower, without those of controllers and of placement."""
        yield from (getattr(self, name) for name in _LOWER_CACHES)

    def place_caches(self) -> Iterator[Cache]:
        """Yield the caches of placement, on which only placement waits."""
        yield from (getattr(self, name) for name in _PLACE_CACHES)

    def namespace(self, upper_namespace: str) -> str:
        """Return the lower namespace for an upper one, "" for ""."""
        if self.naming is None or not upper_namespace:
            return upper_namespace
        name = prefixed(self.naming.topology, upper_namespace)
        self.namespace_origins.setdefault(name, upper_namespace)
        return name

    def is_own(self, upper_namespace: str) -> bool:
        """Report whether an upper namespace, or the lower one that it maps to, is that of the engine's own account."""
        if not upper_namespace:
            return False
        return upper_namespace == self.upper_account or self.namespace(upper_namespace) == self.account

    def upper_namespace(self, namespace: str) -> str:
        """Return the upper namespace that maps to a lower one, "" if none is known.

        If names are the same, it has to exist in the upper cluster, or the lower namespace has to be made for it. With
        a prefix, the lower namespace has to be marked for it, or not exist yet. A prefixed name that was cut does not
        reveal its upper name: that is known from an earlier call of `namespace`, and from the annotation on the lower
        namespace.
        """
        if self.naming is None:
            return namespace if self._has_upper(namespace) else ""
        entry, named = self.namespaces.get("", namespace), self.named(namespace)
        is_for = entry is None or (entry.facts.mark, entry.facts.upper_name) == (self.naming.mark, named)
        return named if is_for else ""

    def is_anothers(self, namespace: str) -> bool:
        """Report, with a prefix, whether a lower namespace is not marked for an upper one, and so is another's.

        A user may have created it first under a mapped name, to make us write to its objects.
        """
        return self.naming is not None and bool(namespace) and not self.upper_namespace(namespace)

    def named(self, namespace: str) -> str:
        """Return the upper namespace that a lower one is named after, whoever made it, "" if none is known."""
        if self.naming is None:
            return namespace
        entry = self.namespaces.get("", namespace)
        recorded = self.namespace_origins.get(namespace) or (entry.facts.upper_name if entry else "")
        return recorded if recorded and self.namespace(recorded) == namespace else ""

    def upper_namespaces_of(self, namespace: str) -> Iterator[str]:
        """Yield the upper namespace for a lower one, none if none is known.

        In that case no decision may use an upper name: it would be another object's.
        """
        found = self.upper_namespace(namespace)
        if found:
            yield found

    def _has_upper(self, namespace: str) -> bool:
        """Report whether the upper cluster has, or had, the namespace of that name."""
        known = self.upper_namespaces
        if known is None or known.get("", namespace) is not None:
            return True
        entry = self.namespaces.get("", namespace)
        return entry is not None and (entry.facts.mark, entry.facts.upper_name) == (self.mark, namespace)

    @property
    def settled(self) -> bool:
        """Whether absence is meaningful: the mapping is known, and all caches but those of controllers are synced."""
        return self.mapping_known and all(_ARE_SYNCED(self))

    @property
    def is_withheld(self) -> bool:
        """Whether the cluster denies what every pod needs."""
        return self.is_unproven or (bool(self.denied) and not self.settled)

    @property
    def is_bound(self) -> bool:
        """Whether upper pods are bound to its node, not counting those that only exist because of the node."""
        return any(not pod.facts.stays_out for pod in self.upper_pods)

    @property
    def is_vacant(self) -> bool:
        """Whether it is certain that no upper pods are bound to its node."""
        return self.upper_pods.synced and not self.is_bound

    @property
    def is_read(self) -> bool:
        """Whether the set of mirrored pods is known. It is empty if no cluster ever responded."""
        return self.upper_pods.synced and (self.pods.synced or not self.was_identified)

    @property
    def has_lower_pods(self) -> bool:
        """Whether mapped namespaces have lower pods with both of our marks that are not terminating."""
        return any(pod.facts.owner and not pod.facts.terminating for pod in self.placed(self.pods))

    @property
    def is_empty(self) -> bool:
        """Whether it has no pods of ours, as far as that can be known, and no cached objects that served them."""
        is_unknown = not (self.connected and self.was_identified)
        has_no_lower_pods = is_unknown or (self.pods.synced and not any(self.placed(self.pods)))
        return self.is_vacant and has_no_lower_pods and not any(True for _ in self.serving())

    def serving(self) -> Iterator[Entry]:
        """Return the cached Services and slices in namespaces to which an upper one maps."""
        caches = (self.more[kind] for kind in _SERVING if kind in self.more)
        return (entry for cache in caches for entry in self.placed(cache))

    def placed(self, cache: Cache) -> Iterator[Entry]:
        """Return the objects of one of this lower's caches in namespaces to which an upper one maps."""
        return (entry for entry in cache if self.upper_namespace(entry.namespace))

    def copy(self) -> "LowerWorld":
        """Return a copy with caches of its own."""
        copied = {name: getattr(self, name).copy() for name in (*_LOWER_CACHES, *_PLACE_CACHES)}
        origins = dict(self.namespace_origins)
        return replace(self, **copied, synced_pairs={}, more=_copied(self.more), namespace_origins=origins)


@dataclass(slots=True)
class World:
    """Everything that a decision may read.

    `now` is the time of the decision in UTC. `node_address` is the IP address of the virtual nodes' kubelet API.
    `upper_server` is None if the address of the upper cluster for lower pods is unknown.
    """

    topology: "Topology"
    owner: Owner
    upper: UpperWorld
    now: "datetime"
    node_address: str = ""
    upper_server: UpperServer | None = None
    lowers: dict[str, LowerWorld] = field(default_factory=dict)
    problems: dict[Key, Problem] = field(default_factory=dict)

    @property
    def virtual_nodes(self) -> frozenset[str]:
        """The names of all virtual nodes."""
        return frozenset(lower.node for lower in self.lowers.values())

    @property
    def speaker(self) -> str:
        """The lower whose queue handles keys of no lower, "" for none. Lowers that left the file come last."""
        first = [spec.name for spec in self.topology.lowers if spec.name in self.lowers]
        return next(iter([*first, *self.lowers]), "")

    def copy(self) -> "World":
        """Return a copy with caches of its own and without problems."""
        upper, lowers = self.upper.copy(), {name: lower.copy() for name, lower in self.lowers.items()}
        for lower in lowers.values():
            lower.upper_namespaces = None if lower.upper_namespaces is None else upper.namespaces
        return replace(self, upper=upper, lowers=lowers, problems={})

    def cache(self, cluster: str, kind: Kind, lower: str, rule: str = "") -> Cache | None:
        """Return the cache for an object of `cluster` and a key of `lower`, None if the kind is not watched.

        For upper pods it depends on the `rule` of the key.
        """
        if cluster == UPPER and kind == POD:
            own_caches = {WAITING: self.upper.waiting, REMAKING: self.upper.remade}
            return own_caches[rule] if rule in own_caches else self.lowers[lower].upper_pods
        if cluster == UPPER:
            return self.upper.cache(kind)
        return self.lowers[cluster].cache(kind)


def _copied(caches: dict[Kind, Cache]) -> dict[Kind, Cache]:
    return {kind: cache.copy() for kind, cache in caches.items()}
