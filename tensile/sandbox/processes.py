"""Starts, watches and ends processes that outlive the one that started them; and chooses free ports.

Every process has the sandbox's identity in its environment, and passes it on to its children. The kernel exposes that
environment in /proc. So all processes of a sandbox are found even if their pids were not saved, and no process of
another program is mistaken for one of them.

Ports are chosen below the kernel's range for outgoing connections. A port in that range may become the local port of
any connection while its server is down, but a restarted apiserver must get its own port again. Another program may
still take a port before the server listens on it; the caller that starts the servers then retries.
"""

import os
import random
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tensile.sandbox.state import LOOPBACK, Process, SandboxError

MARK = "TENSILE_SANDBOX_ID"
PAUSE = 0.02
END_LIMIT = 30.0
GONE = "ZX"
STATE_FIELD = 0
THREADS_FIELD = 17
START_FIELD = 19
LOWEST = 15000
HIGHEST = 32767
TRIES = 200
INOTIFY_OF_A_CLUSTER = 13
"""Inotify instances: 6 of kube-apiserver, 6 of kube-controller-manager, 1 of kube-scheduler (counted)."""
INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
MEMORY = Path("/proc/meminfo")
KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def environment(identity: str, home: Path) -> dict[str, str]:
    """Return the environment of a sandbox's processes: of the user's variables, only the search path."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), MARK: identity}


def spawn(arguments: Sequence[str], variables: Mapping[str, str], output: Path) -> Process:
    """Start a program in a session of its own; its output is appended to the file.

    Raises:
        SandboxError: the program cannot be started.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), append, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        pid = os.posix_spawn(arguments[0], [*arguments], variables, file_actions=actions, setsid=True)
    except OSError as error:
        raise SandboxError(f"{arguments[0]} cannot be started: {error.strerror}") from error
    return Process(pid, start_time(pid) or 0, list(arguments), str(output))


def running(process: Process) -> bool:
    """Report whether a process is alive; a process stopped by SIGSTOP is alive, a zombie is not."""
    reap(process.pid)
    return start_time(process.pid) == process.started


def start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, None if it does not run.

    A process whose main thread has ended counts as running until its last thread ends: until then it holds its ports.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    has_ended = fields[STATE_FIELD] in GONE and int(fields[THREADS_FIELD]) <= 1
    return None if has_ended else int(fields[START_FIELD])


def reap(pid: int) -> None:
    """Collect the exit status of a process, if it is an ended child of this one."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def send(process: Process, signal_number: signal.Signals) -> None:
    """Send a signal, and after SIGKILL wait until the process has ended.

    Raises:
        SandboxError: it does not run, or does not end.
    """
    if not running(process):
        raise SandboxError(f"process {process.pid} ({Path(process.arguments[0]).name}) does not run")
    os.kill(process.pid, signal_number)
    if signal_number == signal.SIGKILL:
        _until_gone([process])


def marked(identity: str) -> list[int]:
    """Return the pids of all processes of a sandbox."""
    mark = f"{MARK}={identity}".encode()
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if mark in _variables(pid)]


def end_all(identity: str, first: Iterable[Process] = ()) -> None:
    """Kill every process of a sandbox, those in `first` before the others.

    Raises:
        SandboxError: some did not end within 30 s.
    """
    chosen = [process for process in first if running(process)]
    for process in chosen:
        _kill(process.pid)
    _until_gone(chosen)
    limit = time.monotonic() + END_LIMIT
    while remaining := _marked_twice(identity):
        if time.monotonic() > limit:
            raise SandboxError(f"processes {remaining} did not end after SIGKILL")
        for pid in remaining:
            _kill(pid)
        time.sleep(PAUSE)
        for pid in remaining:
            reap(pid)


def _marked_twice(identity: str) -> list[int]:
    """Return the pids of all processes of a sandbox; looks a second time before it returns none.

    The kernel shows no environment of a process during exec.
    """
    if pids := marked(identity):
        return pids
    time.sleep(PAUSE)
    return marked(identity)


def _until_gone(processes: Sequence[Process]) -> None:
    """Wait until killed processes have ended."""
    limit = time.monotonic() + END_LIMIT
    while any(running(process) for process in processes):
        if time.monotonic() > limit:
            raise SandboxError(f"processes {[one.pid for one in processes]} did not end after SIGKILL")
        time.sleep(PAUSE)


def _kill(pid: int) -> None:
    """Send SIGKILL; ignores a process that has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _variables(pid: int) -> list[bytes]:
    """Return the initial environment of a process; empty if it has ended or may not be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def inotify_shortage(clusters: int, used: int, limit: int) -> str:
    """Return why the limit of inotify instances is too low for so many clusters and what to do, "" if it is not."""
    needed = clusters * INOTIFY_OF_A_CLUSTER
    if used + needed <= limit:
        return ""
    possible = (limit - used) // INOTIFY_OF_A_CLUSTER - 1
    other = f"use --lowers {possible} or less" if possible > 0 else "stop other sandboxes and programs that watch files"
    return (
        f"{clusters} clusters need {needed} inotify instances, and {used} of the {limit} of this user are used: "
        f"raise the limit with `sudo sysctl fs.inotify.max_user_instances={2 * (used + needed)}`, "
        f"or {other}"
    )


def inotify_limit() -> int:
    """Return how many inotify instances a user may have; a large number where the kernel does not say."""
    return int(INOTIFY_LIMIT.read_text()) if INOTIFY_LIMIT.exists() else 1 << 30


def inotify_used() -> int:
    """Return how many inotify instances the visible processes of this user have."""
    own_processes = [
        entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _owner(entry) == os.getuid()
    ]
    return sum(link == "anon_inode:inotify" for entry in own_processes for link in _links(entry / "fd"))


def _owner(process: Path) -> int | None:
    """Return the user of a process, None if it has ended."""
    try:
        return process.stat().st_uid
    except OSError:
        return None


def _links(folder: Path) -> list[str]:
    """Return the targets of the links in a folder; those that are gone or not permitted are left out."""
    found: list[str] = []
    with suppress(OSError):
        for link in folder.iterdir():
            with suppress(OSError):
                found.append(str(link.readlink()))
    return found


def available_memory() -> int:
    """Return the memory that new processes can use without swapping, in MiB; 0 where the kernel does not say."""
    lines = MEMORY.read_text().splitlines() if MEMORY.exists() else []
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] // 1024 if found else 0


def choose(sizes: Sequence[int]) -> list[range]:
    """Return a range of free consecutive ports for each of the sizes; the ranges do not overlap.

    Raises:
        SandboxError: too few ports are free.
    """
    with ExitStack() as held:
        return [_run(size, held) for size in sizes]


def highest(kernel_range: str) -> int:
    """Return the last port below the kernel's range ("32768 60999"), or HIGHEST if that leaves too few."""
    first = int(kernel_range.split(maxsplit=1)[0])
    return min(HIGHEST, first - 1) if first > LOWEST + 1000 else HIGHEST


def _run(size: int, held: ExitStack) -> range:
    """Return one range of free consecutive ports, and hold it."""
    last = highest(KERNEL_RANGE.read_text()) if KERNEL_RANGE.exists() else HIGHEST
    for _ in range(TRIES):
        start = random.randint(LOWEST, last - size)  # noqa: S311  # not a secret
        ports = range(start, start + size)
        if _hold(ports, held):
            return ports
    raise SandboxError(
        f"no {size} consecutive free ports on {LOOPBACK} in {LOWEST}-{last}; stop programs that use them"
    )


def _hold(ports: range, held: ExitStack) -> bool:
    """Bind all ports of a range, so that they stay taken until the caller has chosen all ranges.

    Return whether all of them were free.
    """
    with ExitStack() as attempt:
        for port in ports:
            listener = attempt.enter_context(socket.socket())
            try:
                listener.bind((LOOPBACK, port))
            except OSError:
                return False
        held.push(attempt.pop_all())
    return True
