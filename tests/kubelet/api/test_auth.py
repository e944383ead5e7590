"""Who calls and whether it may, against a scripted upper cluster."""

from collections.abc import Mapping
from typing import Any

import pytest
from kubelet_lab import NODE, Notes, Upper

from tensile.errors import ClusterError, Denied, Throttled, Unauthorized, Unreachable
from tensile.kubelet.api.auth import Authenticator, Authorizer, User
from tensile.kubelet.api.errors import HTTPError
from tensile.kubelet.api.requests import Headers
from tensile.kubelet.api.routes import RequiredAccess
from tensile.objects import Manifest

TOKEN = "abc.def.ghi"
BEARER: Headers = (("authorization", f"Bearer {TOKEN}"),)
ROBOT: Manifest = {
    "username": "system:serviceaccount:monitoring:scraper",
    "uid": "u-1",
    "groups": ["system:serviceaccounts", "system:authenticated"],
    "extra": {"k": ["v", "w"]},
}
PROXY = (RequiredAccess("create", "proxy"),)
SOMEBODY = User("jane", "u-2", ("a", "b"), (("k", ("v",)),))


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.time


def certificate(*subject: tuple[str, str]) -> Mapping[str, Any]:
    """Return a verified certificate as `ssl` shows it."""
    return {"subject": tuple((pair,) for pair in subject), "notAfter": "Jan  5 09:34:43 2030 GMT"}


BEFORE, AFTER = 1_893_000_000.0, 1_894_000_000.0


async def test_a_certificate_names_its_user() -> None:
    """The common name is the user, the organisations are the groups, and everybody known is authenticated."""
    authenticator = Authenticator(Upper(), Notes(), now=lambda: BEFORE)
    subject = (("organizationName", "ops"), ("organizationName", "dev"), ("commonName", "jane"))
    user = await authenticator.user(certificate(*subject), ())
    assert user == User("jane", "", ("ops", "dev", "system:authenticated"), ())


async def test_the_last_common_name_counts() -> None:
    """Of several common names the last counts, as in Kubernetes."""
    authenticator = Authenticator(Upper(), Notes(), now=lambda: BEFORE)
    user = await authenticator.user(certificate(("commonName", "first"), ("commonName", "last")), ())
    assert user.name == "last"


@pytest.mark.parametrize("subject", [(), (("organizationName", "system:masters"),), (("commonName", ""),)])
async def test_a_certificate_without_a_name_is_nobodys(subject: tuple[tuple[str, str], ...]) -> None:
    """A certificate without a common name is 401, even when a good token comes with it."""
    upper = Upper()
    upper.tokens[TOKEN] = ROBOT
    with pytest.raises(HTTPError) as refused:
        await Authenticator(upper, Notes(), now=lambda: BEFORE).user(certificate(*subject), BEARER)
    assert refused.value.status == 401


async def test_a_certificate_that_ended_does_not_count() -> None:
    """A certificate that was good at the handshake and has ended since is 401."""
    with pytest.raises(HTTPError) as refused:
        await Authenticator(Upper(), Notes(), now=lambda: AFTER).user(certificate(("commonName", "jane")), ())
    assert refused.value.status == 401


async def test_a_token_names_its_user() -> None:
    """A token that the upper knows gives the user of its review, with uid, groups and extra."""
    upper = Upper()
    upper.tokens[TOKEN] = ROBOT
    user = await Authenticator(upper, Notes()).user({}, BEARER)
    assert user == User(ROBOT["username"], "u-1", tuple(ROBOT["groups"]), (("k", ("v", "w")),))
    assert upper.reviews("TokenReview") == [{"token": TOKEN}]


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("authorization", ""),),
        (("authorization", "Bearer"),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", f"Bearer {TOKEN} more"),),
        (*BEARER, *BEARER),
        (("x-remote-user", "admin"),),
    ],
)
async def test_without_one_token_nobody_is_asked(headers: Headers) -> None:
    """Without exactly one bearer token a request is 401, and the upper is not bothered."""
    upper = Upper()
    upper.tokens[TOKEN] = ROBOT
    with pytest.raises(HTTPError) as refused:
        await Authenticator(upper, Notes()).user({}, headers)
    assert (refused.value.status, upper.asked) == (401, [])


async def test_an_unknown_token_is_asked_about_once_in_a_while() -> None:
    """A token that the upper does not know is 401, and is asked about again when it comes after ten seconds."""
    upper, clock = Upper(), Clock()
    authenticator = Authenticator(upper, Notes(), clock)
    for time, asked in ((0.0, 1), (9.9, 1), (10.0, 2)):
        clock.time = time
        with pytest.raises(HTTPError) as refused:
            await authenticator.user({}, BEARER)
        assert (refused.value.status, len(upper.asked)) == (401, asked)
    upper.tokens[TOKEN] = ROBOT
    clock.time = 20.0
    assert (await authenticator.user({}, BEARER)).uid == "u-1"


async def test_a_good_token_is_remembered_for_two_minutes() -> None:
    """A good token is asked about once in two minutes, and no longer believed when it is withdrawn."""
    upper, clock = Upper(), Clock()
    upper.tokens[TOKEN] = ROBOT
    authenticator = Authenticator(upper, Notes(), clock)
    await authenticator.user({}, BEARER)
    clock.time = 119.0
    await authenticator.user({}, BEARER)
    assert len(upper.asked) == 1
    upper.tokens.clear()
    clock.time = 120.0
    with pytest.raises(HTTPError):
        await authenticator.user({}, BEARER)


async def test_tokens_are_not_mixed_up() -> None:
    """A remembered token says nothing about another one."""
    upper = Upper()
    upper.tokens[TOKEN] = ROBOT
    authenticator = Authenticator(upper, Notes())
    await authenticator.user({}, BEARER)
    with pytest.raises(HTTPError):
        await authenticator.user({}, (("authorization", f"Bearer {TOKEN}x"),))


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
        await Authenticator(upper, log).user({}, BEARER)
    with pytest.raises(HTTPError) as undecided:
        await Authorizer(upper, log).permit(SOMEBODY, PROXY, NODE)
    assert (unknown.value.status, undecided.value.status) == (503, 503)
    assert TOKEN not in f"{unknown.value}{undecided.value}{log.entries}"
    assert [fields["status"] for _, fields in log.entries] == [failure.status] * 2


@pytest.mark.parametrize("answer", [b"", b"{}", b"[]", b'{"status": {"authenticated": "yes", "allowed": 1}}', b"\xff"])
async def test_an_answer_that_is_none_is_no_entry(answer: bytes) -> None:
    """A review without a proper status is 503."""
    upper = Upper()
    upper.answer = answer or b" "
    with pytest.raises(HTTPError) as unknown:
        await Authenticator(upper, Notes()).user({}, BEARER)
    with pytest.raises(HTTPError) as undecided:
        await Authorizer(upper, Notes()).permit(SOMEBODY, PROXY, NODE)
    assert (unknown.value.status, undecided.value.status) == (503, 503)


async def test_authenticated_without_a_name_is_nobody() -> None:
    """A review that says yes but names nobody is 401."""
    upper = Upper()
    upper.answer = b'{"status": {"authenticated": true, "user": {}}}'
    with pytest.raises(HTTPError) as refused:
        await Authenticator(upper, Notes()).user({}, BEARER)
    assert refused.value.status == 401


async def test_allowed_and_denied_is_denied() -> None:
    """A review that says both allowed and denied is a no."""
    upper = Upper()
    upper.answer = b'{"status": {"allowed": true, "denied": true}}'
    with pytest.raises(HTTPError) as refused:
        await Authorizer(upper, Notes()).permit(SOMEBODY, PROXY, NODE)
    assert refused.value.status == 403


async def test_the_question_has_the_kubelets_attributes() -> None:
    """A review asks about the user with all that is known of it, and about the node of the listener."""
    upper = Upper()
    upper.permit("jane", "create", "proxy")
    await Authorizer(upper, Notes()).permit(SOMEBODY, PROXY, NODE)
    attributes = {"verb": "create", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": NODE}
    assert upper.reviews("SubjectAccessReview") == [
        {"user": "jane", "uid": "u-2", "groups": ["a", "b"], "extra": {"k": ["v"]}, "resourceAttributes": attributes},
    ]


@pytest.mark.parametrize("right", ["pods", "proxy"])
async def test_any_of_the_rights_suffices(right: str) -> None:
    """Where a route may rest on one of two rights, either lets pass."""
    upper = Upper()
    upper.permit("jane", "get", right)
    await Authorizer(upper, Notes()).permit(
        SOMEBODY, (RequiredAccess("get", "pods"), RequiredAccess("get", "proxy")), NODE
    )


async def test_reading_through_the_proxy_does_not_run_commands() -> None:
    """The right `get nodes/proxy` does not let anybody exec, and the refusal says what was missing."""
    upper = Upper()
    upper.permit("jane", "get", "proxy")
    with pytest.raises(HTTPError) as refused:
        await Authorizer(upper, Notes()).permit(SOMEBODY, PROXY, NODE)
    assert refused.value.status == 403
    assert all(word in str(refused.value) for word in ("jane", "create", "proxy", NODE))


async def test_answers_are_remembered_as_the_kubelet_does() -> None:
    """Yes holds for five minutes, no for thirty seconds."""
    upper, clock = Upper(), Clock()
    authorizer = Authorizer(upper, Notes(), clock)
    with pytest.raises(HTTPError):
        await authorizer.permit(SOMEBODY, PROXY, NODE)
    upper.permit("jane", "create", "proxy")
    clock.time = 29.0
    with pytest.raises(HTTPError):
        await authorizer.permit(SOMEBODY, PROXY, NODE)
    clock.time = 30.0
    await authorizer.permit(SOMEBODY, PROXY, NODE)
    upper.rights.clear()
    clock.time = 329.0
    await authorizer.permit(SOMEBODY, PROXY, NODE)
    clock.time = 330.0
    with pytest.raises(HTTPError):
        await authorizer.permit(SOMEBODY, PROXY, NODE)
    assert len(upper.asked) == 3


@pytest.mark.parametrize(
    ("user", "access", "node"),
    [
        (SOMEBODY._replace(name="joe"), PROXY[0], NODE),
        (SOMEBODY._replace(uid="u-3"), PROXY[0], NODE),
        (SOMEBODY._replace(groups=("a",)), PROXY[0], NODE),
        (SOMEBODY._replace(extra=()), PROXY[0], NODE),
        (SOMEBODY, RequiredAccess("get", "proxy"), NODE),
        (SOMEBODY, RequiredAccess("create", "pods"), NODE),
        (SOMEBODY, PROXY[0], "virtual-b"),
    ],
)
async def test_an_answer_holds_for_its_question_only(user: User, access: RequiredAccess, node: str) -> None:
    """Another name, uid, group, extra, verb, subresource or node is another question."""
    upper = Upper()
    upper.permit("jane", "create", "proxy")
    authorizer = Authorizer(upper, Notes())
    await authorizer.permit(SOMEBODY, PROXY, NODE)
    upper.rights.clear()
    with pytest.raises(HTTPError):
        await authorizer.permit(user, (access,), node)


async def test_a_failure_is_not_remembered() -> None:
    """When the upper answers again, its answer counts at once."""
    upper = Upper()
    upper.permit("jane", "create", "proxy")
    authorizer = Authorizer(upper, Notes())
    upper.failing = Unreachable("gone")
    with pytest.raises(HTTPError):
        await authorizer.permit(SOMEBODY, PROXY, NODE)
    upper.failing = None
    await authorizer.permit(SOMEBODY, PROXY, NODE)
