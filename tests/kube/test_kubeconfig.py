"""Tests of the content of a kubeconfig: how it is parsed, and what is rejected."""

from contextlib import suppress

import pytest
import yaml
from certkit import inline, kubeconfig
from hypothesis import given
from hypothesis import strategies as st

from tensile.errors import AccessError, TensileError
from tensile.kube.kubeconfig import PEMSource, parse

SECRET = "hunter2-do-not-show"
PEM = b"-----BEGIN CERTIFICATE-----\n"
TOKEN = {"token": SECRET}


def test_a_token_and_an_inline_ca_are_read() -> None:
    """Base64 data are decoded, and a trailing slash of the server is removed."""
    text = kubeconfig(TOKEN, {"certificate-authority-data": inline(PEM)}, server="https://a.example:6443/")
    entry = parse(text, None, "f")
    assert entry.server == "https://a.example:6443"
    assert entry.authority == PEMSource(PEM)
    assert entry.token == SECRET
    assert entry.files() == []


def test_files_of_an_entry_are_listed_and_not_opened() -> None:
    """The caller resolves or rejects them."""
    user = {"client-certificate": "c.pem", "client-key": "k.pem", "tokenFile": "t"}
    entry = parse(kubeconfig(user, {"certificate-authority": "ca.pem"}), None, "f")
    assert entry.files() == ["ca.pem", "c.pem", "k.pem", "t"]


def test_inline_data_override_a_file_and_a_token_file_overrides_the_token() -> None:
    """Kubernetes has the same precedence; a file that is overridden is listed but not needed."""
    user = {**TOKEN, "tokenFile": "t", "client-key": "k", "client-key-data": inline(b"K"), "client-certificate": "c"}
    entry = parse(kubeconfig(user), None, "f")
    assert (entry.token, entry.token_file) == ("", "t")
    assert entry.key == PEMSource(b"K", "k")
    assert (entry.files(), entry.needed()) == (["c", "k", "t"], ["c", "t"])


def test_base64_data_may_have_several_lines() -> None:
    """YAML writers fold long values."""
    encoded = inline(PEM * 20)
    folded = "\n".join(encoded[i : i + 40] for i in range(0, len(encoded), 40))
    assert parse(kubeconfig(TOKEN, {"certificate-authority-data": folded}), None, "f").authority.data == PEM * 20


def test_a_named_context_is_used_instead_of_the_current_one() -> None:
    """A topology can name any context of the kubeconfig."""
    contexts = [{"name": name, "context": {"cluster": name, "user": "me"}} for name in ("here", "far")]
    clusters = [{"name": name, "cluster": {"server": f"https://{name}"}} for name in ("here", "far")]
    text = kubeconfig(TOKEN, contexts=contexts, clusters=clusters)
    assert parse(text, "far", "f").server == "https://far"
    assert parse(text, None, "f").server == "https://here"


@pytest.mark.parametrize(("given", "namespace"), [("shop", "shop"), (None, ""), (7, "")])
def test_the_namespace_of_the_context_is_read(given: object, namespace: str) -> None:
    """An invalid namespace counts as none, because the engine does not need it."""
    contexts = [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": given}}]
    text = kubeconfig(TOKEN, contexts=contexts, clusters=[{"name": "here", "cluster": {"server": "https://here"}}])
    assert parse(text, None, "f").namespace == namespace


def test_tls_server_name_is_read() -> None:
    """The certificate of a cluster behind a tunnel is verified against this name."""
    assert parse(kubeconfig(TOKEN, {"tls-server-name": "inner"}), None, "f").server_name == "inner"


REFUSED = {
    "clusters[0].cluster: server must be text": (TOKEN, {"server": 6443}, {}),
    "contexts[0].context: user is missing": (
        TOKEN,
        {},
        {"contexts": [{"name": "here", "context": {"cluster": "there"}}]},
    ),
    "current-context: no context has this name (1 defined): `kubectl config view --kubeconfig FILE` shows the names": (
        TOKEN,
        {},
        {"current-context": "nowhere"},
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_the_error_for_an_invalid_kubeconfig_names_the_place_and_the_problem(message: str) -> None:
    """`test_hostile_kubeconfigs.py` has the other cases that are rejected."""
    user, cluster, top = REFUSED[message]
    with pytest.raises(AccessError) as refused:
        parse(kubeconfig(user, cluster, **top), None, "lower.kubeconfig")
    assert str(refused.value).startswith("lower.kubeconfig: ")
    assert message in str(refused.value)
    assert isinstance(refused.value, TensileError)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=8) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "contexts",
                        "clusters",
                        "users",
                        "current-context",
                        "name",
                        "context",
                        "cluster",
                        "user",
                        "server",
                        "token",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
    )
)
def test_any_structure_is_parsed_or_rejected_with_an_access_error(shape: object) -> None:
    """No structure of lists and mappings raises another exception."""
    with suppress(AccessError):
        assert parse(yaml.safe_dump(shape), "here", "f").server.startswith("https://")


def test_the_repr_of_an_entry_contains_no_secrets() -> None:
    """Tokens, keys and variables of exec plugins must not get into logs."""
    user = {"token": SECRET, "client-key-data": inline(SECRET.encode()), "client-certificate": "c"}
    plugin = {
        "exec": {
            "command": "/x",
            "apiVersion": "client.authentication.k8s.io/v1",
            "env": [{"name": "n", "value": SECRET}],
        }
    }
    assert SECRET not in repr(parse(kubeconfig(user), None, "f"))
    assert SECRET not in repr(parse(kubeconfig(plugin), None, "f"))
