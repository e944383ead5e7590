"""Who calls the kubelet API: the holder of a client certificate, or of a token that the upper cluster knows.

There is no anonymous access. A certificate was verified when the connection was made; its common name is the user, its
organisations are the groups, as Kubernetes reads them. A token is put before the upper's TokenReview. What cannot be
established is refused, also when the upper cluster does not answer.
"""

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import msgspec

from tensile.cluster import Cluster
from tensile.errors import ClusterError
from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.target import Log
from tensile.kubelet.api.upgrades import Headers
from tensile.kubelet.api.verdicts import Verdicts
from tensile.objects import TOKEN_REVIEW, UPPER, Kind, Manifest, Ref

TOKEN_SECONDS = 120.0
"""How long a token that was good counts as good, as the kubelet has it."""

REVIEW_SECONDS = 10.0
"""How long the upper cluster may take to answer a review."""

_REMEMBERED = 4096
_EVERYBODY = "system:authenticated"

Extra = tuple[tuple[str, tuple[str, ...]], ...]
Certificate = Mapping[str, Any]
"""A verified client certificate in the form that `ssl` gives it; empty: the caller showed none."""

Answer = TypeVar("Answer", bound=msgspec.Struct)


class User(NamedTuple):
    """Who calls, in the terms of Kubernetes' reviews."""

    name: str
    uid: str
    groups: tuple[str, ...]
    extra: Extra


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _UserInfo = _UserInfo()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus


class Authenticator:
    """Names the caller of each request, or refuses it with 401 (503 when the upper cannot be asked)."""

    def __init__(
        self,
        upper: Cluster,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._upper = upper
        self._log = log
        self._clock = clock
        self._now = now
        self._secret = secrets.token_bytes(32)
        self._users: Verdicts[bytes, User] = Verdicts(_REMEMBERED)

    async def user(self, certificate: Certificate, headers: Headers) -> User:
        """Give the user behind a request, by the certificate where there is one, else by the token."""
        if certificate:
            return self._holder(certificate)
        token = _bearer(headers)
        key = blake2b(token.encode(), key=self._secret).digest()
        known = self._users.get(key, self._clock())
        if known is None:
            known = await self._reviewed(token)
            self._users.put(key, known, self._clock() + TOKEN_SECONDS)
        return known

    def _holder(self, certificate: Certificate) -> User:
        """Read the user out of a certificate; one that ended since the connection was made does not count any more."""
        pairs = [pair for name in certificate.get("subject", ()) for pair in name]
        names = [value for key, value in pairs if key == "commonName" and value]
        if not names or ssl.cert_time_to_seconds(certificate["notAfter"]) < self._now():
            raise _stranger()
        groups = (value for key, value in pairs if key == "organizationName")
        return User(names[-1], "", (*dict.fromkeys((*groups, _EVERYBODY)),), ())

    async def _reviewed(self, token: str) -> User:
        review = await ask(self._upper, self._log, TOKEN_REVIEW, {"token": token}, _TokenReview)
        found = review.status.user
        if not review.status.authenticated or not found.username:
            raise _stranger()
        return User(found.username, found.uid, found.groups, tuple(sorted(found.extra.items())))


async def ask(upper: Cluster, log: Log, kind: Kind, spec: Manifest, expected: type[Answer]) -> Answer:
    """Have the upper cluster review something; 503 when there is no answer to rely on.

    Neither the spec nor the words of an error are logged or told: a token may be in them.
    """
    body = {"apiVersion": kind.api, "kind": kind.name, "spec": spec}
    try:
        async with asyncio.timeout(REVIEW_SECONDS):
            raw = await upper.create(Ref(UPPER, kind, "", ""), body)
        return msgspec.json.decode(raw, type=expected)
    except (ClusterError, TimeoutError, msgspec.MsgspecError) as error:
        status = error.status if isinstance(error, ClusterError) else 0
        log.warning(
            "the upper cluster did not review a request", review=kind.name, why=type(error).__name__, status=status
        )
    raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the upper cluster could not be asked about this request: try again")


def _bearer(headers: Headers) -> str:
    """Give the one bearer token of the request; 401 when there is none, or more than one Authorization."""
    fields = [value.split() for name, value in headers if name == "authorization"]
    match fields:
        case [[scheme, token]] if scheme.lower() == "bearer":
            return token
    raise _stranger()


def _stranger() -> Refused:
    return Refused(HTTPStatus.UNAUTHORIZED, "Unauthorized")
