"""The main job on the release of Kubernetes before the one that all other tests run on, on both sides.

The tests are those of test_main_job.py, on clusters of this file's own. That release has no MutatingAdmissionPolicy by
default, so here pods get their tolerations from the engine.
"""

import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from enginekit import LOWERS, UPPER, Ground, standing
from test_main_job import (
    secret,
    test_a_deployment_runs_below_with_all_that_it_refers_to,
    test_a_pod_deleted_above_ends_below_with_its_grace,
    test_edits_of_what_a_pod_refers_to_follow,
    test_exec_through_the_upper,
    test_labels_and_annotations_follow_and_others_stay,
    test_logs_through_the_upper,
    test_pods_above_outlast_an_engine_that_is_down,
    test_scaling_to_nothing_removes_what_was_referred_to,
    test_the_whole_comes_back_and_goes_with_the_deployment,
    test_what_the_lower_pod_looks_like,
)

from tensile.sandbox import binaries
from tensile.sandbox.binaries import CONTROL_PLANE, VERSION_VARIABLE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

__all__ = [
    "secret",
    "test_a_deployment_runs_below_with_all_that_it_refers_to",
    "test_a_pod_deleted_above_ends_below_with_its_grace",
    "test_edits_of_what_a_pod_refers_to_follow",
    "test_exec_through_the_upper",
    "test_labels_and_annotations_follow_and_others_stay",
    "test_logs_through_the_upper",
    "test_pods_above_outlast_an_engine_that_is_down",
    "test_scaling_to_nothing_removes_what_was_referred_to",
    "test_the_whole_comes_back_and_goes_with_the_deployment",
    "test_what_the_lower_pod_looks_like",
]
pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

OLDER = "v1.35.0"
"""The Makefile has it built before the tests (`make test-all`)."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start clusters of that release, if its programs have been built."""
    wanted = binaries.of_version(CONTROL_PLANE, {VERSION_VARIABLE: OLDER})
    if not binaries.is_cached(wanted, os.environ):
        pytest.skip(f"not built: {VERSION_VARIABLE}={OLDER} tensile sandbox prepare")
    with Sandbox.start(tmp_path_factory.mktemp("older"), Options(lowers=2, nodes=3, kubernetes=OLDER)) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(older: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """An engine on them."""
    async with standing(older, tmp_path_factory.mktemp("ground")) as made:
        yield made


async def test_every_cluster_is_of_that_release(ground: Ground) -> None:
    """Its apiserver, its nodes, and the virtual nodes that stand for lower clusters."""
    for name in (UPPER, *LOWERS):
        assert (await ground.sites[name].read("/version"))["gitVersion"] == OLDER
    for lower, node in ground.nodes.items():
        shown = await ground.upper.read(f"/api/v1/nodes/{node}")
        real = (await ground.sites[lower].read("/api/v1/nodes"))["items"]
        assert {one["status"]["nodeInfo"]["kubeletVersion"] for one in (shown, *real)} == {OLDER}
