"""A port to listen on, for every server of the engine alike.

In one place so that an address means the same to each of them: `::` is every address of IPv6 and of IPv4. A Service of
a cluster with both leads to whichever of the pod's addresses comes first there, which nobody knows when it is written.

Takes connections on a listening socket, each through a door, for servers that have to choose whom they serve.

How many files and connections this process may have open at a time, and for how many lower clusters that is enough.

A lower cluster takes a connection for each kind that is watched. Shells and service managers give a program 1,024
descriptors, and let it have far more where it asks. Where even that is too few, the first lowers of the topology are
served and the others wait: descriptors that all share out would leave every one half read.

What is left beyond that is for bursts: more calls to a cluster at one time, and more streams of users. Each has a part
of it, so that none takes what another rests on.

Jobs that are done again until they succeed, by tenacity, and tasks of the engine that outlive their defects.

A defect in a task is told, and costs a moment instead of what the task was for.
"""

import asyncio
import errno
import os
import resource
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import structlog
import tenacity

from tensile.errors import PortTaken, TensileError, described
from tensile.kube.limits import Seldom
from tensile.kube.listener_limits import Door, Guest

_BACKLOG = 1024
"""Connections that the kernel holds until they are accepted: beyond it, callers wait for a second or more."""


def listening(bind: str | None, port: int) -> socket.socket:
    """Listen on an IP address (None: on every address of this machine) and a TCP port, 0 for any free one.

    Gives a socket that does not block, to be closed by the caller. Raises OSError with the system's number and words;
    of every address of both families none is had where the port is taken in one.
    """
    both = socket.has_dualstack_ipv6()
    address = bind or ("::" if both else "0.0.0.0")  # noqa: S104 - it is what None means
    is_v6 = ":" in address
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    try:
        opened = socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both and is_v6)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None
    opened.setblocking(False)
    return opened


def keep_alive(made: socket.socket, *, idle: int, interval: int, count: int) -> None:
    """Have the kernel ask whether the other side is still there, also when nothing is sent.

    It asks after `idle` seconds, then `count` times every `interval` seconds, and ends the connection.
    """
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", count)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def refusal(error: OSError, words: str) -> TensileError:
    """Make of what `listening` raised an error for people, which says by its type whether somebody has the port."""
    return PortTaken(words) if error.errno == errno.EADDRINUSE else TensileError(words)


def place(bind: str | None, port: int) -> str:
    """Write where a server listens, or would, as in a URL; * for every address."""
    host = f"[{bind}]" if bind and ":" in bind else bind or "*"
    return f"{host}:{port}"


_OUT_OF_RESOURCES_SECONDS = 0.2
_AT_ONCE = 64
"""Connections that are taken in one turn of the event loop: at one a turn, a flood leaves no place in the row."""

Serve = Callable[[socket.socket, Guest], object]
"""Begins to serve a connection, and closes it in the end; sets the guest's `drop`, and has the guest leave."""


async def accept(listening: socket.socket, door: Door, serve: Serve, failed: Callable[[OSError], object]) -> None:
    """Take connections until it is cancelled.

    Those that get no place are closed. `failed` hears of connections that cannot be taken, as for want of descriptors:
    then a guest that is late makes room.
    """
    while True:
        try:
            await _take_in(await asyncio.get_running_loop().sock_accept(listening), door, serve)
            await _take_in_more(listening, door, serve)
        except OSError as error:
            door.displace()
            failed(error)
            await asyncio.sleep(_OUT_OF_RESOURCES_SECONDS)


async def _take_in_more(listening: socket.socket, door: Door, serve: Serve) -> None:
    """Take the connections that are there besides."""
    for _ in range(_AT_ONCE):
        try:
            accepted = listening.accept()
        except BlockingIOError:
            return
        accepted[0].setblocking(False)
        await _take_in(accepted, door, serve)


async def _take_in(accepted: tuple[socket.socket, tuple[str, int]], door: Door, serve: Serve) -> None:
    """Have a connection served as soon as there is room for it, or close it."""
    connection, (host, *_) = accepted
    guest = None
    try:
        guest = await door.enter(host)
    finally:
        if guest is None:
            connection.close()
    if guest is not None:
        serve(connection, guest)


async def take_over(connection: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.Transport:
    """Have the event loop speak a protocol on a connection that was accepted.

    Whoever cancels this has the connection closed: uvloop would leave it open, in the one turn that it takes.
    """
    taking = asyncio.ensure_future(asyncio.get_running_loop().connect_accepted_socket(protocol, connection))
    try:
        transport, _ = await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(_abort)
        raise
    return transport


def _abort(taken: asyncio.Future[tuple[asyncio.Transport, Any]]) -> None:
    if not taken.cancelled() and taken.exception() is None:
        taken.result()[0].abort()


EACH = 25
"""Descriptors of one lower: at most 19 watches of its own, one of the upper's pods, its port, three calls at once, and
the connection on which it is asked who it is."""
OWN = 100
"""Descriptors of files (22), of the upper cluster (20 watches, eight connections of calls), and of those who call."""
_CALLS, _UPPER_CALLS, _STREAMS, _WAITING = 3, 7, 8, 8
_MOST_CALLS, _MOST_UPPER_CALLS = 32, 64


class Shortage(NamedTuple):
    """Too few descriptors: how many there are and are needed, and how to have more."""

    what: str
    advice: str


class Parts(NamedTuple):
    """How much each may take: calls at one time to a lower cluster and to the upper one, streams, and callers.

    Of callers those who have not said yet who they are. Streams and callers may be fewer, for another reason.
    """

    calls: int
    upper_calls: int
    streams: int
    waiting: int


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def soft_limit() -> int | None:
    """Return how many files this process may have open now, None for no limit."""
    return _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hard_limit() -> int | None:
    """Return how many files this process may have open after `raise_limit`, None for no limit."""
    return _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def missing(lowers: int, most: int | None) -> Shortage | None:
    """Return why so many lower clusters are too many for `most` descriptors, None where they are not."""
    needed = OWN + EACH * lowers
    if most is None or needed <= most:
        return None
    return Shortage(
        f"this process may open {most} files and connections, and {lowers} lower clusters need {needed}",
        f"raise the hard limit (LimitNOFILE of a systemd service, ulimit -Hn {needed} of a shell)",
    )


def shortage(lowers: int, most: int | None) -> str:
    """Return the same as one sentence, "" for enough."""
    found = missing(lowers, most)
    return ": ".join(found) if found else ""


def parts(lowers: int, most: int | None) -> Parts:
    """Share out `most` descriptors (None: any number) where so many lower clusters are in the topology.

    A stream takes two. What is left over then is for the ports at which apiservers and schedulers call.
    """
    spare = sys.maxsize if most is None else max(0, most - OWN - EACH * lowers)
    return Parts(
        calls=min(_MOST_CALLS, _CALLS + spare // 8 // max(lowers, 1)),
        upper_calls=min(_MOST_UPPER_CALLS, _UPPER_CALLS + spare // 16),
        streams=_STREAMS + spare // 4,
        waiting=_WAITING + spare // 16,
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


Pause = Callable[[], float]
"""Says how many seconds to wait before the next try."""
Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")
_PAUSE = 1.0
_log = structlog.get_logger("tensile.kube.net")


def supervised(
    what: str,
    job: Callable[[], Awaitable[None]],
    pause: Pause = lambda: _PAUSE,
    *,
    sleep: Sleep = asyncio.sleep,
    **where: str,
) -> asyncio.Task[None]:
    """Run a job in a task of its own until it returns; one that raises is told as `what` and begun again.

    A defect of one sort is told once a minute, with `where`.
    """
    seldom = Seldom(asyncio.get_running_loop().time)

    def tell(error: Exception) -> None:
        words = "a task failed and is started again: please report this"
        said = {**where, "task": what, "error": described(error)}
        seldom.tell(type(error).__name__, lambda more: _log.error(words, **said, **more))

    return asyncio.create_task(insist(job, Exception, pause, tell, sleep=sleep))


async def insist(
    job: Callable[[], Awaitable[T]],
    on: type[Exception],
    pause: Pause,
    tell: Callable[[Any], None] = lambda _: None,
    *,
    unless: tuple[type[Exception], ...] = (),
    sleep: Sleep = asyncio.sleep,
) -> T:
    """Do a job until it raises nothing that is `on`, or what is `unless`, and return what it returns.

    Each error before that is told, and waited after.
    """

    async def attempt() -> T:
        return await job()

    def before_sleep(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None, "it failed"
        tell(state.outcome.exception())

    wanted = tenacity.retry_if_exception_type(on) & tenacity.retry_if_not_exception_type(unless)
    retrying = tenacity.AsyncRetrying(retry=wanted, wait=lambda _: pause(), before_sleep=before_sleep, sleep=sleep)
    return await retrying(attempt)
