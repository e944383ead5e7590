"""Authenticate and authorize callers of the kubelet API by the upper cluster's rules.

There is no anonymous access. A client certificate was verified when the connection was made; its common name is the
user and its organizations are the groups, as in Kubernetes. A token is checked by a TokenReview in the upper cluster. A
SubjectAccessReview on the Node decides what a caller may do, so the same RBAC rules apply as for a real kubelet. The
node is that of the listener, never one that the caller names. If the upper cluster does not answer, the request is
refused.
"""

import asyncio
import secrets
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from structlog.typing import FilteringBoundLogger

from tensile.errors import ClusterError
from tensile.kube.cluster import Cluster
from tensile.kube.kubeconfig import is_token
from tensile.kube.limits import KeyedTokenBuckets
from tensile.kubelet.api.requests import Headers
from tensile.kubelet.api.routes import HTTPError, RequiredAccess
from tensile.objects import ACCESS_REVIEW, TOKEN_REVIEW, UPPER, Kind, Manifest, Ref

REVIEW_SECONDS = 10.0
"""Maximum duration of a review, including the wait for its turn."""
REVIEWS_AT_ONCE = 8
_UNANSWERED = "the upper cluster could not review this request: try again"
_MAX_RATES = 4096
TOKEN_SECONDS = 120.0
"""How long a valid token is cached, as in the kubelet."""
REFUSED_SECONDS = 10.0
"""How long an invalid token is cached: a misconfigured client sends it often."""
ADDRESS_RATE = (100, 0.1)
"""TokenReviews for one address: the burst, and the seconds for one more.

In TOKEN_SECONDS these are fewer than the cache holds. So a caller with a thousand valid tokens, which it may create for
its own account, displaces no tokens from other addresses.
"""
_MAX_USERS = 4096
_MAX_REFUSED = 1024
_AUTHENTICATED_GROUP = "system:authenticated"
ALLOWED_SECONDS = 300.0
DENIED_SECONDS = 30.0
DENIAL_RATE = (100, 1.0)
"""Denials for one user: the burst, and the seconds for one more; beyond that no review is made."""
_MAX_DECISIONS = 4096

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
ReviewAnswer = TypeVar("ReviewAnswer", bound=msgspec.Struct)
Extra = tuple[tuple[str, tuple[str, ...]], ...]
Certificate = Mapping[str, Any]
"""A verified client certificate in the form of `ssl`; empty if the caller sent none."""


class User(NamedTuple):
    """The caller, in the terms of Kubernetes' reviews."""

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


_AccessQuery = tuple[User, RequiredAccess, str]


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus


class TTLCache(Generic[Key, Value]):
    """A cache of answers by key, each until its end; when full, the least recently used entry is dropped.

    A kubelet caches its reviews too. Otherwise each request would cost a round trip, and exec would fail with every
    short outage of the upper cluster.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, now: float) -> Value | None:
        """Return the answer that is valid at `now` (seconds of any clock), None when there is none."""
        end, value = self._entries.get(key, (now, None))
        if end <= now:
            self._entries.pop(key, None)
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: Key, value: Value, end: float) -> None:
        """Cache an answer until `end`."""
        self._entries[key] = (end, value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)


class ReviewClient:
    """Reviews of one kind. `rate` is the burst and the seconds for one more of each subject, of kind `subject_kind`.

    Anyone who reaches a port can send invented tokens, and each needs a review. Reviews share a connection and its rate
    limit with all that the engine writes to the upper cluster. So only a few run at a time, and a caller that is denied
    too often, or keeps sending new tokens, is refused without a review after a while. Neither the spec nor the message
    of an error is logged or returned, because it may contain a token.
    """

    def __init__(
        self,
        upper: Cluster,
        log: FilteringBoundLogger,
        rate: tuple[int, float],
        subject_kind: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upper = upper
        self._log = log
        self._subject_kind = subject_kind
        self._clock = clock
        self._slots = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._buckets: KeyedTokenBuckets[str] = KeyedTokenBuckets(*rate, limit=_MAX_RATES)

    async def review(
        self, kind: Kind, spec: Manifest, expected: type[ReviewAnswer], is_known: Callable[[], bool] = lambda: False
    ) -> ReviewAnswer | None:
        """Return the upper cluster's answer; raise HTTPError with 503 when there is none.

        Return None if `is_known` is true by the time that the review has its turn.
        """
        try:
            async with asyncio.timeout(REVIEW_SECONDS), self._slots:
                return None if is_known() else await self._create(kind, spec, expected)
        except (ClusterError, TimeoutError, msgspec.MsgspecError) as error:
            status = error.status if isinstance(error, ClusterError) else 0
            self._log.warning(
                "the upper cluster did not review a request", review=kind.name, why=type(error).__name__, status=status
            )
        raise HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, _UNANSWERED)

    async def _create(self, kind: Kind, spec: Manifest, expected: type[ReviewAnswer]) -> ReviewAnswer:
        body = {"apiVersion": kind.api, "kind": kind.name, "spec": spec}
        return msgspec.json.decode(await self._upper.create(Ref(UPPER, kind, "", ""), body), type=expected)

    def check(self, subject: str) -> None:
        """Raise HTTPError with 429 if a subject has used up its rate."""
        if self._buckets.left(subject, self._clock()):
            raise HTTPError(
                HTTPStatus.TOO_MANY_REQUESTS, f"too many requests from this {self._subject_kind}: try again later"
            )

    def charge(self, subject: str) -> None:
        """Count one review against a subject."""
        self._buckets.take(subject, self._clock())


class Authenticator:
    """Identifies the caller of each request, or refuses it with 401 (503 when the upper cluster does not answer)."""

    def __init__(
        self,
        upper: Cluster,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._reviews = ReviewClient(upper, log, ADDRESS_RATE, "address", clock)
        self._clock = clock
        self._now = now
        self._secret = secrets.token_bytes(32)
        self._users: TTLCache[bytes, User] = TTLCache(_MAX_USERS)
        self._refused: TTLCache[bytes, bool] = TTLCache(_MAX_REFUSED)
        """A cache of its own, so that invented tokens displace no valid one."""

    async def user(self, certificate: Certificate, headers: Headers, origin: str = "") -> User:
        """Return the user of a request, from the certificate if there is one, else from the token.

        `origin` is the caller's address: if it keeps sending new tokens it is refused (429).
        """
        if certificate:
            return self._certificate_user(certificate)
        token = _bearer_token(headers)
        key = blake2b(token.encode(), key=self._secret).digest()
        return self._users.get(key, self._clock()) or await self._token_user(token, key, origin)

    def _certificate_user(self, certificate: Certificate) -> User:
        """Return the user named by a certificate; one that expired since the connection was made is refused."""
        pairs = [pair for name in certificate.get("subject", ()) for pair in name]
        names = [value for key, value in pairs if key == "commonName" and value]
        if not names or ssl.cert_time_to_seconds(certificate["notAfter"]) < self._now():
            raise _unauthorized()
        groups = (value for key, value in pairs if key == "organizationName")
        return User(names[-1], "", (*dict.fromkeys((*groups, _AUTHENTICATED_GROUP)),), ())

    async def _token_user(self, token: str, key: bytes, origin: str) -> User:
        """Return the user of a token by a TokenReview, unless its result is cached."""

        def known() -> bool:
            """Report whether the result is cached by now; if not, count one review."""
            if self._users.get(key, self._clock()) or self._refused.get(key, self._clock()):
                return True
            self._reviews.check(origin)
            self._reviews.charge(origin)
            return False

        if not self._refused.get(key, self._clock()):
            self._reviews.check(origin)
        review = await self._reviews.review(TOKEN_REVIEW, {"token": token}, _TokenReview, known)
        if review is None:
            remembered = self._users.get(key, self._clock())
            if remembered is None:
                raise _unauthorized()
            return remembered
        user_info = review.status.user
        if review.status.error or not review.status.authenticated or not user_info.username:
            self._refused.put(key, True, self._clock() + REFUSED_SECONDS)
            raise _unauthorized()
        user = User(user_info.username, user_info.uid, user_info.groups, tuple(sorted(user_info.extra.items())))
        self._users.put(key, user, self._clock() + TOKEN_SECONDS)
        return user


def _bearer_token(headers: Headers) -> str:
    """Return the one bearer token of the request; 401 when there is none, or more than one Authorization header."""
    fields = [value.split() for name, value in headers if name == "authorization"]
    match fields:
        case [[scheme, token]] if scheme.lower() == "bearer" and is_token(token):
            return token
    raise _unauthorized()


def _unauthorized() -> HTTPError:
    return HTTPError(HTTPStatus.UNAUTHORIZED, "Unauthorized")


class Authorizer:
    """Admits a user with any of the rights that a call needs; else 403, or 503 when the upper cannot answer."""

    def __init__(self, upper: Cluster, log: FilteringBoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviews = ReviewClient(upper, log, DENIAL_RATE, "user", clock)
        self._clock = clock
        self._answers: TTLCache[_AccessQuery, bool] = TTLCache(_MAX_DECISIONS)

    async def permit(self, user: User, accesses: tuple[RequiredAccess, ...], node: str) -> None:
        """Return if the user has one of `accesses` to the node, which are reviewed one after the other.

        A refused call counts once, however many accesses would have been enough.
        """
        is_reviewed = any(self._answers.get((user, access, node), self._clock()) is None for access in accesses)
        for access in accesses:
            if await self._allowed((user, access, node)):
                return
        if is_reviewed:
            self._reviews.charge(user.name)
        verb = accesses[0].verb
        names = ", ".join(access.subresource for access in accesses)
        message = f"Forbidden (user={user.name}, verb={verb}, resource=nodes, name={node}, subresource(s)=[{names}])"
        raise HTTPError(HTTPStatus.FORBIDDEN, message)

    async def _allowed(self, query: _AccessQuery) -> bool:
        answer = self._answers.get(query, self._clock())
        if answer is not None:
            return answer
        user, *_ = query
        self._reviews.check(user.name)

        def known() -> bool:
            """Report whether another request has received the answer meanwhile."""
            return self._answers.get(query, self._clock()) is not None

        review = await self._reviews.review(ACCESS_REVIEW, _spec(*query), _AccessReview, known)
        if review is None:
            return bool(self._answers.get(query, self._clock()))
        answer = review.status.allowed and not review.status.denied
        self._answers.put(query, answer, self._clock() + (ALLOWED_SECONDS if answer else DENIED_SECONDS))
        return answer


def _spec(user: User, access: RequiredAccess, node: str) -> Manifest:
    """Return the spec of a SubjectAccessReview, with the attributes that the kubelet uses."""
    attributes = {
        "verb": access.verb,
        "version": "v1",
        "resource": "nodes",
        "subresource": access.subresource,
        "name": node,
    }
    return {
        "user": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra},
        "resourceAttributes": attributes,
    }
