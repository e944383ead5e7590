"""The telemetry server as Prometheus and a health check see it."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from pagekit import site_of
from structlog.testing import capture_logs

from bench.kit.spareports import spare_port
from tensile.engine.health import ROOM, ProbeServer, TelemetryServer
from tensile.engine.metrics import Metrics
from tensile.engine.status.page import PageView
from tensile.engine.status.report import StatusReport, TopologyStatus
from tensile.engine.status.site import StatusSite
from tensile.errors import TensileError


class Engine:
    """What the server asks: whether the engine is ready, and its metrics."""

    def __init__(self) -> None:
        self.missing = ""
        self.metrics = Metrics()

    def ready(self) -> str:
        """Return what is missing."""
        return self.missing

    def status(self) -> dict[str, str]:
        """Return how everything is."""
        return {"state": "Accepted"}

    def site(self) -> StatusSite:
        """Return its status page: a topology's name and what the engine waits for."""
        return site_of(PageView(StatusReport("demo", TopologyStatus(), None, self.missing), leads=True))


@pytest.fixture
def engine() -> Engine:
    """Return an engine that is ready."""
    return Engine()


@pytest.fixture
async def server(engine: Engine) -> AsyncIterator[TelemetryServer]:
    """Serve an engine's telemetry on a free port."""
    found = TelemetryServer("127.0.0.1", 0, engine.metrics, engine.ready, engine.status, site=engine.site())
    await found.start()
    yield found
    await found.close()


async def ask(server: ProbeServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Send a request, and return status, content type and body."""
    url = f"http://127.0.0.1:{server.port}{path}"
    async with asyncio.timeout(20), aiohttp.ClientSession() as session, session.request(method, url) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_health_is_that_it_answers(server: TelemetryServer, engine: Engine) -> None:
    """Whether or not the engine is ready: a restart would not bring a cluster back."""
    engine.missing = "the upper cluster does not answer"
    assert (await ask(server, "/healthz"))[::2] == (200, "ok\n")


async def test_readiness_says_what_is_missing(server: TelemetryServer, engine: Engine) -> None:
    """Asked anew each time."""
    assert (await ask(server, "/readyz"))[::2] == (200, "ok\n")
    engine.missing = "the upper cluster does not answer"
    assert (await ask(server, "/readyz"))[::2] == (503, "the upper cluster does not answer\n")
    engine.missing = ""
    assert (await ask(server, "/readyz"))[0] == 200


async def test_metrics_are_served_as_prometheus_reads_them(server: TelemetryServer, engine: Engine) -> None:
    """As they are at that moment, with the media type of the format."""
    engine.metrics.step("lower-a", "create", "Pod", "ok")
    status, media, body = await ask(server, "/metrics")
    assert (status, media) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'tensile_steps_total{cluster="lower-a",kind="Pod",result="ok",verb="create"} 1.0' in body


async def test_the_status_is_served_as_json(server: TelemetryServer) -> None:
    """As the engine tells it at that moment."""
    assert await ask(server, "/status") == (200, "application/json", '{"state":"Accepted"}')


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/x", "GET", 404),
        ("/metrics", "POST", 405),
        ("/readyz/../../etc/passwd", "GET", 404),
        ("/healthz", "HEAD", 200),
    ],
)
async def test_nothing_else_is_there(server: TelemetryServer, path: str, method: str, status: int) -> None:
    """Only these paths and those of the status page, and only to be read."""
    assert (await ask(server, path, method))[0] == status


async def test_a_port_that_is_taken_is_an_error_that_says_what_to_change(
    server: TelemetryServer, engine: Engine
) -> None:
    """Without a traceback, and the first server goes on."""
    second = TelemetryServer("127.0.0.1", server.port, engine.metrics, engine.ready, engine.status, site=engine.site())
    with pytest.raises(TensileError) as refusal:
        await second.start()
    assert str(refusal.value) == (
        f"telemetry cannot listen on 127.0.0.1:{server.port}: another program uses this port: "
        "stop it, or set telemetry.port in the topology file"
    )
    await second.close()
    assert (await ask(server, "/healthz"))[0] == 200


@pytest.mark.parametrize(("bind", "shown"), [("192.0.2.1", "192.0.2.1"), ("2001:db8::1", "[2001:db8::1]")])
async def test_an_address_that_the_machine_does_not_have_is_an_error(bind: str, shown: str, engine: Engine) -> None:
    """It names the key of the file."""
    with pytest.raises(TensileError, match=r"telemetry\.bind") as refusal:
        await TelemetryServer(bind, 0, engine.metrics, engine.ready, engine.status, site=engine.site()).start()
    assert str(refusal.value).startswith(f"telemetry cannot listen on {shown}:0: ")


async def test_closed_it_gives_its_port_back(engine: Engine) -> None:
    """Closing again, or without having started, is no error; and it can be started again."""
    server = TelemetryServer("127.0.0.1", 0, engine.metrics, engine.ready, engine.status, site=engine.site())
    await server.close()
    await server.start()
    port = server.port
    await server.close()
    await server.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=20):
        pass
    await server.start()
    assert (await ask(server, "/healthz"))[0] == 200
    await server.close()


async def test_closing_does_not_wait_for_who_stays_connected(engine: Engine) -> None:
    """Prometheus keeps its connection open between two scrapes."""
    server = TelemetryServer("127.0.0.1", 0, engine.metrics, engine.ready, engine.status, site=engine.site())
    await server.start()
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await server.close()
        await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_probes_have_a_server_of_their_own_that_shows_nothing_else(engine: Engine) -> None:
    """On every address, as a kubelet asks at the pod's; metrics and status stay where the topology has them."""
    server = ProbeServer(None, spare_port(), engine.ready)  # with none named, each address has a port of its own
    await server.start()
    assert (await ask(server, "/healthz"))[::2] == (200, "ok\n")
    engine.missing = "no topology is loaded yet"
    assert (await ask(server, "/readyz"))[::2] == (503, "no topology is loaded yet\n")
    assert [(await ask(server, path))[0] for path in ("/metrics", "/status")] == [404, 404]
    second = ProbeServer(None, server.port, engine.ready)
    with pytest.raises(TensileError) as refusal:
        await second.start()
    assert str(refusal.value) == (
        f"the probe server cannot listen on *:{server.port}: another program uses this port: "
        "stop it, or use another port for --probes"
    )
    await server.close()


@asynccontextmanager
async def idle(port: int, count: int, host: str) -> AsyncIterator[list[socket.socket]]:
    """Open so many silent connections from an address."""
    loop, made = asyncio.get_running_loop(), []
    try:
        for _ in range(count):
            one = socket.socket()
            made.append(one)
            one.setblocking(False)
            one.bind((host, 0))
            await loop.sock_connect(one, ("127.0.0.1", port))
        yield made
    finally:
        for one in made:
            one.close()


def is_open(one: socket.socket) -> bool:
    """Report whether a connection has not been closed by the other side."""
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


async def test_idle_connections_are_few_and_keep_nobody_out(server: TelemetryServer) -> None:
    """Of hundreds most are closed at once; who asks from another address is answered, again and again."""
    async with idle(server.port, 300, "127.0.0.2") as crowd, asyncio.timeout(20):
        for _ in range(3):
            assert (await ask(server, "/healthz"))[0] == 200
        assert sum(map(is_open, crowd)) <= ROOM


async def test_a_connection_that_is_kept_is_answered_beside_a_crowd(server: TelemetryServer) -> None:
    """As Prometheus keeps one: it makes room for nobody while others have more."""
    asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(asked)
        assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        async with idle(server.port, 300, "127.0.0.2"):
            assert (await ask(server, "/healthz"))[0] == 200
            writer.write(asked)
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()


async def test_a_head_has_a_bound_and_a_time(engine: Engine) -> None:
    """On both kinds of port. A browser sends the cookies of other programs too, and an idle connection stays."""
    for server in (
        TelemetryServer("127.0.0.1", 0, engine.metrics, engine.ready, engine.status, site=engine.site()),
        ProbeServer("127.0.0.1", 0, engine.ready),
    ):
        server.patience = 0.2
        await server.start()
        async with asyncio.timeout(20):
            ends = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            (reader, writer), late, large = ends
            for after in (late, large):
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nCookie: %s\r\n\r\n" % (b"x" * 8000))
                assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
                after[1].write(b"GET /healthz HTTP/1.1\r\n" + (b"A: x\r\n" * 70 if after is large else b""))
                assert b"200" not in await ended(after[0])
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
            await server.close()
            for _, one in ends:
                one.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Read until the connection ends, in whichever way."""
    with suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_requests_that_are_wrong_are_nobodys_news_and_our_defects_are_told_seldom(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody could fill a log with the former; the latter are a bug, and who asked gets a response."""

    def broken() -> dict[str, int]:
        """Fail."""
        raise ZeroDivisionError

    engine = Engine()
    server = TelemetryServer("127.0.0.1", 0, engine.metrics, engine.ready, broken, site=engine.site())
    await server.start()
    for sent in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nA" + b"a" * 9000, b"\x16\x03\x01"):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        writer.write_eof()
        assert (await ask(server, "/healthz"))[0] == 200
        writer.transport.abort()
    assert "".join(capsys.readouterr()) + caplog.text == ""
    with capture_logs() as logged:
        answers = [await ask(server, "/status") for _ in range(3)]
    assert {(status, text) for status, _, text in answers} == {(500, "internal error (bug in tensile)\n")}
    assert [(one["event"], one["path"]) for one in logged] == [("a response failed (bug, please report)", "/status")]
    await server.close()


async def test_what_costs_long_is_made_seldom() -> None:
    """Hundreds who ask at once get what the first was told: making it takes a tenth of the time at most."""
    made = []

    def slow() -> dict[str, int]:
        """Take long."""
        made.append(time.sleep(0.05))
        return {"count": len(made)}

    engine = Engine()
    server = TelemetryServer("127.0.0.1", 0, engine.metrics, engine.ready, slow, site=engine.site())
    await server.start()
    begun = time.monotonic()
    answers = [(await ask(server, "/status"))[2] for _ in range(20)]
    assert len(made) <= 1 + (time.monotonic() - begun) / 0.5
    assert answers[0] == '{"count":1}'
    await server.close()
