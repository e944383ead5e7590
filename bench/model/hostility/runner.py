"""One sequence from its first action to the verdict, in virtual time."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from bench.model.hostility.actions import ActionRunner
from bench.model.hostility.lateness import LONG
from bench.model.hostility.setting import SETTINGS, Setting
from bench.model.hostility.simulation import TenantSimulation
from bench.model.sequences.actions import Action
from bench.model.sequences.runner import STILL, run_in_virtual_time

MOST_WRITES = 1_000
"""The limit for writes of the engine in one sequence.

The tenants do some forty things in a sequence, so more writes would mean that the engine fights with another writer.
"""


def setting_of(actions: Sequence[Action]) -> Setting:
    """Return the setting of a sequence; a sequence without one runs in the plainest."""
    found = (action.number for action in actions if action.sort == "setting")
    return SETTINGS[next(found, 0) % len(SETTINGS)]


async def played(actions: Sequence[Action]) -> list[str]:
    """Run a sequence with a running engine, wait until the engine is idle, and return what was wrong."""
    arena = TenantSimulation(setting_of(actions))
    play = ActionRunner(arena)
    await arena.start()
    watching = asyncio.get_running_loop().create_task(arena.watch())
    try:
        for action in actions:
            await play.run(action)
            await arena.pause(action.number % 5)
            arena.inspect()
        await ended(arena)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await arena.crash()
    return list(arena.checker.wrong)


async def ended(arena: TenantSimulation) -> None:
    """Let the engine finish its work, and check what is left then."""
    if not arena.is_up:
        await arena.start()
    await arena.recover()
    await arena.let_time_pass(LONG)
    await arena.wait_until_quiet()
    arena.check_final_state()
    start = len(arena.done)
    await arena.let_time_pass(STILL)
    arena.inspect()
    arena.checker.report(f"{one} in a quiet time" for one in arena.writes_since(start))
    arena.checker.report([f"{len(arena.done)} writes"] if len(arena.done) > MOST_WRITES else [])


def wrong(actions: Sequence[Action]) -> list[str]:
    """Run a sequence in virtual time, and return what was wrong."""
    return run_in_virtual_time(partial(played, actions))
