"""Whether the credentials that a lower is to have can be read: found out before those in use are given up.

A program that gives credentials takes its time, and nothing else may wait for it. So each reading is a task of its own,
and who asks is answered at once, or the next time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tensile.errors import TensileError
from tensile.topology import Lower

PATIENCE = 1.0
"""Seconds in which files are read, so that most edits are in force at once."""
RETRY = 5.0
"""Seconds after which what could not be read is read again."""


class _Trial(NamedTuple):
    """One reading: of what, and its outcome: as `objection` gives it, and when it was found.

    `before` is what the reading of the same before it came to, "" where it is the first.
    """

    way: tuple[object, ...]
    task: asyncio.Task[tuple[str, float]]
    before: str

    def is_over(self, now: float) -> bool:
        """Say whether it failed so long ago that it says nothing any more."""
        return self.task.done() and now >= self.task.result()[1] + RETRY


class Trials:
    """Readings of credentials, by lower; `read` reads those of one, and raises TensileError where it cannot."""

    def __init__(self, read: Callable[[Lower], Awaitable[object]]) -> None:
        self._read = read
        self._trials: dict[str, _Trial] = {}

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
            trial = await self._begin(spec, before=trial.task.result()[0])
        if not trial.task.done():
            return trial.before or "the new credentials are still being read"
        found, _ = trial.task.result()
        if not found:
            del self._trials[spec.name]
        return found

    async def close(self) -> None:
        """Give up what is under way."""
        for name in tuple(self._trials):
            await self._end(name)

    async def _begin(self, spec: Lower, before: str = "") -> _Trial:
        await self._end(spec.name)
        self._trials[spec.name] = trial = _Trial(spec.way, asyncio.create_task(self._outcome(spec)), before)
        return trial

    async def _end(self, name: str) -> None:
        trial = self._trials.pop(name, None)
        if trial is not None:
            trial.task.cancel()
            await asyncio.gather(trial.task, return_exceptions=True)

    async def _outcome(self, spec: Lower) -> tuple[str, float]:
        try:
            await self._read(spec)
        except (TensileError, OSError) as error:  # descriptors may be short, and are not for ever
            return str(error), _now()
        return "", _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
