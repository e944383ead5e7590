"""Tests of two engines with one topology; `python -m bench.faults.two_engines` runs a hundred rounds."""

from pathlib import Path

import pytest
from faultkit import below

from bench.faults.two_engines import recreated_pods, run_alternating, start_pair, statuses_by_user
from bench.kit.faultproxy.faults import Passed
from bench.kit.faultproxy.journal import Journal
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.histories import PodEvent
from tensile.sandbox.sandbox import Sandbox

SEED = 20261121


@pytest.mark.real
async def test_two_simultaneous_engines_create_every_pod_once(sandbox: Sandbox, tmp_path: Path) -> None:
    """No pod runs twice, no foreign object is changed, and the later write is refused with a conflict."""
    async with start_pair(sandbox, tmp_path) as twins:
        result = await run_alternating(twins, rounds=3, pods=4, seed=SEED, quiet=1.0)
    assert result["broken"] == []
    assert result["conflicts"] > 0
    assert len(result["writes"]) == 2


def test_a_second_lower_pod_for_one_upper_pod_is_reported() -> None:
    """Repeated events of the same lower pod are no second pod."""
    first, second, other = (
        PodEvent("lower-a", "ADDED", below(*uids)) for uids in (("l1", "u1"), ("l2", "u1"), ("l3", "u2"))
    )
    assert recreated_pods([first, first, other]) == []
    assert recreated_pods([first, other, second]) == ["2 lower pods were made for u1"]


def test_responses_are_counted_by_user_and_status() -> None:
    """Each engine has its own user."""
    journal = Journal()
    for user, status in (("one", 201), ("two", 409), ("one", 201), ("one", 200)):
        journal.add(ProxiedRequest("lower-a", "create", "pods", user=user), Passed(), 0.0).status = status
    assert statuses_by_user(journal.writes) == {"one": {"200": 1, "201": 2}, "two": {"409": 1}}
