"""A snapshot of the topology, the upper cluster and every lower one, as far as placement depends on them.

`tensile simulate --save` writes it to a file, so that a simulation can run where no cluster is reachable. Only fields
that placement reads are kept. Environment variables, commands and annotations of pods are left out, since people share
snapshots.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import orjson

from tensile.engine import lower_transitions
from tensile.engine.caches import lower_world, upper_world
from tensile.errors import TensileError
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.kubelet.pods.sync import lower_context_of
from tensile.names import LOWER, LOWER_UID, NAMESPACE_MAPPING, OWNER, OWNER_NAME, UPPER_UID, Owner, owner_of
from tensile.objects import (
    ATTACHMENT,
    CLAIM,
    CSI_CAPACITY,
    CSI_DRIVER,
    CSI_NODE,
    NAMESPACE,
    NODE,
    POD,
    QUOTA,
    STORAGE_CLASS,
    VOLUME,
    Kind,
    Manifest,
    annotations,
    labels,
    metadata,
    uid,
)
from tensile.policy.placement.snapshot import Snapshot, snapshot_of, storage_of
from tensile.policy.placement.volume_checks import DEFAULT_CLASS_KEYS
from tensile.reconcile.rules.claim_rule import lower_claim
from tensile.reconcile.rules.claims import class_of, mapped
from tensile.reconcile.world import Key, LowerWorld, NamespaceNaming, World
from tensile.topology import Lower, Topology

KINDS = (
    NODE,
    POD,
    NAMESPACE,
    QUOTA,
    CLAIM,
    VOLUME,
    STORAGE_CLASS,
    CSI_NODE,
    CSI_DRIVER,
    CSI_CAPACITY,
    ATTACHMENT,
)
NEEDED = (NODE, POD)
"""Kinds without which a cluster counts as unreadable.

If another kind cannot be read, that is reported, and the cluster is assumed to have no objects of it.
"""
_METADATA = (
    "name",
    "namespace",
    "uid",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
)
_ANNOTATIONS = (
    UPPER_UID,
    LOWER,
    LOWER_UID,
    OWNER_NAME,
    NAMESPACE_MAPPING,
    "pv.kubernetes.io/bind-completed",
    "volume.kubernetes.io/selected-node",
    "volume.beta.kubernetes.io/storage-class",
    *DEFAULT_CLASS_KEYS,
)
_POD = (
    "nodeName",
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "overhead",
    "resources",
    "schedulerName",
)
_CONTAINER = ("name", "resources", "ports", "restartPolicy")
_VOLUMES = ("persistentVolumeClaim", "ephemeral", "gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd")
_POD_STATUS = ("phase", "containerStatuses", "initContainerStatuses", "resources", "allocatedResources", "conditions")
_STATUS_OF_CONTAINER = ("name", "resources", "allocatedResources")
_LISTED = {
    "containerStatuses": _STATUS_OF_CONTAINER,
    "initContainerStatuses": _STATUS_OF_CONTAINER,
    "conditions": ("type", "status", "reason"),
}
_FORMAT = 1
_POD_RULE = "pod"


class ClusterSnapshot(msgspec.Struct, forbid_unknown_fields=True):
    """One cluster: its objects by the plural of their kind, or why it could not be read (`trouble`; "": it could).

    `unread` lists the kinds that could not be read, with the errors.
    """

    name: str
    objects: dict[str, list[dict[str, Any]]] = {}
    trouble: str = ""
    unread: list[str] = []

    def all(self, kind: Kind) -> list[Manifest]:
        """Return the objects of a kind."""
        return self.objects.get(kind.plural, [])

    @property
    def identity(self) -> str:
        """The UID of namespace kube-system, "" if it was not read."""
        return next((uid(one) for one in self.all(NAMESPACE) if metadata(one)["name"] == "kube-system"), "")

    def snapshot(self, without: str = "", more_claims: tuple[Manifest, ...] = ()) -> Snapshot:
        """Return the cluster as placement reads it, without the pod of a UID, and with claims that do not exist yet."""
        pods = (one for one in self.all(POD) if not without or metadata(one).get("uid") != without)
        return snapshot_of(
            self.all(NODE),
            pods,
            self.all(NAMESPACE),
            storage_of(
                claims=[*more_claims, *self.all(CLAIM)],
                volumes=self.all(VOLUME),
                classes=self.all(STORAGE_CLASS),
                csi_nodes=self.all(CSI_NODE),
                attachments=self.all(ATTACHMENT),
                drivers=self.all(CSI_DRIVER),
                capacities=self.all(CSI_CAPACITY),
            ),
        )


class UpperObject(NamedTuple):
    """An object of the upper cluster as it is stored ({} for none), and its events.

    `lease` is the Lease of a Node, or of a pod's node: {} if there is none, None if it was not read. `budgets` are the
    PodDisruptionBudgets of the namespace of a pod whose lower cluster is drained, as far as they can be read.
    """

    manifest: Manifest
    events: list[Manifest]
    lease: Manifest | None = None
    budgets: tuple[Manifest, ...] = ()


class FleetSnapshot:
    """A snapshot of all clusters; `lowers` are those of the topology, in its order."""

    def __init__(
        self, topology: Topology, upper_uid: str, upper: ClusterSnapshot, lowers: list[ClusterSnapshot], now: datetime
    ) -> None:
        self.topology = topology
        self.upper_uid = upper_uid
        self.upper = upper
        owner, seen = owner_of(upper_uid, topology.name), {snapshot.name: snapshot for snapshot in lowers}
        self.lowers = _recognized(
            {spec.name: seen.get(spec.name) or _missing_cluster(spec.name) for spec in topology.lowers},
            {spec.name: _recorded_identity(upper, spec, owner) for spec in topology.lowers},
        )
        self.world = World(topology, owner, upper_world(), now)
        self.world.upper.nodes.replace([orjson.dumps(node) for node in upper.all(NODE)], 1)
        for spec in topology.lowers:
            self.world.lowers[spec.name] = self._lower(spec)

    @property
    def owner(self) -> Owner:
        """The owner of the mirrored objects."""
        return self.world.owner

    def lower_namespace(self, lower: str, namespace: str) -> str:
        """Return the lower cluster's namespace for an upper namespace."""
        return self.world.lowers[lower].namespace(namespace)

    def node(self, name: str) -> Manifest:
        """Return a Node of the upper cluster, {} if there is none."""
        return next((one for one in self.upper.all(NODE) if metadata(one)["name"] == name), {})

    def counterpart(self, upper: Manifest, kind: Kind, lower: str) -> Manifest:
        """Return what a lower has in the place of an upper object's copy, {} for nothing."""
        namespace_and_name = (self.lower_namespace(lower, metadata(upper)["namespace"]), metadata(upper)["name"])
        for one in self.lowers[lower].all(kind):
            if (metadata(one)["namespace"], metadata(one)["name"]) == namespace_and_name:
                return one
        return {}

    def is_copy_of(self, lower: Manifest, upper: Manifest) -> bool:
        """Report whether what a lower has in the place of an upper object's copy is marked as that copy.

        Marks alone do not identify a copy: whoever may create objects in the lower cluster can write them.
        """
        return labels(lower).get(OWNER) == self.owner.mark and annotations(lower).get(UPPER_UID) == uid(upper)

    def projected_pod(self, upper_pod: Manifest, lower: str) -> Manifest:
        """Return the lower pod that the engine would create for an upper pod."""
        meta = metadata(upper_pod)
        namespace, lower_state = meta.get("namespace") or "default", self.world.lowers[lower]
        namespace_object = next(
            (
                one
                for one in self.lowers[lower].all(NAMESPACE)
                if metadata(one)["name"] == lower_state.namespace(namespace)
            ),
            {},
        )
        key = Key(_POD_RULE, lower, namespace, meta["name"])
        return to_lower_pod(upper_pod, lower_context_of(uid(namespace_object), key, lower_state, self.world))

    def snapshot(self, lower: str, upper_pods: Iterable[Manifest], without: str = "") -> Snapshot:
        """Return a lower as pods would find it: with the claims that the engine creates for them.

        `without` is the UID of a pod to leave out.
        """
        return self.lowers[lower].snapshot(
            without, tuple(one for pod in upper_pods for one in self._claims(lower, pod))
        )

    def to_bytes(self) -> bytes:
        """Return the snapshot as the content of a file."""
        file = SnapshotFile(_FORMAT, self.topology.name, self.upper_uid, self.upper, list(self.lowers.values()))
        return orjson.dumps(msgspec.to_builtins(file))

    def _lower(self, spec: Lower) -> LowerWorld:
        lower = lower_world(spec, NamespaceNaming(self.topology.name, self.owner.mark))
        lower.nodes.replace([orjson.dumps(node) for node in self.lowers[spec.name].all(NODE)], 1)
        lower_transitions.adopt_noted_mapping(lower, self.world)
        return lower

    def _claims(self, lower: str, upper_pod: Manifest) -> list[Manifest]:
        """Return the lower claims that the engine would create for the claims of a pod."""
        spec = self.world.lowers[lower].spec
        if "PV" not in spec.controllers:
            return []
        namespace = metadata(upper_pod).get("namespace") or "default"
        names = claim_names(upper_pod)
        upper_claims = [one for one in self.upper.all(CLAIM) if metadata(one)["namespace"] == namespace]
        lower_namespace = self.lower_namespace(lower, namespace)
        return [
            lower_claim(
                one,
                self.owner,
                lower_namespace,
                class_name if (class_name := class_of(one)) is None else mapped(spec.storage_classes, class_name),
            )
            for one in upper_claims
            if metadata(one)["name"] in names
        ]


class SnapshotFile(msgspec.Struct, forbid_unknown_fields=True):
    """The format of the file."""

    formatVersion: int  # noqa: N815 - as in other documents of this project
    topology: str
    upperUID: str  # noqa: N815
    upper: ClusterSnapshot
    lowers: list[ClusterSnapshot]


class _Meta(msgspec.Struct):
    """The metadata that every object has."""

    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _NamespacedMeta(_Meta, kw_only=True):
    """The metadata that every namespaced object has."""

    namespace: str


class _Object(msgspec.Struct):
    """A cluster-scoped object."""

    metadata: _Meta


class _NamespacedObject(msgspec.Struct):
    """A namespaced object."""

    metadata: _NamespacedMeta


class _PodSpec(msgspec.Struct):
    """The part of a spec that every pod has."""

    containers: list[dict[str, Any]]


class _Pod(_NamespacedObject):
    """A pod."""

    spec: _PodSpec


class _Specified(_Object):
    """A cluster-scoped object that must have a spec."""

    spec: dict[str, Any]


_SCHEMAS = {POD: _Pod, VOLUME: _Specified, CSI_NODE: _Specified}


def parse_snapshot(data: bytes, topology: Topology, now: datetime, name: str) -> FleetSnapshot:
    """Return the snapshot in a file.

    Raises TensileError, with the file's name, if it is invalid, or of another format or topology.
    """
    try:
        found = msgspec.json.decode(data, type=SnapshotFile)
    except msgspec.MsgspecError as error:
        raise TensileError(f"{name}: not a snapshot of `tensile simulate --save`: {error}") from None
    if found.formatVersion != _FORMAT:
        raise TensileError(f"{name}: a snapshot of another release (format {found.formatVersion}): save a new one")
    if found.topology != topology.name:
        raise TensileError(
            f"{name}: a snapshot of topology {found.topology}, not {topology.name}: use the file of that topology"
        )
    if problem := next(
        (problem for snapshot in (found.upper, *found.lowers) for problem in _invalid_objects(snapshot)), ""
    ):
        raise TensileError(f"{name}: not a valid snapshot: {problem}: save a new one")
    return FleetSnapshot(topology, found.upperUID, found.upper, found.lowers, now)


def _recorded_identity(upper: ClusterSnapshot, spec: Lower, owner: Owner) -> str:
    """Return the identity that the Node of a lower records, "" for none."""
    nodes = (one for one in upper.all(NODE) if metadata(one)["name"] == spec.node.name)
    return next((annotations(one).get(LOWER_UID, "") for one in nodes if labels(one).get(OWNER) == owner.mark), "")


def _recognized(snapshots: Mapping[str, ClusterSnapshot], recorded: Mapping[str, str]) -> dict[str, ClusterSnapshot]:
    """Return each lower, with only an error in it if it is another cluster than its Node records."""
    reached = {name: snapshot.identity for name, snapshot in snapshots.items()}
    found = dict(snapshots)
    for name, snapshot in snapshots.items():
        actual, expected = reached[name], recorded[name]
        if actual and expected and actual != expected:
            other = next((one for one in snapshots if one != name and actual in (recorded[one], reached[one])), "")
            same_cluster = f", the same cluster as lower {other}" if other else ""
            error = f"a different cluster responds{same_cluster} (kube-system UID {actual}, expected {expected})"
            found[name] = ClusterSnapshot(snapshot.name, trouble=error)
    return found


def claim_names(pod: Manifest) -> list[str]:
    """Return the names of the claims that a pod mounts."""
    mounted = (one.get("persistentVolumeClaim") or {} for one in pod["spec"].get("volumes") or ())
    return [one["claimName"] for one in mounted if one.get("claimName")]


def _missing_cluster(name: str) -> ClusterSnapshot:
    return ClusterSnapshot(name, trouble="the snapshot does not have this cluster")


def _invalid_objects(snapshot: ClusterSnapshot) -> Iterator[str]:
    """Yield each object that lacks a field which it has in every cluster: a user may have edited the file."""
    for kind in KINDS:
        for index, one in enumerate(snapshot.all(kind)):
            try:
                msgspec.convert(one, _SCHEMAS.get(kind, _NamespacedObject if kind.namespaced else _Object))
            except msgspec.ValidationError as error:
                yield f"{snapshot.name or 'upper'}: {kind.plural}[{index}]: {error}"


def pruned(kind: Kind, manifest: Manifest) -> Manifest:
    """Return an object with only the fields that a snapshot keeps."""
    meta = _selected_fields(metadata(manifest), _METADATA)
    kept_annotations = _selected_fields(metadata(manifest).get("annotations") or {}, _ANNOTATIONS)
    content = {name: value for name, value in manifest.items() if name not in ("metadata", "apiVersion", "kind")}
    if kind == POD:
        content = {"spec": _spec(manifest["spec"]), "status": _status(manifest.get("status") or {})}
    if kind == NODE:
        content["status"] = _selected_fields(manifest.get("status") or {}, ("allocatable", "conditions"))
    return {"metadata": meta | ({"annotations": kept_annotations} if kept_annotations else {}), **content}


def _spec(spec: Manifest) -> Manifest:
    lists = {
        "containers": [_selected_fields(one, _CONTAINER) for one in spec["containers"]],
        "initContainers": [_selected_fields(one, _CONTAINER) for one in spec.get("initContainers") or ()],
        "volumes": [
            _selected_fields(one, ("name", *_VOLUMES))
            for one in spec.get("volumes") or ()
            if one.keys() & set(_VOLUMES)
        ],
    }
    return _selected_fields(spec, _POD) | {name: value for name, value in lists.items() if value}


def _status(status: Manifest) -> Manifest:
    found = _selected_fields(status, _POD_STATUS)
    for name, fields in _LISTED.items():
        if found.get(name):
            found[name] = [_selected_fields(one, fields) for one in found[name]]
    return found


def _selected_fields(manifest: Mapping[str, Any], names: tuple[str, ...]) -> Manifest:
    return {name: manifest[name] for name in names if name in manifest}
