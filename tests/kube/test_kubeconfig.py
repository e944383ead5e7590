"""What a kubeconfig is read as, and what of it is refused."""

from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from papers import inline, kubeconfig

from tensile.errors import TensileError
from tensile.kube.kubeconfig import AccessError, PEMSource, parse

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


def test_tls_server_name_is_kept() -> None:
    """Clusters behind tunnels are checked against the name that the file gives."""
    assert parse(kubeconfig(TOKEN, {"tls-server-name": "inner"}), None, "f").server_name == "inner"


REFUSED = {
    "insecure-skip-tls-verify": (TOKEN, {"insecure-skip-tls-verify": True}, {}),
    "proxy-url": (TOKEN, {"proxy-url": "http://proxy"}, {}),
    "auth-provider": ({**TOKEN, "auth-provider": {"name": "gcp"}}, {}, {}),
    "password": ({"password": SECRET}, {}, {}),
    "username": ({"username": "u", "password": SECRET}, {}, {}),
    "impersonation": ({**TOKEN, "as": "admin"}, {}, {}),
    "as-groups": ({**TOKEN, "as-groups": ["system:masters"]}, {}, {}),
    "must begin with https://": (TOKEN, {"server": "http://a"}, {}),
    "write https://HOST:PORT": (TOKEN, {"server": "https://"}, {}),
    "it has a user name or password in it": (TOKEN, {"server": f"https://u:{SECRET}@a"}, {}),
    "is no plain address": (TOKEN, {"server": "https://[::1"}, {}),
    "server must be text": (TOKEN, {"server": 6443}, {}),
    "certificate-authority-data is not base64": (TOKEN, {"certificate-authority-data": f"%{SECRET}"}, {}),
    "has no credential": ({}, {}, {}),
    "belong together": ({"client-certificate": "c"}, {}, {}),
    "token must be text": ({"token": 12345}, {}, {}),
    "token is not one line": ({"token": f"a\n{SECRET}"}, {}, {}),
    "exec must be a mapping": ({"exec": "run-me"}, {}, {}),
    "users[0].user: must be a mapping": (None, {}, {}),
    "tokenfile is not known": ({**TOKEN, "tokenfile": "t"}, {}, {}),
    "no current-context": (TOKEN, {}, {"current-context": ""}),
    "current-context: no context of that name is defined (of 1): define it, or name another": (
        TOKEN,
        {},
        {"current-context": "nowhere"},
    ),
    "contexts[0].context.user: no user of that name is defined (of 0)": (TOKEN, {}, {"users": []}),
    "contexts[0].context.cluster: no cluster of that name is defined": (TOKEN, {}, {"clusters": None}),
    "contexts[0].context: user is missing": (
        TOKEN,
        {},
        {"contexts": [{"name": "here", "context": {"cluster": "there"}}]},
    ),
    "contexts[0] and contexts[1] have one name": (
        TOKEN,
        {},
        {"contexts": [{"name": "here", "context": {}}, {"name": "here", "context": {}}]},
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_supported_is_refused_by_name(words: str) -> None:
    """Every refusal says where and what, and never shows a secret."""
    user, cluster, top = REFUSED[words]
    with pytest.raises(AccessError) as refused:
        parse(kubeconfig(user, cluster, **top), None, "lower.kubeconfig")
    assert words in str(refused.value)
    assert str(refused.value).startswith(("lower.kubeconfig: ", "lower.kubeconfig:"))
    assert SECRET not in str(refused.value)
    assert isinstance(refused.value, TensileError)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: b: c", 'f:1:5: not valid YAML: a ":" where no key can be'),
        ("[" * 30_000, "f:1:33: nested deeper than 32 levels"),
        ("".join(f"{' ' * n}a:\n" for n in range(40)), "nested deeper than 32 levels"),
        ("x: !!python/object:os.system {}", "f:1:4: a tag"),
        ("a: 1\n---\nb: 1\n", "f:2:1: a second document; put one kubeconfig in one file"),
        ("a: {<<: {}}", "f:1:5: a merge key; write the fields out"),
        ("- a", "no kubeconfig"),
        ("", "no kubeconfig"),
        ("kind: Secret", "expected kind Config"),
        ("\x00", "U+0000 cannot stand here"),
        ("a: " + "b" * (1 << 20), "larger than 1048576 bytes"),
        ("d: 2026-99-99", "no current-context"),
    ],
)
def test_what_is_no_kubeconfig_is_refused_without_harm(text: str, words: str) -> None:
    """Broken, nested, tagged and huge files are errors with a place, not crashes."""
    with pytest.raises(AccessError, match=r".") as refused:
        parse(text, None, "f")
    assert words in str(refused.value)


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


def test_an_alias_bomb_is_not_unfolded() -> None:
    """A few hundred bytes that stand for gigabytes are counted before anything is built."""
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
    bomb = f"l0: &l0 [x]\n{levels}contexts: [{{name: *l11, context: {{}}}}]\n"
    with pytest.raises(AccessError, match="more than 10000 values"):
        parse(bomb, "here", "f")


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
