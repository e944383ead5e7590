"""The engine is down for longer than a cluster waits for a node, and comes back.

    .venv/bin/python -m bench.faults.pause --pods 50 --rounds 2

A canary determines that time: a pod on a node that becomes silent together with the engine, and that is evicted like
any other pod. The mirrored pods stay the same objects, none of their containers is restarted, and all become Ready.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from bench.kit import audit, oracles
from bench.kit.child_processes import Child
from bench.kit.participants import is_usable, wait_until_nodes_usable
from bench.kit.sites import DEPLOYMENTS, NODES, PODS, until
from bench.kit.trial import NAMESPACE, Trial, run
from bench.kit.workload import deployment
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

CANARY = "canary"
CANARIES = PODS.format("kube-public")
WAYS: tuple[tuple[str, Callable[[Child], object]], ...] = (("SIGTERM", Child.stop), ("SIGKILL", Child.kill))
EVICTION = 60.0
OPTIONS = Options(compressed_eviction=True)


async def place_canary(trial: Trial, name: str) -> None:
    """Create a node without heartbeats, with a running pod of its name; each name is used only once."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    room = {"cpu": "1", "pods": "1"}
    node = {"metadata": {"name": name}, "status": {"conditions": [ready], "capacity": room, "allocatable": room}}
    await trial.upper.call("POST", NODES, node)
    spec = {"nodeName": name, "containers": [{"name": "c", "image": "none"}]}
    await trial.upper.call("POST", CANARIES, {"metadata": {"name": name}, "spec": spec})


async def until_evicted(trial: Trial, name: str) -> None:
    """Return when the canary is being evicted and our nodes are unusable too; delete the canary and its node."""

    async def is_evicted() -> bool:
        """Report whether the canary is being deleted and none of our nodes is usable."""
        canary = await trial.upper.call("GET", f"{CANARIES}/{name}")
        nodes = [await trial.upper.call("GET", f"{NODES}/{lower}") for lower in trial.lowers]
        return "deletionTimestamp" in canary["metadata"] and not any(map(is_usable, nodes))

    await until(is_evicted, "the canary is evicted", EVICTION)
    await trial.upper.delete(f"{CANARIES}/{name}?gracePeriodSeconds=0")
    await trial.upper.delete(f"{NODES}/{name}")


async def pause(trial: Trial, way: str, end: Callable[[Child], object], pods: int) -> dict[str, Any]:
    """Run pods, stop the engine for long enough, restart it, and return the result with the failures."""
    name = f"{CANARY}-{way.lower()}-{time.time_ns() // 1_000_000}"
    await trial.start_engine_and_nodes()
    await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), deployment(name, pods, grace=30))
    before = await trial.wait_until_settled(pods)
    positions = {site.name: audit.position(site.audit_log) for site in (trial.upper, *trial.lowers.values())}
    begin = time.monotonic()
    assert trial.engine is not None
    end(trial.engine)
    await place_canary(trial, name)
    await until_evicted(trial, name)
    away = time.monotonic() - begin
    begin = time.monotonic()
    trial.start_engine()
    after = await trial.wait_until_settled(pods)
    await wait_until_nodes_usable(trial.upper, len(trial.lowers))
    back = time.monotonic() - begin
    broken = oracles.replaced(before.upper, after.upper, UPPER) + oracles.not_ready(after.upper, UPPER)
    for lower in trial.lowers:
        broken += oracles.replaced(before.lowers[lower], after.lowers[lower], lower)
    for site in (trial.upper, *trial.lowers.values()):
        records = audit.read(site.audit_log, positions[site.name])
        broken += oracles.deletions(one for one in records if one.get("objectRef", {}).get("name") != name)
    await trial.remove(name)
    assert trial.engine is not None
    trial.engine.stop()
    return {"way": way, "away_s": round(away, 1), "all_ready_s": round(back, 2), "broken": broken}


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Run with the arguments of the command line, with alternating ways of stopping the engine."""
    runs = []
    for number in range(args.rounds):
        async with Trial(sandbox) as trial:
            runs.append(await pause(trial, *WAYS[number % len(WAYS)], args.pods))
        print(" ".join(f"{key}={value}" for key, value in runs[-1].items()), flush=True)
    return {"runs": runs, "broken": [failure for one in runs for failure in one["broken"]]}


if __name__ == "__main__":
    sys.exit(run("pause", scenario, OPTIONS, pods=50, rounds=2, doc=__doc__ or ""))
