"""What a kubeconfig is read as, and what of it is refused."""

from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from papers import inline, kubeconfig

from tensile.errors import AccessError, TensileError
from tensile.kube.kubeconfig import PEMSource, parse

SECRET = "hunter2-do-not-show"
PEM = b"-----BEGIN CERTIFICATE-----\n"
TOKEN = {"token": SECRET}


def test_a_token_and_a_ca_inline_are_read() -> None:
    """Data in base64 is decoded, and the server's trailing slash does not get into paths."""
    text = kubeconfig(TOKEN, {"certificate-authority-data": inline(PEM)}, server="https://a.example:6443/")
    entry = parse(text, None, "f")
    assert entry.server == "https://a.example:6443"
    assert entry.authority == PEMSource(PEM)
    assert entry.token == SECRET
    assert entry.files() == []


def test_files_are_named_and_not_opened() -> None:
    """Every file that an entry refers to is listed, so that they can be resolved or refused."""
    user = {"client-certificate": "c.pem", "client-key": "k.pem", "tokenFile": "t"}
    entry = parse(kubeconfig(user, {"certificate-authority": "ca.pem"}), None, "f")
    assert entry.files() == ["ca.pem", "c.pem", "k.pem", "t"]


def test_inline_data_wins_over_a_file_and_a_tokens_file_over_the_token() -> None:
    """As in Kubernetes; the files in whose place data is there are named, and not needed."""
    user = {**TOKEN, "tokenFile": "t", "client-key": "k", "client-key-data": inline(b"K"), "client-certificate": "c"}
    entry = parse(kubeconfig(user), None, "f")
    assert (entry.token, entry.token_file) == ("", "t")
    assert entry.key == PEMSource(b"K", "k")
    assert (entry.files(), entry.needed()) == (["c", "k", "t"], ["c", "t"])


def test_base64_may_be_folded_over_lines() -> None:
    """A folded block of base64 is one value, as every YAML writer makes it."""
    encoded = inline(PEM * 20)
    folded = "\n".join(encoded[i : i + 40] for i in range(0, len(encoded), 40))
    assert parse(kubeconfig(TOKEN, {"certificate-authority-data": folded}), None, "f").authority.data == PEM * 20


def test_the_named_context_is_taken_instead_of_the_current_one() -> None:
    """A topology can name any context of the file."""
    contexts = [{"name": name, "context": {"cluster": name, "user": "me"}} for name in ("here", "far")]
    clusters = [{"name": name, "cluster": {"server": f"https://{name}"}} for name in ("here", "far")]
    text = kubeconfig(TOKEN, contexts=contexts, clusters=clusters)
    assert parse(text, "far", "f").server == "https://far"
    assert parse(text, None, "f").server == "https://here"


@pytest.mark.parametrize(("given", "namespace"), [("shop", "shop"), (None, ""), (7, "")])
def test_the_namespace_of_the_context_is_kept(given: object, namespace: str) -> None:
    """A strange one is none: the engine does not need it."""
    contexts = [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": given}}]
    text = kubeconfig(TOKEN, contexts=contexts, clusters=[{"name": "here", "cluster": {"server": "https://here"}}])
    assert parse(text, None, "f").namespace == namespace


def test_tls_server_name_is_kept() -> None:
    """Clusters behind tunnels are checked against the name that the file gives."""
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


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_no_entry_is_refused_by_its_place(words: str) -> None:
    """Every refusal says where and what; `test_hostile_kubeconfigs.py` has what else is refused."""
    user, cluster, top = REFUSED[words]
    with pytest.raises(AccessError) as refused:
        parse(kubeconfig(user, cluster, **top), None, "lower.kubeconfig")
    assert str(refused.value).startswith("lower.kubeconfig: ")
    assert words in str(refused.value)
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
def test_any_shape_is_read_or_refused(shape: object) -> None:
    """No structure of lists and mappings leads to another error than a refusal."""
    with suppress(AccessError):
        assert parse(yaml.safe_dump(shape), "here", "f").server.startswith("https://")


def test_an_entry_does_not_show_its_secrets() -> None:
    """Tokens, keys and plugins do not get into logs by the entry's own words."""
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
