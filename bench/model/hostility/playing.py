"""One sequence from its first action to the verdict, in virtual time."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from bench.model.hostility.actions import Play
from bench.model.hostility.arena import Arena
from bench.model.hostility.lateness import LONG
from bench.model.hostility.setting import SETTINGS, Setting
from bench.model.sequences.actions import Action
from bench.model.sequences.playing import STILL, in_no_time

MOST_WRITES = 1_000
"""The limit for writes of the engine in one sequence.

The tenants do some forty things in a sequence, so more writes would mean that the engine fights with another writer.
"""


def setting_of(actions: Sequence[Action]) -> Setting:
    """Return the setting of a sequence; a sequence without one is played in the plainest."""
    found = (action.number for action in actions if action.sort == "setting")
    return SETTINGS[next(found, 0) % len(SETTINGS)]


async def played(actions: Sequence[Action]) -> list[str]:
    """Play a sequence with a running engine, let everything come to rest, and return what was wrong."""
    arena = Arena(setting_of(actions))
    play = Play(arena)
    await arena.start()
    watching = asyncio.get_running_loop().create_task(arena.watch())
    try:
        for action in actions:
            await play.carry_out(action)
            await arena.pause(action.number % 5)
            arena.inspect()
        await ended(arena)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await arena.crash()
    return list(arena.watchman.wrong)


async def ended(arena: Arena) -> None:
    """Let the engine finish its work, and check what is left then."""
    if not arena.is_up:
        await arena.start()
    await arena.recover()
    await arena.rest(LONG)
    await arena.calm()
    arena.inspect_at_the_end()
    start = len(arena.done)
    await arena.rest(STILL)
    arena.inspect()
    arena.watchman.say(f"{one} in a quiet time" for one in arena.written(start))
    arena.watchman.say([f"{len(arena.done)} writes"] if len(arena.done) > MOST_WRITES else [])


def wrong(actions: Sequence[Action]) -> list[str]:
    """Play a sequence in virtual time, and return what was wrong."""
    return in_no_time(partial(played, actions))
