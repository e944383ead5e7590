"""What clusters refuse: said soon, tried again seldom, and done soon after nobody refuses it any more."""

from base64 import b64encode
from typing import NamedTuple

import orjson
import pytest
from answering import Answering
from loopkit import ONE, LoopUnderTest, copy, event, present, unfollowed, until
from virtualtime import clock, in_virtual_time
from worldkit import A, marked, put, secret

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, Throttled, Unreachable
from tensile.kube.responses import RequestInfo, error_of
from tensile.objects import SECRET, UPPER, Manifest, Ref
from tensile.reconcile.desired import Decision, Present
from tensile.reconcile.redaction import UNTOLD
from tensile.reconcile.world import ForeignProblem, Problem

WANTED = Decision((present(),))
MINUTE = 60.0
MOST = 12
SOON = 5.0


class Refusal(NamedTuple):
    """An answer of an apiserver: status, reason and message of its body, and its Retry-After."""

    code: int
    reason: str
    message: str
    wait: str = ""

    @property
    def error(self) -> ClusterError:
        """Return the error that it means."""
        body = {"kind": "Status", "apiVersion": "v1", "code": self.code, "reason": self.reason, "message": self.message}
        return error_of(RequestInfo(A, "create", "ConfigMap default/one"), self.code, orjson.dumps(body), self.wait)


REFUSALS = {
    "quota": Refusal(403, "Forbidden", 'pods "web" is forbidden: exceeded quota: q, requested: pods=1'),
    "limit range": Refusal(403, "Forbidden", "maximum cpu usage per Container is 1, but limit is 2"),
    "pod security": Refusal(403, "Forbidden", 'violates PodSecurity "restricted:latest"'),
    "rights": Refusal(403, "Forbidden", 'User "u" cannot create resource "pods"'),
    "webhook says no": Refusal(400, "BadRequest", 'admission webhook "w" denied the request: no'),
    "webhook says no with 503": Refusal(503, "", 'admission webhook "w" denied the request: not now'),
    "webhook fails": Refusal(500, "InternalError", 'failed calling webhook "w": failed to call webhook'),
    "webhook is late": Refusal(500, "InternalError", 'failed calling webhook "w": context deadline exceeded'),
    "too large": Refusal(413, "RequestEntityTooLarge", "limit is 3145728"),
    "not valid": Refusal(422, "Invalid", "spec.containers[0].image: Required value"),
    "busy": Refusal(429, "TooManyRequests", "too many requests, please try again later", "1"),
    "busy for long": Refusal(429, "TooManyRequests", "please try again later", "30"),
    "busy, says nothing more": Refusal(429, "", "slow down"),
}


class Timed(Answering):
    """A cluster that notes when it was asked to create something."""

    def __init__(self, *errors: ClusterError) -> None:
        super().__init__(A)
        self.answer("create", *errors)
        self.moments: list[float] = []

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Note the time, and answer."""
        self.moments.append(clock())
        return await super().create(ref, body)


def refusing(*errors: ClusterError) -> tuple[LoopUnderTest, Timed]:
    """Make a loop whose lower cluster refuses to create."""
    bench, lower = LoopUnderTest(), Timed(*errors)
    bench.clusters[A] = bench.lower = lower
    return bench, lower


@pytest.mark.parametrize("name", REFUSALS)
@in_virtual_time
async def test_a_refusal_is_said_soon_and_not_tried_hot(name: str) -> None:
    """Within five seconds with the cluster's own words, and no more than twelve times in any minute."""
    refusal = REFUSALS[name]
    bench, lower = refusing(*[refusal.error] * 200)
    await bench.run(WANTED)
    await until(SOON)
    problem = bench.world.problems[ONE]
    assert problem.message == refusal.message
    assert problem.reason == (refusal.reason or type(refusal.error).__name__)
    await until(10 * MINUTE)
    busiest = max(sum(0 <= later - one < MINUTE for later in lower.moments) for one in lower.moments)
    assert busiest <= MOST
    assert len(lower.moments) >= (15 if refusal.wait == "30" else 80), "it is not forgotten either"
    assert bench.noted.troubles == [problem], "and it is said once"
    await bench.close()


@in_virtual_time
async def test_a_reason_that_a_webhook_makes_up_is_no_reason_of_ours() -> None:
    """People see it as it is. It is marked, since anything can stand there, also a reason of this program."""
    for reason, is_foreign in (("Policy4711", True), ("NameConflict", True), ("Forbidden", False), ("", False)):
        bench, _ = refusing(*[Refusal(403, reason, "no").error] * 200)
        await bench.run(WANTED)
        await until(SOON)
        assert bench.world.problems[ONE] == (reason or "Denied", "no")
        assert isinstance(bench.world.problems[ONE], ForeignProblem) == is_foreign
        await bench.close()


@pytest.mark.parametrize("name", [one for one in REFUSALS if one != "busy for long"])
@in_virtual_time
async def test_what_is_not_refused_any_more_is_done_soon(name: str) -> None:
    """Within one rest; the problem is gone then, and nothing comes back."""
    bench, lower = refusing(*[REFUSALS[name].error] * 6)
    await bench.run(WANTED)
    await until(2 * MINUTE)
    assert len(lower.moments) == 7
    assert lower.moments[-1] - lower.moments[-2] <= 7.5
    assert (bench.world.problems, bench.loop.delayed) == ({}, 0)


@in_virtual_time
async def test_a_change_that_a_webhook_refuses_with_422_is_no_lost_race() -> None:
    """The API answers a patch that came too late in the same way; but not twice in a row."""
    bench, lower = refusing()
    old = put(bench.world.lowers[A].config_maps, copy(data={"key": "old"}))
    lower.answer("read", old.raw)
    lower.answer("patch", *[Denied("denied: no such value", status=422, reason="Invalid")] * 200)
    await bench.run(WANTED)
    await until(SOON)
    assert bench.world.problems == {ONE: Problem("Invalid", "denied: no such value")}
    before = lower.verbs().count("patch ConfigMap one")
    await until(SOON + 2 * MINUTE)
    assert 16 <= lower.verbs().count("patch ConfigMap one") - before <= 2 * MOST
    await bench.close()


@in_virtual_time
async def test_what_is_over_with_the_next_try_is_nobodys_business() -> None:
    """An apiserver that is busy, or that starts, is tried again after a moment, and nothing is said."""
    bench, lower = refusing(REFUSALS["webhook says no with 503"].error)
    await bench.run(WANTED)
    await until(SOON)
    assert len(lower.moments) == 2
    assert lower.moments[1] <= 1.0
    assert bench.noted.troubles == []


@in_virtual_time
async def test_what_the_upper_cluster_is_too_busy_for_is_not_said_of_the_lower() -> None:
    """It would be said by a write to the upper cluster."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].answer("create", *[Throttled("slowly", status=429, retry_after=1.0)] * 5)
    await bench.run(Decision((unfollowed(), present())))
    await until(MINUTE)
    assert bench.noted.verbs()[:7] == [*["create kept"] * 6, "create one"]
    assert bench.noted.troubles == []


@pytest.mark.parametrize("error", [Unreachable("no answer"), Conflict("changed"), AlreadyExists("there")])
@in_virtual_time
async def test_what_is_no_refusal_is_tried_again_soon(error: ClusterError) -> None:
    """Nobody has said no: something was quicker, or there was no answer."""
    bench, lower = refusing(*[error] * 3)
    await bench.run(WANTED)
    await until(1.0)
    assert len(lower.moments) == 4
    assert bench.noted.troubles == []


@in_virtual_time
async def test_what_a_rule_says_itself_outlives_a_lost_race() -> None:
    """The cluster has said nothing, so there is nothing to take back, and nothing to tell again."""
    bench, lower = refusing(Conflict("changed"))
    said = Problem("Deadlock", "it fits nowhere")
    bench.rule.says[ONE] = lambda of: Decision((present(),), problem=said if not lower.moments else of.problems[ONE])
    bench.loop.open(A)
    await until(1.0)
    assert len(lower.moments) == 2
    assert bench.world.problems == {ONE: said}
    assert bench.noted.troubles == [said]
    await bench.close()


def reworded(number: int) -> Present:
    """Want an event that says the same of the same object as others, in other words."""
    found = event(f"told-{number}")
    body = {**found.manifest, "involvedObject": {"uid": "u"}, "reason": "Forbidden", "message": str(number)}
    return Present(found.ref, body, "because")


@in_virtual_time
async def test_a_refusal_in_other_words_each_time_is_told_once_a_minute() -> None:
    """Some name a port, or the time; the newest words are in the pod's condition."""
    bench, lower = refusing(*[REFUSALS["quota"].error] * 200)
    bench.rule.says[ONE] = lambda _: Decision((reworded(len(lower.moments)), present()))
    bench.loop.open(A)
    await until(5 * MINUTE)
    told = [one for one in bench.noted.verbs() if "told" in one]
    assert 4 <= len(told) <= 7
    assert len(lower.moments) > 40
    await bench.close()


@in_virtual_time
async def test_several_events_of_what_is_not_refused_are_all_told() -> None:
    """Nothing would have the key looked at again for the second."""
    bench = LoopUnderTest()
    await bench.run(Decision((reworded(1), reworded(2))))
    assert bench.noted.verbs() == ["create told-1", "create told-2"]


# Secrets.

VALUES = {
    "password": "hunter2-correct",
    "pin": "4711",
    "config.json": '{"auths":{"r.example":{"auth":"aHVudGVyOnN0YXBsZQ=="}}}',
    "key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n",
}
QUOTES = {
    "as it is": lambda text: text,
    "encoded": lambda text: b64encode(text.encode()).decode(),
    "escaped": lambda text: orjson.dumps(text).decode(),
    "cut off": lambda text: text[: max(len(text) // 2, 12)],
    "its last words": lambda text: text.rstrip().replace("\n", " ")[-40:],
}


def refused_secret(words: str, **meta: str) -> tuple[LoopUnderTest, Timed, Decision]:
    """Make a loop whose lower cluster refuses a Secret with these words."""
    bench, lower = refusing(*[Denied(words, status=403, reason="Forbidden")] * 50)
    data = {key: QUOTES["encoded"](value) for key, value in VALUES.items()}
    manifest = marked({**secret("one", **meta), "data": data}, "above")
    return bench, lower, Decision((Present(Ref(A, SECRET, "default", "one"), manifest, "because", sections=("data",)),))


@pytest.mark.parametrize("quote", QUOTES)
@pytest.mark.parametrize("key", VALUES)
@in_virtual_time
async def test_a_refusal_that_quotes_a_secret_is_told_without_its_words(key: str, quote: str) -> None:
    """However it quotes it; that it was refused, and why in one word, is told."""
    bench, _, wanted = refused_secret(f"no: data[{key}] is {QUOTES[quote](VALUES[key])}, which is bad")
    await bench.run(wanted)
    assert bench.world.problems == {ONE: Problem("Forbidden", UNTOLD)}
    assert all(UNTOLD in str(error) for error in bench.noted.errors)
    await bench.close()


@in_virtual_time
async def test_a_refusal_that_quotes_what_the_secret_was_is_told_without_its_words() -> None:
    """A change can be refused for what it changes."""
    bench, lower, wanted = refused_secret("")
    put(bench.world.lowers[A].secrets, marked({**secret("one"), "data": {"old": "d2FzLWh1bnRlcjE="}}, "above"))
    lower.answer("patch", Denied("it was was-hunter1", status=403, reason="Forbidden"))
    await bench.run(wanted)
    assert bench.world.problems == {ONE: Problem("Forbidden", UNTOLD)}
    lower.answer("patch", Denied("it would be hunter2-correct", status=403, reason="Forbidden"))
    await until(1.0)
    assert bench.noted.errors[-1] is not None
    assert bench.noted.errors[-1].message == UNTOLD
    await bench.close()


@in_virtual_time
async def test_a_refusal_that_quotes_nothing_is_told_with_its_words() -> None:
    """The names of Secrets and keys are no secrets."""
    words = 'secrets "one" is forbidden: exceeded quota: q, requested: count/secrets=1; see data[password]'
    bench, _, wanted = refused_secret(words)
    await bench.run(wanted)
    assert bench.world.problems == {ONE: Problem("Forbidden", words)}
    await bench.close()


@in_virtual_time
async def test_what_is_no_secret_may_be_quoted() -> None:
    """Whoever reads the refusal of a ConfigMap may know what is in it."""
    bench, _ = refusing(Denied("no: its value is value", status=403, reason="Forbidden"))
    assert "value" in copy()["data"].values()
    await bench.run(WANTED)
    assert bench.world.problems[ONE].message == "no: its value is value"
    await bench.close()
