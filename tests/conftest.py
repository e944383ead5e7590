"""What all tests share: one sandbox of real control planes for the whole run.

It starts when the first test asks for it and ends with the run, even with a killed one. $TENSILE_SANDBOX names the
directory of a running sandbox to use instead, which saves the start while a test is being written.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensile.sandbox.environment import Sandbox


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests on real control planes in one process, which has one sandbox; the others run beside them."""
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.xdist_group("real"))


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One upper cluster and two lowers of three nodes each, shared: a test uses a namespace of its own."""
    running = os.environ.get("TENSILE_SANDBOX")
    if running:
        yield Sandbox.attach(Path(running))
        return
    with Sandbox.start(tmp_path_factory.mktemp("sandbox"), progress=print) as started:
        yield started
