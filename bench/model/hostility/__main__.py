"""Random sequences of a hostile lower tenant, a hostile upper tenant and honest tenants, checked by isolation oracles.

    .venv/bin/python -m bench.model.hostility [--count 2000] [--seed 1] [--jobs 2]
    .venv/bin/python -m bench.model.hostility --replay 4711
    .venv/bin/python -m bench.model.hostility --actions "setting:3 pod:42 mimic:0"
    .venv/bin/python -m bench.model.hostility --real [--count 200]

The hostile lower tenant may edit one namespace of one lower cluster. The hostile upper tenant may do anything in one
namespace of the upper cluster, and binds his pods himself. They write objects with forged ownership marks, with names
and UIDs of other tenants' objects, with finalizers, with owner references, with references to objects that they may not
read, and large objects. At the same time honest tenants create, change and delete pods with all objects that the pods
need, the engine crashes, and watches are late.

The oracles check that no data of another tenant reaches a hostile tenant, and that no data of a hostile tenant reaches
another; that the engine touches no object of another owner; that no honest pod is late by more than 5 seconds; and that
the engine is idle. In memory, the sequences run in virtual time. A sequence that fails is printed with its seed,
reduced to the actions that are needed to show the failure.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from bench.kit.reporting import RESULTS, keep, verdict
from bench.model.hostility import real
from bench.model.hostility.actions import random_actions
from bench.model.hostility.runner import setting_of, wrong
from bench.model.sequences.__main__ import campaign
from bench.model.sequences.actions import Action, read
from bench.model.sequences.runner import shrink

NAME = "faults-hostility"
_CHUNK = 10


def tried(seed: int) -> tuple[int, str]:
    """Run the sequence of a seed; return its number of actions, and the failure of its shortest form."""
    sequence = random_actions(seed)
    return len(sequence), f"seed {seed}: {_fewest(sequence)}" if wrong(sequence) else ""


def _fewest(actions: list[Action]) -> str:
    """Return the fewest actions of a sequence that still show a failure, with their setting and the failure."""
    setting = actions[:1]
    left = [*setting, *shrink(actions[1:], lambda fewer: wrong([*setting, *fewer]))]
    return f"{setting_of(left)}: {'; '.join(wrong(left))}: {' '.join(map(str, left))}"


def replay(actions: list[Action]) -> int:
    """Run one sequence, and print what is wrong and the actions that are needed to show it; return the exit code."""
    print("actions:", *actions)
    failures = wrong(actions)
    if failures:
        print(*failures, f"the actions that suffice: {_fewest(actions)}", sep="\n")
    return bool(failures)


def main() -> int:
    """Parse the arguments, run the sequences and store the result; return the exit code."""
    if "--real" in sys.argv:
        return real.main()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2_000, help="the number of sequences")
    parser.add_argument(
        "--seed", type=int, default=1, help="the seed of the first sequence; each further sequence uses the next number"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="the number of processes")
    parser.add_argument(
        "--replay",
        type=int,
        help="run only the sequence of this seed; if it fails, remove the actions that the failure does not need",
    )
    parser.add_argument("--actions", help='run only these actions: "SORT:NUMBER SORT:NUMBER"')
    parser.add_argument(
        "--real", action="store_true", help="run on real control planes, as bench.model.hostility.real does"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    if args.replay is not None or args.actions:
        return replay(read(args.actions.split()) if args.actions else random_actions(args.replay))
    begin = time.monotonic()
    found = list(campaign(range(args.seed, args.seed + args.count), args.jobs, tried, _CHUNK))
    broken = [failures for _, failures in found if failures]
    result = {
        "seed": args.seed,
        "sequences": args.count,
        "actions": sum(actions for actions, _ in found),
        "seconds": round(time.monotonic() - begin, 1),
        "divergences": len(broken),
        "broken": broken,
    }
    return verdict(NAME, broken, keep(args.results, NAME, "in memory", result))


if __name__ == "__main__":
    sys.exit(main())
