"""Whether the credentials that a lower is to have can be read: found out before those in use are given up.

A program that gives credentials takes its time, and nothing else may wait for it. So each reading is a task of its own,
and who asks is answered at once, or the next time. Files that could not be used are read again when they change.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from tensile.errors import TensileError
from tensile.filewatch import FileWatch, FileWatcher, Watched
from tensile.kube.access import NoAccess
from tensile.topology import Lower

PATIENCE = 1.0
"""Seconds in which files are read, so that most edits are in force at once."""
RETRY = 5.0
"""Seconds after which what could not be read is read again, where it is not for files that are as they were."""


class _Outcome(NamedTuple):
    """What a reading came to: as `objection` gives it, when, and the files that have to change first, if any have."""

    words: str
    at: float
    files: Watched | None = None


class _Trial(NamedTuple):
    """One reading: of what, and its outcome.

    `before` is what the reading of the same before it came to, "" where it is the first.
    """

    way: tuple[object, ...]
    task: asyncio.Task[_Outcome]
    before: str

    def is_over(self, now: float) -> bool:
        """Say whether it failed so long ago that it says nothing any more."""
        return self.task.done() and self.task.result().files is None and now >= self.task.result().at + RETRY


class Trials:
    """Readings of credentials, by lower; `read` reads those of one, and raises TensileError where it cannot."""

    def __init__(self, read: Callable[[Lower], Awaitable[object]], watcher: FileWatcher) -> None:
        self._read = read
        self._watcher = watcher
        self._trials: dict[str, _Trial] = {}
        self._watches: dict[str, FileWatch] = {}

    async def objection(self, spec: Lower) -> str:
        """Say why the credentials of a lower cannot be read, "" when they can.

        The first reading is waited for, PATIENCE at most. While one is repeated the last one counts: what is said does
        not change to and fro, and nobody waits again.
        """
        trial = self._trials.get(spec.name)
        if trial is None or trial.way != spec.way:
            trial = await self._begin(spec)
            await asyncio.wait({trial.task}, timeout=PATIENCE)
        elif trial.is_over(_now()):
            trial = self._begin_again(spec, trial)
        if not trial.task.done():
            return trial.before or "the new credentials are still being read"
        found = trial.task.result()
        if not found.words:
            del self._trials[spec.name]
        elif found.files is not None and spec.name not in self._watches:
            again = partial(self._begin_again, spec, trial)
            self._watches[spec.name] = self._watcher.watch(found.files, again)
        return found.words

    async def close(self) -> None:
        """Give up what is under way."""
        for name in tuple(self._trials):
            await self._end(name)

    async def _begin(self, spec: Lower) -> _Trial:
        await self._end(spec.name)
        self._trials[spec.name] = trial = _Trial(spec.way, asyncio.create_task(self._outcome(spec)), "")
        return trial

    def _begin_again(self, spec: Lower, failed: _Trial) -> _Trial:
        """Repeat a reading that failed; the last one counts meanwhile."""
        self._watch_no_more(spec.name)
        task = asyncio.create_task(self._outcome(spec))
        self._trials[spec.name] = trial = _Trial(failed.way, task, failed.task.result().words)
        return trial

    def _watch_no_more(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.close()

    async def _end(self, name: str) -> None:
        self._watch_no_more(name)
        trial = self._trials.pop(name, None)
        if trial is not None:
            trial.task.cancel()
            await asyncio.gather(trial.task, return_exceptions=True)

    async def _outcome(self, spec: Lower) -> _Outcome:
        try:
            await self._read(spec)
        except NoAccess as error:
            return _Outcome(str(error), _now(), None if error.asked else error.files)
        except (TensileError, OSError) as error:  # descriptors may be short, and are not for ever
            return _Outcome(str(error), _now())
        return _Outcome("", _now())


def _now() -> float:
    return asyncio.get_running_loop().time()
