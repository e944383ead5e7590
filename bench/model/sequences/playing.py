"""One sequence from its first action to the verdict, in virtual time; and what of a sequence it takes to go wrong."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from bench.kit.virtualtime import in_virtual_time
from bench.model.sequences.actions import Action, Play
from bench.model.sequences.model import Model
from bench.model.sequences.stage import OWNER, Stage

LONG = 300.0
"""Seconds after which everything that rests has been tried again."""
STILL = 20.0
"""Seconds in which nothing may be written any more when everything is as it has to be."""


def in_no_time(work: Callable[[], Coroutine[Any, Any, list[str]]]) -> list[str]:
    """Run something to its end on an event loop of its own, however long it sleeps."""
    found: list[str] = []

    @in_virtual_time
    async def run() -> None:
        found.extend(await work())

    run()
    return found


def staged() -> tuple[Stage, Model, Play]:
    """Return a stage, the model of what has to be on it, and a player."""
    model = Model(OWNER.mark)
    stage = Stage(model.look)
    model.attach(stage)
    return stage, model, Play(stage, model)


async def played(actions: Sequence[Action]) -> list[str]:
    """Carry a sequence out with an engine at work, let everything come to rest, and say what is wrong then."""
    stage, model, play = staged()
    await stage.start()
    try:
        for action in actions:
            await play.carry_out(action)
        return await ended(stage, model)
    finally:
        await stage.crash()


async def ended(stage: Stage, model: Model) -> list[str]:
    """Put right what is in the engine's way, wait until it has done what it has to, and say what is wrong."""
    await stage.recover()
    await stage.calm()
    if model.wrong():
        await stage.rest(LONG)
    said, start = model.wrong(), len(stage.done)
    await stage.rest(STILL)
    return said or [f"{one} in a quiet time" for one in stage.written(start)]


def wrong(actions: Sequence[Action]) -> list[str]:
    """Play a sequence, and say what is wrong in the end."""
    return in_no_time(partial(played, actions))


def shrunk(actions: Sequence[Action], is_wrong: Callable[[Sequence[Action]], object] = wrong) -> list[Action]:
    """Leave out of a sequence that goes wrong what it does not take: first halves, then ever smaller parts."""
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
