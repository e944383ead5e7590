"""Credentials that end, and clusters that change behind an address, on real clusters; see bench.faults.credentials."""

import pytest

from bench.faults.credentials import FILE_SWAPS, OTHER_SWAPS, ordeal
from bench.kit.trial import Trial
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

SWAPS = FILE_SWAPS | {"address": OTHER_SWAPS["address"]}


@pytest.mark.parametrize("kind", SWAPS)
async def test_a_swap_costs_no_pod_and_what_follows_it_works_within_seconds(fragile: Sandbox, kind: str) -> None:
    """No pod is deleted or restarted, a wrong cluster is not written to and said, and a pod bound meanwhile runs."""
    async with Trial(fragile) as trial:
        await trial.start_engine_and_nodes()
        (result,) = await ordeal(trial, SWAPS[kind](trial), pods=2, rounds=1)
    assert result["broken"] == []
