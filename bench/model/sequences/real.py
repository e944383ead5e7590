"""Random sequences on real control planes: the engine as a process behind fault proxies, checked by the same model.

    .venv/bin/python -m bench.model.sequences.real [--count 200] [--seed 1] [--abreast 16] [--sandbox DIR]

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
from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Delayed, Dropped, Fault, Lost, Passed, Refused, Torn
from bench.kit.faultproxy.proxy import Quiet
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import LOWERS, Rig
from bench.kit.scene import Scene
from bench.kit.sites import NotInTime, until
from bench.model.sequences.actions import RANGE, Action
from bench.model.sequences.ground import RealNamespace
from bench.model.sequences.model import PODS
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
"""One in so many writes meets a fault."""
STORMS = ("crash", "crash", "cut", "hold", "hang")
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


class FaultPlan(Quiet):
    """The faults: those of writes in namespaces that are `shaken`, and occasional ones that affect all sequences."""

    def __init__(self, rig: Rig, die: Random) -> None:
        self.shaken: set[str] = set()
        self.met: Counter[str] = Counter()
        self._rig = rig
        self._die = die
        self._last = time.monotonic()
        self._storms: dict[str, Callable[[str], Awaitable[object]]] = {
            "crash": self._crash,
            "cut": self._cut,
            "hold": self._hold,
            "hang": self._hang,
        }

    async def meet(self, asked: Asked) -> Fault:
        """Return the fault that a request meets."""
        if not asked.is_write or asked.namespace not in self.shaken or self._die.randrange(ONE_IN):
            return Passed()
        fault = self._die.choice(FAULTS)
        self.met[type(fault).__name__.lower()] += 1
        return fault

    async def storm(self, number: int) -> None:
        """Apply a fault to all sequences, unless the last one was a moment ago."""
        if time.monotonic() - self._last > APART:
            self._last = time.monotonic()
            sort = STORMS[number % len(STORMS)]
            self.met[sort] += 1
            await self._storms[sort](_CLUSTERS[number // len(STORMS) % len(_CLUSTERS)])
            self._last = time.monotonic()

    async def _crash(self, _cluster: str) -> None:
        """Kill the engine at any point of its work, and start another."""
        self._rig.kill()
        self._rig.start()
        await until(self._rig.is_ready, "the engine is ready", PATIENCE)

    async def _cut(self, cluster: str) -> None:
        """Reset every connection to a cluster."""
        self._rig.proxies[cluster].cut()

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

    words: list[str]
    story: list[str]


def thought_up(seed: int, most: int = MOST) -> list[Action]:
    """Return the sequence of a seed; the same seed gives the same actions."""
    die = Random(seed)
    return [Action(die.choice(SORTS), die.randrange(RANGE)) for _ in range(die.randint(most // 3, most))]


async def played(scene: Scene, weather: FaultPlan, actions: list[Action]) -> Verdict:
    """Play a sequence among faults, end those, and return the failures that remain after enough time."""
    ground = RealNamespace(scene)
    weather.shaken.add(scene.namespace)
    for action in actions:
        await (weather.storm(action.number) if action.sort == "storm" else ground.carry_out(action))
    weather.shaken.discard(scene.namespace)

    async def is_right() -> bool:
        """Check the model, with a pause because each check lists all objects."""
        await asyncio.sleep(0.5)
        return not await ground.wrong()

    with suppress(NotInTime):
        await until(is_right, "everything is right", PATIENCE)
    words = await ground.wrong()
    for name in PODS:
        await scene.rig.upper.delete(scene.path("pods", name))
    return Verdict(words, ground.story() if words else [])


async def campaign(rig: Rig, seeds: range, abreast: int, most: int = MOST) -> dict[str, Any]:
    """Play many sequences, some at a time, on a running engine; return the result."""
    weather = FaultPlan(rig, Random(seeds[0]))
    rig.direct(weather)
    waiting, broken, actions = list(seeds), [], 0

    async def work() -> None:
        """Play one sequence after the other."""
        nonlocal actions
        while waiting:
            seed = waiting.pop(0)
            sequence = thought_up(seed, most)
            actions += len(sequence)
            async with Scene(rig) as scene:
                found = await played(scene, weather, sequence)
            if found.words:
                broken.append(f"seed {seed}: {'; '.join(found.words)}: {' '.join(map(str, sequence))}")
                print(broken[-1], *found.story, sep="\n", flush=True)

    await asyncio.gather(*(work() for _ in range(abreast)))
    return {
        "seed": seeds[0],
        "sequences": len(seeds),
        "actions": actions,
        "writes": len(rig.journal),
        "met": dict(sorted(weather.met.items())),
        "divergences": len(broken),
        "broken": broken,
    }


async def scenario(sandbox: Sandbox, given: argparse.Namespace) -> dict[str, Any]:
    """Start an engine and play."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        async with Rig(sandbox, Path(directory)) as rig:
            rig.start()
            await rig.usable()
            found = await campaign(rig, range(given.seed, given.seed + given.count), given.abreast)
    return {"seconds": round(time.monotonic() - begin, 1), **found}


def main() -> int:
    """Parse the arguments, play on a sandbox and store the result; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first sequence; each has the next one")
    parser.add_argument("--abreast", type=int, default=16, help="how many at a time")
    parser.add_argument("--sandbox", type=Path, default=None, help="one that runs, instead of one of its own")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, given), given.sandbox)
    return verdict(NAME, result["broken"], keep(given.results, NAME, kubernetes, result))


if __name__ == "__main__":
    sys.exit(main())
