"""Follows the topology in a ConfigMap of the upper cluster, as the cache of that one object tells of it.

The API hands out an object whole or not at all, so there is nothing to wait for as with a file. A ConfigMap that is
deleted, or that has lost its key, is a refused state like any other: the last good one stays in force.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from tensile.engine.file_source import Judge, Reading, Text
from tensile.errors import TensileError
from tensile.kube.store import Cache
from tensile.objects import Manifest, metadata
from tensile.topology import Topology, decode, parse

KEY = "topology.yaml"
"""The key that holds the topology where none is named."""

_MOST_NAMED = 10


class Place(NamedTuple):
    """Where a topology stands: a ConfigMap of the upper cluster and a key in it."""

    namespace: str
    name: str
    key: str = KEY

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def file(self) -> str:
        """What stands for the file's name before line and column."""
        return f"configmap/{self.namespace}/{self.name}/{self.key}"


class Document(NamedTuple):
    """What a ConfigMap holds: the text as bytes and what tells it from another, or why there is none."""

    text: Text
    data: bytes = b""
    trouble: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether there is no such ConfigMap."""
        return not self.text.uid


def document(manifest: Manifest | None, place: Place) -> Document:
    """Take the topology's text out of a ConfigMap; None: there is none of that name."""
    if manifest is None:
        trouble = f"configmap/{place}: there is no such ConfigMap in the upper cluster: create it"
        return Document(Text(), trouble=trouble)
    meta = metadata(manifest)
    known = Text(version=str(meta["resourceVersion"]), uid=str(meta["uid"]))
    data = _value(manifest, place.key)
    if data is None:
        return Document(known, trouble=_no_key(manifest, place))
    return Document(known._replace(size=len(data), sha256=sha256(data).hexdigest()), data)


def read(found: Document, place: Place) -> Topology:
    """Parse a document; raises TensileError with every error in it, or saying why there is none."""
    if found.trouble:
        raise TensileError(found.trouble)
    return parse(decode(found.data, name=place.file), name=place.file, configmap_mode=True)


async def follow(cache: Cache, place: Place, changed: asyncio.Event, first: Topology) -> AsyncGenerator[Reading, None]:
    """Yield each state that the ConfigMap comes to, judged against `first` and then against the last good one.

    `changed` is set whenever the cache changes; states that pass while one is dealt with are not given. What is gone
    only from a cache that is not in sync is not known to be gone. Never ends by itself.
    """
    judge, seen = Judge(first, place.file), None
    while True:
        changed.clear()
        entry = cache.get(place.namespace, place.name)
        found = document(entry.manifest() if entry else None, place)
        if found != seen and (entry or cache.synced):
            seen = found
            yield await judge.judge(found.text, partial(read, found, place))
        await changed.wait()


def _value(manifest: Manifest, key: str) -> bytes | None:
    """Return what stands under a key, None where nothing does; what kubectl took for binary is looked at too."""
    text = (manifest.get("data") or {}).get(key)
    if text is not None:
        return str(text).encode()
    encoded = (manifest.get("binaryData") or {}).get(key)
    return None if encoded is None else base64.b64decode(encoded)


def _no_key(manifest: Manifest, place: Place) -> str:
    keys = sorted({**(manifest.get("data") or {}), **(manifest.get("binaryData") or {})})
    known = ", ".join(keys[:_MOST_NAMED]) + (", ..." if len(keys) > _MOST_NAMED else "")
    return (
        f"configmap/{place}: has no key {place.key} (there are: {known or 'none'}): "
        "put the topology there, or name its key with --key"
    )
