"""An event loop on which time passes only when there is nothing else to do, and then at once.

So that a test of delays takes no time and depends on none. Where nothing could ever happen again, it says so instead of
hanging.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class Stuck(Exception):
    """Everything waits, and nothing is left that could end it."""


class _Jump(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    """Waits for nothing: what is not ready is not coming, so the clock moves on to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready; else let `timeout` seconds pass."""
        ready: list[Any] = super().select(0)
        if not ready and timeout is None:
            raise Stuck
        if not ready:
            self.now += max(timeout or 0.0, 0.0)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    """A loop on such a clock, which begins at 0."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the seconds that have passed."""
        return self._jump.now


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test on a loop of its own whose time is not the world's."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        """Run it."""
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def clock() -> float:
    """Return the seconds that have passed since the test began."""
    return asyncio.get_running_loop().time()
