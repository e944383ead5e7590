"""Compares the cost for running pods that `tensile plan` predicts for an edit of the topology with the real effects.

    .venv/bin/python -m bench.conformance.costs [--only drain-web cordon-web] [--kind drain]

There are sixty-two edits of sixteen kinds. Each trial creates a workload on two real lower clusters, requests the plan
of the edited file, puts the file in force, and waits until nothing changes any more. It compares the pods that
restarted, were evicted or ended, where their successors run, the budgets that cover them, lost claims, Services and
endpoints, and log streams.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.conformance.costs.cases import CASES
from bench.conformance.costs.run_case import run_case
from bench.conformance.costs.setup import GROUND, CostClusters
from bench.kit.clusters import on_clusters
from bench.kit.reporting import RESULTS, keep, verdict
from tensile.sandbox.sandbox import Sandbox

NAME = "costs"


async def scenario(sandbox: Sandbox, names: Iterable[str]) -> dict[str, Any]:
    """Play cases one after the other."""
    found: dict[str, Any] = {}
    async with CostClusters(sandbox) as clusters:
        for name in names:
            begin = time.monotonic()
            found[name] = await run_case(clusters, CASES[name])
            taken = round(time.monotonic() - begin, 1)
            print(f"{name}: {found[name]['differences'] or 'as predicted'} ({taken} s)", flush=True)
    broken = [f"{name}: {failure}" for name, one in found.items() for failure in one["differences"]]
    equal = sum(not one["differences"] for one in found.values())
    return {"edits": len(found), "equal": equal, "found": found, "broken": broken}


def main() -> int:
    """Run what the command line selects, keep the result, and return the exit code."""
    kinds = sorted({case.kind for case in CASES.values()})
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="the edits to run; default: all")
    parser.add_argument(
        "--kind", nargs="+", choices=kinds, default=kinds, help="the kinds of edits to run; default: all"
    )
    parser.add_argument(
        "--sandbox", type=Path, help="the directory of a running sandbox with the same options; default: start one"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    names = [name for name in args.only if CASES[name].kind in args.kind]
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, names), args.sandbox, GROUND)
    path = keep(args.results, f"faults-{NAME}", kubernetes, result)
    print(f"{result.get('equal', 0)}/{result.get('edits', 0)} as predicted", flush=True)
    return verdict(NAME, result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
