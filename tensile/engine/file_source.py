"""The topology file: yields each state of it, valid or rejected; and the validation that all sources share.

Editors rename, tools delete and write again, mounted ConfigMaps swap a symlink, and some writers are slow. So only the
content counts. A file event merely triggers a read, and content is accepted once a second read returns the same.

The beginning of a file is often a valid file, with fewer lowers, or with 50 instead of 500. A file that is a prefix of
the active one is watched for longer before it is accepted, and rejected if it ends in the middle of a line.

A rejected state is yielded too, because its author must be informed. It does not replace the last good state, with
which the next one is compared.
"""

import asyncio
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import structlog

from tensile.errors import TensileError
from tensile.kube.file_watch import FileWatcher, watched
from tensile.topology import Topology, TopologyErrors, TopologyProblem, decode, parse
from tensile.yaml_document import MAX_BYTES, Position

SETTLE = 0.1
"""Seconds for which a file must stay unchanged before it is considered complete."""
SHRUNK = 1.0
"""The same for a file that is a prefix of the active one: it may still be written."""
_LARGE = 64 * 1024
_log = structlog.get_logger("tensile.engine.file_source")
Sleep = Callable[[float], Awaitable[None]]


class TopologyText(NamedTuple):
    """Identifies a text: its size in bytes and its sha256 in hex ("" if there is no text).

    `version` and `uid` are those of the ConfigMap that holds it, "" for a file.
    """

    size: int = 0
    sha256: str = ""
    version: str = ""
    uid: str = ""


class TopologyUpdate(NamedTuple):
    """The result of a text: its topology, or the error for which it is rejected.

    `changed` is whether the topology differs in meaning from the last good one.
    """

    text: TopologyText
    topology: Topology | None = None
    error: TensileError | None = None
    changed: bool = False


class GoodTopology(NamedTuple):
    """A good file: its result and its bytes."""

    reading: TopologyUpdate
    data: bytes


class _Look(NamedTuple):
    """The content found at the path, or why there is none."""

    data: bytes
    trouble: str

    def text(self) -> TopologyText:
        """Return what identifies this content."""
        return TopologyText(len(self.data), "" if self.trouble else sha256(self.data).hexdigest())


class TopologyValidator:
    """Validates each state and compares it with the last good one, `good`; `name` is its source, for the log."""

    def __init__(self, good: Topology, name: str) -> None:
        self.good = good
        self._name = name
        self._doubted = False

    async def judge(self, text: TopologyText, parse: Callable[[], Topology]) -> TopologyUpdate:
        """Return the result of a state; `parse` raises TensileError for a bad one."""
        try:
            topology = await parsed(text, parse)
        except TensileError as error:
            self._doubted = True
            return TopologyUpdate(text, error=error)
        if self._doubted:
            _log.info("topology is valid again", file=self._name)
            self._doubted = False
        changed = topology != self.good
        self.good = topology
        return TopologyUpdate(text, topology, changed=changed)


async def parsed(text: TopologyText, parse: Callable[[], Topology]) -> Topology:
    """Return the parsed text; a large one is parsed in a thread, because it would block the event loop."""
    return await asyncio.to_thread(parse) if text.size > _LARGE else parse()


async def read(path: Path) -> GoodTopology:
    """Read the file once; raises TensileError with every error in it, or with why it cannot be read."""
    found = _look(path)
    topology = await parsed(found.text(), lambda: _parse(path, found))
    return GoodTopology(TopologyUpdate(found.text(), topology, changed=True), found.data)


async def follow(
    path: Path, first: Topology, watcher: FileWatcher, *, whole: bytes = b"", sleep: Sleep = asyncio.sleep
) -> AsyncGenerator[TopologyUpdate, None]:
    """Yield each state of the file from now on, compared with `first` and later with the last good state.

    `whole` are the bytes of `first`, if known. Never ends by itself; close it or cancel the task that awaits it.
    """
    following, stirred = _Following(path, first, whole, sleep), asyncio.Event()
    stirred.set()
    with watcher.watch(watched([path]), stirred.set):
        while True:
            await stirred.wait()
            stirred.clear()
            if await following.look():
                yield await following.judge()


class _Following:
    """A file that is followed: its last state, and its last good state."""

    def __init__(self, path: Path, first: Topology, whole: bytes, sleep: Sleep) -> None:
        self._path = path
        self._sleep = sleep
        self._judge = TopologyValidator(first, str(path))
        self._whole = whole
        self._seen: _Look | None = None

    async def look(self) -> bool:
        """Report whether the file has changed."""
        found = await self._settled()
        changed, self._seen = found != self._seen, found
        return changed

    async def judge(self) -> TopologyUpdate:
        """Return the result of the file as it was last read."""
        found = self._seen or _look(self._path)
        reading = await self._judge.judge(found.text(), lambda: self._parse(found))
        if reading.topology is not None:
            self._whole = found.data
        return reading

    async def _settled(self) -> _Look:
        """Read until two reads return the same, so that a file that is being written is not taken as complete."""
        found = _look(self._path)
        while found != self._seen:
            await self._sleep(SHRUNK if self._is_part(found.data) else SETTLE)
            before, found = found, _look(self._path)
            if found == before:
                break
        return found

    def _is_part(self, data: bytes) -> bool:
        return 0 < len(data) < len(self._whole) and self._whole.startswith(data)

    def _parse(self, found: _Look) -> Topology:
        """Return the parsed content; raises TensileError also if it is valid only because it was truncated."""
        topology = _parse(self._path, found)
        if topology != self._judge.good and self._is_part(found.data) and not found.data.endswith(b"\n"):
            raise _cut_off(self._path, found.data)
        return topology


def _look(path: Path) -> _Look:
    """Read the path if it is a regular file; never more than the maximum size of a topology file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return _Look(b"", "not a regular file: use the path of a topology file")
        with path.open("rb") as file:
            return _Look(file.read(MAX_BYTES + 1), "")
    except FileNotFoundError:
        return _Look(b"", "no such file: create it, or name another with -f")
    except OSError as error:
        return _Look(b"", f"cannot be read: {error.strerror}: fix that, or name another with -f")


def _parse(path: Path, found: _Look) -> Topology:
    """Return the topology of the content; raises TensileError if it is not valid."""
    if found.trouble:
        raise TensileError(f"{path}: {found.trouble}")
    return parse(decode(found.data, name=str(path)), name=str(path))


def _cut_off(path: Path, data: bytes) -> TopologyErrors:
    """Return the error that names where the file was truncated."""
    line = data[data.rfind(b"\n") + 1 :].decode(errors="replace")
    place = Position(data.count(b"\n") + 1, len(line) + 1)
    words = "is a truncated copy of the active topology; write the whole file, with a newline at its end"
    return TopologyErrors(str(path), (TopologyProblem(place, (), words),))
