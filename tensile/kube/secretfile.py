"""A kubeconfig that is kept in a Secret of the upper cluster: found in what the cache holds of it, and followed there.

A Secret that is gone or bad takes nothing away from the connection that is open: it is said, and nothing else.
Errors name the Secret and the key, never a value.
"""

import base64
import binascii

from tensile.cache import Cache
from tensile.cluster import Cluster, Selection
from tensile.kube.access import Access, AccessError, from_text
from tensile.objects import SECRET, Manifest
from tensile.topology import SecretRef

_MOST_NAMED = 10


async def keep_secret(upper: Cluster, ref: SecretRef, found: Cache) -> None:
    """Have a cache know one Secret of the upper cluster, if it is there; raises ClusterError.

    It is listed: that is what an engine may, which follows Secrets and reads none by itself.
    """
    listing = await upper.list(SECRET, Selection(ref.namespace, fields=f"metadata.name={ref.name}"))
    for raw in listing.items:
        found.put(raw)


class KeptKubeconfig:
    """The kubeconfig in a Secret. `trouble` says what is wrong with it since it was last good, "" for nothing."""

    def __init__(self, secrets: Cache, ref: SecretRef, context: str | None) -> None:
        self.trouble = ""
        self._secrets = secrets
        self._ref = ref
        self._context = context
        self._seen: tuple[str, int] | None = None
        self._text = ""

    async def access(self) -> Access:
        """Open the way that it describes; raises AccessError."""
        self._seen = self._state()
        text = kubeconfig_in(self._secrets, self._ref)
        found = await from_text(text, _origin(self._ref), self._context)
        self._text = text
        return found

    async def look(self) -> Access | None:
        """Give the way that it describes by now; None where that is the one before, or cannot be used."""
        if not self._secrets.synced or not self.is_other():
            return None
        before = self._text
        try:
            found = await self.access()
        except AccessError as error:
            self.trouble = f"{error}; the last good connection is kept"
            return None
        self.trouble = ""
        return found if self._text != before else None

    def is_other(self) -> bool:
        """Say whether the Secret is not as it was when it was read."""
        return self._state() != self._seen

    def _state(self) -> tuple[str, int] | None:
        entry = self._secrets.get(self._ref.namespace, self._ref.name)
        return (entry.uid, entry.version) if entry is not None else None


def kubeconfig_in(secrets: Cache, ref: SecretRef) -> str:
    """Give the kubeconfig's text; raises AccessError where there is none."""
    entry = secrets.get(ref.namespace, ref.name)
    if entry is None:
        raise AccessError(f"{_origin(ref)}: there is no such Secret", "create it, or correct kubeconfigSecret")
    try:
        return base64.b64decode(_value(entry.manifest(), ref), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise AccessError(f"{_origin(ref)}: not text in UTF-8", "put a kubeconfig there") from None


def _origin(ref: SecretRef) -> str:
    return f"Secret {ref.namespace}/{ref.name} of the upper cluster, key {ref.key}"


def _value(secret: Manifest, ref: SecretRef) -> str:
    data = secret.get("data") or {}
    if not data.get(ref.key):
        keys = sorted(data)[:_MOST_NAMED]
        raise AccessError(
            f"{_origin(ref)}: nothing stands under that key (there are: {', '.join(keys) or 'none'})",
            "put the kubeconfig there, or name its key in kubeconfigSecret.key",
        )
    return str(data[ref.key])
