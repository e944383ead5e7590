"""What was found out about the clusters, before anything is made of it. Nothing here holds a secret.

What doctor says: one finding for each thing that was looked at.

What tells of an engine that runs: its Nodes, and the leases that it renews.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from tensile.engine.permissions import Right
from tensile.engine.status.query import holds, renewed_at
from tensile.names import Owner, owner_of
from tensile.objects import UPPER, Manifest, metadata
from tensile.reconcile.ownership import is_ours
from tensile.topology import Lower, Topology

NODES, CLASSES, RANGES, METRICS = "nodes", "storage classes", "service ranges", "metrics API"
WAITING = "pods without a node"
SPACES, STRANGERS = "namespaces", "pods by namespace"
POLICIES = "NetworkPolicies by namespace"
AUTHORITY, REQUESTS, ADVERTISED = "authority of callers", "certificate requests", "advertised address"
HOOK, HOOK_CALL, HOOK_ADDRESS, HOOK_SLICES = (
    "webhook",
    "call of the webhook",
    "address of the webhook",
    "endpoints of the webhook",
)
"""The questions that are asked; some have the name of a node in them (presence.py)."""


class Stage(IntEnum):
    """The steps of the way to a server, and of asking it something."""

    NAME = 1
    CONNECTION = 2
    TLS = 3
    ANSWER = 4
    LOGIN = 5
    DONE = 6


class Token(NamedTuple):
    """What can be read in a token: whose it is ("" for one that does not tell), and until when it holds."""

    subject: str = ""
    until: datetime | None = None


class Way(NamedTuple):
    """How a server is reached, as its kubeconfig, or whatever `origin` names, says; certificates in PEM, b"": none.

    `name` is what its certificate has to be for, `flags` are kubectl's for the same way.
    """

    origin: str
    url: str
    host: str
    port: int
    name: str
    authority: bytes = b""
    certificate: bytes = b""
    token: Token = Token()
    flags: str = ""

    @property
    def where(self) -> str:
        """The address, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Contact(NamedTuple):
    """How far one got: the stage that failed and why (`error`), or DONE.

    `shown` is the server's certificate (DER), as far as it showed one, `ahead` by how many seconds its clock is ahead
    of ours, `version` such as "v1.36.3".
    """

    way: Way
    stage: Stage
    error: str = ""
    shown: bytes = b""
    version: str = ""
    ahead: float | None = None


class Answer(NamedTuple):
    """What a cluster said to one question: a value, or an error in words, with HTTP's status (0: no answer)."""

    value: Any = None
    error: str = ""
    status: int = 0


@dataclass(slots=True)
class Side:
    """What was found out about one cluster; filled while it is asked, and used as it is when the time is over.

    `trouble` is what is wrong with its credentials, so that it could not be asked at all, and `remedy` what to do
    about that ("" where the trouble says it). `missing` holds the rights
    that it does not grant, with those verbs only; None where they could not be asked for. `answers` are by question,
    `unanswered` are those that were asked and not answered in time.
    """

    name: str
    trouble: str = ""
    remedy: str = ""
    contact: Contact | None = None
    user: str = ""
    identity: str = ""
    missing: list[Right] | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)

    @property
    def is_in(self) -> bool:
        """Whether the cluster answers, and takes the credential."""
        return self.contact is not None and self.contact.stage == Stage.DONE

    def items(self, question: str) -> list[Any]:
        """Return what was listed, [] where nothing was."""
        found: list[Any] = self.value(question) or []
        return found

    def value(self, question: str) -> Any:
        """Return what was answered, None where nothing was."""
        return self.answers.get(question, Answer()).value


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found out. `files` are those that the topology names, by field: their content, or what is wrong.

    `address` is where the upper's apiserver calls the virtual nodes, "" where that is not known. `in_map` says that the
    topology stands in a ConfigMap above, as it does where the engine runs in the upper cluster. `descriptors` is how
    many a process may have here, None for no bound.
    """

    topology: Topology
    upper: Side
    lowers: Mapping[str, Side]
    files: Mapping[str, Answer]
    address: str
    now: datetime
    in_map: bool = False
    descriptors: int | None = None

    def sides(self) -> list[Side]:
        """List every cluster, the upper one first."""
        return [self.upper, *self.lowers.values()]

    def spec(self, name: str) -> Lower:
        """Return a lower of the topology."""
        return next(lower for lower in self.topology.lowers if lower.name == name)


def shown(name: str) -> str:
    """Name a cluster for people."""
    return "upper" if name == UPPER else name


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
"""Everything that is looked at, in the order in which it is told."""


class Level(StrEnum):
    """How a thing is; `SKIP`: it was not looked at."""

    OK = "ok"
    SKIP = "-"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(NamedTuple):
    """How one thing is in one cluster: what was found, and what to do (lines, the last ones commands; "": nothing).

    `cluster` is UPPER or a lower's name, `check` one of CHECKS.
    """

    cluster: str
    check: str
    level: Level
    what: str
    advice: str = ""


def lease_of(node: str) -> str:
    """Name the question for a node's lease."""
    return f"lease of {node}"


def port_of(node: str) -> str:
    """Name the question whether a node's kubelet port is reached."""
    return f"kubelet port of {node}"


def node_named(upper: Side, name: str) -> Manifest | None:
    """Return a Node of the upper cluster as it was listed, None where there is none."""
    return next((node for node in upper.items(NODES) if node["metadata"]["name"] == name), None)


def owner(upper: Side, topology: Topology) -> Owner:
    """Describe whose the objects of a topology are in that upper cluster."""
    return owner_of(upper.identity, topology.name)


def strays(upper: Side, topology: Topology) -> list[str]:
    """Name the Nodes that are this topology's by their marks, and behind which it has no lower."""
    known = {lower.node.name for lower in topology.lowers}
    whose = owner(upper, topology)
    nodes = (node for node in upper.items(NODES) if metadata(node)["name"] not in known)
    return [metadata(node)["name"] for node in nodes if is_ours(node, whose)]


def is_renewed(upper: Side, node: str, now: datetime) -> bool:
    """Report whether somebody renews a node's lease."""
    return holds(renewed_at(upper.value(lease_of(node)) or {}), now)


def endpoint_of(node: Manifest) -> tuple[str, int]:
    """Return the IP address and port at which a Node's kubelet API is called; "" and 0 where it says none."""
    status = node.get("status") or {}
    addresses = (one["address"] for one in status.get("addresses") or () if one["type"] == "InternalIP")
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
    return next(addresses, ""), int(port)
