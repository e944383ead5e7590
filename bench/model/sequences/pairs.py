"""Two engines on one topology, one of which observes changes late, and those of one cluster later than of another.

    .venv/bin/python -m bench.model.sequences.pairs [--jobs 2]

This happens when an engine that was suspended resumes after another has replaced it, or when two run by accident: each
write of one is unexpected for the other. A pod, or an object that a pod depends on, is replaced by another with its
name. At each moment after that, the watches of one of the two engines stop, and resume in one order or the other. The
new object must not be harmed, no pod may run twice, and both engines become idle.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from bench.model.sequences import parallel
from bench.model.sequences.actions import Action, read
from bench.model.sequences.parallel import NamedSequence
from bench.model.sequences.races import BEGUN, COPIES, HERE
from bench.model.sequences.runner import finish, new_simulation, run_in_virtual_time
from bench.model.sequences.simulation import CLUSTERS, Simulation

NAME = "faults-pairs"
ORDERS = {"above first": "go:0 wait:2 go:1 go:2", "below first": "go:1 go:2 wait:2 go:0"}
"""The order in which the late engine's watches resume; numbers are those of clusters."""
SINCE = {"nothing": "", "runs": "wait:1 run:0 wait:1", "is deleted": "wait:1 run:0 wait:1 linger:0 delete:0 wait:1"}
"""What happens to the new pod while the watches are stopped."""
STOPS = {"before": ("stop:0", "stop:1 stop:2"), "after": ("", "stop:0 stop:1 stop:2")}
"""Which of the late engine's watches stop before the object is replaced, and which after it."""
_STEPS = range(0, 20, 4)


def pairs() -> Iterator[NamedSequence]:
    """Yield each sequence with its name."""
    every = product(BEGUN.items(), _STEPS, SINCE.items(), STOPS.items(), ORDERS.items())
    for (begun, before), steps, (since, then), (stop, (first, last)), (order, going) in every:
        actions = f"pod:{HERE} {before} {first} again:{HERE} steps:{steps} {last} {then} {going}"
        yield NamedSequence(f"Pod {begun}, {steps}, {since}, {stop}, {order}", read(actions.split()))
    for (kind, again), steps, (stop, (first, last)), (order, going) in product(
        COPIES.items(), _STEPS, STOPS.items(), ORDERS.items()
    ):
        actions = f"pod:{HERE} serve:0 wait:3 run:0 wait:3 {first} {again} steps:{steps} {last} wait:1 {going}"
        yield NamedSequence(f"{kind}, {steps}, {stop}, {order}", read(actions.split()))


async def played(actions: Sequence[Action]) -> list[str]:
    """Run a sequence with two running engines, wait until both are idle, and return the failures."""
    simulation, model, play = new_simulation()
    late = Simulation(model.check_write, simulation)
    await simulation.start()
    await late.start()
    try:
        for action in actions:
            if action.sort in ("stop", "go"):
                _tell(late, action)
            else:
                await play.run(action)
        await late.recover()
        return [*await finish(simulation, model), *late.defects]
    finally:
        await simulation.crash()
        await late.crash()


def _tell(late: Simulation, action: Action) -> None:
    """Stop or resume an engine's watches of one cluster."""
    for watch in late.watch_connections:
        if watch.feed.cluster == CLUSTERS[action.number]:
            watch.is_held = action.sort == "stop"
            watch.deliver()


def tried(pair: NamedSequence) -> str:
    """Run a sequence; return its failures, "" for none."""
    return pair.report(run_in_virtual_time(partial(played, pair.actions)))


if __name__ == "__main__":
    sys.exit(parallel.main(__doc__, NAME, list(pairs()), tried))
