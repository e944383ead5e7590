"""The mirrored pods of one virtual node, as its kubelet API may reach them.

A name alone opens nothing: the lower pod has to stand at the place of the pod that is bound here now, be ours and carry
its UID, or a stranger's pod could be entered through the upper cluster.
"""

from collections.abc import Callable

from tensile.cache import Entry
from tensile.cluster import Cluster
from tensile.kubelet.api.target import Target
from tensile.kubelet.usage.running import Runner, runner
from tensile.names import Owner
from tensile.reconcile.ownership import mirror_of
from tensile.world import LowerWorld

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_LIST = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[%b]}'


class NoPods:
    """A virtual node of which nothing is known yet."""

    def locate(self, _namespace: str, _pod: str) -> Target | None:
        """Give None."""
        return None

    def listed(self) -> bytes:
        """Give an empty list."""
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
        """Give the lower pod of the upper pod of that name on this node, None where there is none of ours."""
        upper = self._lower.upper_pods.get(namespace, pod)
        below = self._below(upper) if upper else None
        cluster = self._cluster()
        if upper is None or below is None or cluster is None:
            return None
        return Target(cluster, below.namespace, below.name, _containers(upper))

    def listed(self) -> bytes:
        """Give the mirrored pods, as the upper cluster has them, as the JSON of a v1 PodList."""
        return _LIST % b",".join(upper.raw for upper, _ in self.pairs())

    def running(self) -> list[Runner]:
        """Give those of which a container runs."""
        found = (runner(upper, below) for upper, below in self.pairs())
        return [one for one in found if one.containers]

    def pairs(self) -> list[tuple[Entry, Entry]]:
        """Give the mirrored pods, each with its lower pod."""
        found = ((upper, self._below(upper)) for upper in self._lower.upper_pods)
        return [(upper, below) for upper, below in found if below]

    def _below(self, upper: Entry) -> Entry | None:
        return mirror_of(upper, self._lower, self._owner)


def _containers(upper: Entry) -> frozenset[str]:
    """Give the names of a pod's containers of every kind."""
    spec = upper.manifest()["spec"]
    return frozenset(one["name"] for kind in _CONTAINERS for one in spec.get(kind) or ())
