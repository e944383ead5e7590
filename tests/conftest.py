"""What all tests share: one sandbox of real control planes for the whole run.

It starts when the first test asks for it and ends with the run, even with a killed one. $TENSILE_SANDBOX names the
directory of a running sandbox to use instead, which saves the start while a test is being written.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensile.sandbox.environment import Sandbox


def pytest_configure() -> None:
    """Have programs that tests start hear SIGINT, also where the tests run in the background of a shell.

    Such a shell ignores it for everything that it starts, and what is ignored stays so for a child.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One upper cluster and two lowers of three nodes each, shared: a test uses a namespace of its own."""
    running = os.environ.get("TENSILE_SANDBOX")
    if running:
        yield Sandbox.attach(Path(running))
        return
    with Sandbox.start(tmp_path_factory.mktemp("sandbox"), progress=print) as started:
        yield started
