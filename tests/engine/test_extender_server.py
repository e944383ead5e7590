"""The extender as the engine holds it: where and for whom it is served, and what is known while it is."""

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
from structlog.testing import capture_logs
from trackerkit import ShownLowers, asking, stranger
from worldkit import A, B, changed, home, lower_node, marked, put, raised, reload, world

from bench.kit.spareports import spare_port
from tensile.engine.extender_server import ExtenderServer
from tensile.errors import NotFound, TensileError
from tensile.kube.file_watch import FileWatcher
from tensile.policy.extender.server import SCHEDULER
from tensile.policy.extender.tracker import PodProjector
from tensile.sandbox.credentials import Authority, authority
from tensile.topology import Topology

HOST = "127.0.0.1"
NOW = datetime.now(UTC)
FILES = "tlsCertFile: server.crt, tlsKeyFile: server.key, clientCAFile: callers.crt"


class Scene:
    """A world of two lowers of 4 cpu, an extender for it, and the files that it shows."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = spare_port()
        self.upper = Answering("")
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
        """Write the certificate that is shown, and the authority of those who are heard."""
        pair = serving.issue("extender", addresses=[HOST])
        (self.directory / "server.crt").write_bytes(pair.certificate)
        (self.directory / "server.key").write_bytes(pair.key)
        (self.directory / "callers.crt").write_bytes(callers.pair.certificate)

    def topology(self, *, enabled: bool = True, kubelet: str = FILES, more: str = "") -> Topology:
        """Put a topology in force, and give it."""
        where = f"enabled: {str(enabled).lower()}, bind: {HOST}, port: {self.port}{more}"
        reload(self.world, more=f"extender: {{{where}}}\nkubelet: {{{kubelet}}}\n")
        return self.world.topology

    async def ask(
        self, pod: dict[str, Any] | None = None, *, verb: str = "filter", serving: Any = None, callers: Any = None
    ) -> Any:
        """Ask where a pod may go, by a certificate of the callers' authority."""
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
        """Return the nodes that a pod may go to."""
        found: list[str] = (await self.ask(pod, **by))["NodeNames"]
        return found


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    """A scene; at its end nothing is served any more."""
    scene = Scene(tmp_path)
    yield scene
    await scene.made.close()
    await scene.watcher.close()
    assert scene.made.port == 0


async def test_it_answers_for_the_lowers_that_there_are(here: Scene) -> None:
    """One that came since, and none that left; what is known of those that stay is kept."""
    await here.made.open(here.topology())
    assert await here.names(asking("one")) == [A, B]
    left = here.world.lowers.pop(B)
    here.made.follow()
    assert await here.names(asking("two")) == [B]  # a node that is nobody's is none of ours to refuse
    here.world.lowers[B] = left
    here.made.follow()
    assert await here.names(asking("three")) == [B]


async def test_nothing_is_known_while_it_is_off(here: Scene) -> None:
    """Neither before nor afterwards: nobody listens, and no cache has a listener of ours."""
    caches = [cache for lower in here.world.lowers.values() for cache in (lower.pods, lower.upper_pods)]
    await here.made.open(here.topology(enabled=False))
    assert here.made.port == 0
    await here.made.open(here.topology())
    assert all(cache._listeners for cache in caches)
    await here.made.open(here.topology(enabled=False))
    assert not any(cache._listeners for cache in caches)
    with pytest.raises(aiohttp.ClientConnectionError):
        await here.ask()


async def test_a_pod_that_is_bound_frees_the_other_lower(here: Scene) -> None:
    """As soon as the watch tells of it."""
    await here.made.open(here.topology())
    pod = asking("one")
    assert await here.names(pod) == [A, B]
    put(here.world.lowers[A].upper_pods, {**pod, "spec": {**pod["spec"], "nodeName": A}})
    assert await here.names(asking("two")) == [B]


def bound(name: str, since: str) -> dict[str, Any]:
    """Make a pod that a scheduler has bound to the node of the first lower at a time of day."""
    pod = asking(name)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"2031-05-06T{since}Z"}
    return {**pod, "spec": {**pod["spec"], "nodeName": A}, "status": {"conditions": [scheduled]}}


async def test_a_scheduler_that_never_calls_is_reported(here: Scene) -> None:
    """By a pod that it bound since the port is open; one call is enough to know that it is configured."""
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


async def test_room_that_came_is_noted_on_the_lower(here: Scene) -> None:
    """By name, with the time of day: its virtual node is to tell the upper scheduler."""
    await here.made.open(here.topology())
    assert await here.names(asking("one", "8")) == []
    assert here.made.relieved() == []
    put(here.world.lowers[B].place_nodes, lower_node("n2", "8"))
    assert here.made.relieved() == [B]
    assert (here.world.lowers[A].room, here.world.lowers[B].room) == ("", "2031-05-06T07:08:09Z")
    assert here.made.relieved() == []


async def test_another_strategy_keeps_port_and_promises(here: Scene) -> None:
    """What was promised before the reload is still promised."""
    await here.made.open(here.topology())
    assert await here.names(asking("one", "1")) == [A, B]
    assert [one["Score"] for one in await here.ask(asking("two", "1"), verb="prioritize")] == [8, 8]
    await here.made.open(here.topology(more=", strategy: binpack"))
    assert [one["Score"] for one in await here.ask(asking("two", "1"), verb="prioritize")] == [2, 2]


async def test_a_port_that_is_taken_is_an_error_and_had_once_it_is_free(here: Scene) -> None:
    """The program ends at the start, with what to change; an edit that enables it is pending."""
    with socket.create_server((HOST, here.port)):
        with pytest.raises(TensileError, match=r"set extender\.port"):
            await here.made.open(here.topology())
        with capture_logs() as said:
            await here.made.look()
            await here.made.look()
        assert [one["log_level"] for one in said] == ["error"]
        assert "another program uses this port" in here.made.pending[0]
        assert here.made.port == 0
    await here.made.look()
    assert (here.made.port, here.made.pending) == (here.port, ())
    assert await here.names(asking("one")) == [A, B]


async def test_what_is_pending_is_forgotten_when_it_is_switched_off(here: Scene) -> None:
    """Nobody waits for its port any more."""
    with socket.create_server((HOST, here.port)), pytest.raises(TensileError):
        await here.made.open(here.topology())
    await here.made.open(here.topology(enabled=False))
    assert (here.made.port, here.made.pending) == (0, ())


async def test_what_is_renewed_counts_without_a_restart(here: Scene) -> None:
    """Another certificate and another authority of callers, when a change of their files is heard of."""
    await here.made.open(here.topology())
    serving, callers = authority("serving-2", NOW), authority("callers-2", NOW)
    assert await here.names(asking("one")) == [A, B]
    async with heard(here.watcher, *here.files):
        here.write(serving, callers)
    await here.made.look()
    assert await here.names(asking("two"), serving=serving, callers=callers) == []
    for old in ({"serving": here.serving, "callers": callers}, {"serving": serving, "callers": here.callers}):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await here.ask(asking("three"), **old)


async def test_files_that_are_not_good_any_more_change_nothing(here: Scene) -> None:
    """The last good ones stay, and it is said."""
    await here.made.open(here.topology())
    with capture_logs() as said:
        async with heard(here.watcher, *here.files):
            for name in ("server.crt", "callers.crt"):
                (here.directory / name).write_text("half a")
        await here.made.look()
    assert await here.names() == [A, B]
    assert {one["log_level"] for one in said} == {"warning"}
    assert len(said) == 2


async def test_a_certificate_that_cannot_be_read_is_an_error_at_the_start(here: Scene) -> None:
    """The file is named, and the port is free again."""
    (here.directory / "server.key").unlink()
    with pytest.raises(TensileError, match=r"kubelet\.tlsKeyFile: .*server\.key"):
        await here.made.open(here.topology())
    assert here.made.port == 0
    socket.create_server((HOST, here.port)).close()


async def test_without_files_it_shows_a_certificate_of_its_own_and_asks_the_upper_for_the_authority(
    here: Scene,
) -> None:
    """Which is said, with what the scheduler's configuration then needs."""
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
    """Make the TLS of a scheduler that verifies nobody."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    pair = here.callers.issue(SCHEDULER)
    (here.directory / "client.pem").write_bytes(pair.certificate + pair.key)
    tls.load_cert_chain(here.directory / "client.pem")
    return tls


async def test_nobody_is_heard_before_the_authority_is_known(here: Scene) -> None:
    """The upper does not answer: every request is rejected, and that is said."""
    here.upper.answer("read", TensileError("no"))
    with capture_logs() as said:
        await here.made.open(here.topology(kubelet="tlsCertFile: server.crt, tlsKeyFile: server.key"))
    assert [one["effect"] for one in said] == ["every request is rejected"]
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await here.ask()


async def test_others_are_preempted_while_it_is_served(here: Scene) -> None:
    """For a pod that it refused, once the scheduler has had its turn; what is wanted is forgotten when it is closed."""
    await here.made.open(here.topology())
    for name, lower in here.world.lowers.items():
        changed(here.world.upper.nodes, name, ShownLowers.shown, "")
        put(lower.place_pods, stranger("theirs", "n1", "1"))
        low = asking(f"low-{name}", "2", name)
        put(lower.upper_pods, low)
        below = PodProjector(here.world, lower).below(low)
        assert below is not None
        copy = marked(below, low["metadata"]["uid"])
        put(
            lower.pods,
            {**copy, "metadata": copy["metadata"] | {"uid": "copy"}, "spec": copy["spec"] | {"nodeName": "n1"}},
        )
    held = Held(NotFound("gone"))
    here.upper.answer("read", held)
    assert await here.names(asking("high", "3", spec={"priority": 7})) == []
    await held.began.wait()
    held.go.set()
    assert await here.names(asking("other", "3", spec={"priority": 7})) == []
    assert list(here.made._wants) == ["Pod-other"]
    await here.made.close()
    assert here.made._wants == {}
