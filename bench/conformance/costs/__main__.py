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
from bench.conformance.costs.playing import played
from bench.conformance.costs.stage import GROUND, Stage
from bench.kit.clusters import on_clusters
from bench.kit.reporting import RESULTS, keep, verdict
from tensile.sandbox.sandbox import Sandbox

NAME = "costs"


async def scenario(sandbox: Sandbox, names: Iterable[str]) -> dict[str, Any]:
    """Play cases one after the other."""
    found: dict[str, Any] = {}
    async with Stage(sandbox) as stage:
        for name in names:
            begin = time.monotonic()
            found[name] = await played(stage, CASES[name])
            taken = round(time.monotonic() - begin, 1)
            print(f"{name}: {found[name]['differences'] or 'as said'} ({taken} s)", flush=True)
    broken = [f"{name}: {words}" for name, one in found.items() for words in one["differences"]]
    equal = sum(not one["differences"] for one in found.values())
    return {"edits": len(found), "equal": equal, "found": found, "broken": broken}


def main() -> int:
    """Run what the command line selects, keep the result, and return the exit code."""
    kinds = sorted({case.kind for case in CASES.values()})
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="edits to make")
    parser.add_argument("--kind", nargs="+", choices=kinds, default=kinds, help="kinds of edits to make")
    parser.add_argument("--sandbox", type=Path, help="a sandbox of that kind that runs, instead of one of its own")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    names = [name for name in given.only if CASES[name].kind in given.kind]
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, names), given.sandbox, GROUND)
    path = keep(given.results, f"faults-{NAME}", kubernetes, result)
    print(f"{result.get('equal', 0)}/{result.get('edits', 0)} as said", flush=True)
    return verdict(NAME, result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
