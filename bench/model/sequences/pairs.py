"""Two engines on one topology, one of which observes changes late, and those of one cluster later than of another.

    .venv/bin/python -m bench.model.sequences.pairs [--jobs 2]

This happens when an engine that was suspended resumes after another has replaced it, or when two run by accident: each
write of one is unexpected for the other. A pod, or an object that a pod depends on, is replaced by another with its
name. At each moment after that, the watches of one of the two engines stop, and resume in one order or the other. The
new object must not be harmed, no pod may run twice, and both engines come to rest.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from bench.model.sequences import sharing
from bench.model.sequences.actions import Action, read
from bench.model.sequences.playing import ended, in_no_time, staged
from bench.model.sequences.races import BEGUN, COPIES, HERE
from bench.model.sequences.sharing import Named
from bench.model.sequences.stage import CLUSTERS, Stage

NAME = "faults-pairs"
ORDERS = {"above first": "go:0 wait:2 go:1 go:2", "below first": "go:1 go:2 wait:2 go:0"}
"""The order in which the late engine's watches resume; numbers are those of clusters."""
SINCE = {"nothing": "", "runs": "wait:1 run:0 wait:1", "is deleted": "wait:1 run:0 wait:1 linger:0 delete:0 wait:1"}
"""What happens to the new pod while the watches are stopped."""
STOPS = {"before": ("stop:0", "stop:1 stop:2"), "after": ("", "stop:0 stop:1 stop:2")}
"""Which of the late engine's watches stop before the object is replaced, and which after it."""
_STEPS = range(0, 20, 4)


def pairs() -> Iterator[Named]:
    """Yield each play with its name."""
    every = product(BEGUN.items(), _STEPS, SINCE.items(), STOPS.items(), ORDERS.items())
    for (begun, before), steps, (since, then), (stop, (first, last)), (order, going) in every:
        words = f"pod:{HERE} {before} {first} again:{HERE} steps:{steps} {last} {then} {going}"
        yield Named(f"Pod {begun}, {steps}, {since}, {stop}, {order}", read(words.split()))
    for (kind, again), steps, (stop, (first, last)), (order, going) in product(
        COPIES.items(), _STEPS, STOPS.items(), ORDERS.items()
    ):
        words = f"pod:{HERE} serve:0 wait:3 run:0 wait:3 {first} {again} steps:{steps} {last} wait:1 {going}"
        yield Named(f"{kind}, {steps}, {stop}, {order}", read(words.split()))


async def played(actions: Sequence[Action]) -> list[str]:
    """Play a sequence with two running engines, let both come to rest, and return the failures."""
    stage, model, play = staged()
    late = Stage(model.look, stage)
    await stage.start()
    await late.start()
    try:
        for action in actions:
            if action.sort in ("stop", "go"):
                _tell(late, action)
            else:
                await play.carry_out(action)
        await late.recover()
        return [*await ended(stage, model), *late.defects]
    finally:
        await stage.crash()
        await late.crash()


def _tell(late: Stage, action: Action) -> None:
    """Stop or resume an engine's watches of one cluster."""
    for line in late.lines:
        if line.feed.cluster == CLUSTERS[action.number]:
            line.is_held = action.sort == "stop"
            line.flow()


def tried(pair: Named) -> str:
    """Play a sequence; return its failures, "" for none."""
    return pair.said(in_no_time(partial(played, pair.actions)))


if __name__ == "__main__":
    sys.exit(sharing.main(__doc__, NAME, list(pairs()), tried))
