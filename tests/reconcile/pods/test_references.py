"""Tests that references are found in every field of the pod schema, and that copies have the owner's marks."""

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
"""The API types that name an object in the pod's namespace. A LocalObjectReference is that of a Secret."""

Place = tuple[str, ...]


def places(kind: str, path: Place = ()) -> Iterator[tuple[Place, str]]:
    """Yield every path of a type at which a value names an object, with the type of the value."""
    for field, written in FIELDS.get(kind, {}).items():
        inner = written.removeprefix("[]")
        here = (*path, field + "[]" * written.startswith("[]"))
        if inner in NAMING:
            yield here, inner
        elif inner in FIELDS and len(path) < 12:
            yield from places(inner, here)


PLACES = list(places("PodSpec"))


def planted(path: Place, value: Any) -> dict[str, Any]:
    """Return nested maps and lists with the value at the path."""
    for step in reversed(path):
        value = {step.removesuffix("[]"): [value] if step.endswith("[]") else value}
    return value


def found(spec: dict[str, Any]) -> set[Reference]:
    """Return the references of a pod with this spec, except for its ServiceAccount."""
    return set(references({"spec": {"serviceAccountName": "robot", **spec}})) - {ACCOUNT}


def test_the_schema_has_the_common_fields_with_references() -> None:
    """Fields of the environment of every kind of container and of volumes are found, so the list is not empty."""
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


def test_every_schema_field_with_a_name_like_a_reference_is_known() -> None:
    """A new field such as secretName of some volume fails this test, whatever its type is called."""
    endings = ("secret", "claim", "account", "configmap")
    named = {
        f"{kind}.{field}"
        for kind, fields in FIELDS.items()
        for field, written in fields.items()
        if written == "string" and any(word in field.lower() for word in endings)
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
def test_a_reference_in_every_field_of_the_schema_is_found(path: Place, kind: str) -> None:
    """This covers every field in which a pod may name a ConfigMap, a Secret or a claim."""
    wanted, field = NAMING[kind]
    names = {(one.kind, one.name) for one in found(planted(path, {field: "thing"}))}
    assert names == {(wanted, "thing")}


OPTIONAL = [(path, kind) for path, kind in PLACES if "optional" in FIELDS[kind]]


@pytest.mark.parametrize(("path", "kind"), OPTIONAL, ids=[".".join(path) for path, _ in OPTIONAL])
def test_every_optional_reference_is_found_as_optional(path: Place, kind: str) -> None:
    """A pod does not wait for an object that it can start without."""
    _, field = NAMING[kind]
    for optional in (True, False):
        assert {one.optional for one in found(planted(path, {field: "thing", "optional": optional}))} == {optional}


def test_an_image_pull_secret_is_optional() -> None:
    """Kubernetes tries to pull the image without it, but a Secret of a CSI driver is required."""
    spec = {
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "driver"}}}],
    }
    assert found(spec) == {Reference("Secret", "pull", optional=True), Reference("Secret", "driver", optional=False)}


def test_a_reference_is_required_if_any_of_its_fields_requires_it() -> None:
    """Two fields make one reference, and the order does not matter."""
    needed = {"configMapRef": {"name": "c"}}
    optional = {"configMapRef": {"name": "c", "optional": True}}
    for sources in ([needed, optional], [optional, needed]):
        assert found({"containers": [{"envFrom": sources}]}) == {Reference("ConfigMap", "c", optional=False)}
    assert found({"containers": [{"envFrom": [optional, optional]}]}) == {Reference("ConfigMap", "c", optional=True)}


def test_a_config_map_and_a_secret_of_the_same_name_are_two_references() -> None:
    """The kind is part of a reference."""
    sources = [{"configMapRef": {"name": "x"}}, {"secretRef": {"name": "x"}}]
    assert len(found({"containers": [{"envFrom": sources}]})) == 2


@pytest.mark.parametrize("name", ["kube-root-ca.crt", "openshift-service-ca.crt"])
def test_a_config_map_that_every_cluster_publishes_is_no_reference(name: str) -> None:
    """The lower cluster's own one is used, but a Secret of that name belongs to the user."""
    assert found({"volumes": [{"name": "v", "configMap": {"name": name}}]}) == set()
    assert found({"volumes": [{"name": "v", "secret": {"secretName": name}}]}) != set()


def test_the_token_volume_has_no_references() -> None:
    """Admission added it in the upper cluster, and the lower cluster's admission or the engine adds another one."""
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
def test_a_volume_with_more_sources_than_admission_adds_is_a_users_volume(source: dict[str, Any]) -> None:
    """Its name is the choice of its author, so all its references count."""
    volume = {"name": "kube-api-access-x", "projected": {"sources": [TOKEN, AUTHORITY, NAMESPACE, source]}}
    assert not is_token_volume(volume)
    assert found({"volumes": [volume]}) == found({"volumes": [{**volume, "name": "mine"}]})


@pytest.mark.parametrize("sources", [[], [TOKEN], [TOKEN, AUTHORITY], [AUTHORITY, NAMESPACE], [TOKEN, NAMESPACE]])
def test_a_volume_without_all_sources_of_admission_is_a_users_volume(sources: list[dict[str, Any]]) -> None:
    """Admission always adds all three."""
    assert not is_token_volume({"name": "kube-api-access-x", "projected": {"sources": sources}})


def test_a_token_volume_may_have_the_authority_of_a_distribution() -> None:
    """The admission of OpenShift adds the certificate authority of its services."""
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
def test_the_token_volume_is_recognized_by_its_name_and_form(volume: dict[str, Any], is_token: bool) -> None:  # noqa: FBT001
    """The current form and that of older clusters count, and a user's volume of such a name has another form."""
    assert is_token_volume(volume) is is_token


def test_the_api_path_of_a_claim_is_persistentvolumeclaims() -> None:
    """The path has the namespace and the name of the claim."""
    assert CLAIM.path("ns", "data") == "/api/v1/namespaces/ns/persistentvolumeclaims/data"


def test_the_source_of_an_ephemeral_volumes_claim_is_a_reference() -> None:
    """The lower cluster creates the claim from the template, but a claim that it clones must exist there."""
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
def test_the_service_account_is_a_reference(spec: dict[str, Any], name: str) -> None:
    """The field serviceAccountName has precedence over serviceAccount."""
    assert references({"spec": spec}) == {Reference("ServiceAccount", name, optional=False)}


def test_empty_names_and_nulls_are_no_references() -> None:
    """The API allows an empty name for historical reasons, and lists and sources may be null."""
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
    """A token of the upper apiserver is useless in the lower cluster, and the reason names the Secret's type."""
    reason = never_copied({"type": kind} if kind else {})
    assert (reason == "") is copied
    assert copied or str(kind) in reason


def source(**meta: Any) -> dict[str, Any]:
    """Return an upper Secret with this metadata."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "default", "uid": "u1", "resourceVersion": "7", **meta},
        "type": "Opaque",
        "data": {"a": "Yg=="},
        "immutable": True,
    }


def test_a_copy_has_the_content_and_the_owners_marks() -> None:
    """It is in the lower namespace, and without the upper object's UID and resourceVersion."""
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


def test_a_copy_of_a_config_map_has_its_binary_data() -> None:
    """It has both fields of content, and no field that the upper object lacks."""
    upper = {"metadata": {"name": "c", "uid": "u"}, "data": {"a": "b"}, "binaryData": {"x": "AA=="}}
    made = copy_of(upper, OWNER, "n")
    assert made.keys() == {"metadata", "data", "binaryData"}
    assert (made["data"], made["binaryData"]) == ({"a": "b"}, {"x": "AA=="})


def test_a_copy_has_labels_and_annotations_except_last_applied() -> None:
    """The annotation of kubectl would contain the whole Secret, and forged marks are overwritten."""
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


def test_copying_does_not_change_the_upper_object() -> None:
    """It is shared with the cache, and the copy uses the same content."""
    upper = source(labels={"a": "b"}, annotations={"c": "d"})
    before = json.dumps(upper)
    made = copy_of(upper, OWNER, "n")
    assert json.dumps(upper) == before
    assert made["data"] is upper["data"]
