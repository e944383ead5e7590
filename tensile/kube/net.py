"""Listeners, the accept loop, the shares of file descriptors, and tasks: restarted after errors, cancelled, awaited.

All servers of the engine listen by the same rules: `::` is every IPv6 and IPv4 address. A dual-stack Service leads to
whichever of the pod's addresses comes first there, which is not known when the topology is written.

A lower cluster needs a connection for each watched kind. Shells and service managers limit a program to 1,024
descriptors, and allow far more on request. If even that is too few, the first lowers of the topology are served and the
others wait: divided among all, the descriptors would sync every lower only in part. The rest is split into parts for
bursts of calls and for streams, so that none of them uses up what another needs.

An error in a supervised task is logged, and the task is restarted.
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
from tensile.kube.limits import LogThrottle
from tensile.kube.listener_limits import ClientConnection, ConnectionLimiter

_BACKLOG = 1024
"""Connections that the kernel queues until they are accepted. Beyond it, clients wait for a second or more."""

_OUT_OF_RESOURCES_SECONDS = 0.2
_AT_ONCE = 64
"""Connections accepted in one turn of the event loop. With one per turn, a flood would fill the backlog."""

EACH = 25
"""Descriptors of one lower: at most 19 watches of its own, one of the upper's pods, its port, three concurrent calls,
and the connection of the identity probe."""
OWN = 100
"""Descriptors of files (22), of the upper cluster (20 watches, eight connections for calls), and of clients."""
_CALLS, _UPPER_CALLS, _STREAMS, _WAITING = 3, 7, 8, 8
_MOST_CALLS, _MOST_UPPER_CALLS = 32, 64
_PAUSE = 1.0
_PROBES = 3
_log = structlog.get_logger("tensile.kube.net")

Serve = Callable[[socket.socket, ClientConnection], object]
"""Starts to serve a connection, which it closes in the end. Sets `drop` of its ClientConnection, and calls `leave`."""
Pause = Callable[[], float]
"""Returns the seconds to wait before the next try."""
Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


class DescriptorShortage(NamedTuple):
    """Too few descriptors: how many exist and are needed, and how to get more."""

    what: str
    advice: str


class DescriptorShares(NamedTuple):
    """The shares of descriptors: concurrent calls to a lower cluster and to the upper one, streams, pending clients.

    Pending clients are those not yet authenticated. Other limits may allow fewer streams and clients.
    """

    calls: int
    upper_calls: int
    streams: int
    waiting: int


def listening(bind: str | None, port: int) -> socket.socket:
    """Listen on an IP address (None: every address of this machine) and a TCP port, 0 for any free one.

    Returns a non-blocking socket, which the caller closes. Raises OSError with the system's number and message. For
    every address of both families, it fails if the port is taken in one of them.
    """
    is_dual_stack = socket.has_dualstack_ipv6()
    address = bind or ("::" if is_dual_stack else "0.0.0.0")  # noqa: S104 - it is what None means
    is_v6 = ":" in address
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    try:
        sock = socket.create_server(
            (address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual_stack and is_v6
        )
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None
    sock.setblocking(False)
    return sock


def keep_alive(sock: socket.socket, *, idle: int, interval: int) -> None:
    """Enable TCP keep-alive, also while nothing is sent.

    The first probe is sent after `idle` seconds, the other two every `interval` seconds, then the connection ends.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def refusal(error: OSError, message: str) -> TensileError:
    """Return an error for users from what `listening` raised. Its type is PortTaken if the port is in use."""
    return PortTaken(message) if error.errno == errno.EADDRINUSE else TensileError(message)


def place(bind: str | None, port: int) -> str:
    """Format the address of a listener as in a URL, with * for every address."""
    host = f"[{bind}]" if bind and ":" in bind else bind or "*"
    return f"{host}:{port}"


async def accept(
    listening: socket.socket, limiter: ConnectionLimiter, serve: Serve, failed: Callable[[OSError], object]
) -> None:
    """Accept connections until cancelled.

    Connections without a free slot are closed. `failed` is called for connections that cannot be accepted, for example
    for lack of descriptors: an overdue connection is dropped then.
    """
    while True:
        try:
            await _serve_accepted(await asyncio.get_running_loop().sock_accept(listening), limiter, serve)
            await _accept_waiting(listening, limiter, serve)
        except OSError as error:
            limiter.displace()
            failed(error)
            await asyncio.sleep(_OUT_OF_RESOURCES_SECONDS)


async def _accept_waiting(listening: socket.socket, limiter: ConnectionLimiter, serve: Serve) -> None:
    """Accept the other connections that are waiting."""
    for _ in range(_AT_ONCE):
        try:
            accepted = listening.accept()
        except BlockingIOError:
            return
        accepted[0].setblocking(False)
        await _serve_accepted(accepted, limiter, serve)


async def _serve_accepted(
    accepted: tuple[socket.socket, tuple[str, int]], limiter: ConnectionLimiter, serve: Serve
) -> None:
    """Serve a connection once there is room for it, or close it."""
    sock, (host, *_) = accepted
    client = None
    try:
        client = await limiter.enter(host)
    finally:
        if client is None:
            sock.close()
    if client is not None:
        serve(sock, client)


async def take_over(connection: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.Transport:
    """Connect a protocol to an accepted connection.

    If this call is cancelled, the connection is closed: uvloop would leave it open, in the one turn that it takes.
    """
    connecting = asyncio.ensure_future(asyncio.get_running_loop().connect_accepted_socket(protocol, connection))
    try:
        transport, _ = await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_abort)
        raise
    return transport


def _abort(connecting: asyncio.Future[tuple[asyncio.Transport, Any]]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].abort()


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


def missing(lowers: int, most: int | None) -> DescriptorShortage | None:
    """Return why `most` descriptors are too few for so many lower clusters, None if they suffice."""
    needed = OWN + EACH * lowers
    if most is None or needed <= most:
        return None
    return DescriptorShortage(
        f"this process may open {most} files and connections, and {lowers} lower clusters need {needed}",
        f"raise the hard limit (LimitNOFILE of a systemd service, ulimit -Hn {needed} of a shell)",
    )


def shortage(lowers: int, most: int | None) -> str:
    """Return the same as one sentence, "" if they suffice."""
    found = missing(lowers, most)
    return ": ".join(found) if found else ""


def parts(lowers: int, most: int | None) -> DescriptorShares:
    """Divide `most` descriptors (None: any number) for a topology with so many lower clusters.

    A stream takes two. The rest is for the ports that apiservers and schedulers call.
    """
    spare = sys.maxsize if most is None else max(0, most - OWN - EACH * lowers)
    return DescriptorShares(
        calls=min(_MOST_CALLS, _CALLS + spare // 8 // max(lowers, 1)),
        upper_calls=min(_MOST_UPPER_CALLS, _UPPER_CALLS + spare // 16),
        streams=_STREAMS + spare // 4,
        waiting=_WAITING + spare // 16,
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def supervised(
    what: str,
    job: Callable[[], Awaitable[None]],
    pause: Pause = lambda: _PAUSE,
    *,
    sleep: Sleep = asyncio.sleep,
    **where: str,
) -> asyncio.Task[None]:
    """Run a job in a task of its own until it returns. If it raises, log that for `what` and restart it.

    An error of one type is logged once a minute, with the fields `where`.
    """
    throttle = LogThrottle(asyncio.get_running_loop().time)

    def log_error(error: Exception) -> None:
        message = "a task failed and was restarted (bug, please report)"
        fields = {**where, "task": what, "error": described(error)}
        throttle.log(type(error).__name__, lambda more: _log.error(message, **fields, **more))

    return asyncio.create_task(insist(job, Exception, pause, log_error, sleep=sleep))


async def insist(
    job: Callable[[], Awaitable[T]],
    on: type[Exception],
    pause: Pause,
    report: Callable[[Any], None] = lambda _: None,
    *,
    unless: tuple[type[Exception], ...] = (),
    sleep: Sleep = asyncio.sleep,
) -> T:
    """Repeat a job until it returns, or raises something other than `on`, or `unless`. Return its result.

    Each error before that is passed to `report`, followed by a pause.
    """

    async def attempt() -> T:
        return await job()

    def before_sleep(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None, "it failed"
        report(state.outcome.exception())

    wanted = tenacity.retry_if_exception_type(on) & tenacity.retry_if_not_exception_type(unless)
    retrying = tenacity.AsyncRetrying(retry=wanted, wait=lambda _: pause(), before_sleep=before_sleep, sleep=sleep)
    return await retrying(attempt)


async def cancel_and_wait(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait until they have ended. Their results and errors are ignored; None stands for no task."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
