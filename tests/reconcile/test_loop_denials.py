"""Tests that a refusal is reported soon, retried rarely, and succeeds soon after the cluster stops refusing."""

from base64 import b64encode
from typing import NamedTuple

import orjson
import pytest
from answering import FakeCluster
from loopkit import ONE, LoopUnderTest, copy, event, present, present_uncached, sleep_until
from virtualtime import clock, in_virtual_time
from worldkit import A, put, secret, with_owner_marks

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, Throttled, Unreachable
from tensile.kube.responses import RequestInfo, error_of
from tensile.objects import SECRET, UPPER, Manifest, Ref
from tensile.reconcile.desired import Decision, Present
from tensile.reconcile.redaction import OMITTED
from tensile.reconcile.world import ForeignProblem, Problem

WANTED = Decision((present(),))
MINUTE = 60.0
MOST = 12
SOON = 5.0


class Refusal(NamedTuple):
    """A response of an apiserver: status, reason and message of its body, and its Retry-After."""

    code: int
    reason: str
    message: str
    wait: str = ""

    @property
    def error(self) -> ClusterError:
        """Return the error for this response."""
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


class CreateTimesCluster(FakeCluster):
    """A cluster that records the time of each create."""

    def __init__(self, *errors: ClusterError) -> None:
        super().__init__(A)
        self.queue_responses("create", *errors)
        self.moments: list[float] = []

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Record the time, and respond."""
        self.moments.append(clock())
        return await super().create(ref, body)


def refusing(*errors: ClusterError) -> tuple[LoopUnderTest, CreateTimesCluster]:
    """Return a loop, and its lower cluster that refuses to create objects."""
    bench, lower = LoopUnderTest(), CreateTimesCluster(*errors)
    bench.clusters[A] = bench.lower = lower
    return bench, lower


@pytest.mark.parametrize("name", REFUSALS)
@in_virtual_time
async def test_a_refusal_is_reported_within_five_seconds_and_retried_at_most_twelve_times_a_minute(name: str) -> None:
    """The problem has the cluster's own message, and is reported only once."""
    refusal = REFUSALS[name]
    bench, lower = refusing(*[refusal.error] * 200)
    await bench.run(WANTED)
    await sleep_until(SOON)
    problem = bench.world.problems[ONE]
    assert problem.message == refusal.message
    assert problem.reason == (refusal.reason or type(refusal.error).__name__)
    await sleep_until(10 * MINUTE)
    busiest = max(sum(0 <= later - one < MINUTE for later in lower.moments) for one in lower.moments)
    assert busiest <= MOST
    assert len(lower.moments) >= (15 if refusal.wait == "30" else 80), "it is not forgotten either"
    assert bench.observer.problems == [problem], "and it is said once"
    await bench.close()


@in_virtual_time
async def test_an_unknown_reason_of_a_webhook_is_a_foreign_problem() -> None:
    """Users see the reason as it is.

    It is marked as foreign because a webhook can return any reason, even one of this program.
    """
    for reason, is_foreign in (("Policy4711", True), ("NameConflict", True), ("Forbidden", False), ("", False)):
        bench, _ = refusing(*[Refusal(403, reason, "no").error] * 200)
        await bench.run(WANTED)
        await sleep_until(SOON)
        assert bench.world.problems[ONE] == (reason or "Denied", "no")
        assert isinstance(bench.world.problems[ONE], ForeignProblem) == is_foreign
        await bench.close()


@pytest.mark.parametrize("name", [one for one in REFUSALS if one != "busy for long"])
@in_virtual_time
async def test_a_step_that_is_not_refused_any_more_succeeds_within_one_back_off(name: str) -> None:
    """The problem is removed then, and nothing is retried."""
    bench, lower = refusing(*[REFUSALS[name].error] * 6)
    await bench.run(WANTED)
    await sleep_until(2 * MINUTE)
    assert len(lower.moments) == 7
    assert lower.moments[-1] - lower.moments[-2] <= 7.5
    assert (bench.world.problems, bench.loop.delayed) == ({}, 0)


@in_virtual_time
async def test_a_json_patch_that_fails_twice_with_422_counts_as_refused() -> None:
    """The API also returns 422 for a patch of an outdated object, but not twice in a row."""
    bench, lower = refusing()
    old = put(bench.world.lowers[A].config_maps, copy(data={"key": "old"}))
    lower.queue_responses("read", old.raw)
    lower.queue_responses("patch", *[Denied("denied: no such value", status=422, reason="Invalid")] * 200)
    await bench.run(WANTED)
    await sleep_until(SOON)
    assert bench.world.problems == {ONE: Problem("Invalid", "denied: no such value")}
    before = lower.verbs().count("patch ConfigMap one")
    await sleep_until(SOON + 2 * MINUTE)
    assert 16 <= lower.verbs().count("patch ConfigMap one") - before <= 2 * MOST
    await bench.close()


@in_virtual_time
async def test_an_error_that_ends_with_the_first_retry_is_not_reported() -> None:
    """An apiserver that is busy or starting is retried after a moment."""
    bench, lower = refusing(REFUSALS["webhook says no with 503"].error)
    await bench.run(WANTED)
    await sleep_until(SOON)
    assert len(lower.moments) == 2
    assert lower.moments[1] <= 1.0
    assert bench.observer.problems == []


@in_virtual_time
async def test_throttling_by_the_upper_cluster_is_no_problem_of_the_key() -> None:
    """Reporting it would require another write to the upper cluster."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].queue_responses("create", *[Throttled("slowly", status=429, retry_after=1.0)] * 5)
    await bench.run(Decision((present_uncached(), present())))
    await sleep_until(MINUTE)
    assert bench.observer.verbs()[:7] == [*["create kept"] * 6, "create one"]
    assert bench.observer.problems == []


@pytest.mark.parametrize("error", [Unreachable("no answer"), Conflict("changed"), AlreadyExists("there")])
@in_virtual_time
async def test_an_error_that_is_no_refusal_is_retried_soon(error: ClusterError) -> None:
    """Another client was faster, or the cluster did not respond, so there is no problem to report."""
    bench, lower = refusing(*[error] * 3)
    await bench.run(WANTED)
    await sleep_until(1.0)
    assert len(lower.moments) == 4
    assert bench.observer.problems == []


@in_virtual_time
async def test_a_problem_of_the_rule_itself_survives_a_lost_race() -> None:
    """The cluster gave no reason, so the rule's problem is neither removed nor reported again."""
    bench, lower = refusing(Conflict("changed"))
    reported = Problem("Deadlock", "it fits nowhere")
    bench.rule.decisions[ONE] = lambda of: Decision(
        (present(),), problem=reported if not lower.moments else of.problems[ONE]
    )
    bench.loop.open(A)
    await sleep_until(1.0)
    assert len(lower.moments) == 2
    assert bench.world.problems == {ONE: reported}
    assert bench.observer.problems == [reported]
    await bench.close()


def reworded(number: int) -> Present:
    """Return an Event about the same object for the same reason, with a different message."""
    found = event(f"told-{number}")
    body = {**found.manifest, "involvedObject": {"uid": "u"}, "reason": "Forbidden", "message": str(number)}
    return Present(found.ref, body, "because")


@in_virtual_time
async def test_a_refusal_with_a_different_message_each_time_is_recorded_once_a_minute() -> None:
    """Some messages contain a port or the time, and the latest one is in the pod's condition."""
    bench, lower = refusing(*[REFUSALS["quota"].error] * 200)
    bench.rule.decisions[ONE] = lambda _: Decision((reworded(len(lower.moments)), present()))
    bench.loop.open(A)
    await sleep_until(5 * MINUTE)
    events = [one for one in bench.observer.verbs() if "told" in one]
    assert 4 <= len(events) <= 7
    assert len(lower.moments) > 40
    await bench.close()


@in_virtual_time
async def test_several_events_of_a_key_without_a_refusal_are_all_recorded() -> None:
    """Nothing would enqueue the key again for the second one."""
    bench = LoopUnderTest()
    await bench.run(Decision((reworded(1), reworded(2))))
    assert bench.observer.verbs() == ["create told-1", "create told-2"]


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


def refused_secret(message: str, **meta: str) -> tuple[LoopUnderTest, CreateTimesCluster, Decision]:
    """Return a loop whose lower cluster refuses a Secret with this message, and the decision that wants it."""
    bench, lower = refusing(*[Denied(message, status=403, reason="Forbidden")] * 50)
    data = {key: QUOTES["encoded"](value) for key, value in VALUES.items()}
    manifest = with_owner_marks({**secret("one", **meta), "data": data}, "above")
    return bench, lower, Decision((Present(Ref(A, SECRET, "default", "one"), manifest, "because", sections=("data",)),))


@pytest.mark.parametrize("quote", QUOTES)
@pytest.mark.parametrize("key", VALUES)
@in_virtual_time
async def test_a_message_that_quotes_a_secret_is_hidden(key: str, quote: str) -> None:
    """This holds for any encoding or excerpt, and the reason is still reported."""
    bench, _, wanted = refused_secret(f"no: data[{key}] is {QUOTES[quote](VALUES[key])}, which is bad")
    await bench.run(wanted)
    assert bench.world.problems == {ONE: Problem("Forbidden", OMITTED)}
    assert all(OMITTED in str(error) for error in bench.observer.errors)
    await bench.close()


@in_virtual_time
async def test_a_message_that_quotes_the_previous_content_of_a_secret_is_hidden() -> None:
    """A cluster can refuse a patch because of the values that it changes."""
    bench, lower, wanted = refused_secret("")
    put(
        bench.world.lowers[A].secrets, with_owner_marks({**secret("one"), "data": {"old": "d2FzLWh1bnRlcjE="}}, "above")
    )
    lower.queue_responses("patch", Denied("it was was-hunter1", status=403, reason="Forbidden"))
    await bench.run(wanted)
    assert bench.world.problems == {ONE: Problem("Forbidden", OMITTED)}
    lower.queue_responses("patch", Denied("it would be hunter2-correct", status=403, reason="Forbidden"))
    await sleep_until(1.0)
    assert bench.observer.errors[-1] is not None
    assert bench.observer.errors[-1].message == OMITTED
    await bench.close()


@in_virtual_time
async def test_a_message_that_quotes_no_value_of_a_secret_is_shown() -> None:
    """The names of Secrets and keys are not secret."""
    message = 'secrets "one" is forbidden: exceeded quota: q, requested: count/secrets=1; see data[password]'
    bench, _, wanted = refused_secret(message)
    await bench.run(wanted)
    assert bench.world.problems == {ONE: Problem("Forbidden", message)}
    await bench.close()


@in_virtual_time
async def test_a_message_that_quotes_a_config_map_is_shown() -> None:
    """A user who can read the message may know the content of the ConfigMap."""
    bench, _ = refusing(Denied("no: its value is value", status=403, reason="Forbidden"))
    assert "value" in copy()["data"].values()
    await bench.run(WANTED)
    assert bench.world.problems[ONE].message == "no: its value is value"
    await bench.close()
