"""Waiting until a change of files is noticed, by a second watch beside the one under test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tensile.kube.file_watch import FileWatcher, watched

PATIENCE = 20.0
"""Seconds after which a change counts as not noticed; far more than any notification needs."""


@asynccontextmanager
async def wait_for_watcher(watcher: FileWatcher, *paths: Path) -> AsyncIterator[None]:
    """Change files inside the block, then wait until the watcher has notified all who already watched them."""
    changed = asyncio.Event()
    with watcher.watch(watched(paths), changed.set):
        yield
        async with asyncio.timeout(PATIENCE):
            await changed.wait()
