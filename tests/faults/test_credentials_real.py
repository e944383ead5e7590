"""Tests of credentials that expire and of clusters that change behind an address; see bench.faults.credentials."""

import pytest

from bench.faults.credentials import FILE_SWAPS, OTHER_SWAPS, run_swap
from bench.kit.trial import Trial
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

SWAPS = FILE_SWAPS | {"address": OTHER_SWAPS["address"]}


@pytest.mark.parametrize("kind", SWAPS)
async def test_a_swap_of_credentials_or_clusters_loses_no_pod_and_new_pods_run_within_seconds(
    fragile: Sandbox, kind: str
) -> None:
    """No pod is deleted or restarted, and a wrong cluster is reported and not written to."""
    async with Trial(fragile) as trial:
        await trial.start_engine_and_nodes()
        (result,) = await run_swap(trial, SWAPS[kind](trial), pods=2, rounds=1)
    assert result["broken"] == []
