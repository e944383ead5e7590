"""Objects of other owners with names that the engine needs: of every kind, in every form, at every moment.

A situation is a form (what the foreign object looks like) and a moment (what happens around it). A kind that is added
to `FOREIGN_KINDS` is tested in all of them.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

from bench.kit.sites import Manifest
from tensile.names import LEGACY, OWNER, OWNER_NAME, PROVISIONER, UPPER_UID, VIRTUAL_POD, Owner, owner_of

SPACE = "default"
SLICES = "apis/discovery.k8s.io/v1"
RBAC = "apis/rbac.authorization.k8s.io/v1"
PORT = {"port": 80, "protocol": "TCP"}
CLAIMED = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
"""A claim for which no volume is ever created, because it has no storage class."""
A, B = "lower-a", "lower-b"
OTHER_UID = "00000000-0000-4000-8000-000000000000"
OTHER_UPPER = "11111111-0000-4000-8000-000000000000"
FORMS = ("plain", "forged", "copied", "rival", "legacy")
"""The marks of the foreign object.

In this order: no marks; our marks and a UID of no object; all our marks with the right UID, by another field manager;
the marks of another upper cluster's engine, by an engine's field manager; the marks of tensile-kube.
"""
MOMENTS = ("stands", "edited", "given-up", "asked-anew", "took-place")
"""What happens to the foreign object.

In this order: it only exists; its owner edits it; the upper object is deleted; deleted and created again; it replaces
the engine's object, which was deleted manually while the engine was down.
"""


class ObjectLocation(NamedTuple):
    """The location of an object: its cluster, the path of its collection, and its name."""

    cluster: str
    collection: str
    name: str

    @property
    def path(self) -> str:
        """The object's path."""
        return f"{self.collection}/{self.name}"


class UpperObject(NamedTuple):
    """An object to be created in the upper cluster."""

    collection: str
    body: Manifest

    @property
    def path(self) -> str:
        """The object's path."""
        return f"{self.collection}/{self.body['metadata']['name']}"


class ForeignKind(NamedTuple):
    """One kind: the foreign object's place and content, and the upper objects that need its name.

    The first upper object is the one that would be mirrored to the place, the last one usually the pod that waits;
    `lower` is the lower cluster that this pod is bound to, and `runs` whether it runs once the engine's objects exist.
    A subject without upper objects is a Node: its lower cluster is added to the topology. With `by_uid` the foreign
    object's name is derived from the UID of the first object.
    """

    location: Callable[[str], ObjectLocation]
    content: Manifest
    upper_objects: Callable[[str], tuple[UpperObject, ...]]
    lower: str = A
    runs: bool = True
    by_uid: bool = False


class Case(NamedTuple):
    """One canary."""

    kind: str
    form: str
    moment: str

    @property
    def name(self) -> str:
        """The name of the canary and of the objects that are created for it."""
        return f"{self.kind}-{self.form}-{self.moment}".lower()

    @property
    def foreign_kind(self) -> ForeignKind:
        """The subject of its kind."""
        return FOREIGN_KINDS[self.kind]


def cases(kinds: tuple[str, ...], forms: tuple[str, ...] = FORMS) -> list[Case]:
    """Return every case of some kinds.

    A placeholder volume is never replaced while its claim is bound to it, because Kubernetes protects it until then.
    """
    every = (Case(*one) for one in product(kinds, forms, MOMENTS))
    return [one for one in every if not (one.foreign_kind.by_uid and one.moment == "took-place")]


def marks(form: str, ours: Owner, upper_uid: str) -> Manifest:
    """Return labels and annotations of a form; `upper_uid` is the upper object's UID, "" if there is none."""
    rival = owner_of(OTHER_UPPER, ours.name)
    label, name = {OWNER: ours.mark, VIRTUAL_POD: "true"}, {OWNER_NAME: ours.name}
    found: Mapping[str, Manifest] = {
        "plain": {},
        "forged": {"labels": label, "annotations": name},
        "copied": {"labels": label, "annotations": name | {UPPER_UID: upper_uid or ours.upper}},
        "rival": {
            "labels": {OWNER: rival.mark, VIRTUAL_POD: "true"},
            "annotations": {OWNER_NAME: rival.name, UPPER_UID: OTHER_UID},
        },
        "legacy": {"labels": {VIRTUAL_POD: "true"}, "annotations": {LEGACY: "true"}},
    }
    return found[form]


def _collection(plural: str, namespace: str = SPACE, api: str = "api/v1") -> str:
    return f"/{api}/namespaces/{namespace}/{plural}"


def _pod(name: str, lower: str = A, namespace: str = SPACE, **spec: object) -> UpperObject:
    body = {"nodeName": lower, "containers": [{"name": "main", "image": "none"}], **spec}
    return UpperObject(_collection("pods", namespace), {"metadata": {"name": name}, "spec": body})


def _in_space(plural: str, api: str = "api/v1") -> Callable[[str], ObjectLocation]:
    return lambda name: ObjectLocation(A, _collection(plural, api=api), name)


def _config_map(name: str) -> tuple[UpperObject, ...]:
    made = UpperObject(_collection("configmaps"), {"metadata": {"name": name}, "data": {"key": "ours"}})
    return (made, _pod(name, volumes=[{"name": "c", "configMap": {"name": name}}]))


def _secret(name: str) -> tuple[UpperObject, ...]:
    made = UpperObject(_collection("secrets"), {"metadata": {"name": name}, "data": {"key": "b3Vycw=="}})
    return (made, _pod(name, volumes=[{"name": "s", "secret": {"secretName": name}}]))


def _space(name: str) -> tuple[UpperObject, ...]:
    return (UpperObject("/api/v1/namespaces", {"metadata": {"name": name}}), _pod(name, B, name))


def _service(name: str) -> tuple[UpperObject, ...]:
    made = UpperObject(_collection("services"), {"metadata": {"name": name}, "spec": {"ports": [PORT]}})
    return (made, _pod(name))


def _slice(name: str) -> tuple[UpperObject, ...]:
    labels = {"kubernetes.io/service-name": name}
    endpoints = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.9.0.1"]}], "ports": [PORT]}
    made = UpperObject(
        _collection("endpointslices", api=SLICES), {"metadata": {"name": name, "labels": labels}, **endpoints}
    )
    return (made, *_service(name))


def _claim(name: str) -> tuple[UpperObject, ...]:
    made = UpperObject(_collection("persistentvolumeclaims"), {"metadata": {"name": name}, "spec": CLAIMED})
    return (made, _pod(name, volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": name}}]))


def _volume(name: str) -> tuple[UpperObject, ...]:
    chosen = {"volume.kubernetes.io/selected-node": A, "volume.kubernetes.io/storage-provisioner": PROVISIONER}
    spec = {**CLAIMED, "storageClassName": "canary"}
    body = {"metadata": {"name": name, "annotations": chosen}, "spec": spec}
    return (UpperObject(_collection("persistentvolumeclaims"), body),)


def _account(name: str) -> tuple[UpperObject, ...]:
    made = UpperObject(_collection("serviceaccounts"), {"metadata": {"name": name}})
    return (made, _pod(name, serviceAccountName=name))


def _role(name: str) -> tuple[UpperObject, ...]:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    made = UpperObject(_collection("roles", api=RBAC), {"metadata": {"name": name}, "rules": rules})
    return (made, _bound_role(name), *_account(name))


def _binding(name: str) -> tuple[UpperObject, ...]:
    role, binding, *rest = _role(name)
    return (binding, role, *rest)


def _bound_role(name: str) -> UpperObject:
    subjects = [{"kind": "ServiceAccount", "namespace": SPACE, "name": name}]
    body = {"metadata": {"name": name}, "roleRef": _role_ref(name), "subjects": subjects}
    return UpperObject(_collection("rolebindings", api=RBAC), body)


def _role_ref(name: str) -> Manifest:
    return {"apiGroup": RBAC.split("/")[1], "kind": "Role", "name": name}


FOREIGN_KINDS: dict[str, ForeignKind] = {
    "Pod": ForeignKind(
        _in_space("pods"),
        {
            "spec": {
                "containers": [{"name": "main", "image": "theirs"}],
                "schedulingGates": [{"name": "example.com/never"}],
            }
        },
        lambda name: (_pod(name),),
    ),
    "ConfigMap": ForeignKind(_in_space("configmaps"), {"data": {"key": "theirs"}}, _config_map),
    "Secret": ForeignKind(_in_space("secrets"), {"data": {"key": "dGhlaXJz"}}, _secret),
    "Namespace": ForeignKind(lambda name: ObjectLocation(B, "/api/v1/namespaces", f"sandbox-{name}"), {}, _space, B),
    "Node": ForeignKind(lambda name: ObjectLocation("upper", "/api/v1/nodes", name), {}, lambda _name: ()),
    "Service": ForeignKind(_in_space("services"), {"spec": {"ports": [PORT], "selector": {"app": "theirs"}}}, _service),
    "EndpointSlice": ForeignKind(
        _in_space("endpointslices", SLICES),
        {"addressType": "IPv4", "endpoints": [{"addresses": ["10.9.0.2"]}], "ports": [PORT]},
        _slice,
    ),
    "PersistentVolumeClaim": ForeignKind(_in_space("persistentvolumeclaims"), {"spec": CLAIMED}, _claim, runs=False),
    "PersistentVolume": ForeignKind(
        lambda uid: ObjectLocation("upper", "/api/v1/persistentvolumes", f"pvc-{uid}"),
        {
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "theirs",
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": "/theirs"},
            }
        },
        _volume,
        runs=False,
        by_uid=True,
    ),
    "ServiceAccount": ForeignKind(_in_space("serviceaccounts"), {"automountServiceAccountToken": False}, _account),
    "Role": ForeignKind(_in_space("roles", RBAC), {"rules": []}, _role),
    "RoleBinding": ForeignKind(
        _in_space("rolebindings", RBAC), {"roleRef": _role_ref("theirs"), "subjects": []}, _binding
    ),
}
"""The kinds; lower-b uses a prefix for namespaces, so that a Namespace of that name is a conflict there."""
