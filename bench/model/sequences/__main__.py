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
from bench.model.sequences.actions import Action, read, thought_up
from bench.model.sequences.playing import shrunk, wrong

NAME = "faults-sequences"
_CHUNK = 50


def unburdened() -> None:
    """Run the garbage collector rarely, because a sequence leaves little garbage, and all at once."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def tried(seed: int) -> tuple[int, str]:
    """Play the sequence of a seed; return its number of actions, and the failure with the fewest actions."""
    sequence = thought_up(seed)
    words = wrong(sequence)
    if not words:
        return len(sequence), ""
    return len(sequence), f"seed {seed}: {'; '.join(words)}: {' '.join(map(str, shrunk(sequence)))}"


def campaign(
    seeds: range, jobs: int, trial: Callable[[int], tuple[int, str]] = tried, chunk: int = _CHUNK
) -> Iterator[tuple[int, str]]:
    """Play many sequences in several processes; failures are printed as they occur.

    Args:
        seeds: the seeds of the sequences.
        jobs: the number of processes.
        trial: plays the sequence of a seed, as `tried` does; a function of a module, so that other processes find it.
        chunk: the number of sequences that a process gets at a time.
    """
    with multiprocessing.Pool(jobs, unburdened) as pool:
        for actions, words in pool.imap_unordered(trial, seeds, chunk):
            if words:
                print(words, flush=True)
            yield actions, words


def replay(actions: list[Action]) -> int:
    """Play one sequence, and print its failure and the actions that are needed to show it; return the exit code."""
    print("actions:", *actions)
    words = wrong(actions)
    if words:
        print(*words, sep="\n")
        print("takes:", *shrunk(actions))
    return bool(words)


def main() -> int:
    """Parse the arguments, play the sequences and store the result; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first sequence; each has the next one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that share the work")
    parser.add_argument("--replay", type=int, help="play the sequence of this seed alone, and shrink it")
    parser.add_argument("--actions", help='play this sequence alone: "SORT:NUMBER SORT:NUMBER"')
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.replay is not None or given.actions:
        return replay(read(given.actions.split()) if given.actions else thought_up(given.replay))
    begin = time.monotonic()
    found = list(campaign(range(given.seed, given.seed + given.count), given.jobs))
    broken = [words for _, words in found if words]
    result = {
        "seed": given.seed,
        "sequences": given.count,
        "actions": sum(actions for actions, _ in found),
        "seconds": round(time.monotonic() - begin, 1),
        "divergences": len(broken),
        "broken": broken,
    }
    return verdict(NAME, broken, keep(given.results, NAME, "in memory", result))


if __name__ == "__main__":
    sys.exit(main())
