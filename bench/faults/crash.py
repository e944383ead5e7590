"""The engine is killed at random times while pods are created, deleted and scaled, and restarted each time.

    .venv/bin/python -m bench.faults.crash --pods 150 --rounds 10 [--seed N]

At the end every living upper pod has exactly one lower pod, no lower pod is without an upper pod, deleted pods are
gone, no pod was ever created twice, and then nothing is written except leases and heartbeats.
"""

import asyncio
import sys
import time
from argparse import Namespace
from typing import Any

from bench.faults.crash_plan import Edit, Round, draw, standing
from bench.kit import audit, oracles
from bench.kit.sites import DEPLOYMENTS, MERGE, PODS, until
from bench.kit.trial import AGENT, NAMESPACE, Snapshot, Trial, run
from bench.kit.workload import deployment, pod
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

GRACE = 30
STARTED = 30.0


async def edit(trial: Trial, wanted: Edit) -> str:
    """Make one edit in the upper cluster, and return the UID of the deleted object, or ""."""
    pods, deployments = PODS.format(NAMESPACE), DEPLOYMENTS.format(NAMESPACE)
    match wanted.verb:
        case "deploy":
            await trial.upper.call("POST", deployments, deployment(wanted.name, wanted.replicas, grace=GRACE))
        case "scale":
            size = {"spec": {"replicas": wanted.replicas}}
            await trial.upper.call("PATCH", f"{deployments}/{wanted.name}", size, MERGE)
        case "create":
            await trial.upper.call("POST", pods, pod(wanted.name, "single"))
        case "delete":
            return str((await trial.upper.call("DELETE", f"{pods}/{wanted.name}"))["metadata"]["uid"])
    return ""


async def one_life(trial: Trial, life: Round) -> list[str]:
    """Start the engine, make the edits while it runs, kill it, and return the UIDs of the deleted pods."""

    async def edits() -> list[str]:
        """Make the edits, one after the other, from their start time on."""
        await asyncio.sleep(life.begin)
        return [uid for wanted in life.edits if (uid := await edit(trial, wanted))]

    child = trial.start_engine()
    if not life.early:
        await until(child.has_started, "the engine has started", STARTED)
    editing = asyncio.create_task(edits())
    await asyncio.sleep(life.kill)
    assert child.is_running, f"the engine ended by itself; see {trial.log}"
    child.kill()
    return await editing


async def crash(trial: Trial, lives: list[Round], quiet: float) -> dict[str, Any]:
    """Run and kill the engine so many times, then let it run, and return the result with the failures."""
    deleted: list[str] = []
    written = []
    for number, life in enumerate(lives, 1):
        before = sum(writes(trial).values())
        deleted += await one_life(trial, life)
        written.append(sum(writes(trial).values()) - before)
        print(f"round {number}: killed after {life.kill:.2f} s and {written[-1]} writes", flush=True)
    begin = time.monotonic()
    await until(trial.start_engine().has_started, "the engine has started", STARTED)
    await trial.wait_until_settled(standing(lives))
    recovered = round(time.monotonic() - begin, 2)
    silence = await trial.wait_idle(quiet)
    found = await trial.snapshot()
    broken = [*found.unsettled(), *judge(trial, found, deleted)]
    broken += [failure for name, kept in silence.items() for failure in oracles.not_quiet(kept, quiet, name)]
    await trial.clear()
    result = {"kills_s": [round(life.kill, 3) for life in lives], "writes_before_kill": written}
    return {**result, "pods_left": len(found.upper), "recovered_s": recovered, "quiet_s": quiet, "broken": broken}


def judge(trial: Trial, found: Snapshot, deleted: list[str]) -> list[str]:
    """Check the final state, and all requests to the clusters on the way, against the oracles."""
    lowers = {name: trial.records(name) for name in trial.lowers}
    left = [oracles.still_there(pods, deleted, name) for name, pods in {UPPER: found.upper, **found.lowers}.items()]
    swept = [oracles.swept(records, AGENT) for records in (trial.records(UPPER), *lowers.values())]
    return [
        *oracles.not_once_below(found.upper, found.lowers),
        *oracles.orphans(found.upper, found.lowers),
        *oracles.living_twice(found.lowers),
        *oracles.created_twice(lowers),
        *oracles.failed(found.upper),
        *(failure for each in (*left, *swept) for failure in each),
    ]


def writes(trial: Trial) -> dict[str, int]:
    """Count the engine's writes in each cluster, except those of leases."""
    names = (UPPER, *trial.lowers)
    return {name: len(audit.writes(trial.records(name), AGENT, without=("leases",))) for name in names}


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Run with the arguments of the command line."""
    async with Trial(sandbox) as trial:
        return await crash(trial, draw(args.seed, args.pods, args.rounds, "crash"), args.quiet)


if __name__ == "__main__":
    sys.exit(run("crash", scenario, Options(), pods=150, rounds=10, doc=__doc__ or ""))
