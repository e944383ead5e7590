"""What stands behind the kubelet API of one virtual node: which pods it may reach, and where they run.

The server knows names as the upper cluster gives them and nothing of caches; whoever holds those answers here. So the
question "is this pod ours to touch?" is asked in one place.

The mirrored pods of one virtual node, as its kubelet API may reach them.

A name alone opens nothing: the lower pod has to stand at the place of the pod that is bound here now, be ours and carry
its UID, or a stranger's pod could be entered through the upper cluster.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tensile.kube.cluster import Cluster
from tensile.kube.store import Entry
from tensile.kubelet.stats.usage import Runner, runner
from tensile.names import Owner
from tensile.reconcile.copies import mirror_of
from tensile.reconcile.world import LowerWorld


class Target(NamedTuple):
    """A lower pod: its cluster, its namespace and name there, and the names of all containers that it has above."""

    cluster: Cluster
    namespace: str
    name: str
    containers: frozenset[str]


class Pods(Protocol):
    """The mirrored pods of one virtual node, by the names they have in the upper cluster."""

    def locate(self, namespace: str, pod: str) -> Target | None:
        """Return the lower pod that is ours and carries the UID of the upper pod of that name on this node, else None."""
        ...

    def listed(self) -> bytes:
        """Return the node's mirrored pods as the JSON of a v1 PodList."""
        ...

    def running(self) -> Sequence[Runner]:
        """Return those of them of which a container runs."""
        ...


class Log(Protocol):
    """A structured logger: an event in a few words, and what belongs to it as fields."""

    def info(self, event: str, **fields: object) -> object:
        """Note something that happened."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Note something that somebody should look at."""
        ...


_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_LIST = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[%b]}'


class NoPods:
    """A virtual node of which nothing is known yet."""

    def locate(self, _namespace: str, _pod: str) -> Target | None:
        """Return None."""
        return None

    def listed(self) -> bytes:
        """Return an empty list."""
        return _LIST % b""

    def running(self) -> list[Runner]:
        """Give none."""
        return []


class MirroredPods:
    """The pods of one lower cluster under their upper names; `cluster` gives the connection to it, None without."""

    def __init__(self, lower: LowerWorld, owner: Owner, cluster: Callable[[], Cluster | None]) -> None:
        self._lower = lower
        self._owner = owner
        self._cluster = cluster

    def locate(self, namespace: str, pod: str) -> Target | None:
        """Return the lower pod of the upper pod of that name on this node, None where there is none of ours."""
        upper = self._lower.upper_pods.get(namespace, pod)
        below = self._below(upper) if upper else None
        cluster = self._cluster()
        if upper is None or below is None or cluster is None:
            return None
        return Target(cluster, below.namespace, below.name, _containers(upper))

    def listed(self) -> bytes:
        """Return the mirrored pods, as the upper cluster has them, as the JSON of a v1 PodList."""
        return _LIST % b",".join(upper.raw for upper, _ in self.pairs())

    def running(self) -> list[Runner]:
        """Return those of which a container runs."""
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
