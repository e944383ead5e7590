"""Tests of what `tensile run` logs when the engine is ready, and of the status page before that."""

import asyncio
from pathlib import Path

import pytest
from scripted import WAIT, RecordedRequest, ScriptedApiserver, ServerAction, access_to, answer, running
from worldkit import with_managed_fields

from bench.kit.spareports import spare_ports
from tensile.engine.clusters import utc_now
from tensile.engine.engine import Engine
from tensile.engine.lower import ClusterAccess
from tensile.engine.run import page_source, ready
from tensile.engine.status.page import RecentChanges, ResourceUsage, page
from tensile.engine.status.report import EngineStatus
from tensile.kube.cluster import Cluster
from tensile.kube.fleet import Fleet
from tensile.kube.transport import Access
from tensile.names import owner_of
from tensile.reconcile.report import Recorder
from tensile.topology import Topology, Upper, parse

TOPOLOGY = """\
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
lowers: []
telemetry: {bind: BIND, port: 9100}
"""


@pytest.mark.parametrize(("bind", "host"), [("127.0.0.1", "127.0.0.1"), ('"::1"', "[::1]")])
def test_the_ready_line_has_the_urls_of_the_servers_and_the_watched_file(bind: str, host: str) -> None:
    """They are addresses that can be opened in a browser."""
    assert ready(parse(TOPOLOGY.replace("BIND", bind)), "/etc/tensile/topology.yaml") == {
        "topology": "demo",
        "watching": "/etc/tensile/topology.yaml",
        "metrics": f"http://{host}:9100/metrics",
        "healthz": f"http://{host}:9100/healthz",
        "status": f"http://{host}:9100/status",
    }


async def test_the_status_page_is_available_before_the_engine_runs(tmp_path: Path) -> None:
    """It shows the reason why the engine is not ready; no world exists, and viewing the page changes nothing."""
    topology = parse("apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n")
    engine = Engine(topology, ClusterAccess(tmp_path), Recorder(), Fleet(chance=float))
    standing = EngineStatus(utc_now)
    standing.waits = lambda: "the upper cluster has not responded yet"
    source = page_source(engine, standing, RecentChanges(utc_now), in_configmap=True)
    shown = page(source.view(ResourceUsage()))
    assert "Not ready: the upper cluster has not responded yet" in shown
    assert "waits to lead" in shown
    assert (source.world(), source.held(), source.in_configmap) == (None, {}, True)
    assert list(source.events("lower-a", "default", "uid")) == []
    before = source.stamp()
    assert source.stamp() == before
    standing.waits = lambda: ""
    assert source.stamp() != before


async def test_a_node_address_that_is_not_found_at_the_start_is_looked_up_again(tmp_path: Path) -> None:
    """A name may be resolved only once the network is up; certificates are for the address that is found then.

    An edit of the kubelet section for which no address is found keeps the known one.
    """
    found = iter(["", "192.0.2.7", ""])
    head = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n"
    port = spare_ports(1)[0]
    topology = parse(f"{head}kubelet: {{bind: 127.0.0.1, port: {port}}}\n")
    async with running(ScriptedApiserver()) as server:
        access = scripted_access(tmp_path, server.port)
        engine = Engine(
            topology, access, Recorder(), Fleet(chance=lambda: 0.5), find_address=lambda *_given: next(found)
        )
        try:
            await engine.open()
            assert (engine.clusters.world.node_address, engine.ports.address) == ("192.0.2.7", "192.0.2.7")
            await engine.reload(parse(f"{head}kubelet: {{bind: 127.0.0.1, port: {port}, clientCAFile: ca.crt}}\n"))
            assert (engine.clusters.world.node_address, engine.ports.address) == ("192.0.2.7", "192.0.2.7")
        finally:
            await engine.stop()
    assert list(found) == []


def scripted_access(directory: Path, port: int) -> ClusterAccess:
    """Return the access to a scripted apiserver on a port."""

    class ScriptedAccess(ClusterAccess):
        """The access to that apiserver."""

        async def upper_access(self, _upper: Upper) -> Access:
            """Return the access."""
            return access_to(port)

    return ScriptedAccess(directory)


class WebhookOwner(ScriptedApiserver):
    """An upper apiserver that has the webhook of topology demo."""

    def _ordinary(self, request: RecordedRequest) -> ServerAction:
        if request.sort != "write" and "/mutatingwebhookconfigurations/" in request.path:
            owner = owner_of(self.uid, "demo")
            meta = {"name": request.path.rpartition("/")[2], "uid": "w", "resourceVersion": "6", "labels": owner.label}
            return answer(with_managed_fields({"metadata": {**meta, "annotations": owner.signed(self.uid)}}))
        return super()._ordinary(request)

    async def written(self) -> str:
        """Return the method of the first write of the webhook."""
        async with asyncio.timeout(WAIT), self._news:
            await self._news.wait_for(lambda: bool(self._writes()))
        return self._writes()[0]

    def _writes(self) -> list[str]:
        return [one.method for one in self.requests_of("write") if "/mutatingwebhook" in one.path]


@pytest.mark.parametrize("waits", [True, False])
async def test_the_webhook_stays_registered_while_its_removal_waits_for_an_approval(
    tmp_path: Path, *, waits: bool
) -> None:
    """This holds after a restart too, because the engine starts on the accepted topology."""
    webhook, kubelet = spare_ports(2)
    head = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n"
    ports = f"kubelet: {{bind: 127.0.0.1, port: {kubelet}}}\nwebhook: {{bind: 127.0.0.1, port: {webhook}, "
    ports += f"url: 'https://127.0.0.1:{webhook}', enabled: "
    accepted, edit = parse(f"{head}{ports}true}}\n"), parse(f"{head}{ports}false}}\n")
    async with running(WebhookOwner()) as server:

        async def found(_upper: Cluster, uid: str) -> Topology:
            """Return the topology that was accepted."""
            assert uid == server.uid
            return accepted if waits else edit

        engine = Engine(edit, scripted_access(tmp_path, server.port), Recorder(), Fleet(chance=lambda: 0.5))
        await engine.open(found)
        assert await server.written() == ("PATCH" if waits else "DELETE")
        await engine.stop()
