"""Waits until what was started answers, and says why when it does not.

Each wait watches the processes too: one that ended is reported at once with its last words instead of after a time-out.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tensile.sandbox import manifests, obstacles
from tensile.sandbox.api import Api
from tensile.sandbox.errors import PortTakenError, SandboxError
from tensile.sandbox.golang import tail
from tensile.sandbox.processes import running
from tensile.sandbox.state import Cluster, Process

LIMIT = 120.0
PAUSE = 0.03
PORT_TAKEN = "address already in use"
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"

Probe = Callable[[Cluster, Api], bool]


def component(name: str) -> Probe:
    """Return the probe of one component; those without a port of their own count as ready once they run."""
    return PROBES.get(name, _always)


def cluster_ready(cluster: Cluster, api: Api) -> bool:
    """Tell whether pods can run: nodes are usable, and the default namespace has its service account."""
    wanted = len(cluster.layout.node_names)
    nodes = api.get("/api/v1/nodes").get("items", []) if wanted else []
    return manifests.ready(nodes, wanted) and bool(api.get(ACCOUNT))


def wait(clusters: Sequence[Cluster], probe: Probe, what: str, limit: float = LIMIT) -> None:
    """Wait until the probe holds for every cluster.

    Raises:
        PortTakenError: a process ended because another program has its port.
        SandboxError: a process ended for another reason, or the limit (seconds) passed.
    """
    end = time.monotonic() + limit
    left = [(cluster, Api(cluster.layout)) for cluster in clusters]
    while left := [(cluster, api) for cluster, api in left if not probe(cluster, api)]:
        for cluster, _ in left:
            check_running(cluster)
        if time.monotonic() > end:
            names = ", ".join(cluster.layout.name for cluster, _ in left)
            raise SandboxError(f"{names}: {what} not ready after {limit:.0f} s; see {left[0][0].layout.output}")
        time.sleep(PAUSE)


def check_running(cluster: Cluster) -> None:
    """Raise when a process of the cluster ended."""
    for name, process in cluster.processes.items():
        if not running(process):
            raise ended(f"{cluster.layout.name}: {name}", process)


def ended(what: str, process: Process) -> SandboxError:
    """Return the error that tells why a process ended."""
    output = Path(process.output)
    words = tail(output)
    if PORT_TAKEN not in words and (why := obstacles.of_program(output.read_text(errors="replace"))):
        return SandboxError(f"{what} ended in {output.parent}: {why}")
    kind = PortTakenError if PORT_TAKEN in words else SandboxError
    return kind(f"{what} ended; the last lines of {process.output}:\n{words}")


def _always(_cluster: Cluster, _api: Api) -> bool:
    """What has no port of its own cannot be asked."""
    return True


def _apiserver(cluster: Cluster, api: Api) -> bool:
    """The apiserver says so itself, its etcd and its bootstrap included."""
    return api.healthy(cluster.layout.ports.apiserver, "/readyz")


def _controller_manager(cluster: Cluster, api: Api) -> bool:
    """Its controllers have started."""
    return api.healthy(cluster.layout.ports.controller_manager, "/healthz")


def _scheduler(cluster: Cluster, api: Api) -> bool:
    """Its caches are in sync."""
    return api.healthy(cluster.layout.ports.scheduler, "/readyz")


def _endpoint(cluster: Cluster, _api: Api) -> bool:
    """It answers the certificate that the apiserver shows."""
    return Api(cluster.layout, "kubelet-client").healthy(cluster.layout.ports.endpoint, "/healthz")


PROBES: dict[str, Probe] = {
    "etcd": _apiserver,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
    "endpoint": _endpoint,
}
