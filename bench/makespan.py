"""How long a Deployment of N pods takes until all are Ready, and until all are gone again.

    .venv/bin/python -m bench.makespan --pods 1000 --rounds 5

The engine, the ceiling and one cluster without a mirror take turns on one sandbox of an upper and two lowers, so that
whatever else the machine does hits them alike. Writes makespan-PODS.json; exits with 1 when the engine's median is over
the bar, in multiples of the ceiling's.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.children import Child, Usage
from bench.oracles import is_ready
from bench.parties import PARTIES, Party, emptied, taking_part
from bench.reporting import RESULTS, keep, medians, ratios, table
from bench.sites import DEPLOYMENTS, PODS, NotInTime, Site, until_gone
from bench.workload import deployment
from tensile.sandbox.environment import Sandbox
from tensile.sandbox.layout import UPPER

NAMESPACE = "default"
LIMIT = 400.0
FIELDS = ("last_ready_s", "p50_s", "p99_s", "all_gone_s", "cpu_s", "cpu_ms_pod", "rss_mib")
BAR = 1.5
NOTHING = Usage(0.0, 0)


class Sightings:
    """When each pod was first seen, and first seen Ready: seconds since the Deployment was created."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self.ready: dict[str, float] = {}

    def note(self, pod: dict[str, Any], now: float) -> None:
        """Take a look at a pod at a time."""
        uid = pod["metadata"]["uid"]
        self.seen.setdefault(uid, now)
        if is_ready(pod):
            self.ready.setdefault(uid, now)

    def summary(self) -> dict[str, float]:
        """Give the last Ready, and percentiles of each pod's way from first seen to Ready."""
        waits = sorted(self.ready[uid] - self.seen[uid] for uid in self.ready)
        return {
            "ready": len(waits),
            "last_ready_s": round(max(self.ready.values()), 3),
            "p50_s": round(percentile(waits, 0.50), 4),
            "p99_s": round(percentile(waits, 0.99), 4),
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Give the value below which that share of an ordered row lies."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


async def all_ready(site: Site, name: str, pods: int, begin: float, limit: float = LIMIT) -> Sightings:
    """Watch the pods of a Deployment until so many are Ready; `begin` is on the monotonic clock."""
    found = Sightings()
    try:
        async with asyncio.timeout(limit):
            async for _, pod in site.watch(PODS.format(NAMESPACE), f"labelSelector=app%3D{name}"):
                found.note(pod, time.monotonic() - begin)
                if len(found.ready) >= pods:
                    break
    except TimeoutError:
        raise NotInTime(f"{site.name}: {len(found.ready)} of {pods} pods Ready after {limit:g} s") from None
    return found


async def race(site: Site, child: Child | None, pods: int) -> dict[str, float]:
    """Create, wait, measure, delete, wait; gives one run's numbers."""
    name = f"makespan-{time.time_ns() // 1_000_000}"
    path, before = DEPLOYMENTS.format(NAMESPACE), child.usage() if child else NOTHING
    body = deployment(name, pods)
    body["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    begin = time.monotonic()
    await site.call("POST", path, body)
    found = (await all_ready(site, name, pods, begin)).summary()
    used = child.usage() if child else NOTHING
    begin = time.monotonic()
    await site.remove(f"{path}/{name}?propagationPolicy=Background")
    await until_gone(site, PODS.format(NAMESPACE), f"labelSelector=app%3D{name}", LIMIT)
    return {
        **found,
        "all_gone_s": round(time.monotonic() - begin, 2),
        "cpu_s": round(used.cpu - before.cpu, 2),
        "cpu_ms_pod": round((used.cpu - before.cpu) * 1000 / pods, 2),
        "rss_mib": used.rss >> 20,
    }


async def take_turns(
    sandbox: Sandbox, pods: int, rounds: int, parties: Sequence[Party] = PARTIES
) -> list[dict[str, Any]]:
    """Run every party once a round; gives the runs in the order in which they were."""
    runs: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        for party in parties:
            async with taking_part(party, sandbox) as turn:
                run = {"round": number, "party": party.name, "load": turn.load}
                run |= await race(turn.site, turn.child, pods)
                await emptied(sandbox, NAMESPACE, LIMIT)
            runs.append(run)
            print(" ".join(f"{key}={value}" for key, value in run.items()), flush=True)
    return runs


async def measure(sandbox: Sandbox, pods: int, rounds: int, results: Path) -> int:
    """Run all rounds, keep and print them; gives the exit code."""
    runs = await take_turns(sandbox, pods, rounds)
    async with Site(sandbox.clusters[UPPER]) as site:
        kubernetes = await site.version()
    found = {party.name: medians(runs, party.name, FIELDS) for party in PARTIES}
    against = ratios(found, FIELDS)
    result = {"pods": pods, "rounds": rounds, "medians": found, "ratios": against, "bar": BAR, "runs": runs}
    path = keep(results, f"makespan-{pods}", kubernetes, result)
    ratio = against["ceiling"]["last_ready_s"]
    print(table(found, FIELDS))
    print(f"last Ready: {ratio:g} x the ceiling (bar {BAR:g}), {against['alone']['last_ready_s']:g} x alone ({path})")
    return 0 if ratio <= BAR else 1


def main() -> int:
    """Read the arguments, start a sandbox, measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, Sandbox.start(Path(scratch) / "sandbox") as sandbox:
        return asyncio.run(measure(sandbox, given.pods, given.rounds, given.results))


if __name__ == "__main__":
    sys.exit(main())
