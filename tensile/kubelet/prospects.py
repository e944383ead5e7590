"""Pods as they would be in one lower cluster, for whoever asks about many of them before they are sent.

What a pod becomes there depends on the place more than on the pod, and the place changes rarely: it is worked out once
for each namespace, and anew when something that it rests on has changed.
"""

from typing import TYPE_CHECKING

from tensile.kubelet.mirroring import placement
from tensile.kubelet.place import Placement
from tensile.kubelet.projection import lower_pod
from tensile.objects import Manifest, metadata
from tensile.reconcile.podfacts import is_daemon
from tensile.world import Key, LowerWorld, World

if TYPE_CHECKING:
    from tensile.topology import Topology


class Prospects:
    """The pods of one lower."""

    def __init__(self, world: World, lower: LowerWorld) -> None:
        self._world = world
        self._lower = lower
        self._places: dict[str, Placement] = {}
        self._doubted: set[str] = set()
        self._topology: Topology | None = None
        self._seen: tuple[object, ...] = ()

    def below(self, upper_pod: Manifest) -> Manifest | None:
        """Give a pod as it would be made below; None where it is one that is not mirrored."""
        namespace = metadata(upper_pod).get("namespace") or "default"
        if namespace in self._world.topology.exclude_namespaces or is_daemon(upper_pod):
            return None
        return lower_pod(upper_pod, self.place(namespace))

    def place(self, namespace: str) -> Placement:
        """Give the place of a namespace's pods: the same object for as long as they would become the same there."""
        self._look()
        known = self._places.get(namespace)
        if known is None or namespace in self._doubted:
            made = placement("", Key("pod", self._lower.name, namespace, ""), self._lower, self._world)
            self._doubted.discard(namespace)
            if known != made:
                self._places[namespace] = made
        return self._places[namespace]

    def _look(self) -> None:
        """See whether something has changed that places rest on."""
        world, lower = self._world, self._lower
        if self._topology is not world.topology:
            self._topology = world.topology
            self._places.clear()
        node = world.upper.nodes.get("", lower.node)
        seen = (lower.nodes.version, node.version if node else 0, world.virtual_nodes)
        if self._seen != seen:
            self._seen = seen
            self._doubted = set(self._places)
