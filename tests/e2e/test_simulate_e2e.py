"""Tests of `tensile simulate`: as many pods run in each lower cluster as it predicts.

The nodes of both lowers have a resource of this module's own, in different amounts, so that pods of other tests on the
sandbox do not interfere.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from enginekit import LOWERS, A, B, EngineHarness
from sitekit import Manifest, is_ready

from tensile.diagnostics import commands, podfile
from tensile.diagnostics.simulate import Case
from tensile.engine.lower import ClusterAccess

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

HOST = "kubernetes.io/hostname"
SLOTS = {A: (4, 2, 1), B: (1, 5, 0)}
MORE = 3
"""Replicas beyond those that fit: they have to stay Pending."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def resource(harness: EngineHarness) -> AsyncIterator[str]:
    """Add some of a resource to every lower node, and wait until the virtual nodes have it as allocatable."""
    name = f"example.com/{harness.mark}"
    for lower, slots in SLOTS.items():
        for number, count in enumerate(slots):
            await _offer(harness, lower, number, name, str(count))
        total = str(sum(slots))
        path = f"/api/v1/nodes/{harness.nodes[lower]}"
        await harness.upper.until(path, lambda node, total=total: node["status"]["allocatable"].get(name) == total)
    yield name
    for lower, slots in SLOTS.items():
        for number in range(len(slots)):
            await _offer(harness, lower, number, name, None)


async def _offer(harness: EngineHarness, lower: str, number: int, name: str, count: str | None) -> None:
    amounts = {"capacity": {name: count}, "allocatable": {name: count}}
    await harness.sites[lower].patch(f"/api/v1/nodes/{lower}-node-{number + 1}/status", {"status": amounts})


def slots(name: str, count: int = 1, **spec: Any) -> Manifest:
    """Return the spec of a pod that requests this much of the resource."""
    amounts = {name: str(count)}
    container = {"name": "main", "image": "app:1", "resources": {"requests": amounts, "limits": amounts}}
    return {"containers": [container], **spec}


def ported(spec: Manifest) -> Manifest:
    """Add a host port to the spec."""
    spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 18081}]
    return spec


def apart(app: str) -> Manifest:
    """Return the affinity of a pod that shares no host with its own kind."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def even(app: str, key: str, skew: int = 1) -> list[Manifest]:
    """Return a topology spread constraint."""
    selector = {"matchLabels": {"app": app}}
    return [{"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]


async def simulated(harness: EngineHarness, deployment: Manifest) -> Manifest:
    """Return the simulation of how many of a Deployment's pods fit."""
    wanted = podfile.templates(orjson.dumps(deployment), "case")
    topology, cluster_access = harness.topology(), ClusterAccess(harness.sandbox.directory)
    picture = await asyncio.to_thread(commands.pictured, topology, cluster_access, None)
    return dict(orjson.loads(commands.simulate(picture, wanted, Case(), "json")[0]))


def deployment(harness: EngineHarness, app: str, spec: Manifest, replicas: int = 0) -> Manifest:
    """Return a Deployment."""
    body = harness.template({"app": app}, spec)
    fields = {"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": body}
    return {"kind": "Deployment", "metadata": {"name": app, "namespace": harness.namespace}, "spec": fields}


async def happened(harness: EngineHarness, app: str, spec: Manifest, fits: int) -> dict[str, Counter[str]]:
    """Create more pods than fit, wait until as many run as predicted, and return their lowers and nodes."""
    path = harness.path("deployments", api="apis/apps/v1")
    await harness.upper.create(path, deployment(harness, app, spec, fits + MORE))
    collection = f"{harness.path('pods')}?labelSelector=app%3D{app}"
    await harness.upper.until_all(
        collection, lambda pods: len(pods) == fits + MORE and sum(map(is_ready, pods.values())) >= fits
    )
    await harness.wait_idle()
    found = {}
    for lower in LOWERS:
        pods = (await harness.sites[lower].read(collection))["items"]
        found[lower] = Counter(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName"))
    await harness.upper.delete(f"{path}/{app}?propagationPolicy=Background")
    for name in ("", *LOWERS):
        site = harness.upper if not name else harness.sites[name]
        await site.until_all(collection, lambda pods: not pods)
    return found


CASES = {
    "one": lambda name, _app: slots(name),
    "two": lambda name, _app: slots(name, 2),
    "three": lambda name, _app: slots(name, 3),
    "five": lambda name, _app: slots(name, 5),
    "six": lambda name, _app: slots(name, 6),
    "port": lambda name, _app: ported(slots(name)),
    "apart": lambda name, app: slots(name, affinity=apart(app)),
    "even": lambda name, app: slots(name, topologySpreadConstraints=even(app, "clusterID", 2)),
}


@pytest.mark.parametrize("case", CASES)
async def test_as_many_pods_run_in_each_lower_as_were_simulated_to_fit(
    harness: EngineHarness, resource: str, case: str
) -> None:
    """More replicas are created than fit, and no other pod gets a lower node."""
    app = f"case-{case}"
    spec = CASES[case](resource, app)
    simulation = await simulated(harness, deployment(harness, app, spec))
    ran = await happened(harness, app, spec, simulation["fits"])
    expected = {row["name"]: row["fits"] for row in simulation["lowers"]}
    assert {lower: counts.total() for lower, counts in ran.items()} == expected


async def test_a_pod_that_selects_one_lower_fits_only_there(harness: EngineHarness, resource: str) -> None:
    """Six pods fit in lower-b, none in lower-a, and that is what happens."""
    spec = slots(resource, nodeSelector={"e2e": harness.mark, "clusterID": B})
    simulation = await simulated(harness, deployment(harness, "pinned", spec))
    assert {row["name"]: row["fits"] for row in simulation["lowers"]} == {A: 0, B: 6}
    ran = await happened(harness, "pinned", spec, 6)
    assert {lower: counts.total() for lower, counts in ran.items()} == {A: 0, B: 6}


async def test_simulated_moves_of_a_lost_lower_fill_the_rest_of_the_other(
    harness: EngineHarness, resource: str
) -> None:
    """All pods of lower-a are moved, and as many are placed in lower-b as it still has room for."""
    spec = slots(resource, nodeSelector={"e2e": harness.mark})
    path = harness.path("deployments", api="apis/apps/v1")
    await harness.upper.create(path, deployment(harness, "homeless", spec, 10))
    collection = f"{harness.path('pods')}?labelSelector=app%3Dhomeless"
    pods = await harness.upper.until_all(collection, lambda pods: len(pods) == 10 and all(map(is_ready, pods.values())))
    there = sum(pod["spec"]["nodeName"] == harness.nodes[A] for pod in pods.values())
    picture = await asyncio.to_thread(
        commands.pictured, harness.topology(), ClusterAccess(harness.sandbox.directory), None
    )
    found = orjson.loads(commands.simulate(picture, (), Case(lost=frozenset({A})), "json")[0])
    placed = [one for one in found["moved"] if one["lower"]]
    assert len(found["moved"]) == there
    assert len(placed) == min(there, sum(SLOTS[B]) - (10 - there))
    assert {one["lower"] for one in placed} <= {B}
    await harness.upper.delete(f"{path}/homeless?propagationPolicy=Background")
    await harness.upper.until_all(collection, lambda pods: not pods)
