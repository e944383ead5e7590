"""What a machine must allow before it can have a real node, found out without changing anything on it.

A node needs rights that many machines do not give (containers, continuous integration), and each of them fails later
in words of its own that tell nobody what to do; so all of it is asked first.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensile.sandbox import runtime

CGROUPS = Path("/sys/fs/cgroup")
FILE_SYSTEMS = Path("/proc/filesystems")
COVERED = tuple(map(Path, ("/run", "/var/run", "/var/lib", "/var/log")))
"""Folders that a node has for itself: what lies in them on the machine is not there for it."""
TRY = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({flags}) != 0)"
NAMESPACES = 0x00020000 | 0x20000000 | 0x40000000 | 0x04000000 | 0x08000000
"""Mount, process, network, host name and IPC namespaces, as the kernel numbers them."""


def obstacle(used: Sequence[Path], environ: Mapping[str, str], user: int | None = None) -> str:
    """Say why there can be no real node here, "" when there can.

    Args:
        used: the folders that the node has to see: the sandbox's and the cache of programs.
        environ: where programs are found.
        user: the number of the user who asks; None: of this process.
    """
    if (os.geteuid() if user is None else user) != 0:
        return "it needs root, for namespaces, mounts and cgroups"
    return _kernel() or _folders(used) or runtime.obstacle(environ)


def _kernel() -> str:
    """Say what the kernel, or whoever confines this process, does not give."""
    if not can_unshare(NAMESPACES):
        return "this process may not make namespaces; a container needs to be privileged for that"
    if "overlay" not in FILE_SYSTEMS.read_text().split():
        return "the kernel has no overlay file system; load its module `overlay`"
    return cgroups(CGROUPS)


def cgroups(root: Path) -> str:
    """Say why no cgroup can be made in any of the hierarchies at the root, "" when it can be."""
    folders = [root] if (root / "cgroup.procs").exists() else [path for path in root.glob("*") if path.is_dir()]
    if not folders:
        return f"no cgroups are mounted at {root}"
    closed = [str(path) for path in folders if not os.access(path, os.W_OK)]
    return f"{closed[0]} cannot be written; a container needs to be privileged for that" if closed else ""


def can_unshare(flags: int) -> bool:
    """Tell whether a process may leave these namespaces; a child tries it, and ends."""
    return subprocess.run([sys.executable, "-c", TRY.format(flags=flags)], check=False).returncode == 0


def _folders(used: Sequence[Path]) -> str:
    """Say which folder the node would not see."""
    for path in used:
        for covered in COVERED:
            if path.resolve().is_relative_to(covered.resolve()):
                return (
                    f"{path} is in {covered}, which a node has for itself; choose another with --dir or $XDG_CACHE_HOME"
                )
    return ""
