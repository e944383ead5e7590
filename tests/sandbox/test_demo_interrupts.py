"""Interrupts: the first counts, later ones do not disturb the cleaning up."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensile
from tensile.sandbox.demo import SIGNALS, ignore, interruptible

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(tensile.__file__).parents[1])}


@pytest.fixture(autouse=True)
def _as_at_home() -> Iterator[None]:
    """Signals have their usual meaning, also where the tests run under nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS, ids=[number.name for number in SIGNALS])
def test_the_first_signal_interrupts(number: signal.Signals) -> None:
    """Ctrl-C, a terminal that is closed and a polite kill all end the block in the same way."""
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)


class Deaf:
    """Something in whose clearing away a signal comes, where Python swallows what is raised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_that_python_swallows_is_raised_again() -> None:
    """A demo that is ended while it imports ends, too."""

    def work() -> None:
        """Clear something away, and go on for longer than anybody waits."""
        Deaf()
        threading.Event().wait(20)

    with pytest.raises(KeyboardInterrupt), interruptible():
        work()


def test_nothing_is_raised_again_after_the_end() -> None:
    """A block that ended all the same has nothing to interrupt: an alarm that nobody hears would kill the program."""
    with interruptible():
        Deaf()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_nothing_is_raised_again_once_signals_are_ignored() -> None:
    """The cleaning up of a demo that came to its own end is not interrupted either."""
    with interruptible():
        Deaf()
        ignore()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_later_signals_do_nothing() -> None:
    """Whoever presses Ctrl-C twice does not interrupt the cleaning up."""
    cleaned = []
    with interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            for number in SIGNALS:
                signal.raise_signal(number)
                cleaned.append(number)
    assert cleaned == list(SIGNALS)


def test_signals_do_nothing_once_they_are_ignored() -> None:
    """An end that is not an interrupt is not interrupted either."""
    reached = []
    with interruptible():
        ignore()
        for number in SIGNALS:
            signal.raise_signal(number)
            reached.append(number)
    assert reached == list(SIGNALS)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, ValueError], ids=["interrupt", "error"])
def test_afterwards_signals_mean_what_they_meant(ending: type[BaseException]) -> None:
    """The handlers from before are back, however the block ended."""
    before = [signal.getsignal(number) for number in SIGNALS]
    during = []
    with pytest.raises(ending), interruptible():
        raise ending(during.extend(signal.getsignal(number) for number in SIGNALS))
    assert all(new is not old for new, old in zip(during, before, strict=True))
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.process
def test_nohup_holds() -> None:
    """A hangup that was ignored before stays ignored, while the other signals interrupt."""
    program = (
        "import signal\n"
        "from tensile.sandbox.demo import interruptible\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with interruptible():\n"
        "    signal.raise_signal(signal.SIGHUP)\n"
        "    print('still here', flush=True)\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
        "signal.raise_signal(signal.SIGHUP)\n"
        "print('ignored as before', flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=30
    )
    assert ended.stdout.splitlines() == ["still here", "interrupted", "ignored as before"], ended.stderr
