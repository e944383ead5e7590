"""Keeps the cache of one lower cluster for placement up to date, and projects upper pods into that cluster.

A reservation is settled here: it stays until the pod has its lower node, wherever that is, and is released in the other
lower clusters once the pod is bound to a virtual node. A pod that was bound without a request to the extender (by
another scheduler, or before this process started) gets its room before any new pod.

What a pod becomes in a lower cluster depends more on its namespace's placement context than on the pod, and that rarely
changes. So the context is computed once per namespace, and again when an input of it has changed.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from tensile.kube.store import Cache, Delta, Entry, Listener
from tensile.kubelet.pods.projection import lower_pod
from tensile.kubelet.pods.scheduling import LowerContext
from tensile.kubelet.pods.sync import placement
from tensile.objects import Manifest, labels, metadata
from tensile.policy.extender.extender import LAPSE, LowerCandidate, seeking
from tensile.policy.extender.node_cache import NodeCache, NodeFinder, PodName, kind_of
from tensile.policy.extender.victims import Residents, VirtualNodeView
from tensile.policy.placement.placement import asks_too_much
from tensile.policy.placement.snapshot import is_known, node_of, pod_of
from tensile.reconcile.pods.index import is_daemon, lives_below, mirrors
from tensile.reconcile.world import Key, LowerWorld, World

if TYPE_CHECKING:
    from tensile.policy.placement.selectors import Labels
    from tensile.policy.placement.snapshot import Node, Pod
    from tensile.topology import Topology


_LOOKED_FOR = 64
"""Maximum of kinds of pods without room that are examined in one request."""
OnPodBound = Callable[["ClusterTracker", Entry], None]
"""Called for each pod that becomes bound to the lower's virtual node."""


@dataclass(slots=True)
class _Waiting:
    """A bound pod without room: what it looks for and its kind, as computed for a context (None: not yet)."""

    upper: Entry
    place: object = None
    pod: "Pod | None" = None
    kind: bytes = b""


class ClusterTracker:
    """Tracks one lower cluster, from its creation until `close`."""

    def __init__(self, world: "World", lower: "LowerWorld", prospects: "PodProjector", bound: OnPodBound) -> None:
        self.lower = lower
        self.ground = NodeCache()
        self.seeker = NodeFinder(self.ground)
        self.residents = Residents()
        self.site = LowerCandidate(
            prospects.below, self.ground, self.seeker, self._is_known, lower.namespace, self.residents, self._above
        )
        self._world = world
        self._prospects = prospects
        self._told = bound
        self._spaces: dict[str, Labels] = {}
        self._unseated: dict[PodName, _Waiting] = {}
        self._seated: set[PodName] = set()
        self._tried = -1
        self._heard: list[tuple[Cache, Listener]] = [
            (lower.place_nodes, self._node),
            (lower.namespaces, self._space),
            (lower.place_pods, self._stranger),
            (lower.pods, self._own),
            (lower.upper_pods, self._bound),
        ]
        for cache, listener in self._heard:
            cache.subscribe(listener)
            for entry in cache:
                listener(Delta(None, entry))

    def close(self) -> None:
        """Stop watching the caches."""
        for cache, listener in self._heard:
            cache.unsubscribe(listener)

    def release(self, pod: Entry) -> None:
        """Release the reservation of a pod that is bound elsewhere."""
        self.ground.forget(self._name(pod))

    def is_relieved(self, now: float) -> bool:
        """Report, once per kind, whether a pod that was refused would find a node; `now` is in monotonic seconds.

        A nominee for which there is room now counts as well: its victims may have left the upper cluster long before.
        """
        self.ground.refresh(now)
        self.ground.expire(now - LAPSE)
        before, seated = self._seated, self.ground.nominees()
        self._seated = {name for name, one in seated.items() if self.ground.is_ready(one.node)}
        return self._is_known() and (bool(self._seated - before) or self.seeker.relieved())

    def _is_known(self) -> bool:
        """Report whether all relevant caches are synced; bound pods without a reservation get one first."""
        if not is_known(self.lower):
            return False
        if self._unseated and self._tried != self.ground.grown:
            self._seat()
        return True

    def _name(self, upper: Entry) -> PodName:
        return self.lower.namespace(upper.namespace), upper.name

    # Events of the caches

    def _node(self, delta: Delta) -> None:
        """Update a node; a heartbeat changes none of the fields that are kept."""
        name = delta.entry.name
        if delta.after is None:
            self.ground.remove_node(name)
            self._spread_out(name)
        elif delta.before is None or _form(delta.before.facts) != _form(delta.after.facts):
            self.ground.put_node(delta.after.facts.copy())
            self._spread_out(name)

    def _space(self, delta: Delta) -> None:
        name, known = delta.entry.name, self._spaces.get(delta.entry.name)
        now = None if delta.after is None else labels(delta.after.manifest())
        if now is None:
            self._spaces.pop(name, None)
        else:
            self._spaces[name] = now
        if now != known:
            self.ground.put_spaces(self._spaces)

    def _stranger(self, delta: Delta) -> None:
        self._put(delta.entry, delta.after.facts if delta.after else None)

    def _own(self, delta: Delta) -> None:
        """Update a mirrored pod that has its node."""
        after = delta.after
        pod = {} if after is None or after.facts.terminal else after.manifest()
        is_there = pod and pod["spec"].get("nodeName")
        self._put(delta.entry, pod_of(pod, settled=True) if is_there else None)

    def _put(self, entry: Entry, pod: "Pod | None") -> None:
        name = (entry.namespace, entry.name)
        if pod is None:
            if not self._is_elsewhere(entry):
                self.ground.remove_pod(name)
            return
        self._unseated.pop(name, None)
        self.ground.put_pod(pod)
        self._spread_out(pod.node)

    def _is_elsewhere(self, entry: Entry) -> bool:
        """Report whether a pod only moved to the other cache: the engine adopted it, or its mark was removed."""
        ours, strange = (cache.get(entry.namespace, entry.name) for cache in (self.lower.pods, self.lower.place_pods))
        is_ours = ours is not None and ours.uid == entry.uid and not ours.facts.terminal
        return is_ours or (strange is not None and strange.uid == entry.uid and strange.facts is not None)

    def _bound(self, delta: Delta) -> None:
        """Update a pod that is bound to the virtual node."""
        before, after = delta.before, delta.after
        self._resides(delta.entry, after)
        is_same = before is not None and after is not None and before.uid == after.uid
        if before is not None and _takes_room(before) and not (is_same and self._counts(after)):
            self._unseated.pop(self._name(before), None)
            self.release(before)
        if after is not None and self._counts(after) and not (is_same and self._counts(before)):
            self._told(self, after)
            self._expect(after)

    def _resides(self, upper: Entry, now: Entry | None) -> None:
        """Update what a pod uses of the virtual node."""
        if now is None or now.facts.terminal:
            self.residents.remove(self._name(upper))
        else:
            self.residents.put(self._name(upper), now.manifest())

    def _counts(self, upper: Entry | None) -> bool:
        """Report whether a pod takes room in the lower cluster, or will, under the current topology."""
        return upper is not None and _takes_room(upper, self._world.topology.exclude_namespaces)

    # Virtual node

    def _above(self) -> VirtualNodeView | None:
        """Return the virtual node as the upper scheduler sees it, None if it does not exist."""
        node = self._world.upper.nodes.get("", self.lower.node)
        if node is None:
            return None
        residents = self.residents
        return VirtualNodeView(
            node_of(node.manifest()), residents.pods, residents.used, self._copy_of, self._is_ours, self._labels
        )

    def _copy_of(self, name: PodName) -> str:
        """Return the UID of the lower pod that mirrors a resident, "" for none."""
        upper, copy = self._upper(name), self.lower.pods.get(*name)
        is_mirror = upper is not None and copy is not None and mirrors(copy, upper, self._world.owner)
        return copy.uid if copy is not None and is_mirror else ""

    def _is_ours(self, name: PodName) -> bool:
        """Report whether a resident is a pod that is mirrored."""
        upper = self._upper(name)
        return upper is not None and lives_below(upper, self._world.topology.exclude_namespaces)

    def _upper(self, name: PodName) -> Entry | None:
        resident = self.residents.pods.get(name)
        return self.lower.upper_pods.get(resident.pod.namespace, resident.pod.name) if resident else None

    def _labels(self, namespace: str) -> "Labels | None":
        """Return the labels of an upper namespace, None for an unknown one."""
        found = self._world.upper.namespaces.get("", namespace)
        return labels(found.manifest()) if found is not None else None

    # Reservations

    def _expect(self, upper: Entry) -> None:
        """Reserve room until a pod has its lower node."""
        name = self._name(upper)
        if name in self.ground.promises:
            self.ground.confirm(name)
            return
        if not self.ground.has(name):
            self._unseated[name] = _Waiting(upper)
            self._tried = -1

    def _seat(self) -> None:
        """Reserve room for bound pods without a reservation; those without room are tried again after a change.

        If there is no room for one pod of a kind, the others of the kind are skipped. If the number of kinds is
        limited, those tried longest ago come first.
        """
        full: set[bytes] = set()
        for name, waiting in tuple(self._unseated.items()):
            if len(full) == _LOOKED_FOR:
                return
            pod = self._worked_out(waiting)
            del self._unseated[name]
            if pod is None:
                continue
            node = self.seeker.find(pod)[0] if waiting.kind not in full else ""
            if node:
                self.ground.assume(pod, node, inf)
            else:
                full.add(waiting.kind)
                self._unseated[name] = waiting
        self._tried = self.ground.grown

    def _worked_out(self, waiting: _Waiting) -> "Pod | None":
        """Return a waiting pod as it would be in the lower cluster; computed again if the context has changed."""
        place = self._prospects.place(waiting.upper.namespace)
        if waiting.place is not place:
            manifest = self._prospects.below(waiting.upper.manifest())
            pod = seeking(manifest) if manifest is not None else None
            is_judged = pod is not None and not asks_too_much(pod, self.ground.snapshot)
            waiting.place, waiting.pod = place, pod if is_judged else None
            waiting.kind = kind_of(waiting.pod) if waiting.pod is not None else b""
        return waiting.pod

    def _spread_out(self, node: str) -> None:
        """Move reservations from a node that has become too full to other nodes."""
        for name in self.ground.assumed(node) if self.ground.promises else ():
            if not self.ground.is_crowded(node):
                return
            pod, _, since, nominee = self.ground.promises[name]
            self.ground.forget(name)
            other, _ = self.seeker.find(pod)
            if other or nominee is not None:
                self.ground.assume(pod, other or node, since, nominee)
            elif since == inf:
                self._unseat(name)

    def _unseat(self, name: PodName) -> None:
        """Record that a bound pod has no reservation."""
        namespace, pod = name
        for above in self.lower.above(namespace):
            upper = self.lower.upper_pods.get(above, pod)
            if upper is not None:
                self._unseated[name] = _Waiting(upper)


def _takes_room(upper: Entry, excluded: Collection[str] = ()) -> bool:
    """Report whether a pod takes room in the lower cluster; without `excluded`, under any topology."""
    return lives_below(upper, excluded) and not upper.facts.terminating


def _form(node: "Node") -> tuple[object, ...]:
    """Return what placement compares of a node, without its pods."""
    return node.labels, node.taints, node.unschedulable, node.allocatable, node.ready


class PodProjector:
    """Projects pods into one lower cluster."""

    def __init__(self, world: World, lower: LowerWorld) -> None:
        self._world = world
        self._lower = lower
        self._places: dict[str, LowerContext] = {}
        self._doubted: set[str] = set()
        self._topology: Topology | None = None
        self._seen: tuple[object, ...] = ()

    def below(self, upper_pod: Manifest) -> Manifest | None:
        """Return a pod as it would be created in the lower cluster; None for a pod that is not mirrored."""
        namespace = metadata(upper_pod).get("namespace") or "default"
        if namespace in self._world.topology.exclude_namespaces or is_daemon(upper_pod):
            return None
        return lower_pod(upper_pod, self.place(namespace))

    def place(self, namespace: str) -> LowerContext:
        """Return the context of a namespace's pods: the same object as long as pods would be projected equally."""
        self._look()
        known = self._places.get(namespace)
        if known is None or namespace in self._doubted:
            made = placement("", Key("pod", self._lower.name, namespace, ""), self._lower, self._world)
            self._doubted.discard(namespace)
            if known != made:
                self._places[namespace] = made
        return self._places[namespace]

    def _look(self) -> None:
        """Mark contexts for a new computation if an input of them has changed."""
        world, lower = self._world, self._lower
        if self._topology is not world.topology:
            self._topology = world.topology
            self._places.clear()
        node = world.upper.nodes.get("", lower.node)
        seen = (lower.nodes.version, node.version if node else 0, world.virtual_nodes)
        if self._seen != seen:
            self._seen = seen
            self._doubted = set(self._places)
