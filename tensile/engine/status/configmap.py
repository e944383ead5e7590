"""Keeps ConfigMap NAME-status and the topology's Events in line with the engine's report.

It is level-based: the report is compared with the cache of that one object. So a status that a user edits or deletes is
restored, and nothing is written while nothing changes. The result of an edit is written at once, the state of the
lowers at most every few seconds. A ConfigMap of that name that is not ours is not changed, and that is reported.

For a topology file, the status exists only once an edit had to wait for an approval, and it has no rows of lowers:
`tensile status` asks the engine for them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import orjson
import structlog

from tensile.engine.status.report import (
    ACCEPTED,
    APPROVAL,
    LOWERS,
    REJECTED,
    STATE,
    TOPOLOGY,
    EngineStatus,
    PendingApproval,
    TopologyStatus,
)
from tensile.engine.topology_reader import ConfigMapKey, TopologyText, TopologyUpdate
from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, TensileError
from tensile.kube.cluster import Cluster, Patch
from tensile.kube.store import Cache
from tensile.names import APPROVED, STATUS_SUFFIX, UPPER_UID, EventReason, Owner, owner_of
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref, annotations, as_read, moment_of
from tensile.reconcile.desired import EmitEvent
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.plan import event

TOPOLOGY_ACCEPTED: EventReason = "TopologyAccepted"
"""On the topology's ConfigMap: its text is in force. Remedy: nothing."""
TOPOLOGY_REJECTED: EventReason = "TopologyRejected"
"""On the topology's ConfigMap: its text has errors, and the last good one stays in force. Remedy: correct the errors
in the message."""
APPROVAL_PENDING: EventReason = "ApprovalPending"
"""On the topology's ConfigMap, for a file on the ConfigMap with its status: the edit affects more running pods than
`guard.approveOver` allows, and waits. Remedy: read the edit, and run the command in the message, or undo the edit."""
APPROVAL_REFUSED: EventReason = "ApprovalRefused"
"""On the topology's ConfigMap, for a file on the ConfigMap with its status: an approval was removed without effect,
because no edit with that SHA-256 waits. Remedy: run `tensile status`, and approve what it shows."""
STATUS_NAME_CONFLICT: EventReason = "StatusNameConflict"
"""On the topology's ConfigMap: the ConfigMap for its status exists and is not the engine's. Remedy: rename or delete
that ConfigMap."""
SELDOM = 5.0
"""Seconds between two checks of the lowers."""
OFTEN = 1.0
"""The same just after an edit, when a lower comes or goes."""
_OFTEN_FOR = 5
_REST = 2.0
_MOST_EVENTS = 20
RENAME = "delete or rename it, or rename the topology's ConfigMap"
"""The remedy for a name that is taken."""
_NOTHING_YET = {TOPOLOGY: "", LOWERS: "[]"}
_log = structlog.get_logger("tensile.engine.status")


class NameTaken(TensileError):
    """The name of a ConfigMap that the engine writes belongs to one that is not ours."""


class StatusWrite(NamedTuple):
    """The write to send: an object to create, or a patch of the existing one."""

    create: Manifest | None = None
    patch: Patch | None = None

    async def send(self, cluster: Cluster, ref: Ref) -> bytes:
        """Send it, and return the response."""
        if self.patch is not None:
            return await cluster.patch(ref, self.patch)
        return await cluster.create(ref, self.create or {})


def status_ref(place: ConfigMapKey) -> Ref:
    """Return the ref of the ConfigMap with the status of a topology."""
    return Ref(UPPER, CONFIG_MAP, place.namespace, place.name + STATUS_SUFFIX)


def status_owner(upper_uid: str, place: ConfigMapKey) -> Owner:
    """Return the owner of the status: it is the ConfigMap, because a bad text does not reveal the topology's name."""
    return owner_of(upper_uid, str(place))


def write(
    seen: Manifest | None,
    data: Mapping[str, str],
    ref: Ref,
    owner: Owner,
    uid: str,
    *,
    spent: str = "",
    decided: bool = True,
) -> StatusWrite | None:
    """Return the write after which the status contains `data`, None if it does already.

    `seen` is the present status ConfigMap, `uid` that of the topology's ConfigMap, `spent` an approval to remove.
    Raises NameTaken if it is not ours. Keys missing in `data` stay as they are, except a rejection that is over, and an
    edit that no longer waits: another engine may lead, and one that does not start does not know the active topology.
    Unless `decided`, an edit may still wait: it did before a restart.
    """
    if seen is None:
        return StatusWrite(create=marked_manifest({**_NOTHING_YET, **data}, ref, owner, uid))
    check_ours(seen, ref, owner, f"the status cannot be written: {RENAME}")
    before = seen.get("data") or {}
    if not decided and APPROVAL in before:
        data = {**data, **{part: before[part] for part in (STATE, APPROVAL) if part in before}}
    changes = _changes(before, data)
    noted: dict[str, str | None] = {} if annotations(seen).get(UPPER_UID) == uid else {UPPER_UID: uid}
    if spent and approval_in(seen) == spent:
        noted[APPROVED] = None
    if not changes and not noted:
        return None
    marks = {"annotations": noted} if noted else {}
    return StatusWrite(patch=Patch("merge-patch", {"metadata": {**as_read(seen), **marks}, "data": changes}))


def check_ours(seen: Manifest, ref: Ref, owner: Owner, consequence: str) -> None:
    """Raise NameTaken, with the consequence and the remedy, for a ConfigMap that is not ours."""
    if not is_ours(seen, owner):
        raise NameTaken(f"ConfigMap {ref.namespace}/{ref.name} belongs to another owner, so {consequence}")


def approval_in(seen: Manifest | None) -> str:
    """Return the approval that a user wrote into a status, "" for none."""
    return "" if seen is None else annotations(seen).get(APPROVED, "")


def resumed(verdict: TopologyStatus, seen: Manifest | None, owner: Owner) -> TopologyStatus:
    """Return the verdict with the times that a status of ours has for the same texts.

    They were accepted or rejected before a restart, or by another engine a moment ago.
    """
    accepted, rejected, approval = verdict
    if accepted is not None:
        accepted = accepted._replace(time=_time(seen, owner, ACCEPTED, accepted.text) or accepted.time)
    if rejected is not None:
        rejected = rejected._replace(time=_time(seen, owner, REJECTED, rejected.text) or rejected.time)
    if approval is not None:
        approval = approval._replace(time=_time(seen, owner, APPROVAL, approval.text) or approval.time)
    return TopologyStatus(accepted, rejected, approval)


def _time(seen: Manifest | None, owner: Owner, part: str, text: TopologyText) -> datetime | None:
    """Return the time that a status of ours has for a text, None if it does not describe that text."""
    told = _part(seen, owner, part)
    try:
        return moment_of(told["time"]) if told.get("sha256", "") == text.sha256 else None
    except (KeyError, TypeError, ValueError):
        return None


def part_in(seen: Manifest | None, owner: Owner, part: str) -> dict[str, Any]:
    """Return a part of a status of ours about a text with a SHA-256, as JSON, {} for none."""
    found = _part(seen, owner, part)
    return found if str(found.get("sha256", "")) else {}


def _part(seen: Manifest | None, owner: Owner, part: str) -> dict[str, Any]:
    """Return a part of a status of ours, {} if there is none, or it is no JSON object."""
    if seen is None or not is_ours(seen, owner):
        return {}
    try:
        found = orjson.loads(seen["data"][part])
    except (KeyError, TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def in_force(seen: Manifest | None, owner: Owner) -> str:
    """Return the sha256 of the active text according to a status of ours, "" for none."""
    return str(part_in(seen, owner, ACCEPTED).get("sha256", ""))


def is_told(seen: Manifest | None, owner: Owner, reading: TopologyUpdate, *, waits: bool = False) -> bool:
    """Report whether a status of ours describes the result of this very state already, or that it `waits`."""
    part = APPROVAL if waits else ACCEPTED if reading.error is None else REJECTED
    data = seen.get("data") or {} if seen is not None else {}
    told = _time(seen, owner, part, reading.text) is not None and f'"{reading.text.version}"' in data[part]
    return told and data.get("state") == ("Pending" if waits else part.capitalize())


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of the merge patch: new values, and null for what is no longer true."""
    over = [REJECTED, APPROVAL] if ACCEPTED in after else [REJECTED]
    gone = {part: None for part in over if part in before and part not in after}
    return {key: value for key, value in after.items() if before.get(key) != value} | gone


def marked_manifest(data: Mapping[str, str], ref: Ref, owner: Owner, uid: str) -> Manifest:
    """Return a new ConfigMap with our marks; `uid` is that of the ConfigMap that it is about."""
    return {
        "apiVersion": CONFIG_MAP.api,
        "kind": CONFIG_MAP.name,
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": owner.label,
            "annotations": owner.signed(uid),
        },
        "data": dict(data),
    }


class StatusWriter:
    """Writes the status and events of `standing`; `cache` holds the one ConfigMap that it writes.

    If no topology is active here, because the program does not start on what it found, another engine may lead, and
    what the status says of that one is kept. `now` returns the time in UTC. `of_file`: the topology is in a file, so
    that the status itself is what Events are about.
    """

    def __init__(
        self,
        cluster: Cluster,
        place: ConfigMapKey,
        owner: Owner,
        cache: Cache,
        standing: EngineStatus,
        *,
        now: Callable[[], datetime],
        of_file: bool = False,
    ) -> None:
        self._cluster = cluster
        self._about = status_ref(place) if of_file else _ref(place)
        self._of_file = of_file
        self._ref = status_ref(place)
        self._owner = owner
        self._cache = cache
        self._standing = standing
        self._now = now
        self._uid = owner.upper if of_file else ""
        self._events: list[EmitEvent] = []
        self._said: EmitEvent | None = None
        self._woken = asyncio.Event()
        self._often = 0
        self._troubles: dict[str, str] = {}

    def tell(self, reading: TopologyUpdate) -> None:
        """Write the result of a text now, and emit an Event unless that was done before a restart."""
        approval = self._standing.verdict.approval
        if self._of_file and approval is None:
            self._woken.set()
            return
        told = _told(reading, self._about, self._meanwhile(), approval)
        is_first = self._said is None and not self._elsewhere()
        if is_first and is_told(self._seen(), self._owner, reading, waits=approval is not None):
            self._said = told
        self._uid = reading.text.uid or self._uid
        self._say(told)
        self._often = _OFTEN_FOR
        self._woken.set()

    def say(self, reason: EventReason, message: str) -> None:
        """Emit a warning about the topology, and write what has changed."""
        self._say(EmitEvent(self._about, self._uid, reason, message))
        self._woken.set()

    async def run(self) -> None:
        """Write indefinitely, whenever something changes.

        Of the Events that a standby collected, only the last is emitted: the leader has emitted the others.
        """
        self._events = self._events[-1:]
        while True:
            self._woken.clear()
            rest = 0.0 if await self.write() else _REST
            await asyncio.sleep(rest)
            self._often = max(self._often - 1, 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(OFTEN if self._often else SELDOM):
                    await self._woken.wait()

    async def write(self) -> bool:
        """Write what has changed; report whether all succeeded. A failure is logged once."""
        status = await self._attempted("status", self._write_status)
        return await self._attempted("events", self._write_events) and status

    async def _attempted(self, what: str, job: Callable[[], Awaitable[None]]) -> bool:
        try:
            await job()
        except ClusterError as error:
            self._complain(what, error)
            return False
        except NameTaken as error:
            if self._complain(what, error):
                self._say(EmitEvent(self._about, self._uid, STATUS_NAME_CONFLICT, str(error)))
        else:
            self._troubles.pop(what, None)
        return True

    async def _write_status(self) -> None:
        verdict = self._standing.verdict = resumed(self._standing.verdict, self._seen(), self._owner)
        elsewhere = self._elsewhere()
        if elsewhere and verdict.rejected is not None and verdict.rejected.text.sha256 == elsewhere:
            return
        seen = self._seen()
        if self._of_file and seen is None and verdict.approval is None:
            return
        report = self._standing.report()
        if self._of_file:
            report = report._replace(lowers=None)
        decided, spent = self._standing.is_decided(), self._standing.spent
        wanted = write(seen, report.data(), self._ref, self._owner, self._uid, spent=spent, decided=decided)
        if wanted is not None and self._uid:
            with suppress(AlreadyExists, Conflict):
                self._cache.apply_response(await wanted.send(self._cluster, self._ref))

    async def _write_events(self) -> None:
        while self._events:
            if self._of_file and self._seen() is None:
                return
            try:
                await self._write_event(self._events[0])
            except (Denied, NotFound):
                self._events = []
                raise
            self._events = self._events[1:]

    async def _write_event(self, told: EmitEvent) -> None:
        seen = self._seen() if self._of_file else None
        if seen is not None:
            told = msgspec.structs.replace(told, uid=as_read(seen)["uid"])
        step = event(told, self._now())
        with suppress(AlreadyExists):
            await self._cluster.create(step.ref, step.body or {})

    def _say(self, told: EmitEvent) -> None:
        """Queue an Event, unless it equals the last one; if Events cannot be created, the oldest are dropped."""
        if told != self._said and told.uid:
            self._said = told
            self._events = [*self._events, told][-_MOST_EVENTS:]

    def _meanwhile(self) -> str:
        """Return the text for what is active while a text is rejected."""
        if self._standing.verdict.accepted is not None:
            return "the last valid topology stays active"
        if self._elsewhere():
            return "a running leader keeps its active topology; an engine that starts now exits"
        return "the engine does not start"

    def _elsewhere(self) -> str:
        """Return the sha256 of what another engine has, or had, active if nothing is active here; "" for nothing.

        If that is the text that is rejected here, the engines differ in version, and the status is the other's.
        """
        return "" if self._standing.verdict.accepted is not None else in_force(self._seen(), self._owner)

    def _seen(self) -> Manifest | None:
        entry = self._cache.get(self._ref.namespace, self._ref.name)
        return entry.manifest() if entry is not None else None

    def _complain(self, what: str, error: TensileError) -> bool:
        """Log a failure; report whether it is new."""
        news = self._troubles.get(what) != str(error)
        if news:
            self._troubles[what] = str(error)
            _log.warning("cannot report the topology's status", error=str(error))
        return news


def _ref(place: ConfigMapKey) -> Ref:
    return Ref(UPPER, CONFIG_MAP, place.namespace, place.name)


def _told(reading: TopologyUpdate, about: Ref, meanwhile: str, approval: PendingApproval | None) -> EmitEvent:
    """Return the Event with the result of a text; equal for the same text of the same version."""
    text = reading.text
    if approval is not None:
        return EmitEvent(about, text.uid or "none", APPROVAL_PENDING, f"{approval_words(approval)}: {approval.command}")
    if reading.error is not None:
        return EmitEvent(
            about, text.uid, TOPOLOGY_REJECTED, f"{meanwhile} (resourceVersion {text.version}): {reading.error}"
        )
    words = f"topology active: resourceVersion {text.version}, sha256 {text.sha256}"
    return EmitEvent(about, text.uid, TOPOLOGY_ACCEPTED, words, warning=False)


def approval_words(approval: PendingApproval) -> str:
    """Return what an edit waits for, for a log or an Event, without the command."""
    pods = "1 running pod" if approval.pods == 1 else f"{approval.pods} running pods"
    return (
        f"edit {approval.text.sha256} waits for an approval, because it affects {pods} "
        f"(guard.approveOver: {approval.limit})"
    )
