"""Random sequences of hostile and honest tenants on real control planes, with an engine as a process.

    .venv/bin/python -m bench.model.hostility.real [--count 200] [--seed 1] [--sandbox DIR]

Hostile tenants have credentials of their own. Each play has namespaces of its own, and several plays run at a time on
one engine. Each form of the topology file gets an engine of its own, one after the other. A kill of the engine and late
watches affect all plays on it. The memory of the engine and the latency of its /healthz are sampled throughout.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.kit.clusters import on_clusters
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import Rig
from bench.kit.sites import NotInTime
from bench.model.hostility.actions import Play, thought_up
from bench.model.hostility.ground import RealArena
from bench.model.hostility.health import Health, sample
from bench.model.hostility.lookout import LATER, Lookout
from bench.model.hostility.playing import MOST_WRITES, setting_of
from bench.model.hostility.setting import Setting
from bench.model.hostility.storms import Storms
from tensile.sandbox.sandbox import Sandbox

NAME = "faults-hostility-real"
ABREAST = 4
GUARD = {"maxDeletes": 6 * ABREAST, "maxDeletePercent": 10}
"""The number of pods of the honest tenants."""
MOST = 40
STILL = 4.0
"""Seconds without a write after which a play has come to rest."""
PATIENCE = 60.0


async def played(rig: Rig, lookout: Lookout, storms: Storms, seed: int, most: int = MOST) -> tuple[list[str], float]:
    """Play the sequence of a seed; return what was wrong, and the longest delay of an honest pod in seconds."""
    actions = thought_up(seed, most)
    async with RealArena(rig, lookout, storms, setting_of(actions)) as ground:
        play = Play(ground, rig.nodes.__getitem__)
        start = len(rig.journal)
        for action in actions:
            await play.carry_out(action)
            await asyncio.sleep(action.number % 5 * 0.02)
        try:
            await _come_to_rest(ground, rig, storms)
        except NotInTime as error:
            ground.watchman.say([str(error)])
        await asyncio.sleep(LATER)
        ground.inspect_at_the_end()
        writes = len(ground.written(start))
        ground.watchman.say([f"{writes} writes"] if writes > MOST_WRITES else [])
        return list(ground.watchman.wrong), ground.watchman.lateness.worst


async def _come_to_rest(ground: RealArena, rig: Rig, storms: Storms) -> None:
    """Wait until nothing was written here for a while in which the engine could have written.

    Raises NotInTime.
    """
    end = time.monotonic() + PATIENCE
    while True:
        start, count = len(rig.journal), storms.count
        await asyncio.sleep(STILL)
        found = ground.written(start)
        if not found and count == storms.count and not storms.blurred:
            return
        if time.monotonic() > end:
            raise NotInTime(f"the engine does not come to rest: {found[-1].asked if found else 'it is away'}")


async def campaign(sandbox: Sandbox, setting: Setting, seeds: Sequence[int], most: int = MOST) -> dict[str, Any]:
    """Play sequences whose settings have the same topology on one engine; return the results."""
    with tempfile.TemporaryDirectory() as directory:
        async with Rig(sandbox, Path(directory)) as rig:
            rig.more = {**setting.file(), "guard": GUARD}
            rig.save()
            storms = Storms(rig)
            rig.direct(storms)
            rig.start()
            await rig.usable()
            async with Lookout(rig) as lookout:
                return await _played_abreast(rig, lookout, storms, seeds, most)


async def _played_abreast(
    rig: Rig, lookout: Lookout, storms: Storms, seeds: Sequence[int], most: int
) -> dict[str, Any]:
    waiting, broken, worst = list(seeds), list[str](), [0.0]

    async def work() -> None:
        """Play one sequence after the other."""
        while waiting:
            seed = waiting.pop(0)
            words, late = await played(rig, lookout, storms, seed, most)
            worst.append(late)
            if words:
                broken.append(f"seed {seed}: {setting_of(thought_up(seed, most))}: {'; '.join(words)}")
                print(broken[-1], flush=True)

    health = Health(lambda: sample(rig, lambda: storms.blurred))
    watching = asyncio.create_task(health.watch())
    await asyncio.gather(*(work() for _ in range(min(ABREAST, len(waiting)))))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    defects = [line for line in rig.log.read_text().splitlines() if "please report" in line]
    return {
        "sequences": len(seeds),
        "writes": len(rig.journal),
        "crashes": storms.met["crash"],
        "latest_s": round(max(worst), 1),
        **health.figures(),
        "broken": [*broken, *health.broken(), *defects[:3]],
    }


def engines(seeds: Sequence[int], most: int = MOST) -> list[tuple[Setting, list[int]]]:
    """Return which sequences are played on one engine: those with the same topology."""

    def topology(seed: int) -> tuple[str, str, str]:
        """Return the part of a setting that determines the topology."""
        setting = setting_of(thought_up(seed, most))
        return setting.mapping, setting.identity, setting.conflict

    grouped = [(key, list(found)) for key, found in groupby(sorted(seeds, key=topology), topology)]
    return [(Setting(*key), found) for key, found in grouped]


async def scenario(sandbox: Sandbox, given: argparse.Namespace) -> dict[str, Any]:
    """Play on one engine after the other."""
    begin, runs = time.monotonic(), list[dict[str, Any]]()
    for setting, seeds in engines(range(given.seed, given.seed + given.count)):
        found = await campaign(sandbox, setting, seeds)
        runs.append({"mapping": setting.mapping, "identity": setting.identity, "conflict": setting.conflict, **found})
        print(" ".join(f"{key}={value}" for key, value in runs[-1].items() if key != "broken"), flush=True)
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "seed": given.seed,
        "sequences": sum(one["sequences"] for one in runs),
        "writes": sum(one["writes"] for one in runs),
        "crashes": sum(one["crashes"] for one in runs),
        "latest_s": max(one["latest_s"] for one in runs),
        "rss_mib": max(one["rss_mib"] for one in runs),
        "healthz_s": max(one["healthz_s"] for one in runs),
        "runs": runs,
        "broken": [words for one in runs for words in one["broken"]],
    }


def main() -> int:
    """Parse the arguments, play the sequences and store the result; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first sequence; each has the next one")
    parser.add_argument("--sandbox", type=Path, default=None, help="one that runs, instead of one of its own")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args([one for one in sys.argv[1:] if one != "--real"])
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, given), given.sandbox)
    return verdict(NAME, result["broken"], keep(given.results, NAME, kubernetes, result))


if __name__ == "__main__":
    sys.exit(main())
