"""Runs named sequences in several processes, and collects their failures."""

import argparse
import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.kit.reporting import RESULTS, keep, verdict
from bench.model.sequences.actions import Action


class NamedSequence(NamedTuple):
    """A sequence of actions, and its name in reports of failures."""

    name: str
    actions: Sequence[Action]

    def report(self, failures: Sequence[str]) -> str:
        """Return the report of its failures, "" for none."""
        return f"{self.name}: {'; '.join(failures)}: {' '.join(map(str, self.actions))}" if failures else ""


def main(
    about: str, name: str, sequences: Sequence[NamedSequence], run_sequence: Callable[[NamedSequence], str]
) -> int:
    """Parse the arguments, run all sequences and store the result; return the exit code.

    Args:
        about: the docstring of the program; its first line is the description in --help.
        name: the name of the result.
        sequences: the sequences to run.
        run_sequence: runs one and returns its failures; a function of a module, so that other processes can import it.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="the number of processes")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    with multiprocessing.Pool(args.jobs) as pool:
        broken = [failure for failure in pool.imap_unordered(run_sequence, sequences, 10) if failure]
    print(*broken, sep="\n")
    result = {"plays": len(sequences), "divergences": len(broken), "broken": broken}
    return verdict(name, broken, keep(args.results, name, "in memory", result))
