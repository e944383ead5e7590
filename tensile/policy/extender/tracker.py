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
from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.kubelet.pods.sync import lower_context_of
from tensile.objects import Manifest, labels, metadata
from tensile.policy.extender.extender import RESERVATION_SECONDS, LowerCandidate, unbound_pod
from tensile.policy.extender.node_cache import NodeCache, NodeFinder, PodName, kind_of
from tensile.policy.extender.victim_selection import Residents, VirtualNodeView
from tensile.policy.placement.placement import is_too_complex
from tensile.policy.placement.snapshot import is_known, node_of, pod_of
from tensile.reconcile.pods.index import is_daemon, is_lower_pod_of, needs_lower_pod
from tensile.reconcile.world import Key, LowerWorld, World

if TYPE_CHECKING:
    from tensile.policy.placement.selectors import Labels
    from tensile.policy.placement.snapshot import Node, Pod
    from tensile.topology import Topology


_MAX_KINDS = 64
"""Maximum of kinds of pods without room that are examined in one request."""
OnPodBound = Callable[["ClusterTracker", Entry], None]
"""Called for each pod that becomes bound to the lower's virtual node."""


@dataclass(slots=True)
class _BoundPod:
    """A bound pod without room: what it looks for and its kind, as computed for a context (None: not yet)."""

    upper: Entry
    context: object = None
    pod: "Pod | None" = None
    kind: bytes = b""


class ClusterTracker:
    """Tracks one lower cluster, from its creation until `close`."""

    def __init__(self, world: "World", lower: "LowerWorld", projector: "PodProjector", on_bound: OnPodBound) -> None:
        self.lower = lower
        self.cache = NodeCache()
        self.finder = NodeFinder(self.cache)
        self.residents = Residents()
        self.site = LowerCandidate(
            projector.project,
            self.cache,
            self.finder,
            self._is_known,
            lower.namespace,
            self.residents,
            self._virtual_node,
        )
        self._world = world
        self._projector = projector
        self._on_bound = on_bound
        self._namespace_labels: dict[str, Labels] = {}
        self._without_reservation: dict[PodName, _BoundPod] = {}
        self._ready_nominees: set[PodName] = set()
        self._tried_at = -1
        self._subscriptions: list[tuple[Cache, Listener]] = [
            (lower.place_nodes, self._on_node),
            (lower.namespaces, self._on_namespace),
            (lower.place_pods, self._on_foreign_pod),
            (lower.pods, self._on_own_pod),
            (lower.upper_pods, self._on_bound_pod),
        ]
        for cache, listener in self._subscriptions:
            cache.subscribe(listener)
            for entry in cache:
                listener(Delta(None, entry))

    def close(self) -> None:
        """Stop watching the caches."""
        for cache, listener in self._subscriptions:
            cache.unsubscribe(listener)

    def release(self, pod: Entry) -> None:
        """Release the reservation of a pod that is bound elsewhere."""
        self.cache.forget(self._name(pod))

    def is_relieved(self, now: float) -> bool:
        """Report, once per kind, whether a pod that was refused would find a node; `now` is in monotonic seconds.

        A nominee for which there is room now counts as well: its victims may have left the upper cluster long before.
        """
        self.cache.refresh(now)
        self.cache.expire(now - RESERVATION_SECONDS)
        former, nominees = self._ready_nominees, self.cache.nominees()
        self._ready_nominees = {name for name, one in nominees.items() if self.cache.is_ready(one.node)}
        return self._is_known() and (bool(self._ready_nominees - former) or self.finder.relieved())

    def _is_known(self) -> bool:
        """Report whether all relevant caches are synced; bound pods without a reservation get one first."""
        if not is_known(self.lower):
            return False
        if self._without_reservation and self._tried_at != self.cache.grown:
            self._reserve_waiting()
        return True

    def _name(self, upper: Entry) -> PodName:
        return self.lower.namespace(upper.namespace), upper.name

    # Events of the caches

    def _on_node(self, delta: Delta) -> None:
        """Update a node; a heartbeat changes none of the fields that are kept."""
        name = delta.entry.name
        if delta.after is None:
            self.cache.remove_node(name)
            self._move_reservations(name)
        elif delta.before is None or _compared_fields(delta.before.facts) != _compared_fields(delta.after.facts):
            self.cache.put_node(delta.after.facts.copy())
            self._move_reservations(name)

    def _on_namespace(self, delta: Delta) -> None:
        name, old_labels = delta.entry.name, self._namespace_labels.get(delta.entry.name)
        new_labels = None if delta.after is None else labels(delta.after.manifest())
        if new_labels is None:
            self._namespace_labels.pop(name, None)
        else:
            self._namespace_labels[name] = new_labels
        if new_labels != old_labels:
            self.cache.put_spaces(self._namespace_labels)

    def _on_foreign_pod(self, delta: Delta) -> None:
        self._put(delta.entry, delta.after.facts if delta.after else None)

    def _on_own_pod(self, delta: Delta) -> None:
        """Update a mirrored pod that has its node."""
        after = delta.after
        pod = {} if after is None or after.facts.terminal else after.manifest()
        is_placed = pod and pod["spec"].get("nodeName")
        self._put(delta.entry, pod_of(pod, settled=True) if is_placed else None)

    def _put(self, entry: Entry, pod: "Pod | None") -> None:
        name = (entry.namespace, entry.name)
        if pod is None:
            if not self._is_elsewhere(entry):
                self.cache.remove_pod(name)
            return
        self._without_reservation.pop(name, None)
        self.cache.put_pod(pod)
        self._move_reservations(pod.node)

    def _is_elsewhere(self, entry: Entry) -> bool:
        """Report whether a pod only moved to the other cache: the engine adopted it, or its mark was removed."""
        own, foreign = (cache.get(entry.namespace, entry.name) for cache in (self.lower.pods, self.lower.place_pods))
        is_own = own is not None and own.uid == entry.uid and not own.facts.terminal
        return is_own or (foreign is not None and foreign.uid == entry.uid and foreign.facts is not None)

    def _on_bound_pod(self, delta: Delta) -> None:
        """Update a pod that is bound to the virtual node."""
        before, after = delta.before, delta.after
        self._update_resident(delta.entry, after)
        is_same = before is not None and after is not None and before.uid == after.uid
        if before is not None and _takes_room(before) and not (is_same and self._takes_room_now(after)):
            self._without_reservation.pop(self._name(before), None)
            self.release(before)
        if after is not None and self._takes_room_now(after) and not (is_same and self._takes_room_now(before)):
            self._on_bound(self, after)
            self._keep_reservation(after)

    def _update_resident(self, upper: Entry, now: Entry | None) -> None:
        """Update what a pod uses of the virtual node."""
        if now is None or now.facts.terminal:
            self.residents.remove(self._name(upper))
        else:
            self.residents.put(self._name(upper), now.manifest())

    def _takes_room_now(self, upper: Entry | None) -> bool:
        """Report whether a pod takes room in the lower cluster, or will, under the current topology."""
        return upper is not None and _takes_room(upper, self._world.topology.exclude_namespaces)

    # Virtual node

    def _virtual_node(self) -> VirtualNodeView | None:
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
        is_copy = upper is not None and copy is not None and is_lower_pod_of(copy, upper, self._world.owner)
        return copy.uid if copy is not None and is_copy else ""

    def _is_ours(self, name: PodName) -> bool:
        """Report whether a resident is a pod that is mirrored."""
        upper = self._upper(name)
        return upper is not None and needs_lower_pod(upper, self._world.topology.exclude_namespaces)

    def _upper(self, name: PodName) -> Entry | None:
        resident = self.residents.pods.get(name)
        return self.lower.upper_pods.get(resident.pod.namespace, resident.pod.name) if resident else None

    def _labels(self, namespace: str) -> "Labels | None":
        """Return the labels of an upper namespace, None for an unknown one."""
        found = self._world.upper.namespaces.get("", namespace)
        return labels(found.manifest()) if found is not None else None

    # Reservations

    def _keep_reservation(self, upper: Entry) -> None:
        """Reserve room until a pod has its lower node."""
        name = self._name(upper)
        if name in self.cache.reservations:
            self.cache.confirm(name)
            return
        if not self.cache.has(name):
            self._without_reservation[name] = _BoundPod(upper)
            self._tried_at = -1

    def _reserve_waiting(self) -> None:
        """Reserve room for bound pods without a reservation; those without room are tried again after a change.

        If there is no room for one pod of a kind, the others of the kind are skipped. If the number of kinds is
        limited, those tried longest ago come first.
        """
        full: set[bytes] = set()
        for name, waiting in tuple(self._without_reservation.items()):
            if len(full) == _MAX_KINDS:
                return
            pod = self._projected(waiting)
            del self._without_reservation[name]
            if pod is None:
                continue
            node = self.finder.find(pod)[0] if waiting.kind not in full else ""
            if node:
                self.cache.assume(pod, node, inf)
            else:
                full.add(waiting.kind)
                self._without_reservation[name] = waiting
        self._tried_at = self.cache.grown

    def _projected(self, waiting: _BoundPod) -> "Pod | None":
        """Return a waiting pod as it would be in the lower cluster; computed again if the context has changed."""
        context = self._projector.place(waiting.upper.namespace)
        if waiting.context is not context:
            manifest = self._projector.project(waiting.upper.manifest())
            pod = unbound_pod(manifest) if manifest is not None else None
            is_checked = pod is not None and not is_too_complex(pod, self.cache.snapshot)
            waiting.context, waiting.pod = context, pod if is_checked else None
            waiting.kind = kind_of(waiting.pod) if waiting.pod is not None else b""
        return waiting.pod

    def _move_reservations(self, node: str) -> None:
        """Move reservations from a node that has become too full to other nodes."""
        for name in self.cache.assumed(node) if self.cache.reservations else ():
            if not self.cache.is_crowded(node):
                return
            pod, _, since, nominee = self.cache.reservations[name]
            self.cache.forget(name)
            other, _ = self.finder.find(pod)
            if other or nominee is not None:
                self.cache.assume(pod, other or node, since, nominee)
            elif since == inf:
                self._record_without_reservation(name)

    def _record_without_reservation(self, name: PodName) -> None:
        """Record that a bound pod has no reservation."""
        namespace, pod = name
        for upper_namespace in self.lower.upper_namespaces_of(namespace):
            upper = self.lower.upper_pods.get(upper_namespace, pod)
            if upper is not None:
                self._without_reservation[name] = _BoundPod(upper)


def _takes_room(upper: Entry, excluded: Collection[str] = ()) -> bool:
    """Report whether a pod takes room in the lower cluster; without `excluded`, under any topology."""
    return needs_lower_pod(upper, excluded) and not upper.facts.terminating


def _compared_fields(node: "Node") -> tuple[object, ...]:
    """Return what placement compares of a node, without its pods."""
    return node.labels, node.taints, node.unschedulable, node.allocatable, node.ready


class PodProjector:
    """Projects pods into one lower cluster."""

    def __init__(self, world: World, lower: LowerWorld) -> None:
        self._world = world
        self._lower = lower
        self._contexts: dict[str, LowerContext] = {}
        self._stale: set[str] = set()
        self._topology: Topology | None = None
        self._inputs: tuple[object, ...] = ()

    def project(self, upper_pod: Manifest) -> Manifest | None:
        """Return a pod as it would be created in the lower cluster; None for a pod that is not mirrored."""
        namespace = metadata(upper_pod).get("namespace") or "default"
        if namespace in self._world.topology.exclude_namespaces or is_daemon(upper_pod):
            return None
        return to_lower_pod(upper_pod, self.place(namespace))

    def place(self, namespace: str) -> LowerContext:
        """Return the context of a namespace's pods: the same object as long as pods would be projected equally."""
        self._check_inputs()
        known = self._contexts.get(namespace)
        if known is None or namespace in self._stale:
            context = lower_context_of("", Key("pod", self._lower.name, namespace, ""), self._lower, self._world)
            self._stale.discard(namespace)
            if known != context:
                self._contexts[namespace] = context
        return self._contexts[namespace]

    def _check_inputs(self) -> None:
        """Mark contexts for a new computation if an input of them has changed."""
        world, lower = self._world, self._lower
        if self._topology is not world.topology:
            self._topology = world.topology
            self._contexts.clear()
        node = world.upper.nodes.get("", lower.node)
        inputs = (lower.nodes.version, node.version if node else 0, world.virtual_nodes)
        if self._inputs != inputs:
            self._inputs = inputs
            self._stale = set(self._contexts)
