"""Marker strings that identify their tenant: each tenant's objects carry some that no other tenant has.

They are valid label values, and are also found in base64-encoded data. Tokens themselves identify their pod, and only
the addresses of the hostile lower tenant's pods begin with `HOSTILE_NETWORK`.
"""

import binascii
import re
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import NamedTuple

import orjson

from tensile.objects import Kind

ABOVE, BELOW = "hostile tenant above", "hostile tenant below"
TOKEN = "Token"
"""The kind of an origin that is a token; its name is the UID of the token's pod."""
HOSTILE_NETWORK = "6.6"
"""The first two parts of the IP addresses of the hostile lower tenant's pods."""
_PLAIN = re.compile(rb"mark-([a-z0-9]+)-(\d+)-e")
_ENCODED = re.compile(rb"bWFyay[0-9A-Za-z+/]+=*")
_ADDRESS = re.compile(rb'"(6\.6\.\d+\.\d+)"')
_TOKEN = re.compile(rb'"(ZXlK[0-9A-Za-z+/]+=*)"')
_USER = "system:serviceaccount:"


class Origin(NamedTuple):
    """The origin of a marker: a tenant, by upper `namespace`, `ABOVE` or `BELOW`, and the object if it matters."""

    namespace: str
    kind: str = ""
    name: str = ""


class Markers:
    """All markers that were issued in a sequence, with their origins; `tag` identifies the sequence."""

    def __init__(self, tag: str = "x") -> None:
        self._tag = tag
        self._origins: list[Origin] = []

    def new(self, namespace: str, kind: Kind | None = None, name: str = "") -> str:
        """Return a new marker for an object of a tenant."""
        self._origins.append(Origin(namespace, kind.name if kind else "", name))
        return f"mark-{self._tag}-{len(self._origins) - 1}-e"

    def found(self, raw: bytes) -> Iterator[tuple[str, Origin]]:
        """Return every marker in an object as JSON, each once, with its origin.

        The origin of a marker of another sequence is that sequence.
        """
        encoded = (b64decode(_padded(one)) for one in _ENCODED.findall(raw))
        for tag, number in sorted({one for text in (raw, *encoded) for one in _PLAIN.findall(text)}):
            yield f"mark-{tag.decode()}-{number.decode()}-e", self._origin(tag.decode(), int(number))
        for address in sorted(set(_ADDRESS.findall(raw))):
            yield address.decode(), Origin(BELOW)
        for token in sorted(set(_TOKEN.findall(raw))):
            origin = _bearer(token)
            if origin is not None:
                yield f"the token of {origin.name}", origin

    def _origin(self, tag: str, number: int) -> Origin:
        if tag == self._tag and number < len(self._origins):
            return self._origins[number]
        return Origin(f"another play, {tag}")


def token_for(namespace: str, account: str, pod_uid: str) -> str:
    """Return a string in the form of a ServiceAccount token, for a pod."""
    claims = {"sub": f"{_USER}{namespace}:{account}", "kubernetes.io": {"pod": {"uid": pod_uid}}}
    parts = (urlsafe_b64encode(orjson.dumps(one)).rstrip(b"=").decode() for one in ({"alg": "none"}, claims))
    return ".".join((*parts, "signature"))


def _bearer(encoded: bytes) -> Origin | None:
    """Return the origin of a token, or None if the string is no token."""
    parts = b64decode(_padded(encoded)).split(b".")
    try:
        claims = orjson.loads(urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (IndexError, binascii.Error, orjson.JSONDecodeError):
        return None
    user, pod = claims.get("sub", ""), (claims.get("kubernetes.io") or {}).get("pod") or {}
    return Origin(user.removeprefix(_USER).partition(":")[0], TOKEN, pod.get("uid", ""))


def _padded(encoded: bytes) -> bytes:
    """Return base64 text with the padding that it needs to be decoded."""
    whole = encoded.rstrip(b"=")
    whole = whole[: len(whole) - 1] if len(whole) % 4 == 1 else whole
    return whole + b"=" * (-len(whole) % 4)
