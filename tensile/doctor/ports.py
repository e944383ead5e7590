"""Whether the engine's ports are open to more than those who call them, as far as that can be told."""

from collections.abc import Iterator
from ipaddress import ip_address

from tensile import descriptors
from tensile.doctor.facts import Facts, Side
from tensile.doctor.finding import Finding, Level
from tensile.objects import UPPER

_CALLERS = {
    "kubelet": "the upper's apiserver",
    "webhook": "the upper's apiserver",
    "extender": "the upper's scheduler",
}
_LOOPBACK = "127.0.0.1"


def bound(side: Side, facts: Facts) -> Iterator[Finding]:
    """Report ports that listen at every address of a machine without need.

    In a pod there is no narrower address. Elsewhere telemetry, which asks nobody who they are, is for one machine
    unless somebody says otherwise; and if the upper's apiserver is on this machine, so are its callers.
    """
    if side.name != UPPER or not side.is_in or facts.in_map:
        return
    topology = facts.topology
    wide = [_finding("telemetry", "whoever reaches this machine reads names, health and capacity of all lowers")]
    found = wide if _is_any(topology.telemetry.bind) else []
    near = side.contact is not None and _is_loopback(side.contact.way.host)
    enabled = {"kubelet": True, "webhook": topology.webhook.enabled, "extender": topology.extender.enabled}
    for section, caller in _CALLERS.items() if near else ():
        if enabled[section] and _is_any(getattr(topology, section).bind):
            found.append(_finding(section, f"{caller}, which calls it, is on this machine"))
    if (shortage := descriptors.missing(len(topology.lowers), facts.descriptors)) is not None:
        found.append(Finding(UPPER, "ports", Level.WARN, shortage.what, shortage.advice))
    yield from found
    if not found:
        yield Finding(UPPER, "ports", Level.OK, "no port is open to more than its callers, as far as that can be told")


def _finding(section: str, why: str) -> Finding:
    narrower = f"{section}.bind: {_LOOPBACK}"
    advice = f"set {narrower}" + (", or the address at which Prometheus calls it" if section == "telemetry" else "")
    return Finding(UPPER, "ports", Level.WARN, f"{section}.bind is every address of this machine: {why}", advice)


def _is_any(bind: str) -> bool:
    try:
        return ip_address(bind).is_unspecified
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
