"""The signals that end the demo: the first one interrupts, the others are too late to matter.

Cleaning up takes a few seconds, and people press Ctrl-C twice: a second interrupt in the middle of it would leave half
of the clusters running. Nor may the first one be lost: Python swallows what is raised while it clears an object away,
as imports do all the time; it is raised again then.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN = 0.05
"""Seconds after which an interrupt that was swallowed is raised again."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the first of SIGNALS raise KeyboardInterrupt inside the block, and ignore those after it.

    A SIGHUP that is ignored already, as `nohup` does it, stays ignored.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        ignore()
        raise KeyboardInterrupt

    def swallowed(what: "sys.UnraisableHookArgs") -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        else:
            told_before(what)

    told_before, sys.unraisablehook = sys.unraisablehook, swallowed
    hears_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    before = {number: signal.signal(number, interrupt) for number in SIGNALS if hears_hangup or number != signal.SIGHUP}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        sys.unraisablehook = told_before
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore SIGNALS from now on, until the block of `interruptible` ends, and what is still to be raised again."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
