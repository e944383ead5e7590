"""Tests of the listen addresses of the engine's servers, and of the errors if a port cannot be opened.

Clusters assign IPv4 addresses, IPv6 addresses, or both to an engine: a configured address must work with each.
"""

import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from pagekit import site_of

from bench.kit.spareports import spare_port
from tensile.engine.metrics import Metrics
from tensile.engine.status.page import PageView
from tensile.engine.status.report import StatusReport, TopologyStatus
from tensile.engine.telemetry_server import ProbeServer, TelemetryServer
from tensile.errors import TensileError
from tensile.kube.net import listening, place
from tensile.kube.tls import self_signed
from tensile.kubelet.api.server import open_port
from tensile.policy.extender.server import listening as extender_port
from tensile.policy.webhook.server import WebhookListener

V4, V6 = "127.0.0.1", "::1"
LATER = 65_000
"""A port that is never opened."""
Serve = Callable[[str, int], AbstractAsyncContextManager[int]]


def has_ipv6() -> bool:
    """Report whether this machine has an IPv6 loopback address."""
    try:
        with socket.create_server((V6, 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def reached(port: int) -> list[str]:
    """Return the loopback addresses that accept a connection; no other program uses this free port."""
    found = []
    for address in (V4, V6) if has_ipv6() else (V4,):
        try:
            socket.create_connection((address, port), timeout=20).close()
        except ConnectionRefusedError:
            continue
        found.append(address)
    return found


@asynccontextmanager
async def kubelet(bind: str, port: int) -> AsyncIterator[int]:
    """Listen as a virtual node does, and yield the port."""
    with open_port("node", bind, port) as opened:
        yield opened.getsockname()[1]


@asynccontextmanager
async def extender(bind: str, port: int) -> AsyncIterator[int]:
    """Listen for the upper scheduler."""
    with extender_port(bind, port) as opened:
        yield opened.getsockname()[1]


@asynccontextmanager
async def webhook(bind: str, port: int) -> AsyncIterator[int]:
    """Listen for the upper apiserver."""
    served = WebhookListener(self_signed("x", V4, [V4], datetime.now(UTC), timedelta(days=1)), bytes)
    await served.start(bind, port)
    yield served.port
    await served.close()


@asynccontextmanager
async def telemetry(bind: str, port: int) -> AsyncIterator[int]:
    """Listen for Prometheus."""
    served = TelemetryServer(bind, port, Metrics(), str, dict, site=site_of(NOTHING))
    await served.start()
    yield served.port
    await served.close()


NOTHING = PageView(StatusReport("", TopologyStatus()), leads=False)
SERVERS = [kubelet, extender, webhook, telemetry]
BINDS = [
    ("0.0.0.0", [V4]),
    pytest.param("::1", [V6], marks=IPV6),
    pytest.param("::", [V4, V6], marks=IPV6),
    pytest.param("0::0", [V4, V6], marks=IPV6),
]


@pytest.mark.parametrize("serve", SERVERS)
@pytest.mark.parametrize(("bind", "wanted"), BINDS)
async def test_each_server_listens_on_the_addresses_of_its_bind_setting(
    serve: Serve, bind: str, wanted: list[str]
) -> None:
    """The address :: stands for all addresses of both families, because a Service may use the pod's IPv4 address."""
    async with serve(bind, spare_port()) as port:
        assert reached(port) == wanted


@IPV6
@pytest.mark.parametrize("serve", SERVERS)
async def test_listening_on_all_addresses_fails_if_the_ipv4_port_is_in_use(serve: Serve) -> None:
    """An engine that listens on half of them would be reachable for some clients only; the error is a TensileError."""
    taken = spare_port()
    says = pytest.raises(TensileError, match=rf"{taken}.*another program (uses|listens)")
    with socket.create_server(("0.0.0.0", taken)), says:
        async with serve("::", taken):
            pass


async def test_probes_are_served_on_every_address_of_the_machine() -> None:
    """All addresses have the same port, even if any free one is requested."""
    served = ProbeServer(None, 0, str)
    await served.start()
    assert reached(served.port) == ([V4, V6] if has_ipv6() else [V4])
    await served.close()


@pytest.mark.parametrize(("bind", "port"), [("192.0.2.1", 0), pytest.param("2001:db8::1", 0, marks=IPV6)])
def test_a_failure_to_listen_has_the_errno_and_message_of_the_system(bind: str, port: int) -> None:
    """Each server selects its advice by the errno."""
    with pytest.raises(OSError, match="requested address") as refusal:
        listening(bind, port)
    assert (refusal.value.errno, refusal.value.strerror) == (errno.EADDRNOTAVAIL, "Cannot assign requested address")


def test_a_port_has_one_listener_and_is_free_as_soon_as_it_is_closed() -> None:
    """It can be opened again although the system still remembers connections to it."""
    port = spare_port()
    with listening(V4, port) as first:
        assert not first.getblocking()
        assert reached(port) == [V4]
        with pytest.raises(OSError, match="in use"):
            listening(V4, port)
    listening(V4, port).close()


@pytest.mark.parametrize(
    ("bind", "wanted"),
    [("::", "[::]:65000"), ("fd00::5", "[fd00::5]:65000"), (V4, "127.0.0.1:65000"), (None, "*:65000")],
)
def test_an_address_with_port_is_formatted_as_in_a_url(bind: str | None, wanted: str) -> None:
    """Brackets separate an IPv6 address from its port."""
    assert place(bind, LATER) == wanted
