"""Tests of a kubeconfig in a Secret of the upper cluster: it is read, followed, and its values are never shown."""

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
    """Return a kubeconfig with a token."""
    return (
        f"current-context: it\ncontexts: [{{name: it, context: {{cluster: it, user: it}}}}, "
        f"{{name: other, context: {{cluster: it, user: it}}}}]\n"
        f"clusters: [{{name: it, cluster: {{server: '{server}'}}}}]\n"
        f"users: [{{name: it, user: {{token: {TOKEN}{more}}}}}]\n"
    )


class CachedSecrets:
    """The Secrets of the upper cluster in a cache."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.cache.replace([], 1)

    def put(self, content: str | bytes, key: str = "kubeconfig", uid: str = "1") -> None:
        """Put the Secret with this content into the cache, as a watch does."""
        data = content.encode() if isinstance(content, str) else content
        self.raw({key: b64encode(data).decode()}, uid)

    def raw(self, data: dict[str, str] | None, uid: str = "1") -> None:
        """Put the Secret with exactly this data into the cache, as a watch does."""
        meta = {"namespace": "ops", "name": "lower-a", "uid": uid, "resourceVersion": str(self.cache.version + 1)}
        self.cache.put(orjson.dumps({"metadata": meta, "data": data}))

    def remove(self) -> None:
        """Remove the Secret from the cache, as a watch does."""
        entry = self.cache.get("ops", "lower-a")
        assert entry is not None
        meta = {"namespace": "ops", "name": "lower-a", "uid": entry.uid}
        self.cache.remove(orjson.dumps({"metadata": {**meta, "resourceVersion": str(self.cache.version + 1)}}))


@pytest.fixture
def secrets() -> CachedSecrets:
    """Return the cache of an upper cluster without Secrets."""
    return CachedSecrets()


def test_the_kubeconfig_is_read_from_the_named_key_of_the_secret(secrets: CachedSecrets) -> None:
    """If the key is missing, the error names it."""
    secrets.put(kubeconfig())
    assert kubeconfig_in(secrets.cache, REF) == kubeconfig()
    with pytest.raises(AccessError, match="key other: the key is missing or empty"):
        kubeconfig_in(secrets.cache, REF.model_copy(update={"key": "other"}))


def none(_secrets: CachedSecrets) -> None:
    """Leave the cache without a Secret."""


@pytest.mark.parametrize(
    ("make", "message"),
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
def test_the_error_for_a_missing_kubeconfig_names_the_secret_and_the_key(
    secrets: CachedSecrets, make: Callable[[CachedSecrets], None], message: str
) -> None:
    """The error contains no value of the Secret."""
    make(secrets)
    with pytest.raises(AccessError) as refusal:
        kubeconfig_in(secrets.cache, REF)
    assert str(refusal.value).startswith(WHERE + message)
    assert TOKEN not in str(refusal.value)


async def test_the_access_comes_from_the_named_context_of_the_kubeconfig(secrets: CachedSecrets) -> None:
    """The result is the same as for a kubeconfig in a file; an unknown context is an error."""
    secrets.put(kubeconfig())
    access = await SecretKubeconfig(secrets.cache, REF, "other").access()
    assert (access.url, access.headers["Authorization"]) == ("https://10.0.0.1:6443", f"Bearer {TOKEN}")
    with pytest.raises(AccessError, match="context 'missing'"):
        await SecretKubeconfig(secrets.cache, REF, "missing").access()


async def test_an_exec_plugin_in_a_kubeconfig_from_a_secret_is_rejected(secrets: CachedSecrets) -> None:
    """A user who may write the Secret must not be able to run a program in the engine's pod."""
    secrets.put(kubeconfig(more=", exec: {command: /bin/true, apiVersion: client.authentication.k8s.io/v1}"))
    with pytest.raises(AccessError, match=r"Secret ops/lower-a .* exec plugins are refused in a Secret"):
        await SecretKubeconfig(secrets.cache, REF, None).access()


async def test_look_returns_a_new_access_once_per_change_of_the_kubeconfig(secrets: CachedSecrets) -> None:
    """A new resourceVersion with the same kubeconfig returns no new access."""
    secrets.put(kubeconfig())
    kept = SecretKubeconfig(secrets.cache, REF, None)
    await kept.access()
    assert await kept.refresh() is None
    secrets.put(kubeconfig("https://10.0.0.2:6443"))
    access = await kept.refresh()
    assert access is not None
    assert access.url == "https://10.0.0.2:6443"
    assert await kept.refresh() is None
    secrets.put(kubeconfig("https://10.0.0.2:6443"))
    assert await kept.refresh() is None


async def test_an_invalid_kubeconfig_is_reported_until_it_is_corrected(secrets: CachedSecrets) -> None:
    """The open connection is kept; if the old kubeconfig is restored, no new access is returned."""
    secrets.put(kubeconfig())
    kept = SecretKubeconfig(secrets.cache, REF, None)
    await kept.access()
    secrets.put("clusters: [")
    assert await kept.refresh() is None
    assert kept.error.startswith(WHERE.removesuffix(": "))
    assert kept.error.endswith("; the last good connection is kept")
    error = kept.error
    assert await kept.refresh() is None
    assert kept.error == error
    secrets.put(kubeconfig())
    assert await kept.refresh() is None
    assert kept.error == ""


async def test_a_deleted_secret_is_reported_and_a_new_secret_is_used(secrets: CachedSecrets) -> None:
    """The new Secret may have another UID and another kubeconfig."""
    secrets.put(kubeconfig())
    kept = SecretKubeconfig(secrets.cache, REF, None)
    await kept.access()
    secrets.remove()
    assert await kept.refresh() is None
    assert "the Secret does not exist" in kept.error
    secrets.put(kubeconfig("https://10.0.0.3:6443"), uid="2")
    assert await kept.refresh() is not None
    assert kept.error == ""


async def test_a_missing_secret_is_not_reported_while_the_cache_is_not_synced(secrets: CachedSecrets) -> None:
    """Until the Secrets of the upper cluster are synced again, the Secret does not count as deleted."""
    secrets.put(kubeconfig())
    kept = SecretKubeconfig(secrets.cache, REF, None)
    await kept.access()
    secrets.remove()
    secrets.cache.mark_stale()
    assert await kept.refresh() is None
    assert kept.error == ""


async def test_an_error_in_a_secret_names_no_files_to_wait_for() -> None:
    """A correction comes with the Secret, so the error is not the one that waits for a change of files."""
    bad = kubeconfig().replace("cluster: {server", "cluster: {certificate-authority-data: bm8K, server")
    with pytest.raises(AccessError, match="contains no certificate") as raised:
        await from_text(bad, "Secret ops/lower")
    assert not isinstance(raised.value, CredentialsUnavailable)
