"""One sequence from its first action to the verdict, in virtual time; and the reduction of a sequence that fails."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from bench.kit.virtualtime import in_virtual_time
from bench.model.sequences.actions import Action, ActionRunner
from bench.model.sequences.model import Model
from bench.model.sequences.simulation import OWNER, Simulation

LONG = 300.0
"""Seconds after which every operation in back-off has been retried."""
STILL = 20.0
"""Seconds in which nothing may be written any more once everything is as required."""


def run_in_virtual_time(work: Callable[[], Coroutine[Any, Any, list[str]]]) -> list[str]:
    """Run a coroutine to its end on an event loop of its own, in virtual time."""
    found: list[str] = []

    @in_virtual_time
    async def run() -> None:
        found.extend(await work())

    run()
    return found


def new_simulation() -> tuple[Simulation, Model, ActionRunner]:
    """Return a simulation, its model, and a runner of actions."""
    model = Model(OWNER.mark)
    simulation = Simulation(model.check_write)
    model.attach(simulation)
    return simulation, model, ActionRunner(simulation, model)


async def run_sequence(actions: Sequence[Action]) -> list[str]:
    """Run a sequence with an engine, wait until nothing is left to do, and return the failures."""
    simulation, model, play = new_simulation()
    await simulation.start()
    try:
        for action in actions:
            await play.run(action)
        return await finish(simulation, model)
    finally:
        await simulation.crash()


async def finish(simulation: Simulation, model: Model) -> list[str]:
    """End all faults, wait until the engine has finished its work, and return the failures."""
    await simulation.recover()
    await simulation.wait_until_quiet()
    if model.wrong():
        await simulation.let_time_pass(LONG)
    failures, start = model.wrong(), len(simulation.done)
    await simulation.let_time_pass(STILL)
    return failures or [f"{one} in a quiet time" for one in simulation.writes_since(start)]


def wrong(actions: Sequence[Action]) -> list[str]:
    """Run a sequence in virtual time, and return its failures."""
    return run_in_virtual_time(partial(run_sequence, actions))


def shrink(actions: Sequence[Action], is_wrong: Callable[[Sequence[Action]], object] = wrong) -> list[Action]:
    """Remove the actions from a failing sequence that are not needed to fail: first halves, then smaller parts."""
    left, size = list(actions), max(len(actions) // 2, 1)
    while size:
        place = 0
        while place < len(left):
            fewer = left[:place] + left[place + size :]
            if is_wrong(fewer):
                left = fewer
            else:
                place += size
        size //= 2
    return left
