"""Keeps ConfigMap NAME-status and the topology's Events in line with the engine's report.

It is level-based: the report is compared with the cache of that one object. So a status that a user edits or deletes is
restored, and nothing is written while nothing changes. The result of an edit is written at once, the state of the
lowers at most every few seconds. A ConfigMap of that name that is not ours is not changed, and that is reported.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import orjson
import structlog

from tensile.engine.status.report import ACCEPTED, LOWERS, REJECTED, TOPOLOGY, EngineStatus, TopologyStatus
from tensile.engine.topology_reader import ConfigMapKey, TopologyText, TopologyUpdate
from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, TensileError
from tensile.kube.cluster import Cluster, Patch
from tensile.kube.store import Cache
from tensile.names import STATUS_SUFFIX, UPPER_UID, EventReason, Owner, owner_of
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref, annotations, as_read, moment_of
from tensile.reconcile.desired import EmitEvent
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.plan import event

TOPOLOGY_ACCEPTED: EventReason = "TopologyAccepted"
"""On the topology's ConfigMap: its text is in force. Remedy: nothing."""
TOPOLOGY_REJECTED: EventReason = "TopologyRejected"
"""On the topology's ConfigMap: its text has errors, and the last good one stays in force. Remedy: correct the errors
in the message."""
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
_NOTHING_YET = {TOPOLOGY: "", LOWERS: "[]"}
_log = structlog.get_logger("tensile.engine.status")


class NameTaken(TensileError):
    """The name of the status belongs to a ConfigMap that is not ours."""


class StatusWrite(NamedTuple):
    """The write to send: an object to create, or a patch of the existing one."""

    create: Manifest | None = None
    patch: Patch | None = None


def status_ref(place: ConfigMapKey) -> Ref:
    """Return the ref of the ConfigMap with the status of a topology."""
    return Ref(UPPER, CONFIG_MAP, place.namespace, place.name + STATUS_SUFFIX)


def status_owner(upper_uid: str, place: ConfigMapKey) -> Owner:
    """Return the owner of the status: it is the ConfigMap, because a bad text does not reveal the topology's name."""
    return owner_of(upper_uid, str(place))


def write(seen: Manifest | None, data: Mapping[str, str], ref: Ref, owner: Owner, uid: str) -> StatusWrite | None:
    """Return the write after which the status contains `data`, None if it does already.

    `seen` is the present status ConfigMap, `uid` that of the topology's ConfigMap. Raises NameTaken if it is not ours.
    Keys missing in `data` stay as they are, except a rejection that is over: another engine may lead, and one that does
    not start does not know the active topology.
    """
    if seen is None:
        return StatusWrite(create=marked_manifest({**_NOTHING_YET, **data}, ref, owner, uid))
    if not is_ours(seen, owner):
        raise NameTaken(
            f"ConfigMap {ref.namespace}/{ref.name} belongs to another owner, so the status cannot be written: "
            "delete or rename it, or rename the topology's ConfigMap"
        )
    changes = _changes(seen.get("data") or {}, data)
    marks = {} if annotations(seen).get(UPPER_UID) == uid else {"annotations": {UPPER_UID: uid}}
    if not changes and not marks:
        return None
    return StatusWrite(patch=Patch("merge-patch", {"metadata": {**as_read(seen), **marks}, "data": changes}))


def resumed(verdict: TopologyStatus, seen: Manifest | None, owner: Owner) -> TopologyStatus:
    """Return the verdict with the times that a status of ours has for the same texts.

    They were accepted or rejected before a restart, or by another engine a moment ago.
    """
    accepted, rejected = verdict
    if accepted is not None:
        accepted = accepted._replace(time=_time(seen, owner, ACCEPTED, accepted.text) or accepted.time)
    if rejected is not None:
        rejected = rejected._replace(time=_time(seen, owner, REJECTED, rejected.text) or rejected.time)
    return TopologyStatus(accepted, rejected)


def _time(seen: Manifest | None, owner: Owner, part: str, text: TopologyText) -> datetime | None:
    """Return the time that a status of ours has for a text, None if it does not describe that text."""
    if seen is None or not is_ours(seen, owner):
        return None
    try:
        told = orjson.loads(seen["data"][part])
        return moment_of(told["time"]) if told.get("sha256", "") == text.sha256 else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def in_force(seen: Manifest | None, owner: Owner) -> str:
    """Return the sha256 of the active text according to a status of ours, "" for none."""
    if seen is None or not is_ours(seen, owner):
        return ""
    try:
        return str(orjson.loads(seen["data"][ACCEPTED])["sha256"])
    except (KeyError, TypeError, ValueError):
        return ""


def is_told(seen: Manifest | None, owner: Owner, reading: TopologyUpdate) -> bool:
    """Report whether a status of ours describes the result of this very state already."""
    part = ACCEPTED if reading.error is None else REJECTED
    data = seen.get("data") or {} if seen is not None else {}
    told = _time(seen, owner, part, reading.text) is not None and f'"{reading.text.version}"' in data[part]
    return told and data.get("state") == part.capitalize()


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of the merge patch: new values, and null for what is no longer true."""
    gone = {REJECTED: None} if REJECTED in before and REJECTED not in after else {}
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
    what the status says of that one is kept. `now` returns the time in UTC.
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
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._ref = status_ref(place)
        self._owner = owner
        self._cache = cache
        self._standing = standing
        self._now = now
        self._uid = ""
        self._events: list[EmitEvent] = []
        self._said: EmitEvent | None = None
        self._woken = asyncio.Event()
        self._often = 0
        self._troubles: dict[str, str] = {}

    def tell(self, reading: TopologyUpdate) -> None:
        """Write the result of a text now, and emit an Event unless that was done before a restart."""
        told = _told(reading, self._place, self._meanwhile())
        if not self._uid and not self._elsewhere() and is_told(self._seen(), self._owner, reading):
            self._said = told
        self._uid = reading.text.uid or self._uid
        self._say(told)
        self._often = _OFTEN_FOR
        self._woken.set()

    async def run(self) -> None:
        """Write indefinitely, whenever something changes."""
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
                self._say(EmitEvent(_ref(self._place), self._uid, STATUS_NAME_CONFLICT, str(error)))
        else:
            self._troubles.pop(what, None)
        return True

    async def _write_status(self) -> None:
        verdict = self._standing.verdict = resumed(self._standing.verdict, self._seen(), self._owner)
        elsewhere = self._elsewhere()
        if elsewhere and verdict.rejected is not None and verdict.rejected.text.sha256 == elsewhere:
            return
        wanted = write(self._seen(), self._standing.report().data(), self._ref, self._owner, self._uid)
        if wanted is not None and self._uid:
            with suppress(AlreadyExists, Conflict):
                self._cache.apply_response(await self._send(wanted))

    async def _write_events(self) -> None:
        while self._events:
            try:
                await self._write_event(self._events[0])
            except (Denied, NotFound):
                self._events = []
                raise
            self._events = self._events[1:]

    async def _send(self, wanted: StatusWrite) -> bytes:
        if wanted.patch is not None:
            return await self._cluster.patch(self._ref, wanted.patch)
        return await self._cluster.create(self._ref, wanted.create or {})

    async def _write_event(self, told: EmitEvent) -> None:
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


def _told(reading: TopologyUpdate, place: ConfigMapKey, meanwhile: str) -> EmitEvent:
    """Return the Event with the result of a text; equal for the same text of the same version."""
    about, text = _ref(place), reading.text
    if reading.error is not None:
        return EmitEvent(
            about, text.uid, TOPOLOGY_REJECTED, f"{meanwhile} (resourceVersion {text.version}): {reading.error}"
        )
    words = f"topology active: resourceVersion {text.version}, sha256 {text.sha256}"
    return EmitEvent(about, text.uid, TOPOLOGY_ACCEPTED, words, warning=False)
