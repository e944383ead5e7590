"""The time from the creation of one pod until it is Ready, in clusters without other work.

    .venv/bin/python -m bench.speed.latency --pods 40 --rounds 5

One pod is created after the other. The engine, the ceiling and one cluster without a mirror take turns, as for the
makespan. Writes latency.json. Exits with 1 if the engine's median is over the bar, as a multiple of the ceiling's.
"""

import asyncio
import sys
import time
from typing import Any

from bench.kit.oracles import is_ready
from bench.kit.participants import Turn
from bench.kit.sites import PODS, Site
from bench.kit.workload import pod as pod_of
from bench.speed.comparison import NAMESPACE, Race, main
from bench.speed.makespan import percentile

GROUP = "latency"
LIMIT = 60.0
REST = 0.3
BAR = 1.7
FIELDS = ("p50_ms", "p95_ms", "max_ms")


class Stopwatch:
    """Observes the pods of the group by one watch, so that no pod needs a watch of its own."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._ready: dict[str, asyncio.Future[float]] = {}

    async def follow(self) -> None:
        """Record when pods become Ready, until it is cancelled."""
        async for _, pod in self._site.watch(PODS.format(NAMESPACE), f"labelSelector=app%3D{GROUP}"):
            awaited = self._ready.get(pod["metadata"]["name"])
            if awaited is not None and not awaited.done() and is_ready(pod):
                awaited.set_result(time.monotonic())

    async def time(self, name: str) -> float:
        """Create a pod, return the seconds until it is Ready, and delete it."""
        path, body = PODS.format(NAMESPACE), pod_of(name, GROUP)
        body["spec"]["tolerations"] = [{"operator": "Exists"}]
        self._ready[name] = asyncio.get_running_loop().create_future()
        begin = time.monotonic()
        await self._site.call("POST", path, body)
        async with asyncio.timeout(LIMIT):
            taken = await self._ready[name] - begin
        del self._ready[name]
        await self._site.delete(f"{path}/{name}")
        return taken


async def series(site: Site, pods: int) -> list[float]:
    """Time pods, one after the other with a pause between; return the sorted seconds."""
    watch, tag = Stopwatch(site), time.time_ns() // 1_000_000
    following = asyncio.create_task(watch.follow())
    await watch.time(f"latency-{tag}-first")
    taken = []
    for number in range(pods):
        await asyncio.sleep(REST)
        taken.append(await watch.time(f"latency-{tag}-{number}"))
    following.cancel()
    return sorted(taken)


def summary(taken: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    shares = dict(zip(FIELDS, (0.50, 0.95, 1.0), strict=True))
    return {field: round(percentile(taken, share) * 1000, 1) for field, share in shares.items()}


async def run(turn: Turn, pods: int) -> dict[str, Any]:
    """Return the percentiles of one turn, and the seconds of every pod."""
    taken = await series(turn.site, pods)
    return {**summary(taken), "seconds": taken}


RACE = Race("latency", run, FIELDS, "p50_ms", BAR)

if __name__ == "__main__":
    sys.exit(main(RACE, 40, __doc__))
