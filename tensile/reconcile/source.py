"""Follows the topology file: gives each state that it comes to, valid or refused; what is refused changes nothing.

Editors rename, tools delete and write anew, mounted ConfigMaps swap a symlink, and some writers take their time. So
what counts is the content, never the notice: a notice, or the passing of a second, only says that it is time to
look, and what was found is taken once a second look finds the same. That also carries file systems without notices,
and a folder that goes away and comes back.

The beginning of a file is often a valid file, with fewer lowers or with 50 where 500 was. One that begins as the file
in force does and ends before it is looked at for longer, and where it ends in the middle of a line it is refused.
"""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from watchfiles import awatch

from tensile.errors import TensileError
from tensile.reconcile.reading import Judge, Reading, Text, parsed
from tensile.topology import Problem, Topology, TopologyErrors, decode, parse
from tensile.yamltext import MAX_BYTES
from tensile.yamltree import Position

Watch = Callable[..., AsyncGenerator[Any, None]]
"""Gives something whenever a folder changed, called as watchfiles.awatch is."""

Sleep = Callable[[float], Awaitable[None]]

POLL = 1.0
"""Seconds between two looks where no notice comes; an idle engine does little else."""

SETTLE = 0.1
"""Seconds for which a file has to stay as it is before it is believed to be whole."""

SHRUNK = 1.0
"""The same for a file that is the beginning of the one in force: whoever cut it may still be writing."""

_DEBOUNCE = 400
_STEP = 200
"""Milliseconds between two looks at what the system noticed: a thread wakes up for each."""
_log = structlog.get_logger("tensile.reconcile.source")


class _Look(NamedTuple):
    """What was found at the path: the content, or why there is none."""

    data: bytes
    trouble: str

    def text(self) -> Text:
        """Say what tells this content from another."""
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
    path: Path, first: Topology, *, whole: bytes = b"", watch: Watch = awatch, sleep: Sleep = asyncio.sleep
) -> AsyncGenerator[Reading, None]:
    """Give each state of the file from now on, judged against `first` and then against the last good one.

    `whole` are the bytes of `first`, where they are known. Never ends by itself; close it or cancel who awaits it.
    """
    following = _Following(path, first, whole, sleep)
    async with aclosing(_moments(path, watch, sleep)) as moments:
        async for _ in moments:
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
        """Say whether the file is something else than before."""
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


async def _moments(path: Path, watch: Watch, sleep: Sleep) -> AsyncGenerator[None, None]:
    """Come back whenever it is time to look, which is now for a start."""
    blind = False
    yield
    while True:
        try:
            async with aclosing(_notices(path, watch)) as notices:
                async for _ in notices:
                    yield
            continue
        except FileNotFoundError:
            pass
        except (OSError, RuntimeError, ExceptionGroup) as error:
            if not blind:
                _log.warning("no notice of changes, looking at the file instead", file=str(path), error=str(error))
            blind = True
        await sleep(POLL)
        yield


async def _notices(path: Path, watch: Watch) -> AsyncGenerator[None, None]:
    """Come back at each notice from the folders, and in between, as long as they are the ones to watch.

    Raises what the system says when it does not let them be watched: FileNotFoundError where there is none.
    """
    folders = _folders(path)
    notices = watch(
        *folders,
        watch_filter=None,
        debounce=_DEBOUNCE,
        step=_STEP,
        rust_timeout=int(POLL * 1000),
        yield_on_timeout=True,
        recursive=False,
    )
    async with aclosing(notices):
        async for changes in notices:
            yield
            if _folders(path) != folders or any(where in folders for _, where in changes):
                return


def _folders(path: Path) -> set[str]:
    """Give the folder of the path, and of the file that it leads to."""
    return {str(path.absolute().parent), str(Path(os.path.realpath(path)).parent)}


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
    """Say where the file ends too early."""
    line = data[data.rfind(b"\n") + 1 :].decode(errors="replace")
    place = Position(data.count(b"\n") + 1, len(line) + 1)
    words = "ends in the middle of what was in force; write the file whole, with a newline at its end"
    return TopologyErrors(str(path), (Problem(place, (), words),))
