"""Checks that the dry-run cluster answers as a real apiserver does: both get the same random requests.

    .venv/bin/python -m bench.conformance.dryrun [--trials 100] [--requests 50] [--seed 1]

The comparison covers all that decisions depend on: the object, or the error with its status, reason and causes; whose
UID is returned; whether the version changed; and the events that watches then return. A trial has a namespace of its
own; its seed, which is printed with each difference, generates the same requests again.
"""

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.conformance.dryrun.trial import trial
from bench.kit.reporting import RESULTS, keep, verdict
from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.objects import UPPER
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

NAME = "faults-likeness"


async def scenario(sandbox: Sandbox, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Run the trials, and return the cluster's version and the result."""
    cluster = HttpCluster(UPPER, await from_kubeconfig(sandbox.directory / "upper.kubeconfig"))
    try:
        results = [await trial(cluster, args.seed + number, args.requests) for number in range(args.trials)]
        broken = [failure for one in results for failure in one.differences]
        result = {"seed": args.seed, "trials": args.trials, "broken": broken}
        counts = {"requests": sum(one.requests for one in results), "events": sum(one.events for one in results)}
        return await cluster.version(), {**counts, **result}
    finally:
        await cluster.close()


def main() -> int:
    """Read the arguments, run the trials on a sandbox, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=100, help="the number of trials")
    parser.add_argument("--requests", type=int, default=50, help="the number of requests in each trial")
    parser.add_argument(
        "--seed", type=int, default=1, help="the seed of the first trial; each further trial uses the next number"
    )
    parser.add_argument(
        "--sandbox", type=Path, default=None, help="the directory of a running sandbox; default: start one"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        own = args.sandbox is None
        start = Sandbox.start(scratch / "s", Options(nodes=1, lowers=0)) if own else None
        sandbox = stack.enter_context(start) if start else Sandbox.attach(args.sandbox)
        kubernetes, result = asyncio.run(scenario(sandbox, args))
    path = keep(args.results, NAME, kubernetes, result)
    return verdict(NAME, result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
