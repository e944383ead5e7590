"""Compares the pods that `tensile plan` and `tensile plan --drain NAME` predict to move with those that move.

    .venv/bin/python -m bench.conformance.predictions [--only fragments choice]

Each case prepares a scene on three real lower clusters while the descheduler is off, requests the plan of a file that
enables it, and puts that file in force. It compares which pods left which node, where their replacements went, and
which pods stayed. If several nodes fit a pod, each of them is right, because the upper scheduler chooses one. A drain
is compared with its own plan.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.conformance.predictions.cases import CASES
from bench.conformance.predictions.run_case import run_case
from bench.conformance.predictions.setup import THREE, PredictionClusters
from bench.kit.clusters import on_clusters
from bench.kit.reporting import RESULTS, keep, verdict
from tensile.sandbox.sandbox import Sandbox

NAME = "predictions"


async def scenario(sandbox: Sandbox, names: Iterable[str]) -> dict[str, Any]:
    """Play cases one after the other."""
    found: dict[str, Any] = {}
    async with PredictionClusters(sandbox) as clusters:
        for name in names:
            begin = time.monotonic()
            found[name] = await run_case(clusters, name, CASES[name])
            taken = round(time.monotonic() - begin, 1)
            print(f"{name}: {found[name]['differences'] or 'as predicted'} ({taken} s)", flush=True)
    broken = [f"{name}: {failure}" for name, one in found.items() for failure in one["differences"]]
    equal = sum(not one["differences"] for one in found.values())
    return {"cases": len(found), "equal": equal, "found": found, "broken": broken}


def main() -> int:
    """Run the selected cases, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="the cases to run; default: all")
    parser.add_argument(
        "--sandbox", type=Path, help="the directory of a running sandbox with three lowers; default: start one"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, args.only), args.sandbox, THREE)
    path = keep(args.results, f"faults-{NAME}", kubernetes, result)
    return verdict(NAME, result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
