"""Tests of the scheduler extender in the engine: when and for which clients it is served, and its state."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from answering import FakeCluster, HeldResponse
from filekit import wait_for_watcher
from scripted import WAIT
from structlog.testing import capture_logs
from trackerkit import AllocatableLowers, foreign_lower_pod, upper_pod_requesting
from worldkit import (
    A,
    B,
    add_namespace,
    add_virtual_node,
    apply_topology,
    change_as_other_client,
    make_lower_node,
    make_world,
    put,
    with_owner_marks,
)

from bench.kit.spareports import spare_port
from tensile.engine.extender_server import ExtenderServer
from tensile.errors import NotFound, TensileError
from tensile.kube.cluster import Listing, Read, Selection
from tensile.kube.file_watch import FileWatcher
from tensile.objects import DISRUPTION_BUDGET, Kind, uid
from tensile.policy.extender.server import SCHEDULER
from tensile.policy.extender.tracker import PodProjector
from tensile.sandbox.credentials import Authority, authority
from tensile.topology import Topology

HOST = "127.0.0.1"
NOW = datetime.now(UTC)
FILES = "tlsCertFile: server.crt, tlsKeyFile: server.key, clientCAFile: callers.crt"


class UpperWithoutBudgets(FakeCluster):
    """The upper cluster, without disruption budgets."""

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Return no budgets; no other kind is listed."""
        assert (kind, selection, read) == (DISRUPTION_BUDGET, Selection(), read)
        return Listing([], "1")


class ExtenderHarness:
    """A world of two lowers of 4 cpu, an extender for it, and its certificate files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = spare_port()
        self.upper = UpperWithoutBudgets("")
        self.world = make_world()
        self.world.node_address = HOST
        for name, lower in self.world.lowers.items():
            add_namespace(self.world, name)
            add_virtual_node(self.world, name)
            put(lower.place_nodes, make_lower_node("n1", "4"))
        self.serving, self.callers = authority("serving", NOW), authority("callers", NOW)
        self.write(self.serving, self.callers)
        self.watcher = FileWatcher()
        self.files = [directory / name for name in ("server.crt", "server.key", "callers.crt")]
        now = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
        self.made = ExtenderServer(self.world, self.upper, directory, self.watcher, now=lambda: now)

    def write(self, serving: Authority, callers: Authority) -> None:
        """Write the serving certificate, and the CA of the permitted callers."""
        pair = serving.issue("extender", addresses=[HOST])
        (self.directory / "server.crt").write_bytes(pair.certificate)
        (self.directory / "server.key").write_bytes(pair.key)
        (self.directory / "callers.crt").write_bytes(callers.pair.certificate)

    def topology(self, *, enabled: bool = True, kubelet: str = FILES, more: str = "") -> Topology:
        """Activate a topology, and return it."""
        where = f"enabled: {str(enabled).lower()}, bind: {HOST}, port: {self.port}{more}"
        apply_topology(self.world, more=f"extender: {{{where}}}\nkubelet: {{{kubelet}}}\n")
        return self.world.topology

    async def ask(
        self, pod: dict[str, Any] | None = None, *, verb: str = "filter", serving: Any = None, callers: Any = None
    ) -> Any:
        """Send a request for a pod with a client certificate of the callers' CA, and return the response."""
        tls = ssl.create_default_context(cadata=(serving or self.serving).pair.certificate.decode())
        pair = (callers or self.callers).issue(SCHEDULER)
        for name, content in (("client.crt", pair.certificate), ("client.key", pair.key)):
            (self.directory / name).write_bytes(content)
        tls.load_cert_chain(self.directory / "client.crt", self.directory / "client.key")
        url = f"https://{HOST}:{self.made.port}/{verb}"
        body = {"Pod": pod or upper_pod_requesting(), "Nodes": None, "NodeNames": [A, B]}
        async with aiohttp.ClientSession() as session, session.post(url, ssl=tls, json=body) as answer:
            return await answer.json()

    async def names(self, pod: dict[str, Any] | None = None, **by: Any) -> list[str]:
        """Return the nodes on which the extender accepts a pod."""
        found: list[str] = (await self.ask(pod, **by))["NodeNames"]
        return found


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ExtenderHarness]:
    """Return a harness, and check at its end that nothing is served."""
    scene = ExtenderHarness(tmp_path)
    yield scene
    await scene.made.close()
    await scene.watcher.close()
    assert scene.made.port == 0


async def test_the_extender_filters_the_nodes_of_the_present_lowers(harness: ExtenderHarness) -> None:
    """A node without a present lower is not refused, and the state of a lower that stays is kept."""
    await harness.made.open(harness.topology())
    assert await harness.names(upper_pod_requesting("one")) == [A, B]
    left = harness.world.lowers.pop(B)
    harness.made.follow()
    assert await harness.names(upper_pod_requesting("two")) == [B]  # a node without a lower is not refused
    harness.world.lowers[B] = left
    harness.made.follow()
    assert await harness.names(upper_pod_requesting("three")) == [B]


async def test_a_disabled_extender_keeps_no_state_and_no_port(harness: ExtenderHarness) -> None:
    """Caches have no listener of it after it was disabled, and connections are refused."""
    caches = [cache for lower in harness.world.lowers.values() for cache in (lower.pods, lower.upper_pods)]
    await harness.made.open(harness.topology(enabled=False))
    assert harness.made.port == 0
    await harness.made.open(harness.topology())
    assert all(cache._listeners for cache in caches)
    await harness.made.open(harness.topology(enabled=False))
    assert not any(cache._listeners for cache in caches)
    with pytest.raises(aiohttp.ClientConnectionError):
        await harness.ask()


async def test_a_bound_pod_releases_its_reservation_in_the_other_lower(harness: ExtenderHarness) -> None:
    """The room is available as soon as the watch reports the binding."""
    await harness.made.open(harness.topology())
    pod = upper_pod_requesting("one")
    assert await harness.names(pod) == [A, B]
    put(harness.world.lowers[A].upper_pods, {**pod, "spec": {**pod["spec"], "nodeName": A}})
    assert await harness.names(upper_pod_requesting("two")) == [B]


def bound(name: str, since: str) -> dict[str, Any]:
    """Return a pod that a scheduler bound to the node of the first lower at a time of day."""
    pod = upper_pod_requesting(name)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"2031-05-06T{since}Z"}
    return {**pod, "spec": {**pod["spec"], "nodeName": A}, "status": {"conditions": [scheduled]}}


async def test_a_scheduler_that_binds_pods_without_calling_the_extender_is_reported(harness: ExtenderHarness) -> None:
    """Only pods that it bound after the port was opened count, and one call ends the report."""
    await harness.made.open(harness.topology())
    pods = harness.world.lowers[A].upper_pods
    put(pods, bound("before", "07:08:09"))
    put(pods, {**upper_pod_requesting("by hand"), "spec": {**upper_pod_requesting("by hand")["spec"], "nodeName": A}})
    assert harness.made.pending == ()
    put(pods, bound("after", "07:08:10"))
    (pending_event,) = harness.made.pending
    assert pending_event == (
        "the upper scheduler has not called the extender for pod default/after: configure that scheduler to call it "
        "(docs/extender.md)"
    )
    await harness.names(upper_pod_requesting("asked"))
    assert harness.made.pending == ()
    put(pods, bound("later", "07:08:11"))
    assert harness.made.pending == ()


async def test_room_for_a_refused_pod_is_recorded_on_its_lower(harness: ExtenderHarness) -> None:
    """The time is recorded once, so that the virtual node changes and the upper scheduler retries the pod."""
    await harness.made.open(harness.topology())
    assert await harness.names(upper_pod_requesting("one", "8")) == []
    assert harness.made.lowers_with_new_room() == []
    put(harness.world.lowers[B].place_nodes, make_lower_node("n2", "8"))
    assert harness.made.lowers_with_new_room() == [B]
    freed_at = [harness.world.lowers[name].capacity_freed_at for name in (A, B)]
    assert freed_at == ["", "2031-05-06T07:08:09Z"]
    assert harness.made.lowers_with_new_room() == []


async def test_another_strategy_keeps_the_port_and_the_reservations(harness: ExtenderHarness) -> None:
    """A reservation from before the reload affects the scores after it."""
    await harness.made.open(harness.topology())
    assert await harness.names(upper_pod_requesting("one", "1")) == [A, B]
    assert [one["Score"] for one in await harness.ask(upper_pod_requesting("two", "1"), verb="prioritize")] == [8, 8]
    await harness.made.open(harness.topology(more=", strategy: binpack"))
    assert [one["Score"] for one in await harness.ask(upper_pod_requesting("two", "1"), verb="prioritize")] == [2, 2]


async def test_a_port_in_use_is_an_error_and_is_opened_once_it_is_free(harness: ExtenderHarness) -> None:
    """The error at the start states what to change; later it is logged once and reported as pending."""
    with socket.create_server((HOST, harness.port)):
        with pytest.raises(TensileError, match=r"set extender\.port"):
            await harness.made.open(harness.topology())
        with capture_logs() as logs:
            await harness.made.refresh()
            await harness.made.refresh()
        assert [one["log_level"] for one in logs] == ["error"]
        assert "another program uses this port" in harness.made.pending[0]
        assert harness.made.port == 0
    await harness.made.refresh()
    assert (harness.made.port, harness.made.pending) == (harness.port, ())
    assert await harness.names(upper_pod_requesting("one")) == [A, B]


async def test_disabling_the_extender_clears_its_pending_problem(harness: ExtenderHarness) -> None:
    """The port is no longer needed."""
    with socket.create_server((HOST, harness.port)), pytest.raises(TensileError):
        await harness.made.open(harness.topology())
    await harness.made.open(harness.topology(enabled=False))
    assert (harness.made.port, harness.made.pending) == (0, ())


async def test_renewed_certificates_are_used_without_a_restart(harness: ExtenderHarness) -> None:
    """A change of the files replaces the serving certificate and the CA of the callers."""
    await harness.made.open(harness.topology())
    serving, callers = authority("serving-2", NOW), authority("callers-2", NOW)
    assert await harness.names(upper_pod_requesting("one")) == [A, B]
    async with wait_for_watcher(harness.watcher, *harness.files):
        harness.write(serving, callers)
    await harness.made.refresh()
    assert await harness.names(upper_pod_requesting("two"), serving=serving, callers=callers) == []
    for old in ({"serving": harness.serving, "callers": callers}, {"serving": serving, "callers": harness.callers}):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await harness.ask(upper_pod_requesting("three"), **old)


async def test_files_that_become_invalid_are_ignored_with_a_warning(harness: ExtenderHarness) -> None:
    """The last valid ones stay in use."""
    await harness.made.open(harness.topology())
    with capture_logs() as logs:
        async with wait_for_watcher(harness.watcher, *harness.files):
            for name in ("server.crt", "callers.crt"):
                (harness.directory / name).write_text("half a")
        await harness.made.refresh()
    assert await harness.names() == [A, B]
    assert {one["log_level"] for one in logs} == {"warning"}
    assert len(logs) == 2


async def test_a_certificate_that_cannot_be_read_is_an_error_at_the_start(harness: ExtenderHarness) -> None:
    """The error names the file, and the port stays free."""
    (harness.directory / "server.key").unlink()
    with pytest.raises(TensileError, match=r"kubelet\.tlsKeyFile: .*server\.key"):
        await harness.made.open(harness.topology())
    assert harness.made.port == 0
    socket.create_server((HOST, harness.port)).close()


async def test_without_files_the_certificate_is_self_signed_and_the_ca_is_read_from_the_upper(
    harness: ExtenderHarness,
) -> None:
    """The warning states what the scheduler's configuration then needs."""
    published = orjson.dumps({"data": {"client-ca-file": harness.callers.pair.certificate.decode()}})
    harness.upper.queue_responses("read", published)
    with capture_logs() as logs:
        await harness.made.open(harness.topology(kubelet="port: 10350"))
    (warning,) = [one for one in logs if "self-signed" in one["event"]]
    assert "tlsConfig.caFile" in warning["advice"]
    reader, writer = await asyncio.open_connection(HOST, harness.made.port, ssl=_trusting(harness))
    writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    assert b" 400 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


def _trusting(harness: ExtenderHarness) -> ssl.SSLContext:
    """Return the TLS context of a scheduler that does not verify the server."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    pair = harness.callers.issue(SCHEDULER)
    (harness.directory / "client.pem").write_bytes(pair.certificate + pair.key)
    tls.load_cert_chain(harness.directory / "client.pem")
    return tls


async def test_every_request_is_rejected_while_the_client_ca_is_unknown(harness: ExtenderHarness) -> None:
    """The upper cluster does not respond, which is logged."""
    harness.upper.queue_responses("read", TensileError("no"))
    with capture_logs() as logs:
        await harness.made.open(harness.topology(kubelet="tlsCertFile: server.crt, tlsKeyFile: server.key"))
    assert [one["effect"] for one in logs] == ["every request is rejected"]
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await harness.ask()


def fill_lower_nodes(harness: ExtenderHarness) -> None:
    """Fill each lower node, with a foreign pod of 1 cpu and a mirrored one of 2, which has the lowest priority."""
    for name, lower in harness.world.lowers.items():
        change_as_other_client(harness.world.upper.nodes, name, AllocatableLowers.set_allocatable, "")
        put(lower.place_pods, foreign_lower_pod("theirs", "n1", "1"))
        low = upper_pod_requesting(f"low-{name}", "2", name)
        put(lower.upper_pods, low)
        lower_object = PodProjector(harness.world, lower).project(low)
        assert lower_object is not None
        copy = with_owner_marks(lower_object, low["metadata"]["uid"])
        put(
            lower.pods,
            {**copy, "metadata": copy["metadata"] | {"uid": "copy"}, "spec": copy["spec"] | {"nodeName": "n1"}},
        )


async def test_an_answer_of_the_served_extender_starts_the_preemption_of_a_victim(harness: ExtenderHarness) -> None:
    """The pod is nominated, and the victim is deleted with its UID, without another request of the scheduler."""
    await harness.made.open(harness.topology())
    fill_lower_nodes(harness)
    high, last = upper_pod_requesting("high", "3", spec={"priority": 7}, resourceVersion="7"), HeldResponse()
    harness.upper.queue_responses("read", high)
    harness.upper.queue_responses("create", last)
    assert await harness.names(high) == []
    async with asyncio.timeout(WAIT):
        await last.started.wait()
    *done, event = [one for one in harness.upper.calls if one.verb != "read"]
    assert [(one.verb, one.ref.name) for one in done] == [
        ("patch", "high"),
        ("patch", "low-lower-a"),
        ("delete", "low-lower-a"),
    ]
    assert done[0].payload[0].body["status"] == {"nominatedNodeName": A}
    assert done[-1].payload == (uid(upper_pod_requesting("low-lower-a")), None)
    assert (event.verb, event.payload["reason"]) == ("create", "Preempted")
    assert harness.made.evicted == {A: 1}


async def test_the_preemption_loop_runs_while_the_extender_is_served(harness: ExtenderHarness) -> None:
    """It handles a refused pod after the scheduler's next request, and closing the extender clears all refused pods."""
    await harness.made.open(harness.topology())
    fill_lower_nodes(harness)
    held = HeldResponse(NotFound("gone"))
    harness.upper.queue_responses("read", held)
    assert await harness.names(upper_pod_requesting("high", "3", spec={"priority": 7})) == []
    await held.started.wait()
    held.release.set()
    assert await harness.names(upper_pod_requesting("other", "3", spec={"priority": 7})) == []
    assert list(harness.made._unschedulable) == ["Pod-other"]
    await harness.made.close()
    assert harness.made._unschedulable == {}
