"""Tests of an engine that is killed at some writes; `python -m bench.faults.every_write` does it at every write."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.faults.every_write import MOMENTS, PATIENCE, Crash, every_write, merged
from bench.faults.workloads import WORKLOADS, Workload
from bench.kit.faultproxy.faults import Dropped, Hung, Lost, Passed
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.rig import Rig
from tensile.sandbox.sandbox import Sandbox

STRUCK = {
    "create": ("lost", (4,)),
    "update": ("before", (2,)),
    "delete": ("after", (1,)),
    "lower added": ("lost", (1,)),
    "bare pod moved": ("lost", (6,)),
    "lower removed": ("before", (1,)),
}
"""The moment and the numbers of the writes of each deed; the long form has all moments and more writes."""


@asynccontextmanager
async def rigged(sandbox: Sandbox, directory: Path) -> AsyncIterator[Rig]:
    """Run an engine behind fault proxies, and yield once it is ready."""
    async with Rig(sandbox, directory) as made:
        assert not await made.is_ready()
        made.start()
        await made.wait_until_usable()
        assert await made.is_ready()
        yield made


@pytest.mark.real
async def test_an_engine_that_is_killed_at_a_write_reaches_the_same_final_state(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It does so for any object and whether the write succeeded or not; no object is created twice or harmed."""

    async def struck(*workload: Workload) -> None:
        """Run some deeds with a separate engine."""
        async with rigged(sandbox, tmp_path_factory.mktemp("rig")) as rig:
            for deed in workload:
                moment, numbers = STRUCK[deed.name]
                result = await every_write(rig, deed, moment, numbers, PATIENCE)
                assert result["broken"] == []
                assert result["strikes"] == len(numbers), deed.name

    await asyncio.gather(struck(*WORKLOADS[:3]), struck(*WORKLOADS[3:]))


def run(deed: str, moment: str, strikes: int, *broken: str) -> dict[str, object]:
    """Return the result of a run."""
    return {"deed": deed, "moment": moment, "strikes": strikes, "broken": list(broken)}


def test_the_results_of_several_runs_are_merged() -> None:
    """A later run replaces an earlier one of its deed and moment, and results of unknown deeds are removed."""
    before = [run("create", "lost", 5, "old"), run("update", "before", 3, "kept"), run("dance", "lost", 9, "gone")]
    now = [run("create", "lost", 7), run("create", "before", 6)]
    assert merged(before, now) == {
        "strikes": 16,
        "runs": [run("create", "before", 6), run("create", "lost", 7), run("update", "before", 3, "kept")],
        "broken": ["kept"],
    }


def write(name: str, verb: str = "patch") -> ProxiedRequest:
    """Return a write of a pod."""
    return ProxiedRequest("upper", verb, "pods", "", "shop", name)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_crash_happens_at_its_write_and_its_moment(moment: str) -> None:
    """Reads and ignored writes do not count; the engine is killed before or after the write, or not at all."""
    calls: list[str] = []
    crash = Crash(2, moment, lambda call: call.name != "aside", lambda: calls.append("killed"))
    first, second = write("one"), write("two")
    for call in (write("aside"), write("one", "get"), first):
        assert await crash.fault_for(call) == Passed()
        await crash.on_executed(call, 200)
        await crash.on_responded(call, 200)
    assert (calls, crash.interrupted_write, crash.is_over) == ([], None, False)
    fault = {"before": Dropped(), "after": Passed()}.get(moment, Lost())
    assert await crash.fault_for(second) == fault
    assert crash.interrupted_write == second
    assert (calls, crash.is_over) == ((["killed"], True) if moment == "before" else ([], False))
    await crash.on_executed(second, 200)
    assert calls == (["killed"] if moment in ("before", "lost") else [])
    await crash.on_responded(second, 200)
    assert crash.is_over
    assert calls == ([] if moment == "cut" else ["killed"])
    assert await crash.fault_for(write("three")) == (Passed() if moment == "cut" else Hung())
    assert (crash.is_again(write("two")), crash.is_again(first)) == (moment == "cut", False)
