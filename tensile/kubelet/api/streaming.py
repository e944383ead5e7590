"""The streams of exec, attach, port-forward and logs, between a caller of the kubelet API and a lower apiserver.

Upgraded streams are spliced without being parsed. Before the lower's 101, nothing of the caller is passed on, and only
an error is returned (a tunnel that opened before the other side agreed was CVE-2018-1002105). After it, bytes are
copied both ways; SPDY or WebSocket is between kubectl and the container's kubelet.
"""

import asyncio
from contextlib import aclosing, suppress
from http import HTTPStatus

from tensile.kube.net import cancel_and_wait
from tensile.kubelet.api.connection import ConnectionLimits, TLSConnection
from tensile.kubelet.api.http import PLAIN, LowerExchange, ServerExchange, while_connected
from tensile.kubelet.api.requests import upgrade_response_headers


class ActivityClock:
    """The time at which bytes last passed, in either direction."""

    def __init__(self) -> None:
        self.record()

    def record(self) -> None:
        """Record that bytes pass now."""
        self._last = asyncio.get_running_loop().time()

    async def wait_until_idle(self, seconds: float) -> None:
        """Wait until no bytes have passed for this long."""
        while (rest := self._last + seconds - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110 - the clock
            await asyncio.sleep(rest)


async def tunnel(caller: ServerExchange, exchange: LowerExchange, limits: ConnectionLimits) -> None:
    """Carry an upgraded stream to its end; raise HTTPError when the lower does not agree to it."""
    async with aclosing(exchange):
        headers = await while_connected(caller.wire, exchange.answer(HTTPStatus.SWITCHING_PROTOCOLS))
        await caller.switch(upgrade_response_headers(headers))
        await splice(caller.release(), exchange.release(), limits)


async def splice(upper: TLSConnection, lower: TLSConnection, limits: ConnectionLimits) -> None:
    """Copy both ways until one side ends, then end the other within `leaving` seconds once it has received all.

    What the lower sent before its end reaches the caller, however slowly that reads. What the caller sent before it
    left is offered to the lower for half of `leaving`. A stream without traffic for `idle` seconds ends too. A lower
    that reads nothing keeps no connection open, since its caller is gone.
    """
    activity = ActivityClock()
    downwards = asyncio.create_task(_copy(upper, lower, activity))
    upwards = asyncio.create_task(_copy(lower, upper, activity))
    ends = {asyncio.create_task(upper.wait_for_peer_end()), asyncio.create_task(activity.wait_until_idle(limits.idle))}
    tasks = {downwards, upwards, *ends}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if _failed(downwards):
            await asyncio.wait({upwards, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if not upwards.done() or _failed(upwards):
            await asyncio.wait({downwards}, timeout=limits.leaving / 2)
    finally:
        await cancel_and_wait(*tasks)
    await asyncio.gather(upper.close(), _close(lower, limits.leaving))


async def _close(wire: TLSConnection, seconds: float) -> None:
    """Close a connection within so many seconds, whatever its peer does."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wire.close()
    wire.abort()


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and task.exception() is not None


async def _copy(source: TLSConnection, sink: TLSConnection, activity: ActivityClock) -> None:
    while data := await source.read():
        activity.record()
        await sink.write(data)


async def follow(caller: ServerExchange, exchange: LowerExchange) -> None:
    """Answer with the lower's log; raise HTTPError if there is none, an error of the connection if it breaks off."""
    async with aclosing(exchange):
        await while_connected(caller.wire, _relay(caller, exchange), dropping=True)


async def _relay(caller: ServerExchange, exchange: LowerExchange) -> None:
    await exchange.answer(HTTPStatus.OK)
    await caller.begin(HTTPStatus.OK, (("content-type", PLAIN), ("transfer-encoding", "chunked")))
    async for piece in exchange.pieces():
        await caller.piece(piece)
    await caller.end()
