"""Reads API objects into a snapshot, and the caches of a lower cluster.

What placement needs of an object is read once, when the object arrives. Of nodes and of pods that are not ours nothing
else is kept, because their manifests would take ten times the memory. Our own pods are kept whole anyway, and are read
when a snapshot is made.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import orjson

from tensile.kube.store import Entry, Transformed
from tensile.objects import HARD, Manifest, labels, metadata, uid
from tensile.policy.placement.selectors import Labels, comparisons, label_test, with_keys
from tensile.policy.placement.snapshot import AffinityTerm, HostPort, Node, NodeTaint, Pod, Snapshot, Storage
from tensile.reconcile.pods.demand import Amounts, pod_requests
from tensile.reconcile.world import LowerWorld
from tensile.resources import parse_all

_WHOLE = 1000
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_LABEL_KEYS = ("matchLabelKeys", "mismatchLabelKeys")
_MOST_TERMS = 32
"""Maximum of anti-affinity terms that are kept of a pod on a node."""
_HEAVIEST = 64
"""Maximum of comparisons that one of these terms may take."""
_SORTED = msgspec.json.Encoder(order="sorted")
_DISKS = ("gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd")
_ENDED = ("Succeeded", "Failed")


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
        if (manifest.get("status") or {}).get("phase") not in _ENDED and manifest["spec"].get("nodeName"):
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
        apart = tuple(term for term in apart[:_MOST_TERMS] if term.weight <= _HEAVIEST)
    return Pod(
        namespace,
        meta["name"],
        uid(manifest),
        spec.get("nodeName") or "",
        labels(manifest),
        _rounded(pod_requests(manifest)),
        tuple(_host_ports(spec)),
        near=() if settled else _terms(manifest, namespace, "podAffinity"),
        apart=apart,
        claims=(*mounted, *templates),
        own_claims=templates,
        disks=tuple(one for one in volumes if any(kind in one for kind in _DISKS)),
        ending=bool(meta.get("deletionTimestamp")),
        spec={} if settled else spec,
        guard=_guard(manifest) if apart else b"",
    )


def _rounded(requests: Amounts) -> Amounts:
    """Return requests without the pod's slot and zeros, all but cpu in whole units, as the scheduler counts them."""
    return {
        name: amount if name == "cpu" else -(-amount // _WHOLE) * _WHOLE
        for name, amount in requests.items()
        if amount and name != "pods"
    }


def _host_ports(spec: Manifest) -> Iterable[HostPort]:
    """Yield the host ports of containers and sidecars."""
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    for container in (*sidecars, *spec["containers"]):
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                yield HostPort(port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", port["hostPort"])  # noqa: S104 - as the API writes all addresses


def _guard(manifest: Manifest) -> bytes:
    """Return a key that is equal for pods of one namespace that repel the same pods."""
    terms = manifest["spec"]["affinity"]["podAntiAffinity"][_REQUIRED]
    keys = {key for term in terms for field in _LABEL_KEYS for key in term.get(field) or ()}
    carried = labels(manifest)
    return _SORTED.encode([terms, {key: carried.get(key) for key in keys}])


def _terms(manifest: Manifest, namespace: str, kind: str) -> tuple[AffinityTerm, ...]:
    """Return the required terms of pod affinity or anti-affinity."""
    affinity = (manifest["spec"].get("affinity") or {}).get(kind) or {}
    return tuple(_term(one, namespace, labels(manifest)) for one in affinity.get(_REQUIRED) or ())


def _term(term: Manifest, namespace: str, own: Labels) -> AffinityTerm:
    """Return one such term."""
    names, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    pods = with_keys(
        term.get("labelSelector"), own, term.get("matchLabelKeys") or (), term.get("mismatchLabelKeys") or ()
    )
    own_only = not names and selector is None
    return AffinityTerm(
        term["topologyKey"],
        frozenset({namespace} if own_only else names),
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


def digest_node(raw: bytes) -> Transformed:
    """Return for the cache what placement compares of a lower node: a `Node` without pods, which is not modified."""
    return Transformed(b"", node_of(orjson.loads(raw)))


def digest_pod(raw: bytes) -> Transformed:
    """Return for the cache what a lower pod takes of its node: a `Pod`, or None if it takes nothing."""
    pod: Manifest = orjson.loads(raw)
    takes = pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in _ENDED
    return Transformed(b"", pod_of(pod, settled=True) if takes else None)


def is_known(lower: LowerWorld) -> bool:
    """Report whether all caches for a snapshot of a lower cluster are synced."""
    caches = (*lower.place_caches(), lower.pods, lower.upper_pods, lower.namespaces)
    return all(cache.synced for cache in caches)


def snapshot_now(lower: LowerWorld) -> Snapshot:
    """Return a snapshot of a lower cluster: its nodes with all bound pods, but no claims and volumes."""
    nodes: dict[str, Any] = {entry.name: entry.facts.copy() for entry in lower.place_nodes}
    found = Snapshot(nodes, {entry.name: labels(entry.manifest()) for entry in lower.namespaces})
    theirs = (entry.facts for entry in lower.place_pods if entry.facts is not None)
    for pod in (*theirs, *filter(None, map(_bound, lower.pods))):
        found.add(pod, pod.node)
    return found


def _bound(entry: Entry) -> Pod | None:
    """Return a pod of ours that has its node, None for one that takes nothing."""
    pod = {} if entry.facts.terminal else entry.manifest()
    return pod_of(pod, settled=True) if pod and pod["spec"].get("nodeName") else None
