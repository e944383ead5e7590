"""What stands behind the kubelet API of one virtual node: which pods it may reach, and where they run.

The server knows names as the upper cluster gives them and nothing of caches; whoever holds those answers here. So the
question "is this pod ours to touch?" is asked in one place.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tensile.cluster import Cluster
from tensile.kubelet.usage.running import Runner


class Target(NamedTuple):
    """A lower pod: its cluster, its namespace and name there, and the names of all containers that it has above."""

    cluster: Cluster
    namespace: str
    name: str
    containers: frozenset[str]


class Pods(Protocol):
    """The mirrored pods of one virtual node, by the names they have in the upper cluster."""

    def locate(self, namespace: str, pod: str) -> Target | None:
        """Give the lower pod that is ours and carries the UID of the upper pod of that name on this node, else None."""
        ...

    def listed(self) -> bytes:
        """Give the node's mirrored pods as the JSON of a v1 PodList."""
        ...

    def running(self) -> Sequence[Runner]:
        """Give those of them of which a container runs."""
        ...


class Log(Protocol):
    """A structured logger: an event in a few words, and what belongs to it as fields."""

    def info(self, event: str, **fields: object) -> object:
        """Note something that happened."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Note something that somebody should look at."""
        ...
