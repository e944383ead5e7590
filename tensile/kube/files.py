"""Small files that others may write or swap: read whole in bounded time.

A path in a kubeconfig can lead to a pipe that nobody writes, to a device, or to a file without end, so only regular
files are opened, and only so much is read.
"""

import os
import stat
from pathlib import Path

from tensile.errors import AccessError
from tensile.kube.wording import shown

_LONGEST_PATH = 200
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_small(path: str | Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; raises AccessError for anything else."""
    name = shown(path, _LONGEST_PATH)
    try:
        _demand_regular(Path(path).stat(), name)
        descriptor = os.open(path, _FLAGS)
        with os.fdopen(descriptor, "rb") as file:
            _demand_regular(os.fstat(descriptor), name)
            found = file.read(most + 1) or b""
    except OSError as error:
        raise AccessError(f"{name}: cannot be read ({error.strerror})", "check the path and its permissions") from None
    except ValueError:
        raise AccessError(f"{name}: cannot be read (no path has a zero byte)", "correct it") from None
    if len(found) > most:
        raise AccessError(f"{name}: larger than {most} bytes", "look whether it is the right file")
    return found


def _demand_regular(found: os.stat_result, name: str) -> None:
    """Refuse pipes, devices, sockets and folders, which are not even opened: some devices act on that."""
    if not stat.S_ISREG(found.st_mode):
        raise AccessError(f"{name}: not a file", "name a regular file")
