"""Tests of the service accounts of lower pods, and of the token volume that upper admission adds."""

import pytest
from podkit import lower_context, pod
from worldkit import token_volume

from tensile.kubelet.pods.projection import to_lower_pod
from tensile.kubelet.pods.service_account import uses_tokens, with_address, without_token
from tensile.reconcile.world import UpperServer

TOKEN = token_volume("kube-api-access-7x2")
TOKEN_MOUNT = {"name": "kube-api-access-7x2", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
DATA = {"name": "data", "emptyDir": {}}
DATA_MOUNT = {"name": "data", "mountPath": "/data"}


def with_token() -> dict:
    """Return a pod as the upper apiserver stores it, with token mounts in every kind of container."""
    return pod(
        {
            "serviceAccountName": "robot",
            "serviceAccount": "robot",
            "volumes": [DATA, TOKEN],
            "containers": [{"name": "main", "volumeMounts": [DATA_MOUNT, TOKEN_MOUNT]}, {"name": "plain"}],
            "initContainers": [{"name": "init", "volumeMounts": [TOKEN_MOUNT]}],
        }
    )


def test_without_identity_a_pod_uses_the_default_account_without_a_token() -> None:
    """Both fields of the account's name are `default`, and no token is mounted automatically."""
    spec = to_lower_pod(with_token(), lower_context())["spec"]
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert spec["automountServiceAccountToken"] is False


def test_without_identity_the_token_volume_and_its_mounts_are_removed() -> None:
    """A mount without its volume is rejected, so all containers lose it; other mounts are kept."""
    spec = to_lower_pod(with_token(), lower_context())["spec"]
    assert spec["volumes"] == [DATA]
    assert spec["containers"] == [{"name": "main", "volumeMounts": [DATA_MOUNT]}, {"name": "plain"}]
    assert spec["initContainers"] == [{"name": "init"}]


def test_token_mounts_are_removed_from_ephemeral_containers_too() -> None:
    """A container that kubectl debug adds has the mount as well."""
    spec = {"volumes": [TOKEN], "ephemeralContainers": [{"name": "debug", "volumeMounts": [TOKEN_MOUNT]}]}
    assert without_token(spec) == {"volumes": [], "ephemeralContainers": [{"name": "debug"}]}


def test_a_spec_without_a_token_needs_no_change() -> None:
    """No field is overwritten if nothing has to be removed."""
    assert without_token({"volumes": [DATA], "containers": [{"name": "main"}]}) == {}
    assert without_token({}) == {}


def test_without_identity_a_users_volume_loses_its_tokens() -> None:
    """The lower kubelet would project tokens of the lower's default account; the rest of the volume is kept."""
    own = {"name": "own", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s"}}]}}
    spec = to_lower_pod(pod({"volumes": [own]}), lower_context())["spec"]
    assert spec["volumes"] == [{"name": "own", "projected": {"sources": [{"secret": {"name": "s"}}]}}]


def test_without_identity_a_users_volume_loses_its_certificates() -> None:
    """Certificates identify the pod as tokens do; with the identity `lower` or `upper` they are kept."""
    certificate = {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519"}}
    own = {"name": "own", "projected": {"sources": [certificate, {"secret": {"name": "s"}}]}}
    assert to_lower_pod(pod({"volumes": [own]}), lower_context())["spec"]["volumes"] == [
        {"name": "own", "projected": {"sources": [{"secret": {"name": "s"}}]}}
    ]
    for identity in ("lower", "upper"):
        assert to_lower_pod(pod({"volumes": [own]}), lower_context(identity=identity))["spec"]["volumes"] == [own]


def test_with_identity_lower_account_volume_and_mounts_are_kept() -> None:
    """Account, token volume and mounts are copied, so that the lower's admission adds none of its own."""
    upper = with_token()
    spec = to_lower_pod(upper, lower_context(identity="lower"))["spec"]
    for field in ("serviceAccountName", "serviceAccount", "volumes", "containers", "initContainers"):
        assert spec[field] == upper["spec"][field]
    assert "automountServiceAccountToken" not in spec


def test_with_identity_lower_a_pod_without_a_token_gets_none() -> None:
    """The lower account may mount tokens by default, so mounting is disabled explicitly."""
    upper = pod({"serviceAccountName": "default", "volumes": [DATA]})
    assert to_lower_pod(upper, lower_context(identity="lower"))["spec"]["automountServiceAccountToken"] is False


def test_with_identity_lower_a_legacy_token_volume_is_left_to_admission() -> None:
    """Its Secret is not copied; without the volume, the lower's admission adds one of its own kind."""
    volume = {"name": "default-token-7x2", "secret": {"secretName": "default-token-7x2"}}
    mount = {**TOKEN_MOUNT, "name": "default-token-7x2"}
    upper = pod({"volumes": [DATA, volume], "containers": [{"name": "main", "volumeMounts": [mount]}]})
    spec = to_lower_pod(upper, lower_context(identity="lower"))["spec"]
    assert (spec["volumes"], spec["containers"]) == ([DATA], [{"name": "main"}])
    assert "automountServiceAccountToken" not in spec


AWAY = lower_context(identity="upper", upper_server=UpperServer("upper.example.com", 6443))
ADDRESS = [
    {"name": "KUBERNETES_SERVICE_HOST", "value": "upper.example.com"},
    {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
    {"name": "KUBERNETES_SERVICE_PORT_HTTPS", "value": "6443"},
]


def test_with_identity_upper_tokens_come_from_a_secret() -> None:
    """Volume and files keep their names, so the mounts are unchanged, and lower admission adds nothing."""
    upper = with_token()
    spec = to_lower_pod(upper, AWAY)["spec"]
    sources = [
        {"secret": {"name": "upper-token-uid-1", "items": [{"key": name, "path": name}]}}
        for name in ("token", "ca.crt", "namespace")
    ]
    projected = {"defaultMode": 420, "sources": sources}
    assert spec["volumes"] == [DATA, {"name": "kube-api-access-7x2", "projected": projected}]
    assert [one.get("volumeMounts") for one in spec["containers"]] == [[DATA_MOUNT, TOKEN_MOUNT], None]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("robot", False)


def test_with_identity_upper_every_container_has_the_address_of_the_upper() -> None:
    """It precedes the container's own variables, which may refer to it."""
    upper = with_token()
    upper["spec"]["containers"][0]["env"] = [{"name": "MINE", "value": "$(KUBERNETES_SERVICE_HOST)"}]
    spec = to_lower_pod(upper, AWAY)["spec"]
    assert spec["containers"][0]["env"] == [*ADDRESS, {"name": "MINE", "value": "$(KUBERNETES_SERVICE_HOST)"}]
    assert spec["containers"][1]["env"] == spec["initContainers"][0]["env"] == ADDRESS


def test_a_containers_own_address_variables_are_kept() -> None:
    """Only the variables that the container does not define are added."""
    own = {"name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1"}
    assert with_address({"name": "main", "env": [own]}, AWAY.upper_server)["env"] == [*ADDRESS[1:], own]


def test_without_an_address_a_container_is_unchanged() -> None:
    """The same object is returned, not a copy."""
    container = {"name": "main"}
    assert with_address(container, None) is container


def test_with_identity_upper_a_pod_without_a_token_gets_neither_token_nor_address() -> None:
    """It keeps its service account, and automatic mounting is disabled."""
    upper = pod({"serviceAccountName": "robot", "volumes": [DATA]})
    spec = to_lower_pod(upper, AWAY)["spec"]
    assert (spec["volumes"], spec["containers"]) == ([DATA], upper["spec"]["containers"])
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("robot", False)


@pytest.mark.parametrize("identity", ["none", "lower", "upper"])
def test_the_projection_does_not_modify_the_upper_pod(identity: str) -> None:
    """The pod is shared with other parts of the engine."""
    upper = with_token()
    to_lower_pod(upper, lower_context(identity=identity, upper_server=AWAY.upper_server))
    assert upper == with_token()


def test_uses_tokens_is_true_only_for_the_lower_pods_own_upper_pod() -> None:
    """A lower pod without tokens of the upper cluster, or of another upper pod, does not count."""
    assert uses_tokens(to_lower_pod(with_token(), AWAY), "uid-1")
    assert not uses_tokens(to_lower_pod(with_token(), AWAY), "uid-2")
    assert not uses_tokens(to_lower_pod(with_token(), lower_context(identity="lower")), "uid-1")
    assert not uses_tokens({"spec": {}}, "uid-1")


def test_a_users_volume_with_the_name_of_a_token_volume_is_kept() -> None:
    """Only volumes of the kind that admission adds are removed, so an emptyDir keeps its mounts."""
    own = {"name": "kube-api-access-mine", "emptyDir": {}}
    spec = to_lower_pod(pod({"volumes": [own], "containers": [{"name": "m", "volumeMounts": [own]}]}), lower_context())[
        "spec"
    ]
    assert spec["volumes"] == [own]
    assert spec["containers"][0]["volumeMounts"] == [own]


def test_the_token_volume_of_older_clusters_is_removed_too() -> None:
    """Before Kubernetes 1.21 the token was a Secret volume, and that Secret is never copied."""
    old = {"name": "default-token-abc12", "secret": {"secretName": "default-token-abc12"}}
    assert to_lower_pod(pod({"volumes": [old]}), lower_context())["spec"]["volumes"] == []
