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
from tensile.engine.metrics import Metrics
from tensile.engine.plan_and_apply import BESIDE_ENGINE, AssumedClusters, KnownClusters, planned_changes, rehearse
from tensile.engine.sources import TopologySource
from tensile.engine.status.configmap import (
    APPROVAL_REFUSED,
    approval_in,
    approval_words,
    part_in,
    status_owner,
    status_ref,
)
from tensile.engine.status.query import NO_START
from tensile.engine.status.report import ACCEPTED, APPROVAL, EngineStatus, PendingApproval, are_known
from tensile.engine.topology_reader import TopologyText, TopologyUpdate
from tensile.engine.transitions import Action, plan_transition, removed_lowers
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
_WHOLE = 64
_HEX = frozenset("0123456789abcdef")
_NAMED = 5
_LOOK = 0.5
_PATIENCE = 60.0
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
    return DIGITS <= len(value) <= _WHOLE and digest.startswith(value)


def check_digits(given: str) -> str:
    """Return a SHA-256, or the beginning of one, in lower case. Raises TensileError for anything else."""
    value = given.strip().lower()
    if not (DIGITS <= len(value) <= _WHOLE and _HEX.issuperset(value)):
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
    told = part_in(status, owner, ACCEPTED)
    version = str(told.get("resourceVersion", "")) if told.get("sha256") == entry.sha256 else ""
    return TopologyUpdate(TopologyText(len(data), entry.sha256, version), parse(data), data=data)


def edited(world: World, topology: Topology) -> World:
    """Return a copy of a world as it is when a topology has become active, with maintenance windows always open.

    Lower clusters that join are left out: no pod is bound to their nodes yet.
    """
    copied = world.copy()
    topology = topology.model_copy(update={"windows": ()})
    gone = [lower.name for lower in removed_lowers(topology, world)]
    copied.topology = topology
    for spec in topology.lowers:
        found = plan_transition(spec, topology, world)
        before = None if found.before is None else copied.lowers[found.before.name]
        if before is not None and found.action is Action.LEAVE:
            before.in_topology = False
        elif before is not None:
            before.spec = found.spec.model_copy(update={"name": before.name})
            before.in_topology = True
    for name in gone:
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
    ways = [(one.name, one.upper.kubeconfig, one.upper.context) for one in (old, new)]
    found: set[tuple[str, str, str]] = set()
    for lower in before.lowers.values():
        then = after.lowers[lower.name]
        is_changed = lower.name in change.lowers.changed or lower.name in change.lowers.removed
        is_moved = then.spec.way != lower.spec.way and then.spec.unreachable.evict_after is not None
        if ways[0] != ways[1] or is_moved or (is_changed and not _is_known(lower)):
            found |= _names(lower, is_running)
        drained = lower.is_drained and old.descheduler.recreate_bare_pods
        if then.is_drained and new.descheduler.recreate_bare_pods and not drained:
            found |= _names(lower, lambda pod: is_running(pod) and is_bare(pod))
    return frozenset(found)


def _is_known(lower: LowerWorld) -> bool:
    """Report whether what is known of a lower is its present state."""
    return lower.settled and not lower.refusal and not is_out_of_reach(lower)


def _names(lower: LowerWorld, counts: Callable[[Entry], bool]) -> Pods:
    return frozenset((lower.node, pod.namespace, pod.name) for pod in lower.upper_pods if counts(pod))


async def affected_pods(clusters: KnownClusters, old: Topology, new: Topology, limit: int) -> Pods:
    """Return the running pods that an edit restarts, moves or ends; those that end anyway count only within the limit.

    Raises TensileError for a bug in a rule.
    """
    before = clusters.world.copy()
    after = edited(before, new)
    sure = lost_at_once(before, after, old, new)
    found = sure | await _disrupted(AssumedClusters(after, clusters.connections))
    if len(found) <= limit:
        return found
    return found - (await _disrupted(AssumedClusters(edited(before, old), clusters.connections)) - sure)


async def _disrupted(clusters: AssumedClusters) -> Pods:
    """Return the running pods that the topology of a world restarts, moves or ends."""
    recorder = Recorder()
    await rehearse(clusters, recorder, forced=True, pace=BESIDE_ENGINE)
    return disruption(await planned_changes(recorder, clusters.world), clusters.world, {}).pods


class EditGate:
    """Decides about each good text of a source, and makes it active in an engine.

    `begun` is how the engine has started, `first` the text that the source had then. `accepted` is the text in force.
    `now` returns the time in UTC.
    """

    def __init__(
        self,
        engine: Engine,
        source: TopologySource,
        standing: EngineStatus,
        metrics: Metrics,
        begun: Start,
        *,
        first: TopologyUpdate,
        now: Callable[[], datetime],
    ) -> None:
        self.accepted = begun.accepted
        self._followed = ""
        self._note = begun.noted
        self._read = first
        self._engine = engine
        self._source = source
        self._standing = standing
        self._metrics = metrics
        self._now = now
        self._undecided: TopologyUpdate | None = None
        self._lock = asyncio.Lock()
        self._woken = asyncio.Event()
        self._is_fresh = True
        self._has_read = False
        self._world = engine.clusters.world
        self._owner = status_owner(self._world.owner.upper, source.place)
        self._refs = (status_ref(source.place), history_ref(source.place))
        self._history: HistoryWriter | None = None
        self._writing: asyncio.Task[None] | None = None
        self._world.upper.config_maps.subscribe(self._heard)
        standing.is_decided = self._is_decided

    @property
    def pending(self) -> tuple[str, ...]:
        """What an edit waits for that is not decided yet, as messages."""
        waiting = self._undecided
        if waiting is None or self._standing.verdict.approval is not None:
            return ()
        why = "waits until the leader accepts it" if self._history is None else "is being planned"
        return (f"edit {waiting.text.sha256[:DIGITS]}: {why}",)

    def lead(self) -> None:
        """Decide from now on, and keep the history."""
        upper = self._engine.clusters.connections[UPPER]
        say = self._source.say
        self._history = HistoryWriter(upper, self._source.place, self._owner.upper, tell=say, now=self._now)
        self._writing = supervised("topology history", self._history.run)
        self._woken.set()

    async def close(self) -> None:
        """Stop keeping the history."""
        await cancel_and_wait(self._writing)

    async def reject(self, reading: TopologyUpdate) -> None:
        """Report a bad text; one that waits for an approval is no longer there."""
        async with self._lock:
            self._take(reading)
            self._undecided = None
            self._standing.take(reading)
            self._source.tell(reading)

    async def decide(self, reading: TopologyUpdate) -> None:
        """Decide about the next good text: it becomes active, or waits."""
        async with self._lock:
            self._take(reading)
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

    def _take(self, reading: TopologyUpdate) -> None:
        self._has_read, self._read = True, reading
        if reading.text.sha256 != self._note.get("sha256"):
            self._note = {}

    def _is_decided(self) -> bool:
        """Report whether the standing says what has become of the text that the source has."""
        return self._has_read and (self._undecided is None or self._standing.verdict.approval is not None)

    def _heard(self, delta: Delta) -> None:
        place = delta.entry.namespace, delta.entry.name
        status, history = ((ref.namespace, ref.name) for ref in self._refs)
        if place in (status, history):
            self._woken.set()
        if self._history is not None and not self._is_fresh and place == history and not self._is_kept():
            self._history.keep(self.accepted)

    def _is_kept(self) -> bool:
        """Report whether the history has the text in force: a user may have deleted it, or edited its ConfigMap."""
        history = entries(self._seen(self._refs[1]), self._owner)
        return any(one.sha256 == self.accepted.text.sha256 for one in history)

    async def _settle(self) -> None:
        """Decide about the latest text, if that is possible now.

        What another leader has accepted counts first, up to the moment in which this engine leads.
        """
        if self._is_fresh:
            history = self._history
            if history is not None:
                await self._listed()
            await self._catch_up()
            if history is not None:
                self._is_fresh = False
                history.keep(self.accepted)
        reading = self._undecided
        if reading is None:
            return
        limit = _limit_of(self.accepted)
        if limit is None or reading.topology == self.accepted.topology:
            await self._accept(reading)
        elif not self._is_fresh:
            await self._judge(reading, limit)

    async def _listed(self) -> None:
        """Wait until the status and the history are in the cache, if that is soon: the list may be denied."""
        loop, cache = asyncio.get_running_loop(), self._world.upper.config_maps
        end = loop.time() + _PATIENCE
        while not (cache.synced or loop.time() > end):  # noqa: ASYNC110 - a cache may lose its history again
            await asyncio.sleep(_LOOK)

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

        If it has no limit, the source decides, so that a standby that hears of an edit early does not go back.
        """
        try:
            found = reading_of(entry, self._seen(self._refs[0]), self._owner, self._source.parse)
        except TensileError as error:
            _log.warning("the topology that the leader accepted is not valid here", error=str(error))
            return
        if self._read.topology is not None and _limit_of(found) is None:
            return
        await self._activate(found)
        self._standing.take(found, await self._refused(found))
        if self._read.topology is not None:
            self._undecided = self._read
        else:
            self._standing.take(self._read)

    async def _judge(self, reading: TopologyUpdate, limit: int) -> None:
        """Accept a text, or have it wait, as the leader."""
        waiting = self._standing.verdict.approval
        if waiting is None or waiting.text.sha256 != reading.text.sha256:
            approval = self._noted(reading) or await self._planned(reading, limit)
            if approval is None:
                await self._accept(reading)
                return
            self._wait(reading, approval)
        elif waiting.text != reading.text:
            self._standing.wait(waiting._replace(text=reading.text))
            self._source.tell(reading)
        given = self._given()
        if is_approval(given.strip().lower(), reading.text.sha256):
            _log.info("topology edit approved", sha256=reading.text.sha256)
            self._standing.spent = given
            await self._accept(reading)

    def _wait(self, reading: TopologyUpdate, approval: PendingApproval) -> None:
        self._standing.spent = ""
        self._standing.wait(approval)
        _log.warning("topology edit waits for an approval", reason=approval_words(approval), do=approval.command)
        for words in approval.changes:
            _log.info("topology change waits", change=words)
        self._source.tell(reading)

    def _noted(self, reading: TopologyUpdate) -> PendingApproval | None:
        """Return what an engine has noted about a text that waits already, None for another text."""
        noted = part_in(self._seen(self._refs[0]), self._owner, APPROVAL) or self._note
        if noted.get("sha256") != reading.text.sha256:
            return None
        pods, limit, named = (noted.get(key) for key in ("pods", "approveOver", "affected"))
        if not (isinstance(pods, int) and isinstance(limit, int) and isinstance(named, list)):
            return None
        return self._approval(reading, pods, limit, tuple(map(str, named[:_NAMED])))

    async def _planned(self, reading: TopologyUpdate, limit: int) -> PendingApproval | None:
        """Plan a text; return what it waits for, None if it affects no more pods than the limit."""
        await self._known()
        old, new = self.accepted.topology, reading.topology
        assert old is not None, "only a good text is in force"
        assert new is not None, "only a good text is planned"
        try:
            found = await affected_pods(self._engine.clusters, old, new, limit)
        except TensileError as error:
            _log.error("cannot plan the edit (bug, please report); it counts as one that affects all pods", error=error)
            found = frozenset(pod for lower in self._world.lowers.values() for pod in _names(lower, is_running))
        if len(found) <= limit:
            return None
        named = tuple(f"{namespace}/{name} ({node})" for node, namespace, name in sorted(found)[:_NAMED])
        return self._approval(reading, len(found), limit, named)

    def _approval(self, reading: TopologyUpdate, pods: int, limit: int, named: tuple[str, ...]) -> PendingApproval:
        digest = reading.text.sha256
        command = f"tensile approve {digest[:DIGITS]} {self._source.options}"
        return PendingApproval(reading.text, self._now(), pods, limit, tuple(self._words(reading)), named, command)

    def _words(self, reading: TopologyUpdate) -> Iterator[str]:
        assert reading.topology is not None, "only a good text is compared"
        change = edit(self._engine.topology, reading.topology)
        yield from change.words
        yield from change.refused

    async def _known(self) -> None:
        """Wait until the pods of all virtual nodes are known, and the lower clusters too if that is soon."""
        clusters, end = self._engine.clusters, asyncio.get_running_loop().time() + _PATIENCE
        while True:
            joined = [one.lower for one in clusters.joined.values()]
            bound = (
                self._engine.is_leader
                and self._world.upper.nodes.synced
                and all(one.upper_pods.synced for one in joined)
            )
            if bound and (are_known(self._world) or asyncio.get_running_loop().time() > end):
                return
            await asyncio.sleep(_LOOK)

    async def _accept(self, reading: TopologyUpdate) -> None:
        """Put a text in force, and report it."""
        if reading.topology != self.accepted.topology:
            self._metrics.reload(accepted=True)
        await self._activate(reading)
        self._undecided = None
        self._standing.take(reading, await self._refused(reading))
        self._source.tell(reading)

    async def _activate(self, reading: TopologyUpdate) -> None:
        before, self.accepted = self.accepted, reading
        if self._history is not None and not self._is_fresh:
            self._history.keep(reading)
        if reading.topology is not None and reading.topology != before.topology:
            change = edit(self._engine.topology, reading.topology)
            _say(change)
            await self._engine.reload(change.topology)

    async def _refused(self, reading: TopologyUpdate) -> tuple[str, ...]:
        """Return what needs a restart, and why an engine would not start with the new access to the upper cluster."""
        assert reading.topology is not None, "only a good text is in force"
        refused = edit(self._engine.topology, reading.topology).refused
        if reading.topology.upper == self._engine.topology.upper:
            return refused
        try:
            await self._engine.clusters.ways.upper_access(reading.topology.upper)
        except TensileError as error:
            _log.warning("the engine would not start with this change", error=str(error))
            return tuple(f"{one}; {NO_START}: {error}" if one.startswith("upper.") else one for one in refused)
        return refused

    def _refuse_approval(self) -> None:
        """Have an approval removed that applies to no edit that waits, once it is known which one does."""
        given, waiting = self._given(), self._standing.verdict.approval
        if self._history is None or not self._is_decided() or not given or given == self._standing.spent:
            return
        self._standing.spent = given
        pending = f"edit {waiting.text.sha256} waits: {waiting.command}" if waiting else "no edit waits"
        words = f"the approval of {given[:_WHOLE]} was removed without effect: {pending}"
        _log.warning("topology approval refused", reason=words)
        self._source.say(APPROVAL_REFUSED, words)

    def _given(self) -> str:
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


def _say(change: Edit) -> None:
    for words in change.refused:
        _log.warning("change needs a restart", change=words)
    for words in change.words:
        _log.info("topology changed", change=words)
