"""Crowds before the port of a node: those who are known get through at once, and what strangers hold is bounded."""

import asyncio
from collections.abc import AsyncIterator

import h11
import pytest
from kubelet_crowd import BEFORE_TLS, BEHIND_TLS, crowd
from kubelet_lab import NODE, PATIENCE, Lab, Stream, leak_watch, request, switching, until
from kubelet_pki import Pki

from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.http import ServerExchange

ROOM = 16
LONG = ConnectionLimits(waiting=ROOM, handshake=120.0, asking=120.0, leaving=0.3)
"""Whoever is waited for is waited for longer than a test lasts: only the door makes room."""
ONE = ("127.0.0.2",)
SEVERAL = tuple(f"127.0.0.{number}" for number in range(2, 12))
EXEC = "POST /exec/shop/web/main?output=1&input=1&command=cat"


@pytest.fixture
async def lab(pki: Pki) -> AsyncIterator[Lab]:
    """Serve a node with little room before it; the apiserver has been let in before."""
    async with leak_watch(), Lab(pki, LONG) as laboratory:
        assert (await laboratory.ask(pki.apiserver, "GET /healthz")).status == 200
        yield laboratory


async def served(lab: Lab) -> bool:
    """Report whether the apiserver is served, and no more strangers are let wait than there is room for."""
    async with asyncio.timeout(PATIENCE):
        answer = await lab.ask(lab.pki.apiserver, "GET /healthz")
    return answer.status == 200 and len(lab.server._door) <= ROOM


@pytest.mark.parametrize("kind", [*BEFORE_TLS, *BEHIND_TLS])
@pytest.mark.parametrize("hosts", [ONE, SEVERAL, ("127.0.0.1",)], ids=["one", "several", "its own"])
async def test_the_apiserver_gets_through_every_crowd(lab: Lab, kind: str, hosts: tuple[str, ...]) -> None:
    """Whatever keeps us waiting, from other addresses or the apiserver's own: it is in, and in again."""
    async with crowd(lab.server.port(NODE), kind, 5 * ROOM, hosts):
        assert [await served(lab) for _ in range(3)] == [True] * 3


async def test_a_stranger_who_knows_what_it_wants_gets_through(lab: Lab) -> None:
    """A token's holder that comes for the first time, from an address with no crowd."""
    lab.upper.tokens["good"] = {"username": "robot", "groups": ["system:authenticated"]}
    lab.upper.permit("robot", "get", "pods")
    async with crowd(lab.server.port(NODE), "idle", 5 * ROOM, ONE):
        stream = Stream(
            *await asyncio.open_connection(
                "127.0.0.1", lab.server.port(NODE), ssl=lab.pki.client_context(None), local_addr=("127.0.0.200", 0)
            )
        )
        await stream.send(request("GET /pods", "Authorization: Bearer good"))
        async with asyncio.timeout(PATIENCE):
            assert (await stream.head()).status == 200
        await stream.close()


async def test_a_stream_outlives_every_crowd(lab: Lab) -> None:
    """Who has been let in makes room for nobody."""

    async def echo(_head: object, stream: Stream) -> None:
        await stream.send(switching("SPDY/3.1"))
        while data := await stream.reader.read(65536):
            await stream.send(data)

    lab.lower.script = echo
    head, stream = await lab.upgrade(lab.pki.apiserver, EXEC, "Upgrade: SPDY/3.1")
    assert head.status == 101
    for kind in ("idle", "silent after TLS"):
        async with crowd(lab.server.port(NODE), kind, 5 * ROOM, SEVERAL):
            assert await served(lab)
            await stream.send(b"ping")
            async with asyncio.timeout(PATIENCE):
                assert await stream.reader.readexactly(4) == b"ping"
    await stream.close()


async def test_a_crowd_holds_no_more_than_there_is_room_for(lab: Lab) -> None:
    """The rest of its connections is closed; on another node's port it finds no room of its own."""
    await lab.serve("virtual-b")
    async with (
        crowd(lab.server.port(NODE), "idle", 5 * ROOM, ONE) as first,
        crowd(lab.server.port("virtual-b"), "idle", 5 * ROOM, ONE) as second,
    ):
        await until(lambda: first() + second() <= ROOM)
        assert len(lab.server._door) <= ROOM
        sites = [lab.server._listeners[node].site for node in (NODE, "virtual-b")]
        assert sum(len(site.connections) for site in sites) <= ROOM


async def test_without_a_certificate_a_head_is_short(lab: Lab) -> None:
    """A token needs no more; a long command comes through the apiserver, which shows a certificate."""
    begin = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * (LONG.unknown + 100)
    stream = await lab.connect(None)
    await stream.send(begin)
    assert (await stream.head()).status == 431
    await stream.close()
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(begin)
    await stream.send(b"x\r\n\r\n")
    assert (await stream.head()).status == 200
    await stream.close()


async def test_a_user_has_so_many_requests_under_way(pki: Pki) -> None:
    """One who asks for long answers and reads none of them runs into that, and others do not."""
    limits = LONG._replace(streams=3)
    async with leak_watch(), Lab(pki, limits) as lab:
        lab.pods.targets |= {("shop", f"pod-{n:0240}"): lab.pods.targets["shop", "web"] for n in range(60_000)}
        lab.upper.permit("nobody-special", "get", "pods")
        lab.upper.permit("nobody-special", "get", "proxy")
        slow = [await lab.connect(pki.powerless) for _ in range(3)]
        for stream in slow:
            stream.stop_reading()
            await stream.send(request("GET /pods"))
        await until(lambda: lab.server._service._requests._open["nobody-special"] == 3)
        refused = await lab.ask(pki.powerless, "GET /healthz")
        assert (refused.status, b"3 requests in progress" in refused.body) == (429, True)
        assert (await lab.ask(pki.apiserver, "GET /healthz")).status == 200
        for stream in slow:
            stream.writer.transport.abort()


async def test_what_is_no_http_leaves_nothing_behind(lab: Lab) -> None:
    """Its error holds no frame of the parser, which would keep all that was received until the collector comes."""

    class Garbage:
        async def read(self) -> bytes:
            return b"\x00" * 100

    with pytest.raises(h11.RemoteProtocolError) as refusal:
        await ServerExchange(Garbage(), 1000).request()
    frames = [frame.path for frame in refusal.traceback]
    assert not [path for path in frames if "h11" in str(path)]
