"""Faults on real clusters, in short: `make faults` runs the same scenarios at length."""

import asyncio
from argparse import Namespace
from pathlib import Path
from random import Random

import pytest

from bench.faults import away
from bench.faults.crash import crash
from bench.faults.outage import Outage, lower_outage, upper_outage
from bench.faults.pause import WAYS, pause
from bench.faults.storm import draw
from bench.kit.trial import Trial
from bench.speed.firstbyte import first_bytes
from bench.speed.follow import follow
from bench.speed.services import rolls
from bench.speed.streams import Place, Pod, drawn, made, put, rounds_of
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

pytestmark = pytest.mark.real

SEED = 20261121
QUIET = 6.0


async def test_an_engine_that_is_killed_again_and_again_loses_and_doubles_nothing(fragile: Sandbox) -> None:
    """Every pod runs once, the deleted ones are gone, and then it is quiet."""
    async with Trial(fragile) as trial:
        result = await crash(trial, draw(SEED, 30, 3, "short"), QUIET)
    assert result["broken"] == []
    assert sum(result["writes_before_kill"]) > 0


async def test_a_lower_that_goes_away_under_load_costs_no_pod(fragile: Sandbox) -> None:
    """Statuses are right soon after it is back, and the other lower's pods got Ready meanwhile."""
    chance = Random(SEED)
    async with Trial(fragile) as trial:
        await trial.start_engine_and_nodes()
        result = await lower_outage(trial, "lower-away", 20, Outage("lower-a", chance.uniform(0.1, 0.6), 2.0))
    assert result["broken"] == []


async def test_an_upper_that_goes_away_under_load_costs_no_pod(fragile: Sandbox) -> None:
    """None fails, none runs twice, and statuses are right soon after it is back."""
    chance = Random(SEED)
    async with Trial(fragile) as trial:
        await trial.start_engine_and_nodes()
        result = await upper_outage(trial, "upper-away", 20, Outage(UPPER, chance.uniform(0.1, 0.6), 2.0))
    assert result["broken"] == []


async def test_slices_follow_a_rolling_update_in_every_cluster(fragile: Sandbox) -> None:
    """Each state is below in time, none is stale in the end, no other's is touched, and no write is needless."""
    async with Trial(fragile) as trial:
        result = await rolls(trial, 40, 1)
        await trial.clear()
    assert result["broken"] == []
    assert result["changes_above"] > 0


async def test_logs_that_are_followed_while_pods_are_mirrored_lose_nothing(fragile: Sandbox) -> None:
    """Through the upper cluster and directly; `python -m bench.speed.follow` has many more, and looks at the time."""
    result = await follow(fragile, Namespace(streams=8, rate=20_000, line=500, seconds=2.0, pods=10, rounds=1))
    assert result["broken"] == []
    assert min(run["lines"] for run in result["runs"]) > 0


async def test_what_exec_carries_is_the_same_to_the_last_byte(fragile: Sandbox, tmp_path: Path) -> None:
    """Through the upper cluster and directly, out and in; `python -m bench.speed.streams` has much more of it."""
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


async def test_an_engine_that_stays_away_for_longer_than_nodes_may_costs_no_pod(hasty: Sandbox) -> None:
    """The pods are the same afterwards, on both sides, and Ready again."""
    async with Trial(hasty) as trial:
        result = await pause(trial, *WAYS[0], pods=10)
    assert result["broken"] == []


async def test_a_lower_that_is_out_of_reach_costs_no_pod_and_doubles_none(fragile: Sandbox) -> None:
    """Cut off or killed, with pods deleted above and ended below meanwhile: one ended there is lost, and no other."""
    async with away.reached(fragile) as (trial, ways):
        absences = [away.Absence("lower-a", "parted", 1.5), away.Absence("lower-b", "killed", 1.5)]
        result = await away.outages(trial, ways, absences, 12)
    assert result["broken"] == []
    assert [run["lost"] for run in result["runs"]] == [1, 0]
