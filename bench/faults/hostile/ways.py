"""Every way in which a hostile apiserver answers, by name and by sort of request."""

from typing import NamedTuple

from bench.faults.hostile.calls import DISCOVERIES, IDENTITIES, METRICS, READS, VERSIONS, WRITES
from bench.faults.hostile.lists import LISTS
from bench.faults.hostile.pieces import Play
from bench.faults.hostile.streams import EXECS, LOGS
from bench.faults.hostile.watches import WATCHES
from bench.kit.faultproxy.asked import Asked


class Way(NamedTuple):
    """One way: its name, the sort of request that it answers, and its answer."""

    name: str
    sort: str
    play: Play


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
WAYS = {name: Way(name, sort, play) for sort, plays in _BY_SORT.items() for name, play in plays.items()}
_STREAMS = frozenset({"exec", "attach", "portforward"})


def sort_of(path: str, asked: Asked) -> str:
    """Return the sort of a request, by its path and contents."""
    if path == "/version":
        return "version"
    if asked.subresource in _STREAMS:
        return "exec"
    if asked.subresource == "log":
        return "logs"
    if path.startswith("/apis/metrics.k8s.io/"):
        return "metrics"
    if asked.is_write:
        return "write"
    if not asked.resource:
        return "discovery"
    return "identity" if path == "/api/v1/namespaces/kube-system" else asked.verb
