"""Tests of interrupts: the first one counts, later ones do not disturb the cleanup."""

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
    """Reset signals to their default handling, even if the tests run under nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS, ids=[number.name for number in SIGNALS])
def test_the_first_signal_interrupts(number: signal.Signals) -> None:
    """Ctrl-C, a closed terminal and SIGTERM all end the block by KeyboardInterrupt."""
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)


class SignalledDestructor:
    """An object whose destructor receives a signal, where Python discards exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_that_python_discards_is_raised_again() -> None:
    """A signal during a destructor, for example while the demo imports modules, still ends the demo."""

    def work() -> None:
        """Destroy the object, and continue for longer than the test should wait."""
        SignalledDestructor()
        threading.Event().wait(20)

    with pytest.raises(KeyboardInterrupt), interruptible():
        work()


def test_no_interrupt_is_raised_again_after_the_block() -> None:
    """A pending alarm is canceled at the end of the block, because without a handler it would kill the program."""
    with interruptible():
        SignalledDestructor()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_no_interrupt_is_raised_again_once_signals_are_ignored() -> None:
    """The cleanup of a demo that ended by itself is not interrupted either."""
    with interruptible():
        SignalledDestructor()
        ignore()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_later_signals_do_nothing() -> None:
    """A second Ctrl-C does not interrupt the cleanup."""
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
    """The cleanup after an end without an interrupt is not interrupted either."""
    reached = []
    with interruptible():
        ignore()
        for number in SIGNALS:
            signal.raise_signal(number)
            reached.append(number)
    assert reached == list(SIGNALS)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, ValueError], ids=["interrupt", "error"])
def test_signal_handlers_are_restored_afterwards(ending: type[BaseException]) -> None:
    """The previous handlers are set again, however the block ended."""
    before = [signal.getsignal(number) for number in SIGNALS]
    during = []
    with pytest.raises(ending), interruptible():
        raise ending(during.extend(signal.getsignal(number) for number in SIGNALS))
    assert all(new is not old for new, old in zip(during, before, strict=True))
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.process
def test_an_ignored_hangup_stays_ignored() -> None:
    """Under nohup SIGHUP is ignored within and after the block, while other signals interrupt."""
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
