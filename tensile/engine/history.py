"""The topologies that were accepted last, in ConfigMap NAME-history of the upper cluster.

`tensile rollback` puts one of them back, and an engine starts with the last one while an edit waits for an approval.
Each text is stored once, under its SHA-256, and an index lists when it was accepted. The oldest go when there are more
than ten, or when the ConfigMap would become too large for the apiserver.

A topology in a ConfigMap has its history beside it. A topology file has no place in a cluster, so its history is beside
the Lease of its engines, in kube-system.

What is read is not trusted: a text counts only if it has the SHA-256 that the index says.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
import structlog

from tensile.engine.leader_election import NAMESPACE
from tensile.engine.status.configmap import (
    RENAME,
    NameTaken,
    StatusWrite,
    check_ours,
    marked_manifest,
    part_in,
    status_owner,
    status_ref,
)
from tensile.engine.status.report import ACCEPTED
from tensile.engine.topology_reader import ConfigMapKey, TopologyUpdate
from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, TensileError
from tensile.kube.cluster import Cluster, Patch, read_or_none
from tensile.names import HISTORY_SUFFIX, EventReason, Owner
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref, as_read, timestamp
from tensile.reconcile.ownership import is_ours

HISTORY_NAME_CONFLICT: EventReason = "HistoryNameConflict"
"""On the topology's ConfigMap: the ConfigMap for its history exists and is not the engine's. Remedy: rename or delete
that ConfigMap."""
MAX_ENTRIES = 10
"""Maximum of accepted topologies that are kept."""
MAX_TEXT_BYTES = 900 * 1024
"""Maximum of bytes of all texts together; an apiserver takes 1 MiB in a ConfigMap, keys and index included."""
_INDEX = "index"
_SUFFIX = ".yaml"
_RETRY_DELAY = 5.0
_LONG_RETRY_DELAY = 60.0
"""Seconds between two attempts while a person has to change something first."""
_log = structlog.get_logger("tensile.engine.history")


class AcceptedText(NamedTuple):
    """A topology that was accepted: its SHA-256 in hex, when (RFC 3339), and its text, "" if it was too large."""

    sha256: str
    time: str
    content: str


History = tuple[AcceptedText, ...]
"""The accepted topologies, the oldest first."""


class TopologyRecords(NamedTuple):
    """What the upper cluster holds of a topology: its status ConfigMap, None for none of ours, and its history.

    `owner` is that of both.
    """

    owner: Owner
    status: Manifest | None = None
    history: History = ()

    @property
    def active(self) -> str:
        """The SHA-256 of the text in force, "" if none is known.

        The status and the history each say which one; the newer counts. So a leader may end between the two writes, and
        the history may lack the text, or not be kept.
        """
        accepted = part_in(self.status, self.owner, ACCEPTED)
        if self.history and str(accepted.get("time", "")) <= self.history[-1].time:
            return self.history[-1].sha256
        return str(accepted.get("sha256", ""))


def file_place(topology: str) -> ConfigMapKey:
    """Return the place of a topology file's status and history, by the name of the topology: beside its Lease."""
    return ConfigMapKey(NAMESPACE, f"tensile-{topology}")


def history_ref(place: ConfigMapKey) -> Ref:
    """Return the ref of the ConfigMap with the history of a topology."""
    return Ref(UPPER, CONFIG_MAP, place.namespace, place.name + HISTORY_SUFFIX)


def accepted_text(reading: TopologyUpdate, now: datetime) -> AcceptedText:
    """Return the entry of a good text."""
    return AcceptedText(reading.text.sha256, timestamp(now), reading.data.decode())


def entries(seen: Manifest | None, owner: Owner) -> History:
    """Return the history in a ConfigMap, () if there is none of ours. What does not match its SHA-256 is left out.

    Only the last ten entries count: an index with thousands of entries would take more than a second to check.
    """
    if seen is None or not is_ours(seen, owner):
        return ()
    data = seen.get("data") or {}
    try:
        index = [(str(one["sha256"]), str(one["time"])) for one in orjson.loads(data[_INDEX])[-MAX_ENTRIES:]]
    except (KeyError, TypeError, ValueError):
        return ()
    found = (AcceptedText(digest, time, str(data.get(digest + _SUFFIX, ""))) for digest, time in index)
    return tuple(one for one in found if not one.content or digest_of(one.content) == one.sha256)


def digest_of(content: str) -> str:
    """Return the SHA-256 of a text in hex."""
    return sha256(content.encode()).hexdigest()


def added(history: History, entry: AcceptedText) -> History:
    """Return the history with one more entry, without the oldest ones that are too many or too large.

    One that is the last already is not added again.
    """
    if history and history[-1].sha256 == entry.sha256:
        return history
    kept: list[AcceptedText] = []
    sizes: dict[str, int] = {}
    for one in reversed((*history, entry)[-MAX_ENTRIES:]):
        size = len(one.content.encode())
        if one is entry and size > MAX_TEXT_BYTES:
            kept.append(one._replace(content=""))
            continue
        sizes[one.sha256] = size
        if sum(sizes.values()) > MAX_TEXT_BYTES:
            break
        kept.append(one)
    return tuple(reversed(kept))


def data_of(history: Iterable[AcceptedText]) -> dict[str, str]:
    """Return the data of the ConfigMap with a history."""
    texts = {one.sha256 + _SUFFIX: one.content for one in history if one.content}
    index = [{"sha256": one.sha256, "time": one.time} for one in history]
    return {**texts, _INDEX: orjson.dumps(index, option=orjson.OPT_INDENT_2).decode()}


def write(seen: Manifest | None, entry: AcceptedText, ref: Ref, owner: Owner) -> StatusWrite | None:
    """Return the write after which the history ends with an entry, None if it does already.

    `seen` is the present ConfigMap. Raises NameTaken if it is not ours.
    """
    if seen is None:
        return StatusWrite(create=marked_manifest(data_of(added((), entry)), ref, owner, owner.upper))
    check_ours(seen, ref, owner, f"accepted topologies cannot be kept: {RENAME}")
    before: Mapping[str, Any] = seen.get("data") or {}
    history = entries(seen, owner)
    after = added(history, entry)
    if after == history:
        return None
    data: dict[str, str | None] = dict.fromkeys(before)
    data.update(data_of(after))
    changes = {key: value for key, value in data.items() if before.get(key) != value}
    return StatusWrite(patch=Patch("merge-patch", {"metadata": as_read(seen), "data": changes}))


async def read_records(
    cluster: Cluster, upper_uid: str, place: ConfigMapKey, *, log_denied: bool = True
) -> TopologyRecords:
    """Read what the upper cluster holds of a topology; `upper_uid` is the UID of its kube-system.

    What may not be read counts as absent; with `log_denied` that is logged. Raises ClusterError if the cluster does not
    respond.
    """
    owner = status_owner(upper_uid, place)
    status = await _read(cluster, status_ref(place), log_denied=log_denied)
    history = entries(await _read(cluster, history_ref(place), log_denied=log_denied), owner)
    return TopologyRecords(owner, status if status is not None and is_ours(status, owner) else None, history)


async def active_text(cluster: Cluster, upper_uid: str, place: ConfigMapKey, digest: str = "") -> str:
    """Return the topology in force, "" if it is not known, or must not be read.

    `digest` is its SHA-256 as its engine reports it, "" if no engine was asked.
    """
    records = await read_records(cluster, upper_uid, place, log_denied=False)
    wanted = digest or records.active
    return next((one.content for one in reversed(records.history) if one.sha256 == wanted), "")


async def _read(cluster: Cluster, ref: Ref, *, log_denied: bool) -> Manifest | None:
    try:
        return await read_or_none(cluster, ref)
    except Denied as error:
        if log_denied:
            _log.warning("the accepted topologies cannot be read", error=str(error))
        return None


class HistoryWriter:
    """Keeps the topology in force as the last entry of the history.

    `emit_event` receives a reason and a message for users. `now` returns the time in UTC.
    """

    def __init__(
        self,
        cluster: Cluster,
        place: ConfigMapKey,
        upper_uid: str,
        *,
        emit_event: Callable[[EventReason, str], None],
        now: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._ref = history_ref(place)
        self._owner = status_owner(upper_uid, place)
        self._emit_event = emit_event
        self._now = now
        self._wanted: AcceptedText | None = None
        self._woken = asyncio.Event()
        self._last_error = ""

    def keep(self, reading: TopologyUpdate) -> None:
        """Make a topology that was accepted the last entry, soon, if it is not."""
        if self._wanted is None or self._wanted.sha256 != reading.text.sha256:
            self._wanted = accepted_text(reading, self._now())
        self._woken.set()

    async def run(self) -> None:
        """Write indefinitely, after each change of what is in force; a write that failed is tried again."""
        delay = None
        while True:
            try:
                async with asyncio.timeout(delay):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            delay = await self.write()

    async def write(self) -> float | None:
        """Write what is in force; return after how many seconds to try again, None for not at all."""
        if self._wanted is None:
            return None
        try:
            wanted = write(await read_or_none(self._cluster, self._ref), self._wanted, self._ref, self._owner)
            if wanted is not None:
                await wanted.send(self._cluster, self._ref)
        except (AlreadyExists, Conflict):
            return 0.0
        except NameTaken as error:
            if self._log_failure(error):
                self._emit_event(HISTORY_NAME_CONFLICT, str(error))
            return _LONG_RETRY_DELAY
        except ClusterError as error:
            self._log_failure(error)
            return _LONG_RETRY_DELAY if isinstance(error, Denied) else _RETRY_DELAY
        self._last_error = ""
        return None

    def _log_failure(self, error: TensileError) -> bool:
        """Log a failure; report whether it is new."""
        is_new = self._last_error != str(error)
        self._last_error = str(error)
        if is_new:
            _log.warning("cannot keep the accepted topology: rollback and a restart do not know it", error=str(error))
        return is_new
