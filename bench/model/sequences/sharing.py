"""Named plays, shared by several processes, and their failures."""

import argparse
import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.kit.reporting import RESULTS, keep, verdict
from bench.model.sequences.actions import Action


class Named(NamedTuple):
    """A sequence of actions, and its name in reports of failures."""

    name: str
    actions: Sequence[Action]

    def said(self, words: Sequence[str]) -> str:
        """Return the report of its failures, "" for none."""
        return f"{self.name}: {'; '.join(words)}: {' '.join(map(str, self.actions))}" if words else ""


def main(about: str, name: str, every: Sequence[Named], tried: Callable[[Named], str]) -> int:
    """Parse the arguments, carry out all plays and store the result; return the exit code.

    Args:
        about: what the program is for; its first line is shown.
        name: the name of the result.
        every: the plays.
        tried: carries a play out and returns its failures; a function of a module, so that other processes find it.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that share the work")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    with multiprocessing.Pool(given.jobs) as pool:
        broken = [words for words in pool.imap_unordered(tried, every, 10) if words]
    print(*broken, sep="\n")
    result = {"plays": len(every), "divergences": len(broken), "broken": broken}
    return verdict(name, broken, keep(given.results, name, "in memory", result))
