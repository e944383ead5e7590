"""An event loop on which time advances only when all tasks wait, and then immediately.

It lets a test of delays take no time and depend on none. If no event could ever occur again, it raises an error instead
of hanging.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class Stuck(Exception):
    """All tasks wait, and no timer or event is left that could wake one."""


class _Jump(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    """A selector that never blocks: if nothing is ready, the clock advances to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready; otherwise let `timeout` seconds pass."""
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
    """Run an asynchronous test on a separate loop with virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        """Run the test."""
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def clock() -> float:
    """Return the seconds that have passed since the test began."""
    return asyncio.get_running_loop().time()
