"""Whether pods of all clusters reach each other, and the upper apiserver: addresses that two clusters have."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import NamedTuple

from tensile.doctor.facts import ADVERTISED, NODES, RANGES, Contact, Facts, Side, Stage, shown
from tensile.doctor.finding import Finding, Level
from tensile.names import VIRTUAL_NODE
from tensile.objects import UPPER, labels

Network = IPv4Network | IPv6Network
_SHOWN = 4


class _Range(NamedTuple):
    """Addresses of a cluster: of its pods or of its Services."""

    cluster: str
    sort: str
    network: Network


Clash = tuple[_Range, _Range]
"""Two that overlap."""


def networked(facts: Facts) -> Iterator[Finding]:
    """Say which addresses of a cluster are those of one before it too, and whether pods reach the upper apiserver."""
    ranges = {side.name: _ranges(side) for side in facts.sides()}
    clashes = _clashes(facts.sides(), ranges)
    for side in facts.sides():
        yield from map(_clashing, clashes[side.name])
        if side.name == UPPER:
            yield from _advertised(side)
        if not clashes[side.name]:
            yield from _clear(side, ranges[side.name])


def _clashing(clash: Clash) -> Finding:
    own, other = clash
    what = (
        f"addresses of {own.sort} here ({own.network}) are also those of {other.sort} of {shown(other.cluster)} "
        f"({other.network}): Services do not work between the two"
    )
    advice = "give one of the clusters other addresses: --cluster-cidr or --service-cluster-ip-range, made anew"
    return Finding(own.cluster, "network", Level.WARN, what, advice)


def _clear(side: Side, ranges: Sequence[_Range]) -> Iterator[Finding]:
    """Tell the addresses of a cluster that is in nobody's way."""
    if ranges:
        told = ", ".join(f"{one.sort} {one.network}" for one in ranges[:_SHOWN])
        more = " and more" if len(ranges) > _SHOWN else ""
        yield Finding(side.name, "network", Level.OK, f"{told}{more}: in no other cluster's way")
    elif side.is_in:
        yield Finding(side.name, "network", Level.SKIP, "not looked at: the cluster does not tell its pods' addresses")


def _ranges(side: Side) -> list[_Range]:
    """Give the addresses of a cluster, as far as it tells, in as few networks as hold them."""
    key, value = VIRTUAL_NODE
    pods: list[str] = []
    for node in side.items(NODES):
        if labels(node).get(key) != value or side.name != UPPER:
            spec = node.get("spec") or {}
            pods += spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
    services = [cidr for one in side.items(RANGES) for cidr in (one.get("spec") or {}).get("cidrs") or ()]
    told = (("pods", pods), ("Services", services))
    return [_Range(side.name, sort, network) for sort, cidrs in told for network in _collapsed(cidrs)]


def _collapsed(cidrs: Iterable[str]) -> list[Network]:
    networks = [ip_network(one, strict=False) for one in cidrs]
    fours = collapse_addresses(one for one in networks if isinstance(one, IPv4Network))
    return [*fours, *collapse_addresses(one for one in networks if isinstance(one, IPv6Network))]


def _clashes(sides: Sequence[Side], ranges: Mapping[str, Sequence[_Range]]) -> dict[str, list[Clash]]:
    """Give the first overlap of each sort of each two clusters, at the later one, in the order of the others.

    Services of two clusters may overlap, since they leave neither.
    """
    order = {side.name: place for place, side in enumerate(sides)}
    identity = {side.name: side.identity for side in sides}
    found: dict[tuple[str, str, str, str], Clash] = {}
    for pair in _overlaps(one for each in ranges.values() for one in each):
        other, own = sorted(pair, key=lambda one: order[one.cluster])
        if identity[own.cluster] != identity[other.cluster] and (own.sort, other.sort) != ("Services", "Services"):
            found.setdefault((own.cluster, other.cluster, own.sort, other.sort), (own, other))
    clashes: dict[str, list[Clash]] = {name: [] for name in order}
    for own, other in sorted(found.values(), key=lambda clash: order[clash[1].cluster]):
        clashes[own.cluster].append((own, other))
    return clashes


def _overlaps(ranges: Iterable[_Range]) -> Iterator[Clash]:
    """Give every two that overlap. Of two networks that do one holds the other, so those around one make a stack."""
    around: list[_Range] = []
    for one in sorted(ranges, key=_begin):
        while around and not _holds(around[-1].network, one.network):
            around.pop()
        yield from ((outer, one) for outer in around)
        around.append(one)


def _begin(one: _Range) -> tuple[int, int, int]:
    return one.network.version, int(one.network.network_address), one.network.prefixlen


def _holds(outer: Network, inner: Network) -> bool:
    return outer.version == inner.version and int(inner.network_address) <= int(outer.broadcast_address)


def _advertised(upper: Side) -> Iterator[Finding]:
    """Say whether pods with tokens of the upper cluster are led to an address that its certificate names."""
    contact: Contact | None = upper.value(ADVERTISED)
    if contact is None or contact.stage == Stage.DONE:
        return
    what = f"pods below are led to the upper apiserver at {contact.way.where}, which fails from here ({contact.error})"
    advice = (
        f"set upper.advertiseURL to an address that pods below reach, and have the apiserver's certificate name "
        f"{contact.way.host} (--apiserver-cert-extra-sans with kubeadm)"
    )
    yield Finding(UPPER, "network", Level.WARN, what, advice)
