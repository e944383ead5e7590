"""Makes a sandbox's directory and locks it, so that two commands never work on one at a time.

The lock is the kernel's, on the directory itself: no lock file to leave behind, and it ends with its holder.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tensile.sandbox.errors import SandboxError


@dataclass(frozen=True)
class Claim:
    """A locked directory: its descriptor, and which directories were made for it (deepest first)."""

    descriptor: int
    made: list[str]


@contextmanager
def claimed(directory: Path) -> Iterator[Claim]:
    """Make the directory where it is missing, and hold its lock inside the block.

    Raises:
        SandboxError: it cannot be made or opened.
    """
    try:
        claim = _claim(directory)
    except OSError as error:
        raise SandboxError(f"{error.filename}: {error.strerror}; give another directory with --dir") from error
    try:
        yield claim
    finally:
        os.close(claim.descriptor)


def _claim(directory: Path) -> Claim:
    """Make, open and lock; again from the start when another command removed the directory in between."""
    while True:
        try:
            made = _make(directory)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if directory.exists() and os.path.samestat(directory.stat(), os.fstat(descriptor)):
            return Claim(descriptor, made)
        os.close(descriptor)


def _make(directory: Path) -> list[str]:
    """Make the directory and those above it; return the made ones, the deepest first."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o755, exist_ok=True)
    return [str(path) for path in missing]
