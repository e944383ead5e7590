"""What is known of all clusters at one moment: the topology in force and the caches that informers keep.

Rules read it and nothing else. It changes only between two decisions, on the event loop's thread, so that one decision
sees one consistent state without a copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from tensile.kube.store import Cache, Entry
from tensile.names import Owner, prefixed
from tensile.objects import CONFIG_MAP, ENDPOINT_SLICE, NAMESPACE, NODE, POD, SECRET, SERVICE, UPPER, Kind

if TYPE_CHECKING:
    from datetime import datetime

    from tensile.topology import Lower, Topology


class Key(NamedTuple):
    """What one rule decides about at a time; `lower` names the queue that it goes through."""

    rule: str
    lower: str
    namespace: str
    name: str


class Problem(NamedTuple):
    """Why the last try for a key did not come through: a reason in CamelCase and a sentence."""

    reason: str
    message: str


class Naming(NamedTuple):
    """What tells our namespaces below from others: the topology's name as their prefix, the owner's `mark` on them."""

    topology: str
    mark: str


def mapping_note(naming: Naming | None) -> str:
    """Return how a mapping of namespaces is noted on a Node."""
    return "same" if naming is None else f"prefix={naming.topology}"


class UpperServer(NamedTuple):
    """Where pods below reach the upper cluster's apiserver: an IP address or a DNS name, and a port."""

    host: str
    port: int


WAITING = "waiting"
"""The rule whose keys are about pods above that have no node yet, which are in a cache of their own."""
REMAKING = "remaking"
"""The rule whose keys are about pods that are made anew, which are in one of their own as well."""
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
_PLACE_CACHES = ("place_nodes", "place_pods")


@dataclass(slots=True)
class UpperWorld:
    """The upper cluster: our nodes, and what pods may refer to; in `more` what controllers follow, where enabled.

    `waiting` holds the pods that asked for a virtual node and have no node yet, `remade` those that a descheduler made
    in another's place. `policies` are NetworkPolicies, for events only: no other decision reads them.
    `account` is the namespace of the ServiceAccount that the engine is there, "" where it is none.
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
        """Return the cache of a kind, None when that kind is not followed."""
        found = {NODE: self.nodes, NAMESPACE: self.namespaces, CONFIG_MAP: self.config_maps, SECRET: self.secrets}
        return found[kind] if kind in found else self.more.get(kind)

    def caches(self) -> Iterator[Cache]:
        """Yield every cache of the upper cluster that all lowers share, but those of controllers."""
        yield from (self.nodes, self.namespaces, self.config_maps, self.secrets, self.waiting, self.remade)

    def spare_caches(self) -> Iterator[Cache]:
        """Return the caches that do not have to be in sync."""
        yield self.policies

    def copy(self) -> "UpperWorld":
        """Return one with caches of its own that hold the same."""
        nodes, namespaces, config_maps, secrets, waiting, remade = (cache.copy() for cache in self.caches())
        policies, more = self.policies.copy(), _copied(self.more)
        return UpperWorld(nodes, namespaces, config_maps, secrets, waiting, remade, policies, more, self.account)


@dataclass(slots=True)
class LowerWorld:
    """One lower cluster and the pods that the upper binds to its virtual node.

    `pods`, `config_maps` and `secrets` hold what carries our owner label, `foreign_pods` the facts of the other pods,
    `accounts` only that the account `default` of a namespace is there.
    `since` is when the engine began to look after it, None before. `silent` is for how many seconds the cluster has not
    answered; `tried` is false while that says nothing of it, as it was hardly asked: nobody knows yet how it is
    reached, or that has just become another way. `in_topology` turns false when it left the file.
    `met` is false while no cluster has ever shown itself to be this lower, to this engine or one before it, as the Node
    notes: then nothing of ours can be there.
    `connected` is false for one that was left behind: its node stands, and nobody knows any more how to reach it.
    `place_nodes` and `place_pods` hold what placement needs of real nodes and of the pods on them that are not ours;
    they are filled only where the topology asks for placement.
    `room` says when room came for pods that had been refused, as a timestamp, "" for not in this program's time.
    `port` is where the kubelet API of its node is served, 0 where it is not, None where that is for others to say.
    `version` is its Kubernetes version, `identity` the UID of its kube-system. `refusal` says what somebody has to put
    right about its credential or address ("" for nothing), `warning` what is wrong with the credentials on record while
    those in use still work, `denied` what the cluster does not let us follow. `is_wrong` says that another cluster
    answers in its place, in which nothing is done, and `is_shared` that this is one which has a node of another name,
    or the upper one itself; `is_excessive` that it sent more than is taken of any. `in_step` notes by upper name which
    pairs of pods needed no change below under which topology: it spares work, and decides nothing. `more` holds what
    controllers follow, where they are enabled.
    `naming` is None where namespaces have the same name in both clusters; it is the mapping in force, which is not that
    of `spec` while pods run by another one. Until `mapping_known` nothing is at a place that is known. `spaces`
    remembers which upper namespace a lower name was made from, `upper_namespaces` are those that exist, None where all
    are taken to exist. `mark` is the owner's. `account` is the namespace of the ServiceAccount that the engine is in
    the cluster, `upper_account` of that which it is in the upper one, "" where it is none.
    """

    spec: "Lower"
    upper_pods: Cache
    pods: Cache
    foreign_pods: Cache
    namespaces: Cache
    accounts: Cache
    config_maps: Cache
    secrets: Cache
    nodes: Cache
    in_topology: bool = True
    met: bool = True
    connected: bool = True
    since: "datetime | None" = None
    silent: float = 0.0
    tried: bool = True
    room: str = ""
    port: int | None = None
    version: str = ""
    identity: str = ""
    refusal: str = ""
    is_wrong: bool = False
    is_shared: bool = False
    is_excessive: bool = False
    warning: str = ""
    denied: str = ""
    in_step: dict[tuple[str, str], tuple[int, "Topology"]] = field(default_factory=dict)
    more: dict[Kind, Cache] = field(default_factory=dict)
    naming: Naming | None = None
    mapping_known: bool = True
    mark: str = ""
    upper_namespaces: Cache | None = None
    spaces: dict[str, str] = field(default_factory=dict)
    account: str = ""
    upper_account: str = ""
    place_nodes: Cache = field(default_factory=Cache)
    place_pods: Cache = field(default_factory=Cache)

    @property
    def name(self) -> str:
        """The lower's name in the topology."""
        return self.spec.name

    @property
    def node(self) -> str:
        """The name of its virtual node."""
        return self.spec.node.name

    def below(self, kind: Kind) -> Cache | None:
        """Return the cache of a kind of the lower cluster, None when that kind is not followed."""
        found = {
            POD: self.pods,
            NAMESPACE: self.namespaces,
            CONFIG_MAP: self.config_maps,
            SECRET: self.secrets,
        }
        return found[kind] if kind in found else self.more.get(kind)

    def caches(self) -> Iterator[Cache]:
        """Yield every cache of this lower, but those of controllers and of placement."""
        yield from (getattr(self, name) for name in _LOWER_CACHES)

    def place_caches(self) -> Iterator[Cache]:
        """Yield the caches of placement, which nothing but placement waits for."""
        yield from (getattr(self, name) for name in _PLACE_CACHES)

    def namespace(self, upper_namespace: str) -> str:
        """Return the namespace below for one above; "" for "", which is none."""
        if self.naming is None or not upper_namespace:
            return upper_namespace
        name = prefixed(self.naming.topology, upper_namespace)
        self.spaces.setdefault(name, upper_namespace)
        return name

    def is_own(self, upper_namespace: str) -> bool:
        """Whether an upper namespace is one that the engine's own account is in, there or below."""
        if not upper_namespace:
            return False
        return upper_namespace == self.upper_account or self.namespace(upper_namespace) == self.account

    def upper_namespace(self, namespace: str) -> str:
        """Return the upper namespace whose objects have their place in a lower one, "" where none is known.

        Where names are the same, it has to exist in the upper cluster, or the lower namespace has to be one that was
        made for it. With a prefix, the lower namespace has to be marked for it. A prefixed name that was cut does not
        tell what it was made from: whoever asked for it before does, and the note on the namespace.
        """
        if self.naming is None:
            return namespace if self._has_upper(namespace) else ""
        entry, named = self.namespaces.get("", namespace), self.named(namespace)
        is_for = entry is None or (entry.facts.mark, entry.facts.above) == (self.naming.mark, named)
        return named if is_for else ""

    def is_anothers(self, namespace: str) -> bool:
        """Report whether a lower namespace has the name of one for an upper one, and is somebody else's.

        Somebody may have made it first, to have us write to what is in it.
        """
        return self.naming is not None and bool(namespace) and not self.upper_namespace(namespace)

    def named(self, namespace: str) -> str:
        """Return the upper namespace that a lower one is named after, "" where none is known, whoever made it."""
        if self.naming is None:
            return namespace
        entry = self.namespaces.get("", namespace)
        noted = self.spaces.get(namespace) or (entry.facts.above if entry else "")
        return noted if noted and self.namespace(noted) == namespace else ""

    def above(self, namespace: str) -> Iterator[str]:
        """Yield the namespace above for one below, none where it belongs to none that is known.

        Nothing may be decided about such a one by a name above: it would be another object's.
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
        return entry is not None and (entry.facts.mark, entry.facts.above) == (self.mark, namespace)

    @property
    def settled(self) -> bool:
        """Whether absence means something: the mapping is known, and caches but those of controllers are complete."""
        return self.mapping_known and all(cache.synced for cache in self.caches())

    @property
    def is_withheld(self) -> bool:
        """Whether the cluster does not let us know what no pod can be made without."""
        return bool(self.denied) and not self.settled

    @property
    def is_bound(self) -> bool:
        """Whether pods above are bound to its node; those do not count that are there only because the node is."""
        return any(not pod.facts.stays_out for pod in self.upper_pods)

    @property
    def is_vacant(self) -> bool:
        """Whether it is certain that no pods above are bound to its node."""
        return self.upper_pods.synced and not self.is_bound

    @property
    def is_read(self) -> bool:
        """Whether it is known which pods are mirrored, if any: none are where no cluster was ever met."""
        return self.upper_pods.synced and (self.pods.synced or not self.met)

    @property
    def has_orphans(self) -> bool:
        """Whether lower pods with both of our marks are at the places of upper pods, and not ending."""
        return any(pod.facts.owner and not pod.facts.terminating for pod in self.placed(self.pods))

    @property
    def is_empty(self) -> bool:
        """Whether it certainly has no pods of ours, as far as anybody can know, and nothing known that served them."""
        is_unknown = not (self.connected and self.met)
        is_free_below = is_unknown or (self.pods.synced and not any(self.placed(self.pods)))
        serving = (self.more[kind] for kind in _SERVING if kind in self.more)
        return self.is_vacant and is_free_below and not any(True for cache in serving for _ in self.placed(cache))

    def placed(self, cache: Cache) -> Iterator[Entry]:
        """Return the objects of one of this lower's caches that are in the namespace of an upper one."""
        return (entry for entry in cache if self.upper_namespace(entry.namespace))

    def copy(self) -> "LowerWorld":
        """Return a lower with caches of its own that hold the same."""
        copied = {name: getattr(self, name).copy() for name in (*_LOWER_CACHES, *_PLACE_CACHES)}
        return replace(self, **copied, in_step={}, more=_copied(self.more), spaces=dict(self.spaces))


@dataclass(slots=True)
class World:
    """Everything that a decision may look at.

    `now` is the time of the decision, in UTC, `node_address` the IP address at which the kubelet API of the virtual
    nodes is reached; `upper_server` is None where it is not known at which address pods below reach the upper cluster.
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
        """The lower in whose queue is looked at what is of no lower, "" while there is none; last, one that leaves."""
        first = [spec.name for spec in self.topology.lowers if spec.name in self.lowers]
        return next(iter([*first, *self.lowers]), "")

    def copy(self) -> "World":
        """Return a world with caches of its own that hold the same, and no problems yet."""
        upper, lowers = self.upper.copy(), {name: lower.copy() for name, lower in self.lowers.items()}
        for lower in lowers.values():
            lower.upper_namespaces = None if lower.upper_namespaces is None else upper.namespaces
        return replace(self, upper=upper, lowers=lowers, problems={})

    def cache(self, cluster: str, kind: Kind, lower: str, rule: str = "") -> Cache | None:
        """Return the cache that an object of `cluster` belongs in, for a key of `lower`; None when not followed.

        Pods above are in one or the other, by the `rule` that the key is of.
        """
        if cluster == UPPER and kind == POD:
            apart = {WAITING: self.upper.waiting, REMAKING: self.upper.remade}
            return apart[rule] if rule in apart else self.lowers[lower].upper_pods
        if cluster == UPPER:
            return self.upper.cache(kind)
        return self.lowers[cluster].below(kind)


def _copied(caches: dict[Kind, Cache]) -> dict[Kind, Cache]:
    return {kind: cache.copy() for kind, cache in caches.items()}
