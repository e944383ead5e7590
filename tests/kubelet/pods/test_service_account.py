"""Service accounts of lower pods, and the token volume that admission adds above."""

import pytest
from podkit import place, pod
from worldkit import token_volume

from tensile.kubelet.pods.projection import lower_pod
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


def test_without_identity_a_users_volume_loses_its_tokens() -> None:
    """The lower kubelet would put tokens of the account default there; the rest of the volume stays."""
    own = {"name": "own", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s"}}]}}
    spec = lower_pod(pod({"volumes": [own]}), place())["spec"]
    assert spec["volumes"] == [{"name": "own", "projected": {"sources": [{"secret": {"name": "s"}}]}}]


def test_without_identity_a_users_volume_loses_its_certificates() -> None:
    """They say who the pod is as tokens do: the account default of the lower cluster."""
    certificate = {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519"}}
    own = {"name": "own", "projected": {"sources": [certificate, {"secret": {"name": "s"}}]}}
    assert lower_pod(pod({"volumes": [own]}), place())["spec"]["volumes"] == [
        {"name": "own", "projected": {"sources": [{"secret": {"name": "s"}}]}}
    ]
    for identity in ("lower", "upper"):
        assert lower_pod(pod({"volumes": [own]}), place(identity=identity))["spec"]["volumes"] == [own]


def test_with_the_lowers_identity_account_volume_and_mounts_stay() -> None:
    """The account's name, the token volume and its mounts go down; admission below then adds none of its own."""
    upper = with_token()
    spec = lower_pod(upper, place(identity="lower"))["spec"]
    for field in ("serviceAccountName", "serviceAccount", "volumes", "containers", "initContainers"):
        assert spec[field] == upper["spec"][field]
    assert "automountServiceAccountToken" not in spec


def test_with_the_lowers_identity_a_pod_that_wants_no_token_gets_none() -> None:
    """The account below may want it otherwise, as `default` does, which is the lower cluster's own."""
    upper = pod({"serviceAccountName": "default", "volumes": [DATA]})
    assert lower_pod(upper, place(identity="lower"))["spec"]["automountServiceAccountToken"] is False


def test_with_the_lowers_identity_the_token_of_old_clusters_is_left_to_admission() -> None:
    """Its Secret is not copied; without the volume, the lower cluster adds one of its own kind."""
    volume = {"name": "default-token-7x2", "secret": {"secretName": "default-token-7x2"}}
    mount = {**TOKEN_MOUNT, "name": "default-token-7x2"}
    upper = pod({"volumes": [DATA, volume], "containers": [{"name": "main", "volumeMounts": [mount]}]})
    spec = lower_pod(upper, place(identity="lower"))["spec"]
    assert (spec["volumes"], spec["containers"]) == ([DATA], [{"name": "main"}])
    assert "automountServiceAccountToken" not in spec


AWAY = place(identity="upper", upper_server=UpperServer("upper.example.com", 6443))
ADDRESS = [
    {"name": "KUBERNETES_SERVICE_HOST", "value": "upper.example.com"},
    {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
    {"name": "KUBERNETES_SERVICE_PORT_HTTPS", "value": "6443"},
]


def test_with_the_uppers_identity_tokens_come_out_of_a_secret() -> None:
    """Under the same names, so that the mounts stay; admission below adds nothing."""
    upper = with_token()
    spec = lower_pod(upper, AWAY)["spec"]
    sources = [
        {"secret": {"name": "upper-token-uid-1", "items": [{"key": name, "path": name}]}}
        for name in ("token", "ca.crt", "namespace")
    ]
    projected = {"defaultMode": 420, "sources": sources}
    assert spec["volumes"] == [DATA, {"name": "kube-api-access-7x2", "projected": projected}]
    assert [one.get("volumeMounts") for one in spec["containers"]] == [[DATA_MOUNT, TOKEN_MOUNT], None]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("robot", False)


def test_with_the_uppers_identity_every_container_knows_where_the_upper_is() -> None:
    """Before its own variables, which may be made of these."""
    upper = with_token()
    upper["spec"]["containers"][0]["env"] = [{"name": "MINE", "value": "$(KUBERNETES_SERVICE_HOST)"}]
    spec = lower_pod(upper, AWAY)["spec"]
    assert spec["containers"][0]["env"] == [*ADDRESS, {"name": "MINE", "value": "$(KUBERNETES_SERVICE_HOST)"}]
    assert spec["containers"][1]["env"] == spec["initContainers"][0]["env"] == ADDRESS


def test_a_containers_own_word_of_the_address_holds() -> None:
    """Whoever writes it knows better."""
    own = {"name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1"}
    assert with_address({"name": "main", "env": [own]}, AWAY.upper_server)["env"] == [*ADDRESS[1:], own]


def test_without_an_address_nothing_is_told() -> None:
    """The container is the very same."""
    container = {"name": "main"}
    assert with_address(container, None) is container


def test_with_the_uppers_identity_a_pod_that_wants_no_token_is_left_alone() -> None:
    """It gets none, and is told of no address; its account stays."""
    upper = pod({"serviceAccountName": "robot", "volumes": [DATA]})
    spec = lower_pod(upper, AWAY)["spec"]
    assert (spec["volumes"], spec["containers"]) == ([DATA], upper["spec"]["containers"])
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("robot", False)


@pytest.mark.parametrize("identity", ["none", "lower", "upper"])
def test_the_upper_pod_is_never_changed(identity: str) -> None:
    """Others hold it."""
    upper = with_token()
    lower_pod(upper, place(identity=identity, upper_server=AWAY.upper_server))
    assert upper == with_token()


def test_a_lower_pod_tells_whether_it_uses_tokens_of_the_upper() -> None:
    """For the upper pod that it was made for, and no other."""
    assert uses_tokens(lower_pod(with_token(), AWAY), "uid-1")
    assert not uses_tokens(lower_pod(with_token(), AWAY), "uid-2")
    assert not uses_tokens(lower_pod(with_token(), place(identity="lower")), "uid-1")
    assert not uses_tokens({"spec": {}}, "uid-1")


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
