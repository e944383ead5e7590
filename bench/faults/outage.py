"""An apiserver is killed under load and restarted: a lower cluster's, then the upper cluster's.

    .venv/bin/python -m bench.faults.outage --pods 200 --rounds 5 [--seed N]

No upper pod fails or runs twice, statuses are right again within ten seconds of /readyz, and pods that are bound to the
other lower cluster become Ready as soon as without the outage: rounds with and without one alternate.

Kubernetes' own controllers and scheduler back off for up to a minute after an outage, and longer after several: the
campaign waits for what they have not created or bound yet, and does not count that against the engine; what is bound
counts. They are restarted after each round, so that their back-off does not affect the next.
"""

import asyncio
import statistics
import sys
import time
from argparse import Namespace
from random import Random
from typing import Any, NamedTuple

from bench.kit import oracles
from bench.kit.participants import wait_until_machine_idle
from bench.kit.sites import DEPLOYMENTS
from bench.kit.trial import NAMESPACE, Trial, run
from bench.kit.workload import deployment
from bench.speed.makespan import all_ready, labelled
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

APISERVER = "kube-apiserver"
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
SETTLED_IN = 240.0
WRONG_AT_MOST = 10.0
SLOWER_AT_MOST = 1.05


class Outage(NamedTuple):
    """The cluster whose apiserver is killed, the delay in seconds after the load began, and the duration in seconds."""

    victim: str
    after: float
    down: float


def draw(seed: int, victims: list[str]) -> list[Outage]:
    """Draw an outage for each victim."""
    chance = Random(seed)
    return [Outage(victim, chance.uniform(0.1, 1.0), chance.uniform(2.0, 4.0)) for victim in victims]


async def load(trial: Trial, tag: str, pods: int) -> list[str]:
    """Create a Deployment of so many pods for every lower, and return their names, which end with the lower's."""
    names = [f"{tag}-{lower}" for lower in trial.lowers]
    for name, lower in zip(names, trial.lowers, strict=True):
        await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), deployment(name, pods, lower))
    return names


async def run_outage(trial: Trial, outage: Outage) -> float:
    """Kill the victim's apiserver after its delay and restart it; return when it was ready (monotonic)."""
    await asyncio.sleep(outage.after)
    trial.sandbox.kill(outage.victim, APISERVER)
    await asyncio.sleep(outage.down)
    await asyncio.to_thread(trial.sandbox.restart, outage.victim, APISERVER)
    return time.monotonic()


async def undisturbed(trial: Trial, tag: str, pods: int, lower: str) -> float:
    """Load all lowers, and return the seconds until the last pod of one of them is Ready."""
    begin = time.monotonic()
    names = await load(trial, tag, pods)
    found = await all_ready(trial.upper, labelled(f"{tag}-{lower}"), pods, begin)
    await trial.wait_until_settled(pods * len(names))
    await trial.remove(*names)
    return max(found.ready.values())


async def lower_outage(trial: Trial, tag: str, pods: int, outage: Outage) -> dict[str, Any]:
    """Load all lower clusters, one of which fails; the pods of another are timed."""
    other = next(name for name in trial.lowers if name != outage.victim)
    begin = time.monotonic()
    names = await load(trial, tag, pods)
    timing = asyncio.create_task(all_ready(trial.upper, labelled(f"{tag}-{other}"), pods, begin))
    back = await run_outage(trial, outage)
    found = await timing
    result = await afterwards(trial, outage, names, back, pods)
    return {**result, "other_s": round(max(found.ready.values()), 3)}


async def upper_outage(trial: Trial, tag: str, pods: int, outage: Outage) -> dict[str, Any]:
    """Load all lower clusters while the upper cluster fails."""
    names = await load(trial, tag, pods)
    return await afterwards(trial, outage, names, await run_outage(trial, outage), pods)


async def afterwards(trial: Trial, outage: Outage, names: list[str], back: float, pods: int) -> dict[str, Any]:
    """Observe the pods from the time at which the apiserver was ready again, and remove them."""
    seen = await trial.observe(back, pods * len(names), SETTLED_IN)
    settled = time.monotonic() - back
    for controller in CONTROLLERS:
        await asyncio.to_thread(trial.sandbox.restart, outage.victim, controller)
    await trial.remove(*names)
    twice = oracles.created_twice({name: trial.records(name) for name in trial.lowers})
    late = [f"wrong for {seen.wrong_time.longest:.1f} s after {outage.victim} was back: {seen.wrong_time.description}"]
    broken = [*seen.broken, *twice, *(late if seen.wrong_time.longest > WRONG_AT_MOST else [])]
    fields = {"victim": outage.victim, "after_s": round(outage.after, 3), "down_s": round(outage.down, 3)}
    return {
        **fields,
        "wrong_s": round(seen.wrong_time.longest, 2),
        "settled_s": round(settled, 2),
        "broken": broken,
    }


async def outages(trial: Trial, seed: int, pods: int, rounds: int) -> dict[str, Any]:
    """Run all rounds, and return the result with the failures."""
    lowers = list(trial.lowers)
    drawn = draw(seed, [lowers[number % len(lowers)] for number in range(rounds)] + [UPPER] * rounds)
    calm_s, runs = [], []
    for number, outage in enumerate(drawn):
        if outage.victim == UPPER:
            runs.append(await upper_outage(trial, f"upper-{number}", pods, outage))
        else:
            other = next(name for name in lowers if name != outage.victim)
            await wait_until_machine_idle()
            calm_s.append(round(await undisturbed(trial, f"calm-{number}", pods, other), 3))
            await wait_until_machine_idle()
            runs.append(await lower_outage(trial, f"lower-{number}", pods, outage))
        print(" ".join(f"{key}={value}" for key, value in runs[-1].items()), flush=True)
    broken = [failure for one in runs for failure in one["broken"]]
    slower = statistics.median(one["other_s"] for one in runs if "other_s" in one) / statistics.median(calm_s)
    return {"calm_s": calm_s, "runs": runs, "other_ratio": round(slower, 3), "broken": broken}


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Run with the arguments of the command line; the delay of the other lower cluster counts too."""
    async with Trial(sandbox) as trial:
        await trial.start_engine_and_nodes()
        result = await outages(trial, args.seed, args.pods // len(trial.lowers), args.rounds)
    if result["other_ratio"] > SLOWER_AT_MOST:
        result["broken"].append(f"the other lower took {result['other_ratio']} x as long, at most {SLOWER_AT_MOST}")
    return result


if __name__ == "__main__":
    sys.exit(run("outage", scenario, Options(), pods=200, rounds=5, doc=__doc__ or ""))
