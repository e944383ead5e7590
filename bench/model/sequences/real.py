"""Random sequences on real control planes: the engine as a process behind fault proxies, checked by the same model.

    .venv/bin/python -m bench.model.sequences.real [--count 200] [--seed 1] [--concurrency 16] [--sandbox DIR]

Each sequence has a namespace of its own, and many run at a time on one engine. Users create, change, delete and
recreate objects; other clients end, edit and delete the lower copies and create objects with the same names. One in
four of the engine's writes in a namespace is dropped, delayed or refused, or loses its answer. From time to time the
engine crashes for all sequences, or a cluster's connections break, its watches are late, or it hangs. There are no
claims, because no driver provisions volumes here. A sequence that fails is printed with its seed and its history.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.kit.clusters import on_clusters
from bench.kit.faultproxy.faults import Delayed, Dropped, Fault, Lost, Passed, Refused, Torn
from bench.kit.faultproxy.proxy import PassThrough
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import NotInTime, until
from bench.kit.trial_namespace import TrialNamespace
from bench.model.sequences.actions import RANGE, Action
from bench.model.sequences.model import PODS
from bench.model.sequences.real_namespace import RealNamespace
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NAME = "faults-sequences-real"
FAULTS: tuple[Fault, ...] = (
    Dropped(), Lost(), Lost(), Torn(), Delayed(0.3), Delayed(1.0),
    Refused(409), Refused(429, 1), Refused(503), Refused(500),
)  # fmt: skip
ONE_IN = 4
"""One in so many writes gets a fault."""
SHARED_FAULTS = ("crash", "crash", "cut", "hold", "hang")
APART = 3.0
"""The least number of seconds between two faults that affect all sequences."""
HELD = 1.5
SORTS = (
    "pod", "pod", "pod", "pod", "delete", "delete", "again", "serve", "change", "change", "unmake", "kill", "evict",
    "drift", "unseat", "stranger", "stranger", "leave", "wait", "wait", "wait", "wait", "wait", "storm",
)  # fmt: skip
MOST = 30
PATIENCE = 60.0
"""Seconds in which a namespace must be right after its last action, while other sequences go on."""
_CLUSTERS = (UPPER, *LOWERS)


class FaultPlan(PassThrough):
    """Injects faults into the writes in `namespaces`, and from time to time faults that affect all sequences."""

    def __init__(self, rig: Rig, random: Random) -> None:
        self.namespaces: set[str] = set()
        self.applied: Counter[str] = Counter()
        self._rig = rig
        self._random = random
        self._last = time.monotonic()
        self._shared_faults: dict[str, Callable[[str], Awaitable[object]]] = {
            "crash": self._crash,
            "cut": self._cut,
            "hold": self._hold,
            "hang": self._hang,
        }

    async def fault_for(self, request: ProxiedRequest) -> Fault:
        """Return the fault of a request."""
        if not request.is_write or request.namespace not in self.namespaces or self._random.randrange(ONE_IN):
            return Passed()
        fault = self._random.choice(FAULTS)
        self.applied[type(fault).__name__.lower()] += 1
        return fault

    async def apply_to_all(self, number: int) -> None:
        """Apply a fault to all sequences, unless the last one was a moment ago."""
        if time.monotonic() - self._last > APART:
            self._last = time.monotonic()
            sort = SHARED_FAULTS[number % len(SHARED_FAULTS)]
            self.applied[sort] += 1
            await self._shared_faults[sort](_CLUSTERS[number // len(SHARED_FAULTS) % len(_CLUSTERS)])
            self._last = time.monotonic()

    async def _crash(self, _cluster: str) -> None:
        """Kill the engine at any point of its work, and start another."""
        self._rig.kill()
        self._rig.start()
        await until(self._rig.is_ready, "the engine is ready", PATIENCE)

    async def _cut(self, cluster: str) -> None:
        """Reset every connection to a cluster."""
        self._rig.proxies[cluster].reset_connections()

    async def _hold(self, cluster: str) -> None:
        """Delay a cluster's watches."""
        held = list(self._rig.proxies[cluster].streams)
        for stream in held:
            stream.hold()
        await asyncio.sleep(HELD)
        for stream in held:
            stream.release()

    async def _hang(self, cluster: str) -> None:
        """Let a cluster hang for a while."""
        self._rig.proxies[cluster].freeze()
        await asyncio.sleep(HELD)
        self._rig.proxies[cluster].thaw()


class Verdict(NamedTuple):
    """The failures in the end, and the history if there are any."""

    failures: list[str]
    history_lines: list[str]


def random_actions(seed: int, most: int = MOST) -> list[Action]:
    """Return the sequence of a seed; the same seed gives the same actions."""
    random = Random(seed)
    return [Action(random.choice(SORTS), random.randrange(RANGE)) for _ in range(random.randint(most // 3, most))]


async def played(ns: TrialNamespace, fault_plan: FaultPlan, actions: list[Action]) -> Verdict:
    """Run a sequence under faults, end the faults, and return the failures that remain after enough time."""
    namespace = RealNamespace(ns)
    fault_plan.namespaces.add(ns.namespace)
    for action in actions:
        await (fault_plan.apply_to_all(action.number) if action.sort == "storm" else namespace.run(action))
    fault_plan.namespaces.discard(ns.namespace)

    async def is_right() -> bool:
        """Check the model, with a pause because each check lists all objects."""
        await asyncio.sleep(0.5)
        return not await namespace.wrong()

    with suppress(NotInTime):
        await until(is_right, "everything is right", PATIENCE)
    failures = await namespace.wrong()
    for name in PODS:
        await ns.rig.upper.delete(ns.path("pods", name))
    return Verdict(failures, namespace.history_lines() if failures else [])


async def campaign(rig: Rig, seeds: range, concurrency: int, most: int = MOST) -> dict[str, Any]:
    """Run many sequences, some at the same time, on a running engine; return the result."""
    fault_plan = FaultPlan(rig, Random(seeds[0]))
    rig.set_director(fault_plan)
    waiting, broken, actions = list(seeds), [], 0

    async def work() -> None:
        """Run one sequence after the other."""
        nonlocal actions
        while waiting:
            seed = waiting.pop(0)
            sequence = random_actions(seed, most)
            actions += len(sequence)
            async with TrialNamespace(rig) as ns:
                found = await played(ns, fault_plan, sequence)
            if found.failures:
                broken.append(f"seed {seed}: {'; '.join(found.failures)}: {' '.join(map(str, sequence))}")
                print(broken[-1], *found.history_lines, sep="\n", flush=True)

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return {
        "seed": seeds[0],
        "sequences": len(seeds),
        "actions": actions,
        "writes": len(rig.journal),
        "met": dict(sorted(fault_plan.applied.items())),
        "divergences": len(broken),
        "broken": broken,
    }


async def scenario(sandbox: Sandbox, args: argparse.Namespace) -> dict[str, Any]:
    """Start an engine and run the sequences."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        async with Rig(sandbox, Path(directory)) as rig:
            rig.start()
            await rig.wait_until_usable()
            found = await campaign(rig, range(args.seed, args.seed + args.count), args.concurrency)
    return {"seconds": round(time.monotonic() - begin, 1), **found}


def main() -> int:
    """Parse the arguments, run the sequences on a sandbox and store the result; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="the number of sequences")
    parser.add_argument(
        "--seed", type=int, default=1, help="the seed of the first sequence; each further sequence uses the next number"
    )
    parser.add_argument("--concurrency", type=int, default=16, help="the number of sequences that run at the same time")
    parser.add_argument(
        "--sandbox", type=Path, default=None, help="the directory of a running sandbox; default: start one"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, args), args.sandbox)
    return verdict(NAME, result["broken"], keep(args.results, NAME, kubernetes, result))


if __name__ == "__main__":
    sys.exit(main())
