"""Fixtures that the tests of a module share, because starting and clearing a topology takes much longer than a test."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import Ground, standing
from storekit import Store, stocked

from tensile.sandbox.sandbox import Sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start an engine on the sandbox's clusters, with a topology, nodes and a namespace of this module's own."""
    async with standing(sandbox, tmp_path_factory.mktemp("ground")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(ground: Ground) -> AsyncIterator[Store]:
    """Add storage to the module's topology; at the end, the engine has to remove everything that the tests created."""
    async with stocked(ground) as made:
        yield made
