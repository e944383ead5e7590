"""The mirrored pods of one virtual node, as its kubelet API may reach them.

The server knows upper names only and nothing of caches, so whether a pod may be accessed is decided in one place. A
name alone grants no access: the lower pod must exist under the name of the pod that is bound to this node now, be ours
and carry its UID. Otherwise a foreign pod could be entered through the upper cluster.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tensile.kube.cluster import Cluster
from tensile.kube.store import Entry
from tensile.kubelet.stats.usage import RunningPod, runner
from tensile.names import Owner
from tensile.reconcile.copies import mirror_of
from tensile.reconcile.world import LowerWorld

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_LIST = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[%b]}'


class PodTarget(NamedTuple):
    """A lower pod: its cluster, its namespace and name there, and the names of all containers of its upper pod."""

    cluster: Cluster
    namespace: str
    name: str
    containers: frozenset[str]


class PodLister(Protocol):
    """The mirrored pods of one virtual node, by their upper names."""

    def locate(self, namespace: str, pod: str) -> PodTarget | None:
        """Return the lower pod of an upper pod on this node, None unless it is ours and has the upper pod's UID."""
        ...

    def listed(self) -> bytes:
        """Return the node's mirrored pods as the JSON of a v1 PodList."""
        ...

    def running(self) -> Sequence[RunningPod]:
        """Return the mirrored pods with a running container."""
        ...


class Log(Protocol):
    """A structured logger: a short event with fields."""

    def info(self, event: str, **fields: object) -> object:
        """Log an event."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Log an event that an operator should look at."""
        ...


class EmptyPodLister:
    """A virtual node of which nothing is known yet."""

    def locate(self, _namespace: str, _pod: str) -> PodTarget | None:
        """Return None."""
        return None

    def listed(self) -> bytes:
        """Return an empty list."""
        return _LIST % b""

    def running(self) -> list[RunningPod]:
        """Return an empty list."""
        return []


class MirroredPods:
    """The pods of one lower cluster under their upper names; `cluster` returns the connection to it, None without."""

    def __init__(self, lower: LowerWorld, owner: Owner, cluster: Callable[[], Cluster | None]) -> None:
        self._lower = lower
        self._owner = owner
        self._cluster = cluster

    def locate(self, namespace: str, pod: str) -> PodTarget | None:
        """Return the lower pod of the upper pod of that name on this node, None where there is none of ours."""
        upper = self._lower.upper_pods.get(namespace, pod)
        below = self._below(upper) if upper else None
        cluster = self._cluster()
        if upper is None or below is None or cluster is None:
            return None
        return PodTarget(cluster, below.namespace, below.name, _containers(upper))

    def listed(self) -> bytes:
        """Return the mirrored pods, as they are in the upper cluster, as the JSON of a v1 PodList."""
        return _LIST % b",".join(upper.raw for upper, _ in self.pairs())

    def running(self) -> list[RunningPod]:
        """Return the mirrored pods with a running container."""
        found = (runner(upper, below) for upper, below in self.pairs())
        return [one for one in found if one.containers]

    def pairs(self) -> list[tuple[Entry, Entry]]:
        """Return the mirrored pods, each with its lower pod."""
        found = ((upper, self._below(upper)) for upper in self._lower.upper_pods)
        return [(upper, below) for upper, below in found if below]

    def _below(self, upper: Entry) -> Entry | None:
        return mirror_of(upper, self._lower, self._owner)


def _containers(upper: Entry) -> frozenset[str]:
    """Return the names of a pod's containers of every kind."""
    spec = upper.manifest()["spec"]
    return frozenset(one["name"] for kind in _CONTAINERS for one in spec.get(kind) or ())
