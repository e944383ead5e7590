"""Tests of authentication and authorization against a scripted upper cluster, and of the load that floods cause."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from kubelet_lab import NODE, FakeUpperCluster, RecordingLogger

from tensile.errors import ClusterError, Denied, Throttled, Unauthorized, Unreachable
from tensile.kubelet.api.auth import (
    ADDRESS_RATE,
    ALLOWED_SECONDS,
    DENIAL_RATE,
    DENIED_SECONDS,
    REFUSED_SECONDS,
    REVIEWS_AT_ONCE,
    TOKEN_SECONDS,
    Authenticator,
    Authorizer,
    User,
)
from tensile.kubelet.api.requests import Headers
from tensile.kubelet.api.routes import HTTPError, RequiredAccess
from tensile.objects import Manifest, Ref

TOKEN = "abc.def.ghi"
ROBOT: Manifest = {
    "username": "system:serviceaccount:monitoring:scraper",
    "uid": "u-1",
    "groups": ["system:serviceaccounts", "system:authenticated"],
    "extra": {"k": ["v", "w"]},
}
EVIL, HONEST = "10.0.0.66", "10.0.0.1"
BURST, SECONDS = ADDRESS_RATE
JANE = User("jane", "u-2", ("a", "b"), (("k", ("v",)),))
GET, CREATE = RequiredAccess("get", "proxy"), RequiredAccess("create", "proxy")


class SlowReviewCluster(FakeUpperCluster):
    """An upper cluster that answers after a few turns of the event loop, and counts concurrent reviews."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self._under_way = 0

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Answer a review."""
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        try:
            return await super().create(ref, body)
        finally:
            self._under_way -= 1


class ReviewedCallers:
    """An authenticator and an authorizer of an upper cluster with some valid tokens, and a clock that the test sets."""

    def __init__(self, *tokens: str) -> None:
        self.upper = SlowReviewCluster()
        self.upper.tokens |= {token: {"username": f"of-{token}"} for token in tokens}
        self.time = 1000.0
        self.authenticator = Authenticator(self.upper, RecordingLogger(), lambda: self.time)
        self.authorizer = Authorizer(self.upper, RecordingLogger(), lambda: self.time)

    async def come(self, token: str, origin: str = HONEST) -> str:
        """Return the name of a token's user, or the status with which the token is rejected."""
        return await self.who(bearer(token), origin)

    async def who(self, headers: Headers, origin: str = HONEST) -> str:
        """Return the name of the user whose headers these are, or the status with which the request is rejected."""
        try:
            return (await self.authenticator.user({}, headers, origin)).name
        except HTTPError as refused:
            return str(int(refused.status))

    async def all_come(self, tokens: Iterable[str], origin: str) -> list[str]:
        """Authenticate several tokens at the same time."""
        return list(await asyncio.gather(*(self.come(token, origin) for token in tokens)))

    async def wants(self, user: User, *accesses: RequiredAccess, node: str = NODE) -> int:
        """Return the HTTP status of a request that needs any of these rights, by default `GET`."""
        try:
            await self.authorizer.permit(user, accesses or (GET,), node)
        except HTTPError as refused:
            return int(refused.status)
        return 200


def bearer(token: str) -> Headers:
    """Return the header that carries a token."""
    return (("authorization", f"Bearer {token}"),)


def made_up(count: int) -> list[str]:
    """Return tokens that no cluster has issued."""
    return [f"made.up.{number}" for number in range(count)]


# Authentication.


BEFORE, AFTER = 1_893_000_000.0, 1_894_000_000.0


def certificate(*subject: tuple[str, str]) -> Mapping[str, Any]:
    """Return a verified certificate in the form in which `ssl` returns it."""
    return {"subject": tuple((pair,) for pair in subject), "notAfter": "Jan  5 09:34:43 2030 GMT"}


async def test_a_certificates_subject_names_user_and_groups() -> None:
    """The last common name is the user, organizations are groups, and system:authenticated is added."""
    authenticator = Authenticator(FakeUpperCluster(), RecordingLogger(), now=lambda: BEFORE)
    names = (("commonName", "first"), ("commonName", "jane"))
    subject = (("organizationName", "ops"), ("organizationName", "dev"), *names)
    user = await authenticator.user(certificate(*subject), ())
    assert user == User("jane", "", ("ops", "dev", "system:authenticated"), ())


@pytest.mark.parametrize(
    ("subject", "now"),
    [
        ((), BEFORE),
        ((("organizationName", "system:masters"),), BEFORE),
        ((("commonName", ""),), BEFORE),
        ((("commonName", "jane"),), AFTER),
    ],
    ids=["empty", "groups only", "empty name", "ended since the handshake"],
)
async def test_an_unusable_certificate_gets_401_even_with_a_valid_token(
    subject: tuple[tuple[str, str], ...], now: float
) -> None:
    """A certificate without a user name, or one that has expired, is rejected although a valid token is sent too."""
    upper = FakeUpperCluster()
    upper.tokens[TOKEN] = ROBOT
    with pytest.raises(HTTPError) as refused:
        await Authenticator(upper, RecordingLogger(), now=lambda: now).user(certificate(*subject), bearer(TOKEN))
    assert refused.value.status == 401


async def test_a_token_names_the_user_of_its_review() -> None:
    """A token that the upper cluster accepts yields the user of its review, with UID, groups and extra."""
    upper = FakeUpperCluster()
    upper.tokens[TOKEN] = ROBOT
    user = await Authenticator(upper, RecordingLogger()).user({}, bearer(TOKEN))
    assert user == User(ROBOT["username"], "u-1", tuple(ROBOT["groups"]), (("k", ("v", "w")),))
    assert upper.reviews("TokenReview") == [{"token": TOKEN}]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([], "401"),
        (["Bearer good"], "of-good"),
        (["bearer good"], "of-good"),
        (["BEARER   good"], "of-good"),
        (["Bearer good", "Bearer good"], "401"),
        (["Bearer good good"], "401"),
        (["Bearergood"], "401"),
        (["Token good"], "401"),
        (["Basic good"], "401"),
        (["Bearer"], "401"),
        ([""], "401"),
        ([" "], "401"),
        (["Bearer a\x00b"], "401"),
        (["Bearer a\u00e9b"], "401"),
        (["Bearer a\x7fb"], "401"),
        ([f"Bearer {'x' * ((1 << 15) + 1)}"], "401"),
    ],
)
async def test_only_one_well_formed_bearer_token_is_accepted(values: list[str], found: str) -> None:
    """The scheme may be in any case, and malformed or other headers get 401 without a review."""
    callers = ReviewedCallers("good")
    await callers.come("good")
    headers: Headers = (("x-remote-user", "admin"), *(("authorization", value) for value in values))
    assert await callers.who(headers) == found
    assert len(callers.upper.reviews_received) == 1


async def test_a_cached_token_does_not_authenticate_a_longer_token() -> None:
    """Tokens that begin with a cached valid token are still rejected."""
    callers = ReviewedCallers("good")
    assert [await callers.come(token) for token in ("good", "goodx", "good,good")] == ["of-good", "401", "401"]


async def test_an_unknown_token_is_reviewed_again_after_ten_seconds() -> None:
    """A token that the upper cluster rejects gets 401 from the cache until the refusal expires."""
    callers = ReviewedCallers()
    for seconds, reviews in ((0.0, 1), (REFUSED_SECONDS - 0.5, 1), (0.5, 2)):
        callers.time += seconds
        assert (await callers.come("late"), len(callers.upper.reviews_received)) == ("401", reviews)
    callers.upper.tokens["late"] = {"username": "of-late"}
    callers.time += REFUSED_SECONDS
    assert await callers.come("late") == "of-late"


async def test_a_valid_token_is_cached_for_two_minutes() -> None:
    """A valid token is reviewed once in two minutes; after that a withdrawn token gets 401."""
    callers = ReviewedCallers("good")
    await callers.come("good")
    callers.upper.tokens.clear()
    callers.time += TOKEN_SECONDS - 1
    assert await callers.come("good") == "of-good"
    callers.time += 1
    assert await callers.come("good") == "401"


# Authorization.


async def test_the_access_review_has_the_kubelets_attributes() -> None:
    """A SubjectAccessReview contains everything known of the user, and the node of the listener."""
    callers = ReviewedCallers()
    await callers.wants(JANE, CREATE)
    attributes = {"verb": "create", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": NODE}
    assert callers.upper.reviews("SubjectAccessReview") == [
        {"user": "jane", "uid": "u-2", "groups": ["a", "b"], "extra": {"k": ["v"]}, "resourceAttributes": attributes},
    ]


@pytest.mark.parametrize("right", ["pods", "proxy"])
async def test_any_one_of_several_rights_is_enough(right: str) -> None:
    """If a route accepts either of two rights, each of them is sufficient alone."""
    callers = ReviewedCallers()
    callers.upper.permit("jane", "get", right)
    await callers.authorizer.permit(JANE, (RequiredAccess("get", "pods"), GET), NODE)


async def test_a_review_that_is_allowed_and_denied_is_denied() -> None:
    """A review with both `allowed` and `denied` counts as a refusal."""
    callers = ReviewedCallers()
    callers.upper.answer = b'{"status": {"allowed": true, "denied": true}}'
    assert await callers.wants(JANE) == 403


async def test_access_decisions_are_cached_as_by_the_kubelet() -> None:
    """An allowed decision is cached for five minutes, a denied one for thirty seconds."""
    callers = ReviewedCallers()
    assert await callers.wants(JANE) == 403
    callers.upper.permit("jane", "get", "proxy")
    callers.time += DENIED_SECONDS - 1
    assert await callers.wants(JANE) == 403
    callers.time += 1
    assert await callers.wants(JANE) == 200
    callers.upper.rights.clear()
    callers.time += ALLOWED_SECONDS - 1
    assert await callers.wants(JANE) == 200
    callers.time += 1
    assert await callers.wants(JANE) == 403
    assert len(callers.upper.reviews_received) == 3


@pytest.mark.parametrize(
    ("user", "access", "node"),
    [
        (JANE._replace(name="joe"), GET, NODE),
        (JANE._replace(uid="u-3"), GET, NODE),
        (JANE._replace(groups=("a",)), GET, NODE),
        (JANE._replace(extra=()), GET, NODE),
        (JANE, CREATE, NODE),
        (JANE, RequiredAccess("get", "pods"), NODE),
        (JANE, GET, "virtual-b"),
    ],
)
async def test_a_cached_decision_applies_only_to_the_same_user_access_and_node(
    user: User, access: RequiredAccess, node: str
) -> None:
    """A different name, UID, group, extra, verb, subresource or node needs its own review."""
    callers = ReviewedCallers()
    callers.upper.permit("jane", "get", "proxy")
    assert await callers.wants(JANE) == 200
    callers.upper.rights.clear()
    assert await callers.wants(user, access, node=node) == 403


# An upper cluster that gives no valid answer.


FAILURES = [
    Unreachable(f"token {TOKEN} lost", status=500),
    Unauthorized("who are you", status=401),
    Denied("may not create tokenreviews", status=403),
    Throttled("later", status=429),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_a_failed_review_gets_503_and_does_not_expose_the_token(failure: ClusterError) -> None:
    """If a review fails, authentication and authorization both answer 503, and the token is not logged."""
    upper, log = FakeUpperCluster(), RecordingLogger()
    upper.failing = failure
    with pytest.raises(HTTPError) as unknown:
        await Authenticator(upper, log).user({}, bearer(TOKEN))
    with pytest.raises(HTTPError) as undecided:
        await Authorizer(upper, log).permit(JANE, (GET,), NODE)
    assert (unknown.value.status, undecided.value.status) == (503, 503)
    assert TOKEN not in f"{unknown.value}{undecided.value}{log.entries}"
    assert [fields["status"] for _, fields in log.entries] == [failure.status] * 2


async def test_a_failed_review_is_not_cached() -> None:
    """After an upper cluster recovers, its next answer counts immediately."""
    callers = ReviewedCallers()
    callers.upper.permit("jane", "get", "proxy")
    callers.upper.failing = Unreachable("gone")
    assert await callers.wants(JANE) == 503
    callers.upper.failing = None
    assert await callers.wants(JANE) == 200


@pytest.mark.parametrize("answer", [b" ", b"{}", b"[]", b'{"status": {"authenticated": "yes", "allowed": 1}}', b"\xff"])
async def test_a_review_without_a_valid_status_gets_503(answer: bytes) -> None:
    """A review that cannot be parsed, or whose status has wrong types, is treated as a failure."""
    callers = ReviewedCallers()
    callers.upper.answer = answer
    assert (await callers.come("any"), await callers.wants(JANE)) == ("503", 503)


@pytest.mark.parametrize(
    "status",
    [
        '{"authenticated": true, "error": "cannot say", "user": {"username": "jane"}}',
        '{"authenticated": true, "user": {"username": ""}}',
        '{"authenticated": true}',
        '{"authenticated": false, "user": {"username": "jane"}}',
        "{}",
    ],
)
async def test_a_token_review_without_an_authenticated_user_gets_401(status: str) -> None:
    """The token stays rejected after another token has been accepted."""
    callers = ReviewedCallers("good")
    callers.upper.answer = f'{{"status": {status}}}'.encode()
    assert await callers.come("any") == "401"
    callers.upper.answer = None
    assert await callers.come("good") == "of-good"
    assert await callers.come("any") == "401"


async def test_a_hanging_upper_does_not_delay_a_cached_token() -> None:
    """While reviews of other tokens hang, a cached token is still authenticated."""
    callers = ReviewedCallers("good")
    await callers.come("good")
    hung = asyncio.Event()

    async def hang(_ref: Ref, _body: Manifest) -> bytes:
        await hung.wait()
        raise Unreachable("gone")

    callers.upper.create = hang  # type: ignore[method-assign]
    flood = asyncio.create_task(callers.all_come(made_up(50), EVIL))
    await asyncio.sleep(0)
    assert await callers.come("good") == "of-good"
    hung.set()
    assert set(await flood) == {"503"}


# Floods of reviews.


async def test_a_flood_of_invalid_tokens_is_rate_limited_per_address() -> None:
    """Of two thousand tokens at once, one burst is reviewed, with limited concurrency; the rest gets 429."""
    callers = ReviewedCallers("good")
    found = await callers.all_come(made_up(2000), EVIL)
    assert (found.count("401"), found.count("429")) == (BURST, 2000 - BURST)
    assert len(callers.upper.reviews_received) == BURST
    assert callers.upper.most <= REVIEWS_AT_ONCE
    callers.time += 10 * SECONDS
    found = await callers.all_come(made_up(4000)[2000:], EVIL)
    assert found.count("401") == 10


async def test_a_flood_from_one_address_does_not_delay_other_addresses() -> None:
    """Each address has its own limit, and cached tokens are accepted even from the flooding address."""
    callers = ReviewedCallers("good", "known")
    assert await callers.come("known", EVIL) == "of-known"
    flood = asyncio.create_task(callers.all_come(made_up(2000), EVIL))
    await asyncio.sleep(0)
    assert await callers.come("good", HONEST) == "of-good"
    await flood
    assert await callers.come("known", EVIL) == "of-known"
    assert await callers.come("good", EVIL) == "of-good"


async def test_invalid_tokens_do_not_displace_cached_valid_ones() -> None:
    """Rejected tokens from many addresses do not push a valid token out of the cache."""
    callers = ReviewedCallers("good")
    await callers.come("good")
    for number in range(60):
        await callers.all_come(made_up(BURST), f"10.1.0.{number}")
    review_count = len(callers.upper.reviews_received)
    assert await callers.come("good") == "of-good"
    assert len(callers.upper.reviews_received) == review_count


async def test_a_repeated_invalid_token_is_reviewed_rarely() -> None:
    """A client with one wrong token always gets 401, and does not use up the limit of its address."""
    callers = ReviewedCallers("good")
    for _ in range(60):
        assert set(await callers.all_come(["wrong"] * 10, EVIL)) == {"401"}
        callers.time += 1.0
    assert len(callers.upper.reviews_received) <= 6 * REVIEWS_AT_ONCE
    assert await callers.come("good", EVIL) == "of-good"


async def test_many_valid_tokens_of_one_address_displace_no_cached_token() -> None:
    """An account may request many tokens, but too few are accepted in the time that one is cached."""
    callers = ReviewedCallers("good", *made_up(5000))
    await callers.come("good")
    for step in range(int(TOKEN_SECONDS) - 1):
        callers.time += 1.0
        await callers.all_come(made_up(5000)[40 * step : 40 * step + 40], EVIL)
    review_count = len(callers.upper.reviews_received)
    assert review_count > 1000
    assert await callers.come("good") == "of-good"
    assert len(callers.upper.reviews_received) == review_count


async def test_a_token_used_many_times_at_once_needs_only_a_few_reviews() -> None:
    """A metrics collector that requests all nodes at once with one token causes few reviews."""
    callers = ReviewedCallers("good")
    assert set(await callers.all_come(["good"] * 500, HONEST)) == {"of-good"}
    assert len(callers.upper.reviews_received) <= REVIEWS_AT_ONCE


async def test_a_denied_request_counts_once_for_several_possible_rights() -> None:
    """A user who is allowed by a later right is not limited by the denials of earlier rights."""
    callers = ReviewedCallers()
    burst, _ = DENIAL_RATE
    found = [await callers.wants(JANE, GET, CREATE, node=f"node-{number}") for number in range(burst + 1)]
    assert (found.count(403), found.count(429)) == (burst, 1)
    for number in range(burst + 1):
        callers.upper.permit("joe", "create", "proxy", f"node-{number}")
        assert await callers.wants(JANE._replace(name="joe"), GET, CREATE, node=f"node-{number}") == 200


async def test_a_user_without_rights_is_rate_limited() -> None:
    """After its burst of denials on many nodes a user gets 429 without a review; other users are not affected."""
    callers = ReviewedCallers()
    burst, seconds = DENIAL_RATE
    found = [await callers.wants(JANE, node=f"node-{number}") for number in range(burst + 50)]
    assert (found.count(403), found.count(429)) == (burst, 50)
    assert len(callers.upper.reviews_received) == burst
    callers.time += seconds
    assert await callers.wants(JANE, node="another") == 403
    callers.upper.permit("joe", "get", "proxy")
    assert await callers.wants(JANE._replace(name="joe")) == 200


async def test_a_user_with_rights_is_not_rate_limited() -> None:
    """The apiserver is one user that connects to all nodes, so allowed reviews are not limited."""
    callers = ReviewedCallers()
    nodes = [f"node-{number}" for number in range(1000)]
    for node in nodes:
        callers.upper.permit("jane", "get", "proxy", node)
    found = await asyncio.gather(*(callers.wants(JANE, node=node) for node in nodes))
    assert set(found) == {200}
    assert callers.upper.most <= REVIEWS_AT_ONCE
