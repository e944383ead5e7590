"""Whether pods of all clusters reach each other, and the upper apiserver: addresses that two clusters have."""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import product
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


def networked(side: Side, facts: Facts) -> Iterator[Finding]:
    """Say which addresses of a cluster are those of another before it, and whether pods reach the upper apiserver."""
    before = facts.sides()[: facts.sides().index(side)]
    others = [other for other in before if other.identity != side.identity]
    ranges = _ranges(side)
    clashes = [clash for other in others for clash in _clashes(ranges, _ranges(other))]
    for own, other in clashes:
        what = (
            f"addresses of {own.sort} here ({own.network}) are also those of {other.sort} of {shown(other.cluster)} "
            f"({other.network}): Services do not work between the two"
        )
        advice = "give one of the clusters other addresses: --cluster-cidr or --service-cluster-ip-range, made anew"
        yield Finding(side.name, "network", Level.WARN, what, advice)
    if side.name == UPPER:
        yield from _advertised(side)
    if ranges and not clashes:
        told = ", ".join(dict.fromkeys(f"{one.sort} {one.network}" for one in ranges[:_SHOWN]))
        more = " and more" if len(ranges) > _SHOWN else ""
        yield Finding(side.name, "network", Level.OK, f"{told}{more}: in no other cluster's way")
    elif side.is_in and not clashes:
        yield Finding(side.name, "network", Level.SKIP, "not looked at: the cluster does not tell its pods' addresses")


def _ranges(side: Side) -> list[_Range]:
    """Give the addresses of a cluster, as far as it tells."""
    key, value = VIRTUAL_NODE
    found = []
    for node in side.items(NODES):
        if labels(node).get(key) != value or side.name != UPPER:
            spec = node.get("spec") or {}
            told = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
            found += [_Range(side.name, "pods", ip_network(one, strict=False)) for one in told]
    for one in side.items(RANGES):
        cidrs = (one.get("spec") or {}).get("cidrs") or ()
        found += [_Range(side.name, "Services", ip_network(cidr, strict=False)) for cidr in cidrs]
    return found


def _clashes(ours: Sequence[_Range], theirs: Sequence[_Range]) -> Iterator[tuple[_Range, _Range]]:
    """Give the first overlap of each sort; Services of two clusters may overlap, since they leave neither."""
    seen = set()
    for own, other in product(ours, theirs):
        sorts = own.sort, other.sort
        if sorts in seen or sorts == ("Services", "Services") or own.network.version != other.network.version:
            continue
        if own.network.overlaps(other.network):
            seen.add(sorts)
            yield own, other


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
