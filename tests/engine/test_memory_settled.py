"""When a program that runs puts its memory in order: not before the first lists, and not never."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from virtualtime import clock, in_virtual_time

from tensile.engine.run import _LISTING, _SETTLING, _settle

Wait = Callable[[], Awaitable[object]]


async def settled(synced: Wait) -> float:
    """Settle where lists come when `synced` returns; give the seconds that it took."""

    async def quiet() -> None:
        """Return at once."""

    engine = SimpleNamespace(
        clusters=SimpleNamespace(fleet=SimpleNamespace(synced=synced)), loop=SimpleNamespace(wait_idle=quiet)
    )
    before, stays = gc.get_freeze_count(), [[] for _ in range(100_000)]
    await _settle(engine)  # type: ignore[arg-type]
    assert gc.get_freeze_count() > before + len(stays) // 2
    return clock()


@pytest.mark.parametrize("seconds", [0.0, 20.0])
@in_virtual_time
async def test_it_waits_for_the_lists_that_come(seconds: float) -> None:
    """What they bring is to be set apart with the rest."""
    assert await settled(lambda: asyncio.sleep(seconds)) == seconds + _SETTLING


@in_virtual_time
async def test_a_list_that_never_comes_is_not_waited_for_for_ever() -> None:
    """A lower that is away, or a right that is missing, would keep everything where the collector goes through it."""
    assert await settled(asyncio.Event().wait) == _LISTING + _SETTLING
