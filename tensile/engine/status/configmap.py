"""Keeps ConfigMap NAME-status and the topology's Events in line with the engine's report.

It is level-based: the report is compared with the cache of that one object. So a status that a user edits or deletes is
restored, and nothing is written while nothing changes. The result of an edit is written at once, the state of the
lowers at most every few seconds. A ConfigMap of that name that is not ours is not changed, and that is reported.

For a topology file, the status exists only once an edit had to wait for an approval, and it has no rows of lowers:
`tensile status` requests them from the engine.
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
CHECK_INTERVAL = 5.0
"""Seconds between two checks of the lowers."""
FREQUENT_CHECK_INTERVAL = 1.0
"""The same just after an edit, when a lower comes or goes."""
_FREQUENT_CHECKS = 5
_PAUSE = 2.0
_MAX_QUEUED_EVENTS = 20
RENAME = "delete or rename it, or rename the topology's ConfigMap"
"""The remedy for a name that is taken."""
_EMPTY_DATA = {TOPOLOGY: "", LOWERS: "[]"}
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
    used_approval: str = "",
    decided: bool = True,
) -> StatusWrite | None:
    """Return the write after which the status contains `data`, None if it does already.

    `seen` is the present status ConfigMap, `uid` that of the topology's ConfigMap, and `used_approval` an approval to
    remove. Raises NameTaken if it is not ours. Keys missing in `data` stay as they are, except a rejection that is
    over, and an edit that no longer waits: another engine may lead, and one that does not start does not know the
    active topology. Unless `decided`, an edit may still wait: it did before a restart.
    """
    if seen is None:
        return StatusWrite(create=marked_manifest({**_EMPTY_DATA, **data}, ref, owner, uid))
    check_ours(seen, ref, owner, f"the status cannot be written: {RENAME}")
    before = seen.get("data") or {}
    if not decided and APPROVAL in before:
        data = {**data, **{part: before[part] for part in (STATE, APPROVAL) if part in before}}
    changes = _changes(before, data)
    new_annotations: dict[str, str | None] = {} if annotations(seen).get(UPPER_UID) == uid else {UPPER_UID: uid}
    if used_approval and approval_in(seen) == used_approval:
        new_annotations[APPROVED] = None
    if not changes and not new_annotations:
        return None
    metadata = {"annotations": new_annotations} if new_annotations else {}
    return StatusWrite(patch=Patch("merge-patch", {"metadata": {**as_read(seen), **metadata}, "data": changes}))


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
    part_data = _part(seen, owner, part)
    try:
        return moment_of(part_data["time"]) if part_data.get("sha256", "") == text.sha256 else None
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


def is_reported(seen: Manifest | None, owner: Owner, reading: TopologyUpdate, *, waits: bool = False) -> bool:
    """Report whether a status of ours describes the result of this very state already, or that it `waits`."""
    part = APPROVAL if waits else ACCEPTED if reading.error is None else REJECTED
    data = seen.get("data") or {} if seen is not None else {}
    is_same = _time(seen, owner, part, reading.text) is not None and f'"{reading.text.version}"' in data[part]
    return is_same and data.get("state") == ("Pending" if waits else part.capitalize())


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of the merge patch: new values, and null for what is no longer true."""
    obsolete = [REJECTED, APPROVAL] if ACCEPTED in after else [REJECTED]
    removed = {part: None for part in obsolete if part in before and part not in after}
    return {key: value for key, value in after.items() if before.get(key) != value} | removed


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
    """Writes the status and events of `engine_status`; `cache` holds the one ConfigMap that it writes.

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
        engine_status: EngineStatus,
        *,
        now: Callable[[], datetime],
        of_file: bool = False,
    ) -> None:
        self._cluster = cluster
        self._subject = status_ref(place) if of_file else _ref(place)
        self._of_file = of_file
        self._ref = status_ref(place)
        self._owner = owner
        self._cache = cache
        self._engine_status = engine_status
        self._now = now
        self._uid = owner.upper if of_file else ""
        self._events: list[EmitEvent] = []
        self._last_event: EmitEvent | None = None
        self._woken = asyncio.Event()
        self._frequent_checks_left = 0
        self._last_errors: dict[str, str] = {}

    def report(self, reading: TopologyUpdate) -> None:
        """Write the result of a text now, and emit an Event unless that was done before a restart."""
        approval = self._engine_status.verdict.approval
        if self._of_file and approval is None:
            self._woken.set()
            return
        result = _result_event(reading, self._subject, self._still_active(), approval)
        is_first = self._last_event is None and not self._active_elsewhere()
        if is_first and is_reported(self._seen(), self._owner, reading, waits=approval is not None):
            self._last_event = result
        self._uid = reading.text.uid or self._uid
        self._queue_event(result)
        self._frequent_checks_left = _FREQUENT_CHECKS
        self._woken.set()

    def emit_event(self, reason: EventReason, message: str) -> None:
        """Emit a warning about the topology, and write what has changed."""
        self._queue_event(EmitEvent(self._subject, self._uid, reason, message))
        self._woken.set()

    async def run(self) -> None:
        """Write indefinitely, whenever something changes.

        Of the Events that a standby collected, only the last is emitted: the leader has emitted the others.
        """
        self._events = self._events[-1:]
        while True:
            self._woken.clear()
            pause = 0.0 if await self.write() else _PAUSE
            await asyncio.sleep(pause)
            self._frequent_checks_left = max(self._frequent_checks_left - 1, 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(FREQUENT_CHECK_INTERVAL if self._frequent_checks_left else CHECK_INTERVAL):
                    await self._woken.wait()

    async def write(self) -> bool:
        """Write what has changed; report whether all succeeded. A failure is logged once."""
        status = await self._attempt("status", self._write_status)
        return await self._attempt("events", self._write_events) and status

    async def _attempt(self, task: str, job: Callable[[], Awaitable[None]]) -> bool:
        try:
            await job()
        except ClusterError as error:
            self._log_failure(task, error)
            return False
        except NameTaken as error:
            if self._log_failure(task, error):
                self._queue_event(EmitEvent(self._subject, self._uid, STATUS_NAME_CONFLICT, str(error)))
        else:
            self._last_errors.pop(task, None)
        return True

    async def _write_status(self) -> None:
        verdict = self._engine_status.verdict = resumed(self._engine_status.verdict, self._seen(), self._owner)
        active_elsewhere = self._active_elsewhere()
        if active_elsewhere and verdict.rejected is not None and verdict.rejected.text.sha256 == active_elsewhere:
            return
        seen = self._seen()
        if self._of_file and seen is None and verdict.approval is None:
            return
        report = self._engine_status.report()
        if self._of_file:
            report = report._replace(lowers=None)
        decided, used_approval = self._engine_status.is_decided(), self._engine_status.used_approval
        wanted = write(
            seen, report.data(), self._ref, self._owner, self._uid, used_approval=used_approval, decided=decided
        )
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

    async def _write_event(self, notice: EmitEvent) -> None:
        seen = self._seen() if self._of_file else None
        if seen is not None:
            notice = msgspec.structs.replace(notice, uid=as_read(seen)["uid"])
        step = event(notice, self._now())
        with suppress(AlreadyExists):
            await self._cluster.create(step.ref, step.body or {})

    def _queue_event(self, notice: EmitEvent) -> None:
        """Queue an Event, unless it equals the last one; if Events cannot be created, the oldest are dropped."""
        if notice != self._last_event and notice.uid:
            self._last_event = notice
            self._events = [*self._events, notice][-_MAX_QUEUED_EVENTS:]

    def _still_active(self) -> str:
        """Return the text for what is active while a text is rejected."""
        if self._engine_status.verdict.accepted is not None:
            return "the last valid topology stays active"
        if self._active_elsewhere():
            return "a running leader keeps its active topology; an engine that starts now exits"
        return "the engine does not start"

    def _active_elsewhere(self) -> str:
        """Return the sha256 of what another engine has, or had, active if nothing is active here; "" for nothing.

        If that is the text that is rejected here, the engines differ in version, and the status is the other's.
        """
        return "" if self._engine_status.verdict.accepted is not None else in_force(self._seen(), self._owner)

    def _seen(self) -> Manifest | None:
        entry = self._cache.get(self._ref.namespace, self._ref.name)
        return entry.manifest() if entry is not None else None

    def _log_failure(self, task: str, error: TensileError) -> bool:
        """Log a failure; report whether it is new."""
        is_new = self._last_errors.get(task) != str(error)
        if is_new:
            self._last_errors[task] = str(error)
            _log.warning("cannot report the topology's status", error=str(error))
        return is_new


def _ref(place: ConfigMapKey) -> Ref:
    return Ref(UPPER, CONFIG_MAP, place.namespace, place.name)


def _result_event(
    reading: TopologyUpdate, subject: Ref, still_active: str, approval: PendingApproval | None
) -> EmitEvent:
    """Return the Event with the result of a text; equal for the same text of the same version."""
    text = reading.text
    if approval is not None:
        return EmitEvent(
            subject, text.uid or "none", APPROVAL_PENDING, f"{approval_message(approval)}: {approval.command}"
        )
    if reading.error is not None:
        return EmitEvent(
            subject, text.uid, TOPOLOGY_REJECTED, f"{still_active} (resourceVersion {text.version}): {reading.error}"
        )
    message = f"topology active: resourceVersion {text.version}, sha256 {text.sha256}"
    return EmitEvent(subject, text.uid, TOPOLOGY_ACCEPTED, message, warning=False)


def approval_message(approval: PendingApproval) -> str:
    """Return what an edit waits for, for a log or an Event, without the command."""
    pods = "1 running pod" if approval.pods == 1 else f"{approval.pods} running pods"
    return (
        f"edit {approval.text.sha256} waits for an approval, because it affects {pods} "
        f"(guard.approveOver: {approval.limit})"
    )
