"""Tests of how a rig waits until its engine is idle, without clusters: its journal is written directly."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from bench.kit.faultproxy.faults import Passed
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.rig import Rig
from bench.kit.sites import NotInTime


def write(rig: Rig, name: str, resource: str = "pods") -> None:
    """Add a successful patch to the journal."""
    rig.journal.add(ProxiedRequest("upper", "patch", resource, "", "shop", name), Passed(), 0.0).status = 200


async def test_an_engine_that_renews_only_its_leases_is_idle(tmp_path: Path) -> None:
    """The result is the number of all writes until then."""
    rig = Rig(Mock(), tmp_path)
    write(rig, "web")
    write(rig, "node", "leases")
    assert await rig.wait_until_idle(1, 0.0) == 2


async def test_an_engine_that_never_stops_writing_is_an_error_with_its_last_writes(tmp_path: Path) -> None:
    """The names of the objects show which rule writes again and again."""
    rig = Rig(Mock(), tmp_path)

    async def keep_writing() -> None:
        """Write the same pod in every turn of the event loop."""
        while True:
            write(rig, "web")
            await asyncio.sleep(0)

    task = asyncio.create_task(keep_writing())
    with pytest.raises(NotInTime, match=r"still writes after 0\.01 s, last: upper: patch pods shop/web \(200\)"):
        await rig.wait_until_idle(0, 0.001, limit=0.01)
    task.cancel()
