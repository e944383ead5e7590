"""A lower cluster with many pods is drained by the topology file: all pods move as fast as their budgets allow.

    .venv/bin/python -m bench.faults.drain --pods 300

Deployments of thirty pods each have a disruption budget that allows a fifth of them to be unavailable. All their pods
run in the first lower cluster when the file is edited. At the end each runs in the other one, and none is left in the
first; at no moment is a budget violated, and no pod is lost or Failed on the way.
"""

import asyncio
import sys
import time
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from typing import Any, Self

import yaml

from bench.kit.oracles import failed, is_ready
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.sites import DEPLOYMENTS, PODS, Manifest, until
from bench.kit.trial import NAMESPACE, Trial, run
from bench.kit.workload import deployment
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
EACH, AWAY = 30, 6
GRACE = 2
MOVED_IN = 300.0


class Budgets:
    """Tracks the number of available pods of each Deployment with a watch; used with `async with`."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._pods: dict[str, tuple[str, bool]] = {}
        self.least: dict[str, int] = {}
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        for pod in await self._trial.upper.items(PODS.format(NAMESPACE)):
            self._take(pod)
        self.least = dict(self._available())
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _follow(self) -> None:
        async for kind, pod in self._trial.upper.watch(PODS.format(NAMESPACE)):
            self._take(pod, gone=kind == "DELETED")
            for name, count in self._available().items():
                self.least[name] = min(self.least.get(name, count), count)

    def _take(self, pod: Manifest, *, gone: bool = False) -> None:
        available = not gone and is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
        self._pods[pod["metadata"]["uid"]] = pod["metadata"]["labels"]["app"], available

    def _available(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for name, available in self._pods.values():
            found[name] += available
        return found


def budget(name: str) -> Manifest:
    """Return the disruption budget of a Deployment."""
    selector = {"matchLabels": {"app": name}}
    return {"metadata": {"name": name}, "spec": {"maxUnavailable": AWAY, "selector": selector}}


def maintained(sandbox: Sandbox, modes: dict[str, str]) -> None:
    """Write the topology file with the maintenance of its lowers atomically."""
    path = sandbox.directory / "topology.yaml"
    topology = yaml.safe_load(path.read_text())
    for lower in topology["lowers"]:
        lower["maintenance"] = modes.get(lower["name"], "none")
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(topology, sort_keys=False))
    fresh.rename(path)


async def filled(trial: Trial, pods: int) -> list[str]:
    """Run all pods in the first lower cluster, each with a PodDisruptionBudget, and return the Deployments' names."""
    names = [f"d-{number}" for number in range(1, max(pods // EACH, 1) + 1)]
    for name in names:
        await trial.upper.call("POST", BUDGETS, budget(name))
        await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), deployment(name, EACH, grace=GRACE))
    await trial.wait_until_settled(len(names) * EACH, MOVED_IN)
    return names


async def moved(trial: Trial, names: list[str], target: str) -> None:
    """Return when every pod is in the target cluster and in no other."""

    async def is_over() -> bool:
        """Report whether every pod has settled in the target cluster."""
        found = await trial.snapshot()
        return (
            len(found.upper) == len(names) * EACH
            and not found.unsettled()
            and all(not pods for name, pods in found.lowers.items() if name != target)
        )

    await until(is_over, f"all pods are in {target}", MOVED_IN)


def refusals(trial: Trial) -> Counter[int]:
    """Count the answers to evictions, by status code."""
    evictions = (one for one in trial.records(UPPER) if (one.get("objectRef") or {}).get("subresource") == "eviction")
    return Counter(one["responseStatus"]["code"] for one in evictions if one["stage"] == "ResponseComplete")


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Fill the first lower cluster, drain it, and observe the move."""
    first, second = (name for name in sandbox.clusters if name != UPPER)
    async with Trial(sandbox) as trial:
        maintained(sandbox, {second: "cordon"})
        trial.start_engine()
        await wait_until_nodes_usable(trial.upper, 1)
        names = await filled(trial, args.pods)
        async with Budgets(trial) as budgets:
            begin = time.monotonic()
            maintained(sandbox, {first: "drain"})
            await moved(trial, names, second)
            seconds = time.monotonic() - begin
        left = await trial.snapshot()
        broken = [f"{name}: {least} available" for name, least in budgets.least.items() if least < EACH - AWAY]
        return {
            "deployments": len(names),
            "seconds": round(seconds, 1),
            "answers": {str(code): count for code, count in sorted(refusals(trial).items())},
            "least_available": min(budgets.least.values()),
            "broken": [*broken, *failed(left.upper)],
        }


if __name__ == "__main__":
    sys.exit(run("drain", scenario, Options(), pods=300, rounds=1, doc=__doc__ or ""))
