"""Tests of a drain while pods run in the lower cluster: they move as far as their disruption budgets allow."""

from datetime import UTC, datetime

import pytest
from enginekit import LOWERS, A, B, EngineHarness, edit_lower, wait_until, with_fields
from sitekit import Manifest, is_ready

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS, POLICY = "apis/apps/v1", "apis/policy/v1"
REPLICAS, KEPT = 4, 3


async def deployed(harness: EngineHarness, name: str) -> str:
    """Create a Deployment with a disruption budget of one pod, and return the query for its pods."""
    labels = {"app": name}
    template = harness.template(labels, {"terminationGracePeriodSeconds": 1})
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template}
    await harness.upper.create(harness.path("deployments", api=APPS), {"metadata": {"name": name}, "spec": spec})
    budget = {"metadata": {"name": name}, "spec": {"minAvailable": KEPT, "selector": {"matchLabels": labels}}}
    await harness.upper.create(harness.path("poddisruptionbudgets", api=POLICY), budget)
    return f"{harness.path('pods')}?labelSelector=app%3D{name}"


def on(harness: EngineHarness, pods: dict[str, Manifest], lower: str) -> list[Manifest]:
    """Return the pods that are bound to a lower cluster's node."""
    return [pod for pod in pods.values() if pod["spec"].get("nodeName") == harness.nodes[lower]]


def in_half_a_year() -> Manifest:
    """Return a maintenance window that opens on the first day of a month about half a year ahead."""
    return {"schedule": f"0 0 1 {(datetime.now(UTC).month + 5) % 12 + 1} *", "duration": "1h"}


async def test_a_drain_moves_all_pods_with_a_controller_and_its_end_makes_the_node_schedulable(
    harness: EngineHarness,
) -> None:
    """The bare pod stays, and the drain reports it; no pod is evicted while no maintenance window is open."""
    closed = edit_lower(B, maintenance="cordon")
    await harness.reload(closed)
    await harness.upper.until(f"/api/v1/nodes/{harness.nodes[B]}", lambda one: one["spec"].get("unschedulable"))
    query = await deployed(harness, "moving")
    await harness.bind("alone")
    await harness.upper.until_all(
        query, lambda pods: len(on(harness, pods, A)) == REPLICAS and all(map(is_ready, pods.values()))
    )
    await harness.upper.until(harness.pod_path("alone"), is_ready)
    await harness.upper.until(
        harness.path("poddisruptionbudgets", "moving", api=POLICY), lambda one: one["status"]["disruptionsAllowed"] == 1
    )
    await harness.mark_audit_logs()
    await harness.reload(edit_lower(A, maintenance="drain"), with_fields(windows=[in_half_a_year()]))
    await wait_until(lambda: any(problem.reason == "OutsideWindow" for _, problem in harness.loop_recorder.problems))
    await harness.wait_idle()
    assert [write for write, _ in await harness.attempts() if write.subresource == "eviction"] == []
    await harness.reload(edit_lower(A, maintenance="drain"))
    await harness.upper.until_all(query, lambda pods: len(on(harness, pods, B)) == len(pods) == REPLICAS)
    await harness.upper.until_all(query, lambda pods: all(map(is_ready, pods.values())))
    await harness.sites[A].until_all(query, lambda pods: not pods)
    tried = [code for write, code in await harness.attempts() if write.subresource == "eviction"]
    assert tried.count(201) == REPLICAS
    assert set(tried) <= {201, 429}, "a refused eviction is retried; how often depends on the machine"
    assert is_ready(await harness.upper.read(harness.pod_path("alone")))
    problems = [
        problem for _, problem in harness.loop_recorder.problems if f"{harness.namespace}/alone: " in problem.message
    ]
    assert {problem.reason for problem in problems} == {"NoController"}
    assert problems[-1].message.startswith("pods block the drain: ")
    await harness.reload()
    for lower in LOWERS:
        await harness.upper.until(
            f"/api/v1/nodes/{harness.nodes[lower]}", lambda one: not one["spec"].get("unschedulable")
        )
    assert is_ready(await harness.upper.read(harness.pod_path("alone")))
