"""Server addresses of kubeconfigs: their syntax, the addresses that are refused, and connections to them.

The address decides who receives the credential, and URL parsers disagree about odd forms: what one takes for a user
name is the host for another. So only forms that all parsers read alike are accepted. A refusal does not repeat the
address, as it may contain a password. Cloud metadata addresses, which reveal a machine's secrets, are refused in every
spelling.

Whoever controls a DNS name can point it anywhere, and elsewhere for each query. So the name is resolved and checked
here, and the connection goes to the checked address. Of several addresses, the one that worked last is tried first, so
that a dead one costs time once and not for each connection of a burst.
"""

import asyncio
import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple

from aiohappyeyeballs import AddrInfoType, start_connection

from tensile.errors import AccessError
from tensile.kube.aio import aiohttp

LONGEST = 2048
HIGHEST_PORT = 65535
STAGGER = 0.25
"""Seconds before the next address is tried. aiohttp, which carries the streams, waits as long."""
_SCHEME = "https://"
_ADDRESS = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/[A-Za-z0-9._~-]+)*)/?"
)
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_LONGEST_NAME = 253
_METADATA = tuple(
    map(
        ip_network,
        (
            "100.100.100.200/32",  # Alibaba Cloud
            "168.63.129.16/32",  # Azure
            "192.0.0.192/32",  # Oracle Cloud
            "fd00:ec2::/32",  # AWS
            "fd00:c1::a9fe:a9fe/128",  # Oracle Cloud
            "fd00:42::42/128",  # Scaleway
            "fd20:ce::254/128",  # Google Cloud
        ),
    )
)
"""Cloud metadata services outside of the link-local addresses."""
_TRANSLATED = tuple(map(ip_network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")))
"""IPv6 networks whose last four bytes are an IPv4 address to which packets are translated."""
_OF_IPV4 = (1 << 32) - 1
_FORM = "write https://HOST:PORT"

_MOST_KNOWN = 1_000
_last_working: dict[tuple[str, int], str] = {}
"""The address that worked last, by host and port. It only affects the order in which addresses are tried."""


class ServerAddress(NamedTuple):
    """The address of an apiserver. `path` is what precedes /api, usually ""."""

    host: str
    port: int
    path: str


class NotAServerAddress(OSError):
    """A name resolves to an address that is refused. `reason` says so."""

    reason = "its name resolves to a link-local, multicast, unspecified or cloud metadata address"

    def __init__(self) -> None:
        super().__init__(self.reason)


def read_server(server: str, where: str) -> ServerAddress:
    """Parse a server address. `where` names its place in the AccessError."""
    _check_form(server, where)
    found = _ADDRESS.fullmatch(server, len(_SCHEME))
    if found is None:
        raise AccessError(f"{where}: server is not a valid address", _FORM)
    port = int(found["port"] or 443)
    if not 0 < port <= HIGHEST_PORT:
        raise AccessError(f"{where}: server has port {port}", f"give one from 1 to {HIGHEST_PORT}")
    if any(part in (".", "..") for part in found["path"].split("/")):
        raise AccessError(f"{where}: the path of server contains . or ..", "write the path without them")
    return ServerAddress(_host(found["six"] or "", found["name"] or "", where), port, found["path"])


def check_server_name(name: str, where: str) -> None:
    """Raise AccessError for a name that no certificate can have: neither a DNS name nor an IP address."""
    if name and not (_is_name(name) or _parsed(name)):
        raise AccessError(
            f"{where}: tls-server-name is neither a DNS name nor an IP address",
            "use a name from the server's certificate",
        )


def _check_form(server: str, where: str) -> None:
    """Raise AccessError for known mistakes and unsafe forms."""
    if not server:
        raise AccessError(f"{where}: has no server", _FORM)
    if len(server) > LONGEST:
        raise AccessError(f"{where}: server is longer than {LONGEST} characters", _FORM)
    if not server.startswith(_SCHEME):
        raise AccessError(f"{where}: server is refused", f"it must begin with {_SCHEME}")
    if "@" in server:
        raise AccessError(f"{where}: server is refused: it contains a user name or password", _FORM)
    if "%" in server:
        raise AccessError(f"{where}: server is refused: it contains an escape or an IPv6 zone (%)", _FORM)


def _host(six: str, name: str, where: str) -> str:
    """Return the host after a check: an IP address of a server, or a DNS name."""
    address = _parsed(six or name)
    if address is not None:
        _check_reach(address, where)
    elif six or not _is_name(name):
        raise AccessError(f"{where}: the host of server is neither a DNS name nor an IP address", _FORM)
    return six or name


def _is_name(name: str) -> bool:
    """Report whether it is a DNS name. A name that ends in a number is an IP address to some programs."""
    labels = name.removesuffix(".").split(".")
    return len(name) <= _LONGEST_NAME and all(map(_LABEL.fullmatch, labels)) and not _NUMBER.fullmatch(labels[-1])


def _parsed(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address, None if it is none."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _check_reach(address: IPv4Address | IPv6Address, where: str) -> None:
    """Raise AccessError for cloud metadata addresses and addresses without a server."""
    if is_refused_address(address):
        raise AccessError(
            f"{where}: server is refused: it is a link-local, multicast, unspecified or cloud metadata address",
            "use the address of the apiserver",
        )


def is_refused_address(address: IPv4Address | IPv6Address) -> bool:
    """Report whether connections to an address, or to an IPv4 address embedded in it, are refused."""
    return any(
        one.is_link_local
        or one.is_multicast
        or one.is_unspecified
        or any(one.version == net.version and one in net for net in _METADATA)
        for one in (address, *_embedded_ipv4(address))
    )


def _embedded_ipv4(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses that are embedded in an IPv6 address."""
    if isinstance(address, IPv4Address):
        return []
    found = [one for one in (address.sixtofour, *(address.teredo or ())) if one is not None]
    if any(address in net for net in _TRANSLATED):
        found.append(IPv4Address(int(address) & _OF_IPV4))
    return found


async def connected(host: str, port: int) -> socket.socket:
    """Connect to a host by name or address. Return a non-blocking socket, which the caller closes.

    If an address does not respond within `STAGGER` seconds, the next one is tried in parallel (RFC 8305). So a dead
    address costs no more than that, and only the first time. Raises OSError, and NotAServerAddress if any address of
    the name is refused.
    """
    addresses = await _addresses(host, port)
    if not addresses:
        raise OSError(f"{host} has no address")
    connection = await start_connection(addresses, happy_eyeballs_delay=STAGGER, interleave=1)
    if len(addresses) > 1:
        if len(_last_working) >= _MOST_KNOWN:
            _last_working.clear()
        _last_working[host, port] = connection.getpeername()[0]
    return connection


class Resolver(aiohttp.abc.AbstractResolver):
    """Resolves names for aiohttp, with the same refusals."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[aiohttp.abc.ResolveResult]:
        """Return the addresses of a name. Raises OSError, including NotAServerAddress."""
        return [
            {
                "hostname": host,
                "host": where[0],
                "port": port,
                "family": found,
                "proto": protocol,
                "flags": socket.AI_NUMERICHOST,
            }
            for found, _, protocol, _, where in await _addresses(host, port, family)
        ]

    async def close(self) -> None:
        """Do nothing, as the resolver holds no resources."""


async def _addresses(host: str, port: int, family: int = socket.AF_UNSPEC) -> list[AddrInfoType]:
    """Return the addresses of a host as getaddrinfo does, the one that worked last first.

    Raises OSError if it has none, or one that is refused.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    if any(is_refused_address(ip_address(str(where[0]).partition("%")[0])) for *_, where in found):
        raise NotAServerAddress
    known = _last_working.get((host, port))
    return sorted(found, key=lambda one: one[4][0] != known)
