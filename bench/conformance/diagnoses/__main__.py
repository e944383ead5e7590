"""Checks what `tensile doctor` reports of setups with one fault each, on real control planes.

    .venv/bin/python -m bench.conformance.diagnoses [--running DIR] [--only WORD]

Each setup is created, diagnosed and removed; doctor has to name the cause, the cluster and the remedy, report no
failure of anything that works, and end in time. Writes faults-diagnoses.json; exits with 1 if a fault was not
recognised.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench.conformance.diagnoses import connection_setups, other_setups
from bench.conformance.diagnoses.setup import SETUPS, Setup
from bench.conformance.diagnoses.topology_under_test import TopologyUnderTest
from bench.kit.clusters import on_clusters
from bench.kit.reporting import RESULTS, keep, verdict
from tensile.sandbox.sandbox import Sandbox

MOST_SECONDS = 15.0
_SETS = (connection_setups, other_setups)
"""The modules that register setups."""


async def recognised(setup: Setup, sandbox: Sandbox, directory: Path) -> dict[str, Any]:
    """Create one setup, run doctor, and return its findings and what is wrong with them ("" for nothing)."""
    async with TopologyUnderTest(sandbox, directory) as topology:
        await setup.prepare(topology)
        found = await topology.diagnosed()
    here = str(directory)
    findings = [one for one in found.findings(setup.level) if one[:2] == (setup.cluster, setup.check)]
    findings = [
        (name, check, what.replace(here, "DIR"), advice.replace(here, "DIR")) for name, check, what, advice in findings
    ]
    wrong = setup.judge(found) or ("" if found.seconds <= MOST_SECONDS else f"it took {found.seconds:.1f} s")
    return {
        "setup": setup.name,
        "cluster": setup.cluster,
        "check": setup.check,
        "level": setup.level,
        "cause": [what for _, _, what, _ in findings],
        "remedy": [advice for _, _, _, advice in findings],
        "seconds": round(found.seconds, 2),
        "wrong": wrong,
    }


async def all_of(word: str, sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
    """Try every setup whose name contains a word."""
    found = []
    for setup in SETUPS.values():
        if word in setup.name:
            with tempfile.TemporaryDirectory(dir=scratch) as directory:
                found.append(await recognised(setup, sandbox, Path(directory)))
            print(f"{setup.name}: {found[-1]['wrong'] or 'recognised'}", flush=True)
    right = sum(not one["wrong"] for one in found)
    return {
        "recognised": f"{right}/{len(found)}",
        "slowest_seconds": max(one["seconds"] for one in found),
        "setups": found,
        "broken": [f"{one['setup']}: {one['wrong']}" for one in found if one["wrong"]],
    }


def main() -> int:
    """Read the arguments, try the setups, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--running", type=Path, help="the directory of a running sandbox; default: start one")
    parser.add_argument("--only", default="", help="run only the setups whose name contains this text")
    parser.add_argument("--keep", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    version, result = on_clusters(partial(all_of, args.only), args.running)
    path = keep(args.keep, "faults-diagnoses", version, result)
    return verdict("diagnoses", result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
