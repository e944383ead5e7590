"""One sequence from its first action to the verdict, in virtual time; and the reduction of a sequence that fails."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from bench.kit.virtualtime import in_virtual_time
from bench.model.sequences.actions import Action, Play
from bench.model.sequences.model import Model
from bench.model.sequences.stage import OWNER, Stage

LONG = 300.0
"""Seconds after which every operation in back-off has been retried."""
STILL = 20.0
"""Seconds in which nothing may be written any more once everything is as required."""


def in_no_time(work: Callable[[], Coroutine[Any, Any, list[str]]]) -> list[str]:
    """Run a coroutine to its end on an event loop of its own, in virtual time."""
    found: list[str] = []

    @in_virtual_time
    async def run() -> None:
        found.extend(await work())

    run()
    return found


def staged() -> tuple[Stage, Model, Play]:
    """Return a stage, its model, and a player."""
    model = Model(OWNER.mark)
    stage = Stage(model.look)
    model.attach(stage)
    return stage, model, Play(stage, model)


async def played(actions: Sequence[Action]) -> list[str]:
    """Play a sequence with a running engine, let everything come to rest, and return the failures."""
    stage, model, play = staged()
    await stage.start()
    try:
        for action in actions:
            await play.carry_out(action)
        return await ended(stage, model)
    finally:
        await stage.crash()


async def ended(stage: Stage, model: Model) -> list[str]:
    """End all faults, wait until the engine has finished its work, and return the failures."""
    await stage.recover()
    await stage.calm()
    if model.wrong():
        await stage.rest(LONG)
    said, start = model.wrong(), len(stage.done)
    await stage.rest(STILL)
    return said or [f"{one} in a quiet time" for one in stage.written(start)]


def wrong(actions: Sequence[Action]) -> list[str]:
    """Play a sequence, and return its failures."""
    return in_no_time(partial(played, actions))


def shrunk(actions: Sequence[Action], is_wrong: Callable[[Sequence[Action]], object] = wrong) -> list[Action]:
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
