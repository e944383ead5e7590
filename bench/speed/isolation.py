"""The effect of one lower cluster that hangs and another that answers two seconds late on a third lower cluster.

    .venv/bin/python -m bench.speed.isolation --pods 150 --rounds 5

Each lower cluster gets a Deployment of its own. Rounds without faults take turns with rounds in which the first
cluster's apiserver is stopped (it accepts connections and does not answer) and every byte to and from the second
cluster is delayed. The pods of the third cluster must be Ready as fast; afterwards everything must settle.
"""

import asyncio
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.faults.outage import APISERVER, load
from bench.kit.participants import wait_until_machine_idle
from bench.kit.trial import Trial, run
from bench.speed.makespan import all_ready, labelled
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

STOPPED, SLOW, WELL = "lower-a", "lower-b", "lower-c"
LATE = 2.0
SLOWER_AT_MOST = 1.05
SETTLED_IN = 180.0
CHUNK = 1 << 16


class DelayingProxy:
    """A proxy of an apiserver that delivers each byte `late` seconds after it arrived, until it is cut off."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self.late = 0.0
        self._parted = False
        self._address = (str(parts.hostname), int(parts.port or 443))
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Proxy one connection, in both directions."""
        near_end = asyncio.current_task()
        assert near_end is not None
        self._running.add(near_end)
        ends = [writer]
        try:
            if not self._parted:
                far_reader, far_writer = await asyncio.open_connection(*self._address)
                ends.append(far_writer)
                await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            for end in ends:
                end.transport.abort()
        finally:
            self._running.discard(near_end)
        if self._parted:
            writer.transport.abort()

    async def disconnect(self) -> None:
        """Break every connection, and each new one, until `restore`; the cluster itself continues."""
        self._parted = True
        await self.close()

    def restore(self) -> None:
        """Proxy connections again."""
        self._parted = False

    async def close(self) -> None:
        """Close every connection."""
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Proxy one direction; data never overtake earlier data."""
        loop, due = asyncio.get_running_loop(), 0.0
        while data := await reader.read(CHUNK):
            due = max(due, loop.time() + self.late)
            loop.call_at(due, writer.write, data)
        loop.call_at(max(due, loop.time() + self.late), writer.close)


@asynccontextmanager
async def delaying_proxy(sandbox: Sandbox, lower: str, directory: Path | None = None) -> AsyncIterator[DelayingProxy]:
    """Route the engine's connections to a lower cluster through a proxy, by the port in its kubeconfig.

    `directory` is that of the kubeconfig, None for the sandbox's.
    """
    server = sandbox.clusters[lower].server
    made = DelayingProxy(server)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        kubeconfig = (directory or sandbox.directory) / f"{lower}.kubeconfig"
        own = kubeconfig.read_text()
        kubeconfig.write_text(own.replace(server, f"https://127.0.0.1:{port}"))
        try:
            yield made
        finally:
            kubeconfig.write_text(own)
            await made.close()


async def turn(trial: Trial, slow: DelayingProxy, tag: str, pods: int, *, well: bool) -> float:
    """Load all lower clusters; return the seconds until the pods of the third one are Ready."""
    if not well:
        trial.sandbox.suspend(STOPPED, APISERVER)
        slow.late = LATE
    begin = time.monotonic()
    names = await load(trial, tag, pods)
    found = await all_ready(trial.upper, labelled(f"{tag}-{WELL}"), pods, begin)
    if not well:
        trial.sandbox.resume(STOPPED, APISERVER)
        slow.late = 0.0
    await trial.wait_until_settled(pods * len(names), SETTLED_IN)
    await trial.remove(*names)
    return round(max(found.ready.values()), 3)


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Take turns with and without faults, and compare the medians."""
    runs: dict[bool, list[float]] = {True: [], False: []}
    async with delaying_proxy(sandbox, SLOW) as slow, Trial(sandbox) as trial:
        await trial.start_engine_and_nodes()
        for number in range(args.rounds):
            for well in (True, False):
                await wait_until_machine_idle()
                tag = f"{'well' if well else 'ill'}-{number}"
                runs[well].append(await turn(trial, slow, tag, args.pods // len(trial.lowers), well=well))
                print(f"round={number} {'undisturbed' if well else 'disturbed'}={runs[well][-1]}", flush=True)
    ratio = round(statistics.median(runs[False]) / statistics.median(runs[True]), 3)
    broken = [f"the third lower took {ratio} x as long, at most {SLOWER_AT_MOST}"] if ratio > SLOWER_AT_MOST else []
    return {"undisturbed_s": runs[True], "disturbed_s": runs[False], "ratio": ratio, "broken": broken}


if __name__ == "__main__":
    sys.exit(run("isolation", scenario, Options(lowers=3), pods=150, rounds=5, doc=__doc__ or ""))
