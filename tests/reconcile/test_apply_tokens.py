"""Tokens get into what is sent, and nowhere else."""

from base64 import b64encode
from datetime import timedelta
from typing import Any

import orjson
import pytest
from answering import Answering
from loopkit import ONE, LoopUnderTest
from msgspec.structs import replace
from virtualtime import in_virtual_time
from worldkit import NOW, STRANGER, A, marked, put, world

from tensile.errors import Denied, Unreachable
from tensile.names import TOKEN_TERM, UPPER_UID
from tensile.objects import SECRET, SERVICE_ACCOUNT, UPPER, Manifest, Ref
from tensile.reconcile.apply import TokenTerm, filled, granted, term_of
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
    """Want two tokens in a Secret."""
    return TokenSecret(REF, ACCOUNT, ASKS, secret(**{"token": "", "token-vault": ""}), "because")


def secret(**data: str) -> Manifest:
    """Make the Secret."""
    meta = {"name": "tokens", "namespace": "default"}
    return marked({"kind": "Secret", "metadata": meta, "data": {"ca.crt": "Y2E=", **data}}, "Pod-web", uid="below")


def answer(token: str = MARKER, seconds: int = 3600) -> Manifest:
    """Make an answered TokenRequest."""
    return {"spec": {"expirationSeconds": seconds}, "status": {"token": token, "expirationTimestamp": "ignored"}}


def the_step(here: World) -> Step:
    """Plan the Secret."""
    (step,) = plan(ONE, Decision((wanted(),)), here).steps
    return step


def renewal() -> Step:
    """Plan the Secret where it is there."""
    here = world()
    put(here.lowers[A].secrets, secret(token="b2xk"))
    return the_step(here)


def test_a_secret_that_is_missing_is_made_without_a_token_in_the_step() -> None:
    """The step says which tokens it asks for; people decide about it."""
    step = the_step(world())
    assert (step.verb, step.ref, step.body, step.in_plan) == ("create", REF, wanted().manifest, True)
    assert step.grant == TokenGrant(ACCOUNT, ASKS, NOW)


def test_a_secret_that_is_there_is_written_anew_unseen() -> None:
    """For that object as it was read; renewing tokens is nobody's decision."""
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
def test_a_secret_that_is_not_ours_is_a_conflict(foreign: dict[str, Any]) -> None:
    """No token is asked for, and nothing is written."""
    here = world()
    plain = {"kind": "Secret", "metadata": {"name": "tokens", "namespace": "default", "uid": "foreign"}}
    put(here.lowers[A].secrets, marked(plain, "Pod-web", **foreign) if foreign else plain)
    found = plan(ONE, Decision((wanted(),)), here)
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"


def test_answers_fill_a_creation() -> None:
    """Each under its key, beside what is there; the term is that of the token that ends first."""
    step = filled(the_step(world()), [answer("one", 3600), answer("two", 600)])
    assert step.body is not None
    assert step.body["data"] == {"ca.crt": "Y2E=", "token": "b25l", "token-vault": "dHdv"}
    assert step.body["metadata"]["annotations"][TOKEN_TERM] == TERM
    assert step.body["metadata"]["annotations"][UPPER_UID] == "Pod-web"


def test_answers_fill_a_renewal() -> None:
    """The fences stay."""
    step = renewal()
    done = filled(step, [answer("one", 3600), answer("two", 600)])
    assert step.patch is not None
    assert done.patch is not None
    assert done.patch.body[:2] == step.patch.body[:2]
    data, term = (one["value"] for one in done.patch.body[2:])
    assert data == {"ca.crt": "Y2E=", "token": "b25l", "token-vault": "dHdv"}
    assert term == TERM


def test_the_decided_step_never_holds_a_token() -> None:
    """It is what is logged, recorded and printed; only a copy is filled."""
    for step in (the_step(world()), renewal()):
        before = repr(step)
        assert HIDDEN in repr(filled(step, [answer(), answer()]))
        assert repr(step) == before
        assert HIDDEN not in before


def test_a_term_is_read_as_it_was_written() -> None:
    """And its share is what is renewed by."""
    term = TokenTerm(NOW, 3600)
    assert term_of({"metadata": {"annotations": {TOKEN_TERM: str(term)}}}) == term
    assert term.passed(0.8) == NOW + timedelta(seconds=2880)


@pytest.mark.parametrize("text", ["", "/PT5S", "2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z/PTxS", "x/PT5S", "PT5S"])
def test_a_term_that_somebody_spoilt_is_none(text: str) -> None:
    """Then tokens are issued anew."""
    assert term_of({"metadata": {"annotations": {TOKEN_TERM: text}}}) is None
    assert term_of({"metadata": {}}) is None


# Asking.


async def test_a_step_that_asks_for_nothing_is_left_alone() -> None:
    """No cluster is asked."""
    step = Step("create", REF, "", body=secret())
    upper = Answering(UPPER)
    assert await granted(step, {UPPER: upper}) is step
    assert upper.asked == []


async def test_each_token_is_asked_of_the_accounts_cluster() -> None:
    """As the requests say, in their order."""
    upper = Answering(UPPER)
    upper.answer("issue", answer("one"), answer("two"))
    step = await granted(the_step(world()), {UPPER: upper})
    assert [(one.verb, one.ref, one.carried) for one in upper.asked] == [
        ("issue", ACCOUNT, ask.request) for ask in ASKS
    ]
    assert step.body is not None
    assert step.body["data"]["token-vault"] == "dHdv"


async def test_without_the_accounts_cluster_nothing_is_done() -> None:
    """It is not connected yet."""
    with pytest.raises(Unreachable, match="not connected"):
        await granted(the_step(world()), {})


async def test_one_refusal_is_enough() -> None:
    """A Secret with half of its tokens would start a pod that cannot work."""
    upper = Answering(UPPER)
    upper.answer("issue", answer(), Denied("no rights", reason="Forbidden"))
    with pytest.raises(Denied, match="no rights"):
        await granted(the_step(world()), {UPPER: upper})


@in_virtual_time
async def test_the_loop_sends_tokens_and_tells_nobody() -> None:
    """What reaches the lower cluster holds them; what the observer hears does not."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].answer("issue", answer(), answer())
    await bench.run(Decision((wanted(),)), Decision())
    (sent,) = bench.lower.asked
    assert sent.carried["data"]["token"] == HIDDEN
    assert bench.noted.verbs() == ["create tokens"]
    assert HIDDEN not in repr(bench.noted)
    assert MARKER not in repr(bench.noted)
    await bench.close()


@in_virtual_time
async def test_the_loop_says_why_no_token_is_issued_and_writes_nothing() -> None:
    """The key has the upper cluster's words, and is tried again after a while."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].answer("issue", Denied("no rights", reason="Forbidden", status=403))
    await bench.run(Decision((wanted(),)))
    assert bench.lower.asked == []
    assert bench.world.problems[ONE] == Problem("Forbidden", "no rights")
    bench.clusters[UPPER].answer("issue", answer(), answer())
    assert bench.loop.expedite(1.0)
    await bench.loop.wait_idle()
    assert bench.lower.asked[0].verb == "create"
    await bench.close()


@in_virtual_time
async def test_a_lost_upper_cluster_is_no_word_against_the_lower() -> None:
    """The step rests, and nothing is said of it."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].answer("issue", Unreachable("no answer"))
    await bench.run(Decision((wanted(),)))
    assert bench.lower.asked == []
    assert bench.world.problems == {}
    assert bench.loop.delayed == 1
    await bench.close()


def test_a_step_can_be_told_from_another_whatever_tokens_it_asks_for() -> None:
    """A refused one rests as any other."""
    step = the_step(world())
    assert step.identity == replace(step, grant=None).identity
    assert orjson.loads(orjson.dumps(step.operations)) == list(step.operations)
