"""Tests of faults on real clusters, in a short form; `make faults` runs the same scenarios at length."""

import asyncio
from argparse import Namespace
from pathlib import Path
from random import Random

import pytest

from bench.faults import unreachable
from bench.faults.crash import crash
from bench.faults.crash_plan import draw
from bench.faults.outage import Outage, lower_outage, upper_outage
from bench.faults.pause import WAYS, pause
from bench.kit.trial import Trial
from bench.speed.first_byte import first_bytes
from bench.speed.follow import follow
from bench.speed.services import rolls
from bench.speed.streams import Place, Pod, drawn, made, put, rounds_of
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

pytestmark = pytest.mark.real

SEED = 20261121
QUIET = 6.0


async def test_an_engine_that_is_killed_repeatedly_loses_and_duplicates_no_pod(fragile: Sandbox) -> None:
    """Every pod runs once, deleted pods are removed, and no more writes follow."""
    async with Trial(fragile) as trial:
        result = await crash(trial, draw(SEED, 30, 3, "short"), QUIET)
    assert result["broken"] == []
    assert sum(result["writes_before_kill"]) > 0


async def test_an_outage_of_a_lower_under_load_loses_no_pod(fragile: Sandbox) -> None:
    """Statuses are correct soon after it ends, and pods of the other lower become Ready during the outage."""
    chance = Random(SEED)
    async with Trial(fragile) as trial:
        await trial.start_engine_and_nodes()
        result = await lower_outage(trial, "lower-away", 20, Outage("lower-a", chance.uniform(0.1, 0.6), 2.0))
    assert result["broken"] == []


async def test_an_outage_of_the_upper_under_load_loses_no_pod(fragile: Sandbox) -> None:
    """No pod fails or runs twice, and statuses are correct soon after the outage."""
    chance = Random(SEED)
    async with Trial(fragile) as trial:
        await trial.start_engine_and_nodes()
        result = await upper_outage(trial, "upper-away", 20, Outage(UPPER, chance.uniform(0.1, 0.6), 2.0))
    assert result["broken"] == []


async def test_endpoint_slices_follow_a_rolling_update_in_every_cluster(fragile: Sandbox) -> None:
    """Each state is mirrored in time, no slice is stale or of another owner, and no write is needless."""
    async with Trial(fragile) as trial:
        result = await rolls(trial, 40, 1)
        await trial.clear()
    assert result["broken"] == []
    assert result["changes_above"] > 0


async def test_followed_logs_lose_no_line_while_pods_are_mirrored(fragile: Sandbox) -> None:
    """This holds through the upper cluster and directly.

    `python -m bench.speed.follow` has many more streams, and measures the time.
    """
    result = await follow(fragile, Namespace(streams=8, rate=20_000, line=500, seconds=2.0, pods=10, rounds=1))
    assert result["broken"] == []
    assert min(run["lines"] for run in result["runs"]) > 0


async def test_exec_transfers_every_byte_unchanged(fragile: Sandbox, tmp_path: Path) -> None:
    """This holds in both directions, through the upper cluster and directly.

    `python -m bench.speed.streams` transfers more.
    """
    place = Place(fragile, tmp_path / "content", drawn(tmp_path / "content", 5), tmp_path / "received", 5)
    pod = Pod("carries", "lower-b", 0)
    async with Trial(fragile) as trial:
        await trial.start_engine_and_nodes()
        await made(place, [pod])
        await asyncio.to_thread(put, place, pod)
        runs = await asyncio.to_thread(rounds_of, place, [pod], 1, ["exec_out", "exec_in"])
        first = await first_bytes(fragile, {pod.name: pod.lower}, 2)
        await trial.clear()
    assert len(runs) == 4
    assert len(first[pod.name]["through"]) == len(first[pod.name]["direct"]) == 2


async def test_an_engine_outage_beyond_the_node_timeout_loses_no_pod(hasty: Sandbox) -> None:
    """The same pods exist afterwards in both clusters, and are Ready again."""
    async with Trial(hasty) as trial:
        result = await pause(trial, *WAYS[0], pods=10)
    assert result["broken"] == []


async def test_an_unreachable_lower_loses_and_duplicates_no_pod(fragile: Sandbox) -> None:
    """The lower is disconnected or killed while pods end on both sides; only a pod that ended in the lower is lost."""
    async with unreachable.reached(fragile) as (trial, ways):
        absences = [unreachable.Absence("lower-a", "parted", 1.5), unreachable.Absence("lower-b", "killed", 1.5)]
        result = await unreachable.outages(trial, ways, absences, 12)
    assert result["broken"] == []
    assert [run["lost"] for run in result["runs"]] == [1, 0]
