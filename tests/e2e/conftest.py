"""The ground that the tests of one module share: starting and clearing one costs seconds, a test much less."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import Ground, standing
from storekit import Store, stocked

from tensile.sandbox.sandbox import Sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """An engine on the sandbox's clusters, with a topology, nodes and a namespace of the module's own."""
    async with standing(sandbox, tmp_path_factory.mktemp("ground")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(ground: Ground) -> AsyncIterator[Store]:
    """Storage on that ground; the engine has to see off all that tests made of it."""
    async with stocked(ground) as made:
        yield made
