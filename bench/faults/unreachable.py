"""A lower cluster becomes unreachable under a running workload, again and again, and comes back.

    .venv/bin/python -m bench.faults.unreachable --pods 40 --rounds 20 [--seed N]
    .venv/bin/python -m bench.faults.unreachable --long

Its apiserver is killed or stopped, or only the engine is disconnected from it while the cluster keeps running: for a
moment, for longer than until its node accepts no more pods, or for longer than until its pods become unready; with
`--long` once for ten minutes. During the outage an upper pod is deleted, and if the cluster keeps running, another
client deletes a lower pod. No pod fails except the upper pod of that one, none runs twice in any clusters, and fifteen
seconds after the return nothing is left for the engine to do. As in `bench.faults.outage`, delays of Kubernetes' own
controllers do not count.
"""

import asyncio
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any, NamedTuple

from bench.faults.outage import APISERVER, CONTROLLERS, load
from bench.kit import oracles
from bench.kit.oracles import Manifest, name_of, uid_of, upper_uid_of
from bench.kit.sites import PODS, patiently, until
from bench.kit.trial import NAMESPACE, Snapshot, Trial, run
from bench.kit.wrong_time import WrongTime
from bench.speed.isolation import DelayingProxy, delaying_proxy
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

WAYS = ("parted", "killed", "frozen")
CONVERGED_IN = 15.0
SETTLED_IN = 240.0
LONG = 600.0
LOST = "LowerPodLost"


class Absence(NamedTuple):
    """The lower cluster that is unreachable, the way of the outage, and its duration in seconds."""

    victim: str
    way: str
    seconds: float


def draw(seed: int, rounds: int, lowers: list[str]) -> list[Absence]:
    """Draw absences: every tenth makes pods unready, and each fifth between them makes the node unschedulable.

    The longest leave the cluster itself alone: without its apiserver its own nodes would become NotReady, and those of
    the sandbox have no kubelets that would make their pods ready again.
    """
    chance = Random(seed)
    found = []
    for number in range(1, rounds + 1):
        bounds = (41.0, 44.0) if number % 10 == 0 else (11.0, 13.0) if number % 5 == 0 else (1.5, 5.0)
        way = "parted" if number % 10 == 0 else WAYS[number % len(WAYS)]
        found.append(Absence(lowers[number % len(lowers)], way, chance.uniform(*bounds)))
    return found


def left(found: Snapshot) -> dict[str, str]:
    """Return the engine's remaining work by description; an unready pod does not count, which is the kubelet's work."""
    wrong = [f"{name_of(pod)} is not gone" for pod in found.upper if "deletionTimestamp" in pod["metadata"]]
    wrong += oracles.not_once_below(found.upper, found.lowers) + oracles.orphans(found.upper, found.lowers)
    return {long_help: long_help for long_help in wrong} | oracles.unlike(found.upper, found.lowers)


class ReturnChecks:
    """The observations from the return on (monotonic seconds); `ended` are the upper UIDs of deleted lower pods."""

    def __init__(self, begin: float, ended: frozenset[str]) -> None:
        self.wrong_time = WrongTime(begin)
        self.ended = ended
        self.lost: set[str] = set()
        self.broken: set[str] = set()

    def update(self, now: float, found: Snapshot) -> None:
        """Evaluate a snapshot: only deleted lower pods may fail, with the right reason, and no pod lives twice."""
        self.wrong_time.update(now, left(found))
        fallen = [pod for pod in found.upper if pod["status"].get("phase") == "Failed"]
        self.lost |= {uid_of(pod) for pod in fallen if pod["status"].get("reason") == LOST} & self.ended
        others = [pod for pod in fallen if uid_of(pod) not in self.lost]
        self.broken |= {*oracles.failed(others), *oracles.living_twice(found.lowers)}

    def verdict(self) -> list[str]:
        """Return the failures."""
        late = [f"{self.wrong_time.longest:.1f} s after the return: {self.wrong_time.description}"]
        unsaid = [f"{uid} was ended below and does not say {LOST}" for uid in sorted(self.ended - self.lost)]
        return [*sorted(self.broken), *unsaid, *(late if self.wrong_time.longest > CONVERGED_IN else [])]


@asynccontextmanager
async def out_of_reach(trial: Trial, way: DelayingProxy, absence: Absence) -> AsyncIterator[None]:
    """Make a lower cluster unreachable for the engine."""
    sandbox, victim = trial.sandbox, absence.victim
    match absence.way:
        case "killed":
            sandbox.kill(victim, APISERVER)
        case "frozen":
            sandbox.suspend(victim, APISERVER)
        case _:
            await way.disconnect()
    yield
    match absence.way:
        case "killed":
            await asyncio.to_thread(sandbox.restart, victim, APISERVER)
        case "frozen":
            sandbox.resume(victim, APISERVER)
        case _:
            way.restore()


async def edit_meanwhile(trial: Trial, absence: Absence, found: Snapshot) -> frozenset[str]:
    """Delete an upper pod of the victim, and if the victim runs, another lower pod; return the UID of the latter."""
    deleted, other, *_ = sorted(oracles.name_of(pod) for pod in found.upper if _is_at(pod, absence.victim))
    await trial.upper.delete(_path(deleted))
    if absence.way != "parted":
        return frozenset()
    await trial.lowers[absence.victim].delete(f"{_path(other)}?gracePeriodSeconds=0")
    return frozenset(upper_uid_of(pod) for pod in found.lowers[absence.victim] if name_of(pod) == other)


def _is_at(pod: Manifest, node: str) -> bool:
    return oracles.is_living(pod) and pod["spec"].get("nodeName") == node


def _path(pod: str) -> str:
    return f"{PODS.format(NAMESPACE)}/{pod.rpartition('/')[2]}"


async def returned(trial: Trial, begin: float, pods: int, ended: frozenset[str]) -> ReturnChecks:
    """Observe until so many pods are settled; delete the pods that failed as they should."""
    seen = ReturnChecks(begin, ended)

    async def holds() -> bool:
        """Take a snapshot and report whether it is settled."""
        found = await trial.snapshot()
        seen.update(time.monotonic(), found)
        for pod in found.upper:
            if uid_of(pod) in seen.lost:
                await trial.upper.delete(_path(name_of(pod)))
        return len(found.upper) == pods and not found.unsettled() and seen.lost == seen.ended

    await until(holds, f"{pods} pods settled, of which the last were {seen.wrong_time.description}", SETTLED_IN)
    return seen


async def outage(trial: Trial, ways: Mapping[str, DelayingProxy], absence: Absence, pods: int) -> dict[str, Any]:
    """Cut off one lower cluster while so many pods run in all, and return the result with the failures."""
    before = await trial.wait_until_settled(pods)
    begin = time.monotonic()
    async with out_of_reach(trial, ways[absence.victim], absence):
        ended = await edit_meanwhile(trial, absence, before)
        await asyncio.sleep(max(begin + absence.seconds - time.monotonic(), 0.0))
    seen = await returned(trial, time.monotonic(), pods, ended)
    if absence.way != "parted":
        for controller in CONTROLLERS:
            await asyncio.to_thread(trial.sandbox.restart, absence.victim, controller)
    fields = {"victim": absence.victim, "way": absence.way, "away_s": round(absence.seconds, 1)}
    return {
        **fields,
        "converged_s": round(seen.wrong_time.longest, 2),
        "lost": len(seen.lost),
        "broken": seen.verdict(),
    }


async def outages(
    trial: Trial, ways: Mapping[str, DelayingProxy], absences: list[Absence], pods: int
) -> dict[str, Any]:
    """Run a workload through every outage, and return the result with the failures."""
    names = await load(trial, "away", pods // len(trial.lowers))
    pods = len(names) * (pods // len(trial.lowers))
    runs = []
    for absence in absences:
        runs.append(await outage(trial, ways, absence, pods))
        print(" ".join(f"{key}={value}" for key, value in runs[-1].items()), flush=True)
    await patiently(lambda: trial.remove(*names), SETTLED_IN)
    twice = oracles.created_twice({name: trial.records(name) for name in trial.lowers})
    broken = [long_help for one in runs for long_help in one["broken"]] + twice
    return {"converged_s": max(one["converged_s"] for one in runs), "runs": runs, "broken": broken}


@asynccontextmanager
async def reached(sandbox: Sandbox) -> AsyncIterator[tuple[Trial, dict[str, DelayingProxy]]]:
    """Yield a trial whose engine runs, and its connections to the lower clusters."""
    async with AsyncExitStack() as stack:
        lowers = [name for name in sandbox.clusters if name.startswith("lower-")]
        ways = {name: await stack.enter_async_context(delaying_proxy(sandbox, name)) for name in lowers}
        trial = await stack.enter_async_context(Trial(sandbox))
        await trial.start_engine_and_nodes()
        yield trial, ways


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Run with the arguments of the command line."""
    async with reached(sandbox) as (trial, ways):
        lowers = list(trial.lowers)
        once = [Absence(lowers[0], WAYS[0], LONG)]
        return await outages(trial, ways, once if args.long else draw(args.seed, args.rounds, lowers), args.pods)


if __name__ == "__main__":
    long_help = f"make one lower unreachable once, for {LONG:g} s"
    sys.exit(run("away", scenario, Options(), pods=40, rounds=20, doc=__doc__ or "", long=long_help))
