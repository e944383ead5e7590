"""Fixtures of tests that run twice: on a cluster in memory and on a real cluster."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from dryrunkit import ClusterUnderTest, prepared_namespace

from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.objects import UPPER
from tensile.reconcile.dryrun.cluster import DryRunCluster

if TYPE_CHECKING:
    from tensile.sandbox.sandbox import Sandbox


@pytest.fixture(params=["rehearsal", pytest.param("real", marks=pytest.mark.real)])
async def cluster_under_test(request: pytest.FixtureRequest) -> AsyncIterator[ClusterUnderTest]:
    """Yield the cluster under test: one in memory, where pods terminate slowly as without a kubelet, or a real one."""
    if request.param == "rehearsal":
        async with prepared_namespace(DryRunCluster(UPPER, ends_pods=False, now=lambda: datetime.now(UTC))) as made:
            yield made
        return
    sandbox: Sandbox = request.getfixturevalue("sandbox")
    cluster = HttpCluster(UPPER, await from_kubeconfig(sandbox.directory / "upper.kubeconfig"))
    try:
        async with prepared_namespace(cluster) as made:
            yield made
    finally:
        await cluster.close()
