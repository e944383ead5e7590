"""The engine is killed at every write of a workload: before it, after it, and when its response is lost.

    .venv/bin/python -m bench.faults.everywrite [--deeds create,update] [--moments lost] [--rigs 2] [--every 1]

An undisturbed run of each workload is the reference. Then, for each of its writes and each moment, the engine is killed
there and restarted: within ten seconds it has to be ready and everything as at the reference's end; no object may have
been created twice and no pod have run twice, objects of other owners may not be changed, every write must be fenced,
and then the engine has to be quiet.

At another moment, "cut", the response is lost and the engine keeps running. Stored results of workloads and moments
that are not selected are kept, so that the campaign can be split into several runs.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.faults.deeds import DEEDS, Workload
from bench.kit import histories
from bench.kit.clusters import on_clusters
from bench.kit.endstates import State, differences
from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Dropped, Fault, Hung, Lost, Passed
from bench.kit.histories import Place
from bench.kit.reporting import RESULTS, keep, kept_before, verdict
from bench.kit.rig import Rig
from bench.kit.scene import Scene
from bench.kit.sites import NotInTime, until
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

NAME = "faults-everywrite"
MOMENTS = ("before", "after", "lost", "cut")
RECOVERED_IN = 10.0
QUIET = 1.5
MOST = 60
"""The number of writes of one workload at which the campaign stops, because the writes do not end."""
PATIENCE = 60.0
"""Seconds until waiting times out; a machine that is shared is slow."""


class Reference(NamedTuple):
    """The outcome of an undisturbed run: its final state, its writes by place, and how many of them count."""

    state: State
    writes: Counter[Place]
    number: int


class Crash:
    """Strikes at the write of that number (from 1 on); after that no request of the engine passes any more.

    With "cut" the engine keeps running, and all other requests pass. `struck` is the write at which it strikes,
    `is_over` whether it has done so.
    """

    def __init__(self, number: int, moment: str, counts: Callable[[Asked], bool], kill: Callable[[], None]) -> None:
        self.struck: Asked | None = None
        self.is_over = False
        self.seen = 0
        self._number = number
        self._moment = moment
        self._counts = counts
        self._kill = kill
        self._is_deaf = False

    async def meet(self, asked: Asked) -> Fault:
        """Count writes, and strike at the right one."""
        if self._is_deaf:
            return Hung()
        if not asked.is_write or not self._counts(asked):
            return Passed()
        self.seen += 1
        if self.seen != self._number:
            return Passed()
        self.struck = asked
        self._is_deaf = self._moment != "cut"
        if self._moment == "before":
            self._end()
            return Dropped()
        return Passed() if self._moment == "after" else Lost()

    async def carried_out(self, asked: Asked, _status: int) -> None:
        """Kill the engine before it receives the response."""
        if asked == self.struck and self._moment in ("lost", "cut"):
            self._end()

    async def answered(self, asked: Asked, _status: int) -> None:
        """Kill the engine after it has received the response."""
        if asked == self.struck and self._moment == "after":
            self._end()

    def is_again(self, asked: Asked) -> bool:
        """Report whether this is the write whose response was lost, which the engine retries after a back-off."""
        return self._moment == "cut" and str(asked) == str(self.struck)

    def _end(self) -> None:
        if self._moment != "cut":
            self._kill()
        self.is_over = True


async def reference(rig: Rig, deed: Workload) -> Reference:
    """Run a workload undisturbed."""
    async with Scene(rig) as scene:
        await deed.prepare(scene)
        start = await rig.silence(len(rig.journal), QUIET)
        await deed.do(scene)
        await scene.has_come(deed.done, f"{deed.name}: done", PATIENCE)
        await rig.silence(start, QUIET)
        writes = [one for one in rig.written(start) if deed.counts(scene, one.asked)]
        found = Reference(await scene.state(), histories.counted(writes), len(writes))
        await end(scene, deed)
        return found


async def strike(rig: Rig, deed: Workload, known: Reference, number: int, moment: str) -> dict[str, Any]:
    """Run a workload and kill the engine at one write; return the outcome, with "struck" None if no write was left."""
    async with Scene(rig) as scene:
        await deed.prepare(scene)
        start = await rig.silence(len(rig.journal), QUIET / 3)
        crash = Crash(number, moment, lambda asked: deed.counts(scene, asked), rig.kill)
        rig.direct(crash)
        await deed.do(scene)
        await until(lambda: struck_or_done(scene, deed, known, crash), f"{deed.name}: struck or done", PATIENCE)
        rig.direct()
        begin = time.monotonic()
        if crash.struck is not None and moment != "cut":
            rig.start()
        broken = await recovered(scene, known)
        took = time.monotonic() - begin
        if not broken:
            quiet = await rig.silence(start, QUIET)
            await asyncio.sleep(QUIET)
            counted = [one.asked for one in rig.written(quiet) if deed.counts(scene, one.asked)]
            late = [asked for asked in counted if asked.resource not in deed.late and not crash.is_again(asked)]
            broken = [f"{asked} in a quiet time" for asked in late]
        broken += await judge(scene, deed, known, start)
        await end(scene, deed)
        struck = None if crash.struck is None else f"{crash.struck.verb} {crash.struck.kind}"
        return {
            "deed": deed.name,
            "write": number,
            "moment": moment,
            "struck": struck,
            "s": round(took, 2),
            "broken": broken,
        }


async def struck_or_done(scene: Scene, deed: Workload, known: Reference, crash: Crash) -> bool:
    """Report whether the engine was struck, or has no write left."""
    if crash.struck is not None:
        return crash.is_over
    if not deed.done(await scene.objects()) or differences(known.state, await scene.state()):
        return False
    await scene.rig.silence(len(scene.rig.journal), QUIET)
    return True


async def recovered(scene: Scene, known: Reference) -> list[str]:
    """Return when the engine is ready and the state equals the reference; return the differences after a timeout."""

    async def is_alike() -> bool:
        """Report whether the engine is ready and its state equals the reference."""
        return await scene.rig.is_ready() and not differences(known.state, await scene.state())

    try:
        await until(is_alike, "as the reference", PATIENCE)
    except NotInTime as error:
        return [str(error), *differences(known.state, await scene.state())]
    return []


async def judge(scene: Scene, deed: Workload, known: Reference, start: int) -> list[str]:
    """Check the run against the oracles."""
    writes = [one for one in scene.rig.written(start) if deed.counts(scene, one.asked)]
    lowers = [sight for sight in scene.sights if sight.cluster != UPPER]
    return [
        *histories.lived_twice(lowers),
        *histories.reverted(sight for sight in scene.sights if sight.cluster == UPPER),
        *histories.unfenced(scene.rig.journal.since(start)),
        *histories.made_twice(writes),
        *histories.written_too_often(known.writes, writes),
        *await scene.harmed(),
    ]


async def end(scene: Scene, deed: Workload) -> None:
    """Restore everything, and return when no pod of the scene is left in any cluster."""
    await deed.restore(scene)
    await scene.has_come(lambda found: not any(found[name]["pods"] for name in found), "no pod is left", PATIENCE)


async def every_write(rig: Rig, deed: Workload, moment: str, numbers: Iterable[int], within: float) -> dict[str, Any]:
    """Strike at these writes of a workload, as many as it has, and return the result with the failures.

    Args:
        rig: one whose engine runs.
        deed: the workload.
        moment: one of MOMENTS.
        numbers: of the writes, from 1 on.
        within: the seconds from the restart in which everything has to be right again.
    """
    known = await reference(rig, deed)
    trials: list[dict[str, Any]] = []
    for number in numbers:
        trial = await strike(rig, deed, known, number, moment)
        if trial["struck"] is None:
            break
        trial["broken"] += [f"only after {trial['s']:.1f} s"] if trial["s"] > within else []
        trials.append(trial)
        print(deed.name, moment, " ".join(f"{key}={value}" for key, value in trial.items()), flush=True)
    return {
        "deed": deed.name,
        "moment": moment,
        "writes": known.number,
        "strikes": len(trials),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "slowest_s": max((one["s"] for one in trials), default=0.0),
        "at": dict(Counter(one["struck"] for one in trials)),
        "broken": [f"{deed.name}, {moment} write {one['write']}: {said}" for one in trials for said in one["broken"]],
    }


async def scenario(sandbox: Sandbox, given: argparse.Namespace) -> dict[str, Any]:
    """Run the workloads, several at a time on separate rigs."""
    wanted = [deed for deed in DEEDS if not given.deeds or deed.name in given.deeds.split(",")]
    moments = [moment for moment in MOMENTS if not given.moments or moment in given.moments.split(",")]
    pairs = [(deed, moment) for deed in wanted for moment in moments]
    found: list[dict[str, Any]] = []

    async def work() -> None:
        """Run one workload after the other on a rig."""
        async with AsyncExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            rig = await stack.enter_async_context(Rig(sandbox, directory))
            rig.start()
            await rig.usable()
            while pairs:
                deed, moment = pairs.pop(0)
                found.append(await every_write(rig, deed, moment, range(1, MOST, given.every), RECOVERED_IN))

    await asyncio.gather(*(work() for _ in range(given.rigs)))
    return {"runs": found}


def together(before: Iterable[dict[str, Any]], now: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return one result of earlier and new runs: new ones replace earlier ones of the same workload and moment."""
    deeds = [deed.name for deed in DEEDS]
    newest = {(one["deed"], one["moment"]): one for one in (*before, *now) if one["deed"] in deeds}
    runs = sorted(newest.values(), key=lambda one: (deeds.index(one["deed"]), MOMENTS.index(one["moment"])))
    broken = [words for one in runs for words in one["broken"]]
    return {"strikes": sum(one["strikes"] for one in runs), "runs": runs, "broken": broken}


def main() -> int:
    """Parse the arguments, run on an own sandbox, store the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deeds", default="", help="some of: " + ",".join(one.name for one in DEEDS))
    parser.add_argument("--moments", default="", help="some of: " + ",".join(MOMENTS))
    parser.add_argument("--rigs", type=int, default=2, help="how many at a time")
    parser.add_argument("--every", type=int, default=1, help="strike at each so-many-th write only")
    parser.add_argument("--sandbox", type=Path, default=None, help="one that runs, instead of one of its own")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, given), given.sandbox)
    whole = together(kept_before(given.results, NAME).get("runs", ()), result.get("runs", ()))
    whole["broken"] += result.get("broken", ())
    path = keep(given.results, NAME, kubernetes, whole)
    return verdict(NAME, whole["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
