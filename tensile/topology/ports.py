"""Which ports a topology takes, and which of them two would share.

Every virtual node has a port of its own, by default the next after that of the lower before it, so a port that looks
free in the file may be a node's. One machine serves them all: a second listener would fail to start, late and one by
one.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tensile.topology.models import TopologyFile
from tensile.topology.written import Fault, get, inherited, lowers
from tensile.yamltree import Path, show_path

_LAST = 65535
_UNPRIVILEGED = 1024
"""The first port at which anybody may listen, where a kernel is not told otherwise."""
_BASE: Path = ("kubelet", "port")


class _Claim(NamedTuple):
    """A port that something listens on: whose it is, where to say so, and whether the port is written there."""

    port: int
    path: Path
    who: str
    written: bool


def _is_port(value: Any) -> bool:
    """Tell a port from what is another mistake already."""
    return type(value) is int and 1 <= value <= _LAST


def _claim(data: Any, path: Path) -> Iterator[_Claim]:
    """Give the port of a server, as written or by default; none when what is written is no port."""
    written = get(data, path)
    port = TopologyFile.model_fields[str(path[0])].default.port if written is None else written
    if _is_port(port):
        yield _Claim(port, path, show_path(path), written is not None)


def _servers(data: Any) -> Iterator[_Claim]:
    """Give the ports of the servers that run beside the nodes."""
    yield from _claim(data, ("telemetry", "port"))
    for server in ("webhook", "extender"):
        if get(data, (server, "enabled")) is True:
            yield from _claim(data, (server, "port"))


def _followers(data: Any) -> Iterator[_Claim]:
    """Give the ports of the nodes that follow kubelet.port by their lower's place."""
    for base in _claim(data, _BASE):
        for place in lowers(data):
            if inherited(data, place, ("node", "kubeletPort"))[0] is None:
                who = f"lowers[{place}] (kubelet.port + {place})"
                path = _BASE if base.written else ("lowers", place)
                yield _Claim(base.port + place, path, who, base.written)


def _own(data: Any) -> Iterator[_Claim]:
    """Give the ports of the nodes that have one written for them."""
    for place in lowers(data):
        port, path = inherited(data, place, ("node", "kubeletPort"))
        if _is_port(port):
            yield _Claim(port, path, f"lowers[{place}]", written=True)


def _clashes(claims: list[_Claim]) -> Iterator[Fault]:
    """Find ports claimed twice; each is told where one of the two is written, the later one if both are."""
    seen: dict[int, _Claim] = {}
    for claim in claims:
        first = seen.setdefault(claim.port, claim)
        if first is not claim:
            at, other = (claim, first) if claim.written or not first.written else (first, claim)
            words = f"port {at.port} of {at.who} is that of {other.who} too; give each its own"
            yield Fault(at.path, words)


def low(data: Any) -> list[Path]:
    """Give where the ports of a file without faults are written at which by default only root listens, each once."""
    claims = [*_servers(data), *_own(data), *_followers(data)]
    return [*dict.fromkeys(claim.path for claim in claims if claim.port < _UNPRIVILEGED)]


def ports(data: Any) -> Iterator[Fault]:
    """Each server has a port of its own; kubelet.port is no other server's even when all nodes have their own."""
    followers = list(_followers(data))
    beyond = next((claim for claim in followers if claim.port > _LAST), None)
    if beyond:
        words = f"leaves no port for {beyond.who}; choose a lower one"
        yield Fault(beyond.path, words)
    base = [] if followers else list(_claim(data, _BASE))
    yield from _clashes([*_servers(data), *base])
    yield from _clashes([*_servers(data), *followers, *_own(data)])
