"""Keeps a task of the engine alive: a defect in it is told, and costs a moment instead of what the task was for."""

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from tensile.telemetry import described

_PAUSE = 1.0
_log = structlog.get_logger("tensile.supervision")


def supervised(what: str, job: Callable[[], Coroutine[None, None, None]], pause: float = _PAUSE) -> asyncio.Task[None]:
    """Run a job in a task of its own until it returns; one that raises is told as `what` and begun again."""
    return asyncio.create_task(_keep_running(what, job, pause))


async def _keep_running(what: str, job: Callable[[], Coroutine[None, None, None]], pause: float) -> None:
    while True:
        try:
            return await job()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine has to go on
            _log.error("a task failed and is started again: please report this", task=what, error=described(error))
        await asyncio.sleep(pause)
