"""The engine on clusters in memory, in virtual time: sequences at random, with faults, held against a model.

    .venv/bin/python -m bench.sequences [--count 20000] [--seed 1]

Somebody makes, changes and deletes pods and ConfigMaps; kubelets run and end them, others kill, edit and take names;
writes are dropped, lost, refused; watches are late; the engine crashes. In the end everything has to be as the model
says. A sequence that goes wrong is printed with its seed, cut down to what it takes.
"""

import argparse
import sys
from pathlib import Path

from bench.reporting import RESULTS, keep, verdict
from bench.sequences.model import Deed, played, thought_up
from tests.virtualtime import in_virtual_time

NAME = "faults-sequences"


def wrong(deeds: list[Deed]) -> list[str]:
    """Carry a sequence out in virtual time, and say what is wrong in the end."""
    found: list[str] = []

    @in_virtual_time
    async def run() -> None:
        found.extend(await played(deeds))

    run()
    return found


def shrunk(deeds: list[Deed]) -> list[Deed]:
    """Leave out of a sequence that goes wrong what does not matter."""
    for place in range(len(deeds) - 1, -1, -1):
        fewer = deeds[:place] + deeds[place + 1 :]
        if wrong(fewer):
            deeds = fewer
    return deeds


def main() -> int:
    """Read the arguments, go through the sequences, keep the result; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first sequence; each has the next one")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    broken, deeds = [], 0
    for seed in range(given.seed, given.seed + given.count):
        sequence = thought_up(seed)
        deeds += len(sequence)
        if words := wrong(sequence):
            short = " ".join(f"{deed.sort}:{deed.number}" for deed in shrunk(sequence))
            broken.append(f"seed {seed}: {'; '.join(words)}: {short}")
            print(broken[-1], flush=True)
    result = {"seed": given.seed, "sequences": given.count, "deeds": deeds, "broken": broken}
    return verdict(NAME, broken, keep(given.results, NAME, "", result))


if __name__ == "__main__":
    sys.exit(main())
