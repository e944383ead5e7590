"""The facts that are collected from clusters, and the findings that checks derive from them. Facts contain no secrets.

The functions at the end interpret the facts that several checks need: the Nodes of an engine, and its leases.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from ipaddress import ip_address
from typing import Any, NamedTuple

from tensile.engine.permissions import Permission
from tensile.engine.status.query import holds, renewed_at
from tensile.kubelet.node.status import noted_port
from tensile.names import Owner, owner_of
from tensile.objects import UPPER, Manifest, metadata
from tensile.reconcile.ownership import is_ours
from tensile.topology import Lower, Topology

NODES, CLASSES, RANGES, METRICS = "nodes", "storage classes", "service ranges", "metrics API"
WAITING = "pods without a node"
NAMESPACES, PODS_BY_NAMESPACE = "namespaces", "pods by namespace"
POLICIES = "NetworkPolicies by namespace"
NO_ANSWER = "no answer in"
"""How the error of a step of a connection begins that took too long."""
LOCAL_ENGINE = "engine on this machine"
AUTHORITY, REQUESTS, ADVERTISED = "authority of callers", "certificate requests", "advertised address"
HOOK, HOOK_CALL, HOOK_ADDRESS, HOOK_SLICES = (
    "webhook",
    "call of the webhook",
    "address of the webhook",
    "endpoints of the webhook",
)
"""The names of the queries; `lease_of` and `port_of` name those for one node."""
CHECKS = (
    "reach",
    "login",
    "version",
    "clock",
    "certificates",
    "identity",
    "rights",
    "node",
    "kubelet",
    "metrics",
    "storage",
    "network",
    "webhook",
    "ports",
    "tenants",
)
"""The names of all checks, in the order in which they are printed."""


class Stage(IntEnum):
    """The steps of a connection to a server, up to an accepted request."""

    NAME = 1
    CONNECTION = 2
    TLS = 3
    ANSWER = 4
    LOGIN = 5
    DONE = 6


class TokenInfo(NamedTuple):
    """The claims of a token that doctor reads: its subject ("" if it has none), and its expiry."""

    subject: str = ""
    expiry: datetime | None = None


class ServerEndpoint(NamedTuple):
    """How to reach a server according to a kubeconfig, or to what `origin` names.

    `name` is the name that the server's certificate must contain. The certificates are PEM, b"" for none. `flags` are
    kubectl's options for the same access.
    """

    origin: str
    url: str
    host: str
    port: int
    name: str
    authority: bytes = b""
    certificate: bytes = b""
    token: TokenInfo = TokenInfo()
    flags: str = ""

    @property
    def host_and_port(self) -> str:
        """The address, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ContactResult(NamedTuple):
    """The result of a connection attempt: the stage that failed and its `error`, or DONE.

    `shown` is the server's certificate (DER, b"" if it sent none), `version` its version such as "v1.36.3". `ahead` is
    how many seconds the server's clock is ahead of the local one, None if unknown.
    """

    endpoint: ServerEndpoint
    stage: Stage
    error: str = ""
    shown: bytes = b""
    version: str = ""
    ahead: float | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the server did not respond in time."""
        return self.error.startswith(NO_ANSWER)


class QueryAnswer(NamedTuple):
    """The answer of a cluster to one query: a value, or an error with its HTTP status (0: no response)."""

    value: Any = None
    error: str = ""
    status: int = 0


@dataclass(slots=True)
class ClusterFacts:
    """The facts about one cluster; filled while queries run, and used as it is at the timeout.

    `access_error` is the error in its credentials that prevented any query, `remedy` what to do about it ("" if the
    error says so). `missing` holds the rights that are not granted, with only the missing verbs; None if they could not
    be queried. `answers` are by query, `unanswered` are the queries without a response so far.
    """

    name: str
    access_error: str = ""
    remedy: str = ""
    contact: ContactResult | None = None
    user: str = ""
    identity: str = ""
    missing: list[Permission] | None = None
    answers: dict[str, QueryAnswer] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)

    @property
    def is_accessible(self) -> bool:
        """Whether the cluster responds and accepts the credentials."""
        return self.contact is not None and self.contact.stage == Stage.DONE

    def items(self, query: str) -> list[Any]:
        """Return the items that a query listed, [] if it failed or did not run."""
        found: list[Any] = self.value(query) or []
        return found

    def value(self, query: str) -> Any:
        """Return the value that a query returned, None if it failed or did not run."""
        return self.answers.get(query, QueryAnswer()).value


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about all clusters.

    `files` are the files that the topology names, by field: the content, or the error. `address` is where the upper
    apiserver calls the virtual nodes, "" if unknown. `in_configmap`: the topology is in a ConfigMap of the upper
    cluster, as it is for an engine that runs there. `descriptors` is the limit of open files of a process here, None
    for no limit.
    """

    topology: Topology
    upper: ClusterFacts
    lowers: Mapping[str, ClusterFacts]
    files: Mapping[str, QueryAnswer]
    address: str
    now: datetime
    in_configmap: bool = False
    descriptors: int | None = None

    def clusters(self) -> list[ClusterFacts]:
        """Return the facts about every cluster, those about the upper one first."""
        return [self.upper, *self.lowers.values()]

    def spec(self, name: str) -> Lower:
        """Return a lower of the topology."""
        return next(lower for lower in self.topology.lowers if lower.name == name)


class Level(StrEnum):
    """The result of a check; `SKIP`: it did not run."""

    OK = "ok"
    SKIP = "-"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(NamedTuple):
    """The result of one check in one cluster, and advice: lines, of which the last are commands ("": nothing to do).

    `cluster` is UPPER or a lower's name, `check` one of CHECKS.
    """

    cluster: str
    check: str
    level: Level
    what: str
    advice: str = ""


def shown(name: str) -> str:
    """Return the name of a cluster for people."""
    return "upper" if name == UPPER else name


def lease_of(node: str) -> str:
    """Return the name of the query for a node's lease."""
    return f"lease of {node}"


def port_of(node: str) -> str:
    """Return the name of the query whether a node's kubelet port is reachable."""
    return f"kubelet port of {node}"


def local_report(upper: ClusterFacts, topology: Topology) -> Mapping[str, Any]:
    """Return the report of an engine of the topology on this machine, {} if none was asked, or none responds."""
    found: Mapping[str, Any] = upper.value(LOCAL_ENGINE) or {}
    return found if found.get("topology") == topology.name else {}


def node_named(upper: ClusterFacts, name: str) -> Manifest | None:
    """Return a Node of the upper cluster as it was listed, None if there is none of that name."""
    return next((node for node in upper.items(NODES) if node["metadata"]["name"] == name), None)


def owner(upper: ClusterFacts, topology: Topology) -> Owner:
    """Return the owner of a topology's objects in that upper cluster."""
    return owner_of(upper.identity, topology.name)


def orphaned_nodes(upper: ClusterFacts, topology: Topology) -> list[str]:
    """Return the names of Nodes that carry this topology's marks but belong to none of its lowers."""
    known = {lower.node.name for lower in topology.lowers}
    topology_owner = owner(upper, topology)
    nodes = (node for node in upper.items(NODES) if metadata(node)["name"] not in known)
    return [metadata(node)["name"] for node in nodes if is_ours(node, topology_owner)]


def is_renewed(upper: ClusterFacts, node: str, now: datetime) -> bool:
    """Report whether an engine renews a node's lease."""
    return holds(renewed_at(upper.value(lease_of(node)) or {}), now)


def endpoint_of(node: Manifest) -> tuple[str, int]:
    """Return the IP address and port of a Node's kubelet API; "" and 0 where the Node has none."""
    found = (node.get("status") or {}).get("addresses") or ()
    addresses = (one["address"] for one in found if one["type"] == "InternalIP")
    return next(addresses, ""), noted_port(node)


def is_loopback(host: str) -> bool:
    """Report whether a host is this machine; a Node's address may be anything, as anyone may write it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
