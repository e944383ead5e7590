"""exec, attach and port-forward: a stream between a caller and a lower apiserver, spliced without being understood.

The lower's 101 comes first: until then nothing of the caller's has gone down and nothing but an error comes up (a
tunnel that opens before the other side agreed was CVE-2018-1002105). After it, bytes are copied both ways as they
are; what they mean, SPDY or WebSocket, is between kubectl and the container's kubelet.
"""

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

from tensile.kubelet.api.dialogue import Caller
from tensile.kubelet.api.lower import LowerCall
from tensile.kubelet.api.presence import while_present
from tensile.kubelet.api.upgrades import answered
from tensile.kubelet.api.wire import Limits, Wire


async def tunnel(caller: Caller, call: LowerCall, limits: Limits) -> None:
    """Carry an upgraded stream to its end; Refused when the lower does not agree to it."""
    async with call:
        headers = await while_present(caller.wire, call.answer(HTTPStatus.SWITCHING_PROTOCOLS))
        await caller.switch(answered(headers))
        upper = Side(caller.wire, caller.early())
        await splice(upper, Side(call.wire, call.early()), limits)


class Side(NamedTuple):
    """One end of a stream, with what has already come from it."""

    wire: Wire
    early: bytes


class Pulse:
    """When bytes passed last, either way."""

    def __init__(self) -> None:
        self.beat()

    def beat(self) -> None:
        """Note that some pass now."""
        self._last = asyncio.get_running_loop().time()

    async def still(self, seconds: float) -> None:
        """Return when none have passed for so long."""
        while (rest := self._last + seconds - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110 - the clock
            await asyncio.sleep(rest)


async def splice(upper: Side, lower: Side, limits: Limits) -> None:
    """Copy both ways until one side ends, then end the other, within `leaving` seconds once it has all that is its own.

    What the lower sent before it ended reaches the caller, however slowly that reads; what the caller sent before it
    left is offered to the lower for half of `leaving`. A stream on which nothing passes for `idle` seconds ends too. A
    lower that reads nothing keeps no connection open: the caller whom that would serve is gone.
    """
    pulse = Pulse()
    down = asyncio.create_task(_copy(upper, lower.wire, pulse))
    up = asyncio.create_task(_copy(lower, upper.wire, pulse))
    over = {asyncio.create_task(upper.wire.hung_up()), asyncio.create_task(pulse.still(limits.idle))}
    tasks = {down, up, *over}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if _failed(down):
            await asyncio.wait({up, *over}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done() or _failed(up):
            await asyncio.wait({down}, timeout=limits.leaving / 2)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(upper.wire.close(), _close(lower.wire, limits.leaving))


async def _close(wire: Wire, seconds: float) -> None:
    """Close a connection, within so many seconds whatever its peer does."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wire.close()
    wire.abort()


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and task.exception() is not None


async def _copy(source: Side, sink: Wire, pulse: Pulse) -> None:
    data = source.early or await source.wire.read()
    while data:
        pulse.beat()
        await sink.write(data)
        data = await source.wire.read()
