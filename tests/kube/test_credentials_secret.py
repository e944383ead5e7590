"""A kubeconfig in a Secret of the upper cluster: found, followed, and never told."""

from base64 import b64encode
from collections.abc import Callable

import orjson
import pytest

from tensile.kube.credentials import AccessError, CredentialsUnavailable, SecretKubeconfig, from_text, kubeconfig_in
from tensile.kube.store import Cache
from tensile.topology import SecretRef

REF = SecretRef.model_construct(namespace="ops", name="lower-a", key="kubeconfig")
WHERE = "Secret ops/lower-a of the upper cluster, key kubeconfig: "
TOKEN = "a-token-that-nobody-may-see"


def kubeconfig(server: str = "https://10.0.0.1:6443", *, more: str = "") -> str:
    """Write a kubeconfig with a token."""
    return (
        f"current-context: it\ncontexts: [{{name: it, context: {{cluster: it, user: it}}}}, "
        f"{{name: other, context: {{cluster: it, user: it}}}}]\n"
        f"clusters: [{{name: it, cluster: {{server: '{server}'}}}}]\n"
        f"users: [{{name: it, user: {{token: {TOKEN}{more}}}}}]\n"
    )


class Secrets:
    """The upper's Secrets as a cache holds them."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.cache.replace([], 1)

    def put(self, content: str | bytes, key: str = "kubeconfig", uid: str = "1") -> None:
        """Let the watch tell of the Secret."""
        data = content.encode() if isinstance(content, str) else content
        self.raw({key: b64encode(data).decode()}, uid)

    def raw(self, data: dict[str, str] | None, uid: str = "1") -> None:
        """Let the watch tell of the Secret with just this data."""
        meta = {"namespace": "ops", "name": "lower-a", "uid": uid, "resourceVersion": str(self.cache.version + 1)}
        self.cache.put(orjson.dumps({"metadata": meta, "data": data}))

    def remove(self) -> None:
        """Let the watch tell that it is gone."""
        entry = self.cache.get("ops", "lower-a")
        assert entry is not None
        meta = {"namespace": "ops", "name": "lower-a", "uid": entry.uid}
        self.cache.remove(orjson.dumps({"metadata": {**meta, "resourceVersion": str(self.cache.version + 1)}}))


@pytest.fixture
def secrets() -> Secrets:
    """Return the Secrets of an upper cluster that has none."""
    return Secrets()


def test_the_text_is_found(secrets: Secrets) -> None:
    """Under the key that is named."""
    secrets.put(kubeconfig())
    assert kubeconfig_in(secrets.cache, REF) == kubeconfig()
    with pytest.raises(AccessError, match="key other: the key is missing or empty"):
        kubeconfig_in(secrets.cache, REF.model_copy(update={"key": "other"}))


def none(_secrets: Secrets) -> None:
    """Return no Secret."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (none, "the Secret does not exist: create it, or correct kubeconfigSecret"),
        (lambda secrets: secrets.raw(None), "the key is missing or empty (keys: none)"),
        (lambda secrets: secrets.put(""), "the key is missing or empty (keys: kubeconfig)"),
        (lambda secrets: secrets.put(TOKEN, "b"), "the key is missing or empty (keys: b)"),
        (lambda secrets: secrets.put(b"\xff\xfe"), "not UTF-8 text: store a kubeconfig under this key"),
        (lambda secrets: secrets.raw({"kubeconfig": "?"}), "not UTF-8 text: store a kubeconfig under this key"),
    ],
    ids=["no secret", "no data", "empty", "another key", "binary", "not base64"],
)
def test_where_there_is_none_that_is_said(secrets: Secrets, make: Callable[[Secrets], None], words: str) -> None:
    """By Secret and key, without a value."""
    make(secrets)
    with pytest.raises(AccessError) as refusal:
        kubeconfig_in(secrets.cache, REF)
    assert str(refusal.value).startswith(WHERE + words)
    assert TOKEN not in str(refusal.value)


async def test_it_opens_the_way(secrets: Secrets) -> None:
    """As a kubeconfig in a file would, by the context that is named."""
    secrets.put(kubeconfig())
    access = await SecretKubeconfig(secrets.cache, REF, "other").access()
    assert (access.url, access.headers["Authorization"]) == ("https://10.0.0.1:6443", f"Bearer {TOKEN}")
    with pytest.raises(AccessError, match="context 'missing'"):
        await SecretKubeconfig(secrets.cache, REF, "missing").access()


async def test_nothing_outside_of_it_is_used(secrets: Secrets) -> None:
    """No file is opened and no program run for who may write a Secret."""
    secrets.put(kubeconfig(more=", exec: {command: /bin/true, apiVersion: client.authentication.k8s.io/v1}"))
    with pytest.raises(AccessError, match=r"Secret ops/lower-a .* exec plugins are refused in a Secret"):
        await SecretKubeconfig(secrets.cache, REF, None).access()


async def test_a_change_gives_a_new_way_once(secrets: Secrets) -> None:
    """What did not change gives none, be it written anew with another label."""
    secrets.put(kubeconfig())
    kept = SecretKubeconfig(secrets.cache, REF, None)
    await kept.access()
    assert await kept.look() is None
    secrets.put(kubeconfig("https://10.0.0.2:6443"))
    access = await kept.look()
    assert access is not None
    assert access.url == "https://10.0.0.2:6443"
    assert await kept.look() is None
    secrets.put(kubeconfig("https://10.0.0.2:6443"))
    assert await kept.look() is None


async def test_a_bad_one_is_said_until_it_is_good_again(secrets: Secrets) -> None:
    """It gives no way; put back as it was, it returns none either, since that one is open."""
    secrets.put(kubeconfig())
    kept = SecretKubeconfig(secrets.cache, REF, None)
    await kept.access()
    secrets.put("clusters: [")
    assert await kept.look() is None
    assert kept.trouble.startswith(WHERE.removesuffix(": "))
    assert kept.trouble.endswith("; the last good connection is kept")
    trouble = kept.trouble
    assert await kept.look() is None
    assert kept.trouble == trouble
    secrets.put(kubeconfig())
    assert await kept.look() is None
    assert kept.trouble == ""


async def test_a_deleted_one_is_said_and_a_new_one_taken_up(secrets: Secrets) -> None:
    """Also when it has another UID and another content."""
    secrets.put(kubeconfig())
    kept = SecretKubeconfig(secrets.cache, REF, None)
    await kept.access()
    secrets.remove()
    assert await kept.look() is None
    assert "the Secret does not exist" in kept.trouble
    secrets.put(kubeconfig("https://10.0.0.3:6443"), uid="2")
    assert await kept.look() is not None
    assert kept.trouble == ""


async def test_a_list_that_may_be_old_says_nothing(secrets: Secrets) -> None:
    """While the upper cluster's Secrets are not in sync, none counts as gone."""
    secrets.put(kubeconfig())
    kept = SecretKubeconfig(secrets.cache, REF, None)
    await kept.access()
    secrets.remove()
    secrets.cache.mark_stale()
    assert await kept.look() is None
    assert kept.trouble == ""


async def test_what_is_wrong_in_it_is_no_fault_of_files() -> None:
    """Whoever waits for a correction waits for the Secret, and not for a change of files."""
    bad = kubeconfig().replace("cluster: {server", "cluster: {certificate-authority-data: bm8K, server")
    with pytest.raises(AccessError, match="contains no certificate") as told:
        await from_text(bad, "Secret ops/lower")
    assert not isinstance(told.value, CredentialsUnavailable)
