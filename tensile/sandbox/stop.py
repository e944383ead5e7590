"""Ends a sandbox and removes its files, and nothing else.

Apiservers go before etcd and by SIGKILL: asked politely, an apiserver waits a minute for open watches, and without its
etcd it does not end at all. Only names that the sandbox wrote down as its own are removed.

What of a real node outlives its processes: cgroups until they are removed, its network device for a moment.

Both carry the sandbox's identity in their names, so that nobody else's are touched. The cgroups lie under one name in
every hierarchy that the machine has mounted. The device goes by itself when the kernel has come to it; `down` waits for
that, since the machine is as before only then.

Cleans up after a start that was killed.

A small process that waits for the end of a pipe whose other end only the starting process has. The kernel closes it
however that process ends, by SIGKILL too; unless its last word was that the sandbox shall stay, everything is ended
and removed. A program that is just being started holds the pipe as well, until it carries the sandbox's identity: none
slips through. Until the start is over the guard shares the lock of the directory.
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
from tensile.sandbox.layout import SandboxError
from tensile.sandbox.state import FILE, NEW_FILE, Process, State, claimed, load

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


APISERVER = "kube-apiserver"


def end(directory: Path) -> list[str] | None:
    """Tear down what is in the directory, once nobody else works on it.

    Returns:
        The names that were not ours and stay; None when there is no sandbox.
    """
    if load(directory) is None:
        return None
    with claimed(directory):
        state = load(directory)
        return None if state is None else tear_down(directory, state)


def tear_down(directory: Path, state: State) -> list[str]:
    """End the processes, remove the files; return the names in the directory that were not ours and stay."""
    end_processes(state)
    remove_entries(directory, [*state.entries, NEW_FILE, FILE])
    return remove_made(directory, state.made)


def end_processes(state: State) -> None:
    """End all processes, and clear away what the kernel keeps of a real node."""
    processes.end_all(state.identity, apiservers(state))
    if state.options.real_node:
        clear(state.identity)


def apiservers(state: State) -> list[Process]:
    """Return the apiservers' processes."""
    every = [cluster.processes.get(APISERVER) for cluster in state.clusters.values()]
    return [process for process in every if process is not None]


def remove_entries(directory: Path, entries: Sequence[str]) -> None:
    """Remove these files and folders of the directory; the state goes last, so that a killed removal can go on."""
    for entry in entries:
        path = directory / entry
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove_made(directory: Path, made: Sequence[str]) -> list[str]:
    """Remove the directories that were made for the sandbox, deepest first, as far as they are empty."""
    left = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    for path in map(Path, made):
        try:
            path.rmdir()
        except OSError:
            break
    return left


KEEP = b"keep"
STARTED = b"started"
PACKAGE_ROOT = Path(__file__).parents[2]


class Guard:
    """The starting process's side; made by `begin`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def started(self) -> None:
        """Say that the start is over: others may work on the directory now, the guard goes on waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(STARTED)
        self._process.stdin.flush()

    def release(self) -> None:
        """Say that there is nothing to clean up any more, and wait until the guard has gone."""
        self._process.communicate(KEEP)

    def fire(self) -> None:
        """Have everything ended and removed now, and wait until it is."""
        self._process.communicate()


def begin(directory: Path, identity: str, made: Sequence[str], lock: int) -> Guard:
    """Start a guard of that sandbox; `lock` is the descriptor that locks its directory."""
    arguments = [str(directory), identity, str(lock), *made]
    process = subprocess.Popen(
        [sys.executable, "-m", "tensile.sandbox.stop", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        pass_fds=(lock,),
        start_new_session=True,
    )
    return Guard(process)


@contextlib.contextmanager
def unless_done(guard: Guard, *, bound: bool) -> Iterator[None]:
    """Guard the block: an error in it cleans up; after it the guard goes, or stays for as long as this process."""
    try:
        yield
    except BaseException:
        guard.fire()
        raise
    if bound:
        guard.started()
    else:
        guard.release()


def clean(directory: Path, identity: str, made: Sequence[str]) -> None:
    """End and remove the sandbox of that identity, however far its start came."""
    found = state.load(directory)
    if found is not None and found.identity == identity:
        tear_down(directory, found)
        return
    processes.end_all(identity)
    remove_made(directory, made)


def watch(directory: Path, identity: str, lock: int, made: Sequence[str]) -> None:
    """Wait for the other side's end, or for its word that all is well."""
    word = os.read(0, len(STARTED))
    if word == STARTED:
        os.close(lock)
        if os.read(0, len(KEEP)) != KEEP and directory.exists():
            with claimed(directory) as claim:
                clean(directory, identity, claim.made)
    elif word != KEEP:
        clean(directory, identity, made)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
