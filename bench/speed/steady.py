"""What an engine costs that has nothing to do, and how soon one that is started again has caught up.

    .venv/bin/python -m bench.speed.steady --pods 5000 --rounds 3

While many mirrored pods run, the engine's CPU and memory are measured over a quiet time; the memory of one pod is the
difference to an engine without pods. Then the engine is ended, the status of some pods changes below, and the engine is
started again: counted is the time until the first and the last of these is above and the engine has come to rest,
beyond what the lists alone take. Every write but those and heartbeats is needless. How long an engine takes to start
without any pod stands beside it.
"""

import asyncio
import sys
import time
from argparse import Namespace
from statistics import median
from typing import Any

from bench.kit import audit
from bench.kit.children import Usage
from bench.kit.oracles import not_quiet, upper_uid_of
from bench.kit.parties import calm
from bench.kit.sites import DEPLOYMENTS, PODS, until
from bench.kit.trial import AGENT, NAMESPACE, Trial, run
from bench.kit.workload import deployment
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

NAME = "steady"
SETTLED_IN = 300.0
CPU_AT_MOST = 0.005
"""Of one core."""
POD_AT_MOST = 15 * 1024
"""Bytes."""
CAUGHT_UP_IN = 1.0
"""Seconds to the first status, beyond what the lists take."""
RECONCILED_IN = 5.0
"""Seconds until all is as it should be, beyond the same."""
CHANGED = 20
"""Pods of each lower whose status changes while the engine is down."""
LOOK, REST = 0.1, 1.0
BUSY = 0.2
"""Of one core: an engine that takes less for a second has come to rest."""


def usage(trial: Trial) -> Usage:
    """Measure the engine."""
    assert trial.engine is not None
    return trial.engine.usage()


async def idle(trial: Trial, seconds: float) -> tuple[float, Usage]:
    """Return the share of a core that the engine takes in a quiet time, and what it is at the end."""
    await calm()
    before = usage(trial)
    await asyncio.sleep(seconds)
    after = usage(trial)
    return (after.cpu - before.cpu) / seconds, after


async def empty(trial: Trial) -> tuple[int, float]:
    """Return the bytes of an engine without pods, and the seconds that it takes to start."""
    await trial.start_engine_and_nodes()
    await asyncio.sleep(3)
    assert trial.engine is not None
    bare = usage(trial).rss
    trial.engine.stop()
    begin = time.monotonic()
    await until(trial.start_engine().has_started, "the engine has started", SETTLED_IN)
    return bare, time.monotonic() - begin


async def filled(trial: Trial, pods: int) -> None:
    """Run so many pods until they settle: cheap looks first, as the whole of them takes seconds to look at."""
    await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), deployment(NAME, pods))

    async def are_ready() -> bool:
        """Ask the Deployment."""
        found = await trial.upper.call("GET", f"{DEPLOYMENTS.format(NAMESPACE)}/{NAME}")
        return bool(found["status"].get("readyReplicas", 0) == pods)

    await until(are_ready, f"{pods} pods are ready", SETTLED_IN)
    await trial.settled(pods, SETTLED_IN)


async def listing(trial: Trial) -> float:
    """Return the seconds that it takes to list every pod of every cluster, all clusters at once, in pages of 500."""
    begin = time.monotonic()
    await asyncio.gather(*(_pages(trial, name) for name in (UPPER, *trial.lowers)))
    return time.monotonic() - begin


async def _pages(trial: Trial, cluster: str) -> None:
    site = trial.upper if cluster == UPPER else trial.lowers[cluster]
    more = ""
    while True:
        answer = await site.call("GET", f"{PODS.format(NAMESPACE)}?limit=500&continue={more}")
        more = answer["metadata"].get("continue", "")
        if not more:
            return


async def change_some(trial: Trial, number: int) -> list[str]:
    """Restart a container of some lower pods, as their status says, and return the names of the pods."""
    names = []
    for lower in trial.lowers.values():
        for pod in await lower.items(f"{PODS.format(NAMESPACE)}?limit={CHANGED}"):
            pod["status"]["containerStatuses"][0]["restartCount"] = number
            path = f"{PODS.format(NAMESPACE)}/{pod['metadata']['name']}"
            await lower.call("PUT", f"{path}/status", pod)
            above = await trial.upper.call("GET", path)
            assert above["metadata"]["uid"] == upper_uid_of(pod)
            names.append(pod["metadata"]["name"])
    return names


async def told_above(trial: Trial, name: str, number: int) -> float:
    """Return when a pod above says that it was restarted so often, and return the time (monotonic)."""
    async for _, pod in trial.upper.watch(PODS.format(NAMESPACE), f"fieldSelector=metadata.name%3D{name}"):
        if pod["status"]["containerStatuses"][0]["restartCount"] == number:
            break
    return time.monotonic()


async def at_rest(trial: Trial) -> float:
    """Return when the engine has come to rest, and return since when (monotonic)."""
    since = before = time.monotonic()
    known = usage(trial).cpu
    while before - since < REST:
        await asyncio.sleep(LOOK)
        now, cpu = time.monotonic(), usage(trial).cpu
        if (cpu - known) / (now - before) > BUSY:
            since = now
        before, known = now, cpu
    return since


async def restart(trial: Trial, number: int, quiet: float) -> dict[str, Any]:
    """Start the engine again after changes below, and return seconds, and the writes that nothing called for."""
    assert trial.engine is not None
    trial.engine.stop()
    names = await change_some(trial, number)
    paths = {f"{PODS.format(NAMESPACE)}/{name}/status" for name in names}
    lists = median([await listing(trial) for _ in range(3)])
    await calm()
    positions = {site.name: audit.position(site.audit_log) for site in (trial.upper, *trial.lowers.values())}
    begin = time.monotonic()
    trial.start_engine()
    told = await asyncio.gather(*(told_above(trial, name, number) for name in names))
    reconciled = max(*told, await at_rest(trial)) - begin
    await asyncio.sleep(quiet)
    seconds, needless = time.monotonic() - begin, []
    for site in (trial.upper, *trial.lowers.values()):
        writes = audit.writes(audit.read(site.audit_log, positions[site.name]), AGENT)
        rest = [one for one in writes if not (site is trial.upper and one["requestURI"].split("?")[0] in paths)]
        needless += not_quiet(rest, seconds, site.name)
    found = {"first_status_s": min(told) - begin, "last_status_s": max(told) - begin, "reconciled_s": reconciled}
    return {**{name: round(value, 3) for name, value in {**found, "lists_s": lists}.items()}, "needless": needless}


async def scenario(sandbox: Sandbox, given: Namespace) -> dict[str, Any]:
    """Measure without pods, with pods, and after each restart."""
    async with Trial(sandbox) as trial:
        bare, start = await empty(trial)
        await filled(trial, given.pods)
        busy = usage(trial).rss
        runs = [await restart(trial, number + 1, 10.0) for number in range(given.rounds)]
        for one in runs:
            print(" ".join(f"{key}={value}" for key, value in one.items()), flush=True)
        share, after = await idle(trial, given.quiet)
        result = {
            "idle_s": given.quiet,
            "idle_share_of_a_core": round(share, 5),
            "start_without_pods_s": round(start, 3),
            "rss_without_pods_mib": bare >> 20,
            "rss_after_start_mib": after.rss >> 20,
            "rss_after_load_mib": busy >> 20,
            "bytes_a_pod": (after.rss - bare) // given.pods,
            "runs": runs,
        }
        return {**result, "broken": _broken(result)}


def _broken(result: dict[str, Any]) -> list[str]:
    """Return which bar is not held."""
    said = [words for one in result["runs"] for words in one["needless"]]
    for name, most in (("first_status_s", CAUGHT_UP_IN), ("reconciled_s", RECONCILED_IN)):
        beyond = median(one[name] - one["lists_s"] for one in result["runs"])
        if beyond > most:
            said.append(f"{name} is {beyond:.2f} s beyond what the lists take, at most {most} s")
    if result["idle_share_of_a_core"] > CPU_AT_MOST:
        said.append(f"idle at {result['idle_share_of_a_core']} of a core, at most {CPU_AT_MOST}")
    if result["bytes_a_pod"] > POD_AT_MOST:
        said.append(f"{result['bytes_a_pod']} bytes a pod, at most {POD_AT_MOST}")
    return said


if __name__ == "__main__":
    sys.exit(run("steady", scenario, Options(nodes=6), pods=5000, rounds=3, words=__doc__ or ""))
