"""Measure what the other lower cluster notices while a hostile one answers in every possible way, and what leaks.

    .venv/bin/python -m bench.faults.hostile --pods 40 [--only list-endless-body ...] [--every 1]

An engine has an honest lower cluster and one behind a server that answers in one way after another. For each way a
Deployment of the honest one is timed, alternating with runs in which the second lower is honest too and receives the
same requests. The medians must not differ, the engine must stay small and responsive, and nothing may have been sent to
the hostile one except what its own pods need.
"""

import asyncio
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from bench.faults.hostile.behaviors import BEHAVIORS
from bench.faults.hostile.setup import CANARY, HERE, HONEST, KEPT, LIMIT, HostileSetup
from bench.kit.clusters import ONE_NODE, on_clusters
from bench.kit.participants import wait_until_machine_idle, wait_until_nodes_usable
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.sites import DEPLOYMENTS, PODS, NotInTime, until, until_gone
from bench.kit.workload import deployment
from bench.speed.makespan import all_ready, labelled
from tensile.sandbox.sandbox import Sandbox

NAME = "hostile"
SLOWER_AT_MOST = 1.05
GROWS_AT_MOST_MIB = 400
"""MiB by which an engine may grow beside a hostile lower.

It is the amount that one cluster may have in progress, and what is cached.
"""
LATE_AT_MOST = 1.0
"""Seconds in which /healthz answers: the timeout of a probe."""
UNTRIED = frozenset({"discovery", "get"})
"""Sorts of requests that an engine makes only if a namespace is deleted, or a write has an unexpected result."""
MOMENT = 1.0
"""Seconds for which a way is active before the pods are created."""
APPLIED_WITHIN = 15.0
"""Seconds in which the server receives a request that a way answers."""
TALKS_AT_ONCE = 4
ON_CLIENT_REQUEST = ("logs", "exec", "metrics")
"""Sorts of requests that the engine makes only for a client of its kubelet API."""


@asynccontextmanager
async def running(setup: HostileSetup, sort: str) -> AsyncIterator[None]:
    """Run an engine, with clients whose requests make it send requests of a sort."""
    child = setup.engine()
    watching = asyncio.create_task(setup.meter.run(child))
    talking = [
        asyncio.create_task(keep_requesting(setup, sort))
        for _ in range(TALKS_AT_ONCE if sort in ON_CLIENT_REQUEST else 0)
    ]
    try:
        await usable(setup)
        yield
    finally:
        for task in (watching, *talking):
            task.cancel()
        await asyncio.gather(watching, *talking, return_exceptions=True)
        child.stop()


async def usable(setup: HostileSetup) -> None:
    """Return when the honest lower's node accepts pods."""
    await wait_until_nodes_usable(setup.upper, 1)


async def keep_requesting(setup: HostileSetup, sort: str) -> None:
    """Request logs, exec or metrics of the hostile lower again and again, as people and monitoring do."""
    pod = (await setup.pods())[0]["metadata"]["name"]
    path = f"{PODS.format(HERE)}/{pod}"
    while True:
        with suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
            async with asyncio.timeout(3.0):
                match sort:
                    case "logs":
                        await setup.read(f"{path}/log?follow=true")
                    case "exec":
                        await enter(setup, path)
                    case _:
                        await setup.measure()
        await asyncio.sleep(0.05)


async def enter(setup: HostileSetup, path: str) -> None:
    """Run a command in a pod, send it some input, and read its output."""
    async with setup.upper.session.ws_connect(
        f"{path}/exec?command=sh&stdin=true&stdout=true", protocols=("v5.channel.k8s.io",)
    ) as stream:
        await stream.send_bytes(b"\x00" + b"x" * 1000)
        async for _ in stream:
            continue


async def run_once(setup: HostileSetup, pods: int, behavior: str | None, sort: str) -> dict[str, Any]:
    """Time one Deployment of the honest lower beside the other one in that way, None for an honest one.

    `sort` is the sort of requests that the other one receives.
    """
    await wait_until_machine_idle(3.0)
    setup.meter.begin()
    received = (await setup.set_behavior(behavior))["heard"]
    tag = f"{NAME}-{time.time_ns() // 1_000_000}"
    async with running(setup, sort):
        if behavior and sort == "write":
            await setup.upper.call("POST", DEPLOYMENTS.format(HERE), deployment(f"{tag}-b", 3, "lower-b"))
        if behavior:
            with suppress(NotInTime):
                await until(setup.is_applied, f"{behavior} is met", APPLIED_WITHIN)
        await asyncio.sleep(MOMENT)
        begin = time.monotonic()
        await setup.upper.call("POST", DEPLOYMENTS.format("default"), deployment(tag, pods, HONEST))
        found = await all_ready(setup.upper, labelled(tag), pods, begin, LIMIT)
        gauge = {"rss_mib": setup.meter.rss >> 20, "healthz_s": round(setup.meter.late, 3)}
        became = await setup.set_behavior(None)
        await _clear(setup, tag)
    received += became["heard"]
    met = {"met": became["met"], "sent_mib": became["sent"] >> 20} if behavior else {}
    sent = [one for one in received if one["sort"] == "write"]
    run = {
        "way": behavior or "",
        "sort": sort,
        "last_ready_s": round(max(found.ready.values()), 3),
        **gauge,
        **met,
        "writes": len(sent),
    }
    return {**run, "broken": [*wrong(received)]}


async def _clear(setup: HostileSetup, tag: str) -> None:
    """Remove the objects of a run, also from the hostile lower, which is honest by now.

    Without a grace period, upper pods are deleted immediately. An engine that stops then leaves their lower pods
    behind, until the node is full.
    """
    await setup.upper.delete(f"{DEPLOYMENTS.format('default')}/{tag}?propagationPolicy=Background")
    await setup.upper.delete(f"{DEPLOYMENTS.format(HERE)}/{tag}-b?propagationPolicy=Background")
    for site in (setup.upper, setup.honest):
        await until_gone(site, PODS.format("default"), labelled(tag), LIMIT)
    for pod in await setup.upper.items(f"{PODS.format(HERE)}?labelSelector=app%3D{tag}-b"):
        await setup.upper.delete(f"{PODS.format(HERE)}/{pod['metadata']['name']}?gracePeriodSeconds=0")


def wrong(received: list[dict[str, Any]]) -> Iterator[str]:
    """Yield requests to the hostile lower with contents that none of its pods needs."""
    for one in received:
        whole = f"{one['path']} {one['fields']} {one['body']}"
        if CANARY in whole:
            yield f"{one['method']} {one['path']}: something of the upper's that no pod there refers to"
        if "cookie" in one["fields"] or one["path"] == "/elsewhere":
            yield f"{one['method']} {one['path']}: a cookie was kept, or a redirect followed"
        if one["sort"] == "write" and one["method"] == "POST" and not is_needed(one["path"], one["body"]):
            yield f"{one['method']} {one['path']}: no pod there needs it"


def is_needed(path: str, body: str) -> bool:
    """Report whether a pod of the hostile lower needs the object: it, its Secret, account and namespace."""
    parts = path.strip("/").split("/")
    resource = parts[-1]
    if resource == "secrets":
        return f'"name":"{KEPT}"' in body
    return resource in ("pods", "namespaces", "serviceaccounts", "selfsubjectreviews", "services", "endpointslices")


async def scenario(sandbox: Sandbox, scratch: Path, args: Namespace) -> dict[str, Any]:
    """Run all ways, with an undisturbed run before every so many of them."""
    names = args.only or [behavior.name for behavior in BEHAVIORS.values() if behavior.sort not in UNTRIED]
    calm_runs: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    async with HostileSetup(sandbox, scratch) as setup:
        await setup.create_objects()
        await run_once(setup, args.pods, None, "")
        for number, behavior in enumerate(names):
            sort = BEHAVIORS[behavior].sort
            if number % args.every == 0:
                calm_runs.append(await run_once(setup, args.pods, None, sort))
                print(" ".join(f"{key}={value}" for key, value in calm_runs[-1].items()), flush=True)
            runs.append(await run_once(setup, args.pods, behavior, sort))
            print(" ".join(f"{key}={value}" for key, value in runs[-1].items()), flush=True)
    return result(runs, calm_runs)


def result(runs: list[dict[str, Any]], calm_runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians, the extremes, and the failures."""
    ready = {name: statistics.median(run["last_ready_s"] for run in some) for name, some in _both(runs, calm_runs)}
    ratio = round(ready["hostile"] / ready["calm"], 3)
    grown = max(run["rss_mib"] for run in runs) - max(run["rss_mib"] for run in calm_runs)
    late = max(run["healthz_s"] for run in runs)
    broken = [failure for run in (*runs, *calm_runs) for failure in run["broken"]]
    if ratio > SLOWER_AT_MOST:
        broken.append(f"the honest lower took {ratio} x as long, at most {SLOWER_AT_MOST}")
    if grown > GROWS_AT_MOST_MIB:
        broken.append(f"the engine was {grown} MiB larger, at most {GROWS_AT_MOST_MIB}")
    if late > LATE_AT_MOST:
        broken.append(f"/healthz took {late} s, at most {LATE_AT_MOST}")
    broken += [f"{run['way']}: the server received no such request" for run in runs if not run["met"]]
    figures = {"ratio": ratio, "median_s": ready, "grown_mib": grown, "healthz_s": late, "ways": len(runs)}
    return {**figures, "sorts": by_sort(runs, calm_runs), "runs": runs, "calm": calm_runs, "broken": broken}


def by_sort(runs: list[dict[str, Any]], calm_runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return for each sort of ways the median as a multiple of the undisturbed one, and the extremes.

    Undisturbed are the runs in which an honest lower received the same requests, whose cost the hostile one does not
    cause.
    """
    return {sort: _of_sort([run for run in runs if run["sort"] == sort], calm_runs) for sort in _sorts(runs)}


def _sorts(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(run["sort"] for run in runs))


def _of_sort(runs: list[dict[str, Any]], calm_runs: list[dict[str, Any]]) -> dict[str, float]:
    sort = runs[0]["sort"]
    is_talked = sort in ON_CLIENT_REQUEST
    alike = [run for run in calm_runs if run["sort"] == sort or not (is_talked or run["sort"] in ON_CLIENT_REQUEST)]
    undisturbed = statistics.median(run["last_ready_s"] for run in alike or calm_runs)
    return {
        "ways": len(runs),
        "ratio": round(statistics.median(run["last_ready_s"] for run in runs) / undisturbed, 3),
        "rss_mib": max(run["rss_mib"] for run in runs),
        "healthz_s": max(run["healthz_s"] for run in runs),
    }


def _both(runs: list[dict[str, Any]], calm_runs: list[dict[str, Any]]) -> tuple[tuple[str, list[dict[str, Any]]], ...]:
    return ("hostile", runs), ("calm", calm_runs)


def main() -> int:
    """Run with the arguments of the command line, and return the exit code."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pods", type=int, default=40, help="the number of pods of the measured Deployment")
    parser.add_argument("--only", nargs="*", choices=list(BEHAVIORS), help="run only these hostile answers")
    parser.add_argument("--every", type=int, default=1, help="the number of hostile answers after each undisturbed run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    parser.add_argument(
        "--sandbox", type=Path, help="the directory of a running sandbox that nothing else uses; default: start one"
    )
    args = parser.parse_args()

    async def played(sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
        """Run the scenario."""
        return await scenario(sandbox, scratch, args)

    kubernetes, found = on_clusters(played, args.sandbox, options=ONE_NODE)
    path = keep(args.results, NAME, kubernetes, {"pods": args.pods, **found})
    return verdict(NAME, found["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
