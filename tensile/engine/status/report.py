"""The status report and its two written forms: JSON for programs, and the data of ConfigMap NAME-status.

It consists of the state of the topology (the active text, since when, and what is wrong with a later one), and one row
per lower cluster. A row's `lag` is for how many seconds the cluster has not responded, 0 if it does: watches report
changes at once, so the row of a responding cluster is up to date.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import orjson

from tensile.engine.leader_election import BOTH_UNDO
from tensile.engine.topology_reader import TopologyText, TopologyUpdate
from tensile.errors import TensileError
from tensile.kube.health import NOT_CONTACTED
from tensile.kubelet.node.capacity import capacity
from tensile.kubelet.node.rule import key_of
from tensile.kubelet.node.status import SILENT_AFTER, has_ready_node, held_back, is_reachable, keys
from tensile.names import CLUSTER_ID
from tensile.objects import Manifest, labels, timestamp
from tensile.reconcile.ownership import has_node
from tensile.reconcile.world import LowerWorld, Problem, World

FORMAT = "1.5"
"""Version of the JSON format; the first number changes when a field is removed or changes its meaning."""
AMOUNTS = ("cpu", "memory", "pods")
"""The reported resources; Kubernetes has more, but users ask for these."""
STATE, LOWERS, TOPOLOGY = "state", "lowers", "topology"
ACCEPTED, REJECTED, APPROVAL = OPTIONAL = ("accepted", "rejected", "pendingApproval")
_ADVERTISED = "advertised"
_UNKNOWN = "the state of some lower clusters is not known yet"
_MAX_ERROR_LENGTH = 16 * 1024
"""Maximum characters of an error in the report: more than a person reads, and far less than a ConfigMap holds."""
_LAG_STEPS = (10, 20, 30)
_MINUTE = 60
Amounts = Mapping[str, str]


class Accepted(NamedTuple):
    """The active text, since when, what of it needs a restart, and what becomes active later by itself."""

    text: TopologyText
    time: datetime
    restart: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


class Rejected(NamedTuple):
    """A later text that changed nothing, since when, and why."""

    text: TopologyText
    time: datetime
    error: str


class PendingApproval(NamedTuple):
    """A later text that waits for an approval, since when, and why.

    `pods` is the number of running pods that it would affect, `limit` the guard.approveOver that is active. `changes`
    are its differences from the active topology, and `named` the first of its pods, as messages. `command` approves it.
    """

    text: TopologyText
    time: datetime
    pods: int
    limit: int
    changes: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    command: str = ""

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            **_text_document(self.text, self.time),
            "pods": self.pods,
            "approveOver": self.limit,
            "affected": list(self.named),
            "changes": list(self.changes),
            "command": self.command,
        }


class TopologyStatus(NamedTuple):
    """The state of the topology's text."""

    accepted: Accepted | None = None
    rejected: Rejected | None = None
    approval: PendingApproval | None = None

    @property
    def state(self) -> str:
        """The state in one word: Pending, Accepted or Rejected."""
        if self.rejected is not None:
            return "Rejected"
        return "Pending" if self.accepted is None or self.approval is not None else "Accepted"

    def after(self, reading: TopologyUpdate, now: datetime, restart: tuple[str, ...] = ()) -> "TopologyStatus":
        """Return the verdict after one more state; an unchanged text keeps its time.

        `restart` lists what becomes active only after a restart.
        """
        if reading.error is not None:
            error = _shortened(str(reading.error))
            return self._replace(rejected=Rejected(reading.text, now, error), approval=None)
        before = self.accepted
        if before is not None and before.text.sha256 == reading.text.sha256:
            return TopologyStatus(before._replace(text=reading.text, restart=restart))
        return TopologyStatus(Accepted(reading.text, now, restart))

    def waiting(self, approval: PendingApproval) -> "TopologyStatus":
        """Return the verdict with a later text that waits for an approval, instead of another later text."""
        return self._replace(rejected=None, approval=approval)

    def pending(self, messages: tuple[str, ...]) -> "TopologyStatus":
        """Return the verdict with what of the active text has to wait."""
        return self if self.accepted is None else self._replace(accepted=self.accepted._replace(pending=messages))

    def document(self) -> dict[str, Any]:
        """Return it as JSON: `state`, and `accepted`, `rejected` and `pendingApproval` if they are present."""
        found: dict[str, Any] = {"state": self.state}
        if self.accepted is not None:
            found["accepted"] = _text_document(self.accepted.text, self.accepted.time)
            if self.accepted.restart:
                found["accepted"]["restartNeeded"] = list(self.accepted.restart)
            if self.accepted.pending:
                found["accepted"]["pending"] = list(self.accepted.pending)
        if self.rejected is not None:
            found["rejected"] = {"error": self.rejected.error, **_text_document(self.rejected.text, self.rejected.time)}
        if self.approval is not None:
            found[APPROVAL] = self.approval.document()
        return found


def _text_document(text: TopologyText, time: datetime) -> dict[str, str]:
    version = {"resourceVersion": text.version} if text.version else {}
    return {**({"sha256": text.sha256} if text.sha256 else {}), **version, "time": timestamp(time)}


def _shortened(message: str) -> str:
    return message if len(message) <= _MAX_ERROR_LENGTH else message[: _MAX_ERROR_LENGTH - 4] + "\n..."


LowerState = Literal[
    "Ready", "Cordoned", "Draining", "Drained", "Starting", "NotReady", "NoAnswer", "Forbidden", "Error", "Leaving"
]
"""The state of a lower cluster in one word, the most severe one. Starting: its objects are not all listed yet.
NotReady: none of its nodes is Ready and schedulable. Leaving: it left the topology, and its node is kept."""


class LowerRow(NamedTuple):
    """One lower cluster.

    `message` is what is wrong, "" for nothing. `pods` is the number of pods bound to its node, and `lag` is in seconds.
    `advertised` is what its node offers, `real` what its Ready and schedulable nodes have: quantities, {} if unknown.
    `version` is that of Kubernetes, "" if unknown. `nodes` counts the Ready and schedulable nodes (`ready`) and all
    nodes (`total`), {} if unknown. `drift` is how many changes of other clients were put back since the engine started.
    `blocked` is how many objects are not reconciled now, besides what the guard blocks.
    """

    name: str
    node: str
    reachable: bool
    message: str
    pods: int
    lag: int
    advertised: Amounts
    real: Amounts
    state: LowerState = "Ready"
    version: str = ""
    nodes: Mapping[str, int] = MappingProxyType({})
    drift: int = 0
    blocked: int = 0

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return self._asdict() | {"nodes": dict(self.nodes)}


def rows(
    world: World, connection_errors: Mapping[str, str], drifts: Mapping[str, int] = MappingProxyType({})
) -> list[LowerRow]:
    """Return a row for each lower, including those that left the topology.

    `connection_errors` maps lower names to the last error of the connection, and `drifts` to how many changes of other
    clients were put back.
    """
    guarded = {key for name in world.lowers for key in keys(name)}
    blocked = Counter(key.lower for key in world.problems if key not in guarded)
    found = (_row(lower, world, connection_errors.get(lower.name, "")) for lower in world.lowers.values())
    return [row._replace(drift=drifts.get(row.name, 0), blocked=blocked[row.name]) for row in found]


def are_known(world: World) -> bool:
    """Report whether the state of each lower is known, also if it is unreachable; false right after a start."""
    return all(_is_known(lower) for lower in world.lowers.values())


def coarse(row: LowerRow) -> LowerRow:
    """Return a row that changes seldom while a cluster is unreachable: its lag in steps, finally one per minute."""
    steps = [step for step in _LAG_STEPS if step <= row.lag]
    lag = row.lag - row.lag % _MINUTE if row.lag >= _MINUTE else max(steps, default=0)
    return row._replace(lag=lag)


def _row(lower: LowerWorld, world: World, connection_error: str) -> LowerRow:
    entry = world.upper.nodes.get("", lower.node)
    node = entry.manifest() if entry is not None and has_node(lower, world) else {}
    reachable = _is_responding(lower) and is_reachable(node, lower)
    return LowerRow(
        name=lower.name,
        node=lower.node,
        reachable=reachable,
        message=_message(lower, node, world, connection_error),
        pods=len(lower.upper_pods),
        lag=int(lower.unreachable_seconds),
        advertised=amounts(node),
        real=_real(lower),
        state=_state(lower, node, connection_error, world.problems.get(key_of(lower)), reachable=reachable),
        version=lower.version,
        nodes=_nodes(lower),
    )


def _state(
    lower: LowerWorld, node: Manifest, connection_error: str, creation_problem: Problem | None, *, reachable: bool
) -> LowerState:
    """Return the state of a lower.

    `node` is its virtual node, {} if there is none, and `creation_problem` why it is not created.
    """
    if not lower.connected or not lower.in_topology:
        return "Leaving"
    if not reachable:
        return _unreachable(lower, connection_error)
    if lower.denied:
        return "Forbidden"
    if connection_error and lower.unreachable_seconds:  # not for long enough to count as unreachable
        return "Error"
    if lower.spec.maintenance == "drain":
        return "Draining" if any(not pod.facts.stays_out for pod in lower.upper_pods) else "Drained"
    if node.get("spec", {}).get("unschedulable"):
        return "Cordoned"
    if not node or not lower.settled:
        return "Error" if not node and creation_problem is not None else "Starting"
    return "Ready" if has_ready_node(node, lower) else "NotReady"


def _unreachable(lower: LowerWorld, connection_error: str) -> LowerState:
    """Return why a lower is not reachable; `connection_error` is the last error of its connection."""
    if lower.access_error:
        return "Error"
    if lower.unreachable_seconds > SILENT_AFTER:
        return "NoAnswer"
    if lower.denied:
        return "Forbidden"
    return "Error" if lower.version or connection_error not in ("", NOT_CONTACTED) else "Starting"


def amounts(node: Manifest) -> Amounts:
    """Return what a Node offers."""
    offered = node.get("status", {}).get("allocatable") or {}
    return {name: str(offered[name]) for name in AMOUNTS if name in offered}


def _is_responding(lower: LowerWorld) -> bool:
    """Report whether the cluster has responded, and did so lately; its version is the first thing read."""
    return bool(lower.version) and lower.unreachable_seconds <= SILENT_AFTER


def _is_known(lower: LowerWorld) -> bool:
    if not lower.connected or lower.access_error or lower.is_withheld or lower.unreachable_seconds > SILENT_AFTER:
        return True
    return bool(lower.version) and lower.settled


def _real(lower: LowerWorld) -> Amounts:
    if not lower.nodes.synced:
        return {}
    sums = capacity((entry.facts for entry in lower.nodes), (), "allocatable", {}, {})
    return {name: sums[name] for name in AMOUNTS}


def _nodes(lower: LowerWorld) -> dict[str, int]:
    if not lower.nodes.synced:
        return {}
    offers = [entry.facts for entry in lower.nodes]
    return {"ready": sum(one.ready and one.schedulable for one in offers), "total": len(offers)}


def _message(lower: LowerWorld, node: Manifest, world: World, connection_error: str) -> str:
    """Return the most severe problem of a lower; `node` is its virtual node, {} if there is none."""
    if not lower.connected:
        is_declared = labels(node).get(CLUSTER_ID) in {spec.name for spec in world.topology.lowers}
        cause = "its `node.name` was changed" if is_declared else "removed from the topology"
        remedy = "write the former one again" if is_declared else "put it back with maintenance: drain"
        return f"{cause} before this engine started; its node is kept, and its pods are not served: {remedy}"
    error = lower.access_error or connection_error or lower.denied or lower.warning
    if error:
        return error
    creation_problem = world.problems.get(key_of(lower))
    if not node and creation_problem is not None:
        return creation_problem.message
    if lower.other_engine:
        return f"engine {lower.other_engine} runs this topology too, and {BOTH_UNDO}"
    if not lower.in_topology:
        return "removed from the topology, but its node has pods: delete them, or put it back with maintenance: drain"
    held_problem = held_back(node, lower, world)
    if held_problem is not None:
        return held_problem.message
    if not lower.settled:
        return "not all its objects are listed yet"
    return "" if has_ready_node(node, lower) else "no node there is Ready and schedulable: uncordon or repair one"


class StatusReport(NamedTuple):
    """The status of the engine; `topology` is the topology's name, "" if none was ever active.

    `lowers` is None while nothing is known of them; `waits` is what the engine waits for, "" for nothing. `leader` is
    the engine that leads, if this one is a standby, which knows no lower clusters; else "".
    """

    topology: str
    verdict: TopologyStatus
    lowers: tuple[LowerRow, ...] | None = None
    waits: str = ""
    leader: str = ""

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "formatVersion": FORMAT,
            TOPOLOGY: self.topology,
            "waits": self.waits or (_UNKNOWN if self.lowers is None and not self.leader else ""),
            "leader": self.leader,
            **self.verdict.document(),
            LOWERS: [row.document() for row in self.lowers or ()],
        }

    def data(self) -> dict[str, str]:
        """Return the data of the ConfigMap, which changes only when its meaning does.

        `state` is one word, so that `kubectl wait` can check it; the other values are JSON. What this engine does not
        know is left out: the lowers while none is known, and the topology if none was ever active here. What a node
        offers is left out too, because the Node itself has it.
        """
        verdict = self.verdict.document()
        found = {STATE: str(verdict[STATE]), **({TOPOLOGY: self.topology} if self.topology else {})}
        found.update({part: _json(verdict[part]) for part in OPTIONAL if part in verdict})
        if self.lowers is None:
            return found
        coarse_rows = [coarse(row).document() for row in self.lowers]
        return {**found, LOWERS: _json([{key: row[key] for key in row if key != _ADVERTISED} for row in coarse_rows])}


def public(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a report as any client may read it.

    It has no names of pods, which `pending` may have, too, and not what an edit would change.
    """
    hidden = ("affected", "changes", "pending")
    parts = {
        part: {name: [] if name in hidden else value for name, value in document[part].items()}
        for part in (APPROVAL, ACCEPTED)
        if part in document
    }
    return {**document, **parts}


def read_data(data: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return the data of such a ConfigMap in the form of `document`; raises TensileError for anything else."""
    try:
        found: dict[str, Any] = {part: orjson.loads(data[part]) for part in (*OPTIONAL, LOWERS) if part in data}
        lowers = [{_ADVERTISED: {}, **row} for row in found.pop(LOWERS)]
        return {
            "formatVersion": FORMAT,
            TOPOLOGY: data[TOPOLOGY],
            "waits": "",
            "leader": "",
            STATE: data[STATE],
            **found,
            LOWERS: lowers,
        }
    except (KeyError, TypeError, ValueError):
        raise TensileError(f"{where}: not written by this version of tensile: check that an engine runs") from None


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


class EngineStatus:
    """The topology's verdict, and the functions that return the rest; `now` returns the time in UTC.

    `lowers` returns the lowers' rows, None while they are not known. `waits` returns what the engine waits for, and
    `pending` what of the active topology has to wait, as messages. `is_decided` returns whether the verdict is about
    the text that the source has. `leader` returns the engine that leads instead of this one, "" for none.
    `used_approval` is an approval that has been used or refused, as a user wrote it, "" for none: it is removed from
    the status.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.verdict = TopologyStatus()
        self.topology = ""
        self.lowers: Callable[[], list[LowerRow] | None] = lambda: None
        self.waits: Callable[[], str] = lambda: ""
        self.pending: Callable[[], tuple[str, ...]] = lambda: ()
        self.is_decided: Callable[[], bool] = lambda: True
        self.leader: Callable[[], str] = lambda: ""
        self.used_approval = ""
        self._now = now

    def record(self, reading: TopologyUpdate, restart: tuple[str, ...] = ()) -> None:
        """Record the result of one more state of the topology's text; `restart` lists what of it is not active."""
        self.verdict = self.verdict.after(reading, self._now(), restart)
        if reading.topology is not None and not self.topology:
            self.topology = reading.topology.name

    def record_pending(self, approval: PendingApproval) -> None:
        """Record that a text waits for an approval."""
        self.verdict = self.verdict.waiting(approval)

    def report(self) -> StatusReport:
        """Return the report."""
        lowers = self.lowers()
        verdict = self.verdict.pending(self.pending())
        return StatusReport(
            self.topology, verdict, None if lowers is None else tuple(lowers), self.waits(), self.leader()
        )
