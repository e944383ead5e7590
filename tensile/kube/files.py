"""Small files that others may write or swap: read whole in bounded time.

A path in a kubeconfig can lead to a pipe that nobody writes, to a device, or to a file without end, so only regular
files are opened, and only so much is read.
"""

import errno
import os
import stat
from pathlib import Path

from tensile.errors import AccessError
from tensile.kube.wording import shown

LARGEST = 1 << 20
"""Bytes of a file of certificates, unless another limit is given."""
_LONGEST_PATH = 200
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Unfit(OSError):
    """What is no regular file, or larger than it may be; `advice` says what to do."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(errno.EINVAL, what)
        self.advice = advice


def read_small(path: str | Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; raises AccessError for anything else."""
    name = shown(path, _LONGEST_PATH)
    try:
        return read_regular(path, most)
    except Unfit as error:
        raise AccessError(f"{name}: {error.strerror}", error.advice) from None
    except OSError as error:
        raise AccessError(f"{name}: cannot be read ({error.strerror})", "check the path and its permissions") from None


def read_regular(path: str | Path, most: int = LARGEST) -> bytes:
    """Read a regular file of at most `most` bytes; raises OSError, and Unfit for anything else."""
    try:
        _demand_regular(Path(path).stat())
        descriptor = os.open(path, _FLAGS)
    except ValueError:
        raise Unfit("no path has a zero byte", "correct it") from None
    with os.fdopen(descriptor, "rb") as file:
        _demand_regular(os.fstat(descriptor))
        found = file.read(most + 1) or b""
    if len(found) > most:
        raise Unfit(f"larger than {most} bytes", "look whether it is the right file")
    return found


def _demand_regular(found: os.stat_result) -> None:
    """Refuse pipes, devices, sockets and folders, which are not even opened: some devices act on that."""
    if not stat.S_ISREG(found.st_mode):
        raise Unfit("not a file", "name a regular file")
