"""Random sequences of user actions and faults for the engine on clusters in memory, in virtual time, against a model.

    .venv/bin/python -m bench.model.sequences [--count 20000] [--seed 1] [--jobs 2]
    .venv/bin/python -m bench.model.sequences --replay 4711
    .venv/bin/python -m bench.model.sequences --actions "pod:3 crash:0 delete:0"

Users create, change, delete and recreate pods and all objects that pods depend on; kubelets run and end pods; other
clients delete and edit lower objects and create objects with the same names. Clusters become unreachable and return;
writes are dropped, late or refused, or their answers are lost; watches are late, miss events or repeat them; the
topology file is edited and the engine crashes. In the end the clusters must be as the model requires. A sequence that
fails is printed with its seed, reduced to the actions that are needed to show the failure.
"""

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.kit.reporting import RESULTS, keep, verdict
from bench.model.sequences.actions import Action, random_actions, read
from bench.model.sequences.runner import shrink, wrong

NAME = "faults-sequences"
_CHUNK = 50


def unburdened() -> None:
    """Run the garbage collector rarely, because a sequence leaves little garbage, and all at once."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def tried(seed: int) -> tuple[int, str]:
    """Run the sequence of a seed; return its number of actions, and the failure with the fewest actions."""
    sequence = random_actions(seed)
    failures = wrong(sequence)
    if not failures:
        return len(sequence), ""
    return len(sequence), f"seed {seed}: {'; '.join(failures)}: {' '.join(map(str, shrink(sequence)))}"


def campaign(
    seeds: range, jobs: int, trial: Callable[[int], tuple[int, str]] = tried, chunk: int = _CHUNK
) -> Iterator[tuple[int, str]]:
    """Run many sequences in several processes; failures are printed as they occur.

    Args:
        seeds: the seeds of the sequences.
        jobs: the number of processes.
        trial: plays the sequence of a seed, as `tried` does; a function of a module, so that other processes find it.
        chunk: the number of sequences that a process gets at a time.
    """
    with multiprocessing.Pool(jobs, unburdened) as pool:
        for actions, failures in pool.imap_unordered(trial, seeds, chunk):
            if failures:
                print(failures, flush=True)
            yield actions, failures


def replay(actions: list[Action]) -> int:
    """Run one sequence, and print its failure and the actions that are needed to show it; return the exit code."""
    print("actions:", *actions)
    failures = wrong(actions)
    if failures:
        print(*failures, sep="\n")
        print("the actions that suffice:", *shrink(actions))
    return bool(failures)


def main() -> int:
    """Parse the arguments, run the sequences and store the result; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000, help="the number of sequences")
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
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    if args.replay is not None or args.actions:
        return replay(read(args.actions.split()) if args.actions else random_actions(args.replay))
    begin = time.monotonic()
    found = list(campaign(range(args.seed, args.seed + args.count), args.jobs))
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
