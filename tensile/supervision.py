"""Jobs that are done again until they succeed, by tenacity, and tasks of the engine that outlive their defects.

A defect in a task is told, and costs a moment instead of what the task was for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog
import tenacity

from tensile.errors import described
from tensile.telemetry import Seldom

Pause = Callable[[], float]
"""Says how many seconds to wait before the next try."""
Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")
_PAUSE = 1.0
_log = structlog.get_logger("tensile.supervision")


def supervised(
    what: str,
    job: Callable[[], Awaitable[None]],
    pause: Pause = lambda: _PAUSE,
    *,
    sleep: Sleep = asyncio.sleep,
    **where: str,
) -> asyncio.Task[None]:
    """Run a job in a task of its own until it returns; one that raises is told as `what` and begun again.

    A defect of one sort is told once a minute, with `where`.
    """
    seldom = Seldom(asyncio.get_running_loop().time)

    def tell(error: Exception) -> None:
        words = "a task failed and is started again: please report this"
        said = {**where, "task": what, "error": described(error)}
        seldom.tell(type(error).__name__, lambda more: _log.error(words, **said, **more))

    return asyncio.create_task(insist(job, Exception, pause, tell, sleep=sleep))


async def insist(
    job: Callable[[], Awaitable[T]],
    on: type[Exception],
    pause: Pause,
    tell: Callable[[Any], None] = lambda _: None,
    *,
    unless: tuple[type[Exception], ...] = (),
    sleep: Sleep = asyncio.sleep,
) -> T:
    """Do a job until it raises nothing that is `on`, or what is `unless`, and return what it returns.

    Each error before that is told, and waited after.
    """

    async def attempt() -> T:
        return await job()

    def before_sleep(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None, "it failed"
        tell(state.outcome.exception())

    wanted = tenacity.retry_if_exception_type(on) & tenacity.retry_if_not_exception_type(unless)
    retrying = tenacity.AsyncRetrying(retry=wanted, wait=lambda _: pause(), before_sleep=before_sleep, sleep=sleep)
    return await retrying(attempt)
