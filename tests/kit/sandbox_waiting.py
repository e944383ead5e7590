"""Waiting for what another process does, by polling and never by a fixed pause."""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

LIMIT = 60.0


def until(condition: Callable[[], object], what: str | Callable[[], str], limit: float = LIMIT) -> None:
    """Return when the condition holds; fail after `limit` seconds with a message, which may be a function."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"not within {limit:.0f} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.02)


def until_unlocked(descriptor: int) -> None:
    """Return when no process holds the lock of an open directory any more, and close it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)


def open_directory(directory: Path) -> int:
    """Open a directory, to wait for its lock later even if it is deleted by then."""
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
