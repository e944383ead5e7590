"""The topology in a ConfigMap of the upper cluster, read from the cache of that one object.

The API returns an object whole or not at all, so no settling is needed as for a file. A ConfigMap that is deleted, or
that lost its key, is a rejected state like any other: the last good topology stays active.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from tensile.engine.file_source import TopologyText, TopologyUpdate, TopologyValidator
from tensile.errors import TensileError
from tensile.kube.store import Cache
from tensile.objects import Manifest, metadata
from tensile.topology import Topology, decode, parse

KEY = "topology.yaml"
"""The default key of the topology."""

_MOST_NAMED = 10


class ConfigMapKey(NamedTuple):
    """The location of a topology: a ConfigMap of the upper cluster and a key in it."""

    namespace: str
    name: str
    key: str = KEY

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def file(self) -> str:
        """The text used instead of a file name before line and column."""
        return f"configmap/{self.namespace}/{self.name}/{self.key}"


class ConfigMapText(NamedTuple):
    """The content of a ConfigMap: the topology's text and its identification, or why there is none."""

    text: TopologyText
    data: bytes = b""
    trouble: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether the ConfigMap does not exist."""
        return not self.text.uid


def document(manifest: Manifest | None, place: ConfigMapKey) -> ConfigMapText:
    """Return the topology's text in a ConfigMap (None: the ConfigMap does not exist)."""
    if manifest is None:
        trouble = f"configmap/{place}: the ConfigMap does not exist in the upper cluster: create it"
        return ConfigMapText(TopologyText(), trouble=trouble)
    meta = metadata(manifest)
    known = TopologyText(version=str(meta["resourceVersion"]), uid=str(meta["uid"]))
    data = _value(manifest, place.key)
    if data is None:
        return ConfigMapText(known, trouble=_no_key(manifest, place))
    return ConfigMapText(known._replace(size=len(data), sha256=sha256(data).hexdigest()), data)


def read(found: ConfigMapText, place: ConfigMapKey) -> Topology:
    """Return the parsed topology; raises TensileError with every error in it, or with why there is none."""
    if found.trouble:
        raise TensileError(found.trouble)
    return parse(decode(found.data, name=place.file), name=place.file, configmap_mode=True)


async def follow(
    cache: Cache, place: ConfigMapKey, changed: asyncio.Event, first: Topology
) -> AsyncGenerator[TopologyUpdate, None]:
    """Yield each state of the ConfigMap, compared with `first` and later with the last good state.

    `changed` is set whenever the cache changes; states that pass while one is processed are skipped. Absence counts
    only once the cache is synced. Never ends by itself.
    """
    judge, seen = TopologyValidator(first, place.file), None
    while True:
        changed.clear()
        entry = cache.get(place.namespace, place.name)
        found = document(entry.manifest() if entry else None, place)
        if found != seen and (entry or cache.synced):
            seen = found
            yield await judge.judge(found.text, partial(read, found, place))
        await changed.wait()


def _value(manifest: Manifest, key: str) -> bytes | None:
    """Return the value of a key, None if it is absent; `binaryData` is read too, where kubectl may have put it."""
    text = (manifest.get("data") or {}).get(key)
    if text is not None:
        return str(text).encode()
    encoded = (manifest.get("binaryData") or {}).get(key)
    return None if encoded is None else base64.b64decode(encoded)


def _no_key(manifest: Manifest, place: ConfigMapKey) -> str:
    keys = sorted({**(manifest.get("data") or {}), **(manifest.get("binaryData") or {})})
    known = ", ".join(keys[:_MOST_NAMED]) + (", ..." if len(keys) > _MOST_NAMED else "")
    return (
        f"configmap/{place}: has no key {place.key} (keys: {known or 'none'}): "
        "store the topology under it, or use --key"
    )
