"""A hostile tenant below and one above beside honest load: sequences at random, held against what they must not reach.

    .venv/bin/python -m bench.model.hostility [--count 2000] [--seed 1] [--jobs 2]
    .venv/bin/python -m bench.model.hostility --replay 4711
    .venv/bin/python -m bench.model.hostility --actions "setting:3 pod:42 mimic:0"
    .venv/bin/python -m bench.model.hostility --real [--count 200]

The tenant below may edit one namespace of one lower cluster; the one above may do what he likes in one namespace of the
upper, and binds his pods himself. They write objects with forged marks, names and UIDs of others, finalizers, owners,
references to what is not theirs, and large ones, while honest tenants make, change and delete pods with all that those
need, the engine crashes, and watches are late. No word of another tenant's may reach them, nor one of theirs another;
nothing that is not ours is touched; no honest pod is late by more than 5 seconds; and the engine comes to rest. In
memory that is in virtual time. A sequence that goes wrong is printed with its seed, cut down to what it takes.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from bench.kit.reporting import RESULTS, keep, verdict
from bench.model.hostility import real
from bench.model.hostility.actions import thought_up
from bench.model.hostility.playing import setting_of, wrong
from bench.model.sequences.__main__ import campaign
from bench.model.sequences.actions import Action, read
from bench.model.sequences.playing import shrunk

NAME = "faults-hostility"
_CHUNK = 10


def tried(seed: int) -> tuple[int, str]:
    """Play the sequence of a seed; return how many actions it has, and what is wrong with the fewest that show it."""
    sequence = thought_up(seed)
    return len(sequence), f"seed {seed}: {_fewest(sequence)}" if wrong(sequence) else ""


def _fewest(actions: list[Action]) -> str:
    """Return the fewest actions of a sequence after which something is wrong, in its setting, and what that is."""
    setting = actions[:1]
    left = [*setting, *shrunk(actions[1:], lambda fewer: wrong([*setting, *fewer]))]
    return f"{setting_of(left)}: {'; '.join(wrong(left))}: {' '.join(map(str, left))}"


def replay(actions: list[Action]) -> int:
    """Play one sequence, and print what is wrong and what it takes; return the exit code."""
    print("actions:", *actions)
    words = wrong(actions)
    if words:
        print(*words, f"takes: {_fewest(actions)}", sep="\n")
    return bool(words)


def main() -> int:
    """Read the arguments, go through the sequences, keep the result; return the exit code."""
    if "--real" in sys.argv:
        return real.main()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first sequence; each has the next one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that share the work")
    parser.add_argument("--replay", type=int, help="play the sequence of this seed alone, and shrink it")
    parser.add_argument("--actions", help='play this sequence alone: "SORT:NUMBER SORT:NUMBER"')
    parser.add_argument(
        "--real", action="store_true", help="play on real control planes, as bench.model.hostility.real does"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.replay is not None or given.actions:
        return replay(read(given.actions.split()) if given.actions else thought_up(given.replay))
    begin = time.monotonic()
    found = list(campaign(range(given.seed, given.seed + given.count), given.jobs, tried, _CHUNK))
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
