"""The time from the call of an exec to the first byte of its output, through the upper cluster and directly.

Each call opens a connection of its own and uses WebSocket, as kubectl does, without the start of kubectl.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import WSMsgType

from bench.kit.sites import PODS, Site
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

EXEC = PODS.format("default") + "/{}/exec?command=echo&command=hello&stdout=true&container=main"
PROTOCOL = "v5.channel.k8s.io"
STDOUT = 1
LATE = 25.0
"""The limit in milliseconds by which the median may exceed the direct one."""
WAYS = ("direct", "through")


async def first_byte(site: Site, pod: str) -> float:
    """Return the milliseconds from the call to the first byte of output; the stream is read to its end."""
    begin, first = time.monotonic(), 0.0
    async with site.session.ws_connect(EXEC.format(pod), protocols=(PROTOCOL,)) as stream:
        async for message in stream:
            if message.type is WSMsgType.BINARY and len(message.data) > 1 and message.data[0] == STDOUT:
                first = first or time.monotonic()
    assert first, f"{site.name}: no output of pod {pod}"
    return (first - begin) * 1000


async def first_bytes(sandbox: Sandbox, pods: Mapping[str, str], samples: int) -> dict[str, dict[str, Any]]:
    """Measure both ways in turns; the first sample does not count. `pods` maps names to lower clusters."""
    found: dict[str, dict[str, Any]] = {}
    for pod, lower in pods.items():
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(samples + 1):
            for way, cluster in zip(WAYS, (lower, UPPER), strict=True):
                async with Site(sandbox.clusters[cluster]) as site:
                    taken[way].append(round(await first_byte(site, pod), 2))
        found[pod] = {way: values[1:] for way, values in taken.items()}
        found[pod] |= {f"{way}_ms": round(statistics.median(found[pod][way]), 2) for way in WAYS}
    return found


def late(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the pods whose median is over the bar."""
    behind = {pod: one["through_ms"] - one["direct_ms"] for pod, one in found.items()}
    return [
        f"{pod}: the first byte is {more:.1f} ms behind the direct one" for pod, more in behind.items() if more > LATE
    ]


def summary(found: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """Return a summary line for each pod."""
    return [
        f"{pod}: first byte after {one['through_ms']} ms, directly {one['direct_ms']} ms" for pod, one in found.items()
    ]
