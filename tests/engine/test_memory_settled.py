"""Tests of when a running program compacts its memory: after the first lists, or after a limit of time."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from virtualtime import clock, in_virtual_time

from tensile.engine.run import _LIST_TIMEOUT, _SETTLE_DELAY, _settle_once_listed

Wait = Callable[[], Awaitable[object]]


async def settled(synced: Wait) -> float:
    """Settle an engine whose lists are complete when `synced` returns, and return the seconds that it took."""

    async def quiet() -> None:
        """Return at once."""

    engine = SimpleNamespace(
        clusters=SimpleNamespace(fleet=SimpleNamespace(synced=synced)), loop=SimpleNamespace(wait_idle=quiet)
    )
    before, stays = gc.get_freeze_count(), [[] for _ in range(100_000)]
    await _settle_once_listed(engine)  # type: ignore[arg-type]
    assert gc.get_freeze_count() > before + len(stays) // 2
    return clock()


@pytest.mark.parametrize("seconds", [0.0, 20.0])
@in_virtual_time
async def test_the_engine_waits_for_the_first_lists_before_it_settles(seconds: float) -> None:
    """The listed objects are frozen together with the others."""
    assert await settled(lambda: asyncio.sleep(seconds)) == seconds + _SETTLE_DELAY


@in_virtual_time
async def test_the_wait_for_the_first_lists_is_limited() -> None:
    """An unreachable lower or a missing permission would otherwise keep all objects subject to garbage collection."""
    assert await settled(asyncio.Event().wait) == _LIST_TIMEOUT + _SETTLE_DELAY
