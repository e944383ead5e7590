"""Tests of the extender: the upper scheduler binds no pod to a virtual node without a lower node for it."""

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from enginekit import LOWERS, A, B, EngineHarness, wait_until, with_fields
from sitekit import Manifest, condition_of, is_ready

from bench.kit.spareports import spare_port
from tensile.engine.engine import Engine
from tensile.engine.lower import ClusterAccess
from tensile.kube.fleet import Fleet
from tensile.sandbox.apiserver import RESOURCES
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS = "apis/apps/v1"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
NODES = 4
CPUS = int(RESOURCES["cpu"])
TOO_LARGE = str(CPUS + 8)
"""Cpus that the nodes of a lower have in sum, but none alone."""
FULL, SMALL, EACH = "28800m", "700m", 4
"""Requests that fill nine tenths of a node, those of a small pod, and how many small pods then fit on each node."""


class ExtenderEngineHarness(EngineHarness):
    """A harness whose engine serves the extender that the sandbox's upper scheduler calls."""

    def extender_edit(self, *, enabled: bool = True, **more: Any) -> Any:
        """Return the edit that enables or disables the extender at the address that the scheduler calls."""
        file = yaml.safe_load((self.sandbox.directory / "topology.yaml").read_text())
        return with_fields(extender={**file["extender"], "enabled": enabled, **more})

    async def knows(self) -> None:
        """Wait until the engine has synced all caches from which the extender answers."""
        lowers = self.engine.clusters.world.lowers.values()
        await wait_until(lambda: all(cache.synced for lower in lowers for cache in lower.place_caches()))
        await self.wait_idle()

    async def deployed(self, name: str, replicas: int, cpu: str, **more: str) -> str:
        """Create a Deployment, and return the query for its pods; `more` is added to their spec."""
        template = self.template({"app": name}, {"terminationGracePeriodSeconds": 1, **more})
        template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        await self.upper.create(self.path("deployments", api=APPS), {"metadata": {"name": name}, "spec": spec})
        return f"{self.path('pods')}?labelSelector=app%3D{name}"

    async def remove(self, name: str) -> None:
        """Delete a Deployment, and wait until none of its pods is left in any cluster."""
        await self.upper.delete(self.path("deployments", name, api=APPS) + "?propagationPolicy=Background")
        for site in self.sites.values():
            await site.until_all(f"{self.path('pods')}?labelSelector=app%3D{name}", lambda found: not found)

    async def lower_pods(self, query: str) -> list[Manifest]:
        """Return the pods of all lower clusters."""
        return [pod for name in LOWERS for pod in (await self.sites[name].read(query))["items"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ExtenderEngineHarness]:
    """Start clusters of this module's own, whose upper scheduler calls the extender, and an engine that serves it."""
    options = Options(nodes=NODES, extender=True)
    with Sandbox.start(tmp_path_factory.mktemp("asked") / "sandbox", options, progress=print) as own:
        harness = ExtenderEngineHarness(own, tmp_path_factory.mktemp("ground"))
        try:
            await harness.open()
            await harness.start(harness.extender_edit())
            await harness.knows()
            yield harness
            await harness.clear()
        finally:
            await harness.close()
        assert harness.loop_recorder.defects == []


def unschedulable(pod: Manifest) -> str:
    """Return why the scheduler finds no node for a pod, or "" if it has not reported any reason."""
    condition = condition_of(pod, "PodScheduled")
    return str(condition["message"]) if condition.get("status") == "False" else ""


async def test_a_pod_that_fits_on_no_single_lower_node_is_not_bound(harness: ExtenderEngineHarness) -> None:
    """The scheduler reports why for each virtual node; when a large lower node is added, one pod is bound."""
    query = await harness.deployed("large", 3, TOO_LARGE)
    pods = await harness.upper.until_all(query, lambda found: sum(map(bool, map(unschedulable, found.values()))) == 3)
    for pod in pods.values():
        for node in harness.nodes.values():
            why = f"no lower node of virtual node {node} fits (0/{NODES} nodes are available: {NODES} Insufficient cpu)"
            assert f"1 {why}" in unschedulable(pod)
    assert await harness.lower_pods(query) == []
    site = harness.sites[B]
    name = await site.add_node(f"roomy-{harness.mark}", cpu=TOO_LARGE)
    pods = await harness.upper.until_all(query, lambda found: any(map(is_ready, found.values())))
    (sent,) = await harness.lower_pods(query)
    assert sent["spec"]["nodeName"] == name
    assert [pod["spec"].get("nodeName") for pod in pods.values() if is_ready(pod)] == [harness.nodes[B]]
    await harness.remove("large")
    await site.delete(f"/api/v1/nodes/{name}")
    await site.gone(f"/api/v1/nodes/{name}")


@pytest_asyncio.fixture(loop_scope="module")
async def full(harness: ExtenderEngineHarness) -> AsyncIterator[list[tuple[str, str]]]:
    """Fill nine tenths of every lower node with pods of other owners, and return each one's lower cluster and path."""
    fillers = []
    for name in LOWERS:
        for node in (f"{name}-node-{number}" for number in range(1, NODES + 1)):
            container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": FULL}}}
            body = {"metadata": {"name": f"full-{node}"}, "spec": {"nodeName": node, "containers": [container]}}
            await harness.sites[name].create("/api/v1/namespaces/default/pods", body)
            fillers.append((name, f"/api/v1/namespaces/default/pods/full-{node}"))
    lowers = harness.engine.clusters.world.lowers
    await wait_until(lambda: all(len(lowers[name].place_pods) >= NODES for name in LOWERS))
    for node in harness.nodes.values():
        await harness.upper.until(
            f"/api/v1/nodes/{node}", lambda one: one["status"]["allocatable"]["cpu"] == str(NODES * CPUS)
        )
    yield fillers
    for name, path in fillers:
        await harness.sites[name].delete(path, 0)
        await harness.sites[name].gone(path)


async def test_a_refused_pod_is_bound_when_a_lower_pod_frees_enough_room(
    harness: ExtenderEngineHarness, full: list[tuple[str, str]]
) -> None:
    """The deleted pod belongs to another owner, so the virtual node's allocatable does not change."""
    query = await harness.deployed("patient", 1, "8")
    await harness.upper.until_all(query, lambda found: any(map(unschedulable, found.values())))
    lower, path = full[0]
    await harness.sites[lower].delete(path, 0)
    pods = await harness.upper.until_all(query, lambda found: any(map(is_ready, found.values())))
    assert [pod["spec"]["nodeName"] for pod in pods.values()] == [harness.nodes[lower]]
    await harness.remove("patient")


@pytest.mark.usefixtures("full")
async def test_a_burst_of_pods_is_bound_only_as_far_as_lower_nodes_have_room(harness: ExtenderEngineHarness) -> None:
    """Pods of other owners use nine tenths of every node; exactly as many pods run as fit, and no other is bound."""
    places = EACH * NODES * len(LOWERS)
    refused: set[str] = set()

    async def look() -> None:
        """Record repeatedly which pods wait in the lower clusters."""
        while True:
            found = await harness.lower_pods(query)
            refused.update(pod["metadata"]["name"] for pod in found if unschedulable(pod))
            await asyncio.sleep(0.05)

    query = await harness.deployed("burst", places + 12, SMALL)
    looking = asyncio.create_task(look())
    pods = await harness.upper.until_all(
        query,
        lambda found: (
            len(found) == places + 12
            and all(is_ready(pod) or unschedulable(pod) for pod in found.values())
            and sum(map(is_ready, found.values())) == places
        ),
    )
    looking.cancel()
    assert refused == set()
    assert sum("nodeName" in pod["spec"] for pod in pods.values()) == places
    assert len(await harness.lower_pods(query)) == places
    await harness.remove("burst")


@pytest_asyncio.fixture(loop_scope="module")
async def urgent(harness: ExtenderEngineHarness) -> AsyncIterator[str]:
    """Create a priority class with a higher priority than all others, and return its name."""
    name = f"urgent-{harness.mark}"
    await harness.upper.create(PRIORITIES, {"metadata": {"name": name}, "value": 1000})
    yield name
    await harness.upper.delete(f"{PRIORITIES}/{name}")


@pytest.mark.parametrize("each", [pytest.param("20", id="fragments"), pytest.param(str(CPUS), id="full")])
async def test_exactly_one_pod_is_preempted_for_a_pod_of_higher_priority(
    harness: ExtenderEngineHarness, urgent: str, each: str
) -> None:
    """This holds whether or not the virtual node has room for it in sum; the victim's replacement stays pending."""
    crowd = await harness.deployed("crowd", NODES * len(LOWERS), each)
    before = await harness.upper.until_all(crowd, lambda found: sum(map(is_ready, found.values())) == len(found) == 8)
    query = await harness.deployed("urgent", 1, "24", priorityClassName=urgent)
    pods = await harness.upper.until_all(query, lambda found: any(map(is_ready, found.values())))
    after = await harness.upper.until_all(
        crowd,
        lambda found: (
            len(found) == len(before)
            and sum(map(is_ready, found.values())) == len(before) - 1
            and any(map(unschedulable, found.values()))
        ),
    )
    (gone,) = before.keys() - after.keys()
    (sent,) = await harness.lower_pods(query)
    (place,) = {one["spec"]["nodeName"] for one in pods.values()}
    assert before[gone]["spec"]["nodeName"] == place
    on_node = [
        pod for pod in await harness.lower_pods(crowd) if pod["spec"].get("nodeName") == sent["spec"]["nodeName"]
    ]
    assert on_node == []
    fields = f"involvedObject.uid={before[gone]['metadata']['uid']},reason=Preempted"
    (event,) = (await harness.upper.until_all(f"{harness.path('events')}?fieldSelector={fields}", bool)).values()
    assert event["message"].endswith(f"on node {place}")
    await harness.remove("urgent")
    await harness.remove("crowd")


@pytest.mark.usefixtures("full")
async def test_no_pod_is_preempted_if_preemption_would_not_help(harness: ExtenderEngineHarness, urgent: str) -> None:
    """Pods of other owners use the missing resources, so the pod stays pending, and the scheduler reports why."""
    small = await harness.deployed("small", 1, SMALL)
    before = await harness.upper.until_all(small, lambda found: any(map(is_ready, found.values())))
    query = await harness.deployed("urgent", 1, "8", priorityClassName=urgent)
    pods = await harness.upper.until_all(query, lambda found: any(map(unschedulable, found.values())))
    (pod,) = pods.values()
    assert "Preemption is not helpful for scheduling" in unschedulable(pod)
    large = await harness.deployed("large", 1, TOO_LARGE, priorityClassName=urgent)
    await harness.upper.until_all(large, lambda found: any(map(unschedulable, found.values())))
    after = await harness.upper.until_all(small, lambda found: any(map(is_ready, found.values())))
    assert {name: one["metadata"]["uid"] for name, one in after.items()} == {
        name: one["metadata"]["uid"] for name, one in before.items()
    }
    for name in ("large", "urgent", "small"):
        await harness.remove(name)


async def test_the_extender_is_disabled_and_enabled_while_the_engine_runs(harness: ExtenderEngineHarness) -> None:
    """If disabled, it listens on no port, caches nothing of the lowers, and the scheduler binds pods by the sum."""
    await harness.reload(harness.extender_edit(enabled=False))
    assert harness.engine.extender.port == 0
    assert not any(
        len(cache) for lower in harness.engine.clusters.world.lowers.values() for cache in lower.place_caches()
    )
    query = await harness.deployed("blind", 1, TOO_LARGE)
    await harness.upper.until_all(query, lambda found: any("nodeName" in pod["spec"] for pod in found.values()))
    await harness.remove("blind")
    await harness.reload(harness.extender_edit(strategy="binpack"))
    await harness.knows()
    query = await harness.deployed("seen", 1, TOO_LARGE)
    pods = await harness.upper.until_all(query, lambda found: any(map(unschedulable, found.values())))
    assert not any("nodeName" in pod["spec"] for pod in pods.values())
    await harness.remove("seen")


async def test_a_standby_becomes_leader_although_the_extender_port_is_taken(
    harness: ExtenderEngineHarness, tmp_path: Path
) -> None:
    """Otherwise no engine would lead.

    The port is reported as pending, and the extender opens it once the other program closes it.
    """
    other = ExtenderEngineHarness(harness.sandbox, tmp_path)
    await other.open()
    try:
        with socket.create_server(("127.0.0.1", spare_port())) as taken:
            topology = other.topology(other.extender_edit(bind="127.0.0.1", port=taken.getsockname()[1]))
            other.engine = Engine(
                topology, ClusterAccess(other.directory), other.loop_recorder, Fleet(chance=random.random)
            )
            other.is_started = True
            await other.engine.standby()
            await other.engine.lead()
            await other.wait_for_node(other.nodes[A])
            assert "another program listens there" in other.engine.pending[0]
            assert other.engine.extender.port == 0
        await wait_until(lambda: other.engine.extender.port == topology.extender.port)
        assert other.engine.pending == ()
        await other.clear()
    finally:
        await other.close()


async def test_the_extender_answers_no_client_but_the_scheduler(harness: ExtenderEngineHarness) -> None:
    """A client with a certificate of the same authority gets 403, and one without a certificate gets no connection."""
    port = harness.engine.extender.port
    pki = harness.sandbox.clusters["upper"].audit_log.parent / "pki"
    for name, status in (("kube-scheduler", 200), ("admin", 403)):
        assert await _asked(port, pki, name) == status
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await _asked(port, pki, "")


async def _asked(port: int, pki: Any, who: str) -> int:
    tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    if who:
        tls.load_cert_chain(pki / f"{who}.crt", pki / f"{who}.key")
    question = {"Pod": {"metadata": {"name": "p"}, "spec": {"containers": []}}, "NodeNames": []}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"https://127.0.0.1:{port}/filter", json=question, ssl=tls) as answer,
    ):
        return answer.status
