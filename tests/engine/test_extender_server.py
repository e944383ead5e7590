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
from answering import Answering, Held
from filekit import heard
from scripted import WAIT
from structlog.testing import capture_logs
from trackerkit import ShownLowers, asking, stranger
from worldkit import A, B, changed, home, lower_node, marked, put, raised, reload, world

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


class Upper(Answering):
    """The upper cluster, without disruption budgets."""

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Return no budgets; no other kind is listed."""
        assert (kind, selection, read) == (DISRUPTION_BUDGET, Selection(), read)
        return Listing([], "1")


class Scene:
    """A world of two lowers of 4 cpu, an extender for it, and its certificate files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = spare_port()
        self.upper = Upper("")
        self.world = world()
        self.world.node_address = HOST
        for name, lower in self.world.lowers.items():
            home(self.world, name)
            raised(self.world, name)
            put(lower.place_nodes, lower_node("n1", "4"))
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
        reload(self.world, more=f"extender: {{{where}}}\nkubelet: {{{kubelet}}}\n")
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
        body = {"Pod": pod or asking(), "Nodes": None, "NodeNames": [A, B]}
        async with aiohttp.ClientSession() as session, session.post(url, ssl=tls, json=body) as answer:
            return await answer.json()

    async def names(self, pod: dict[str, Any] | None = None, **by: Any) -> list[str]:
        """Return the nodes on which the extender accepts a pod."""
        found: list[str] = (await self.ask(pod, **by))["NodeNames"]
        return found


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    """Return a scene, and check at its end that nothing is served."""
    scene = Scene(tmp_path)
    yield scene
    await scene.made.close()
    await scene.watcher.close()
    assert scene.made.port == 0


async def test_the_extender_filters_the_nodes_of_the_present_lowers(here: Scene) -> None:
    """A node without a present lower is not refused, and the state of a lower that stays is kept."""
    await here.made.open(here.topology())
    assert await here.names(asking("one")) == [A, B]
    left = here.world.lowers.pop(B)
    here.made.follow()
    assert await here.names(asking("two")) == [B]  # a node without a lower is not refused
    here.world.lowers[B] = left
    here.made.follow()
    assert await here.names(asking("three")) == [B]


async def test_a_disabled_extender_keeps_no_state_and_no_port(here: Scene) -> None:
    """Caches have no listener of it after it was disabled, and connections are refused."""
    caches = [cache for lower in here.world.lowers.values() for cache in (lower.pods, lower.upper_pods)]
    await here.made.open(here.topology(enabled=False))
    assert here.made.port == 0
    await here.made.open(here.topology())
    assert all(cache._listeners for cache in caches)
    await here.made.open(here.topology(enabled=False))
    assert not any(cache._listeners for cache in caches)
    with pytest.raises(aiohttp.ClientConnectionError):
        await here.ask()


async def test_a_bound_pod_releases_its_reservation_in_the_other_lower(here: Scene) -> None:
    """The room is available as soon as the watch reports the binding."""
    await here.made.open(here.topology())
    pod = asking("one")
    assert await here.names(pod) == [A, B]
    put(here.world.lowers[A].upper_pods, {**pod, "spec": {**pod["spec"], "nodeName": A}})
    assert await here.names(asking("two")) == [B]


def bound(name: str, since: str) -> dict[str, Any]:
    """Return a pod that a scheduler bound to the node of the first lower at a time of day."""
    pod = asking(name)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"2031-05-06T{since}Z"}
    return {**pod, "spec": {**pod["spec"], "nodeName": A}, "status": {"conditions": [scheduled]}}


async def test_a_scheduler_that_binds_pods_without_calling_the_extender_is_reported(here: Scene) -> None:
    """Only pods that it bound after the port was opened count, and one call ends the report."""
    await here.made.open(here.topology())
    pods = here.world.lowers[A].upper_pods
    put(pods, bound("before", "07:08:09"))
    put(pods, {**asking("by hand"), "spec": {**asking("by hand")["spec"], "nodeName": A}})
    assert here.made.pending == ()
    put(pods, bound("after", "07:08:10"))
    (told,) = here.made.pending
    assert told == (
        "the upper scheduler has not called the extender for pod default/after: configure that scheduler to call it "
        "(docs/extender.md)"
    )
    await here.names(asking("asked"))
    assert here.made.pending == ()
    put(pods, bound("later", "07:08:11"))
    assert here.made.pending == ()


async def test_room_for_a_refused_pod_is_recorded_on_its_lower(here: Scene) -> None:
    """The time is recorded once, so that the virtual node changes and the upper scheduler retries the pod."""
    await here.made.open(here.topology())
    assert await here.names(asking("one", "8")) == []
    assert here.made.lowers_with_new_room() == []
    put(here.world.lowers[B].place_nodes, lower_node("n2", "8"))
    assert here.made.lowers_with_new_room() == [B]
    freed_at = [here.world.lowers[name].capacity_freed_at for name in (A, B)]
    assert freed_at == ["", "2031-05-06T07:08:09Z"]
    assert here.made.lowers_with_new_room() == []


async def test_another_strategy_keeps_the_port_and_the_reservations(here: Scene) -> None:
    """A reservation from before the reload affects the scores after it."""
    await here.made.open(here.topology())
    assert await here.names(asking("one", "1")) == [A, B]
    assert [one["Score"] for one in await here.ask(asking("two", "1"), verb="prioritize")] == [8, 8]
    await here.made.open(here.topology(more=", strategy: binpack"))
    assert [one["Score"] for one in await here.ask(asking("two", "1"), verb="prioritize")] == [2, 2]


async def test_a_port_in_use_is_an_error_and_is_opened_once_it_is_free(here: Scene) -> None:
    """The error at the start states what to change; later it is logged once and reported as pending."""
    with socket.create_server((HOST, here.port)):
        with pytest.raises(TensileError, match=r"set extender\.port"):
            await here.made.open(here.topology())
        with capture_logs() as said:
            await here.made.refresh()
            await here.made.refresh()
        assert [one["log_level"] for one in said] == ["error"]
        assert "another program uses this port" in here.made.pending[0]
        assert here.made.port == 0
    await here.made.refresh()
    assert (here.made.port, here.made.pending) == (here.port, ())
    assert await here.names(asking("one")) == [A, B]


async def test_disabling_the_extender_clears_its_pending_problem(here: Scene) -> None:
    """The port is no longer needed."""
    with socket.create_server((HOST, here.port)), pytest.raises(TensileError):
        await here.made.open(here.topology())
    await here.made.open(here.topology(enabled=False))
    assert (here.made.port, here.made.pending) == (0, ())


async def test_renewed_certificates_are_used_without_a_restart(here: Scene) -> None:
    """A change of the files replaces the serving certificate and the CA of the callers."""
    await here.made.open(here.topology())
    serving, callers = authority("serving-2", NOW), authority("callers-2", NOW)
    assert await here.names(asking("one")) == [A, B]
    async with heard(here.watcher, *here.files):
        here.write(serving, callers)
    await here.made.refresh()
    assert await here.names(asking("two"), serving=serving, callers=callers) == []
    for old in ({"serving": here.serving, "callers": callers}, {"serving": serving, "callers": here.callers}):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await here.ask(asking("three"), **old)


async def test_files_that_become_invalid_are_ignored_with_a_warning(here: Scene) -> None:
    """The last valid ones stay in use."""
    await here.made.open(here.topology())
    with capture_logs() as said:
        async with heard(here.watcher, *here.files):
            for name in ("server.crt", "callers.crt"):
                (here.directory / name).write_text("half a")
        await here.made.refresh()
    assert await here.names() == [A, B]
    assert {one["log_level"] for one in said} == {"warning"}
    assert len(said) == 2


async def test_a_certificate_that_cannot_be_read_is_an_error_at_the_start(here: Scene) -> None:
    """The error names the file, and the port stays free."""
    (here.directory / "server.key").unlink()
    with pytest.raises(TensileError, match=r"kubelet\.tlsKeyFile: .*server\.key"):
        await here.made.open(here.topology())
    assert here.made.port == 0
    socket.create_server((HOST, here.port)).close()


async def test_without_files_the_certificate_is_self_signed_and_the_ca_is_read_from_the_upper(
    here: Scene,
) -> None:
    """The warning states what the scheduler's configuration then needs."""
    published = orjson.dumps({"data": {"client-ca-file": here.callers.pair.certificate.decode()}})
    here.upper.answer("read", published)
    with capture_logs() as said:
        await here.made.open(here.topology(kubelet="port: 10350"))
    (warning,) = [one for one in said if "self-signed" in one["event"]]
    assert "tlsConfig.caFile" in warning["advice"]
    reader, writer = await asyncio.open_connection(HOST, here.made.port, ssl=_trusting(here))
    writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    assert b" 400 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


def _trusting(here: Scene) -> ssl.SSLContext:
    """Return the TLS context of a scheduler that does not verify the server."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    pair = here.callers.issue(SCHEDULER)
    (here.directory / "client.pem").write_bytes(pair.certificate + pair.key)
    tls.load_cert_chain(here.directory / "client.pem")
    return tls


async def test_every_request_is_rejected_while_the_client_ca_is_unknown(here: Scene) -> None:
    """The upper cluster does not respond, which is logged."""
    here.upper.answer("read", TensileError("no"))
    with capture_logs() as said:
        await here.made.open(here.topology(kubelet="tlsCertFile: server.crt, tlsKeyFile: server.key"))
    assert [one["effect"] for one in said] == ["every request is rejected"]
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await here.ask()


def fill(here: Scene) -> None:
    """Fill each lower node, with a foreign pod of 1 cpu and a mirrored one of 2, which has the lowest priority."""
    for name, lower in here.world.lowers.items():
        changed(here.world.upper.nodes, name, ShownLowers.shown, "")
        put(lower.place_pods, stranger("theirs", "n1", "1"))
        low = asking(f"low-{name}", "2", name)
        put(lower.upper_pods, low)
        below = PodProjector(here.world, lower).project(low)
        assert below is not None
        copy = marked(below, low["metadata"]["uid"])
        put(
            lower.pods,
            {**copy, "metadata": copy["metadata"] | {"uid": "copy"}, "spec": copy["spec"] | {"nodeName": "n1"}},
        )


async def test_an_answer_of_the_served_extender_starts_the_preemption_of_a_victim(here: Scene) -> None:
    """The pod is nominated, and the victim is deleted with its UID, without another request of the scheduler."""
    await here.made.open(here.topology())
    fill(here)
    high, last = asking("high", "3", spec={"priority": 7}, resourceVersion="7"), Held()
    here.upper.answer("read", high)
    here.upper.answer("create", last)
    assert await here.names(high) == []
    async with asyncio.timeout(WAIT):
        await last.began.wait()
    *done, event = [one for one in here.upper.asked if one.verb != "read"]
    assert [(one.verb, one.ref.name) for one in done] == [
        ("patch", "high"),
        ("patch", "low-lower-a"),
        ("delete", "low-lower-a"),
    ]
    assert done[0].carried[0].body["status"] == {"nominatedNodeName": A}
    assert done[-1].carried == (uid(asking("low-lower-a")), None)
    assert (event.verb, event.carried["reason"]) == ("create", "Preempted")
    assert here.made.evicted == {A: 1}


async def test_the_preemption_loop_runs_while_the_extender_is_served(here: Scene) -> None:
    """It handles a refused pod after the scheduler's next request, and closing the extender clears all refused pods."""
    await here.made.open(here.topology())
    fill(here)
    held = Held(NotFound("gone"))
    here.upper.answer("read", held)
    assert await here.names(asking("high", "3", spec={"priority": 7})) == []
    await held.began.wait()
    held.go.set()
    assert await here.names(asking("other", "3", spec={"priority": 7})) == []
    assert list(here.made._unschedulable) == ["Pod-other"]
    await here.made.close()
    assert here.made._unschedulable == {}
