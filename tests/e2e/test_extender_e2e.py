"""The upper scheduler asks where in the lower clusters a pod fits, and sends none where it has no node."""

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
from enginekit import LOWERS, A, B, Ground, polled, with_fields
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
"""Cpus that the nodes of a lower have together, and none alone."""
FULL, SMALL, EACH = "28800m", "700m", 4
"""Nodes nine tenths full, and pods of which each node takes four more: one less than the sum of what is left says."""


class Advised(Ground):
    """A ground whose engine serves the extender that the sandbox's upper scheduler asks."""

    def on(self, *, enabled: bool = True, **more: Any) -> Any:
        """Make the edit that switches the extender on or off, where the scheduler looks for it."""
        file = yaml.safe_load((self.sandbox.directory / "topology.yaml").read_text())
        return with_fields(extender={**file["extender"], "enabled": enabled, **more})

    async def knows(self) -> None:
        """Return when the engine knows all that the extender answers from."""
        lowers = self.engine.clusters.world.lowers.values()
        await polled(lambda: all(cache.synced for lower in lowers for cache in lower.place_caches()))
        await self.calm()

    async def deployed(self, name: str, replicas: int, cpu: str, **more: str) -> str:
        """Make a Deployment, and give the query for its pods; `more` is added to their spec."""
        template = self.template({"app": name}, {"terminationGracePeriodSeconds": 1, **more})
        template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        await self.upper.create(self.path("deployments", api=APPS), {"metadata": {"name": name}, "spec": spec})
        return f"{self.path('pods')}?labelSelector=app%3D{name}"

    async def remove(self, name: str) -> None:
        """Take a Deployment away, and return when none of its pods is anywhere."""
        await self.upper.delete(self.path("deployments", name, api=APPS) + "?propagationPolicy=Background")
        for site in self.sites.values():
            await site.until_all(f"{self.path('pods')}?labelSelector=app%3D{name}", lambda found: not found)

    async def below(self, query: str) -> list[Manifest]:
        """Return the pods of all lowers."""
        return [pod for name in LOWERS for pod in (await self.sites[name].read(query))["items"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Advised]:
    """Clusters of its own, whose upper scheduler asks; and an engine that answers."""
    options = Options(nodes=NODES, extender=True)
    with Sandbox.start(tmp_path_factory.mktemp("asked") / "sandbox", options, progress=print) as own:
        made = Advised(own, tmp_path_factory.mktemp("ground"))
        try:
            await made.open()
            await made.start(made.on())
            await made.knows()
            yield made
            await made.clear()
        finally:
            await made.close()
        assert made.heard.defects == []


def unschedulable(pod: Manifest) -> str:
    """Return why the scheduler finds no node for a pod, "" where it has not said so."""
    said = condition_of(pod, "PodScheduled")
    return str(said["message"]) if said.get("status") == "False" else ""


async def test_a_pod_that_fits_on_no_single_node_is_not_sent(ground: Advised) -> None:
    """It stays above, where the reason is told for each virtual node; when a node comes that takes one, one goes."""
    query = await ground.deployed("large", 3, TOO_LARGE)
    pods = await ground.upper.until_all(query, lambda found: sum(map(bool, map(unschedulable, found.values()))) == 3)
    for pod in pods.values():
        for node in ground.nodes.values():
            why = f"no lower node of virtual node {node} fits (0/{NODES} nodes are available: {NODES} Insufficient cpu)"
            assert f"1 {why}" in unschedulable(pod)
    assert await ground.below(query) == []
    site = ground.sites[B]
    name = await site.add_node(f"roomy-{ground.mark}", cpu=TOO_LARGE)
    pods = await ground.upper.until_all(query, lambda found: any(map(is_ready, found.values())))
    (sent,) = await ground.below(query)
    assert sent["spec"]["nodeName"] == name
    assert [pod["spec"].get("nodeName") for pod in pods.values() if is_ready(pod)] == [ground.nodes[B]]
    await ground.remove("large")
    await site.delete(f"/api/v1/nodes/{name}")
    await site.gone(f"/api/v1/nodes/{name}")


@pytest_asyncio.fixture(loop_scope="module")
async def full(ground: Advised) -> AsyncIterator[list[tuple[str, str]]]:
    """Take nine tenths of every node below in the name of strangers, and return each one's lower and path."""
    fillers = []
    for name in LOWERS:
        for node in (f"{name}-node-{number}" for number in range(1, NODES + 1)):
            container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": FULL}}}
            body = {"metadata": {"name": f"full-{node}"}, "spec": {"nodeName": node, "containers": [container]}}
            await ground.sites[name].create("/api/v1/namespaces/default/pods", body)
            fillers.append((name, f"/api/v1/namespaces/default/pods/full-{node}"))
    lowers = ground.engine.clusters.world.lowers
    await polled(lambda: all(len(lowers[name].place_pods) >= NODES for name in LOWERS))
    for node in ground.nodes.values():
        await ground.upper.until(
            f"/api/v1/nodes/{node}", lambda one: one["status"]["allocatable"]["cpu"] == str(NODES * CPUS)
        )
    yield fillers
    for name, path in fillers:
        await ground.sites[name].delete(path, 0)
        await ground.sites[name].gone(path)


async def test_room_that_comes_below_is_told_above(ground: Advised, full: list[tuple[str, str]]) -> None:
    """A stranger leaves, which changes nothing of what is offered above: a pod that was refused goes there soon."""
    query = await ground.deployed("patient", 1, "8")
    await ground.upper.until_all(query, lambda found: any(map(unschedulable, found.values())))
    lower, path = full[0]
    await ground.sites[lower].delete(path, 0)
    pods = await ground.upper.until_all(query, lambda found: any(map(is_ready, found.values())))
    assert [pod["spec"]["nodeName"] for pod in pods.values()] == [ground.nodes[lower]]
    await ground.remove("patient")


@pytest.mark.usefixtures("full")
async def test_a_burst_is_not_sent_where_it_finds_no_room(ground: Advised) -> None:
    """Nine tenths of every node are taken by others: as many pods run as there is room for, and no other is sent."""
    places = EACH * NODES * len(LOWERS)
    refused: set[str] = set()

    async def look() -> None:
        """See which pods wait below, again and again."""
        while True:
            found = await ground.below(query)
            refused.update(pod["metadata"]["name"] for pod in found if unschedulable(pod))
            await asyncio.sleep(0.05)

    query = await ground.deployed("burst", places + 12, SMALL)
    looking = asyncio.create_task(look())
    pods = await ground.upper.until_all(
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
    assert len(await ground.below(query)) == places
    await ground.remove("burst")


@pytest_asyncio.fixture(loop_scope="module")
async def urgent(ground: Advised) -> AsyncIterator[str]:
    """Make a priority class above all others, and return its name."""
    name = f"urgent-{ground.mark}"
    await ground.upper.create(PRIORITIES, {"metadata": {"name": name}, "value": 1000})
    yield name
    await ground.upper.delete(f"{PRIORITIES}/{name}")


@pytest.mark.parametrize("each", [pytest.param("20", id="fragments"), pytest.param(str(CPUS), id="full")])
async def test_one_goes_for_a_pod_of_higher_priority(ground: Advised, urgent: str, each: str) -> None:
    """Be it that the sum has room, and the scheduler sees nobody who has to go, or not; its successor waits."""
    crowd = await ground.deployed("crowd", NODES * len(LOWERS), each)
    before = await ground.upper.until_all(crowd, lambda found: sum(map(is_ready, found.values())) == len(found) == 8)
    query = await ground.deployed("urgent", 1, "24", priorityClassName=urgent)
    pods = await ground.upper.until_all(query, lambda found: any(map(is_ready, found.values())))
    after = await ground.upper.until_all(
        crowd,
        lambda found: (
            len(found) == len(before)
            and sum(map(is_ready, found.values())) == len(before) - 1
            and any(map(unschedulable, found.values()))
        ),
    )
    (gone,) = before.keys() - after.keys()
    (sent,) = await ground.below(query)
    (place,) = {one["spec"]["nodeName"] for one in pods.values()}
    assert before[gone]["spec"]["nodeName"] == place
    on_node = [pod for pod in await ground.below(crowd) if pod["spec"].get("nodeName") == sent["spec"]["nodeName"]]
    assert on_node == []
    fields = f"involvedObject.uid={before[gone]['metadata']['uid']},reason=Preempted"
    (told,) = (await ground.upper.until_all(f"{ground.path('events')}?fieldSelector={fields}", bool)).values()
    assert told["message"].endswith(f"on node {place}")
    await ground.remove("urgent")
    await ground.remove("crowd")


@pytest.mark.usefixtures("full")
async def test_where_nobody_could_help_none_goes(ground: Advised, urgent: str) -> None:
    """Strangers have what is missing, though the sum has room: the pod stays above, and the scheduler says why."""
    small = await ground.deployed("small", 1, SMALL)
    before = await ground.upper.until_all(small, lambda found: any(map(is_ready, found.values())))
    query = await ground.deployed("urgent", 1, "8", priorityClassName=urgent)
    pods = await ground.upper.until_all(query, lambda found: any(map(unschedulable, found.values())))
    (pod,) = pods.values()
    assert "Preemption is not helpful for scheduling" in unschedulable(pod)
    large = await ground.deployed("large", 1, TOO_LARGE, priorityClassName=urgent)
    await ground.upper.until_all(large, lambda found: any(map(unschedulable, found.values())))
    after = await ground.upper.until_all(small, lambda found: any(map(is_ready, found.values())))
    assert {name: one["metadata"]["uid"] for name, one in after.items()} == {
        name: one["metadata"]["uid"] for name, one in before.items()
    }
    for name in ("large", "urgent", "small"):
        await ground.remove(name)


async def test_it_is_switched_off_and_on_while_the_engine_runs(ground: Advised) -> None:
    """Off, nobody listens, nothing is kept of the lowers, and pods are sent by the sum; on, it answers as before."""
    await ground.reload(ground.on(enabled=False))
    assert ground.engine.extender.port == 0
    assert not any(
        len(cache) for lower in ground.engine.clusters.world.lowers.values() for cache in lower.place_caches()
    )
    query = await ground.deployed("blind", 1, TOO_LARGE)
    await ground.upper.until_all(query, lambda found: any("nodeName" in pod["spec"] for pod in found.values()))
    await ground.remove("blind")
    await ground.reload(ground.on(strategy="binpack"))
    await ground.knows()
    query = await ground.deployed("seen", 1, TOO_LARGE)
    pods = await ground.upper.until_all(query, lambda found: any(map(unschedulable, found.values())))
    assert not any("nodeName" in pod["spec"] for pod in pods.values())
    await ground.remove("seen")


async def test_who_stood_by_drives_though_a_port_is_taken(ground: Advised, tmp_path: Path) -> None:
    """Nobody would drive otherwise; it is told as pending, and the port is had once the other program lets go of it."""
    other = Advised(ground.sandbox, tmp_path)
    await other.open()
    try:
        with socket.create_server(("127.0.0.1", spare_port())) as taken:
            topology = other.topology(other.on(bind="127.0.0.1", port=taken.getsockname()[1]))
            other.engine = Engine(topology, ClusterAccess(other.directory), other.heard, Fleet(chance=random.random))
            other.is_started = True
            await other.engine.standby()
            await other.engine.lead()
            await other.usable(other.nodes[A])
            assert "another program listens there" in other.engine.pending[0]
            assert other.engine.extender.port == 0
        await polled(lambda: other.engine.extender.port == topology.extender.port)
        assert other.engine.pending == ()
        await other.clear()
    finally:
        await other.close()


async def test_who_is_not_the_scheduler_is_not_heard(ground: Advised) -> None:
    """The engine's own user has a certificate of the same authority; somebody without any has none."""
    port = ground.engine.extender.port
    pki = ground.sandbox.clusters["upper"].audit_log.parent / "pki"
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
