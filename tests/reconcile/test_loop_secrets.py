"""Tests that the loop's logs at debug level, problems, Events, metrics and errors contain no value of a Secret."""

import asyncio
import io
from base64 import b64encode
from itertools import product
from typing import Any

import pytest
import structlog
from answering import FakeCluster
from loopkit import ONE, ScriptedRule
from virtualtime import clock, in_virtual_time
from worldkit import (
    NOW,
    OWNER_HERE,
    A,
    B,
    add_namespace,
    add_virtual_node,
    make_upper_pod,
    make_world,
    put,
    secret,
    spec_with_references,
    with_owner_marks,
)

from tensile.engine.logging import configure
from tensile.engine.metrics import Metrics
from tensile.engine.observer import LoggingObserver
from tensile.errors import ClusterError, Conflict, Denied, Throttled, Unreachable
from tensile.names import TOKEN_TERM
from tensile.objects import EVENT, SECRET, SERVICE_ACCOUNT, UPPER, Manifest, Ref
from tensile.reconcile.desired import Decision, TokenRequest, TokenSecret
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.pods.references import copy_of
from tensile.reconcile.rules import config
from tensile.reconcile.rules.config import key_of
from tensile.reconcile.world import World

OLD, NEW, APPLIED = "m4rker-old-value", "m4rker-new-value", "m4rker-applied-value"
SENT = [b64encode(one.encode()).decode() for one in (OLD, NEW, APPLIED)]
ERRORS: dict[str, Any] = {
    "none": None,
    "denied": Denied,
    "throttled": Throttled,
    "failed": Unreachable,
    "lost": Conflict,
}


class LoggingLoopHarness:
    """A loop over one rule that logs to `stream`, and the clusters that it uses."""

    def __init__(self, of: World, rule: Any) -> None:
        self.world = of
        self.stream = io.StringIO()
        configure("debug", "json", self.stream)
        self.metrics = Metrics()
        self.clusters = {name: FakeCluster(name) for name in (UPPER, A, B)}
        narration = LoggingObserver(self.metrics, clock, structlog.get_logger("tensile.test"))
        self.loop = Loop(of, (rule,), self.clusters, narration, Timing(lambda: NOW, lambda: 0.5))

    async def run(self, seconds: float) -> None:
        """Run for so many seconds."""
        self.loop.open(A)
        await asyncio.sleep(seconds)
        await self.loop.close(A)

    def output(self) -> str:
        """Return all output: log lines, problems, metrics, and what was written to Events and statuses."""
        written = [one.payload for one in self.clusters[UPPER].calls if one.ref.kind == EVENT or one.verb == "patch"]
        return "\n".join(
            [self.stream.getvalue(), repr(self.world.problems), self.metrics.text().decode(), repr(written)]
        )


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    """Restore the logging configuration."""
    yield
    structlog.reset_defaults()


def refusals(name: str, *values: str) -> list[ClusterError]:
    """Return errors of a kind that quote values, encoded and as they are."""
    sort = ERRORS[name]
    messages = [f"no: {value} is not allowed, nor is {b64encode(value.encode()).decode()}" for value in values]
    return (
        [sort(one, status=500 if sort is Unreachable else 0, reason="Refused") for one in messages] * 5 if sort else []
    )


def secret_world(*, is_below: bool) -> World:
    """Create a world in which a pod refers to an applied Secret that has changed since it was copied."""
    world = make_world()
    add_virtual_node(world)
    add_namespace(world)
    put(world.lowers[A].upper_pods, make_upper_pod(spec=spec_with_references(secrets=["password"])))
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": APPLIED}
    upper_object = {**secret("password", annotations=annotations), "data": {"key": SENT[1]}}
    put(world.upper.secrets, upper_object)
    if is_below:
        made = copy_of({**upper_object, "data": {"key": SENT[0], "more": SENT[0]}}, OWNER_HERE, "default")
        put(
            world.lowers[A].secrets,
            with_owner_marks({**made, "metadata": {**made["metadata"], "uid": "below"}}, "Secret-password"),
        )
    return world


@pytest.mark.parametrize(("name", "is_below"), list(product(ERRORS, (False, True))))
@in_virtual_time
async def test_copying_a_secret_reveals_none_of_its_values(name: str, *, is_below: bool) -> None:
    """This holds for a create and a patch, with and without an error, whatever the error quotes."""
    telling = LoggingLoopHarness(secret_world(is_below=is_below), config.RULE)
    verb = "patch" if is_below else "create"
    telling.clusters[A].queue_responses(verb, *refusals(name, OLD if is_below else NEW, NEW))
    await telling.run(20.0)
    assert key_of(A, "default", "Secret", "password") not in telling.world.problems or name != "none"
    sent = [one for one in telling.clusters[A].calls if one.verb == verb]
    assert any(SENT[1] in repr(one.payload) for one in sent), "it was sent indeed"
    assert APPLIED not in repr(sent)
    output = telling.output()
    assert "password" in output, "its name is told"
    assert not [one for one in (OLD, NEW, APPLIED, *SENT) if one in output]


class TokenIssuingCluster(FakeCluster):
    """A cluster that issues the new value as token."""

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Issue the value as token."""
        self.queue_responses("issue", {"spec": {"expirationSeconds": 3600}, "status": {"token": NEW}})
        return await super().issue(account, request)


@pytest.mark.parametrize("name", [one for one in ERRORS if one != "lost"])
@in_virtual_time
async def test_an_issued_token_is_not_revealed(name: str) -> None:
    """Only the request that writes it contains the token."""
    rule = ScriptedRule()
    manifest = with_owner_marks({**secret("one"), "data": {"token": ""}}, "above")
    manifest["metadata"]["annotations"][TOKEN_TERM] = ""
    account = Ref(UPPER, SERVICE_ACCOUNT, "default", "robot")
    wanted = TokenSecret(Ref(A, SECRET, "default", "one"), account, (TokenRequest("token", {}),), manifest, "because")
    rule.set_decisions(ONE, Decision((wanted,)))
    telling = LoggingLoopHarness(make_world(), rule)
    telling.clusters[UPPER] = TokenIssuingCluster(UPPER)
    telling.clusters[A].queue_responses("create", *refusals(name, NEW))
    await telling.run(3.0)
    sent = [one for one in telling.clusters[A].calls if one.verb == "create"]
    assert any(SENT[1] in repr(one.payload) for one in sent), "it was sent indeed"
    assert not [one for one in (NEW, SENT[1]) if one in telling.output()]


@in_virtual_time
async def test_a_message_that_quotes_no_value_is_shown() -> None:
    """This proves that the other tests in this module can find a message."""
    telling = LoggingLoopHarness(secret_world(is_below=False), config.RULE)
    telling.clusters[A].queue_responses("create", *[Denied("m4rker-of-nobody", status=403, reason="Refused")] * 5)
    await telling.run(3.0)
    assert telling.output().count("m4rker-of-nobody") >= 2
