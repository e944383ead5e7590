"""Tests that tokens are in requests only, not in steps, logs or output."""

from base64 import b64encode
from datetime import timedelta
from typing import Any

import orjson
import pytest
from answering import FakeCluster
from loopkit import ONE, LoopUnderTest
from msgspec.structs import replace
from virtualtime import in_virtual_time
from worldkit import NOW, STRANGER, A, make_world, put, with_owner_marks

from tensile.errors import Denied, Unreachable
from tensile.names import TOKEN_TERM, UPPER_UID
from tensile.objects import SECRET, SERVICE_ACCOUNT, UPPER, Manifest, Ref
from tensile.reconcile.apply import TokenTerm, insert_tokens, term_of, with_requested_tokens
from tensile.reconcile.desired import Decision, TokenRequest, TokenSecret
from tensile.reconcile.plan import Step, TokenGrant, plan
from tensile.reconcile.world import Problem, World

REF = Ref(A, SECRET, "default", "tokens")
ACCOUNT = Ref(UPPER, SERVICE_ACCOUNT, "default", "robot")
ASKS = (
    TokenRequest("token", {"spec": {"expirationSeconds": 3600}}),
    TokenRequest("token-vault", {"spec": {"audiences": ["vault"]}}),
)
TERM = f"{NOW:%Y-%m-%dT%H:%M:%SZ}/PT600S"
MARKER = "header.marker.signature"
HIDDEN = b64encode(MARKER.encode()).decode()


def wanted() -> TokenSecret:
    """Return the desired Secret with two tokens."""
    return TokenSecret(REF, ACCOUNT, ASKS, secret(**{"token": "", "token-vault": ""}), "because")


def secret(**data: str) -> Manifest:
    """Return the Secret with a CA certificate and these entries."""
    meta = {"name": "tokens", "namespace": "default"}
    return with_owner_marks(
        {"kind": "Secret", "metadata": meta, "data": {"ca.crt": "Y2E=", **data}}, "Pod-web", uid="below"
    )


def answer(token: str = MARKER, seconds: int = 3600) -> Manifest:
    """Return the response to a TokenRequest."""
    return {"spec": {"expirationSeconds": seconds}, "status": {"token": token, "expirationTimestamp": "ignored"}}


def the_step(world: World) -> Step:
    """Return the only step of the plan for the Secret."""
    (step,) = plan(ONE, Decision((wanted(),)), world).steps
    return step


def renewal() -> Step:
    """Return the step for a Secret that exists."""
    world = make_world()
    put(world.lowers[A].secrets, secret(token="b2xk"))
    return the_step(world)


def test_a_missing_secret_is_created_by_a_step_without_tokens() -> None:
    """The step names the tokens that it requests, and it is part of the plan that a user approves."""
    step = the_step(make_world())
    assert (step.verb, step.ref, step.body, step.in_plan) == ("create", REF, wanted().manifest, True)
    assert step.grant == TokenGrant(ACCOUNT, ASKS, NOW)


def test_an_existing_secret_is_patched_by_a_step_outside_the_plan() -> None:
    """The patch has preconditions on UID and resourceVersion, and renewing tokens needs no approval."""
    step = renewal()
    assert (step.verb, step.uid, step.in_plan) == ("patch", "below", False)
    assert step.patch is not None
    fences = {one["path"]: one["value"] for one in step.patch.body[:2]}
    assert fences == {"/metadata/uid": "below", "/metadata/resourceVersion": "2"}
    assert step.operations == (
        {"op": "add", "path": "/data", "value": wanted().manifest["data"]},
        {"op": "add", "path": "/metadata/annotations/tensile-kube.io~1token-term", "value": ""},
    )


@pytest.mark.parametrize("foreign", [{}, {"owner": STRANGER}])
def test_a_secret_of_another_owner_is_a_conflict(foreign: dict[str, Any]) -> None:
    """No step results, so no token is requested and nothing is written."""
    world = make_world()
    plain = {"kind": "Secret", "metadata": {"name": "tokens", "namespace": "default", "uid": "foreign"}}
    put(world.lowers[A].secrets, with_owner_marks(plain, "Pod-web", **foreign) if foreign else plain)
    found = plan(ONE, Decision((wanted(),)), world)
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"


def test_issued_tokens_are_inserted_into_a_create() -> None:
    """The existing data stays, and the term is that of the token that expires first."""
    step = insert_tokens(the_step(make_world()), [answer("one", 3600), answer("two", 600)])
    assert step.body is not None
    assert step.body["data"] == {"ca.crt": "Y2E=", "token": "b25l", "token-vault": "dHdv"}
    assert step.body["metadata"]["annotations"][TOKEN_TERM] == TERM
    assert step.body["metadata"]["annotations"][UPPER_UID] == "Pod-web"


def test_issued_tokens_are_inserted_into_a_patch() -> None:
    """The preconditions of the patch stay."""
    step = renewal()
    done = insert_tokens(step, [answer("one", 3600), answer("two", 600)])
    assert step.patch is not None
    assert done.patch is not None
    assert done.patch.body[:2] == step.patch.body[:2]
    data, term = (one["value"] for one in done.patch.body[2:])
    assert data == {"ca.crt": "Y2E=", "token": "b25l", "token-vault": "dHdv"}
    assert term == TERM


def test_the_planned_step_never_contains_a_token() -> None:
    """The planned step is logged, recorded and printed, so tokens are inserted into a copy."""
    for step in (the_step(make_world()), renewal()):
        before = repr(step)
        assert HIDDEN in repr(insert_tokens(step, [answer(), answer()]))
        assert repr(step) == before
        assert HIDDEN not in before


def test_a_token_term_is_parsed_as_it_was_written() -> None:
    """Its share of the term determines the time of the renewal."""
    term = TokenTerm(NOW, 3600)
    assert term_of({"metadata": {"annotations": {TOKEN_TERM: str(term)}}}) == term
    assert term.time_at(0.8) == NOW + timedelta(seconds=2880)


@pytest.mark.parametrize("text", ["", "/PT5S", "2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z/PTxS", "x/PT5S", "PT5S"])
def test_an_invalid_or_missing_token_term_is_none(text: str) -> None:
    """Without a valid term, new tokens are issued."""
    assert term_of({"metadata": {"annotations": {TOKEN_TERM: text}}}) is None
    assert term_of({"metadata": {}}) is None


# Requesting tokens.


async def test_a_step_without_token_requests_is_returned_unchanged() -> None:
    """No request is sent to any cluster."""
    step = Step("create", REF, "", body=secret())
    upper = FakeCluster(UPPER)
    assert await with_requested_tokens(step, {UPPER: upper}) is step
    assert upper.calls == []


async def test_each_token_is_requested_from_the_cluster_of_the_account() -> None:
    """The TokenRequests are sent as the step has them, in their order."""
    upper = FakeCluster(UPPER)
    upper.queue_responses("issue", answer("one"), answer("two"))
    step = await with_requested_tokens(the_step(make_world()), {UPPER: upper})
    assert [(one.verb, one.ref, one.payload) for one in upper.calls] == [
        ("issue", ACCOUNT, ask.request) for ask in ASKS
    ]
    assert step.body is not None
    assert step.body["data"]["token-vault"] == "dHdv"


async def test_a_token_request_raises_unreachable_if_the_accounts_cluster_is_not_connected() -> None:
    """The cluster may not be connected yet."""
    with pytest.raises(Unreachable, match="not connected"):
        await with_requested_tokens(the_step(make_world()), {})


async def test_one_denied_token_request_fails_the_whole_step() -> None:
    """A Secret with only some of its tokens would start a pod that cannot work."""
    upper = FakeCluster(UPPER)
    upper.queue_responses("issue", answer(), Denied("no rights", reason="Forbidden"))
    with pytest.raises(Denied, match="no rights"):
        await with_requested_tokens(the_step(make_world()), {UPPER: upper})


@in_virtual_time
async def test_the_loop_sends_tokens_to_the_lower_but_not_to_the_observer() -> None:
    """Only the request to the lower cluster contains the tokens."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].queue_responses("issue", answer(), answer())
    await bench.run(Decision((wanted(),)), Decision())
    (sent,) = bench.lower.calls
    assert sent.payload["data"]["token"] == HIDDEN
    assert bench.observer.verbs() == ["create tokens"]
    assert HIDDEN not in repr(bench.observer)
    assert MARKER not in repr(bench.observer)
    await bench.close()


@in_virtual_time
async def test_a_denied_token_request_is_a_problem_and_writes_nothing() -> None:
    """The problem has the message of the upper cluster, and the step is retried after a back-off."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].queue_responses("issue", Denied("no rights", reason="Forbidden", status=403))
    await bench.run(Decision((wanted(),)))
    assert bench.lower.calls == []
    assert bench.world.problems[ONE] == Problem("Forbidden", "no rights")
    bench.clusters[UPPER].queue_responses("issue", answer(), answer())
    assert bench.loop.expedite(1.0)
    await bench.loop.wait_idle()
    assert bench.lower.calls[0].verb == "create"
    await bench.close()


@in_virtual_time
async def test_an_unreachable_upper_cluster_delays_the_step_without_a_problem() -> None:
    """The step backs off, and the key of the lower gets no problem."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].queue_responses("issue", Unreachable("no answer"))
    await bench.run(Decision((wanted(),)))
    assert bench.lower.calls == []
    assert bench.world.problems == {}
    assert bench.loop.delayed == 1
    await bench.close()


def test_the_identity_of_a_step_does_not_depend_on_its_token_requests() -> None:
    """A refused step with token requests backs off like any other step."""
    step = the_step(make_world())
    assert step.identity == replace(step, grant=None).identity
    assert orjson.loads(orjson.dumps(step.operations)) == list(step.operations)
