"""What a flood of questions costs the upper cluster, and what remembered answers are good for."""

import asyncio
from collections.abc import Iterable

import pytest
from kubelet_lab import NODE, Notes, Upper

from tensile.errors import Unreachable
from tensile.kubelet.api.auth import (
    AT_ONCE,
    DENIALS_OF_A_USER,
    REVIEWS_OF_AN_ADDRESS,
    TOKEN_SECONDS,
    Authenticator,
    Authorizer,
    User,
)
from tensile.kubelet.api.errors import HTTPError
from tensile.kubelet.api.requests import Headers
from tensile.kubelet.api.routes import RequiredAccess
from tensile.objects import Manifest, Ref

EVIL, HONEST = "10.0.0.66", "10.0.0.1"
BURST, SECONDS = REVIEWS_OF_AN_ADDRESS
JANE = User("jane", "u-2", ("a",), ())
GET = (RequiredAccess("get", "proxy"),)


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
        try:
            return (await self.authenticator.user({}, bearer(token), origin)).name
        except HTTPError as refused:
            return str(int(refused.status))

    async def all_come(self, tokens: Iterable[str], origin: str) -> list[str]:
        """Let the holders of tokens come at once."""
        return list(await asyncio.gather(*(self.come(token, origin) for token in tokens)))

    async def wants(self, user: User, access: RequiredAccess = GET[0], node: str = NODE) -> int:
        """Return the status with which a user is told whether it may."""
        try:
            await self.authorizer.permit(user, (access,), node)
        except HTTPError as refused:
            return int(refused.status)
        return 200


def bearer(token: str) -> Headers:
    """Make the header that shows a token."""
    return (("authorization", f"Bearer {token}"),)


def made_up(count: int) -> list[str]:
    """Make tokens that nobody has issued."""
    return [f"made.up.{number}" for number in range(count)]


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


async def test_a_user_without_rights_is_asked_about_so_often() -> None:
    """It varies its question by verb, subresource and node; others are not held up by its noes."""
    ground = ReviewedCallers()
    burst, seconds = DENIALS_OF_A_USER
    found = [await ground.wants(JANE, GET[0], f"node-{number}") for number in range(burst + 50)]
    assert (found.count(403), found.count(429)) == (burst, 50)
    assert len(ground.upper.asked) == burst
    ground.time += seconds
    assert await ground.wants(JANE, GET[0], "another") == 403
    ground.upper.permit("joe", "get", "proxy")
    assert await ground.wants(JANE._replace(name="joe")) == 200


async def test_a_user_with_rights_is_asked_about_as_often_as_it_takes() -> None:
    """The apiserver is one user, on all nodes."""
    ground = ReviewedCallers()
    nodes = [f"node-{number}" for number in range(1000)]
    for node in nodes:
        ground.upper.permit("jane", "get", "proxy", node)
    found = await asyncio.gather(*(ground.wants(JANE, GET[0], node) for node in nodes))
    assert set(found) == {200}
    assert ground.upper.most <= AT_ONCE


@pytest.mark.parametrize("token", ["a\x00b", "a\u00e9b", "x" * (1 << 15) + "x", "a\x7fb"])
async def test_what_is_no_token_is_not_asked_about(token: str) -> None:
    """Too long, or with characters that none has: 401 at once."""
    ground = ReviewedCallers(token)
    assert await ground.come(token) == "401"
    assert ground.upper.asked == []


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Bearer good", "of-good"),
        ("bearer good", "of-good"),
        ("BEARER   good", "of-good"),
        ("Bearer good good", "401"),
        ("Bearer good,good", "401"),
        ("Bearergood", "401"),
        ("Token good", "401"),
        ("Bearer", "401"),
        (" ", "401"),
    ],
)
async def test_forms_of_the_header(header: str, found: str) -> None:
    """The scheme in any case, one token behind it, and nothing else; a remembered token helps no other form."""
    ground = ReviewedCallers("good")
    await ground.come("good")
    try:
        name = (await ground.authenticator.user({}, (("authorization", header),), HONEST)).name
    except HTTPError as refused:
        name = str(int(refused.status))
    assert name == found


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
