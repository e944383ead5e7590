"""Who calls the kubelet API: the holder of a client certificate, or of a token that the upper cluster knows.

There is no anonymous access. A certificate was verified when the connection was made; its common name is the user, its
organisations are the groups, as Kubernetes reads them. A token is put before the upper's TokenReview. What cannot be
established is refused, also when the upper cluster does not answer.

Whether a caller may do what it asks: the upper cluster decides, by SubjectAccessReview on the Node object.

So the rights are those of a real kubelet and are given by the same RBAC rules. The node is that of the listener, never
one that the caller names. Answers hold as long as the kubelet lets them; no answer is a no.

Answers that hold for a while: a bounded memory with an end for each entry.

Asking the upper cluster about every request would cost a round trip each and take exec down with its first hiccup;
Kubernetes' own kubelet remembers its reviews the same way.

Asks the upper cluster to review who somebody is and what it may, a few questions at a time.

Whoever reaches a port can show tokens that it has made up, and each is a question. They share a connection, and its
rate, with all that the engine writes above, so only a few are on their way at one time, and who asks in vain, or shows
ever other tokens, is turned away unasked after a while.
"""

import asyncio
import secrets
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import msgspec

from tensile.errors import ClusterError
from tensile.kube.cluster import Cluster
from tensile.kube.limits import Allowances
from tensile.kube.strict_models import is_token
from tensile.kubelet.api.errors import Refused
from tensile.kubelet.api.pods import Log
from tensile.kubelet.api.requests import Headers
from tensile.kubelet.api.routes import Access
from tensile.objects import ACCESS_REVIEW, TOKEN_REVIEW, UPPER, Kind, Manifest, Ref

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Verdicts(Generic[Key, Value]):
    """What was answered for a key, until its time is over; the entry longest unused goes first when it is full."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, now: float) -> Value | None:
        """Return the answer that holds at `now` (seconds of any clock), None when there is none."""
        end, value = self._entries.get(key, (now, None))
        if end <= now:
            self._entries.pop(key, None)
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: Key, value: Value, end: float) -> None:
        """Remember an answer until `end`."""
        self._entries[key] = (end, value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)


REVIEW_SECONDS = 10.0
"""How long a review may take, the wait for its turn included."""

AT_ONCE = 8
_UNANSWERED = "the upper cluster could not be asked about this request: try again"
_RATES_REMEMBERED = 4096

Answer = TypeVar("Answer", bound=msgspec.Struct)


class Reviews:
    """Reviews of one kind. `rate` is the burst, and the seconds for one more, that each party has; `whose` says which.

    Neither the spec nor the words of an error are logged or told: a token may be in them.
    """

    def __init__(
        self, upper: Cluster, log: Log, rate: tuple[int, float], whose: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._upper = upper
        self._log = log
        self._whose = whose
        self._clock = clock
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._allowed: Allowances[str] = Allowances(*rate, limit=_RATES_REMEMBERED)

    async def ask(
        self, kind: Kind, spec: Manifest, expected: type[Answer], known: Callable[[], bool] = lambda: False
    ) -> Answer | None:
        """Return the upper cluster's answer; 503 when there is none to rely on.

        Returns None where it is `known` by the time that the question has its turn.
        """
        try:
            async with asyncio.timeout(REVIEW_SECONDS), self._turns:
                return None if known() else await self._asked(kind, spec, expected)
        except (ClusterError, TimeoutError, msgspec.MsgspecError) as error:
            status = error.status if isinstance(error, ClusterError) else 0
            self._log.warning(
                "the upper cluster did not review a request", review=kind.name, why=type(error).__name__, status=status
            )
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, _UNANSWERED)

    async def _asked(self, kind: Kind, spec: Manifest, expected: type[Answer]) -> Answer:
        body = {"apiVersion": kind.api, "kind": kind.name, "spec": spec}
        return msgspec.json.decode(await self._upper.create(Ref(UPPER, kind, "", ""), body), type=expected)

    def check(self, party: str) -> None:
        """Refuse with 429 a party that has used up what it has."""
        if self._allowed.left(party, self._clock()):
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, f"too many requests of this {self._whose}: try again later")

    def charge(self, party: str) -> None:
        """Count one against a party."""
        self._allowed.take(party, self._clock())


TOKEN_SECONDS = 120.0
"""How long a token that was good counts as good, as the kubelet has it."""

REFUSED_SECONDS = 10.0
"""How long a token that was none is not asked about again: whoever has a wrong one in its settings shows it often."""

REVIEWS_OF_AN_ADDRESS = (100, 0.1)
"""Tokens from one address that the upper cluster is asked about: so many at once, one more for each so many seconds.

In the time for which a good one is remembered that is less than are remembered: who has a thousand good tokens, as who
may ask for its own account's, displaces those of nobody at another address.
"""

_USERS_REMEMBERED = 4096
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
        self._users: Verdicts[bytes, User] = Verdicts(_USERS_REMEMBERED)
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
    """Return the one bearer token of the request; 401 when there is none, or more than one Authorization."""
    fields = [value.split() for name, value in headers if name == "authorization"]
    match fields:
        case [[scheme, token]] if scheme.lower() == "bearer" and is_token(token):
            return token
    raise _stranger()


def _nobody() -> NoReturn:
    raise _stranger()


def _stranger() -> Refused:
    return Refused(HTTPStatus.UNAUTHORIZED, "Unauthorized")


ALLOWED_SECONDS = 300.0
DENIED_SECONDS = 30.0
DENIALS_OF_A_USER = (100, 1.0)
"""Answers of no that a user is given: so many at once, one more for each so many seconds; then it is not asked."""
_DECISIONS_REMEMBERED = 4096

_Question = tuple[User, Access, str]


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus


class Authorizer:
    """Lets pass who has any of the rights that a call may rest on; else 403, or 503 when the upper cannot be asked."""

    def __init__(self, upper: Cluster, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviews = Reviews(upper, log, DENIALS_OF_A_USER, "user", clock)
        self._clock = clock
        self._answers: Verdicts[_Question, bool] = Verdicts(_DECISIONS_REMEMBERED)

    async def permit(self, user: User, accesses: tuple[Access, ...], node: str) -> None:
        """Return when one of `accesses` to the node is the user's; the rights are asked for one after the other."""
        for access in accesses:
            if await self._allowed((user, access, node)):
                return
        verb = accesses[0].verb
        names = ", ".join(access.subresource for access in accesses)
        message = f"Forbidden (user={user.name}, verb={verb}, resource=nodes, name={node}, subresource(s)=[{names}])"
        raise Refused(HTTPStatus.FORBIDDEN, message)

    async def _allowed(self, question: _Question) -> bool:
        answer = self._answers.get(question, self._clock())
        if answer is not None:
            return answer
        user, *_ = question
        self._reviews.check(user.name)

        def known() -> bool:
            """Report whether somebody else has asked meanwhile."""
            return self._answers.get(question, self._clock()) is not None

        review = await self._reviews.ask(ACCESS_REVIEW, _spec(*question), _AccessReview, known)
        if review is None:
            return bool(self._answers.get(question, self._clock()))
        answer = review.status.allowed and not review.status.denied
        self._answers.put(question, answer, self._clock() + (ALLOWED_SECONDS if answer else DENIED_SECONDS))
        if not answer:
            self._reviews.charge(user.name)
        return answer


def _spec(user: User, access: Access, node: str) -> Manifest:
    """Put the question in the terms of a SubjectAccessReview, with the attributes that the kubelet uses."""
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
