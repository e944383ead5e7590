"""Tests of a drain while pods run in the lower cluster: they move as far as their disruption budgets allow."""

from datetime import UTC, datetime

import pytest
from enginekit import LOWERS, A, B, Ground, edit_lower, polled, with_fields
from sitekit import Manifest, is_ready

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS, POLICY = "apis/apps/v1", "apis/policy/v1"
REPLICAS, KEPT = 4, 3


async def deployed(ground: Ground, name: str) -> str:
    """Create a Deployment with a disruption budget of one pod, and return the query for its pods."""
    labels = {"app": name}
    template = ground.template(labels, {"terminationGracePeriodSeconds": 1})
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template}
    await ground.upper.create(ground.path("deployments", api=APPS), {"metadata": {"name": name}, "spec": spec})
    budget = {"metadata": {"name": name}, "spec": {"minAvailable": KEPT, "selector": {"matchLabels": labels}}}
    await ground.upper.create(ground.path("poddisruptionbudgets", api=POLICY), budget)
    return f"{ground.path('pods')}?labelSelector=app%3D{name}"


def on(ground: Ground, pods: dict[str, Manifest], lower: str) -> list[Manifest]:
    """Return the pods that are bound to a lower cluster's node."""
    return [pod for pod in pods.values() if pod["spec"].get("nodeName") == ground.nodes[lower]]


def in_half_a_year() -> Manifest:
    """Return a maintenance window that opens on the first day of a month about half a year ahead."""
    return {"schedule": f"0 0 1 {(datetime.now(UTC).month + 5) % 12 + 1} *", "duration": "1h"}


async def test_a_drain_moves_all_pods_with_a_controller_and_its_end_makes_the_node_schedulable(ground: Ground) -> None:
    """The bare pod stays, and the drain reports it; no pod is evicted while no maintenance window is open."""
    closed = edit_lower(B, maintenance="cordon")
    await ground.reload(closed)
    await ground.upper.until(f"/api/v1/nodes/{ground.nodes[B]}", lambda one: one["spec"].get("unschedulable"))
    query = await deployed(ground, "moving")
    await ground.bind("alone")
    await ground.upper.until_all(
        query, lambda pods: len(on(ground, pods, A)) == REPLICAS and all(map(is_ready, pods.values()))
    )
    await ground.upper.until(ground.pod_path("alone"), is_ready)
    await ground.upper.until(
        ground.path("poddisruptionbudgets", "moving", api=POLICY), lambda one: one["status"]["disruptionsAllowed"] == 1
    )
    await ground.note()
    await ground.reload(edit_lower(A, maintenance="drain"), with_fields(windows=[in_half_a_year()]))
    await polled(lambda: any(problem.reason == "OutsideWindow" for _, problem in ground.heard.problems))
    await ground.calm()
    assert [write for write, _ in await ground.attempts() if write.subresource == "eviction"] == []
    await ground.reload(edit_lower(A, maintenance="drain"))
    await ground.upper.until_all(query, lambda pods: len(on(ground, pods, B)) == len(pods) == REPLICAS)
    await ground.upper.until_all(query, lambda pods: all(map(is_ready, pods.values())))
    await ground.sites[A].until_all(query, lambda pods: not pods)
    tried = [code for write, code in await ground.attempts() if write.subresource == "eviction"]
    assert tried.count(201) == REPLICAS
    assert set(tried) <= {201, 429}, "a refused eviction is retried; how often depends on the machine"
    assert is_ready(await ground.upper.read(ground.pod_path("alone")))
    said = [problem for _, problem in ground.heard.problems if f"{ground.namespace}/alone: " in problem.message]
    assert {problem.reason for problem in said} == {"NoController"}
    assert said[-1].message.startswith("pods block the drain: ")
    await ground.reload()
    for lower in LOWERS:
        await ground.upper.until(
            f"/api/v1/nodes/{ground.nodes[lower]}", lambda one: not one["spec"].get("unschedulable")
        )
    assert is_ready(await ground.upper.read(ground.pod_path("alone")))
