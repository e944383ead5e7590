"""The objects that a pod needs to start, and their copies for its lower cluster.

One walker covers every field of a pod's spec that can name another object: a missed one only shows when a lower pod
hangs in ContainerCreating. Secrets stay references. Their content is never read here.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tensile.names import Owner
from tensile.objects import CLAIM, CONFIG_MAP, SECRET, SERVICE_ACCOUNT, Manifest
from tensile.reconcile.ownership import copy_metadata

PUBLISHED_BY_LOWER = frozenset({"kube-root-ca.crt", "openshift-service-ca.crt"})
"""ConfigMaps that a cluster's own controllers keep in each namespace: lower pods use those of their cluster."""

NEVER_COPIED = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})
"""Types of Secrets that are credentials of the upper cluster itself."""

_TOKEN_VOLUME, _OLD_TOKEN_VOLUME = "kube-api-access-", "default-token-"
_ADMISSION = frozenset({"token", "kube-root-ca.crt", "namespace"})
"""The sources of the volume that admission adds."""
_USUAL = [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
    {
        "downwardAPI": {
            "items": [{"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}]
        }
    },
]
"""The sources that admission has written since Kubernetes 1.21. Nearly every pod has them, so they are compared
first."""
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_KEPT = ("apiVersion", "kind", "data", "binaryData", "immutable", "type")

_NAMED_IN: Mapping[str, tuple[str, str]] = {
    "configMap": (CONFIG_MAP.name, "name"),
    "secret": (SECRET.name, "secretName"),
    "azureFile": (SECRET.name, "secretName"),
    "persistentVolumeClaim": (CLAIM.name, "claimName"),
}
_SECRET_REFS = ("secretRef", "nodePublishSecretRef")


_Found = dict[tuple[str, str], bool]
"""References by kind and name, and whether they are optional."""


class Reference(NamedTuple):
    """One object of the pod's namespace that it refers to. `optional`: the pod starts without it.

    `kind` is the kind's name: "ConfigMap", "Secret", "PersistentVolumeClaim" or "ServiceAccount".
    """

    kind: str
    name: str
    optional: bool


def references(pod: Manifest) -> frozenset[Reference]:
    """Return every ConfigMap, Secret, claim and ServiceAccount that a pod refers to, each once.

    An object required in one field and optional in another is required. Kubernetes starts pods without missing image
    pull secrets, so they are optional. Left out are the ConfigMaps that each cluster publishes, and the volume that
    admission adds for the ServiceAccount's token.
    """
    found: _Found = {}
    spec = pod["spec"]
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        found[SERVICE_ACCOUNT.name, account] = False
    for secret in spec.get("imagePullSecrets") or ():
        _note(found, SECRET.name, secret.get("name"), optional=True)
    for containers in _CONTAINERS:
        for container in spec.get(containers) or ():
            if container.get("env") or container.get("envFrom"):
                _in_environment(found, container)
    for volume in spec.get("volumes") or ():
        if not is_token_volume(volume):
            _in_volume(found, volume)
    return frozenset([Reference(kind, name, optional) for (kind, name), optional in found.items()])


def is_token_volume(volume: Manifest) -> bool:
    """Report whether admission added this volume for a ServiceAccount token.

    Its name is no proof, as a pod's author may choose it. So every source has to be one that admission writes: a volume
    with any other source is an ordinary one. The second form is that of clusters before 1.21, with the token in a
    Secret. Such a volume is never copied unchanged.
    """
    name = str(volume.get("name", ""))
    if name.startswith(_TOKEN_VOLUME) and volume.keys() == {"name", "projected"}:
        sources = (volume["projected"] or {}).get("sources") or ()
        if sources == _USUAL:
            return True
        forms = [_form_of(source) for source in sources]
        return len(forms) == len(set(forms)) and _ADMISSION <= set(forms) <= _ADMISSION | PUBLISHED_BY_LOWER
    if name.startswith(_OLD_TOKEN_VOLUME) and volume.keys() == {"name", "secret"}:
        source = volume["secret"] or {}
        return source.keys() <= {"secretName", "defaultMode"} and source.get("secretName") == name
    return False


def _form_of(source: Manifest) -> str:
    """Return which of admission's sources it is: "token", "namespace" or a published ConfigMap, "" for any other."""
    match source:
        case {"serviceAccountToken": {"path": "token", **rest}} if len(source) == 1:
            return "token" if rest.keys() <= {"expirationSeconds"} else ""
        case {"configMap": {"name": str(name), **rest}} if len(source) == 1:
            return name if name in PUBLISHED_BY_LOWER and rest.keys() <= {"items"} else ""
        case {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": path}}]}} if len(source) == 1:
            return "namespace" if path == "metadata.namespace" else ""
    return ""


def never_copied(upper_object: Manifest) -> str:
    """Return why an object must not exist in another cluster, "" if it may."""
    kind = upper_object.get("type")
    return (
        f"is not mirrored: a Secret of type {kind} is a credential of the upper cluster" if kind in NEVER_COPIED else ""
    )


def copy_of(upper_object: Manifest, owner: Owner, namespace: str) -> Manifest:
    """Return the lower copy of a ConfigMap or Secret with the owner's marks. It shares the content with the original.

    It has apiVersion and kind only if the upper object does: objects from a list do not.
    """
    made = copy_metadata(upper_object, owner, namespace)
    return {field: upper_object[field] for field in _KEPT if field in upper_object} | {"metadata": made}


def _note(found: _Found, kind: str, name: str | None, *, optional: bool) -> None:
    """Add one reference."""
    if name and not (kind == CONFIG_MAP.name and name in PUBLISHED_BY_LOWER):
        found[kind, name] = found.get((kind, name), True) and optional


def _note_source(found: _Found, kind: str, source: Mapping[str, Any] | None, field: str = "name") -> None:
    """Add the object that a source names in a field, nothing without a source."""
    if source:
        _note(found, kind, source.get(field), optional=bool(source.get("optional")))


def _in_environment(found: _Found, container: Manifest) -> None:
    """Add the references in the environment of a container."""
    for variable in container.get("env") or ():
        source = variable.get("valueFrom")
        if source:
            _note_source(found, CONFIG_MAP.name, source.get("configMapKeyRef"))
            _note_source(found, SECRET.name, source.get("secretKeyRef"))
    for source in container.get("envFrom") or ():
        _note_source(found, CONFIG_MAP.name, source.get("configMapRef"))
        _note_source(found, SECRET.name, source.get("secretRef"))


def _in_volume(found: _Found, volume: Manifest) -> None:
    """Add the references in a volume of any type."""
    for form, source in volume.items():
        if not isinstance(source, dict):
            continue
        if form == "projected":
            for one in source.get("sources") or ():
                _note_source(found, CONFIG_MAP.name, one.get("configMap"))
                _note_source(found, SECRET.name, one.get("secret"))
        elif form == "ephemeral":
            _cloned(found, (source.get("volumeClaimTemplate") or {}).get("spec") or {})
        elif form in _NAMED_IN:
            kind, field = _NAMED_IN[form]
            _note_source(found, kind, source, field)
        for field in _SECRET_REFS:
            _note_source(found, SECRET.name, source.get(field))


def _cloned(found: _Found, claim: Manifest) -> None:
    """Add the claims that a generic ephemeral volume is cloned from."""
    for field in ("dataSource", "dataSourceRef"):
        source = claim.get(field) or {}
        if source.get("kind") == CLAIM.name and not source.get("apiGroup") and not source.get("namespace"):
            _note(found, CLAIM.name, source.get("name"), optional=False)
