"""Files for private keys: Python's ssl reads a key and its certificate from a file only."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile


@contextmanager
def file_of(content: bytes) -> Iterator[str]:
    """Return the path of a file that holds `content` while the block runs, for a key that ssl reads from files only.

    On Linux it is in memory (memfd); elsewhere it is a temporary file that only this user can read.
    """
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("tensile-key", os.MFD_CLOEXEC), "wb") if in_memory else NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}" if in_memory else str(file.name)
