"""Fixtures that the tests of a module share, because starting and clearing a topology takes much longer than a test."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import EngineHarness, running_engine
from storekit import Store, storage_classes

from tensile.sandbox.sandbox import Sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine on the sandbox's clusters, with a topology, nodes and a namespace of this module's own."""
    async with running_engine(sandbox, tmp_path_factory.mktemp("ground")) as harness:
        yield harness


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(harness: EngineHarness) -> AsyncIterator[Store]:
    """Add storage to the module's topology; at the end, the engine has to remove everything that the tests created."""
    async with storage_classes(harness) as made:
        yield made
