"""Service accounts of lower pods, and the token volume that admission adds above."""

import pytest
from podkit import place, pod

from tensile.kubelet.projection import lower_pod
from tensile.kubelet.service_account import without_token

TOKEN = {"name": "kube-api-access-7x2", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
TOKEN_MOUNT = {"name": "kube-api-access-7x2", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
DATA = {"name": "data", "emptyDir": {}}
DATA_MOUNT = {"name": "data", "mountPath": "/data"}


def with_token() -> dict:
    """Give a pod as the upper apiserver stores it, with token mounts in all kinds of containers that can have them."""
    return pod(
        {
            "serviceAccountName": "robot",
            "serviceAccount": "robot",
            "volumes": [DATA, TOKEN],
            "containers": [{"name": "main", "volumeMounts": [DATA_MOUNT, TOKEN_MOUNT]}, {"name": "plain"}],
            "initContainers": [{"name": "init", "volumeMounts": [TOKEN_MOUNT]}],
        }
    )


def test_without_identity_a_pod_runs_as_the_default_account_without_token() -> None:
    """Both names of the field say default, and nothing mounts a token."""
    spec = lower_pod(with_token(), place())["spec"]
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert spec["automountServiceAccountToken"] is False


def test_without_identity_the_token_volume_and_its_mounts_go() -> None:
    """A mount whose volume is gone is refused, so both go, in containers and init containers; others stay."""
    spec = lower_pod(with_token(), place())["spec"]
    assert spec["volumes"] == [DATA]
    assert spec["containers"] == [{"name": "main", "volumeMounts": [DATA_MOUNT]}, {"name": "plain"}]
    assert spec["initContainers"] == [{"name": "init"}]


def test_mounts_go_from_ephemeral_containers_too() -> None:
    """An ephemeral container added by kubectl debug has the mount as well."""
    spec = {"volumes": [TOKEN], "ephemeralContainers": [{"name": "debug", "volumeMounts": [TOKEN_MOUNT]}]}
    assert without_token(spec) == {"volumes": [], "ephemeralContainers": [{"name": "debug"}]}


def test_a_spec_without_token_needs_no_change() -> None:
    """Nothing to take away gives nothing to overwrite."""
    assert without_token({"volumes": [DATA], "containers": [{"name": "main"}]}) == {}
    assert without_token({}) == {}


@pytest.mark.parametrize("identity", ["lower", "upper"])
def test_with_an_identity_account_volume_and_mounts_stay(identity: str) -> None:
    """The account's name, the token volume and its mounts go down; admission below then adds none of its own."""
    upper = with_token()
    spec = lower_pod(upper, place(identity=identity))["spec"]
    for field in ("serviceAccountName", "serviceAccount", "volumes", "containers", "initContainers"):
        assert spec[field] == upper["spec"][field]
    assert "automountServiceAccountToken" not in spec


def test_a_volume_of_that_name_of_another_kind_is_the_users() -> None:
    """Only what admission adds goes: a user's emptyDir with such a name stays with its mounts."""
    own = {"name": "kube-api-access-mine", "emptyDir": {}}
    spec = lower_pod(pod({"volumes": [own], "containers": [{"name": "m", "volumeMounts": [own]}]}), place())["spec"]
    assert spec["volumes"] == [own]
    assert spec["containers"][0]["volumeMounts"] == [own]


def test_the_token_volume_of_older_clusters_goes_too() -> None:
    """Before Kubernetes 1.21 the token was a Secret volume; that Secret is never copied."""
    old = {"name": "default-token-abc12", "secret": {"secretName": "default-token-abc12"}}
    assert lower_pod(pod({"volumes": [old]}), place())["spec"]["volumes"] == []
