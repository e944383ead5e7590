"""The address of a server, as a kubeconfig writes it -> host, port and path, or a refusal that says why.

An address decides who is shown the credential, and readers of URLs disagree about odd ones: what one takes for a user
name is the host to another. So only what all read alike is an address here. It is not repeated in a refusal, because a
password may stand in it.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from tensile.errors import AccessError

LONGEST = 2048
HIGHEST_PORT = 65535
_SCHEME = "https://"
_ADDRESS = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/[A-Za-z0-9._~-]+)*)/?"
)
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_LONGEST_NAME = 253
_FORM = "write https://HOST:PORT"


class Address(NamedTuple):
    """Where an apiserver is: `path` is what stands before /api, "" as a rule."""

    host: str
    port: int
    path: str


def read_server(server: str, where: str) -> Address:
    """Take a server's address apart; `where` says in the AccessError where it stands."""
    _check_form(server, where)
    found = _ADDRESS.fullmatch(server, len(_SCHEME))
    if found is None:
        raise AccessError(f"{where}: server is no plain address", _FORM)
    port = int(found["port"] or 443)
    if not 0 < port <= HIGHEST_PORT:
        raise AccessError(f"{where}: server has port {port}", f"give one from 1 to {HIGHEST_PORT}")
    if any(part in (".", "..") for part in found["path"].split("/")):
        raise AccessError(f"{where}: server has a path with dots for a step", "write the path that they lead to")
    return Address(_host(found["six"] or "", found["name"] or "", where), port, found["path"])


def check_server_name(name: str, where: str) -> None:
    """Raise AccessError when this is no name that a certificate can have: a DNS name or an IP address."""
    if name and not (_is_name(name) or _parsed(name)):
        raise AccessError(
            f"{where}: tls-server-name is neither a DNS name nor an IP address", "give one of the server certificate's"
        )


def _check_form(server: str, where: str) -> None:
    """Name the mistakes, and the tricks, that have a name."""
    if not server:
        raise AccessError(f"{where}: has no server", _FORM)
    if len(server) > LONGEST:
        raise AccessError(f"{where}: server is longer than {LONGEST} characters", _FORM)
    if not server.startswith(_SCHEME):
        raise AccessError(f"{where}: server is refused", f"it must begin with {_SCHEME}")
    if "@" in server:
        raise AccessError(f"{where}: server is refused: it has a user name or password in it", _FORM)
    if "%" in server:
        raise AccessError(f"{where}: server is refused: it has an escape or an IPv6 zone (%) in it", _FORM)


def _host(six: str, name: str, where: str) -> str:
    """Check the host: an IP address of a server, or a DNS name."""
    address = _parsed(six or name)
    if address is not None:
        _check_reach(address, where)
    elif six or not _is_name(name):
        raise AccessError(f"{where}: server has no host that is a DNS name or an IP address", _FORM)
    return six or name


def _is_name(name: str) -> bool:
    """Tell a DNS name; one that ends in a number is an address in a spelling that only some programs know."""
    labels = name.removesuffix(".").split(".")
    return len(name) <= _LONGEST_NAME and all(map(_LABEL.fullmatch, labels)) and not _NUMBER.fullmatch(labels[-1])


def _parsed(host: str) -> IPv4Address | IPv6Address | None:
    """Give an IP address, None for what is none."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _check_reach(address: IPv4Address | IPv6Address, where: str) -> None:
    """Refuse addresses at which clouds tell their machines secrets, or nobody is."""
    inner = getattr(address, "ipv4_mapped", None) or address
    if inner.is_link_local or inner.is_multicast or inner.is_unspecified:
        raise AccessError(
            f"{where}: server is refused: a link-local, multicast or unspecified address",
            "give the address at which the cluster is reached",
        )
