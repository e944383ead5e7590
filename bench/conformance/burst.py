"""Sends a burst of equal pods to lower clusters that are nine tenths full, with and without the scheduler extender.

    .venv/bin/python -m bench.conformance.burst --pods 500

Each lower node has capacity for slightly more than four of the pods, so the sum that a virtual node shows is more than
its nodes hold, and there are more pods than capacity. With the extender, as many pods run as fit, the others stay
pending in the upper cluster, and no lower pod is ever Pending for want of a node. A round without the extender is
measured for comparison.
"""

import asyncio
import sys
import time
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from typing import Any, Self

import yaml

from bench.kit.oracles import is_ready
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.sites import DEPLOYMENTS, NODES, PODS, Manifest, Site, until
from bench.kit.trial import NAMESPACE, Snapshot, Trial, run
from bench.kit.workload import deployment
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

EACH = 4
"""Pods that fit on a node."""
CPU, FULL = "700m", "28800m"
SPARE = 2.0
"""Seconds for the engine to observe the pods that fill the nodes."""
LIMIT = 180.0


class Refusals:
    """The lower pods that had no node at any moment, as watches report them; used with `async with`."""

    def __init__(self, lowers: list[Site]) -> None:
        self._lowers = lowers
        self.seen: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._follow(site)) for site in self._lowers]
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _follow(self, site: Site) -> None:
        async for kind, pod in site.watch(PODS.format(NAMESPACE)):
            if kind != "DELETED" and is_refused(pod):
                self.seen.add(pod["metadata"]["uid"])


def is_refused(pod: Manifest) -> bool:
    """Report whether a scheduler found no node for a pod."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    scheduled = next((one for one in conditions if one["type"] == "PodScheduled"), {})
    return scheduled.get("status") == "False" and "nodeName" not in pod["spec"]


def places(nodes: int, lowers: int) -> int:
    """Return how many of the pods fit."""
    return EACH * nodes * lowers


def stranger(node: str) -> Manifest:
    """Return the pod that occupies nine tenths of a node."""
    container = {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": FULL}}}
    return {"metadata": {"name": f"full-{node}"}, "spec": {"nodeName": node, "containers": [container]}}


def burst(pods: int) -> Manifest:
    """Return the Deployment."""
    made = deployment("burst", pods)
    made["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": CPU}}
    return made


async def fill(trial: Trial) -> None:
    """Fill nine tenths of every lower node with pods that the engine does not own."""
    for site in trial.lowers.values():
        for node in await site.items(NODES):
            await site.call("POST", PODS.format(NAMESPACE), stranger(node["metadata"]["name"]))
    await asyncio.sleep(SPARE)


def switch(sandbox: Sandbox, *, enabled: bool) -> None:
    """Switch the extender on or off in the topology file, with one atomic replacement."""
    path = sandbox.directory / "topology.yaml"
    topology = yaml.safe_load(path.read_text())
    topology["extender"]["enabled"] = enabled
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(topology, sort_keys=False))
    fresh.rename(path)


async def one(trial: Trial, pods: int, room: int) -> dict[str, Any]:
    """Create the burst, and return where its pods are in the end."""
    begin = time.monotonic()
    async with Refusals(list(trial.lowers.values())) as refusals:
        await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), burst(pods))
        found = await _settled(trial, pods, room)
        seconds = time.monotonic() - begin
    states = Counter(state_of(pod) for pod in found.upper)
    await trial.remove("burst")
    return {"seconds": round(seconds, 1), **states, "had_no_node_below": len(refusals.seen)}


def state_of(pod: Manifest) -> str:
    """Return where a pod of the upper cluster is."""
    if is_ready(pod):
        return "running"
    return "pending_below" if pod["spec"].get("nodeName") else "pending_above"


async def _settled(trial: Trial, pods: int, room: int) -> Snapshot:
    """Return the pods after as many run as fit and every other one is unschedulable or has a node."""
    found = Snapshot([], {})

    async def is_over() -> bool:
        """Read every cluster, and report whether the burst has settled."""
        nonlocal found
        found = await trial.snapshot()
        decided = sum(is_refused(pod) or bool(pod["spec"].get("nodeName")) for pod in found.upper)
        return sum(map(is_ready, found.upper)) == room and len(found.upper) == decided == pods

    await until(is_over, f"{room} of {pods} pods run, and the others report that there is no room", LIMIT)
    return found


def judged(refusals: dict[str, Any], room: int, pods: int) -> list[str]:
    """Return in which counts the burst with the extender differs from what is expected."""
    wanted = {"running": room, "pending_above": pods - room, "pending_below": 0, "had_no_node_below": 0}
    return [
        f"{field}: {refusals.get(field, 0)}, not {count}"
        for field, count in wanted.items()
        if refusals.get(field, 0) != count
    ]


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Send the burst with the extender in every round, and once without it."""
    lowers = [name for name in sandbox.clusters if name != UPPER]
    pods = args.pods
    room = min(pods, places(sandbox.state().options.nodes, len(lowers)))
    async with Trial(sandbox) as trial:
        await fill(trial)
        trial.start_engine()
        await wait_until_nodes_usable(trial.upper, len(lowers))
        await asyncio.sleep(SPARE)
        with_extender = [await one(trial, pods, room) for _ in range(args.rounds)]
        switch(sandbox, enabled=False)
        await asyncio.sleep(SPARE)
        blind = await one(trial, pods, room)
    print({"asked": with_extender, "blind": blind}, flush=True)
    broken = [failure for found in with_extender for failure in judged(found, room, pods)]
    return {"room": room, "with_extender": with_extender, "without": blind, "broken": broken}


if __name__ == "__main__":
    size = Options(nodes=50, extender=True)
    sys.exit(run("burst", scenario, size, pods=500, rounds=3, doc=__doc__ or ""))
