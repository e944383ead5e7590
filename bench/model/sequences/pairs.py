"""Two engines on one topology, one of which knows late what happens, and of one cluster later than of another.

    .venv/bin/python -m bench.model.sequences.pairs [--jobs 2]

So it is when an engine that stood still goes on while another has taken its place, or when two run by accident: each
write of the one is news to the other. A pod, or what a pod depends on, is replaced by another of its name; at each
moment after that the watches of one of the two stop, and go on in one order or the other. The new one must not be
harmed, nothing may run twice, and both come to rest.
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
"""In which order the watches of the late one go on; numbers are those of clusters."""
SINCE = {"nothing": "", "runs": "wait:1 run:0 wait:1", "is deleted": "wait:1 run:0 wait:1 linger:0 delete:0 wait:1"}
"""What becomes of the new pod meanwhile."""
STOPS = {"before": ("stop:0", "stop:1 stop:2"), "after": ("", "stop:0 stop:1 stop:2")}
"""Which watches of the late one stop before another object has the name, and which after it."""
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
    """Carry a play out with two engines at work, let both come to rest, and say what is wrong then."""
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
    """Carry a play out, and say what is wrong in the end, "" for nothing."""
    return pair.said(in_no_time(partial(played, pair.actions)))


if __name__ == "__main__":
    sys.exit(sharing.main(__doc__, NAME, list(pairs()), tried))
