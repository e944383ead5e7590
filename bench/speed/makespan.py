"""The time until N pods of Deployments are all Ready, and until all are deleted again.

    .venv/bin/python -m bench.speed.makespan --pods 1000 --rounds 5

The engine, the ceiling, one cluster without a mirror, and the ceiling with nodes and lower pods like the engine's take
turns on one sandbox with an upper and two lower clusters, so that other load of the machine affects them alike. Writes
makespan-PODS.json. Exits with 1 if the engine's median is over the bar, as a multiple of the ceiling's.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.kit.child_processes import Usage
from bench.kit.oracles import is_ready
from bench.kit.participants import ALIKE, PARTICIPANTS, Turn
from bench.kit.sites import DEPLOYMENTS, PODS, NotInTime, Site, until_gone
from bench.kit.workload import deployment
from bench.speed.comparison import LIMIT, NAMESPACE, Race, main

FIELDS = ("last_ready_s", "p50_s", "p99_s", "all_gone_s", "cpu_s", "cpu_ms_pod", "rss_mib")
BAR = 1.15
NOTHING = Usage(0.0, 0)
MOST, BATCH = 1000, 500
"""The most pods of one Deployment, and their number in one of several.

A ReplicaSet creates 500 pods at a time, and waits for all of them before the next.
"""


class ReadyTimes:
    """When each pod was first observed, and first observed Ready: seconds since the Deployment was created."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self.ready: dict[str, float] = {}

    def note(self, pod: dict[str, Any], now: float) -> None:
        """Record the state of a pod at a time."""
        uid = pod["metadata"]["uid"]
        self.seen.setdefault(uid, now)
        if is_ready(pod):
            self.ready.setdefault(uid, now)

    def summary(self) -> dict[str, float]:
        """Return the time of the last Ready, and percentiles of the time from first observed to Ready of each pod."""
        waits = sorted(self.ready[uid] - self.seen[uid] for uid in self.ready)
        return {
            "ready": len(waits),
            "last_ready_s": round(max(self.ready.values()), 3),
            "p50_s": round(percentile(waits, 0.50), 4),
            "p99_s": round(percentile(waits, 0.99), 4),
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which that share of an ordered sequence lies."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def parts(pods: int) -> list[int]:
    """Divide the pods into Deployments: one, or several that each create all of their pods at once."""
    return [pods] if pods <= MOST else [min(BATCH, pods - begun) for begun in range(0, pods, BATCH)]


def labelled(*names: str) -> str:
    """Return the query that selects the pods of these Deployments."""
    return f"labelSelector=app%20in%20({','.join(names)})"


async def all_ready(site: Site, query: str, pods: int, begin: float, limit: float = LIMIT) -> ReadyTimes:
    """Watch the selected pods until so many are Ready; `begin` is on the monotonic clock."""
    found = ReadyTimes()
    try:
        async with asyncio.timeout(limit):
            async for _, pod in site.watch(PODS.format(NAMESPACE), query):
                found.note(pod, time.monotonic() - begin)
                if len(found.ready) >= pods:
                    break
    except TimeoutError:
        raise NotInTime(f"{site.name}: {len(found.ready)} of {pods} pods Ready after {limit:g} s") from None
    return found


async def run(turn: Turn, pods: int) -> dict[str, Any]:
    """Create the pods, wait, measure, delete them and wait; return the results of one run."""
    site, child = turn.site, turn.child
    tag, sizes = f"makespan-{time.time_ns() // 1_000_000}", parts(pods)
    names = [f"{tag}-{number}" for number in range(len(sizes))]
    path, before = DEPLOYMENTS.format(NAMESPACE), child.usage() if child else NOTHING
    begin = time.monotonic()
    for name, size in zip(names, sizes, strict=True):
        body = deployment(name, size)
        body["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
        await site.call("POST", path, body)
    found = (await all_ready(site, labelled(*names), pods, begin)).summary()
    used = child.usage() if child else NOTHING
    begin = time.monotonic()
    for name in names:
        await site.delete(f"{path}/{name}?propagationPolicy=Background")
    await until_gone(site, PODS.format(NAMESPACE), labelled(*names), LIMIT)
    return {
        **found,
        "all_gone_s": round(time.monotonic() - begin, 2),
        "cpu_s": round(used.cpu - before.cpu, 2),
        "cpu_ms_pod": round((used.cpu - before.cpu) * 1000 / pods, 2),
        "rss_mib": used.rss >> 20,
    }


RACE = Race("makespan-{pods}", run, FIELDS, "last_ready_s", BAR, (*PARTICIPANTS, ALIKE))

if __name__ == "__main__":
    sys.exit(main(RACE, 1000, __doc__))
