"""Tests of pods that fit in a lower cluster in sum, but on none of its nodes: they move to a lower where they fit."""

import sys
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import orjson
import pytest
import pytest_asyncio
from enginekit import A, B, edit_lower, run_command, wait_until, with_fields
from hookedkit import OPTED, WebhookEngineHarness, webhook_engine
from sitekit import Manifest, condition_of, is_ready

from tensile.names import TRIED
from tensile.objects import moment_of
from tensile.sandbox.apiserver import RESOURCES
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS = "apis/apps/v1"
PATIENCE, INTERVAL = 6, 3
ON = with_fields(
    descheduler={"enabled": True, "interval": f"{INTERVAL}s", "pendingLongerThan": f"{PATIENCE}s", "cooldown": "10m"}
)
DRY = with_fields(
    descheduler={"enabled": True, "interval": f"{INTERVAL}s", "pendingLongerThan": f"{PATIENCE}s", "dryRun": True}
)
TOO_LARGE = str(int(RESOURCES["cpu"]) + 8)
"""Cpus that two nodes of a lower have in sum, but none alone."""
CLOSED_B = edit_lower(B, maintenance="cordon")
OFF_A = '{"key":"kubernetes.io/hostname","operator":"NotIn","values":["A"]}'
SLACK = timedelta(seconds=3)
"""Tolerance for timestamps in whole seconds, and for load on the machine."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WebhookEngineHarness]:
    """Start clusters of this module's own, an engine, and its webhook, which is registered."""
    with Sandbox.start(tmp_path_factory.mktemp("moves") / "sandbox", progress=print) as own:
        async with webhook_engine(own, tmp_path_factory.mktemp("ground")) as harness:
            yield harness


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def roomy(harness: WebhookEngineHarness) -> AsyncIterator[str]:
    """Add a node with room for one of the pods to lower-b for the duration of the tests."""
    site = harness.sites[B]
    name = await site.add_node(f"roomy-{harness.mark}", cpu="64")
    yield name
    await site.delete(f"/api/v1/nodes/{name}")


async def closed(harness: WebhookEngineHarness, lower: str) -> None:
    """Wait until a lower cluster's node is marked as unschedulable."""
    await harness.upper.until(f"/api/v1/nodes/{harness.nodes[lower]}", lambda one: one["spec"].get("unschedulable"))


async def deployed(harness: WebhookEngineHarness, name: str) -> str:
    """Create a Deployment of one pod that is too large for the nodes of lower-a, and return the query for it."""
    labels = {"app": name, **OPTED}
    template = harness.template(labels, {"terminationGracePeriodSeconds": 1})
    template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": TOO_LARGE}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    await harness.upper.create(harness.path("deployments", api=APPS), {"metadata": {"name": name}, "spec": spec})
    return f"{harness.path('pods')}?labelSelector=app%3D{name}"


async def bound(harness: WebhookEngineHarness, query: str, lower: str) -> Manifest:
    """Wait until a pod is bound to a lower cluster's node, and return it."""
    node = harness.nodes[lower]
    pods = await harness.upper.until_all(
        query, lambda found: any(pod["spec"].get("nodeName") == node for pod in found.values())
    )
    return next(pod for pod in pods.values() if pod["spec"].get("nodeName") == node)


async def refused_at(harness: WebhookEngineHarness, query: str) -> datetime:
    """Wait until the scheduler of lower-a finds no node for the pod, and return the time of that."""
    pods = await harness.sites[A].until_all(
        query, lambda found: any(pod["status"].get("conditions") for pod in found.values())
    )
    scheduled = next(condition_of(pod, "PodScheduled") for pod in pods.values())
    assert scheduled["reason"] == "Unschedulable"
    return moment_of(scheduled["lastTransitionTime"])


@pytest.mark.usefixtures("roomy")
async def test_a_pod_that_fits_on_no_single_lower_node_is_moved_within_its_time(harness: WebhookEngineHarness) -> None:
    """It is evicted after `pendingLongerThan` and at most two intervals, and its replacement runs in the other lower.

    Both virtual nodes are schedulable, and the first one has room for the pod in sum, so the webhook excludes it for
    the replacement.
    """
    await harness.reload(harness.webhook_edit(), ON, CLOSED_B)
    await closed(harness, B)
    query = await deployed(harness, "large")
    stuck = await bound(harness, query, A)
    since = await refused_at(harness, query)
    await harness.reload(harness.webhook_edit(), ON)
    fresh = await bound(harness, query, B)
    waited = moment_of(fresh["metadata"]["creationTimestamp"]) - since
    assert timedelta(seconds=PATIENCE) - SLACK <= waited <= timedelta(seconds=PATIENCE + 2 * INTERVAL) + SLACK
    await harness.upper.until(harness.pod_path(fresh["metadata"]["name"]), is_ready)
    assert OFF_A in orjson.dumps(fresh["spec"]["affinity"]).decode().replace(harness.nodes[A], "A")
    assert "avoid node" in await harness.wait_for_event(stuck, "Rescheduled")
    node = await harness.upper.read(f"/api/v1/nodes/{harness.nodes[A]}")
    assert stuck["metadata"]["uid"] in node["metadata"]["annotations"][TRIED]


@pytest.mark.usefixtures("roomy")
async def test_a_pod_that_fits_in_no_other_lower_is_not_moved_and_the_plan_of_a_drain_lists_it(
    harness: WebhookEngineHarness,
) -> None:
    """The only large node is occupied; the pod gets a NoFeasibleCluster Event, and `plan --drain` shows the reason."""
    await harness.reload(harness.webhook_edit(), ON, CLOSED_B)
    await closed(harness, B)
    query = await deployed(harness, "second")
    stuck = await bound(harness, query, A)
    await harness.reload(harness.webhook_edit(), ON)
    assert "fits in no other lower cluster" in await harness.wait_for_event(stuck, "NoFeasibleCluster")
    result = await run_command([sys.executable, "-m", "tensile", "plan", "--drain", A, "-f", str(harness.save())])
    assert result.code == 2, result.err
    (line,) = [one for one in result.out.splitlines() if "/second-" in one and "nowhere" in one]
    assert line.split()[1] == "nowhere"
    assert "Insufficient cpu" in line
    *_, eviction_line, empty, last = result.out.splitlines()
    assert eviction_line == f"Drain of {A}: 1 to evict, 1 of them fit in no other lower cluster, 0 to stay."
    assert (empty, last.partition(" ")[0]) == ("", "Plan:")
    left = await harness.upper.until_all(query, bool)
    assert [pod["metadata"]["uid"] for pod in left.values()] == [stuck["metadata"]["uid"]]


@pytest.mark.usefixtures("roomy")
async def test_a_dry_run_and_the_plan_report_the_target_of_a_move_without_an_eviction(
    harness: WebhookEngineHarness,
) -> None:
    """Both name the target node and its lower node; nothing is evicted although there is room."""
    await harness.reload(harness.webhook_edit(), DRY)
    query = f"{harness.path('pods')}?labelSelector=app%3Dsecond"
    (stuck,) = (await harness.upper.until_all(query, bool)).values()
    await harness.upper.delete(harness.path("deployments", "large", api=APPS) + "?propagationPolicy=Background")
    await wait_until(
        lambda: [reported for _, reported in harness.loop_recorder.problems if reported.reason == "DryRun"]
    )
    message = next(reported.message for _, reported in harness.loop_recorder.problems if reported.reason == "DryRun")
    assert f"/{stuck['metadata']['name']}: from {A} to node {harness.nodes[B]} (roomy-" in message
    result = await run_command(
        [sys.executable, "-m", "tensile", "plan", "-f", str(harness.save(harness.webhook_edit(), ON))]
    )
    assert result.code == 2, result.err
    assert f"it fits on node {harness.nodes[B]} (roomy-" in result.out
    left = await harness.upper.until_all(query, bool)
    assert [pod["metadata"]["uid"] for pod in left.values()] == [stuck["metadata"]["uid"]]
