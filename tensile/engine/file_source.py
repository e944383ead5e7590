"""Follows the topology file: gives each state that it comes to, valid or refused; what is refused changes nothing.

Editors rename, tools delete and write anew, mounted ConfigMaps swap a symlink, and some writers take their time. So
what counts is the content, never the notice: that only says that it is time to look, and what was found is taken once a
second look finds the same.

The beginning of a file is often a valid file, with fewer lowers or with 50 where 500 was. One that begins as the file
in force does and ends before it is looked at for longer, and where it ends in the middle of a line it is refused.

One state of a topology's text after another, each judged: what it says, or why it is refused.

The same for a file and for a ConfigMap. A refused state is an answer like any other, because whoever wrote it has to be
told; it takes nothing away from the last good one, against which the next is compared.
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
from tensile.topology import Problem, Topology, TopologyErrors, decode, parse
from tensile.yaml_document import MAX_BYTES, Position

_LARGE = 64 * 1024
_log = structlog.get_logger("tensile.engine.file_source")


class Text(NamedTuple):
    """A topology's text as it was found: how large it is in bytes, its sha256 in hex ("" where there is no text).

    `version` and `uid` are those of the ConfigMap that holds it, "" for a file.
    """

    size: int = 0
    sha256: str = ""
    version: str = ""
    uid: str = ""


class Reading(NamedTuple):
    """What became of a text: its topology, or the error that refuses it.

    `changed` says that the topology means something else than the last good one.
    """

    text: Text
    topology: Topology | None = None
    error: TensileError | None = None
    changed: bool = False


class Judge:
    """Holds each state against the last good one, which is `good`; `name` is where it is from, for the log."""

    def __init__(self, good: Topology, name: str) -> None:
        self.good = good
        self._name = name
        self._doubted = False

    async def judge(self, text: Text, parse: Callable[[], Topology]) -> Reading:
        """Judge a state; `parse` raises TensileError for a bad one."""
        try:
            topology = await parsed(text, parse)
        except TensileError as error:
            self._doubted = True
            return Reading(text, error=error)
        if self._doubted:
            _log.info("topology is valid again", file=self._name)
            self._doubted = False
        changed = topology != self.good
        self.good = topology
        return Reading(text, topology, changed=changed)


async def parsed(text: Text, parse: Callable[[], Topology]) -> Topology:
    """Parse a text; a large one takes long enough to hold up everything else, so it has a thread of its own."""
    return await asyncio.to_thread(parse) if text.size > _LARGE else parse()


Sleep = Callable[[float], Awaitable[None]]

SETTLE = 0.1
"""Seconds for which a file has to stay as it is before it is believed to be whole."""

SHRUNK = 1.0
"""The same for a file that is the beginning of the one in force: whoever cut it may still be writing."""


class _Look(NamedTuple):
    """What was found at the path: the content, or why there is none."""

    data: bytes
    trouble: str

    def text(self) -> Text:
        """Return what tells this content from another."""
        return Text(len(self.data), "" if self.trouble else sha256(self.data).hexdigest())


class Whole(NamedTuple):
    """A good file: what it says, and its bytes."""

    reading: Reading
    data: bytes


async def read(path: Path) -> Whole:
    """Read the file once; raises TensileError with every error in it, or saying why it cannot be read."""
    found = _look(path)
    topology = await parsed(found.text(), lambda: _parse(path, found))
    return Whole(Reading(found.text(), topology, changed=True), found.data)


async def follow(
    path: Path, first: Topology, watcher: FileWatcher, *, whole: bytes = b"", sleep: Sleep = asyncio.sleep
) -> AsyncGenerator[Reading, None]:
    """Yield each state of the file from now on, judged against `first` and then against the last good one.

    `whole` are the bytes of `first`, where they are known. Never ends by itself; close it or cancel who awaits it.
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
    """What is known of a file that is followed: how it is, and how it was when it was good."""

    def __init__(self, path: Path, first: Topology, whole: bytes, sleep: Sleep) -> None:
        self._path = path
        self._sleep = sleep
        self._judge = Judge(first, str(path))
        self._whole = whole
        self._seen: _Look | None = None

    async def look(self) -> bool:
        """Report whether the file is something else than before."""
        found = await self._settled()
        changed, self._seen = found != self._seen, found
        return changed

    async def judge(self) -> Reading:
        """Judge the file as it was seen last."""
        found = self._seen or _look(self._path)
        reading = await self._judge.judge(found.text(), lambda: self._parse(found))
        if reading.topology is not None:
            self._whole = found.data
        return reading

    async def _settled(self) -> _Look:
        """Look until two looks find the same, so that a file that is being written is not taken for whole."""
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
        """Parse what was found; raises TensileError also where it is valid only because it was cut off."""
        topology = _parse(self._path, found)
        if topology != self._judge.good and self._is_part(found.data) and not found.data.endswith(b"\n"):
            raise _cut_off(self._path, found.data)
        return topology


def _look(path: Path) -> _Look:
    """Look at the path; never more than a topology file can be is read, and nothing that is no file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return _Look(b"", "not a file: name a topology file")
        with path.open("rb") as file:
            return _Look(file.read(MAX_BYTES + 1), "")
    except FileNotFoundError:
        return _Look(b"", "no such file: put it there, or name another with -f")
    except OSError as error:
        return _Look(b"", f"cannot be read: {error.strerror}: mend that, or name another with -f")


def _parse(path: Path, found: _Look) -> Topology:
    """Turn what was found into a topology; raises TensileError when it is none."""
    if found.trouble:
        raise TensileError(f"{path}: {found.trouble}")
    return parse(decode(found.data, name=str(path)), name=str(path))


def _cut_off(path: Path, data: bytes) -> TopologyErrors:
    """Return where the file ends too early."""
    line = data[data.rfind(b"\n") + 1 :].decode(errors="replace")
    place = Position(data.count(b"\n") + 1, len(line) + 1)
    words = "ends in the middle of what was in force; write the file whole, with a newline at its end"
    return TopologyErrors(str(path), (Problem(place, (), words),))
