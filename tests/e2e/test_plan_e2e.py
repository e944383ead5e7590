"""Tests that the changes in `tensile plan` are those that the engine then makes, by the clusters' audit logs."""

import asyncio
import sys
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from enginekit import (
    UPPER,
    A,
    B,
    CommandResult,
    Edit,
    EngineHarness,
    edit_lower,
    run_command,
    with_fields,
    without_lower,
)
from plankit import plan_json, planned_changes, written_changes
from sitekit import Manifest, is_ready

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PROVIDER = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
MORE = {"key": "e2e", "value": "plan", "effect": "PreferNoSchedule"}


class PlanCase(NamedTuple):
    """An edit: the topology before it, the one after it, and how many objects change by it."""

    count: int
    after: tuple[Edit, ...]
    before: tuple[Edit, ...] = ()
    by_status: bool = False
    """Whether the change is one of a Node's status, which is what advertises capacity."""


def excluding(harness: EngineHarness) -> Edit:
    """Return an edit that excludes the second namespace."""
    return with_fields(excludeNamespaces=["kube-system", second(harness)])


def second(harness: EngineHarness) -> str:
    """Return the name of the second namespace."""
    return f"{harness.namespace}-second"


def renamed(file: Manifest) -> None:
    """Rename the node of the empty lower cluster."""
    node = next(one for one in file["lowers"] if one["name"] == B)["node"]
    node["name"] += "-renamed"


LABEL = edit_lower(A, node={"labels": {"tier": "gold"}})
CASES = {
    "label": PlanCase(1, (LABEL,)),
    "label-removed": PlanCase(1, (), before=(LABEL,)),
    "taint": PlanCase(1, (edit_lower(A, node={"taints": [PROVIDER, MORE]}),)),
    "annotation": PlanCase(1, (edit_lower(B, node={"annotations": {"note": "planned"}}),)),
    "ignored-label": PlanCase(3, (with_fields(ignoreLabels=["app"]),)),
    "reserve": PlanCase(
        1, (edit_lower(A, capacity={"basis": "allocatable", "reserve": {"cpu": "48"}}),), by_status=True
    ),
    "cordon": PlanCase(1, (edit_lower(A, maintenance="cordon"),)),
    "uncordon": PlanCase(1, (), before=(edit_lower(A, maintenance="cordon"),)),
    "empty-lower-removed": PlanCase(1, (without_lower(B),)),
    "lower-added": PlanCase(1, (), before=(without_lower(B),)),
    "lower-with-pods-removed": PlanCase(1, (without_lower(A),)),
    "both-removed": PlanCase(2, (without_lower(A), without_lower(B))),
    "empty-node-renamed": PlanCase(2, (renamed,)),
    "several-at-once": PlanCase(5, (LABEL, with_fields(ignoreLabels=["app"]), without_lower(B))),
    "no-visible-change": PlanCase(0, (edit_lower(A, qps=100), with_fields(guard={"maxDeletes": 5}))),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def workload(harness: EngineHarness) -> None:
    """Run three pods with a ConfigMap in one lower, and none in the other."""
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"key": "value"}})
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}]
    for number in range(3):
        await harness.bind(f"web-{number}", {"volumes": volumes}, labels={"app": "web"})
    for number in range(3):
        await harness.upper.until(harness.pod_path(f"web-{number}"), is_ready)
    await harness.wait_idle()


async def run_plan(harness: EngineHarness, output: str, *edits: Edit) -> CommandResult:
    """Save the topology file and run `tensile plan` on it."""
    path = harness.save(*edits)
    return await run_command([sys.executable, "-m", "tensile", "plan", "-f", str(path), "-o", output])


async def in_force(harness: EngineHarness, *edits: Edit) -> None:
    """Load a topology, and wait until the engine is idle with it."""
    await harness.reload(*edits)
    wanted = {lower.node.name for lower in harness.topology(*edits).lowers}
    await harness.upper.until_all(
        f"/api/v1/nodes?labelSelector=tensile-kube.io/owner={harness.owner.mark}",
        lambda nodes: wanted <= set(nodes) and all(name in wanted or _is_leaving(nodes[name]) for name in nodes),
    )
    for node in wanted:
        await harness.wait_for_node(node)
    await harness.wait_idle()


def _is_leaving(node: Manifest) -> bool:
    """Report whether a Node is kept only for its pods."""
    return bool(node["spec"].get("unschedulable")) and node["metadata"]["name"].endswith("-a")


async def test_a_plan_is_empty_after_convergence(harness: EngineHarness) -> None:
    """It contains no change and no problem."""
    document = await plan_json(harness)
    assert (document["changes"], document["problems"]) == ([], [])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_engine_writes_exactly_the_planned_changes(harness: EngineHarness, case: PlanCase) -> None:
    """Plan and audit logs agree in cluster, verb, kind, namespace and name of every change."""
    await in_force(harness, *case.before)
    room_of = harness.nodes[A] if case.by_status else ""
    document = await plan_json(harness, *case.after, capacity_of=room_of)
    expected = planned_changes(document)
    assert len(expected) == case.count, document["changes"]
    await harness.mark_audit_logs()
    await in_force(harness, *case.after)
    written = await harness.writes()
    if case.by_status:
        tried = await harness.attempts()
        written += [one for one, code in tried if (one.subresource, one.name, code) == ("status", room_of, 200)]
    assert written_changes(written) == expected
    await in_force(harness)


async def test_changes_that_wait_for_pods_are_planned_as_pending(harness: EngineHarness) -> None:
    """A running engine keeps the node's name and the mapping until no pods are mirrored; so does the plan."""
    node = harness.nodes[A]
    document = await plan_json(harness, edit_lower(A, node={"name": f"{node}-new"}, namespaces={"mapping": "prefix"}))
    assert document["changes"] == []
    drain = f"waits until no pods are mirrored to {A}; `maintenance: drain` lets them leave"
    assert document["pending"] == [
        f"lowers[{A}].node.name: {node} -> {node}-new: {drain}",
        f"lowers[{A}].namespaces.mapping: same -> prefix: {drain}",
    ]


async def test_a_lower_that_a_reload_reopens_is_not_treated_as_removed(harness: EngineHarness) -> None:
    """The engine looks for nodes without a lower at any time, but not while a reload has a lower closed."""
    reloading = asyncio.ensure_future(harness.reload(edit_lower(A, kubeconfig=f"./{A}.kubeconfig")))
    while not reloading.done():
        await harness.engine.check()
        await asyncio.sleep(0)
    await reloading
    assert set(harness.engine.clusters.joined) == {A, B}
    await harness.wait_idle()
    await in_force(harness)


async def test_the_end_of_a_namespaces_exclusion_is_planned_with_its_pods_and_copies(harness: EngineHarness) -> None:
    """The plan contains the namespace, the ConfigMap and the pods, exactly as the engine then creates them."""
    name = second(harness)
    await in_force(harness, excluding(harness))
    await harness.make_namespace(UPPER, name)
    settings = {"metadata": {"name": "settings"}, "data": {"key": "value"}}
    await harness.upper.create(harness.path("configmaps", namespace=name), settings)
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}]
    for number in range(2):
        pod = harness.pod(f"held-{number}", {"volumes": volumes})
        await harness.upper.create(harness.path("pods", namespace=name), pod)
    await harness.wait_idle()
    document = await plan_json(harness)
    creations = {(one["cluster"], one["kind"], one["name"]) for one in document["changes"] if one["action"] == "create"}
    expected = {("Namespace", name), ("ConfigMap", "settings"), ("Pod", "held-0"), ("Pod", "held-1")}
    assert creations == {(A, *one) for one in expected}
    await harness.mark_audit_logs()
    await harness.reload()
    for number in range(2):
        await harness.upper.until(harness.path("pods", f"held-{number}", namespace=name), is_ready)
    await harness.wait_idle()
    assert written_changes(await harness.writes()) == planned_changes(document)
    await cleared(harness, name)


async def cleared(harness: EngineHarness, name: str) -> None:
    """Delete the second namespace and its pods."""
    for number in range(2):
        await harness.upper.delete(harness.path("pods", f"held-{number}", namespace=name))
        await harness.upper.gone(harness.path("pods", f"held-{number}", namespace=name))
    await harness.upper.delete(f"/api/v1/namespaces/{name}")


async def test_no_plan_contains_the_content_of_a_secret(harness: EngineHarness) -> None:
    """A pod that needs a Secret is planned with it, and no output format shows the content."""
    await harness.stop()
    content = "c2VjcmV0LWluLWEtcGxhbg=="
    await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "key"}, "data": {"key": content}})
    await harness.bind("needing", {"volumes": [{"name": "key", "secret": {"secretName": "key"}}]})
    for done in await asyncio.gather(*(run_plan(harness, output) for output in ("text", "json", "markdown"))):
        assert done.code == 2, done.err
        assert "key" in done.out
        assert content not in done.out + done.err
        assert "secret-in-a-plan" not in done.out + done.err
    await harness.mark_audit_logs()
    await harness.start()
    await harness.upper.until(harness.pod_path("needing"), is_ready)
    await harness.wait_idle()
    here = [one for one in written_changes(await harness.writes()) if second(harness) not in (one.name, one.namespace)]
    found: set[Any] = {(one.cluster, one.action, one.kind, one.name) for one in here}
    assert found == {
        (A, "create", "Secret", "key"),
        (A, "create", "Pod", "needing"),
    }
