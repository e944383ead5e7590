"""Candidate pods for eviction, and the virtual nodes and lower nodes where they would fit.

A pod that fits takes the room, so that pods that leave together do not count on the same room.

Nor is the room free that pods need which leave already and have no new node yet. A controller creates the replacement
as soon as the old pod begins to terminate, and the upper scheduler binds it some time later. A pod without a controller
is re-created once the old one is gone. Without a reservation, a decision in between, for another lower cluster or in
another engine, would use the same room twice.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import orjson

from tensile.kube.store import Entry
from tensile.kubelet.node.status import is_reachable
from tensile.kubelet.pods.conditions import conditions_of, unschedulable_condition
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.kubelet.pods.sync import lower_context_of
from tensile.names import CLUSTER_SELECTOR
from tensile.objects import Manifest, annotations, controller_of, deleted_at, metadata, moment_of
from tensile.policy.descheduler.limits import (
    drain_problem,
    is_bare,
    is_being_drained,
    recent_evictions,
    recently_left_nodes,
)
from tensile.policy.descheduler.replacement import BACKUP, PodBackup, backup_in, backup_of, uses_claims
from tensile.policy.extender.node_cache import SORTED
from tensile.policy.placement.placement import TOO_COMPLEX, FitResult, examine, fitting, is_too_complex
from tensile.policy.placement.snapshot import Pod, Snapshot, is_known, pod_of, snapshot_now, snapshot_of
from tensile.reconcile.copies import bound, mirror_of, upper_of
from tensile.reconcile.ownership import has_node
from tensile.reconcile.pods.index import is_lower_pod_of, needs_lower_pod
from tensile.reconcile.world import Key, LowerWorld, World

if TYPE_CHECKING:
    from tensile.kubelet.pods.lower_context import LowerContext

REASONS = frozenset({"Unschedulable", "SchedulerError"})
"""Reasons of condition PodScheduled=False after the scheduler tried; a pod with a scheduling gate was not tried."""
_PLACEMENT_FIELDS = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints")
_Fingerprint = bytes


class LeavingPod(NamedTuple):
    """A pod unschedulable for too long: the upper pod, its lower cluster's name, and since when."""

    upper: Entry
    lower: str
    since: datetime


def is_open(lower: LowerWorld, world: World) -> bool:
    """Report whether a lower cluster can be used: reachable, all caches synced, and its Node exists and is ours."""
    node = world.upper.nodes.get("", lower.node)
    if node is None or not (lower.in_topology and has_node(lower, world)):
        return False
    return is_known(lower) and is_reachable(node.manifest(), lower)


def stuck_in(lower: LowerWorld, world: World) -> Iterator[LeavingPod]:
    """Yield the pods of a lower cluster that have been unschedulable for longer than the topology allows."""
    min_duration = world.topology.descheduler.pending_longer_than
    for lower_entry in lower.pods:
        facts = lower_entry.facts
        upper = None if facts.ran or facts.terminating or facts.terminal else upper_of(lower_entry, lower)
        if upper is None or not _should_run(upper, world) or not is_lower_pod_of(lower_entry, upper, world.owner):
            continue
        since = waiting_since(lower_entry.manifest())
        if since is not None and world.now - since >= min_duration:
            yield LeavingPod(upper, lower.name, since)


def waiting_since(pod: Manifest) -> datetime | None:
    """Return since when the lower scheduler finds no node for a pod, None if it does not wait for that.

    A pod that no scheduler has tried waits since its creation.
    """
    if pod["spec"].get("nodeName"):
        return None
    condition = unschedulable_condition(pod, REASONS) or {}
    since = condition.get("lastTransitionTime")
    if "PodScheduled" not in conditions_of(pod):
        since = metadata(pod).get("creationTimestamp")
    return moment_of(since) if since else None


def _should_run(upper: Entry, world: World) -> bool:
    return not upper.facts.terminating and needs_lower_pod(upper, world.topology.exclude_namespaces)


class Targets:
    """All lower clusters that can take pods, and their state as pods move; made for one pass, and changed by it.

    The lower cluster of virtual node `without` is left out, "" for none.
    """

    def __init__(self, world: World, *, without: str = "") -> None:
        self._world = world
        self._lowers = {
            lower.node: lower
            for lower in world.lowers.values()
            if lower.node != without and is_open(lower, world) and lower.spec.maintenance == "none"
        }
        self._upper = _upper_snapshot(world)
        self._snapshots: dict[str, Snapshot] = {}
        self._refused: dict[tuple[str, _Fingerprint], str] = {}
        self._unplaceable: dict[tuple[str, frozenset[str], str, _Fingerprint], dict[str, str]] = {}
        self._contexts: dict[tuple[str, str], LowerContext] = {}

    def others(self, upper: Entry, source: str, avoided: frozenset[str]) -> tuple[list[str], dict[str, str]]:
        """Return the virtual nodes that would take a pod of node `source`, and for each other one why not.

        Nodes in `avoided` are excluded. The pod keeps its own node. When a pod fits nowhere, pods that are alike are
        not examined again in this pass: room that becomes free in it is for the next.
        """
        pod = upper.manifest()
        placed, unbound = pod_of(pod, settled=True), pod_of(_without_node(pod))
        if is_too_complex(unbound, self._upper):
            return [], {name: TOO_COMPLEX for name in self._lowers if name != source}
        key = (source, avoided, annotations(pod).get(CLUSTER_SELECTOR, ""), _fingerprint(unbound))
        if key not in self._unplaceable:
            found, refused = self._examine(pod, placed, unbound, source, avoided)
            if found:
                return found, refused
            self._unplaceable[key] = refused
        return [], self._unplaceable[key]

    def open_to(self, upper: Entry, source: str) -> list[str]:
        """Return the virtual nodes to which the upper scheduler may bind a pod of node `source`.

        It does not know the lower nodes, which may all be full.
        """
        pod = upper.manifest()
        verdict = self._examine_upper(pod_of(pod, settled=True), pod_of(_without_node(pod)), source)
        return [name for name in verdict.fitting if name != source and name in self._lowers]

    def _examine_upper(self, placed: Pod, unbound: Pod, source: str) -> FitResult:
        """Examine every virtual node for a pod that leaves its own, closed ones too: they are topology domains."""
        self._upper.remove(placed.namespace, placed.name, source)
        verdict = examine(unbound, self._upper)
        self._upper.add(placed, source)
        return verdict

    def _examine(
        self, pod: Manifest, placed: Pod, unbound: Pod, source: str, avoided: frozenset[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Examine every virtual node, and the lower nodes behind those that would take the pod."""
        verdict = self._examine_upper(placed, unbound, source)
        found: list[str] = []
        others = self._lowers.keys() - {source}
        refused = {name: str(one) for name, one in verdict.refused.items() if name in others}
        refused |= {name: "a pod of its controller was evicted from it recently" for name in avoided if name != source}
        for name in verdict.fitting:
            if name not in others or name in refused:
                continue
            reason = self._refusal(pod, self._lowers[name])
            if reason:
                refused[name] = reason
            else:
                found.append(name)
        return found, refused

    def move(self, upper: Entry, source: str, target: str) -> str:
        """Take the room for a pod that moves; return the name of the lower node that would run it."""
        pod = upper.manifest()
        self._upper.remove(upper.namespace, upper.name, source)
        self._upper.add(pod_of(pod, settled=True), target)
        lower = self._lowers[target]
        return _place_on_first(self._projected(pod, lower), self._snapshot(lower))

    def _refusal(self, pod: Manifest, lower: LowerWorld) -> str:
        """Return why no node of a lower cluster fits, "" if one does; reused in this pass for pods that are alike."""
        wanted, snapshot = self._projected(pod, lower), self._snapshot(lower)
        if is_too_complex(wanted, snapshot):
            return TOO_COMPLEX
        key = (lower.name, _fingerprint(wanted))
        if key not in self._refused:
            if next(fitting(wanted, snapshot), None) is not None:
                return ""
            self._refused[key] = examine(wanted, snapshot).message
        return self._refused[key]

    def _projected(self, pod: Manifest, lower: LowerWorld) -> Pod:
        """Return the pod as it would be in a lower cluster."""
        key = (lower.name, metadata(pod)["namespace"])
        if key not in self._contexts:
            self._contexts[key] = lower_context_of("", Key("pod", *key, ""), lower, self._world)
        return pod_of(to_lower_pod(pod, self._contexts[key]))

    def _snapshot(self, lower: LowerWorld) -> Snapshot:
        """Return a lower cluster with the pods on their way to it placed first, the oldest before the others."""
        if lower.name not in self._snapshots:
            self._snapshots[lower.name] = snapshot = snapshot_now(lower)
            unplaceable: set[_Fingerprint] = set()
            for pod in self._arriving(lower):
                is_checked = not is_too_complex(pod, snapshot) and _fingerprint(pod) not in unplaceable
                if is_checked and not _place_on_first(pod, snapshot):
                    unplaceable.add(_fingerprint(pod))
        return self._snapshots[lower.name]

    def _arriving(self, lower: LowerWorld) -> list[Pod]:
        """Return the pods that are bound to the virtual node but not to a lower node yet."""
        world = self._world
        waiting: list[tuple[str, Pod]] = []
        for upper in lower.upper_pods:
            if upper.facts.terminating or not needs_lower_pod(upper, world.topology.exclude_namespaces):
                continue
            lower_entry = mirror_of(upper, lower, world.owner)
            if lower_entry is not None and lower_entry.manifest()["spec"].get("nodeName"):
                continue
            pod = upper.manifest()
            wanted = self._projected(pod, lower) if lower_entry is None else pod_of(lower_entry.manifest())
            wanted = replace(wanted, claims=(), own_claims={})  # the snapshot has no storage
            waiting.append((str(metadata(pod).get("creationTimestamp", "")), wanted))
        return [pod for _, pod in sorted(waiting, key=lambda one: (one[0], one[1].namespace, one[1].name))]


def refusal_message(refused: Mapping[str, str]) -> str:
    """Return the message for the refusals of `Targets.others`: why no other virtual node takes a pod."""
    return "; ".join(f"{name}: {refused[name]}" for name in sorted(refused)) or "there is no other virtual node"


def _upper_snapshot(world: World) -> Snapshot:
    """Return a snapshot of the upper cluster with all virtual nodes and their pods."""
    nodes = (world.upper.nodes.get("", lower.node) for lower in world.lowers.values())
    pods = (entry for lower in world.lowers.values() for entry in lower.upper_pods if not entry.facts.terminal)
    return snapshot_of(
        [entry.manifest() for entry in nodes if entry is not None],
        (entry.manifest() for entry in pods),
        [entry.manifest() for entry in world.upper.namespaces],
    )


def _without_node(pod: Manifest) -> Manifest:
    """Return the pod as it would be created again: without a node."""
    return {**pod, "spec": {field: value for field, value in pod["spec"].items() if field != "nodeName"}}


def _place_on_first(pod: Pod, snapshot: Snapshot) -> str:
    """Put a pod on the first node where it fits; return the node's name, "" for none."""
    node = next(fitting(pod, snapshot), None)
    if node is None:
        return ""
    snapshot.add(pod, node.name)
    return node.name


def _fingerprint(pod: Pod) -> _Fingerprint:
    """Return what placement compares of a pod; equal for replicas."""
    constraints = {field: pod.spec.get(field) for field in _PLACEMENT_FIELDS}
    return SORTED.encode([pod.namespace, pod.labels, pod.requests, pod.ports, constraints])


class InFlight(NamedTuple):
    """A pod that leaves, or its replacement, and since when.

    `node` is the virtual node that it leaves, "" if it has left; `owner` is the UID of its controller, "" for none.
    """

    pod: Entry
    node: str
    owner: str
    since: datetime


def in_flight(world: World) -> Iterator[InFlight]:
    """Yield the pods that leave and have no new node: evicted in this interval, drained, or being re-created.

    For each pod that its controller has created since and that is bound, one leaving pod is left out, whichever it was.
    """
    leaving = list(_recorded_evictions(world))
    known = {one.pod.uid for one in leaving}
    leaving += [one for one in _drained_pods(world) if one.pod.uid not in known]
    replaced = _count_replacements(leaving, world)
    for one in leaving:
        if one.owner and replaced[one.owner] > 0:
            replaced[one.owner] -= 1
        else:
            yield one
    yield from _backed_up_pods(world)
    yield from _unbound_replacements(world)


def reserve_room(leaving: InFlight, world: World, targets: Targets) -> None:
    """Take the room for a pod that is on its way."""
    fitting, _ = targets.others(leaving.pod, leaving.node, nodes_left_by(leaving.owner, world))
    if fitting:
        targets.move(leaving.pod, leaving.node, fitting[0])


def nodes_left_by(owner: str, world: World) -> frozenset[str]:
    """Return the virtual nodes that an owner's pods left lately; empty for pods without an owner."""
    if not owner:
        return frozenset()
    return recently_left_nodes(world.upper.nodes, world.topology.descheduler, world.now, owner)


def _recorded_evictions(world: World) -> Iterator[InFlight]:
    """Yield the pods evicted with a record on the Node, without those that have a backup."""
    for lower in world.lowers.values():
        for record in recent_evictions(lower, world):
            for upper in lower.upper_pods.select("uid", record.pod):
                if record.owner or backup_of(upper, world) is None:
                    yield InFlight(upper, lower.node, record.owner, record.at)


def _drained_pods(world: World) -> Iterator[InFlight]:
    """Yield the pods that a drain evicts, or has evicted, and whose controller creates them again."""
    for lower in world.lowers.values():
        if not is_being_drained(lower, world):
            continue
        for upper in lower.upper_pods:
            is_present = upper.facts.terminating or needs_lower_pod(upper, world.topology.exclude_namespaces)
            if not is_present or upper.facts.bare or drain_problem(upper) is not None:
                continue
            pod = upper.manifest()
            if not uses_claims(pod):
                yield InFlight(
                    upper, lower.node, str(controller_of(pod).get("uid") or ""), _replaceable_since(upper, world)
                )


def _replaceable_since(upper: Entry, world: World) -> datetime:
    """Return since when a replacement may exist: it is created as soon as the old pod begins to terminate."""
    return deleted_at(upper.manifest()) if upper.facts.terminating else world.now


def _count_replacements(leaving: list[InFlight], world: World) -> Counter[str]:
    """Return the number of each owner's pods that were created since its first one left, and are bound.

    Times are compared in whole seconds, as in the API.
    """
    first_left: dict[str, datetime] = {}
    for one in leaving:
        since = one.since.replace(microsecond=0)
        first_left[one.owner] = min(since, first_left.get(one.owner, since))
    first_left.pop("", None)
    leaving_uids = {one.pod.uid for one in leaving}
    pods = (entry for lower in world.lowers.values() for entry in lower.upper_pods) if first_left else ()
    return Counter(
        _owner_of_replacement(entry, first_left)
        for entry in pods
        if not entry.facts.bare and entry.uid not in leaving_uids
    )


def _owner_of_replacement(entry: Entry, first_left: dict[str, datetime]) -> str:
    """Return the owner of a pod that was created since its owner's pods left, "" for other pods."""
    pod = entry.manifest()
    owner, created = str(controller_of(pod).get("uid") or ""), str(metadata(pod).get("creationTimestamp") or "")
    return owner if owner in first_left and created and moment_of(created) >= first_left[owner] else ""


def _backed_up_pods(world: World) -> Iterator[InFlight]:
    """Yield the replacement of each backed-up pod that leaves or has left."""
    recorded = {record.pod for lower in world.lowers.values() for record in recent_evictions(lower, world)}
    for secret in world.upper.secrets:
        backup = backup_in(secret, world.owner) if secret.name.startswith(BACKUP) else None
        if backup is None or backup.pod is None:
            continue
        entry = Entry(secret.namespace, metadata(backup.pod)["name"], backup.uid, 0, orjson.dumps(backup.pod), None)
        node = _node_left(entry, backup, recorded, world)
        if node is not None:
            yield InFlight(entry, node, "", world.now)


def _node_left(pod: Entry, backup: PodBackup, recorded: set[str], world: World) -> str | None:
    """Return the virtual node that a backed-up pod leaves, "" if it has left, None if it stays or is re-created."""
    bound_pod = bound(backup.uid, world)
    if bound_pod is not None:
        is_evicted = backup.uid in recorded and backup.withdrawn is None and is_bare(bound_pod.pod)
        return bound_pod.lower.node if bound_pod.pod.facts.terminating or is_evicted else None
    recreated = world.upper.remade.get(pod.namespace, pod.name)
    return None if recreated is not None and recreated.facts == backup.uid else ""


def _unbound_replacements(world: World) -> Iterator[InFlight]:
    """Yield re-created pods that have no node yet."""
    for entry in world.upper.remade:
        if entry.raw and bound(entry.uid, world) is None:
            yield InFlight(entry, "", "", world.now)
