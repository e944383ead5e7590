"""Whether the webhook is registered, and answers: at its URL, or behind a Service that the apiserver calls for us."""

import pytest
from doctorkit import contact, facts, only, side, topology

from tensile.diagnostics.doctor.facts import (
    HOOK,
    HOOK_ADDRESS,
    HOOK_CALL,
    HOOK_SLICES,
    LOCAL_ENGINE,
    Finding,
    Level,
    QueryAnswer,
    Stage,
)
from tensile.diagnostics.doctor.networks import hooked
from tensile.objects import UPPER, Manifest

URL = "https://hooks.example:8443/mutate"


def hook(webhook: Manifest, **answers: QueryAnswer) -> list[Finding]:
    """Look at a webhook that is enabled; answers are by the names of their questions."""
    names = {"hook": HOOK, "call": HOOK_CALL, "address": HOOK_ADDRESS, "slices": HOOK_SLICES, "engine": LOCAL_ENGINE}
    upper = side(UPPER, answers={names[name]: answer for name, answer in answers.items()})
    return list(hooked(upper, facts(upper, topology=topology(webhook={"enabled": True, **webhook}))))


def test_a_webhook_that_answers() -> None:
    """Called at its URL, with the trust that the apiserver has."""
    finding = only(hook({"url": URL}, address=QueryAnswer(contact()), hook=QueryAnswer({}), call=QueryAnswer()))
    assert (finding.level, finding.what) == (Level.OK, f"it answers at {URL}, called from here")


def test_a_webhook_that_nobody_serves() -> None:
    """It fails, and whether it is registered is told apart."""
    gone = QueryAnswer(contact(Stage.CONNECTION, "Connection refused"))
    failing, warning = hook({"url": URL}, address=gone, hook=QueryAnswer(error="not found", status=404))
    assert (failing.level, failing.what) == (Level.FAIL, f"no webhook answers at {URL} (Connection refused)")
    assert (warning.level, "it is not registered yet" in warning.what) == (Level.WARN, True)


def test_a_webhook_whose_port_another_program_uses() -> None:
    """The engine on this machine knows it; whatever answers there is not the webhook."""
    told = "webhook cannot listen on port 8443 of 127.0.0.1: another program uses this port: set another webhook.port"
    report = QueryAnswer({"topology": "demo", "accepted": {"pending": [told]}})
    finding = only(hook({"url": URL}, address=QueryAnswer(contact()), hook=QueryAnswer({}), engine=report))
    assert finding.what == "webhook cannot listen on port 8443 of 127.0.0.1: another program uses this port"
    assert finding.advice == "set another webhook.port"


def test_a_webhook_at_which_something_else_answers() -> None:
    """A call as the apiserver's tells."""
    said = QueryAnswer(error=f"{URL}: the response is not from this webhook (HTTP 404)")
    finding = only(hook({"url": URL}, address=QueryAnswer(contact()), hook=QueryAnswer({}), call=said))
    assert (finding.level, "the response is not from this webhook" in finding.what) == (Level.FAIL, True)


def test_a_webhook_of_which_nobody_said_where_it_is() -> None:
    """It is never registered."""
    assert "set webhook.service or webhook.url" in only(hook({})).advice


SERVICE = {"service": {"namespace": "ops", "name": "hooks"}}
READY = QueryAnswer([{"endpoints": [{"conditions": {}}]}])
DENIED = QueryAnswer(error="forbidden", status=403)


@pytest.mark.parametrize(
    ("address", "slices", "level", "words"),
    [
        (QueryAnswer(error="not found", status=404), [], Level.FAIL, "Service ops/hooks does not exist"),
        (DENIED, [], Level.SKIP, "Service ops/hooks cannot be read (forbidden)"),
        (QueryAnswer({}), [], Level.FAIL, "has no ready endpoint"),
        (QueryAnswer({}), [{"endpoints": None}], Level.FAIL, "has no ready endpoint"),
        (QueryAnswer({}), [{"endpoints": [{"conditions": {"ready": False}}]}], Level.FAIL, "has no ready endpoint"),
        (
            QueryAnswer({}),
            [{"endpoints": [{"conditions": {}}]}],
            Level.SKIP,
            "has ready endpoints, but the call from the upper",
        ),
    ],
)
def test_a_webhook_behind_a_service(address: QueryAnswer, slices: list[Manifest], level: Level, words: str) -> None:
    """It has to be there, and lead somewhere; whether the apiserver gets there is not known of that."""
    finding = only(hook(SERVICE, address=address, slices=QueryAnswer(slices)))
    assert (finding.level, words in finding.what) == (level, True)


@pytest.mark.parametrize(
    ("call", "level", "words"),
    [
        (QueryAnswer(True, "ok", 200), Level.OK, "the upper's apiserver reaches Service ops/hooks"),
        (
            QueryAnswer(True, "<html>", 200),
            Level.WARN,
            "something else answers at Service ops/hooks (HTTP 200: <html>)",
        ),
        (
            QueryAnswer(False, "error trying to reach service: dial tcp 10.1.0.4:8443: connect: refused", 503),
            Level.FAIL,
            "does not reach Service ops/hooks (HTTP 503: error trying to reach service: dial",
        ),
        (
            QueryAnswer(error="no answer in 3 s"),
            Level.FAIL,
            "does not reach Service ops/hooks (HTTP -: no answer",
        ),
        (
            QueryAnswer(False, 'no endpoints available for service "https:hooks:443"', 503),
            Level.SKIP,
            "does not forward the call",
        ),
        (
            QueryAnswer(False, 'services "hooks" not found', 404),
            Level.SKIP,
            "does not forward the call (HTTP 404: services",
        ),
        (QueryAnswer(False, "forbidden", 403), Level.SKIP, "does not forward the call (HTTP 403: forbidden)"),
    ],
)
def test_a_service_that_the_apiserver_calls(call: QueryAnswer, level: Level, words: str) -> None:
    """What it says of a connection counts; where it passes on no call at all, as to no pod, nothing is known."""
    finding = only(hook(SERVICE, address=QueryAnswer({}), slices=READY, call=call))
    assert (finding.level, words in finding.what) == (level, True)


def test_a_firewall_is_named_where_the_apiserver_does_not_get_through() -> None:
    """With the port that is to be let through."""
    call = QueryAnswer(False, "error trying to reach service: dial tcp 10.1.0.4:9443: i/o timeout", 503)
    finding = only(hook({**SERVICE, "port": 9443}, address=QueryAnswer({}), slices=READY, call=call))
    assert "let the upper's apiserver through to port 9443" in finding.advice


def test_a_call_tells_of_a_service_that_may_not_be_read() -> None:
    """The answer counts, whoever may see what is behind it."""
    well = QueryAnswer(True, "ok", 200)
    assert only(hook(SERVICE, address=DENIED, slices=DENIED, call=well)).level == Level.OK
    assert only(hook(SERVICE, address=DENIED, slices=READY, call=well)).level == Level.OK


@pytest.mark.parametrize(("address", "slices"), [(DENIED, DENIED), (QueryAnswer({}), DENIED), (QueryAnswer({}), READY)])
def test_what_nobody_called_is_skipped_with_a_command(address: QueryAnswer, slices: QueryAnswer) -> None:
    """Which is an administrator's, stores nothing, and asks in a namespace that is not left alone."""
    finding = only(hook(SERVICE, address=address, slices=slices))
    who, command = finding.advice.splitlines()
    assert (finding.level, who.startswith("as an administrator of the upper cluster")) == (Level.SKIP, True)
    assert command.startswith("kubectl -n default run ")
    assert "--dry-run=server" in command
    (named,) = hook({"service": {"namespace": "default", "name": "hooks"}}, address=QueryAnswer({}), slices=READY)
    assert "kubectl -n NAMESPACE run " in named.advice


def test_endpoints_that_may_not_be_listed() -> None:
    """Whether there are ready ones is not known then, nor where the answer did not come in time."""
    finding = only(hook(SERVICE, address=QueryAnswer({}), slices=DENIED))
    assert finding.level == Level.SKIP
    assert finding.what.startswith("not checked: the endpoints of Service ops/hooks cannot be read (forbidden): this")
    assert "(no answer in time)" in only(hook(SERVICE, address=QueryAnswer({}))).what
    assert only(hook(SERVICE)).level == Level.SKIP


def test_a_webhook_that_is_off_or_whose_cluster_is_away() -> None:
    """Nothing is said."""
    known = facts()
    assert not list(hooked(known.upper, known))
    upper = side(UPPER, contact=contact(Stage.LOGIN, "HTTP 401"))
    assert not list(hooked(upper, facts(upper, topology=topology(webhook={"enabled": True}))))
