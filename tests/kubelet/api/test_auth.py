"""Who calls and whether it may, against a scripted upper cluster; and what a flood of questions costs that cluster."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from kubelet_lab import NODE, Notes, Upper

from tensile.errors import ClusterError, Denied, Throttled, Unauthorized, Unreachable
from tensile.kubelet.api.auth import (
    ALLOWED_SECONDS,
    AT_ONCE,
    DENIALS_OF_A_USER,
    DENIED_SECONDS,
    REFUSED_SECONDS,
    REVIEWS_OF_AN_ADDRESS,
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
BURST, SECONDS = REVIEWS_OF_AN_ADDRESS
JANE = User("jane", "u-2", ("a", "b"), (("k", ("v",)),))
GET, CREATE = RequiredAccess("get", "proxy"), RequiredAccess("create", "proxy")


class Slow(Upper):
    """An upper cluster that takes a few turns to answer, and counts the questions on their way."""

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
    """An upper cluster that knows some tokens, and who asks it about callers; time stands until it is moved."""

    def __init__(self, *tokens: str) -> None:
        self.upper = Slow()
        self.upper.tokens |= {token: {"username": f"of-{token}"} for token in tokens}
        self.time = 1000.0
        self.authenticator = Authenticator(self.upper, Notes(), lambda: self.time)
        self.authorizer = Authorizer(self.upper, Notes(), lambda: self.time)

    async def come(self, token: str, origin: str = HONEST) -> str:
        """Return the name of a token's user, or the status with which it is turned away."""
        return await self.who(bearer(token), origin)

    async def who(self, headers: Headers, origin: str = HONEST) -> str:
        """Return the name of the user that headers show, or the status with which it is turned away."""
        try:
            return (await self.authenticator.user({}, headers, origin)).name
        except HTTPError as refused:
            return str(int(refused.status))

    async def all_come(self, tokens: Iterable[str], origin: str) -> list[str]:
        """Let the holders of tokens come at once."""
        return list(await asyncio.gather(*(self.come(token, origin) for token in tokens)))

    async def wants(self, user: User, *accesses: RequiredAccess, node: str = NODE) -> int:
        """Return the HTTP status of a request that needs any of these rights, by default `GET`."""
        try:
            await self.authorizer.permit(user, accesses or (GET,), node)
        except HTTPError as refused:
            return int(refused.status)
        return 200


def bearer(token: str) -> Headers:
    """Make the header that shows a token."""
    return (("authorization", f"Bearer {token}"),)


def made_up(count: int) -> list[str]:
    """Make tokens that nobody has issued."""
    return [f"made.up.{number}" for number in range(count)]


# Who it is.


BEFORE, AFTER = 1_893_000_000.0, 1_894_000_000.0


def certificate(*subject: tuple[str, str]) -> Mapping[str, Any]:
    """Return a verified certificate as `ssl` shows it."""
    return {"subject": tuple((pair,) for pair in subject), "notAfter": "Jan  5 09:34:43 2030 GMT"}


async def test_a_certificate_names_its_user() -> None:
    """The last common name is the user, the organisations are the groups, and everybody known is authenticated."""
    authenticator = Authenticator(Upper(), Notes(), now=lambda: BEFORE)
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
async def test_a_certificate_that_does_not_count_is_nobodys(subject: tuple[tuple[str, str], ...], now: float) -> None:
    """It is 401, even when a good token comes with it."""
    upper = Upper()
    upper.tokens[TOKEN] = ROBOT
    with pytest.raises(HTTPError) as refused:
        await Authenticator(upper, Notes(), now=lambda: now).user(certificate(*subject), bearer(TOKEN))
    assert refused.value.status == 401


async def test_a_token_names_its_user() -> None:
    """A token that the upper knows gives the user of its review, with uid, groups and extra."""
    upper = Upper()
    upper.tokens[TOKEN] = ROBOT
    user = await Authenticator(upper, Notes()).user({}, bearer(TOKEN))
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
async def test_forms_of_the_header(values: list[str], found: str) -> None:
    """The scheme in any case and one token behind it; of anything else the upper is not asked, nor of other headers."""
    ground = ReviewedCallers("good")
    await ground.come("good")
    headers: Headers = (("x-remote-user", "admin"), *(("authorization", value) for value in values))
    assert await ground.who(headers) == found
    assert len(ground.upper.asked) == 1


async def test_a_remembered_token_says_nothing_about_another_one() -> None:
    """However much of it the other one has."""
    ground = ReviewedCallers("good")
    assert [await ground.come(token) for token in ("good", "goodx", "good,good")] == ["of-good", "401", "401"]


async def test_an_unknown_token_is_asked_about_once_in_a_while() -> None:
    """A token that the upper does not know is 401, and is asked about again when it comes after ten seconds."""
    ground = ReviewedCallers()
    for seconds, asked in ((0.0, 1), (REFUSED_SECONDS - 0.5, 1), (0.5, 2)):
        ground.time += seconds
        assert (await ground.come("late"), len(ground.upper.asked)) == ("401", asked)
    ground.upper.tokens["late"] = {"username": "of-late"}
    ground.time += REFUSED_SECONDS
    assert await ground.come("late") == "of-late"


async def test_a_good_token_is_remembered_for_two_minutes() -> None:
    """A good token is asked about once in two minutes, and no longer believed when it is withdrawn."""
    ground = ReviewedCallers("good")
    await ground.come("good")
    ground.upper.tokens.clear()
    ground.time += TOKEN_SECONDS - 1
    assert await ground.come("good") == "of-good"
    ground.time += 1
    assert await ground.come("good") == "401"


# Whether it may.


async def test_the_question_has_the_kubelets_attributes() -> None:
    """A review asks about the user with all that is known of it, and about the node of the listener."""
    ground = ReviewedCallers()
    await ground.wants(JANE, CREATE)
    attributes = {"verb": "create", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": NODE}
    assert ground.upper.reviews("SubjectAccessReview") == [
        {"user": "jane", "uid": "u-2", "groups": ["a", "b"], "extra": {"k": ["v"]}, "resourceAttributes": attributes},
    ]


@pytest.mark.parametrize("right", ["pods", "proxy"])
async def test_any_of_the_rights_suffices(right: str) -> None:
    """Where a route may rest on one of two rights, either lets pass."""
    ground = ReviewedCallers()
    ground.upper.permit("jane", "get", right)
    await ground.authorizer.permit(JANE, (RequiredAccess("get", "pods"), GET), NODE)


async def test_allowed_and_denied_is_denied() -> None:
    """A review that says both allowed and denied is a no."""
    ground = ReviewedCallers()
    ground.upper.answer = b'{"status": {"allowed": true, "denied": true}}'
    assert await ground.wants(JANE) == 403


async def test_answers_are_remembered_as_the_kubelet_does() -> None:
    """Yes holds for five minutes, no for thirty seconds."""
    ground = ReviewedCallers()
    assert await ground.wants(JANE) == 403
    ground.upper.permit("jane", "get", "proxy")
    ground.time += DENIED_SECONDS - 1
    assert await ground.wants(JANE) == 403
    ground.time += 1
    assert await ground.wants(JANE) == 200
    ground.upper.rights.clear()
    ground.time += ALLOWED_SECONDS - 1
    assert await ground.wants(JANE) == 200
    ground.time += 1
    assert await ground.wants(JANE) == 403
    assert len(ground.upper.asked) == 3


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
async def test_an_answer_holds_for_its_question_only(user: User, access: RequiredAccess, node: str) -> None:
    """Another name, uid, group, extra, verb, subresource or node is another question."""
    ground = ReviewedCallers()
    ground.upper.permit("jane", "get", "proxy")
    assert await ground.wants(JANE) == 200
    ground.upper.rights.clear()
    assert await ground.wants(user, access, node=node) == 403


# An upper cluster that does not say.


FAILURES = [
    Unreachable(f"token {TOKEN} lost", status=500),
    Unauthorized("who are you", status=401),
    Denied("may not create tokenreviews", status=403),
    Throttled("later", status=429),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_no_answer_is_no_entry(failure: ClusterError) -> None:
    """When the upper cannot be asked, a token is 503 and a right is 503; the token is neither told nor logged."""
    upper, log = Upper(), Notes()
    upper.failing = failure
    with pytest.raises(HTTPError) as unknown:
        await Authenticator(upper, log).user({}, bearer(TOKEN))
    with pytest.raises(HTTPError) as undecided:
        await Authorizer(upper, log).permit(JANE, (GET,), NODE)
    assert (unknown.value.status, undecided.value.status) == (503, 503)
    assert TOKEN not in f"{unknown.value}{undecided.value}{log.entries}"
    assert [fields["status"] for _, fields in log.entries] == [failure.status] * 2


async def test_a_failure_is_not_remembered() -> None:
    """When the upper answers again, its answer counts at once."""
    ground = ReviewedCallers()
    ground.upper.permit("jane", "get", "proxy")
    ground.upper.failing = Unreachable("gone")
    assert await ground.wants(JANE) == 503
    ground.upper.failing = None
    assert await ground.wants(JANE) == 200


@pytest.mark.parametrize("answer", [b" ", b"{}", b"[]", b'{"status": {"authenticated": "yes", "allowed": 1}}', b"\xff"])
async def test_an_answer_that_is_none_is_no_entry(answer: bytes) -> None:
    """A review without a proper status is 503."""
    ground = ReviewedCallers()
    ground.upper.answer = answer
    assert (await ground.come("any"), await ground.wants(JANE)) == ("503", 503)


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
async def test_a_review_that_does_not_say_who_it_is_says_nobody(status: str) -> None:
    """401; that another token is good helps it nothing."""
    ground = ReviewedCallers("good")
    ground.upper.answer = f'{{"status": {status}}}'.encode()
    assert await ground.come("any") == "401"
    ground.upper.answer = None
    assert await ground.come("good") == "of-good"
    assert await ground.come("any") == "401"


async def test_an_upper_that_hangs_holds_up_nobody_who_is_known() -> None:
    """Nor does it take more than a few questions at a time."""
    ground = ReviewedCallers("good")
    await ground.come("good")
    hung = asyncio.Event()

    async def hang(_ref: Ref, _body: Manifest) -> bytes:
        await hung.wait()
        raise Unreachable("gone")

    ground.upper.create = hang  # type: ignore[method-assign]
    flood = asyncio.create_task(ground.all_come(made_up(50), EVIL))
    await asyncio.sleep(0)
    assert await ground.come("good") == "of-good"
    hung.set()
    assert set(await flood) == {"503"}


# A flood of questions.


async def test_a_flood_of_made_up_tokens_is_no_flood_of_reviews() -> None:
    """Of two thousand at once a hundred are asked about, eight at a time; the rest is told to come later."""
    ground = ReviewedCallers("good")
    found = await ground.all_come(made_up(2000), EVIL)
    assert (found.count("401"), found.count("429")) == (BURST, 2000 - BURST)
    assert len(ground.upper.asked) == BURST
    assert ground.upper.most <= AT_ONCE
    ground.time += 10 * SECONDS
    found = await ground.all_come(made_up(4000)[2000:], EVIL)
    assert found.count("401") == 10


async def test_others_are_asked_about_beside_a_flood() -> None:
    """Each address has its own; and who was known before is known, at the flood's own address too."""
    ground = ReviewedCallers("good", "known")
    assert await ground.come("known", EVIL) == "of-known"
    flood = asyncio.create_task(ground.all_come(made_up(2000), EVIL))
    await asyncio.sleep(0)
    assert await ground.come("good", HONEST) == "of-good"
    await flood
    assert await ground.come("known", EVIL) == "of-known"
    assert await ground.come("good", EVIL) == "of-good"


async def test_made_up_tokens_displace_no_known_ones() -> None:
    """They are not remembered: however many come from however many addresses, the good one is asked about once."""
    ground = ReviewedCallers("good")
    await ground.come("good")
    for number in range(60):
        await ground.all_come(made_up(BURST), f"10.1.0.{number}")
    asked = len(ground.upper.asked)
    assert await ground.come("good") == "of-good"
    assert len(ground.upper.asked) == asked


async def test_a_wrong_token_that_comes_often_is_asked_about_seldom() -> None:
    """Whoever has one in its settings is told so each time (401), and uses up nothing of its address by that."""
    ground = ReviewedCallers("good")
    for _ in range(60):
        assert set(await ground.all_come(["wrong"] * 10, EVIL)) == {"401"}
        ground.time += 1.0
    assert len(ground.upper.asked) <= 6 * AT_ONCE
    assert await ground.come("good", EVIL) == "of-good"


async def test_good_tokens_of_one_address_displace_no_others() -> None:
    """An account may have as many tokens as it asks for: in the time that one is remembered, too few for that."""
    ground = ReviewedCallers("good", *made_up(5000))
    await ground.come("good")
    for step in range(int(TOKEN_SECONDS) - 1):
        ground.time += 1.0
        await ground.all_come(made_up(5000)[40 * step : 40 * step + 40], EVIL)
    asked = len(ground.upper.asked)
    assert asked > 1000
    assert await ground.come("good") == "of-good"
    assert len(ground.upper.asked) == asked


async def test_one_token_that_many_show_at_once_is_asked_about_a_few_times() -> None:
    """As by whoever collects the figures of all nodes every minute."""
    ground = ReviewedCallers("good")
    assert set(await ground.all_come(["good"] * 500, HONEST)) == {"of-good"}
    assert len(ground.upper.asked) <= AT_ONCE


async def test_a_refused_call_counts_once_however_many_rights_would_do() -> None:
    """A user who may do what a later right permits is not held up by the noes before it."""
    ground = ReviewedCallers()
    burst, _ = DENIALS_OF_A_USER
    found = [await ground.wants(JANE, GET, CREATE, node=f"node-{number}") for number in range(burst + 1)]
    assert (found.count(403), found.count(429)) == (burst, 1)
    for number in range(burst + 1):
        ground.upper.permit("joe", "create", "proxy", f"node-{number}")
        assert await ground.wants(JANE._replace(name="joe"), GET, CREATE, node=f"node-{number}") == 200


async def test_a_user_without_rights_is_asked_about_so_often() -> None:
    """It varies its question by verb, subresource and node; others are not held up by its noes."""
    ground = ReviewedCallers()
    burst, seconds = DENIALS_OF_A_USER
    found = [await ground.wants(JANE, node=f"node-{number}") for number in range(burst + 50)]
    assert (found.count(403), found.count(429)) == (burst, 50)
    assert len(ground.upper.asked) == burst
    ground.time += seconds
    assert await ground.wants(JANE, node="another") == 403
    ground.upper.permit("joe", "get", "proxy")
    assert await ground.wants(JANE._replace(name="joe")) == 200


async def test_a_user_with_rights_is_asked_about_as_often_as_it_takes() -> None:
    """The apiserver is one user, on all nodes."""
    ground = ReviewedCallers()
    nodes = [f"node-{number}" for number in range(1000)]
    for node in nodes:
        ground.upper.permit("jane", "get", "proxy", node)
    found = await asyncio.gather(*(ground.wants(JANE, node=node) for node in nodes))
    assert set(found) == {200}
    assert ground.upper.most <= AT_ONCE
