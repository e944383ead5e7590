"""The CPU that the engine uses to mirror the ConfigMaps and Secrets of pods to a lower cluster for the first time.

    .venv/bin/python -m bench.speed.firstsync --pods 40

Each pod uses fifty of either kind. First they are created in the upper cluster, which the engine observes; then the
pods are created. For comparison, a bare loop in the process of the benchmark lists as many objects in the upper cluster
and creates them in a lower one, which shows how fast the machine is.
"""

import asyncio
import sys
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterable
from statistics import median
from typing import Any

from bench.kit.participants import wait_until_machine_idle
from bench.kit.sites import Manifest, Refused, Site, until, until_gone
from bench.kit.trial import Trial, run
from bench.kit.workload import pod_spec
from bench.speed.steady import at_rest, usage
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

EACH = 50
"""The number of objects of either kind that one pod uses."""
KINDS = {"configmaps": {"data": {"key": "x" * 200}}, "secrets": {"data": {"key": "eHh4" * 50}}}
MS_AT_MOST = 2.5
"""The limit for the CPU milliseconds per object."""
AT_ONCE = 16
A, B = "lower-a", "lower-b"
LIMIT = 300.0
ACCOUNT = "/api/v1/namespaces/{}/serviceaccounts/default"


def path(space: str, plural: str) -> str:
    """Return the path of a collection."""
    return f"/api/v1/namespaces/{space}/{plural}"


def pod(number: int) -> Manifest:
    """Return a pod of lower-a that uses its objects."""
    names = [f"o-{number}-{place}" for place in range(EACH)]
    sources: list[Manifest] = [{"configMap": {"name": name}} for name in names]
    sources += [{"secret": {"name": name}} for name in names]
    for place, source in enumerate(sources):
        next(iter(source.values()))["items"] = [{"key": "key", "path": f"f-{place}"}]
    spec = {**pod_spec(), "nodeName": A, "volumes": [{"name": "all", "projected": {"sources": sources}}]}
    return {"metadata": {"name": f"p-{number}"}, "spec": spec}


async def some_at_once(requests: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Send requests, a few at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def through(request: Callable[[], Awaitable[object]]) -> None:
        """Send one of them."""
        async with gate:
            await request()

    await asyncio.gather(*map(through, requests))


async def space_made(site: Site, name: str) -> None:
    """Create a namespace, and wait until pods can be created in it."""
    await site.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    async def has_account() -> bool:
        """Report whether its default ServiceAccount exists."""
        try:
            return bool(await site.call("GET", ACCOUNT.format(name)))
        except Refused:
            return False

    await until(has_account, f"{name} has its account", LIMIT)


async def made_above(upper: Site, space: str, pods: int) -> None:
    """Create the objects that the pods use, in the upper cluster."""
    names = [f"o-{number}-{place}" for number in range(pods) for place in range(EACH)]
    await some_at_once(
        lambda plural=plural, name=name: upper.call(  # type: ignore[misc]
            "POST", path(space, plural), {"metadata": {"name": name}, **KINDS[plural]}
        )
        for plural in KINDS
        for name in names
    )


async def all_below(lower: Site, space: str, count: int) -> None:
    """Wait until so many of either kind are in the lower cluster.

    Each namespace has one ConfigMap of its own.
    """
    for plural in KINDS:

        async def are_there(plural: str = plural) -> bool:
            """Report whether the lower cluster has that many."""
            found = (await lower.call("GET", f"{path(space, plural)}?limit=1"))["metadata"]
            return int(found.get("remainingItemCount", 0)) + 1 >= count

        await until(are_there, f"{count} {plural} are below", LIMIT)


async def bare(trial: Trial, space: str) -> float:
    """Create the same objects in the other lower cluster, from a list; return the CPU seconds of this process."""
    lower = trial.lowers[B]
    await space_made(lower, space)
    begin = time.process_time()
    for plural in KINDS:
        found = [
            {"metadata": {"name": one["metadata"]["name"]}, "data": one["data"]}
            for one in await trial.upper.items(path(space, plural))
            if one["metadata"]["name"].startswith("o-")
        ]
        await some_at_once(
            lambda one=one, plural=plural: lower.call("POST", path(space, plural), one)  # type: ignore[misc]
            for one in found
        )
    return time.process_time() - begin


async def gone(trial: Trial, space: str) -> None:
    """Delete everything, and wait until the engine is idle."""
    for site in (trial.upper, *trial.lowers.values()):
        await site.delete(f"/api/v1/namespaces/{space}")
    for site in (trial.upper, *trial.lowers.values()):
        await until_gone(site, "/api/v1/namespaces", f"fieldSelector=metadata.name%3D{space}", LIMIT)
    await at_rest(trial)


async def sync(trial: Trial, number: int, pods: int) -> dict[str, float]:
    """Mirror everything once; return milliseconds of CPU per object, and the seconds that it took."""
    space, count = f"sync-{number}", pods * EACH
    await space_made(trial.upper, space)
    await at_rest(trial)
    idle = usage(trial).cpu
    await made_above(trial.upper, space, pods)
    await at_rest(trial)
    after_event = usage(trial).cpu
    begin = time.monotonic()
    await some_at_once(
        lambda one=one: trial.upper.call("POST", path(space, "pods"), pod(one))  # type: ignore[misc]
        for one in range(pods)
    )
    await all_below(trial.lowers[A], space, count)
    took = await at_rest(trial) - begin
    synced = usage(trial).cpu
    loop = await bare(trial, space)
    await gone(trial, space)
    scale = 1000 / (2 * count)
    figures = {
        "heard_ms": after_event - idle,
        "synced_ms": synced - after_event,
        "ms_object": synced - idle,
        "bare_loop_ms": loop,
    }
    return {"seconds": round(took, 2), **{name: round(value * scale, 3) for name, value in figures.items()}}


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Measure some rounds."""
    async with Trial(sandbox) as trial:
        await trial.start_engine_and_nodes()
        runs = []
        for number in range(args.rounds):
            await wait_until_machine_idle()
            runs.append(await sync(trial, number, args.pods))
            print(" ".join(f"{key}={value}" for key, value in runs[-1].items()), flush=True)
    cost = median(one["ms_object"] for one in runs)
    failure = f"an object costs {cost:.2f} ms of CPU, at most {MS_AT_MOST} ms"
    return {"objects": 2 * args.pods * EACH, "runs": runs, "broken": [failure] if cost > MS_AT_MOST else []}


if __name__ == "__main__":
    sys.exit(run("firstsync", scenario, Options(), pods=40, rounds=3, doc=__doc__ or ""))
