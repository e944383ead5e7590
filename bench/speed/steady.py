"""The cost of an idle engine, and the time that a restarted engine needs to catch up.

    .venv/bin/python -m bench.speed.steady --pods 5000 --rounds 3

While many mirrored pods run, the engine's CPU and memory are measured over a quiet period; the memory per pod is the
difference to an engine without pods. Then the engine is stopped, the status of some lower pods changes, and the engine
is started again. The time until the first and the last of these changes are in the upper cluster and the engine is idle
is measured, beyond the time of the lists alone. Every other write except heartbeats is needless. The start time of an
engine without pods is measured too.
"""

import asyncio
import sys
import time
from argparse import Namespace
from statistics import median
from typing import Any

from bench.kit import audit
from bench.kit.child_processes import Usage
from bench.kit.oracles import not_quiet, upper_uid_of
from bench.kit.participants import wait_until_machine_idle
from bench.kit.sites import DEPLOYMENTS, PODS, until
from bench.kit.trial import AGENT, NAMESPACE, Trial, run
from bench.kit.workload import deployment
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

NAME = "steady"
SETTLED_IN = 300.0
CPU_AT_MOST = 0.005
"""The limit for the share of one core."""
POD_AT_MOST = 15 * 1024
"""The limit for the bytes per pod."""
CAUGHT_UP_IN = 1.0
"""The limit for the seconds to the first status, beyond the time of the lists."""
RECONCILED_IN = 5.0
"""The limit for the seconds until everything is as desired, beyond the same time."""
CHANGED = 20
"""The number of pods of each lower cluster whose status changes while the engine is stopped."""
LOOK, REST = 0.1, 1.0
BUSY = 0.2
"""A share of one core: an engine that uses less for a second is idle."""


def usage(trial: Trial) -> Usage:
    """Return the resource usage of the engine."""
    assert trial.engine is not None
    return trial.engine.usage()


async def idle(trial: Trial, seconds: float) -> tuple[float, Usage]:
    """Return the share of a core that the engine uses in a quiet period, and its usage at the end."""
    await wait_until_machine_idle()
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
    """Run pods until they settle; the Deployment is polled first, because listing all pods takes seconds."""
    await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), deployment(NAME, pods))

    async def are_ready() -> bool:
        """Report whether all pods of the Deployment are ready."""
        found = await trial.upper.call("GET", f"{DEPLOYMENTS.format(NAMESPACE)}/{NAME}")
        return bool(found["status"].get("readyReplicas", 0) == pods)

    await until(are_ready, f"{pods} pods are ready", SETTLED_IN)
    await trial.wait_until_settled(pods, SETTLED_IN)


async def listing(trial: Trial) -> float:
    """Return the seconds to list every pod of every cluster, all clusters at once, in pages of 500."""
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
    """Restart a container of some lower pods, by their status; return the names of the pods."""
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


async def first_status_at(trial: Trial, name: str, number: int) -> float:
    """Wait until an upper pod has that restart count; return the time (monotonic)."""
    async for _, pod in trial.upper.watch(PODS.format(NAMESPACE), f"fieldSelector=metadata.name%3D{name}"):
        if pod["status"]["containerStatuses"][0]["restartCount"] == number:
            break
    return time.monotonic()


async def at_rest(trial: Trial) -> float:
    """Wait until the engine is idle; return since when it is (monotonic)."""
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
    """Restart the engine after changes of lower pods; return the seconds, and the needless writes."""
    assert trial.engine is not None
    trial.engine.stop()
    names = await change_some(trial, number)
    paths = {f"{PODS.format(NAMESPACE)}/{name}/status" for name in names}
    lists = median([await listing(trial) for _ in range(3)])
    await wait_until_machine_idle()
    positions = {site.name: audit.position(site.audit_log) for site in (trial.upper, *trial.lowers.values())}
    begin = time.monotonic()
    trial.start_engine()
    status_times = await asyncio.gather(*(first_status_at(trial, name, number) for name in names))
    reconciled = max(*status_times, await at_rest(trial)) - begin
    await asyncio.sleep(quiet)
    seconds, needless = time.monotonic() - begin, []
    for site in (trial.upper, *trial.lowers.values()):
        writes = audit.writes(audit.read(site.audit_log, positions[site.name]), AGENT)
        rest = [one for one in writes if not (site is trial.upper and one["requestURI"].split("?")[0] in paths)]
        needless += not_quiet(rest, seconds, site.name)
    found = {
        "first_status_s": min(status_times) - begin,
        "last_status_s": max(status_times) - begin,
        "reconciled_s": reconciled,
    }
    return {**{name: round(value, 3) for name, value in {**found, "lists_s": lists}.items()}, "needless": needless}


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Measure without pods, with pods, and after each restart."""
    async with Trial(sandbox) as trial:
        bare, start = await empty(trial)
        await filled(trial, args.pods)
        busy = usage(trial).rss
        runs = [await restart(trial, number + 1, 10.0) for number in range(args.rounds)]
        for one in runs:
            print(" ".join(f"{key}={value}" for key, value in one.items()), flush=True)
        share, after = await idle(trial, args.quiet)
        result = {
            "idle_s": args.quiet,
            "idle_share_of_a_core": round(share, 5),
            "start_without_pods_s": round(start, 3),
            "rss_without_pods_mib": bare >> 20,
            "rss_after_start_mib": after.rss >> 20,
            "rss_after_load_mib": busy >> 20,
            "bytes_a_pod": (after.rss - bare) // args.pods,
            "runs": runs,
        }
        return {**result, "broken": _broken(result)}


def _broken(result: dict[str, Any]) -> list[str]:
    """Return which bars are exceeded."""
    failures = [failure for one in result["runs"] for failure in one["needless"]]
    for name, most in (("first_status_s", CAUGHT_UP_IN), ("reconciled_s", RECONCILED_IN)):
        beyond = median(one[name] - one["lists_s"] for one in result["runs"])
        if beyond > most:
            failures.append(f"{name} is {beyond:.2f} s beyond what the lists take, at most {most} s")
    if result["idle_share_of_a_core"] > CPU_AT_MOST:
        failures.append(f"idle at {result['idle_share_of_a_core']} of a core, at most {CPU_AT_MOST}")
    if result["bytes_a_pod"] > POD_AT_MOST:
        failures.append(f"{result['bytes_a_pod']} bytes a pod, at most {POD_AT_MOST}")
    return failures


if __name__ == "__main__":
    sys.exit(run("steady", scenario, Options(nodes=6), pods=5000, rounds=3, doc=__doc__ or ""))
