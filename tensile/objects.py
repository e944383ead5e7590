"""Kubernetes objects as raw JSON, with their kinds and references, and the accessors that all modules use.

Model classes drop fields that they do not know and make decoding fifty times slower. So objects stay as the apiserver
sent them, and only kinds and references are typed.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

Manifest = dict[str, Any]
"""One object as decoded JSON. It may be shared: build a new one instead of changing it."""

UPPER = ""
"""The name of the upper cluster in references and keys. Lower clusters have the topology's names, never empty."""

HARD = frozenset({"NoSchedule", "NoExecute"})
"""The taint effects that keep a pod off a node."""

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_FIRST, _LAST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The first and last time whose year has four digits."""


class Kind(NamedTuple):
    """A resource type of the API.

    `api` is "v1" or "GROUP/VERSION", `plural` the resource name in URL paths.
    """

    api: str
    name: str
    plural: str
    namespaced: bool

    @property
    def group(self) -> str:
        """The API group, "" for the core group."""
        return self.api.rpartition("/")[0]

    @property
    def is_custom(self) -> bool:
        """Whether a CustomResourceDefinition or another server may define the kind, and name its lists as it likes."""
        return "." in self.group and not self.group.endswith(".k8s.io")

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the URL path of the collection, or of one object in it. Without a namespace: of all namespaces."""
        root = f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "")


POD = Kind("v1", "Pod", "pods", namespaced=True)
NODE = Kind("v1", "Node", "nodes", namespaced=False)
NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps", namespaced=True)
SECRET = Kind("v1", "Secret", "secrets", namespaced=True)
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts", namespaced=True)
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", namespaced=True)
VOLUME = Kind("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
STORAGE_CLASS = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
CSI_NODE = Kind("storage.k8s.io/v1", "CSINode", "csinodes", namespaced=False)
CSI_DRIVER = Kind("storage.k8s.io/v1", "CSIDriver", "csidrivers", namespaced=False)
CSI_CAPACITY = Kind("storage.k8s.io/v1", "CSIStorageCapacity", "csistoragecapacities", namespaced=True)
ATTACHMENT = Kind("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", namespaced=False)
QUOTA = Kind("v1", "ResourceQuota", "resourcequotas", namespaced=True)
SERVICE = Kind("v1", "Service", "services", namespaced=True)
ENDPOINT_SLICE = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", namespaced=True)
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles", namespaced=True)
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", namespaced=True)
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", namespaced=False)
EVENT = Kind("v1", "Event", "events", namespaced=True)
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases", namespaced=True)
TOKEN_REVIEW = Kind("authentication.k8s.io/v1", "TokenReview", "tokenreviews", namespaced=False)
ACCESS_REVIEW = Kind("authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False)
SELF_ACCESS_REVIEW = Kind(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False
)
SELF_REVIEW = Kind("authentication.k8s.io/v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True)
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", namespaced=True)
SERVICE_CIDR = Kind("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs", namespaced=False)
SIGNING_REQUEST = Kind(
    "certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", namespaced=False
)
MUTATING_WEBHOOK = Kind(
    "admissionregistration.k8s.io/v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
MUTATING_POLICY = Kind(
    "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies", namespaced=False
)
MUTATING_POLICY_BINDING = Kind(
    "admissionregistration.k8s.io/v1",
    "MutatingAdmissionPolicyBinding",
    "mutatingadmissionpolicybindings",
    namespaced=False,
)


class Ref(NamedTuple):
    """A reference to one object: cluster, kind, namespace and name. `namespace` is "" for cluster-scoped kinds."""

    cluster: str
    kind: Kind
    namespace: str
    name: str

    @property
    def namespaced_name(self) -> str:
        """The namespace and name as "shop/web", the name alone if the kind has no namespaces."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.cluster or 'upper'}: {self.kind.name} {self.namespaced_name}"

    def path(self, subresource: str = "") -> str:
        """Return the object's URL path, or the path of one of its subresources such as "status"."""
        tail = f"/{subresource}" if subresource else ""
        return self.kind.path(self.namespace, self.name) + tail


def metadata(manifest: Manifest) -> Manifest:
    """Return the object's metadata, {} when it has none."""
    found: Manifest = manifest.get("metadata") or {}
    return found


def labels(manifest: Manifest) -> dict[str, str]:
    """Return the object's labels, {} when it has none."""
    return metadata(manifest).get("labels") or {}


def annotations(manifest: Manifest) -> dict[str, str]:
    """Return the object's annotations, {} when it has none."""
    return metadata(manifest).get("annotations") or {}


def controller_of(manifest: Manifest) -> Manifest:
    """Return the ownerReference to the object's controller, {} when it has none."""
    for owner in (manifest.get("metadata") or {}).get("ownerReferences") or ():
        if owner.get("controller"):
            found: Manifest = owner
            return found
    return {}


def uid(manifest: Manifest) -> str:
    """Return the object's UID, "" for an object that was never stored."""
    return str(metadata(manifest).get("uid", ""))


def as_read(manifest: Manifest) -> dict[str, str]:
    """Return metadata for a patch with preconditions: the UID and resourceVersion of the object that was read."""
    meta = metadata(manifest)
    return {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}


def timestamp(moment: datetime) -> str:
    """Format a UTC time as in Kubernetes objects: RFC 3339 in whole seconds."""
    return moment.strftime(_TIME)


def moment_of(text: str) -> datetime:
    """Parse a `timestamp`. Raises ValueError for any other format."""
    return datetime.strptime(text, _TIME).replace(tzinfo=UTC)


def later(moment: datetime, seconds: float) -> datetime:
    """Return the time that is `seconds` after `moment` (before it if negative), within the years 1000 to 9999.

    An apiserver accepts any 64-bit number as a grace period, which may lead beyond these years.
    """
    try:
        return min(max(moment + timedelta(seconds=seconds), _FIRST), _LAST)
    except OverflowError:
        return _LAST if seconds > 0 else _FIRST


def deleted_at(manifest: Manifest) -> datetime:
    """Return when the deletion of a terminating object was requested.

    Its deletionTimestamp is the end of the grace period.
    """
    meta = metadata(manifest)
    return later(moment_of(meta["deletionTimestamp"]), -(meta.get("deletionGracePeriodSeconds") or 0))


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Report whether a toleration matches a taint, as in Kubernetes. The operators Gt and Lt match no taint."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    equal = (toleration.get("operator") or "Equal") == "Equal"
    return equal and (toleration.get("value") or "") == (taint.get("value") or "")
