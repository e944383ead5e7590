"""Objects that are replaced by another of the same name at each moment of the engine's work on the first one.

    .venv/bin/python -m bench.model.sequences.races [--jobs 2]

A pod, or an object that a pod depends on, is replaced by another with its name, a number of half round trips after the
engine began to work on it, while watches are prompt, late or miss events. The new object must not be deleted, nor get
the status or the content of the old one. It runs in the end, and nothing of the old one is left.
"""

import sys
from collections.abc import Iterator
from itertools import product

from bench.model.sequences import parallel
from bench.model.sequences.actions import read
from bench.model.sequences.parallel import NamedSequence
from bench.model.sequences.runner import wrong

NAME = "faults-races"
HERE, THERE = "90", "270"
"""Numbers of actions that create pod p0 with every object that a pod can depend on, in either lower cluster."""
BEGUN = {
    "made": "",
    "runs": "wait:3 run:0 wait:3",
    "told": "wait:3 run:0",
    "ends": "wait:3 run:0 wait:3 delete:0",
    "ends slowly": "linger:1 wait:3 run:0 wait:3 delete:0",
    "ended": "wait:3 run:0 wait:3 end:0",
    "killed": "wait:3 run:0 wait:3 kill:0",
}
"""The state of the pod when it is replaced."""
WATCHES = {"prompt": "", "late above": "slow:0", "late below": "slow:1 slow:2", "deaf above": "miss:0"}
COPIES = {
    "ConfigMap": "unmake:7",
    "Secret": "unmake:9",
    "Service": "unmake:3",
    "EndpointSlice": "unmake:11",
    "ServiceAccount": "unmake:5",
    "Claim": f"anew:{HERE}",
}
_COPIES_BEGUN = {"made": "serve:0", "there": "serve:0 wait:3 run:0 wait:3"}
_POD_STEPS, _COPY_STEPS = range(10), range(10)


def races() -> Iterator[NamedSequence]:
    """Yield each race with its name."""
    yield from _of_pods()
    yield from _of_copies()


def _of_pods() -> Iterator[NamedSequence]:
    wheres = (("here", HERE), ("there", THERE))
    every = product(BEGUN.items(), WATCHES.items(), _POD_STEPS, wheres)
    for (begun, before), (watches, disturbed), steps, (where, number) in every:
        actions = f"pod:{HERE} {before} {disturbed} steps:{steps} again:{number} steps:4"
        yield NamedSequence(f"Pod {begun}, {watches}, {steps}, {where}", read(actions.split()))


def _of_copies() -> Iterator[NamedSequence]:
    every = product(COPIES.items(), _COPIES_BEGUN.items(), WATCHES.items(), _COPY_STEPS)
    for (kind, again), (begun, before), (watches, disturbed), steps in every:
        actions = f"pod:{HERE} {before} {disturbed} steps:{steps} {again} steps:4"
        yield NamedSequence(f"{kind} {begun}, {watches}, {steps}", read(actions.split()))


def raced(race: NamedSequence) -> str:
    """Run a race; return its failures, "" for none."""
    return race.report(wrong(race.actions))


if __name__ == "__main__":
    sys.exit(parallel.main(__doc__, NAME, list(races()), raced))
