"""Keeps an edit that affects many running pods waiting, until a user approves exactly that text (guard.approveOver).

The edit is planned in memory, on a copy of the caches, as `tensile plan` does. Pods count that it restarts, moves or
ends, and that would keep running without it. Maintenance windows and the guard do not count: they only delay. The limit
that is in force decides, so an edit cannot lift its own.

An edit that waits does so until it is approved, or another text follows, also over a restart and a failover. So nothing
becomes active at night because a few pods have ended. The leader alone decides: it adds what it accepts to the history,
and the others follow that instead of the source. An engine that starts on a text that was never accepted runs the last
one that was.

The approval is an annotation on the status ConfigMap, so that rights to give one can be granted by RBAC. The engine
removes it when it is used, or names no edit that waits: an old approval must not apply to a later edit.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from tensile.engine.candidate import is_out_of_reach
from tensile.engine.engine import Engine
from tensile.engine.history import AcceptedText, HistoryWriter, TopologyRecords, entries, history_ref
from tensile.engine.lower_transitions import Action, plan_transition, removed_lowers
from tensile.engine.metrics import Metrics
from tensile.engine.plan_and_apply import BESIDE_ENGINE, AssumedClusters, KnownClusters, planned_changes, rehearse
from tensile.engine.sources import TopologySource
from tensile.engine.status.configmap import (
    APPROVAL_REFUSED,
    approval_in,
    approval_message,
    part_in,
    status_owner,
    status_ref,
)
from tensile.engine.status.query import NO_START
from tensile.engine.status.report import ACCEPTED, APPROVAL, EngineStatus, PendingApproval, are_known
from tensile.engine.topology_reader import TopologyText, TopologyUpdate
from tensile.errors import TensileError
from tensile.kube.net import cancel_and_wait, supervised
from tensile.kube.store import Delta, Entry
from tensile.names import OWNER_NAME, Owner
from tensile.objects import UPPER, Manifest, Ref, annotations
from tensile.policy.descheduler.limits import is_bare
from tensile.policy.disruption import disruption
from tensile.reconcile.ownership import foreign_node, is_ours
from tensile.reconcile.report import Recorder
from tensile.reconcile.world import LowerWorld, World
from tensile.topology import Topology
from tensile.topology.diff import Edit, edit

DIGITS = 12
"""Digits of a SHA-256 that people are shown, and that an approval needs at least."""
_SHA256_DIGITS = 64
_HEX = frozenset("0123456789abcdef")
_MAX_NAMED = 5
_POLL_INTERVAL = 0.5
_READY_TIMEOUT = 60.0
"""Seconds to wait until the lower clusters are known; one that is still not known counts with all of its pods.

The same for the status and the history, when an engine begins to lead.
"""
_log = structlog.get_logger("tensile.run")

Pods = frozenset[tuple[str, str, str]]
"""Upper pods: virtual node, namespace and name."""


class Start(NamedTuple):
    """How an engine starts: the topology to run, the text that counts as accepted, and a warning, "" for none.

    `noted` is what the status says of an edit that waits, {} for none.
    """

    topology: Topology
    accepted: TopologyUpdate
    warning: str = ""
    noted: Mapping[str, Any] = MappingProxyType({})


def is_approval(value: str, digest: str) -> bool:
    """Report whether a value approves the text with a SHA-256: all of its digits, or at least the first twelve."""
    return DIGITS <= len(value) <= _SHA256_DIGITS and digest.startswith(value)


def check_digits(given: str) -> str:
    """Return a SHA-256, or the beginning of one, in lower case. Raises TensileError for anything else."""
    value = given.strip().lower()
    if not (DIGITS <= len(value) <= _SHA256_DIGITS and _HEX.issuperset(value)):
        raise TensileError(f"{given!r} is not a SHA-256: give at least its first {DIGITS} hex digits")
    return value


UNKNOWN = "no accepted topology is known, so the present one is active without an approval"
"""Why an engine starts on a text undecided that asks for approvals. So does the first start of a topology."""


def start_of(first: TopologyUpdate, records: TopologyRecords, parse: Callable[[bytes], Topology]) -> Start:
    """Return how to start on the present text of the source.

    A text that was not the last one to be accepted has to be decided first, if the one before says so. Ports and the
    access to the upper cluster are those of the present text: a restart activates them. The name is the accepted one,
    in a ConfigMap. A file with another name is another topology, with records of its own (see `nodes_of_others`).
    """
    assert first.topology is not None, "the engine starts on a valid text only"
    owner = records.owner
    wanted, own = records.active, Start(first.topology, first)
    if not wanted:
        return own if first.topology.guard.approve_over is None else own._replace(warning=UNKNOWN)
    if first.text.sha256 == wanted:
        return own
    entry = next((one for one in reversed(records.history) if one.sha256 == wanted), None)
    unknown = f"the accepted topology {wanted[:DIGITS]} is not in the history: starting on the present one undecided"
    if entry is None:
        return own._replace(warning=unknown)
    if not entry.content:
        return own._replace(warning=f"{unknown}: its text was too large to be kept")
    try:
        reading = reading_of(entry, records.status, owner, parse)
    except TensileError as error:
        return own._replace(warning=f"the accepted topology {wanted[:DIGITS]} is not valid for this version: {error}")
    topology = reading.topology
    if topology is None or topology.guard.approve_over is None:
        return own
    active = edit(first.topology, topology).topology.model_copy(update={"name": topology.name})
    return Start(active, reading, noted=part_in(records.status, owner, APPROVAL))


def nodes_of_others(topology: Topology, world: World) -> Iterator[tuple[str, str]]:
    """Yield the Nodes of a topology that another one owns, with its name: perhaps this one, before it was renamed."""
    for spec in topology.lowers:
        entry = foreign_node(spec.node.name, world)
        if entry is not None:
            yield entry.name, annotations(entry.manifest()).get(OWNER_NAME, entry.facts.owner)


def reading_of(
    entry: AcceptedText, status: Manifest | None, owner: Owner, parse: Callable[[bytes], Topology]
) -> TopologyUpdate:
    """Return an entry of the history as a text of the source, with the version that the status has for it.

    Raises TensileError if it is not valid.
    """
    data = entry.content.encode()
    accepted = part_in(status, owner, ACCEPTED)
    version = str(accepted.get("resourceVersion", "")) if accepted.get("sha256") == entry.sha256 else ""
    return TopologyUpdate(TopologyText(len(data), entry.sha256, version), parse(data), data=data)


def edited(world: World, topology: Topology) -> World:
    """Return a copy of a world as it is when a topology has become active, with maintenance windows always open.

    Lower clusters that join are left out: no pod is bound to their nodes yet.
    """
    copied = world.copy()
    topology = topology.model_copy(update={"windows": ()})
    removed = [lower.name for lower in removed_lowers(topology, world)]
    copied.topology = topology
    for spec in topology.lowers:
        transition = plan_transition(spec, topology, world)
        continued = None if transition.before is None else copied.lowers[transition.before.name]
        if continued is not None and transition.action is Action.LEAVE:
            continued.in_topology = False
        elif continued is not None:
            continued.spec = transition.spec.model_copy(update={"name": continued.name})
            continued.in_topology = True
    for name in removed:
        copied.lowers[name].in_topology = False
    return copied


def is_running(pod: Entry) -> bool:
    """Report whether an upper pod has something to lose: it has run, has not ended, and is not deleted."""
    return bool(pod.facts.ran and not pod.facts.terminal and not pod.facts.terminating)


def lost_at_once(before: World, after: World, old: Topology, new: Topology) -> Pods:
    """Return the running pods that a plan does not show, but that an edit may affect; `after` is the edited world.

    These are all pods, if other objects would be ours or another cluster the upper one; those of a lower cluster that
    changes while nothing can be planned in it, or that may be evicted because its new credentials reach none; and pods
    without a controller in one that is newly drained.
    """
    change = edit(old, new)
    credentials = [(one.name, one.upper.kubeconfig, one.upper.context) for one in (old, new)]
    found: set[tuple[str, str, str]] = set()
    for lower in before.lowers.values():
        edited_lower = after.lowers[lower.name]
        is_changed = lower.name in change.lowers.changed or lower.name in change.lowers.removed
        is_moved = edited_lower.spec.way != lower.spec.way and edited_lower.spec.unreachable.evict_after is not None
        if credentials[0] != credentials[1] or is_moved or (is_changed and not _is_known(lower)):
            found |= _pod_keys(lower, is_running)
        drained = lower.drain_requested and old.descheduler.recreate_bare_pods
        if edited_lower.drain_requested and new.descheduler.recreate_bare_pods and not drained:
            found |= _pod_keys(lower, lambda pod: is_running(pod) and is_bare(pod))
    return frozenset(found)


def _is_known(lower: LowerWorld) -> bool:
    """Report whether what is known of a lower is its present state."""
    return lower.settled and not lower.access_error and not is_out_of_reach(lower)


def _pod_keys(lower: LowerWorld, counts: Callable[[Entry], bool]) -> Pods:
    return frozenset((lower.node, pod.namespace, pod.name) for pod in lower.upper_pods if counts(pod))


async def affected_pods(clusters: KnownClusters, old: Topology, new: Topology, limit: int) -> Pods:
    """Return the running pods that an edit restarts, moves or ends; those that end anyway count only within the limit.

    Raises TensileError for a bug in a rule.
    """
    before = clusters.world.copy()
    after = edited(before, new)
    certain = lost_at_once(before, after, old, new)
    found = certain | await _disrupted(AssumedClusters(after, clusters.connections))
    if len(found) <= limit:
        return found
    return found - (await _disrupted(AssumedClusters(edited(before, old), clusters.connections)) - certain)


async def _disrupted(clusters: AssumedClusters) -> Pods:
    """Return the running pods that the topology of a world restarts, moves or ends."""
    recorder = Recorder()
    await rehearse(clusters, recorder, forced=True, pace=BESIDE_ENGINE)
    return disruption(await planned_changes(recorder, clusters.world), clusters.world, {}).pods


class EditGate:
    """Decides about each good text of a source, and makes it active in an engine.

    `start` is how the engine has started, `first` the text that the source had then. `accepted` is the text in force.
    `now` returns the time in UTC.
    """

    def __init__(
        self,
        engine: Engine,
        source: TopologySource,
        status: EngineStatus,
        metrics: Metrics,
        start: Start,
        *,
        first: TopologyUpdate,
        now: Callable[[], datetime],
    ) -> None:
        self.accepted = start.accepted
        self._followed = ""
        self._recorded_approval = start.noted
        self._read = first
        self._engine = engine
        self._source = source
        self._status = status
        self._metrics = metrics
        self._now = now
        self._undecided: TopologyUpdate | None = None
        self._lock = asyncio.Lock()
        self._woken = asyncio.Event()
        self._has_to_catch_up = True
        self._has_read_source = False
        self._world = engine.clusters.world
        self._owner = status_owner(self._world.owner.upper, source.place)
        self._refs = (status_ref(source.place), history_ref(source.place))
        self._history: HistoryWriter | None = None
        self._writing: asyncio.Task[None] | None = None
        self._world.upper.config_maps.subscribe(self._on_change)
        status.is_decided = self._is_status_current

    @property
    def pending(self) -> tuple[str, ...]:
        """What an edit waits for that is not decided yet, as messages."""
        undecided = self._undecided
        if undecided is None or self._status.verdict.approval is not None:
            return ()
        reason = "waits until the leader accepts it" if self._history is None else "is being planned"
        return (f"edit {undecided.text.sha256[:DIGITS]}: {reason}",)

    def lead(self) -> None:
        """Decide from now on, and keep the history."""
        upper = self._engine.clusters.connections[UPPER]
        emit_event = self._source.emit_event
        self._history = HistoryWriter(
            upper, self._source.place, self._owner.upper, emit_event=emit_event, now=self._now
        )
        self._writing = supervised("topology history", self._history.run)
        self._woken.set()

    async def close(self) -> None:
        """Stop keeping the history."""
        await cancel_and_wait(self._writing)

    async def reject(self, reading: TopologyUpdate) -> None:
        """Report a bad text; one that waits for an approval is no longer there."""
        async with self._lock:
            self._record_reading(reading)
            self._undecided = None
            self._status.record(reading)
            self._source.report(reading)

    async def decide(self, reading: TopologyUpdate) -> None:
        """Decide about the next good text: it becomes active, or waits."""
        async with self._lock:
            self._record_reading(reading)
            self._undecided = reading
            await self._settle()

    async def run(self) -> None:
        """Follow approvals and the history indefinitely."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            async with self._lock:
                await self._settle()
                self._refuse_approval()

    def _record_reading(self, reading: TopologyUpdate) -> None:
        self._has_read_source, self._read = True, reading
        if reading.text.sha256 != self._recorded_approval.get("sha256"):
            self._recorded_approval = {}

    def _is_status_current(self) -> bool:
        """Report whether the status has the result of the text that the source has."""
        return self._has_read_source and (self._undecided is None or self._status.verdict.approval is not None)

    def _on_change(self, delta: Delta) -> None:
        location = delta.entry.namespace, delta.entry.name
        status, history = ((ref.namespace, ref.name) for ref in self._refs)
        if location in (status, history):
            self._woken.set()
        if self._history is not None and not self._has_to_catch_up and location == history and not self._is_kept():
            self._history.keep(self.accepted)

    def _is_kept(self) -> bool:
        """Report whether the history has the text in force: a user may have deleted it, or edited its ConfigMap."""
        history = entries(self._seen(self._refs[1]), self._owner)
        return any(one.sha256 == self.accepted.text.sha256 for one in history)

    async def _settle(self) -> None:
        """Decide about the latest text, if that is possible now.

        What another leader has accepted counts first, up to the moment in which this engine leads.
        """
        if self._has_to_catch_up:
            history = self._history
            if history is not None:
                await self._wait_until_listed()
            await self._catch_up()
            if history is not None:
                self._has_to_catch_up = False
                history.keep(self.accepted)
        reading = self._undecided
        if reading is None:
            return
        limit = _limit_of(self.accepted)
        if limit is None or reading.topology == self.accepted.topology:
            await self._accept(reading)
        elif not self._has_to_catch_up:
            await self._accept_or_hold(reading, limit)

    async def _wait_until_listed(self) -> None:
        """Wait until the status and the history are in the cache, if that is soon: the list may be denied."""
        loop, cache = asyncio.get_running_loop(), self._world.upper.config_maps
        deadline = loop.time() + _READY_TIMEOUT
        while not (cache.synced or loop.time() > deadline):  # noqa: ASYNC110 - a cache may lose its history again
            await asyncio.sleep(_POLL_INTERVAL)

    async def _catch_up(self) -> None:
        """Follow what a leader has accepted since."""
        history = entries(self._seen(self._refs[1]), self._owner)
        wanted, reading = TopologyRecords(self._owner, self._seen(self._refs[0]), history).active, self._read
        if wanted in ("", self._followed):
            return
        if wanted == self.accepted.text.sha256:
            pass
        elif reading.topology is not None and wanted == reading.text.sha256:
            await self._accept(reading)
        elif history and wanted == history[-1].sha256:
            await self._adopt(history[-1])
        else:
            return
        self._followed = wanted

    async def _adopt(self, entry: AcceptedText) -> None:
        """Put a text of the history in force. The text of the source, which is another one, is an edit of it.

        If it has no limit, the source decides, so that a standby that receives an edit early does not go back.
        """
        try:
            adopted = reading_of(entry, self._seen(self._refs[0]), self._owner, self._source.parse)
        except TensileError as error:
            _log.warning("the topology that the leader accepted is not valid here", error=str(error))
            return
        if self._read.topology is not None and _limit_of(adopted) is None:
            return
        await self._activate(adopted)
        self._status.record(adopted, await self._restart_needed(adopted))
        if self._read.topology is not None:
            self._undecided = self._read
        else:
            self._status.record(self._read)

    async def _accept_or_hold(self, reading: TopologyUpdate, limit: int) -> None:
        """Accept a text, or have it wait, as the leader."""
        waiting = self._status.verdict.approval
        if waiting is None or waiting.text.sha256 != reading.text.sha256:
            approval = self._approval_on_record(reading) or await self._plan(reading, limit)
            if approval is None:
                await self._accept(reading)
                return
            self._hold(reading, approval)
        elif waiting.text != reading.text:
            self._status.record_pending(waiting._replace(text=reading.text))
            self._source.report(reading)
        user_approval = self._given_approval()
        if is_approval(user_approval.strip().lower(), reading.text.sha256):
            _log.info("topology edit approved", sha256=reading.text.sha256)
            self._status.used_approval = user_approval
            await self._accept(reading)

    def _hold(self, reading: TopologyUpdate, approval: PendingApproval) -> None:
        self._status.used_approval = ""
        self._status.record_pending(approval)
        _log.warning("topology edit waits for an approval", reason=approval_message(approval), do=approval.command)
        for message in approval.changes:
            _log.info("topology change waits", change=message)
        self._source.report(reading)

    def _approval_on_record(self, reading: TopologyUpdate) -> PendingApproval | None:
        """Return what an engine has noted about a text that waits already, None for another text."""
        recorded = part_in(self._seen(self._refs[0]), self._owner, APPROVAL) or self._recorded_approval
        if recorded.get("sha256") != reading.text.sha256:
            return None
        pods, limit, named = (recorded.get(key) for key in ("pods", "approveOver", "affected"))
        if not (isinstance(pods, int) and isinstance(limit, int) and isinstance(named, list)):
            return None
        return self._approval(reading, pods, limit, tuple(map(str, named[:_MAX_NAMED])))

    async def _plan(self, reading: TopologyUpdate, limit: int) -> PendingApproval | None:
        """Plan a text; return what it waits for, None if it affects no more pods than the limit."""
        await self._wait_until_known()
        old, new = self.accepted.topology, reading.topology
        assert old is not None, "only a good text is in force"
        assert new is not None, "only a good text is planned"
        try:
            found = await affected_pods(self._engine.clusters, old, new, limit)
        except TensileError as error:
            _log.error("cannot plan the edit (bug, please report); it counts as one that affects all pods", error=error)
            found = frozenset(pod for lower in self._world.lowers.values() for pod in _pod_keys(lower, is_running))
        if len(found) <= limit:
            return None
        named = tuple(f"{namespace}/{name} ({node})" for node, namespace, name in sorted(found)[:_MAX_NAMED])
        return self._approval(reading, len(found), limit, named)

    def _approval(self, reading: TopologyUpdate, pods: int, limit: int, named: tuple[str, ...]) -> PendingApproval:
        digest = reading.text.sha256
        command = f"tensile approve {digest[:DIGITS]} {self._source.options}"
        return PendingApproval(
            reading.text, self._now(), pods, limit, tuple(self._change_messages(reading)), named, command
        )

    def _change_messages(self, reading: TopologyUpdate) -> Iterator[str]:
        assert reading.topology is not None, "only a good text is compared"
        change = edit(self._engine.topology, reading.topology)
        yield from change.changes
        yield from change.refused

    async def _wait_until_known(self) -> None:
        """Wait until the pods of all virtual nodes are known, and the lower clusters too if that is soon."""
        clusters, deadline = self._engine.clusters, asyncio.get_running_loop().time() + _READY_TIMEOUT
        while True:
            joined = [one.lower for one in clusters.joined.values()]
            are_pods_known = (
                self._engine.is_leader
                and self._world.upper.nodes.synced
                and all(one.upper_pods.synced for one in joined)
            )
            if are_pods_known and (are_known(self._world) or asyncio.get_running_loop().time() > deadline):
                return
            await asyncio.sleep(_POLL_INTERVAL)

    async def _accept(self, reading: TopologyUpdate) -> None:
        """Put a text in force, and report it."""
        if reading.topology != self.accepted.topology:
            self._metrics.reload(accepted=True)
        await self._activate(reading)
        self._undecided = None
        self._status.record(reading, await self._restart_needed(reading))
        self._source.report(reading)

    async def _activate(self, reading: TopologyUpdate) -> None:
        before, self.accepted = self.accepted, reading
        if self._history is not None and not self._has_to_catch_up:
            self._history.keep(reading)
        if reading.topology is not None and reading.topology != before.topology:
            change = edit(self._engine.topology, reading.topology)
            _log_edit(change)
            await self._engine.reload(change.topology)

    async def _restart_needed(self, reading: TopologyUpdate) -> tuple[str, ...]:
        """Return what needs a restart, and why an engine would not start with the new access to the upper cluster."""
        assert reading.topology is not None, "only a good text is in force"
        restart_needed = edit(self._engine.topology, reading.topology).refused
        if reading.topology.upper == self._engine.topology.upper:
            return restart_needed
        try:
            await self._engine.clusters.cluster_access.upper_access(reading.topology.upper)
        except TensileError as error:
            _log.warning("the engine would not start with this change", error=str(error))
            return tuple(f"{one}; {NO_START}: {error}" if one.startswith("upper.") else one for one in restart_needed)
        return restart_needed

    def _refuse_approval(self) -> None:
        """Have an approval removed that applies to no edit that waits, once it is known which one does."""
        user_approval, waiting = self._given_approval(), self._status.verdict.approval
        if (
            self._history is None
            or not self._is_status_current()
            or not user_approval
            or user_approval == self._status.used_approval
        ):
            return
        self._status.used_approval = user_approval
        pending = f"edit {waiting.text.sha256} waits: {waiting.command}" if waiting else "no edit waits"
        message = f"the approval of {user_approval[:_SHA256_DIGITS]} was removed without effect: {pending}"
        _log.warning("topology approval refused", reason=message)
        self._source.emit_event(APPROVAL_REFUSED, message)

    def _given_approval(self) -> str:
        """Return the approval that a user wrote, "" for none."""
        seen = self._seen(self._refs[0])
        return approval_in(seen) if seen is not None and is_ours(seen, self._owner) else ""

    def _seen(self, ref: Ref) -> Manifest | None:
        entry = self._world.upper.config_maps.get(ref.namespace, ref.name)
        return None if entry is None else entry.manifest()


def _limit_of(accepted: TopologyUpdate) -> int | None:
    """Return guard.approveOver of a good text."""
    assert accepted.topology is not None, "only a good text is accepted"
    return accepted.topology.guard.approve_over


def _log_edit(change: Edit) -> None:
    for message in change.refused:
        _log.warning("change needs a restart", change=message)
    for message in change.changes:
        _log.info("topology changed", change=message)
