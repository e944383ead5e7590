"""Fixtures of clusters that these tests may break, and of the garbage collection during a campaign."""

import gc
from collections.abc import Iterator

import pytest

from bench.model.sequences.__main__ import unburdened
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Return an upper cluster and two lowers of one node each, whose components a test may kill."""
    with Sandbox.start(tmp_path_factory.mktemp("fragile") / "s", Options(nodes=1)) as sandbox:
        yield sandbox


@pytest.fixture
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Return the same clusters with an upper cluster that evicts pods of an unresponsive node within seconds."""
    options = Options(nodes=1, compressed_eviction=True)
    with Sandbox.start(tmp_path_factory.mktemp("hasty") / "s", options) as sandbox:
        yield sandbox


@pytest.fixture
def rarely_collected() -> Iterator[None]:
    """Collect garbage as rarely as a campaign does, which saves a fifth of the time."""
    before = gc.get_threshold()
    unburdened()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)
