"""What of a real node outlives its processes: cgroups until they are removed, its network device for a moment.

Both carry the sandbox's identity in their names, so that nobody else's are touched. The cgroups lie under one name in
every hierarchy that the machine has mounted. The device goes by itself when the kernel has come to it; `down` waits for
that, since the machine is as before only then.
"""

import errno
import time
from pathlib import Path

from tensile.sandbox.errors import SandboxError

CGROUPS = Path("/sys/fs/cgroup")
DEVICES = Path("/sys/class/net")
LIMIT = 20.0
PAUSE = 0.02
NAME_LENGTH = 10


def cgroup(identity: str) -> str:
    """Name the cgroup above all of that sandbox's."""
    return f"tensile-{identity}"


def device(identity: str) -> str:
    """Name the machine's network device that leads to the node of that sandbox; the kernel takes 15 characters."""
    return f"tk{identity[:NAME_LENGTH]}"


def clear(identity: str, cgroups: Path = CGROUPS, devices: Path = DEVICES, limit: float = LIMIT) -> None:
    """Remove the sandbox's cgroups, and return when its device is gone.

    Raises:
        SandboxError: a process was still in a cgroup, or the device there, after `limit` seconds.
    """
    end = time.monotonic() + limit
    for top in (cgroups / cgroup(identity), *cgroups.glob(f"*/{cgroup(identity)}")):
        folders = [top, *(path for path in top.rglob("*") if path.is_dir())]
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            _remove(folder, end)
    while (devices / device(identity)).exists():
        if time.monotonic() > end:
            raise SandboxError(f"network device {device(identity)} is still there; `ip link delete` removes it")
        time.sleep(PAUSE)


def _remove(folder: Path, end: float) -> None:
    """Remove one that is empty, or soon will be: its last process may still be on its way out."""
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise SandboxError(f"cgroup {folder} cannot be removed: {error.strerror}") from error
        time.sleep(PAUSE)
