"""Who calls the kubelet API: the holder of a client certificate, or of a token that the upper cluster knows.

There is no anonymous access. A certificate was verified when the connection was made; its common name is the user, its
organisations are the groups, as Kubernetes reads them. A token is put before the upper's TokenReview. What cannot be
established is refused, also when the upper cluster does not answer.
"""

import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn

import msgspec

from tensile.cluster import Cluster
from tensile.kube.sections import is_token
from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.reviews import Reviews
from tensile.kubelet.api.target import Log
from tensile.kubelet.api.upgrades import Headers
from tensile.kubelet.api.verdicts import Verdicts
from tensile.objects import TOKEN_REVIEW

TOKEN_SECONDS = 120.0
"""How long a token that was good counts as good, as the kubelet has it."""

REFUSED_SECONDS = 10.0
"""How long a token that was none is not asked about again: whoever has a wrong one in its settings shows it often."""

REVIEWS_OF_AN_ADDRESS = (100, 0.1)
"""Tokens from one address that the upper cluster is asked about: so many at once, one more for each so many seconds.

In the time for which a good one is remembered that is less than are remembered: who has a thousand good tokens, as who
may ask for its own account's, displaces those of nobody at another address.
"""

_REMEMBERED = 4096
_REFUSED_REMEMBERED = 1024
_EVERYBODY = "system:authenticated"

Extra = tuple[tuple[str, tuple[str, ...]], ...]
Certificate = Mapping[str, Any]
"""A verified client certificate in the form that `ssl` gives it; empty: the caller showed none."""


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
    error: str = ""
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
        self._reviews = Reviews(upper, log, REVIEWS_OF_AN_ADDRESS, "address", clock)
        self._clock = clock
        self._now = now
        self._secret = secrets.token_bytes(32)
        self._users: Verdicts[bytes, User] = Verdicts(_REMEMBERED)
        self._refused: Verdicts[bytes, bool] = Verdicts(_REFUSED_REMEMBERED)
        """Apart, so that tokens that are made up displace none that is good."""

    async def user(self, certificate: Certificate, headers: Headers, origin: str = "") -> User:
        """Give the user behind a request, by the certificate where there is one, else by the token.

        `origin` is the address that the request is from: with ever other tokens it is refused (429).
        """
        if certificate:
            return self._holder(certificate)
        token = _bearer(headers)
        key = blake2b(token.encode(), key=self._secret).digest()
        return self._users.get(key, self._clock()) or await self._reviewed(token, key, origin)

    def _holder(self, certificate: Certificate) -> User:
        """Read the user out of a certificate; one that ended since the connection was made does not count any more."""
        pairs = [pair for name in certificate.get("subject", ()) for pair in name]
        names = [value for key, value in pairs if key == "commonName" and value]
        if not names or ssl.cert_time_to_seconds(certificate["notAfter"]) < self._now():
            raise _stranger()
        groups = (value for key, value in pairs if key == "organizationName")
        return User(names[-1], "", (*dict.fromkeys((*groups, _EVERYBODY)),), ())

    async def _reviewed(self, token: str, key: bytes, origin: str) -> User:
        """Have the upper cluster say whose a token is, unless it has said so lately."""

        def known() -> bool:
            """Report whether that is known by now; if not, this counts as a question."""
            if self._users.get(key, self._clock()) or self._refused.get(key, self._clock()):
                return True
            self._reviews.check(origin)
            self._reviews.charge(origin)
            return False

        if not self._refused.get(key, self._clock()):
            self._reviews.check(origin)
        review = await self._reviews.ask(TOKEN_REVIEW, {"token": token}, _TokenReview, known)
        if review is None:
            return self._users.get(key, self._clock()) or _nobody()
        found = review.status.user
        if review.status.error or not review.status.authenticated or not found.username:
            self._refused.put(key, True, self._clock() + REFUSED_SECONDS)
            raise _stranger()
        user = User(found.username, found.uid, found.groups, tuple(sorted(found.extra.items())))
        self._users.put(key, user, self._clock() + TOKEN_SECONDS)
        return user


def _bearer(headers: Headers) -> str:
    """Give the one bearer token of the request; 401 when there is none, or more than one Authorization."""
    fields = [value.split() for name, value in headers if name == "authorization"]
    match fields:
        case [[scheme, token]] if scheme.lower() == "bearer" and is_token(token):
            return token
    raise _stranger()


def _nobody() -> NoReturn:
    raise _stranger()


def _stranger() -> Refused:
    return Refused(HTTPStatus.UNAUTHORIZED, "Unauthorized")
