"""An engine that leads while a test runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tasks import background

from tensile.engine.leader_election import Election


@asynccontextmanager
async def leading(engine: Election) -> AsyncIterator[asyncio.Task[str]]:
    """Let an engine win the election and keep the lease; what ended its lead is the task's result."""
    await engine.acquired()
    async with background(engine.lost()) as task:
        yield task
