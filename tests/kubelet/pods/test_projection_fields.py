"""Every field that Kubernetes knows has a verdict, and the projection does what the verdict says."""

import pytest
from podkit import place, pod

from tensile.kubelet.pods.projection import METADATA, SPEC, STATUS, FieldVerdict, lower_pod, with_verdict
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
    """A field that Kubernetes 1.36 has and the table has not is a gap to close."""
    assert set(FIELDS[kind]) - set(TABLES[kind]) == set()


@pytest.mark.parametrize("kind", TABLES)
def test_no_verdict_is_about_a_field_that_never_was(kind: str) -> None:
    """A name in the table that the schema does not know is a misspelling, or a field that is gone."""
    assert set(TABLES[kind]) - set(FIELDS[kind]) == GONE_SINCE[kind]


def test_the_schema_is_the_one_of_a_pod() -> None:
    """The bundled list of fields reaches down to containers, volumes and their sources."""
    assert FIELDS["PodSpec"]["containers"] == "[]Container"
    assert FIELDS["Volume"]["projected"] == "ProjectedVolumeSource"
    assert len(FIELDS) > 100


def test_the_probes_cover_every_kept_field() -> None:
    """The next test has an example of every field of the spec that is kept."""
    assert set(PROBES) == with_verdict(SPEC, FieldVerdict.KEEP)


@pytest.mark.parametrize("field", sorted(PROBES))
def test_a_kept_field_goes_down_unchanged(field: str) -> None:
    """A field with the verdict KEEP is in the lower spec with the very same value."""
    assert lower_pod(pod({field: PROBES[field]}), place())["spec"][field] is PROBES[field]


@pytest.mark.parametrize("field", sorted(with_verdict(SPEC, FieldVerdict.DROP, FieldVerdict.LATER)))
def test_a_dropped_field_does_not_go_down(field: str) -> None:
    """A field with the verdict DROP or LATER is not in the lower spec."""
    assert field not in lower_pod(pod({field: "anything"}), place())["spec"]


@pytest.mark.parametrize("field", sorted(with_verdict(METADATA, FieldVerdict.DROP)))
def test_dropped_metadata_does_not_go_down(field: str) -> None:
    """The apiserver's own bookkeeping, finalizers and deletion marks stay above."""
    given = pod(finalizers=["x/y"])
    given["metadata"].setdefault(field, "anything")
    assert field not in lower_pod(given, place())["metadata"]


def test_a_field_that_nobody_knows_yet_goes_down() -> None:
    """A field of a newer Kubernetes is kept in the spec and in a container; an older apiserver prunes it itself."""
    given = pod({"brandNew": {"a": 1}, "containers": [{"name": "main", "image": "i", "newField": [1]}]})
    spec = lower_pod(given, place())["spec"]
    assert spec["brandNew"] == {"a": 1}
    assert spec["containers"][0]["newField"] == [1]
