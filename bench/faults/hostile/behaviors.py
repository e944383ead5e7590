"""Every way in which a hostile apiserver answers, by name and by sort of request."""

from typing import NamedTuple

from bench.faults.hostile.answer_parts import Answer
from bench.faults.hostile.calls import DISCOVERIES, IDENTITIES, METRICS, READS, VERSIONS, WRITES
from bench.faults.hostile.lists import LISTS
from bench.faults.hostile.streams import EXECS, LOGS
from bench.faults.hostile.watches import WATCHES
from bench.kit.faultproxy.requests import ProxiedRequest


class Behavior(NamedTuple):
    """One way: its name, the sort of request that it answers, and its answer."""

    name: str
    sort: str
    answer: Answer


_BY_SORT = {
    "list": LISTS,
    "watch": WATCHES,
    "get": READS,
    "identity": IDENTITIES,
    "version": VERSIONS,
    "discovery": DISCOVERIES,
    "write": WRITES,
    "metrics": METRICS,
    "logs": LOGS,
    "exec": EXECS,
}
BEHAVIORS = {name: Behavior(name, sort, play) for sort, plays in _BY_SORT.items() for name, play in plays.items()}
_STREAMS = frozenset({"exec", "attach", "portforward"})


def sort_of(path: str, request: ProxiedRequest) -> str:
    """Return the sort of a request, by its path and contents."""
    if path == "/version":
        return "version"
    if request.subresource in _STREAMS:
        return "exec"
    if request.subresource == "log":
        return "logs"
    if path.startswith("/apis/metrics.k8s.io/"):
        return "metrics"
    if request.is_write:
        return "write"
    if not request.resource:
        return "discovery"
    return "identity" if path == "/api/v1/namespaces/kube-system" else request.verb
