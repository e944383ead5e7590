"""Random sequences of hostile and honest tenants on real control planes, with an engine as a process.

    .venv/bin/python -m bench.model.hostility.real [--count 200] [--seed 1] [--sandbox DIR]

Hostile tenants have credentials of their own. Each sequence has its own namespaces, and several sequences run at the
same time on one engine. Each form of the topology file has its own engine, one after the other. A kill of the
engine and late watches affect all sequences on it. The memory of the engine and the latency of its /healthz are sampled
throughout.
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
from bench.model.hostility.actions import ActionRunner, random_actions
from bench.model.hostility.health import Health, sample
from bench.model.hostility.object_watches import LATER, ObjectWatches
from bench.model.hostility.real_clusters import RealTenantClusters
from bench.model.hostility.runner import MOST_WRITES, setting_of
from bench.model.hostility.setting import Setting
from bench.model.hostility.shared_faults import SharedFaults
from tensile.sandbox.sandbox import Sandbox

NAME = "faults-hostility-real"
ABREAST = 4
GUARD = {"maxDeletes": 6 * ABREAST, "maxDeletePercent": 10}
"""The number of pods of the honest tenants."""
MOST = 40
STILL = 4.0
"""Seconds without a write after which the engine counts as idle."""
PATIENCE = 60.0


async def played(
    rig: Rig, object_watches: ObjectWatches, shared_faults: SharedFaults, seed: int, most: int = MOST
) -> tuple[list[str], float]:
    """Run the sequence of a seed; return what was wrong, and the longest delay of an honest pod in seconds."""
    actions = random_actions(seed, most)
    async with RealTenantClusters(rig, object_watches, shared_faults, setting_of(actions)) as clusters:
        play = ActionRunner(clusters, rig.nodes.__getitem__)
        start = len(rig.journal)
        for action in actions:
            await play.run(action)
            await asyncio.sleep(action.number % 5 * 0.02)
        try:
            await _wait_until_idle(clusters, rig, shared_faults)
        except NotInTime as error:
            clusters.checker.report([str(error)])
        await asyncio.sleep(LATER)
        clusters.check_final_state()
        writes = len(clusters.writes_since(start))
        clusters.checker.report([f"{writes} writes"] if writes > MOST_WRITES else [])
        return list(clusters.checker.wrong), clusters.checker.lateness.worst


async def _wait_until_idle(clusters: RealTenantClusters, rig: Rig, shared_faults: SharedFaults) -> None:
    """Wait until nothing was written here for a while in which the engine could have written.

    Raises NotInTime.
    """
    end = time.monotonic() + PATIENCE
    while True:
        start, count = len(rig.journal), shared_faults.count
        await asyncio.sleep(STILL)
        found = clusters.writes_since(start)
        if not found and count == shared_faults.count and not shared_faults.is_state_uncertain:
            return
        if time.monotonic() > end:
            raise NotInTime(f"the engine is not idle: {found[-1].request if found else 'it is away'}")


async def campaign(sandbox: Sandbox, setting: Setting, seeds: Sequence[int], most: int = MOST) -> dict[str, Any]:
    """Run sequences whose settings have the same topology on one engine; return the results."""
    with tempfile.TemporaryDirectory() as directory:
        async with Rig(sandbox, Path(directory)) as rig:
            rig.extra_fields = {**setting.file(), "guard": GUARD}
            rig.save()
            shared_faults = SharedFaults(rig)
            rig.set_director(shared_faults)
            rig.start()
            await rig.wait_until_usable()
            async with ObjectWatches(rig) as object_watches:
                return await _played_abreast(rig, object_watches, shared_faults, seeds, most)


async def _played_abreast(
    rig: Rig, object_watches: ObjectWatches, shared_faults: SharedFaults, seeds: Sequence[int], most: int
) -> dict[str, Any]:
    waiting, broken, worst = list(seeds), list[str](), [0.0]

    async def work() -> None:
        """Run one sequence after the other."""
        while waiting:
            seed = waiting.pop(0)
            failures, late = await played(rig, object_watches, shared_faults, seed, most)
            worst.append(late)
            if failures:
                broken.append(f"seed {seed}: {setting_of(random_actions(seed, most))}: {'; '.join(failures)}")
                print(broken[-1], flush=True)

    health = Health(lambda: sample(rig, lambda: shared_faults.is_state_uncertain))
    watching = asyncio.create_task(health.watch())
    await asyncio.gather(*(work() for _ in range(min(ABREAST, len(waiting)))))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    defects = [line for line in rig.log.read_text().splitlines() if "please report" in line]
    return {
        "sequences": len(seeds),
        "writes": len(rig.journal),
        "crashes": shared_faults.applied["crash"],
        "latest_s": round(max(worst), 1),
        **health.figures(),
        "broken": [*broken, *health.broken(), *defects[:3]],
    }


def engines(seeds: Sequence[int], most: int = MOST) -> list[tuple[Setting, list[int]]]:
    """Return which sequences run on one engine: those with the same topology."""

    def topology(seed: int) -> tuple[str, str, str]:
        """Return the part of a setting that determines the topology."""
        setting = setting_of(random_actions(seed, most))
        return setting.mapping, setting.identity, setting.conflict

    grouped = [(key, list(found)) for key, found in groupby(sorted(seeds, key=topology), topology)]
    return [(Setting(*key), found) for key, found in grouped]


async def scenario(sandbox: Sandbox, args: argparse.Namespace) -> dict[str, Any]:
    """Run the sequences on one engine after the other."""
    begin, runs = time.monotonic(), list[dict[str, Any]]()
    for setting, seeds in engines(range(args.seed, args.seed + args.count)):
        found = await campaign(sandbox, setting, seeds)
        runs.append({"mapping": setting.mapping, "identity": setting.identity, "conflict": setting.conflict, **found})
        print(" ".join(f"{key}={value}" for key, value in runs[-1].items() if key != "broken"), flush=True)
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "seed": args.seed,
        "sequences": sum(one["sequences"] for one in runs),
        "writes": sum(one["writes"] for one in runs),
        "crashes": sum(one["crashes"] for one in runs),
        "latest_s": max(one["latest_s"] for one in runs),
        "rss_mib": max(one["rss_mib"] for one in runs),
        "healthz_s": max(one["healthz_s"] for one in runs),
        "runs": runs,
        "broken": [failures for one in runs for failures in one["broken"]],
    }


def main() -> int:
    """Parse the arguments, run the sequences and store the result; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="the number of sequences")
    parser.add_argument(
        "--seed", type=int, default=1, help="the seed of the first sequence; each further sequence uses the next number"
    )
    parser.add_argument(
        "--sandbox", type=Path, default=None, help="the directory of a running sandbox; default: start one"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args([one for one in sys.argv[1:] if one != "--real"])
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, args), args.sandbox)
    return verdict(NAME, result["broken"], keep(args.results, NAME, kubernetes, result))


if __name__ == "__main__":
    sys.exit(main())
