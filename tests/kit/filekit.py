"""Waiting until a change of files is heard of, by a watch beside that of whom a test is about."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tensile.kube.file_watch import FileWatcher, watched

PATIENCE = 20.0
"""Seconds after which a change counts as unseen; far more than any notice takes."""


@asynccontextmanager
async def heard(watcher: FileWatcher, *paths: Path) -> AsyncIterator[None]:
    """Change files inside, and go on once the watcher has told everybody of it who watched them before."""
    changed = asyncio.Event()
    with watcher.watch(watched(paths), changed.set):
        yield
        async with asyncio.timeout(PATIENCE):
            await changed.wait()
