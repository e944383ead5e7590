"""What an engine costs that has nothing to do, and how soon one that is started again has caught up.

    .venv/bin/python -m bench.steady --pods 2000 --rounds 3

While many mirrored pods run, the engine's CPU and memory are measured over a quiet time; the memory of one pod is the
difference to an engine without pods. Then the engine is ended, the status of one pod changes below, and the engine is
started again: counted is the time until that change is above, beyond what the lists alone take, and every write but
that one and heartbeats is needless.
"""

import asyncio
import sys
import time
from argparse import Namespace
from statistics import median
from typing import Any

from bench.children import Usage
from bench.oracles import not_quiet, upper_uid_of
from bench.parties import calm
from bench.sites import DEPLOYMENTS, PODS, Manifest
from bench.trial import AGENT, NAMESPACE, Trial, run
from bench.workload import deployment
from tensile.sandbox import audit
from tensile.sandbox.environment import Sandbox
from tensile.sandbox.layout import UPPER
from tensile.sandbox.state import Options

NAME = "steady"
SETTLED_IN = 300.0
CPU_AT_MOST = 0.005
"""Of one core."""
POD_AT_MOST = 15 * 1024
"""Bytes."""
CAUGHT_UP_IN = 1.0
"""Seconds, beyond what the lists take."""


def usage(trial: Trial) -> Usage:
    """Measure the engine."""
    assert trial.engine is not None
    return trial.engine.usage()


async def idle(trial: Trial, seconds: float) -> tuple[float, Usage]:
    """Give the share of a core that the engine takes in a quiet time, and what it is at the end."""
    await calm()
    before = usage(trial)
    await asyncio.sleep(seconds)
    after = usage(trial)
    return (after.cpu - before.cpu) / seconds, after


async def empty_memory(trial: Trial) -> int:
    """Give the bytes of an engine without pods."""
    await trial.start_engine_and_nodes()
    await asyncio.sleep(3)
    return usage(trial).rss


async def listing(trial: Trial) -> float:
    """Give the seconds that it takes to list every pod of every cluster, all clusters at once, in pages of 500."""
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


async def change_one(trial: Trial, number: int) -> Manifest:
    """Have a container of one lower pod restarted, as its status says; gives the upper pod that has to say so too."""
    lower = trial.lowers[next(iter(trial.lowers))]
    pod = (await lower.items(f"{PODS.format(NAMESPACE)}?limit=1"))[0]
    pod["status"]["containerStatuses"][0]["restartCount"] = number
    path = f"{PODS.format(NAMESPACE)}/{pod['metadata']['name']}"
    await lower.call("PUT", f"{path}/status", pod)
    above = await trial.upper.call("GET", path)
    assert above["metadata"]["uid"] == upper_uid_of(pod)
    return above


async def restart(trial: Trial, number: int, quiet: float) -> dict[str, Any]:
    """Start the engine again after a change below; gives seconds, and the writes that nothing called for."""
    assert trial.engine is not None
    trial.engine.stop()
    above = await change_one(trial, number)
    path = f"{PODS.format(NAMESPACE)}/{above['metadata']['name']}"
    lists = median([await listing(trial) for _ in range(3)])
    await calm()
    positions = {site.name: audit.position(site.audit_log) for site in (trial.upper, *trial.lowers.values())}
    begin = time.monotonic()
    trial.start_engine()
    follow = trial.upper.watch(PODS.format(NAMESPACE), f"fieldSelector=metadata.name%3D{above['metadata']['name']}")
    async for _, pod in follow:
        if pod["status"]["containerStatuses"][0]["restartCount"] == number:
            break
    caught_up = time.monotonic() - begin
    await asyncio.sleep(quiet)
    seconds, needless = time.monotonic() - begin, []
    for site in (trial.upper, *trial.lowers.values()):
        writes = audit.writes(audit.read(site.audit_log, positions[site.name]), AGENT)
        rest = [one for one in writes if not (site is trial.upper and _is_about(one, path))]
        needless += not_quiet(rest, seconds, site.name)
    return {"caught_up_s": round(caught_up, 3), "lists_s": round(lists, 3), "needless": needless}


def _is_about(record: Any, path: str) -> bool:
    return record["requestURI"].split("?")[0] == f"{path}/status"


async def scenario(sandbox: Sandbox, given: Namespace) -> dict[str, Any]:
    """Measure without pods, with pods, and after each restart."""
    async with Trial(sandbox) as trial:
        bare = await empty_memory(trial)
        await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), deployment(NAME, given.pods))
        await trial.settled(given.pods, SETTLED_IN)
        busy = usage(trial).rss
        runs = [await restart(trial, number + 1, 10.0) for number in range(given.rounds)]
        for one in runs:
            print(" ".join(f"{key}={value}" for key, value in one.items()), flush=True)
        share, after = await idle(trial, given.quiet)
        result = {
            "idle_s": given.quiet,
            "idle_share_of_a_core": round(share, 5),
            "rss_without_pods_mib": bare >> 20,
            "rss_after_start_mib": after.rss >> 20,
            "rss_after_load_mib": busy >> 20,
            "bytes_a_pod": (after.rss - bare) // given.pods,
            "runs": runs,
        }
        return {**result, "broken": _broken(result)}


def _broken(result: dict[str, Any]) -> list[str]:
    """Say which bar is not held."""
    said = [words for one in result["runs"] for words in one["needless"]]
    beyond = median(one["caught_up_s"] - one["lists_s"] for one in result["runs"])
    if beyond > CAUGHT_UP_IN:
        said.append(f"a fresh status came {beyond:.2f} s after what the lists take, at most {CAUGHT_UP_IN} s")
    if result["idle_share_of_a_core"] > CPU_AT_MOST:
        said.append(f"idle at {result['idle_share_of_a_core']} of a core, at most {CPU_AT_MOST}")
    if result["bytes_a_pod"] > POD_AT_MOST:
        said.append(f"{result['bytes_a_pod']} bytes a pod, at most {POD_AT_MOST}")
    return said


if __name__ == "__main__":
    sys.exit(run("steady", scenario, Options(), pods=2000, rounds=3, words=__doc__ or ""))
