"""Tests that the changes in `tensile plan` are those that the engine then makes, by the clusters' audit logs."""

import asyncio
import sys
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, Done, Edit, Ground, edit_lower, ran, with_fields, without_lower
from plankit import done_by, planned, said
from sitekit import Manifest, is_ready

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PROVIDER = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
MORE = {"key": "e2e", "value": "plan", "effect": "PreferNoSchedule"}


class Case(NamedTuple):
    """An edit: the topology before it, the one after it, and how many objects change by it."""

    count: int
    after: tuple[Edit, ...]
    before: tuple[Edit, ...] = ()
    by_status: bool = False
    """Whether the change is one of a Node's status, which is what advertises capacity."""


def excluding(ground: Ground) -> Edit:
    """Return an edit that excludes the second namespace."""
    return with_fields(excludeNamespaces=["kube-system", second(ground)])


def second(ground: Ground) -> str:
    """Return the name of the second namespace."""
    return f"{ground.namespace}-second"


def renamed(file: Manifest) -> None:
    """Rename the node of the empty lower cluster."""
    node = next(one for one in file["lowers"] if one["name"] == B)["node"]
    node["name"] += "-renamed"


LABEL = edit_lower(A, node={"labels": {"tier": "gold"}})
CASES = {
    "label": Case(1, (LABEL,)),
    "label-removed": Case(1, (), before=(LABEL,)),
    "taint": Case(1, (edit_lower(A, node={"taints": [PROVIDER, MORE]}),)),
    "annotation": Case(1, (edit_lower(B, node={"annotations": {"note": "planned"}}),)),
    "ignored-label": Case(3, (with_fields(ignoreLabels=["app"]),)),
    "reserve": Case(1, (edit_lower(A, capacity={"basis": "allocatable", "reserve": {"cpu": "48"}}),), by_status=True),
    "cordon": Case(1, (edit_lower(A, maintenance="cordon"),)),
    "uncordon": Case(1, (), before=(edit_lower(A, maintenance="cordon"),)),
    "empty-lower-removed": Case(1, (without_lower(B),)),
    "lower-added": Case(1, (), before=(without_lower(B),)),
    "lower-with-pods-removed": Case(1, (without_lower(A),)),
    "both-removed": Case(2, (without_lower(A), without_lower(B))),
    "empty-node-renamed": Case(2, (renamed,)),
    "several-at-once": Case(5, (LABEL, with_fields(ignoreLabels=["app"]), without_lower(B))),
    "no-visible-change": Case(0, (edit_lower(A, qps=100), with_fields(guard={"maxDeletes": 5}))),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def workload(ground: Ground) -> None:
    """Run three pods with a ConfigMap in one lower, and none in the other."""
    await ground.upper.create(ground.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"key": "value"}})
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}]
    for number in range(3):
        await ground.bind(f"web-{number}", {"volumes": volumes}, labels={"app": "web"})
    for number in range(3):
        await ground.upper.until(ground.pod_path(f"web-{number}"), is_ready)
    await ground.calm()


async def run_plan(ground: Ground, output: str, *edits: Edit) -> Done:
    """Save the topology file and run `tensile plan` on it."""
    path = ground.save(*edits)
    return await ran([sys.executable, "-m", "tensile", "plan", "-f", str(path), "-o", output])


async def in_force(ground: Ground, *edits: Edit) -> None:
    """Load a topology, and wait until the engine is idle with it."""
    await ground.reload(*edits)
    wanted = {lower.node.name for lower in ground.topology(*edits).lowers}
    await ground.upper.until_all(
        f"/api/v1/nodes?labelSelector=tensile-kube.io/owner={ground.owner.mark}",
        lambda nodes: wanted <= set(nodes) and all(name in wanted or _is_leaving(nodes[name]) for name in nodes),
    )
    for node in wanted:
        await ground.usable(node)
    await ground.calm()


def _is_leaving(node: Manifest) -> bool:
    """Report whether a Node is kept only for its pods."""
    return bool(node["spec"].get("unschedulable")) and node["metadata"]["name"].endswith("-a")


async def test_a_plan_is_empty_after_convergence(ground: Ground) -> None:
    """It contains no change and no problem."""
    document = await planned(ground)
    assert (document["changes"], document["problems"]) == ([], [])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_engine_writes_exactly_the_planned_changes(ground: Ground, case: Case) -> None:
    """Plan and audit logs agree in cluster, verb, kind, namespace and name of every change."""
    await in_force(ground, *case.before)
    room_of = ground.nodes[A] if case.by_status else ""
    document = await planned(ground, *case.after, room_of=room_of)
    expected = said(document)
    assert len(expected) == case.count, document["changes"]
    await ground.note()
    await in_force(ground, *case.after)
    written = await ground.writes()
    if case.by_status:
        tried = await ground.attempts()
        written += [one for one, code in tried if (one.subresource, one.name, code) == ("status", room_of, 200)]
    assert done_by(written) == expected
    await in_force(ground)


async def test_changes_that_wait_for_pods_are_planned_as_pending(ground: Ground) -> None:
    """A running engine keeps the node's name and the mapping until no pods are mirrored; so does the plan."""
    node = ground.nodes[A]
    document = await planned(ground, edit_lower(A, node={"name": f"{node}-new"}, namespaces={"mapping": "prefix"}))
    assert document["changes"] == []
    drain = f"waits until no pods are mirrored to {A}; `maintenance: drain` lets them leave"
    assert document["pending"] == [
        f"lowers[{A}].node.name: {node} -> {node}-new: {drain}",
        f"lowers[{A}].namespaces.mapping: same -> prefix: {drain}",
    ]


async def test_a_lower_that_a_reload_reopens_is_not_treated_as_removed(ground: Ground) -> None:
    """The engine looks for nodes without a lower at any time, but not while a reload has a lower closed."""
    reloading = asyncio.ensure_future(ground.reload(edit_lower(A, kubeconfig=f"./{A}.kubeconfig")))
    while not reloading.done():
        await ground.engine.check()
        await asyncio.sleep(0)
    await reloading
    assert set(ground.engine.clusters.joined) == {A, B}
    await ground.calm()
    await in_force(ground)


async def test_the_end_of_a_namespaces_exclusion_is_planned_with_its_pods_and_copies(ground: Ground) -> None:
    """The plan contains the namespace, the ConfigMap and the pods, exactly as the engine then creates them."""
    name = second(ground)
    await in_force(ground, excluding(ground))
    await ground.make_namespace(UPPER, name)
    settings = {"metadata": {"name": "settings"}, "data": {"key": "value"}}
    await ground.upper.create(ground.path("configmaps", namespace=name), settings)
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}]
    for number in range(2):
        pod = ground.pod(f"held-{number}", {"volumes": volumes})
        await ground.upper.create(ground.path("pods", namespace=name), pod)
    await ground.calm()
    document = await planned(ground)
    creations = {(one["cluster"], one["kind"], one["name"]) for one in document["changes"] if one["action"] == "create"}
    expected = {("Namespace", name), ("ConfigMap", "settings"), ("Pod", "held-0"), ("Pod", "held-1")}
    assert creations == {(A, *one) for one in expected}
    await ground.note()
    await ground.reload()
    for number in range(2):
        await ground.upper.until(ground.path("pods", f"held-{number}", namespace=name), is_ready)
    await ground.calm()
    assert done_by(await ground.writes()) == said(document)
    await cleared(ground, name)


async def cleared(ground: Ground, name: str) -> None:
    """Delete the second namespace and its pods."""
    for number in range(2):
        await ground.upper.delete(ground.path("pods", f"held-{number}", namespace=name))
        await ground.upper.gone(ground.path("pods", f"held-{number}", namespace=name))
    await ground.upper.delete(f"/api/v1/namespaces/{name}")


async def test_no_plan_contains_the_content_of_a_secret(ground: Ground) -> None:
    """A pod that needs a Secret is planned with it, and no output format shows the content."""
    await ground.stop()
    content = "c2VjcmV0LWluLWEtcGxhbg=="
    await ground.upper.create(ground.path("secrets"), {"metadata": {"name": "key"}, "data": {"key": content}})
    await ground.bind("needing", {"volumes": [{"name": "key", "secret": {"secretName": "key"}}]})
    for done in await asyncio.gather(*(run_plan(ground, output) for output in ("text", "json", "markdown"))):
        assert done.code == 2, done.err
        assert "key" in done.out
        assert content not in done.out + done.err
        assert "secret-in-a-plan" not in done.out + done.err
    await ground.note()
    await ground.start()
    await ground.upper.until(ground.pod_path("needing"), is_ready)
    await ground.calm()
    here = [one for one in done_by(await ground.writes()) if second(ground) not in (one.name, one.namespace)]
    found: set[Any] = {(one.cluster, one.action, one.kind, one.name) for one in here}
    assert found == {
        (A, "create", "Secret", "key"),
        (A, "create", "Pod", "needing"),
    }
