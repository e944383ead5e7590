"""Tests of the choice of free ports, and of the machine's limits for many clusters."""

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensile.sandbox import processes
from tensile.sandbox.state import LOOPBACK


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which a server listens."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, processes.choose([1])[0][0]))
        listener.listen()
        yield listener.getsockname()[1]


def bindable(port: int) -> bool:
    """Report whether no server listens on the port."""
    with socket.socket() as listener:
        return listener.connect_ex((LOOPBACK, port)) != 0


def test_each_request_gets_consecutive_ports() -> None:
    """Each run has the requested length and no gaps."""
    runs = processes.choose([6, 1, 10])
    assert [len(run) for run in runs] == [6, 1, 10]
    assert all(list(run) == list(range(run[0], run[0] + len(run))) for run in runs)


def test_no_port_is_assigned_twice() -> None:
    """The ports of thirty clusters that are chosen together are all different."""
    chosen = [port for run in processes.choose([6] * 30) for port in run]
    assert len(set(chosen)) == 180


def test_chosen_ports_are_free() -> None:
    """The choice itself does not keep a port in use."""
    (run,) = processes.choose([8])
    assert all(map(bindable, run))
    for port in run:
        with socket.socket() as listener:
            listener.bind((LOOPBACK, port))


def test_a_used_port_is_skipped(taken: int) -> None:
    """A run of ports with one used port does not count as free."""
    assert not any(taken in run for run in processes.choose([6] * 100))


def test_ports_are_outside_the_range_of_outgoing_connections() -> None:
    """A server that is down for a second does not lose its port to an outgoing connection."""
    first = int(processes.KERNEL_RANGE.read_text().split()[0])
    last = processes.highest(processes.KERNEL_RANGE.read_text())
    assert all(processes.LOWEST <= port <= last for run in processes.choose([6] * 20) for port in run)
    assert last < first or first <= processes.LOWEST + 1000


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("32768\t60999\n", 32767),
        ("20000 60999", 19999),
        ("49152 65535", 32767),
        ("1024 65535", 32767),
        ("15500 65535", 32767),
    ],
)
def test_the_range_ends_below_the_kernels_range(kernel: str, expected: int) -> None:
    """If the kernel leaves fewer than a thousand ports, the default range is used nevertheless."""
    assert processes.highest(kernel) == expected


def test_clusters_within_the_inotify_limit_give_no_warning() -> None:
    """Nine clusters need 117 instances and fit into the usual limit of 128."""
    assert processes.inotify_shortage(9, 11, 128) == ""


def test_too_many_clusters_for_the_inotify_limit_are_reported() -> None:
    """The error has the figures, a sufficient command, and the possible number of clusters."""
    warning = processes.inotify_shortage(13, 20, 128)
    assert warning == (
        "13 clusters need 169 inotify instances, and 20 of the 128 of this user are used: raise the limit with "
        "`sudo sysctl fs.inotify.max_user_instances=378`, or use --lowers 7 or less"
    )
    assert processes.inotify_shortage(8, 20, 128) == ""
    assert processes.inotify_shortage(9, 20, 128) != ""
    assert processes.inotify_shortage(13, 20, 378) == ""
    assert processes.inotify_shortage(3, 119, 128).endswith(", or stop other sandboxes and programs that watch files")


def test_inotify_instances_of_this_user_are_counted() -> None:
    """A new instance increases the count until it is closed."""
    libc = ctypes.CDLL(None, use_errno=True)
    own, kind = Path("/proc/self/fd"), "anon_inode:inotify"
    before = processes._links(own).count(kind)
    descriptor = libc.inotify_init1(0)
    assert descriptor >= 0
    try:
        assert processes._links(own).count(kind) == before + 1
        assert processes.inotify_used() > before
    finally:
        os.close(descriptor)
    assert processes._links(own).count(kind) == before


def test_available_memory_is_measured_in_mib() -> None:
    """It is more than this test needs, and less than a petabyte."""
    assert 10 < processes.available_memory() < 1 << 30
