"""Cleans up after a start that was killed.

A small process that waits for the end of a pipe whose other end only the starting process has. The kernel closes it
however that process ends, by SIGKILL too; unless its last word was that the sandbox shall stay, everything is ended
and removed. A program that is just being started holds the pipe as well, until it carries the sandbox's identity: none
slips through. Until the start is over the guard shares the lock of the directory.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensile.sandbox import processes, state, teardown
from tensile.sandbox.claim import claimed

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
        [sys.executable, "-m", "tensile.sandbox.guard", *arguments],
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
        teardown.tear_down(directory, found)
        return
    processes.end_all(identity)
    teardown.remove_made(directory, made)


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
