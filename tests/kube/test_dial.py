"""Tests of connections to hosts: names are resolved and checked at each connection, and some addresses are refused."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from ipaddress import ip_address
from typing import Any

import pytest
import uvloop

from tensile.errors import AccessError
from tensile.kube.dial import STAGGER, NotAServerAddress, Resolver, connected, is_refused_address, read_server
from tensile.kube.pools import CONNECT_SECONDS

NO_SERVER = [
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "0.0.0.0",
    "224.0.0.1",
    "::",
    "fe80::1",
    "ff02::1",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::169.254.169.254",
    "::ffff:0:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::100.100.100.200",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2002:6464:64c8::",
    "2001:0:a9fe:a9fe::1",
    "2001::5601:5601",
]
SERVERS = [
    "127.0.0.1",
    "::1",
    "::ffff:127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.100",
    "192.0.2.1",
    "203.0.113.7",
    "fd00::1",
    "fd12:3456::1",
    "2001:db8::1",
    "2a00:1450::1",
    "64:ff9b::c000:201",
    "2002:c000:201::1",
]
WRITTEN_OTHERWISE = [
    "2852039166",
    "0xa9fea9fe",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.16689662",
    "169.254.169.254.",
    "[::ffff:169.254.169.254]",
    "[::ffff:A9FE:A9FE]",
    "[0:0:0:0:0:ffff:a9fe:a9fe]",
    "[fd00:ec2:0:0::254]",
    "[FD00:0EC2::254]",
    "[64:FF9B::A9FE:A9FE]",
]


@pytest.mark.parametrize("address", NO_SERVER)
def test_link_local_and_cloud_metadata_addresses_are_refused(address: str) -> None:
    """This includes multicast and unspecified addresses, and IPv6 addresses that embed a refused IPv4 address."""
    assert is_refused_address(ip_address(address))
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(AccessError, match="link-local, multicast, unspecified or cloud metadata"):
        read_server(f"https://{host}:443", "f")


@pytest.mark.parametrize("address", SERVERS)
def test_private_loopback_and_public_addresses_are_accepted(address: str) -> None:
    """IPv6 addresses that embed an accepted IPv4 address are accepted too."""
    assert not is_refused_address(ip_address(address))
    host = f"[{address}]" if ":" in address else address
    assert read_server(f"https://{host}:443", "f").host == address


@pytest.mark.parametrize("host", WRITTEN_OTHERWISE)
def test_other_spellings_of_refused_addresses_are_refused(host: str) -> None:
    """Numbers that only some programs parse as an address are no valid host names either."""
    with pytest.raises(AccessError):
        read_server(f"https://{host}/", "f")


def leading(
    base: type[asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop, **names: list[str]
) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a factory of event loops in which these names resolve to these addresses."""

    async def getaddrinfo(_self: object, host: Any, port: Any, **_asked: Any) -> Any:
        """Resolve a name at each call; an address resolves to itself."""
        found = []
        for one in names.get(host, [host]):
            family = socket.AF_INET6 if ":" in one else socket.AF_INET
            where = (one, port, 0, 0) if ":" in one else (one, port)
            found.append((family, socket.SOCK_STREAM, 6, "", where))
        return found

    return type("Leading", (base,), {"getaddrinfo": getaddrinfo})


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, list[str]]]:
    """Listen on loopback, and return the port and the list of the addresses at which clients connected."""
    came: list[str] = []

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Record a connection."""
        came.append(writer.get_extra_info("sockname")[0])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], came
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "0.0.0.0"])
@pytest.mark.parametrize("beside", [[], ["127.0.0.1"]], ids=["alone", "with a valid address"])
def test_a_name_that_resolves_to_a_refused_address_is_refused(address: str, beside: list[str]) -> None:
    """No connection is opened, not even to a valid address of the same name; aiohttp's resolver refuses it too."""

    async def try_() -> None:
        """Resolve and connect in both ways."""
        async with listening() as (port, came):
            with pytest.raises(NotAServerAddress, match="cloud metadata"):
                await connected("metadata", port)
            with pytest.raises(NotAServerAddress):
                await Resolver().resolve("metadata", port)
            assert came == []

    with asyncio.Runner(loop_factory=leading(metadata=[*beside, address])) as runner:
        runner.run(try_())


@pytest.mark.parametrize("base", [asyncio.SelectorEventLoop, uvloop.Loop], ids=["asyncio", "uvloop"])
def test_the_next_address_is_tried_in_parallel_if_an_address_does_not_respond(
    base: type[asyncio.AbstractEventLoop],
) -> None:
    """This applies to all calls and streams to a cluster.

    bench.speed.deadaddress measures how long it takes on an idle machine.
    """

    async def try_() -> None:
        """Connect to a name whose first address neither accepts nor refuses connections."""
        async with listening() as (port, _):
            with silent("127.0.0.9", port):
                begin = time.monotonic()
                with await connected("some", port) as made:
                    assert made.getpeername()[0] == "127.0.0.1"
                assert STAGGER <= time.monotonic() - begin < CONNECT_SECONDS / 2

    with asyncio.Runner(loop_factory=leading(base, some=["127.0.0.9", "127.0.0.1"])) as runner:
        runner.run(try_())


@contextmanager
def silent(address: str, port: int) -> Iterator[None]:
    """Open a listener with a full queue, so that the system does not respond to further connections."""
    with socket.socket() as full, ExitStack() as callers:
        full.bind((address, port))
        full.listen(0)
        for _ in range(4):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex((address, port))
        yield


def test_the_address_that_responded_last_is_returned_first_by_the_resolver() -> None:
    """This is per port, and an address that the name no longer resolves to is left out."""
    lead = ["127.0.0.3", "127.0.0.1"]

    async def hosts(port: int) -> list[str]:
        """Resolve the name as aiohttp does."""
        return [one["host"] for one in await Resolver().resolve("some", port)]

    async def try_() -> None:
        """Connect, and check the order of the addresses."""
        async with listening() as (port, _):
            assert await hosts(port) == ["127.0.0.3", "127.0.0.1"]
            (await connected("some", port)).close()
            assert await hosts(port) == ["127.0.0.1", "127.0.0.3"]
            assert await hosts(port + 1) == ["127.0.0.3", "127.0.0.1"]
            lead[1] = "127.0.0.4"
            assert await hosts(port) == ["127.0.0.3", "127.0.0.4"]

    with asyncio.Runner(loop_factory=leading(some=lead)) as runner:
        runner.run(try_())


def test_a_connection_uses_the_first_address_that_accepts_it() -> None:
    """If no address accepts it or there is none, an OSError is raised."""

    async def try_() -> None:
        """Connect to each name."""
        async with listening() as (port, _):
            with await connected("some", port) as made:
                assert made.getpeername()[0] == "127.0.0.1"
            with pytest.raises(ConnectionRefusedError):
                await connected("none", port)
            with pytest.raises(OSError, match="has no address"):
                await connected("nowhere", port)

    names = {"some": ["127.0.0.3", "127.0.0.1"], "none": ["127.0.0.3", "127.0.0.4"], "nowhere": []}
    with asyncio.Runner(loop_factory=leading(**names)) as runner:
        runner.run(try_())
