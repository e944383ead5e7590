"""Follows the topology file: yields what is valid in it, again and again; anything else is refused and changes nothing.

Editors rename, tools delete and write anew, mounted ConfigMaps swap a symlink, and some writers take their time. So
what counts is the content, never the notice: a notice, or the passing of half a second, only says that it is time to
look, and what was found is taken once a second look finds the same. That also carries file systems without notices,
and a folder that goes away and comes back.
"""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from watchfiles import awatch

from tensile.errors import TensileError
from tensile.topology import Topology, decode, parse
from tensile.yamltext import MAX_BYTES

Watch = Callable[..., AsyncGenerator[Any, None]]
"""Gives something whenever a folder changed, called as watchfiles.awatch is."""

Sleep = Callable[[float], Awaitable[None]]

POLL = 0.5
"""Seconds between two looks where no notice comes."""

SETTLE = 0.1
"""Seconds for which a file has to stay as it is before it is believed to be whole."""

_DEBOUNCE = 200
_STEP = 50
_LARGE = 64 * 1024
_log = structlog.get_logger("tensile.reconcile.source")


class _Look(NamedTuple):
    """What was found at the path: the content, or why there is none."""

    data: bytes
    trouble: str


async def read(path: Path) -> Topology:
    """Read the file once; raises TensileError with every error in it, or saying why it cannot be read."""
    return await _parsed(path, _look(path))


async def follow(
    path: Path,
    first: Topology,
    refused: Callable[[TensileError], None],
    *,
    watch: Watch = awatch,
    sleep: Sleep = asyncio.sleep,
) -> AsyncGenerator[Topology, None]:
    """Give each topology that the file comes to hold after `first`, and tell `refused` once of each bad state of it.

    What means the same as the last good one is not given. Never ends by itself; close it or cancel who awaits it.
    """
    good, doubted = first, False
    async with aclosing(_states(path, watch, sleep)) as states:
        async for found in states:
            try:
                topology = await _parsed(path, found)
            except TensileError as error:
                doubted = True
                refused(error)
                continue
            if doubted:
                _log.info("topology file is valid again", file=str(path))
                doubted = False
            if topology != good:
                good = topology
                yield topology


async def _states(path: Path, watch: Watch, sleep: Sleep) -> AsyncGenerator[_Look, None]:
    """Give what is at the path, first as it is and then each time that it is something else."""
    seen: _Look | None = None
    async with aclosing(_moments(path, watch, sleep)) as moments:
        async for _ in moments:
            found = await _settled(path, seen, sleep)
            if found != seen:
                seen = found
                yield found


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


async def _settled(path: Path, seen: _Look | None, sleep: Sleep) -> _Look:
    """Look until two looks find the same, so that a file that is being written is not taken for whole."""
    found = _look(path)
    while found != seen:
        await sleep(SETTLE)
        before, found = found, _look(path)
        if found == before:
            break
    return found


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


async def _parsed(path: Path, found: _Look) -> Topology:
    """Turn what was found into a topology; raises TensileError when it is none."""
    if found.trouble:
        raise TensileError(f"{path}: {found.trouble}")
    if len(found.data) > _LARGE:
        return await asyncio.to_thread(_parse, path, found.data)
    return _parse(path, found.data)


def _parse(path: Path, data: bytes) -> Topology:
    """Parse a file's bytes; large ones take long enough to hold up everything else."""
    return parse(decode(data, name=str(path)), name=str(path))
