"""Compares the nodes that placement finds for random pods in random clusters with those of a real kube-scheduler.

    .venv/bin/python -m bench.conformance.placement [--worlds 42] [--pods 12] [--seed 1]

An extender of the real scheduler records the nodes that the scheduler found. These are compared first, then the reasons
for which each side rejects the other nodes. The seed of a random cluster, which is printed with each difference,
generates the same one again.
"""

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.conformance.placement.recorder import Recorder, use_extender
from bench.conformance.placement.scheduling import SchedulingCluster
from bench.conformance.placement.trial import Outcome, trial
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.sites import Site
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

NAME = "placement"
BAR = 0.99
"""The share of cases in which both have to find the same nodes."""


async def outcomes(sandbox: Sandbox, seeds: range, pods: int) -> tuple[str, list[Outcome]]:
    """Run the trials in a sandbox that has only an upper cluster, and return its version and the outcomes."""
    async with Recorder() as recorder, Site(sandbox.clusters[UPPER]) as site:
        stage = SchedulingCluster(site, recorder)
        await stage.prepare()
        sandbox.suspend(UPPER, "kube-controller-manager")
        await asyncio.to_thread(use_extender, sandbox, UPPER, recorder.port)
        return await site.version(), [await trial(stage, seed, pods) for seed in seeds]


def result(found: list[Outcome]) -> dict[str, Any]:
    """Sum up the outcomes; "broken" lists the differences if too few cases are the same."""
    cases, same = sum(one.cases for one in found), sum(one.same for one in found)
    differences = [difference for one in found for difference in one.differences]
    return {
        "cases": cases,
        "same": same,
        "placed": sum(one.placed for one in found),
        "same_words": sum(one.worded for one in found),
        "differences": differences,
        "rewordings": [rewording for one in found for rewording in one.rewordings],
        "broken": differences if same < cases * BAR else [],
    }


def main() -> int:
    """Read the arguments, run the trials on a sandbox, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", type=int, default=42, help="the number of random clusters")
    parser.add_argument("--pods", type=int, default=12, help="the number of pods to schedule in each random cluster")
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="the seed of the first random cluster; each further one uses the next number",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + args.worlds)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sandbox = stack.enter_context(Sandbox.start(scratch / "s", Options(nodes=1, lowers=0)))
        version, found = asyncio.run(outcomes(sandbox, seeds, args.pods))
    kept = {"seed": args.seed, "worlds": args.worlds, **result(found)}
    path = keep(args.results, NAME, version, kept)
    print(f"{kept['same']} of {kept['cases']} cases the same, {kept['same_words']} with the same message")
    return verdict(NAME, kept["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
