"""Tests of the telemetry server and the probe server as Prometheus and health checks use them."""

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
from tensile.engine.metrics import Metrics
from tensile.engine.status.page import PageView
from tensile.engine.status.report import StatusReport, TopologyStatus
from tensile.engine.status.site import StatusSite
from tensile.engine.telemetry_server import MAX_CONNECTIONS, ProbeServer, TelemetryServer
from tensile.errors import TensileError


class Engine:
    """An engine with the state that the servers need: its readiness, its status and its metrics."""

    def __init__(self) -> None:
        self.missing = ""
        self.metrics = Metrics()

    def ready(self) -> str:
        """Return what is missing."""
        return self.missing

    def status(self) -> dict[str, str]:
        """Return the status."""
        return {"state": "Accepted"}

    def site(self) -> StatusSite:
        """Return its status page with a topology's name and the reason why the engine is not ready."""
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


async def test_healthz_succeeds_although_the_engine_is_not_ready(server: TelemetryServer, engine: Engine) -> None:
    """A restart would not make an unreachable cluster available again."""
    engine.missing = "the upper cluster does not answer"
    assert (await ask(server, "/healthz"))[::2] == (200, "ok\n")


async def test_readyz_returns_what_is_missing(server: TelemetryServer, engine: Engine) -> None:
    """The readiness is determined again for each request."""
    assert (await ask(server, "/readyz"))[::2] == (200, "ok\n")
    engine.missing = "the upper cluster does not answer"
    assert (await ask(server, "/readyz"))[::2] == (503, "the upper cluster does not answer\n")
    engine.missing = ""
    assert (await ask(server, "/readyz"))[0] == 200


async def test_metrics_are_served_in_the_prometheus_format(server: TelemetryServer, engine: Engine) -> None:
    """The response has the present values and the media type of the format."""
    engine.metrics.step("lower-a", "create", "Pod", "ok")
    status, media, body = await ask(server, "/metrics")
    assert (status, media) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'tensile_steps_total{cluster="lower-a",kind="Pod",result="ok",verb="create"} 1.0' in body


async def test_the_status_is_served_as_json(server: TelemetryServer) -> None:
    """The body is the engine's status at that moment."""
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
async def test_only_known_paths_and_read_methods_are_served(
    server: TelemetryServer, path: str, method: str, status: int
) -> None:
    """Other paths return 404, and other methods 405."""
    assert (await ask(server, path, method))[0] == status


async def test_a_port_in_use_is_an_error_with_the_setting_to_change(server: TelemetryServer, engine: Engine) -> None:
    """The error is a TensileError, and the first server continues."""
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
    """The message names telemetry.bind."""
    with pytest.raises(TensileError, match=r"telemetry\.bind") as refusal:
        await TelemetryServer(bind, 0, engine.metrics, engine.ready, engine.status, site=engine.site()).start()
    assert str(refusal.value).startswith(f"telemetry cannot listen on {shown}:0: ")


async def test_closing_the_server_releases_its_port(engine: Engine) -> None:
    """Closing it twice or before its start is no error, and it can be started again."""
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


async def test_closing_the_server_does_not_wait_for_idle_connections(engine: Engine) -> None:
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


async def test_the_probe_server_only_serves_probes_on_every_address(engine: Engine) -> None:
    """The kubelet probes the pod's address, while metrics and status are served on the address of the topology."""
    server = ProbeServer(None, spare_port(), engine.ready)  # with port 0, each address would have a different port
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
    """Open a number of silent connections from an address."""
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


async def test_idle_connections_are_limited_and_do_not_block_other_clients(server: TelemetryServer) -> None:
    """Most of hundreds are closed at once, and a client with another address gets responses repeatedly."""
    async with idle(server.port, 300, "127.0.0.2") as crowd, asyncio.timeout(20):
        for _ in range(3):
            assert (await ask(server, "/healthz"))[0] == 200
        assert sum(map(is_open, crowd)) <= MAX_CONNECTIONS


async def test_a_kept_connection_is_served_although_another_client_opens_hundreds(server: TelemetryServer) -> None:
    """Prometheus keeps one: it is not closed while another address has more connections."""
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request)
        assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        async with idle(server.port, 300, "127.0.0.2"):
            assert (await ask(server, "/healthz"))[0] == 200
            writer.write(request)
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()


async def test_the_head_of_a_request_has_a_size_limit_and_a_timeout(engine: Engine) -> None:
    """Both servers accept the large cookies that browsers send, and idle connections stay open."""
    for server in (
        TelemetryServer("127.0.0.1", 0, engine.metrics, engine.ready, engine.status, site=engine.site()),
        ProbeServer("127.0.0.1", 0, engine.ready),
    ):
        server.head_timeout = 0.2
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
    """Read until the connection ends, by a close or by an error."""
    with suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_invalid_requests_are_not_logged_and_internal_errors_are_logged_rarely(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Any client could fill the log with invalid requests; an internal error is a bug, and its client gets a 500."""

    def broken() -> dict[str, int]:
        """Raise ZeroDivisionError."""
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


async def test_a_slow_response_is_cached_for_further_requests() -> None:
    """Its computation uses a tenth of the time at most, however many clients send requests."""
    made = []

    def slow() -> dict[str, int]:
        """Return the number of calls after 50 milliseconds."""
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
