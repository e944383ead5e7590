"""Tests that every field known to Kubernetes has a verdict, and that the projection follows it."""

import pytest
from podkit import lower_context, pod

from tensile.kubelet.pods.projection import METADATA, SPEC, STATUS, FieldVerdict, to_lower_pod, with_verdict
from tensile.reconcile.pods.pod_schema import forms

FIELDS = {kind: {field: of.removesuffix("!") for field, of in fields.items()} for kind, fields in forms().items()}

TABLES = {"ObjectMeta": METADATA, "PodSpec": SPEC, "PodStatus": STATUS}
GONE_SINCE = {"ObjectMeta": set(), "PodSpec": {"workloadRef"}, "PodStatus": set()}
"""Fields that older releases had (the last alpha of 1.35), for which a verdict stays."""

PROBES = {
    "activeDeadlineSeconds": 30,
    "dnsConfig": {"nameservers": ["10.0.0.1"]},
    "dnsPolicy": "None",
    "enableServiceLinks": False,
    "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a"]}],
    "hostIPC": True,
    "hostNetwork": True,
    "hostPID": True,
    "hostUsers": False,
    "hostname": "h",
    "hostnameOverride": "o",
    "imagePullSecrets": [{"name": "s"}],
    "os": {"name": "linux"},
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
    "resources": {"requests": {"cpu": "1"}},
    "restartPolicy": "Never",
    "runtimeClassName": "kata",
    "securityContext": {"runAsUser": 1},
    "setHostnameAsFQDN": True,
    "shareProcessNamespace": True,
    "subdomain": "sub",
    "terminationGracePeriodSeconds": 5,
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_field_of_the_schema_has_a_verdict(kind: str) -> None:
    """A field of the bundled schema that is missing in the table must be added."""
    assert set(FIELDS[kind]) - set(TABLES[kind]) == set()


@pytest.mark.parametrize("kind", TABLES)
def test_every_verdict_is_about_a_known_field(kind: str) -> None:
    """An unknown name in the table is misspelled, or belongs to a removed field."""
    assert set(TABLES[kind]) - set(FIELDS[kind]) == GONE_SINCE[kind]


def test_the_schema_contains_the_parts_of_a_pod() -> None:
    """The bundled list of fields includes containers, volumes and their sources."""
    assert FIELDS["PodSpec"]["containers"] == "[]Container"
    assert FIELDS["Volume"]["projected"] == "ProjectedVolumeSource"
    assert len(FIELDS) > 100


def test_the_examples_cover_every_kept_field() -> None:
    """The next test needs an example of every kept field of the spec."""
    assert set(PROBES) == with_verdict(SPEC, FieldVerdict.KEEP)


@pytest.mark.parametrize("field", sorted(PROBES))
def test_a_kept_field_is_copied_unchanged(field: str) -> None:
    """A field with the verdict KEEP has the same value in the lower spec."""
    assert to_lower_pod(pod({field: PROBES[field]}), lower_context())["spec"][field] is PROBES[field]


@pytest.mark.parametrize("field", sorted(with_verdict(SPEC, FieldVerdict.DROP, FieldVerdict.LATER)))
def test_a_dropped_field_is_not_copied(field: str) -> None:
    """A field with the verdict DROP or LATER is not in the lower spec."""
    assert field not in to_lower_pod(pod({field: "anything"}), lower_context())["spec"]


@pytest.mark.parametrize("field", sorted(with_verdict(METADATA, FieldVerdict.DROP)))
def test_dropped_metadata_is_not_copied(field: str) -> None:
    """Finalizers, deletion marks and fields that the apiserver maintains stay in the upper cluster."""
    given = pod(finalizers=["x/y"])
    given["metadata"].setdefault(field, "anything")
    assert field not in to_lower_pod(given, lower_context())["metadata"]


def test_an_unknown_field_is_copied() -> None:
    """A field of a newer Kubernetes is kept in spec and containers; an older apiserver prunes it itself."""
    given = pod({"brandNew": {"a": 1}, "containers": [{"name": "main", "image": "i", "newField": [1]}]})
    spec = to_lower_pod(given, lower_context())["spec"]
    assert spec["brandNew"] == {"a": 1}
    assert spec["containers"][0]["newField"] == [1]
