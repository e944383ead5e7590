"""Ends a sandbox and deletes its files, and no others; also the guard process that does so after a killed start.

Apiservers are killed before etcd, with SIGKILL: after SIGTERM an apiserver waits a minute for open watches, and without
etcd it does not end at all. Only names that the sandbox recorded as its own are deleted.

A real node's cgroups and network device outlive its processes. Their names contain the sandbox's identity, so those of
others are never touched. The cgroup has the same name in every mounted hierarchy. The kernel deletes the device by
itself after a moment; `down` waits for that.

The guard waits for the end of a pipe whose write end only the starting process holds. The kernel closes it however that
process ends, also by SIGKILL. Unless the last message was to keep the sandbox, the guard ends and deletes it. A child
process holds the pipe too until its exec sets the sandbox's identity, so none is missed. Until the start is over, the
guard shares the directory's lock.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensile.sandbox import processes, state
from tensile.sandbox.state import FILE, NEW_FILE, Process, SandboxError, State, claimed, load

APISERVER = "kube-apiserver"
KEEP = b"keep"
STARTED = b"started"
PACKAGE_ROOT = Path(__file__).parents[2]
CGROUPS = Path("/sys/fs/cgroup")
DEVICES = Path("/sys/class/net")
LIMIT = 20.0
PAUSE = 0.02
NAME_LENGTH = 10


def end(directory: Path) -> list[str] | None:
    """Tear down the sandbox in a directory, after waiting for the directory's lock.

    Returns:
        The names of other files in the directory, which stay; None if there is no sandbox.
    """
    if load(directory) is None:
        return None
    with claimed(directory):
        state = load(directory)
        return None if state is None else tear_down(directory, state)


def tear_down(directory: Path, state: State) -> list[str]:
    """End the processes and delete the files, and return the names of other files in the directory, which stay."""
    end_processes(state)
    remove_entries(directory, [*state.entries, NEW_FILE, FILE])
    return remove_created(directory, state.made)


def end_processes(state: State) -> None:
    """End all processes, and delete what the kernel keeps of a real node."""
    processes.end_all(state.identity, apiservers(state))
    if state.options.real_node:
        clear(state.identity)


def apiservers(state: State) -> list[Process]:
    """Return the processes of the apiservers."""
    found = [cluster.processes.get(APISERVER) for cluster in state.clusters.values()]
    return [process for process in found if process is not None]


def remove_entries(directory: Path, entries: Sequence[str]) -> None:
    """Delete files and folders of the directory, in the given order.

    The state file has to be the last one, so that a deletion that was killed can be resumed.
    """
    for entry in entries:
        path = directory / entry
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove_created(directory: Path, created: Sequence[str]) -> list[str]:
    """Delete the directories that were created for the sandbox, deepest first, until one is not empty.

    Returns the names of other files in the sandbox's directory.
    """
    remaining = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    for path in map(Path, created):
        try:
            path.rmdir()
        except OSError:
            break
    return remaining


class CleanupGuard:
    """The starting process's handle of its guard; created by `begin`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def started(self) -> None:
        """Report that the start is over: the guard releases the directory's lock, and goes on waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(STARTED)
        self._process.stdin.flush()

    def release(self) -> None:
        """Report that no cleanup is needed any more, and wait until the guard has ended."""
        self._process.communicate(KEEP)

    def fire(self) -> None:
        """Make the guard end and delete the sandbox now, and wait for it."""
        self._process.communicate()


def begin(directory: Path, identity: str, created: Sequence[str], lock: int) -> CleanupGuard:
    """Start a guard of a sandbox; `lock` is the file descriptor that locks its directory."""
    arguments = [str(directory), identity, str(lock), *created]
    process = subprocess.Popen(
        [sys.executable, "-m", "tensile.sandbox.stop", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        pass_fds=(lock,),
        start_new_session=True,
    )
    return CleanupGuard(process)


@contextlib.contextmanager
def cleanup_on_failure(guard: CleanupGuard, *, bound: bool) -> Iterator[None]:
    """Guard the block: if it fails, the guard cleans up.

    Afterwards the guard ends, or with `bound` lives as long as this process.
    """
    try:
        yield
    except BaseException:
        guard.fire()
        raise
    if bound:
        guard.started()
    else:
        guard.release()


def clean(directory: Path, identity: str, created: Sequence[str]) -> None:
    """End and delete the sandbox of that identity, at whatever point its start ended."""
    found = state.load(directory)
    if found is not None and found.identity == identity:
        tear_down(directory, found)
        return
    processes.end_all(identity)
    remove_created(directory, created)


def watch(directory: Path, identity: str, lock: int, created: Sequence[str]) -> None:
    """Wait until the starting process ends or reports success, and clean up if it failed."""
    message = os.read(0, len(STARTED))
    if message == STARTED:
        os.close(lock)
        if os.read(0, len(KEEP)) != KEEP and directory.exists():
            with claimed(directory) as claim:
                clean(directory, identity, claim.created)
    elif message != KEEP:
        clean(directory, identity, created)


def cgroup(identity: str) -> str:
    """Return the name of the cgroup that contains all others of a sandbox."""
    return f"tensile-{identity}"


def device(identity: str) -> str:
    """Return the name of the network device that leads to a sandbox's node; the kernel allows 15 characters."""
    return f"tk{identity[:NAME_LENGTH]}"


def clear(identity: str, cgroups: Path = CGROUPS, devices: Path = DEVICES, limit: float = LIMIT) -> None:
    """Delete the sandbox's cgroups, and wait until its network device is gone.

    Raises:
        SandboxError: after `limit` seconds a cgroup still had a process, or the device still existed.
    """
    end = time.monotonic() + limit
    for top in (cgroups / cgroup(identity), *cgroups.glob(f"*/{cgroup(identity)}")):
        folders = [top, *(path for path in top.rglob("*") if path.is_dir())]
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            _remove(folder, end)
    while (devices / device(identity)).exists():
        if time.monotonic() > end:
            raise SandboxError(f"network device {device(identity)} still exists; remove it with `ip link delete`")
        time.sleep(PAUSE)


def _remove(folder: Path, end: float) -> None:
    """Delete an empty cgroup; retries while its last process is still ending."""
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise SandboxError(f"cgroup {folder} cannot be removed: {error.strerror}") from error
        time.sleep(PAUSE)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
