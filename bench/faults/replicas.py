"""Two engines of one topology under load: the leader is terminated, killed or paused, and the other takes over.

    .venv/bin/python -m bench.faults.replicas --pods 300 --rounds 10 --pause 60

Each way has its own round. The leader is stopped while the pods of a Deployment are being created; the measured time is
until the other engine acts. A paused leader resumes afterwards, unaware of the pause, with pending writes that the
other has made in the meantime: it has to end, and to have done no harm. At the end of a round every pod runs once in
the lower clusters, none failed, and none was created twice.
"""

import asyncio
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bench.kit import oracles
from bench.kit.child_processes import Child
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.rig import with_own_ports
from bench.kit.sites import DEPLOYMENTS, PODS, until
from bench.kit.trial import NAMESPACE, Trial, run
from bench.kit.workload import deployment
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

STARTED = 30.0
ENDS = 15.0
"""Seconds in which a leader that was paused has to notice that it is no longer the leader."""
SHARE = 0.3
"""The share of the pods that are Ready when the leader is stopped."""
LOST = 1
"""The exit code of an engine that is no longer the leader."""


class HandOver(NamedTuple):
    """A way of stopping a leader, and the seconds after which the other has to act."""

    name: str
    go: Callable[[Child], object]
    bar: float


WAYS = (
    HandOver("SIGTERM", Child.stop, 5.0),
    HandOver("SIGKILL", Child.kill, 20.0),
    HandOver("SIGSTOP", Child.suspend, 20.0),
)


class Replicas:
    """The engines of the sandbox's topology, each with its own ports; `driving` is the leader."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.files = [_topology(trial.sandbox, number) for number in (1, 2)]
        self.children = [self._child(number) for number in (0, 1)]
        self.driving = -1

    async def led(self) -> float:
        """Wait until an engine leads that did not before, and return the seconds that it took."""
        begin, before = time.monotonic(), self.driving

        async def leads() -> bool:
            """Report whether another engine has logged that it started."""
            for number, child in enumerate(self.children):
                if number != before and await child.has_started():
                    self.driving = number
            return self.driving != before

        await until(leads, "an engine leads", STARTED)
        return time.monotonic() - begin

    def again(self) -> None:
        """Start the engines that have ended."""
        self.children = [one if one.is_running else self._child(number) for number, one in enumerate(self.children)]

    def end(self) -> None:
        """Kill all engines."""
        for child in self.children:
            child.kill()

    def _child(self, number: int) -> Child:
        options = ["-f", str(self.files[number]), "--log-format", "json", "--leader-elect"]
        log = self._trial.log if number == 0 else self._trial.log.with_name("other-engine.log")
        return Child(["tensile", "run", *options], self._trial.sandbox, log)


def _topology(sandbox: Sandbox, number: int) -> Path:
    """Write the sandbox's topology for one of the engines."""
    found, _ = with_own_ports(sandbox)
    path = sandbox.directory / f"replica-{number}.yaml"
    path.write_bytes(orjson.dumps(found))
    return path


async def hand_over(trial: Trial, replicas: Replicas, way: HandOver, args: Namespace) -> dict[str, Any]:
    """Stop a leader while pods are created, and return the measurements and the failures."""
    name = f"replicas-{time.time_ns() // 1_000_000}"
    await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), deployment(name, args.pods))
    await until(lambda: _are_ready(trial, args.pods * SHARE), "some pods are Ready", STARTED)
    gone = replicas.children[replicas.driving]
    begin = time.monotonic()
    way.go(gone)
    await replicas.led()
    taken = time.monotonic() - begin
    broken = [] if taken <= way.bar else [f"{way.name}: the other drives after {taken:.1f} s"]
    settled = await trial.wait_until_settled(args.pods)
    if way.name == "SIGSTOP":
        await asyncio.sleep(max(0.0, begin + args.pause - time.monotonic()))
        broken += await _resumed(gone)
        settled = await trial.wait_until_settled(args.pods)
    broken += [*settled.unsettled(), *oracles.failed(settled.upper), *oracles.living_twice(settled.lowers)]
    broken += oracles.created_twice({lower: trial.records(lower) for lower in trial.lowers})
    await trial.remove(name)
    run = {"way": way.name, "drives_after_s": round(taken, 2), "broken": broken}
    print(" ".join(f"{key}={value}" for key, value in run.items()), flush=True)
    return run


async def _are_ready(trial: Trial, wanted: float) -> bool:
    return sum(map(oracles.is_ready, await trial.upper.items(PODS.format(NAMESPACE)))) >= wanted


async def _resumed(child: Child) -> list[str]:
    """Resume a paused leader; return what is wrong with its end."""
    child.resume()

    async def has_ended() -> bool:
        """Report whether the engine has ended."""
        return not child.is_running

    await until(has_ended, "the engine that was paused has ended", ENDS)
    code = child.stop()
    return [] if code == LOST else [f"the engine that was paused ended with {code}"]


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Hand over in every way, in all rounds."""
    runs = []
    async with Trial(sandbox) as trial:
        replicas = Replicas(trial)
        try:
            await replicas.led()
            await wait_until_nodes_usable(trial.upper, len(trial.lowers))
            for number in range(args.rounds):
                for way in WAYS:
                    runs.append({"round": number + 1, **await hand_over(trial, replicas, way, args)})
                    replicas.again()
                    await asyncio.sleep(1)
        finally:
            replicas.end()
    slowest = {way.name: max(one["drives_after_s"] for one in runs if one["way"] == way.name) for way in WAYS}
    return {"slowest_s": slowest, "runs": runs, "broken": [failure for one in runs for failure in one["broken"]]}


def arguments(parser: ArgumentParser) -> None:
    """Add the option for how long a leader is paused."""
    parser.add_argument("--pause", type=float, default=60.0, help="the seconds that a suspended leader stays suspended")


if __name__ == "__main__":
    sys.exit(run("replicas", scenario, Options(), pods=300, rounds=10, doc=__doc__ or "", arguments=arguments))
