"""The rules of mirrored kinds, the kinds that each controller watches, and the check of each object that arrives.

A controller is a few rules and the kinds that they read, on both sides, besides those that all pods need. Only those of
enabled controllers are listed: without a controller, its kinds need no permissions.

A Kubernetes apiserver serves typed objects, so decisions rely on the types. Another server may return anything, and a
number instead of a list would raise an error within a decision, perhaps about another cluster. So each object of a
lower cluster is checked once when it arrives: one with a field of a wrong type is Malformed, and is not cached. Values
are not checked, and fields that no code reads may have any type.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, get_args

import msgspec

from tensile.kube.cluster import Selection
from tensile.kube.store import Cache, Index, Transform, Transformed, decoded, keep_all
from tensile.names import OWNER, Owner
from tensile.objects import (
    CLAIM,
    CLUSTER_ROLE,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    VOLUME,
    Kind,
)
from tensile.reconcile.rules import claims, config, endpoint_slices, rbac, service_accounts, services, volumes
from tensile.reconcile.rules.mirror_rule import MirroredKind, MirrorRule
from tensile.topology import Controller

MIRRORED: tuple[MirrorRule, ...] = (
    config.RULE,
    service_accounts.RULE,
    rbac.RULE,
    services.RULE,
    endpoint_slices.RULE,
)
"""The rules of mirrored kinds, in the order in which their keys are listed. CONTRIBUTING.md says how to add one."""


class WatchedKind(NamedTuple):
    """One watched kind, in the upper cluster (`is_upper`) or in each lower, and how it is cached.

    With `ours`, only objects with our mark are watched.
    """

    kind: Kind
    is_upper: bool
    ours: bool = False
    transform: Transform = keep_all
    indexes: Mapping[str, Index] = {}

    def selection(self, owner: Owner) -> Selection:
        """Return which objects are watched."""
        return Selection(labels=f"{OWNER}={owner.mark}") if self.ours else Selection()


_ADDITIONAL: dict[Controller, tuple[WatchedKind, ...]] = {
    "PV": (
        WatchedKind(CLAIM, is_upper=True, transform=claims.transform, indexes=claims.INDEXES),
        WatchedKind(VOLUME, is_upper=True, ours=True, transform=volumes.transform, indexes=volumes.INDEXES),
        WatchedKind(STORAGE_CLASS, is_upper=True),
        WatchedKind(CLAIM, is_upper=False, ours=True, transform=claims.transform, indexes=claims.INDEXES),
        WatchedKind(VOLUME, is_upper=False, transform=volumes.transform_lower, indexes=volumes.LOWER_INDEXES),
    ),
    "RBAC": (WatchedKind(CLUSTER_ROLE, is_upper=False, transform=rbac.existence),),
}


def follows(rules: Sequence[MirrorRule]) -> dict[Controller, tuple[WatchedKind, ...]]:
    """Return the kinds by controller: the originals and our copies of those that it mirrors, and what else it reads."""
    found: dict[Controller, tuple[WatchedKind, ...]] = {}
    for controller in get_args(Controller):
        mirrored = (one for rule in rules if rule.controller == controller for one in rule.kinds)
        found[controller] = (*(side for one in mirrored for side in _sides(one)), *_ADDITIONAL.get(controller, ()))
    return found


def _sides(one: MirroredKind) -> Iterator[WatchedKind]:
    yield WatchedKind(one.kind, is_upper=True, transform=one.transform_upper, indexes=one.upper_indexes)
    yield WatchedKind(one.kind, is_upper=False, ours=True, transform=one.transform_lower, indexes=one.lower_indexes)


FOLLOWS = follows(MIRRORED)
"""The kinds by controller. A kind that two controllers watch on one side is the same in both."""


def watched_kinds(controllers: Iterable[Controller], *, is_upper: bool) -> dict[Kind, WatchedKind]:
    """Return what these controllers watch on one side."""
    found = (watched for controller in controllers for watched in FOLLOWS[controller])
    return {watched.kind: watched for watched in found if watched.is_upper == is_upper}


def caches(*, is_upper: bool) -> dict[Kind, Cache]:
    """Create a cache for each kind that any controller watches on one side. It is not synced until it is fed."""
    return {kind: cache_of(one) for kind, one in watched_kinds(FOLLOWS, is_upper=is_upper).items()}


def cache_of(one: WatchedKind) -> Cache:
    """Create the cache of a kind. Objects of a lower cluster are checked before they are transformed."""
    return Cache(one.transform if one.is_upper else checked(one.kind, one.transform), one.indexes)


class _AnyObject(msgspec.Struct, gc=False):
    """An object with any content: checking it would require a copy."""


OptionalObject = _AnyObject | None
OptionalObjects = list[_AnyObject] | None
OptionalStrings = dict[str, str] | None
OptionalQuantities = dict[str, str | int | float] | None


class _Owner(msgspec.Struct, gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class _Keys(msgspec.Struct, gc=False):
    labels: OptionalObject = msgspec.field(default=None, name="f:labels")
    annotations: OptionalObject = msgspec.field(default=None, name="f:annotations")


class _Fields(msgspec.Struct, gc=False):
    metadata: _Keys | None = msgspec.field(default=None, name="f:metadata")
    spec: OptionalObject = msgspec.field(default=None, name="f:spec")


class _ManagedFieldsEntry(msgspec.Struct, gc=False):
    """An entry of managedFields."""

    manager: str = ""
    subresource: str = ""
    fieldsV1: _Fields | None = None  # noqa: N815 - the API's spelling, here and below


class _Metadata(msgspec.Struct, gc=False):
    name: str
    uid: str = ""
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815
    generation: int | None = None
    labels: OptionalStrings = None
    annotations: OptionalStrings = None
    finalizers: list[str] | None = None
    ownerReferences: list[_Owner] | None = None  # noqa: N815
    managedFields: list[_ManagedFieldsEntry] | None = None  # noqa: N815
    creationTimestamp: str | None = None  # noqa: N815
    deletionTimestamp: datetime | None = None  # noqa: N815
    deletionGracePeriodSeconds: int | None = None  # noqa: N815


class _Condition(msgspec.Struct, gc=False):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    lastTransitionTime: str | None = None  # noqa: N815
    observedGeneration: int | None = None  # noqa: N815


class _Named(msgspec.Struct, gc=False):
    name: str


class _Resources(msgspec.Struct, gc=False):
    requests: OptionalQuantities = None
    limits: OptionalQuantities = None


class _Container(_Named, gc=False):
    resources: _Resources | None = None
    restartPolicy: str | None = None  # noqa: N815
    ports: OptionalObjects = None
    env: OptionalObjects = None
    envFrom: OptionalObjects = None  # noqa: N815
    volumeMounts: OptionalObjects = None  # noqa: N815


class _State(msgspec.Struct, gc=False):
    waiting: OptionalObject = None
    running: OptionalObject = None
    terminated: OptionalObject = None


class _ContainerStatus(_Named, gc=False):
    ready: bool | None = None
    restartCount: int | None = None  # noqa: N815
    state: _State | None = None
    lastState: _State | None = None  # noqa: N815
    containerID: str | None = None  # noqa: N815
    resources: _Resources | None = None
    allocatedResources: OptionalQuantities = None  # noqa: N815


class _PodSpec(msgspec.Struct, gc=False):
    containers: list[_Container]
    initContainers: list[_Container] | None = None  # noqa: N815
    ephemeralContainers: list[_Container] | None = None  # noqa: N815
    volumes: list[_Named] | None = None
    nodeName: str | None = None  # noqa: N815
    serviceAccountName: str | None = None  # noqa: N815
    imagePullSecrets: OptionalObjects = None  # noqa: N815
    nodeSelector: OptionalStrings = None  # noqa: N815
    tolerations: OptionalObjects = None
    affinity: OptionalObject = None
    overhead: OptionalQuantities = None
    resources: _Resources | None = None


class _PodStatus(msgspec.Struct, gc=False):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: list[_Condition] | None = None
    containerStatuses: list[_ContainerStatus] | None = None  # noqa: N815
    initContainerStatuses: list[_ContainerStatus] | None = None  # noqa: N815
    ephemeralContainerStatuses: list[_ContainerStatus] | None = None  # noqa: N815
    podIP: str | None = None  # noqa: N815
    hostIP: str | None = None  # noqa: N815
    podIPs: list[dict[str, str]] | None = None  # noqa: N815
    hostIPs: list[dict[str, str]] | None = None  # noqa: N815
    observedGeneration: int | None = None  # noqa: N815
    resources: _Resources | None = None
    allocatedResources: OptionalQuantities = None  # noqa: N815


class _Any(msgspec.Struct, gc=False):
    """An object of a kind of which decisions only read the metadata, and compare the rest as a whole."""

    metadata: _Metadata
    spec: OptionalObject = None
    status: OptionalObject = None


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus | None = None


class _Data(msgspec.Struct, gc=False):
    metadata: _Metadata
    data: OptionalStrings = None
    binaryData: OptionalStrings = None  # noqa: N815
    type: str | None = None
    immutable: bool | None = None


class _ServiceSpec(msgspec.Struct, gc=False):
    type: str | None = None
    clusterIP: str | None = None  # noqa: N815
    ports: OptionalObjects = None
    selector: OptionalStrings = None
    ipFamilies: list[str] | None = None  # noqa: N815


class _Service(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _ServiceSpec | None = None


class _Slice(msgspec.Struct, gc=False):
    metadata: _Metadata
    addressType: str | None = None  # noqa: N815
    endpoints: OptionalObjects = None
    ports: OptionalObjects = None


class _ClaimSpec(msgspec.Struct, gc=False):
    volumeName: str | None = None  # noqa: N815
    storageClassName: str | None = None  # noqa: N815
    accessModes: list[str] | None = None  # noqa: N815
    resources: _Resources | None = None


class _ClaimStatus(msgspec.Struct, gc=False):
    phase: str | None = None
    capacity: OptionalQuantities = None
    accessModes: list[str] | None = None  # noqa: N815
    conditions: list[_Condition] | None = None


class _Claim(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _ClaimSpec
    status: _ClaimStatus | None = None


class _VolumeSpec(msgspec.Struct, gc=False):
    capacity: OptionalQuantities = None
    accessModes: list[str] | None = None  # noqa: N815
    claimRef: OptionalObject = None  # noqa: N815
    storageClassName: str | None = None  # noqa: N815
    nodeAffinity: OptionalObject = None  # noqa: N815


class _Volume(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _VolumeSpec
    status: OptionalObject = None


class _Role(msgspec.Struct, gc=False):
    metadata: _Metadata
    rules: OptionalObjects = None


class _Binding(msgspec.Struct, gc=False):
    metadata: _Metadata
    roleRef: dict[str, str] | None = None  # noqa: N815
    subjects: OptionalObjects = None


class _Account(msgspec.Struct, gc=False):
    metadata: _Metadata
    secrets: OptionalObjects = None
    imagePullSecrets: OptionalObjects = None  # noqa: N815


SHAPES: dict[Kind, type[msgspec.Struct]] = {
    POD: _Pod,
    SECRET: _Data,
    CONFIG_MAP: _Data,
    SERVICE: _Service,
    ENDPOINT_SLICE: _Slice,
    CLAIM: _Claim,
    VOLUME: _Volume,
    ROLE: _Role,
    ROLE_BINDING: _Binding,
    SERVICE_ACCOUNT: _Account,
}


def checked(kind: Kind, transform: Transform) -> Transform:
    """Return a transform that rejects objects of a lower cluster with fields of wrong types.

    An object of which no bytes are kept is not checked, as nothing reads it again. Raises msgspec.ValidationError.
    """
    shape = SHAPES.get(kind, _Any)

    def read(raw: bytes) -> Transformed:
        """Transform and check an object."""
        kept = transform(raw)
        if kept.raw:
            msgspec.convert(decoded(kept.raw) if kept.manifest is None else kept.manifest, shape)
        return kept

    return read
