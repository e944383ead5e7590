"""References of pods: every place of the API's schema is looked at, and what is copied carries the owner's marks."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from worldkit import token_volume

from tensile.names import owner_of
from tensile.objects import CLAIM
from tensile.reconcile.pods.pod_schema import forms
from tensile.reconcile.pods.references import Reference, copy_of, is_token_volume, never_copied, references

FIELDS = {kind: {field: of.removesuffix("!") for field, of in fields.items()} for kind, fields in forms().items()}
OWNER = owner_of("11111111-upper", "demo")
ACCOUNT = Reference("ServiceAccount", "robot", optional=False)

NAMING = {
    "ConfigMapEnvSource": ("ConfigMap", "name"),
    "ConfigMapKeySelector": ("ConfigMap", "name"),
    "ConfigMapProjection": ("ConfigMap", "name"),
    "ConfigMapVolumeSource": ("ConfigMap", "name"),
    "LocalObjectReference": ("Secret", "name"),
    "SecretEnvSource": ("Secret", "name"),
    "SecretKeySelector": ("Secret", "name"),
    "SecretProjection": ("Secret", "name"),
    "SecretReference": ("Secret", "name"),
    "SecretVolumeSource": ("Secret", "secretName"),
    "AzureFileVolumeSource": ("Secret", "secretName"),
    "PersistentVolumeClaimVolumeSource": ("PersistentVolumeClaim", "claimName"),
}
"""The types of the API whose values name an object in the pod's namespace; a LocalObjectReference is of a Secret."""

Place = tuple[str, ...]


def places(kind: str, path: Place = ()) -> Iterator[tuple[Place, str]]:
    """Walk the schema from a type, and give every place where a value names an object, with the value's type."""
    for field, written in FIELDS.get(kind, {}).items():
        inner = written.removeprefix("[]")
        here = (*path, field + "[]" * written.startswith("[]"))
        if inner in NAMING:
            yield here, inner
        elif inner in FIELDS and len(path) < 12:
            yield from places(inner, here)


PLACES = list(places("PodSpec"))


def planted(path: Place, value: Any) -> dict[str, Any]:
    """Make nested maps and lists with the value at the place."""
    for step in reversed(path):
        value = {step.removesuffix("[]"): [value] if step.endswith("[]") else value}
    return value


def found(spec: dict[str, Any]) -> set[Reference]:
    """Return the references of a pod with this spec, but for its account."""
    return set(references({"spec": {"serviceAccountName": "robot", **spec}})) - {ACCOUNT}


def test_the_schema_names_the_places_that_people_use() -> None:
    """The walk reaches environment and volumes of every kind of container: it is not empty by mistake."""
    dotted = {".".join(path) for path, _ in PLACES}
    assert len(PLACES) >= 25
    assert dotted >= {
        "containers[].env[].valueFrom.secretKeyRef",
        "ephemeralContainers[].envFrom[].configMapRef",
        "initContainers[].envFrom[].secretRef",
        "volumes[].projected.sources[].configMap",
        "volumes[].csi.nodePublishSecretRef",
        "imagePullSecrets[]",
    }


def test_every_field_that_is_named_like_a_reference_was_looked_at() -> None:
    """A new field such as secretName in some volume shows here, whatever its type is called."""
    words = ("secret", "claim", "account", "configmap")
    named = {
        f"{kind}.{field}"
        for kind, fields in FIELDS.items()
        for field, written in fields.items()
        if written == "string" and any(word in field.lower() for word in words)
    }
    assert named == {
        "AzureFileVolumeSource.secretName",
        "CephFSVolumeSource.secretFile",
        "NodeAllocatableResourceClaimStatus.resourceClaimName",
        "PersistentVolumeClaimVolumeSource.claimName",
        "PodExtendedResourceClaimStatus.resourceClaimName",
        "PodResourceClaim.resourceClaimName",
        "PodResourceClaim.resourceClaimTemplateName",
        "PodResourceClaimStatus.resourceClaimName",
        "PodSpec.serviceAccount",
        "PodSpec.serviceAccountName",
        "SecretVolumeSource.secretName",
    }


@pytest.mark.parametrize(("path", "kind"), PLACES, ids=[".".join(path) for path, _ in PLACES])
def test_every_place_of_the_schema_is_found(path: Place, kind: str) -> None:
    """Wherever the API lets a pod name a ConfigMap, a Secret or a claim, the walker finds the name."""
    wanted, field = NAMING[kind]
    names = {(one.kind, one.name) for one in found(planted(path, {field: "thing"}))}
    assert names == {(wanted, "thing")}


OPTIONAL = [(path, kind) for path, kind in PLACES if "optional" in FIELDS[kind]]


@pytest.mark.parametrize(("path", "kind"), OPTIONAL, ids=[".".join(path) for path, _ in OPTIONAL])
def test_every_optional_mention_is_told_as_such(path: Place, kind: str) -> None:
    """Where the API knows "optional", it is passed on; a pod does not wait for what it can do without."""
    _, field = NAMING[kind]
    for optional in (True, False):
        assert {one.optional for one in found(planted(path, {field: "thing", "optional": optional}))} == {optional}


def test_a_missing_pull_secret_keeps_no_pod_from_starting() -> None:
    """Kubernetes tries to pull without it, so it is optional; a secret of a driver is not."""
    spec = {
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "driver"}}}],
    }
    assert found(spec) == {Reference("Secret", "pull", optional=True), Reference("Secret", "driver", optional=False)}


def test_what_is_needed_anywhere_is_needed() -> None:
    """Two mentions are one reference; a needed one outweighs an optional one, in any order."""
    needed = {"configMapRef": {"name": "c"}}
    optional = {"configMapRef": {"name": "c", "optional": True}}
    for sources in ([needed, optional], [optional, needed]):
        assert found({"containers": [{"envFrom": sources}]}) == {Reference("ConfigMap", "c", optional=False)}
    assert found({"containers": [{"envFrom": [optional, optional]}]}) == {Reference("ConfigMap", "c", optional=True)}


def test_a_config_map_and_a_secret_of_one_name_are_two() -> None:
    """Kinds are told apart."""
    sources = [{"configMapRef": {"name": "x"}}, {"secretRef": {"name": "x"}}]
    assert len(found({"containers": [{"envFrom": sources}]})) == 2


@pytest.mark.parametrize("name", ["kube-root-ca.crt", "openshift-service-ca.crt"])
def test_what_every_cluster_publishes_itself_is_not_referred_to(name: str) -> None:
    """The lower's own is used; a Secret that happens to have the name is the user's."""
    assert found({"volumes": [{"name": "v", "configMap": {"name": name}}]}) == set()
    assert found({"volumes": [{"name": "v", "secret": {"secretName": name}}]}) != set()


def test_the_token_volume_refers_to_nothing() -> None:
    """Admission added it above; below, admission or the engine brings another."""
    assert is_token_volume(token_volume())
    assert found({"volumes": [token_volume()]}) == set()


TOKEN, AUTHORITY, NAMESPACE = token_volume()["projected"]["sources"]
BESIDE: list[dict[str, Any]] = [
    {"secret": {"name": "lower-only"}},
    {"configMap": {"name": "lower-only"}},
    {"configMap": {"name": "kube-root-ca.crt", "optional": True}},
    {"clusterTrustBundle": {"path": "t", "name": "lower-only"}},
    {"podCertificate": {"signerName": "lower.example.com/s", "keyType": "ED25519"}},
    {"serviceAccountToken": {"path": "other"}},
    {"serviceAccountToken": {"path": "token", "audience": "vault"}},
    {"downwardAPI": {"items": [{"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}}]}},
    {**TOKEN, "secret": {"name": "lower-only"}},
    TOKEN,
]


@pytest.mark.parametrize("source", BESIDE)
def test_a_volume_that_brings_anything_beside_admissions_sources_is_a_users(source: dict[str, Any]) -> None:
    """A name is its author's choice, and so it hides nothing: whatever the volume mentions counts."""
    volume = {"name": "kube-api-access-x", "projected": {"sources": [TOKEN, AUTHORITY, NAMESPACE, source]}}
    assert not is_token_volume(volume)
    assert found({"volumes": [volume]}) == found({"volumes": [{**volume, "name": "mine"}]})


@pytest.mark.parametrize("sources", [[], [TOKEN], [TOKEN, AUTHORITY], [AUTHORITY, NAMESPACE], [TOKEN, NAMESPACE]])
def test_a_volume_that_lacks_one_of_admissions_sources_is_a_users(sources: list[dict[str, Any]]) -> None:
    """Admission writes all three."""
    assert not is_token_volume({"name": "kube-api-access-x", "projected": {"sources": sources}})


def test_what_a_distribution_publishes_may_be_beside_the_token() -> None:
    """OpenShift's admission adds the authority of its services."""
    service = {"configMap": {"name": "openshift-service-ca.crt", "items": [{"key": "service-ca.crt", "path": "s"}]}}
    assert is_token_volume(
        {"name": "kube-api-access-x", "projected": {"sources": [TOKEN, AUTHORITY, NAMESPACE, service]}}
    )


OLD = {"name": "default-token-x", "secret": {"secretName": "default-token-x", "defaultMode": 420}}


@pytest.mark.parametrize(
    ("volume", "is_token"),
    [
        (OLD, True),
        ({**OLD, "name": "other"}, False),
        ({**OLD, "secret": {"secretName": "lower-only"}}, False),
        ({**OLD, "secret": {**OLD["secret"], "optional": True}}, False),
        ({**OLD, "secret": {**OLD["secret"], "items": []}}, False),
        ({**token_volume(), "secret": {"secretName": "s"}}, False),
        ({"name": "kube-api-access-x", "secret": {"secretName": "s"}}, False),
        ({"name": "default-token-x", "projected": token_volume()["projected"]}, False),
        (token_volume("other"), False),
        ({"name": "kube-api-access-x", "projected": None}, False),
        ({"name": "default-token-x", "secret": None}, False),
    ],
)
def test_the_token_volume_is_known_by_name_and_form(volume: dict[str, Any], is_token: bool) -> None:  # noqa: FBT001
    """Today's and that of older clusters; a user's volume of such a name is of another form."""
    assert is_token_volume(volume) is is_token


def test_claims_are_where_the_api_has_them() -> None:
    """The kind's path is the one of persistent volume claims."""
    assert CLAIM.path("ns", "data") == "/api/v1/namespaces/ns/persistentvolumeclaims/data"


def test_claims_of_ephemeral_volumes_are_native_below() -> None:
    """The template is the lower cluster's to fill; a claim that it is cloned from has to be there."""
    source = {"kind": "PersistentVolumeClaim", "name": "origin"}
    for field in ("dataSource", "dataSourceRef"):
        volume = {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {field: source}}}}
        assert found({"volumes": [volume]}) == {Reference("PersistentVolumeClaim", "origin", optional=False)}
    for other in ({**source, "apiGroup": "x.io"}, {**source, "kind": "VolumeSnapshot"}, {**source, "namespace": "n"}):
        volume = {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSourceRef": other}}}}
        assert found({"volumes": [volume]}) == set()


@pytest.mark.parametrize(
    ("spec", "name"), [({"serviceAccountName": "a", "serviceAccount": "b"}, "a"), ({"serviceAccount": "b"}, "b")]
)
def test_the_account_is_a_reference(spec: dict[str, Any], name: str) -> None:
    """The newer field comes first."""
    assert references({"spec": spec}) == {Reference("ServiceAccount", name, optional=False)}


def test_empty_names_and_nulls_refer_to_nothing() -> None:
    """A name may be empty by the API's history; lists and sources may be null."""
    spec = {
        "imagePullSecrets": [{}, {"name": ""}],
        "containers": [{"env": None, "envFrom": None}, {"env": [{"name": "A", "valueFrom": None}]}],
        "initContainers": None,
        "volumes": [
            {"name": "g", "ephemeral": {"volumeClaimTemplate": None}},
            {"name": "e", "emptyDir": {}},
            {"name": "c", "configMap": {}},
            {"name": "p", "projected": {}},
        ],
    }
    assert references({"spec": spec}) == frozenset()


@pytest.mark.parametrize(
    ("kind", "copied"),
    [
        ("Opaque", True),
        ("kubernetes.io/tls", True),
        ("kubernetes.io/dockerconfigjson", True),
        (None, True),
        ("kubernetes.io/service-account-token", False),
        ("bootstrap.kubernetes.io/token", False),
    ],
)
def test_credentials_of_the_upper_cluster_are_not_copied(kind: str | None, copied: bool) -> None:  # noqa: FBT001
    """A token of the upper apiserver has no business below."""
    reason = never_copied({"type": kind} if kind else {})
    assert (reason == "") is copied
    assert copied or str(kind) in reason


def source(**meta: Any) -> dict[str, Any]:
    """Make an upper Secret with this metadata."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "default", "uid": "u1", "resourceVersion": "7", **meta},
        "type": "Opaque",
        "data": {"a": "Yg=="},
        "immutable": True,
    }


def test_a_copy_has_the_content_and_the_marks() -> None:
    """Content as it is, our marks, the lower namespace, and nothing of the upper's bookkeeping."""
    assert copy_of(source(), OWNER, "demo-default") == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "s",
            "namespace": "demo-default",
            "labels": {"tensile-kube.io/owner": OWNER.mark},
            "annotations": {"tensile-kube.io/owner-name": "demo", "tensile-kube.io/upper-uid": "u1"},
        },
        "type": "Opaque",
        "data": {"a": "Yg=="},
        "immutable": True,
    }


def test_a_copy_of_a_config_map_keeps_binary_data() -> None:
    """Both kinds of content, and only what is there."""
    upper = {"metadata": {"name": "c", "uid": "u"}, "data": {"a": "b"}, "binaryData": {"x": "AA=="}}
    made = copy_of(upper, OWNER, "n")
    assert made.keys() == {"metadata", "data", "binaryData"}
    assert (made["data"], made["binaryData"]) == ({"a": "b"}, {"x": "AA=="})


def test_a_copy_keeps_labels_and_annotations_but_the_last_applied() -> None:
    """The whole Secret, kept in an annotation by kubectl, stays above, and forged marks are overwritten."""
    upper = source(
        labels={"app": "x", "tensile-kube.io/owner": "forged"},
        annotations={"note": "n", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        finalizers=["a/b"],
        ownerReferences=[{"uid": "o"}],
    )
    meta = copy_of(upper, OWNER, "n")["metadata"]
    assert meta["labels"] == {"app": "x", "tensile-kube.io/owner": OWNER.mark}
    assert meta["annotations"].keys() == {"note", "tensile-kube.io/owner-name", "tensile-kube.io/upper-uid"}
    assert meta.keys() == {"name", "namespace", "labels", "annotations"}


def test_copying_changes_nothing_above() -> None:
    """The upper object is the cache's; its content is shared, not copied."""
    upper = source(labels={"a": "b"}, annotations={"c": "d"})
    before = json.dumps(upper)
    made = copy_of(upper, OWNER, "n")
    assert json.dumps(upper) == before
    assert made["data"] is upper["data"]
