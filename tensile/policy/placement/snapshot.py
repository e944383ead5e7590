"""A cluster at one moment, as far as placement needs it: nodes, pods and storage, read from API objects and caches.

These are plain values. Simulations and reservations add pods to a copy of a snapshot to see what would follow. A check
has the shape of a kube-scheduler plugin (prepare, then filter), so that each can be compared with its original.

What placement needs of an object is read once, when the object arrives. Of nodes and of pods that are not ours nothing
else is kept, because their manifests would take ten times the memory. Our own pods are kept whole anyway, and are read
when a snapshot is made.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import msgspec
import orjson

from tensile.kube.store import Entry, Transformed
from tensile.objects import HARD, Manifest, labels, metadata, uid
from tensile.policy.placement.selectors import Labels, Test, comparisons, label_test, with_keys
from tensile.reconcile.pods.demand import Amounts, pod_requests
from tensile.reconcile.world import LowerWorld
from tensile.resources import parse_all

_WHOLE = 1000
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_LABEL_KEYS = ("matchLabelKeys", "mismatchLabelKeys")
_MAX_TERMS = 32
"""Maximum of anti-affinity terms that are kept of a pod on a node."""
_MAX_WEIGHT = 64
"""Maximum of comparisons that one of these terms may take."""
_SORTED = msgspec.json.Encoder(order="sorted")
_DISKS = ("gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd")
_TERMINAL_PHASES = ("Succeeded", "Failed")
_NAME = "kubernetes.io/metadata.name"
"""The label that Kubernetes sets on each namespace."""


class NodeTaint(NamedTuple):
    """A taint that repels pods from a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class HostPort(NamedTuple):
    """A host port of a container, on one address of the node or on all ("0.0.0.0")."""

    address: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """A required term of pod affinity or anti-affinity, within the domain of node label `key`."""

    key: str
    namespaces: frozenset[str]
    spaces: Test
    """Whether it selects, beside `namespaces`, the namespaces with these labels."""
    pods: Test
    weight: int = 1
    """How many comparisons it takes to match a pod."""
    everywhere: bool = False
    """Whether it may match pods of any namespace."""

    def matches(self, pod: "Pod", namespace_labels: Labels | None) -> bool:
        """Report whether it matches a pod, in a namespace with these labels (None: unknown)."""
        is_selected = pod.namespace in self.namespaces or (
            namespace_labels is not None and self.spaces(namespace_labels)
        )
        return is_selected and self.pods(pod.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Pod:
    """What placement needs of a pod, on a node or looking for one.

    `requests` are milli-units as the scheduler counts them, without the pod's slot. `claims` are the names of claims
    that its volumes use; those of `own_claims` are created for the pod from a template. `spec` is {} for a pod on a
    node.
    """

    namespace: str
    name: str
    uid: str
    node: str
    labels: Labels
    requests: Amounts
    ports: tuple[HostPort, ...] = ()
    near: tuple[AffinityTerm, ...] = ()
    apart: tuple[AffinityTerm, ...] = ()
    claims: tuple[str, ...] = ()
    own_claims: Mapping[str, Manifest] = field(default_factory=dict)
    disks: tuple[Manifest, ...] = ()
    ending: bool = False
    spec: Manifest = field(default_factory=dict)
    repelling_key: bytes = b""


class RepellingPods(NamedTuple):
    """The anti-affinity terms of pods that are alike, and how many of these pods each node has."""

    terms: tuple[AffinityTerm, ...]
    nodes: Counter[str]


@dataclass(slots=True, eq=False)
class Node:
    """One node and the pods on it. `allocatable` and `used` are milli-units by resource."""

    name: str
    labels: Labels
    taints: tuple[NodeTaint, ...]
    unschedulable: bool
    allocatable: Amounts
    ready: bool = True
    used: Amounts = field(default_factory=dict)
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)

    @property
    def pod_slots(self) -> int:
        """The maximum of pods on it."""
        return self.allocatable.get("pods", 0) // _WHOLE

    def copy(self) -> Self:
        """Return a copy that may be changed."""
        return replace(self, used=dict(self.used), pods=dict(self.pods))


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a cluster: objects by name (claims by namespace and name), and the data of CSI nodes.

    `limits` are the attach limits of each driver by node, `attached` each node's attached volumes ("DRIVER/HANDLE" to
    driver). `tracked` are the drivers whose free capacity counts, and `capacities` their CSIStorageCapacity objects.
    """

    claims: Mapping[tuple[str, str], Manifest] = field(default_factory=dict)
    volumes: Mapping[str, Manifest] = field(default_factory=dict)
    classes: Mapping[str, Manifest] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    attached: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tracked: frozenset[str] = frozenset()
    capacities: tuple[Manifest, ...] = ()


@dataclass(slots=True, eq=False)
class Snapshot:
    """One cluster. `spaces` are the labels of its namespaces, `population` the number of pods on nodes by namespace.

    `repelling` is the anti-affinity by namespace of its pods: a thousand replicas of one application are compared once.
    """

    nodes: dict[str, Node]
    spaces: Mapping[str, Labels] = field(default_factory=dict)
    storage: Storage = field(default_factory=Storage)
    repelling: dict[str, dict[bytes, RepellingPods]] = field(default_factory=dict)
    population: Counter[str] = field(default_factory=Counter)

    def space(self, namespace: str) -> Labels:
        """Return the labels of a namespace of a pod that looks for a node; it may be created with the pod."""
        return self.spaces.get(namespace, {_NAME: namespace})

    def add(self, pod: Pod, node: str) -> None:
        """Put a pod on a node, replacing one of its name; does nothing if the node is unknown."""
        place = self.nodes.get(node)
        if place is None:
            return
        self.remove(pod.namespace, pod.name, node)
        place.pods[pod.namespace, pod.name] = pod
        for name, amount in pod.requests.items():
            place.used[name] = place.used.get(name, 0) + amount
        self._count(pod, node)

    def remove(self, namespace: str, name: str, node: str) -> None:
        """Take a pod off a node; does nothing if it is not there."""
        place = self.nodes.get(node)
        pod = place.pods.pop((namespace, name), None) if place else None
        if place is None or pod is None:
            return
        for resource, amount in pod.requests.items():
            place.used[resource] -= amount
        self._uncount(pod, node)

    def forget(self, node: str) -> Node | None:
        """Remove a node with its pods; return it, None if it is unknown."""
        place = self.nodes.pop(node, None)
        for pod in place.pods.values() if place else ():
            self._uncount(pod, node)
        return place

    def copy(self) -> Self:
        """Return a copy to which pods may be added."""
        return replace(
            self,
            nodes={name: node.copy() for name, node in self.nodes.items()},
            repelling={
                space: {key: RepellingPods(group.terms, group.nodes.copy()) for key, group in groups.items()}
                for space, groups in self.repelling.items()
            },
            population=self.population.copy(),
        )

    def _count(self, pod: Pod, node: str) -> None:
        """Count a pod that was put on a node."""
        self.population[pod.namespace] += 1
        if pod.apart:
            groups = self.repelling.setdefault(pod.namespace, {})
            groups.setdefault(pod.repelling_key, RepellingPods(pod.apart, Counter())).nodes[node] += 1

    def _uncount(self, pod: Pod, node: str) -> None:
        """Stop counting a pod that was taken off a node."""
        self.population[pod.namespace] -= 1
        if not self.population[pod.namespace]:
            del self.population[pod.namespace]
        if not pod.apart:
            return
        groups = self.repelling[pod.namespace]
        nodes = groups[pod.repelling_key].nodes
        nodes[node] -= 1
        if not nodes[node]:
            del nodes[node]
        if not nodes:
            del groups[pod.repelling_key]
        if not groups:
            del self.repelling[pod.namespace]


NodeFilter = Callable[[Node], tuple[str, ...]]
"""Returns the reasons why a node does not fit, in kube-scheduler's words; () if it fits."""


def no_detail(_node: Node) -> str:
    """Return ""."""
    return ""


class PreparedCheck(NamedTuple):
    """A check prepared for one pod; `detail` returns details for a user about a node that does not fit."""

    judge: NodeFilter
    detail: Callable[[Node], str] = no_detail


class NoNodeFits(NamedTuple):
    """Why no node can fit, whatever its state."""

    reason: str


class Check(NamedTuple):
    """A named check; `prepare` returns None if the pod requires nothing that the check guards."""

    name: str
    prepare: Callable[[Pod, Snapshot], PreparedCheck | NoNodeFits | None]


def failing(reason: str, *nodes: str) -> PreparedCheck:
    """Return a check that fails for the named nodes only."""
    names, reasons = frozenset(nodes), (reason,)
    return PreparedCheck(lambda node: reasons if node.name in names else ())


def snapshot_of(
    nodes: Iterable[Manifest],
    pods: Iterable[Manifest],
    spaces: Iterable[Manifest] = (),
    storage: Storage | None = None,
) -> Snapshot:
    """Return a snapshot of API objects; pods in a terminal phase take no room."""
    found = Snapshot(
        {node.name: node for node in map(node_of, nodes)},
        {metadata(one)["name"]: labels(one) for one in spaces},
        storage or Storage(),
    )
    for manifest in pods:
        if (manifest.get("status") or {}).get("phase") not in _TERMINAL_PHASES and manifest["spec"].get("nodeName"):
            pod = pod_of(manifest, settled=True)
            found.add(pod, pod.node)
    return found


def node_of(manifest: Manifest) -> Node:
    """Return a node."""
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    taints = (NodeTaint(one["key"], one.get("value") or "", one["effect"]) for one in spec.get("taints") or ())
    return Node(
        metadata(manifest)["name"],
        labels(manifest),
        tuple(taint for taint in taints if taint.effect in HARD),
        bool(spec.get("unschedulable")),
        parse_all(status.get("allocatable") or {}),
        ready=any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ()),
    )


def pod_of(manifest: Manifest, *, settled: bool = False) -> Pod:
    """Return a pod; of one that has `settled` on its node, spec and pod affinity are not kept.

    Anti-affinity that is expensive to compare is not kept either then. It is compared with every pod that looks for a
    node, so anyone who may create a pod could delay all others.
    """
    meta, spec = metadata(manifest), manifest["spec"]
    namespace = meta.get("namespace") or "default"
    volumes: list[Manifest] = spec.get("volumes") or []
    templates = {f"{meta['name']}-{one['name']}": one["ephemeral"] for one in volumes if one.get("ephemeral")}
    mounted = [one["persistentVolumeClaim"]["claimName"] for one in volumes if one.get("persistentVolumeClaim")]
    apart = _terms(manifest, namespace, "podAntiAffinity")
    if settled:
        apart = tuple(term for term in apart[:_MAX_TERMS] if term.weight <= _MAX_WEIGHT)
    return Pod(
        namespace,
        meta["name"],
        uid(manifest),
        spec.get("nodeName") or "",
        labels(manifest),
        requests_of(manifest),
        tuple(_host_ports(spec)),
        near=() if settled else _terms(manifest, namespace, "podAffinity"),
        apart=apart,
        claims=(*mounted, *templates),
        own_claims=templates,
        disks=tuple(one for one in volumes if any(kind in one for kind in _DISKS)),
        ending=bool(meta.get("deletionTimestamp")),
        spec={} if settled else spec,
        repelling_key=_repelling_key(manifest) if apart else b"",
    )


def requests_of(manifest: Manifest) -> Amounts:
    """Return what a pod requests, as the scheduler counts it.

    That is without its slot and zeros, and in whole units of all but cpu.
    """
    return {
        name: amount if name == "cpu" else -(-amount // _WHOLE) * _WHOLE
        for name, amount in pod_requests(manifest).items()
        if amount and name != "pods"
    }


def _host_ports(spec: Manifest) -> Iterable[HostPort]:
    """Yield the host ports of containers and sidecars."""
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    for container in (*sidecars, *spec["containers"]):
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                yield HostPort(port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", port["hostPort"])  # noqa: S104 - as the API writes all addresses


def _repelling_key(manifest: Manifest) -> bytes:
    """Return a key that is equal for pods of one namespace that repel the same pods."""
    terms = manifest["spec"]["affinity"]["podAntiAffinity"][_REQUIRED]
    keys = {key for term in terms for field in _LABEL_KEYS for key in term.get(field) or ()}
    pod_labels = labels(manifest)
    return _SORTED.encode([terms, {key: pod_labels.get(key) for key in keys}])


def _terms(manifest: Manifest, namespace: str, kind: str) -> tuple[AffinityTerm, ...]:
    """Return the required terms of pod affinity or anti-affinity."""
    affinity = (manifest["spec"].get("affinity") or {}).get(kind) or {}
    return tuple(_term(one, namespace, labels(manifest)) for one in affinity.get(_REQUIRED) or ())


def _term(term: Manifest, namespace: str, pod_labels: Labels) -> AffinityTerm:
    """Return one such term."""
    names, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    pods = with_keys(
        term.get("labelSelector"), pod_labels, term.get("matchLabelKeys") or (), term.get("mismatchLabelKeys") or ()
    )
    is_own_namespace = not names and selector is None
    return AffinityTerm(
        term["topologyKey"],
        frozenset({namespace} if is_own_namespace else names),
        label_test(selector),
        label_test(pods),
        1 + comparisons(selector) + comparisons(pods),
        everywhere=selector is not None,
    )


def storage_of(
    *,
    claims: Iterable[Manifest] = (),
    volumes: Iterable[Manifest] = (),
    classes: Iterable[Manifest] = (),
    csi_nodes: Iterable[Manifest] = (),
    attachments: Iterable[Manifest] = (),
    drivers: Iterable[Manifest] = (),
    capacities: Iterable[Manifest] = (),
) -> Storage:
    """Return the storage of a cluster from lists of API objects."""
    by_name = {metadata(one)["name"]: one for one in volumes}
    return Storage(
        {(metadata(one)["namespace"], metadata(one)["name"]): one for one in claims},
        by_name,
        {metadata(one)["name"]: one for one in classes},
        {metadata(one)["name"]: _limits(one) for one in csi_nodes},
        _attached(attachments, by_name),
        frozenset(metadata(one)["name"] for one in drivers if (one.get("spec") or {}).get("storageCapacity")),
        tuple(capacities),
    )


def _limits(csi_node: Manifest) -> dict[str, int]:
    """Return the attach limit of each driver on a node that has one."""
    drivers = csi_node["spec"].get("drivers") or ()
    counts = {one["name"]: (one.get("allocatable") or {}).get("count") for one in drivers}
    return {name: count for name, count in counts.items() if count is not None}


def _attached(attachments: Iterable[Manifest], volumes: Mapping[str, Manifest]) -> dict[str, dict[str, str]]:
    """Return the attached CSI volumes of each node: "DRIVER/HANDLE" to driver."""
    found: dict[str, dict[str, str]] = {}
    for spec in (one["spec"] for one in attachments):
        volume = volumes.get((spec.get("source") or {}).get("persistentVolumeName") or "")
        source = volume["spec"].get("csi") if volume else None
        if source and spec.get("attacher"):
            found.setdefault(spec["nodeName"], {})[f"{spec['attacher']}/{source['volumeHandle']}"] = spec["attacher"]
    return found


def transform_node(raw: bytes) -> Transformed:
    """Return for the cache what placement compares of a lower node: a `Node` without pods, which is not modified."""
    return Transformed(b"", node_of(orjson.loads(raw)))


def transform_pod(raw: bytes) -> Transformed:
    """Return for the cache what a lower pod takes of its node: a `Pod`, or None if it takes nothing."""
    pod: Manifest = orjson.loads(raw)
    takes_room = pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in _TERMINAL_PHASES
    return Transformed(b"", pod_of(pod, settled=True) if takes_room else None)


def is_known(lower: LowerWorld) -> bool:
    """Report whether all caches for a snapshot of a lower cluster are synced."""
    caches = (*lower.place_caches(), lower.pods, lower.upper_pods, lower.namespaces)
    return all(cache.synced for cache in caches)


def snapshot_now(lower: LowerWorld) -> Snapshot:
    """Return a snapshot of a lower cluster: its nodes with all bound pods, but no claims and volumes."""
    nodes: dict[str, Any] = {entry.name: entry.facts.copy() for entry in lower.place_nodes}
    found = Snapshot(nodes, {entry.name: labels(entry.manifest()) for entry in lower.namespaces})
    foreign_pods = (entry.facts for entry in lower.place_pods if entry.facts is not None)
    for pod in (*foreign_pods, *filter(None, map(_bound, lower.pods))):
        found.add(pod, pod.node)
    return found


def _bound(entry: Entry) -> Pod | None:
    """Return a pod of ours that has its node, None for one that takes nothing."""
    pod = {} if entry.facts.terminal else entry.manifest()
    return pod_of(pod, settled=True) if pod and pod["spec"].get("nodeName") else None
