"""Connections to the host that a kubeconfig names, after a look at where that name leads.

Whoever may write a name may have it lead anywhere, and elsewhere with each question. So what it leads to is looked at
here, and that very address is connected to.

Of several addresses the one that answered last comes first: a dead one then costs a moment once, and not with each
connection of a burst.
"""

import asyncio
import socket
from ipaddress import ip_address
from typing import Any, NamedTuple

from aiohappyeyeballs import start_connection

from tensile.kube.address import is_no_server
from tensile.kube.aio import aiohttp

STAGGER = 0.25
"""Seconds after which the next address is tried; aiohttp, which carries the streams, waits for as long."""


_MOST_KNOWN = 1_000
_answered: dict[tuple[str, int], str] = {}
"""The address that answered last, by host and port: nothing rests on it but the order in which addresses are tried."""


class Misled(OSError):
    """A name leads to an address at which there is no server to be called; `reason` says so."""

    reason = "its name leads to a link-local, multicast, unspecified or cloud metadata address"

    def __init__(self) -> None:
        super().__init__(self.reason)


class _Place(NamedTuple):
    """An address that a name leads to, as the system has it."""

    family: int
    sort: int
    protocol: int
    where: tuple[Any, ...]


async def connected(host: str, port: int) -> socket.socket:
    """Connect to a host by name or address; gives a socket that does not block, to be closed by the caller.

    Of several addresses the next is tried beside one that has not answered after `STAGGER` seconds (RFC 8305): a dead
    one costs no more than that, and only the first time. Raises OSError, Misled for a name that leads to any address of
    the wrong sort.
    """
    places = await _places(host, port)
    if not places:
        raise OSError(f"{host} has no address")
    found = [(place.family, place.sort, place.protocol, "", place.where) for place in places]
    made = await start_connection(found, happy_eyeballs_delay=STAGGER, interleave=1)
    if len(places) > 1:
        _remember(host, port, made.getpeername()[0])
    return made


def _remember(host: str, port: int, address: str) -> None:
    """Have an address come first from now on."""
    if len(_answered) >= _MOST_KNOWN:
        _answered.clear()
    _answered[host, port] = address


class Resolver(aiohttp.abc.AbstractResolver):
    """Finds the addresses of a name for aiohttp, and refuses the same."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[aiohttp.abc.ResolveResult]:
        """Return the addresses of a name; raises OSError, Misled among it."""
        return [
            {
                "hostname": host,
                "host": place.where[0],
                "port": port,
                "family": place.family,
                "proto": place.protocol,
                "flags": socket.AI_NUMERICHOST,
            }
            for place in await _places(host, port, family)
        ]

    async def close(self) -> None:
        """Hold nothing."""


async def _places(host: str, port: int, family: int = socket.AF_UNSPEC) -> list[_Place]:
    """Return the addresses that a host has, the one that answered last first.

    Raises OSError where it has none, or one of the wrong sort.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    places = [_Place(family, sort, protocol, where) for family, sort, protocol, _, where in found]
    if any(is_no_server(ip_address(place.where[0].partition("%")[0])) for place in places):
        raise Misled
    known = _answered.get((host, port))
    return sorted(places, key=lambda place: place.where[0] != known)
