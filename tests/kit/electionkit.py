"""An engine that leads while a test runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tasks import background

from tensile.engine.leader_election import Election


@asynccontextmanager
async def leading(engine: Election) -> AsyncIterator[asyncio.Task[str]]:
    """Acquire the lease for an engine and keep it; the task's result is why leadership was lost."""
    await engine.acquire()
    async with background(engine.renew_until_lost()) as task:
        yield task
