"""The signals that end the demo: the first one interrupts, the others are too late to matter.

Cleaning up takes a few seconds, and people press Ctrl-C twice: a second interrupt in the middle of it would leave half
of the clusters running.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the first of SIGNALS raise KeyboardInterrupt inside the block, and ignore those after it.

    A SIGHUP that is ignored already, as `nohup` does it, stays ignored.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        ignore()
        raise KeyboardInterrupt

    hears_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    before = {number: signal.signal(number, interrupt) for number in SIGNALS if hears_hangup or number != signal.SIGHUP}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore SIGNALS from now on, until the block of `interruptible` ends."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
