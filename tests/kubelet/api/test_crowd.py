"""Tests of floods of connections to a node's port: authenticated callers are served, and unknown ones are bounded."""

import asyncio
from collections.abc import AsyncIterator

import h11
import pytest
from kubelet_crowd import BEFORE_TLS, BEHIND_TLS, crowd
from kubelet_lab import NODE, PATIENCE, HttpStream, KubeletApiHarness, leak_watch, request, switching, wait_until
from kubelet_pki import Pki

from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.http import ServerExchange

ROOM = 16
LONG = ConnectionLimits(waiting=ROOM, handshake=120.0, asking=120.0, leaving=0.3)
"""The times exceed that of a test, so only the limit of waiting connections makes room."""
ONE = ("127.0.0.2",)
SEVERAL = tuple(f"127.0.0.{number}" for number in range(2, 12))
EXEC = "POST /exec/shop/web/main?output=1&input=1&command=cat"


@pytest.fixture
async def kubelet_api(pki: Pki) -> AsyncIterator[KubeletApiHarness]:
    """Serve a node with few places for waiting connections, to which the apiserver has connected before."""
    async with leak_watch(), KubeletApiHarness(pki, LONG) as laboratory:
        assert (await laboratory.ask(pki.apiserver, "GET /healthz")).status == 200
        yield laboratory


async def served(kubelet_api: KubeletApiHarness) -> bool:
    """Report whether the apiserver is served, and no more unauthenticated connections wait than there are places."""
    async with asyncio.timeout(PATIENCE):
        answer = await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")
    return answer.status == 200 and len(kubelet_api.server._limiter) <= ROOM


@pytest.mark.parametrize("kind", [*BEFORE_TLS, *BEHIND_TLS])
@pytest.mark.parametrize("hosts", [ONE, SEVERAL, ("127.0.0.1",)], ids=["one", "several", "its own"])
async def test_the_apiserver_is_served_during_every_kind_of_flood(
    kubelet_api: KubeletApiHarness, kind: str, hosts: tuple[str, ...]
) -> None:
    """It is served repeatedly, whether the flood comes from other addresses or from its own."""
    async with crowd(kubelet_api.server.port(NODE), kind, 5 * ROOM, hosts):
        assert [await served(kubelet_api) for _ in range(3)] == [True] * 3


async def test_a_new_token_holder_is_served_during_a_flood_from_another_address(kubelet_api: KubeletApiHarness) -> None:
    """The token's first request is served if its address has no flood."""
    kubelet_api.upper.tokens["good"] = {"username": "robot", "groups": ["system:authenticated"]}
    kubelet_api.upper.permit("robot", "get", "pods")
    async with crowd(kubelet_api.server.port(NODE), "idle", 5 * ROOM, ONE):
        stream = HttpStream(
            *await asyncio.open_connection(
                "127.0.0.1",
                kubelet_api.server.port(NODE),
                ssl=kubelet_api.pki.client_context(None),
                local_addr=("127.0.0.200", 0),
            )
        )
        await stream.send(request("GET /pods", "Authorization: Bearer good"))
        async with asyncio.timeout(PATIENCE):
            assert (await stream.head()).status == 200
        await stream.close()


async def test_an_open_stream_survives_every_flood(kubelet_api: KubeletApiHarness) -> None:
    """An authenticated connection is not closed to make room for others."""

    async def echo(_head: object, stream: HttpStream) -> None:
        await stream.send(switching("SPDY/3.1"))
        while data := await stream.reader.read(65536):
            await stream.send(data)

    kubelet_api.lower.script = echo
    head, stream = await kubelet_api.upgrade(kubelet_api.pki.apiserver, EXEC, "Upgrade: SPDY/3.1")
    assert head.status == 101
    for kind in ("idle", "silent after TLS"):
        async with crowd(kubelet_api.server.port(NODE), kind, 5 * ROOM, SEVERAL):
            assert await served(kubelet_api)
            await stream.send(b"ping")
            async with asyncio.timeout(PATIENCE):
                assert await stream.reader.readexactly(4) == b"ping"
    await stream.close()


async def test_a_flood_holds_at_most_the_limit_of_waiting_connections(kubelet_api: KubeletApiHarness) -> None:
    """Its other connections are closed, and another node's port does not add places."""
    await kubelet_api.serve("virtual-b")
    async with (
        crowd(kubelet_api.server.port(NODE), "idle", 5 * ROOM, ONE) as first,
        crowd(kubelet_api.server.port("virtual-b"), "idle", 5 * ROOM, ONE) as second,
    ):
        await wait_until(lambda: first() + second() <= ROOM)
        assert len(kubelet_api.server._limiter) <= ROOM
        sites = [kubelet_api.server._listeners[node].node_server for node in (NODE, "virtual-b")]
        assert sum(len(site.connections) for site in sites) <= ROOM


async def test_a_head_without_a_client_certificate_has_a_shorter_limit(kubelet_api: KubeletApiHarness) -> None:
    """A token needs no long head; a long command comes from the apiserver, which sends a certificate."""
    begin = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * (LONG.unknown + 100)
    stream = await kubelet_api.connect(None)
    await stream.send(begin)
    assert (await stream.head()).status == 431
    await stream.close()
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(begin)
    await stream.send(b"x\r\n\r\n")
    assert (await stream.head()).status == 200
    await stream.close()


async def test_a_users_concurrent_requests_are_limited(pki: Pki) -> None:
    """A user who requests long answers and does not read them gets 429, and other users are served."""
    limits = LONG._replace(streams=3)
    async with leak_watch(), KubeletApiHarness(pki, limits) as kubelet_api:
        kubelet_api.pods.targets |= {
            ("shop", f"pod-{n:0240}"): kubelet_api.pods.targets["shop", "web"] for n in range(60_000)
        }
        kubelet_api.upper.permit("nobody-special", "get", "pods")
        kubelet_api.upper.permit("nobody-special", "get", "proxy")
        slow = [await kubelet_api.connect(pki.powerless) for _ in range(3)]
        for stream in slow:
            stream.stop_reading()
            await stream.send(request("GET /pods"))
        await wait_until(lambda: kubelet_api.server._service._requests._open["nobody-special"] == 3)
        refused = await kubelet_api.ask(pki.powerless, "GET /healthz")
        assert (refused.status, b"3 requests in progress" in refused.body) == (429, True)
        assert (await kubelet_api.ask(pki.apiserver, "GET /healthz")).status == 200
        for stream in slow:
            stream.writer.transport.abort()


async def test_an_error_for_invalid_http_keeps_no_frame_of_the_parser(kubelet_api: KubeletApiHarness) -> None:
    """Such a frame would keep all received data until garbage collection."""

    class Garbage:
        async def read(self) -> bytes:
            return b"\x00" * 100

    with pytest.raises(h11.RemoteProtocolError) as refusal:
        await ServerExchange(Garbage(), 1000).request()
    frames = [frame.path for frame in refusal.traceback]
    assert not [path for path in frames if "h11" in str(path)]
