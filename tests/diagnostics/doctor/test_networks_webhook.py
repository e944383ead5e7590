"""Tests of the webhook check: its registration, and its response at a URL or behind a Service."""

import pytest
from doctorkit import cluster_facts, contact, facts, only_finding, topology

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
from tensile.diagnostics.doctor.networks import check_webhook
from tensile.objects import UPPER, Manifest

URL = "https://hooks.example:8443/mutate"


def hook(webhook: Manifest, **answers: QueryAnswer) -> list[Finding]:
    """Return the findings on an enabled webhook; answers have the names of their queries."""
    names = {"hook": HOOK, "call": HOOK_CALL, "address": HOOK_ADDRESS, "slices": HOOK_SLICES, "engine": LOCAL_ENGINE}
    upper = cluster_facts(UPPER, answers={names[name]: answer for name, answer in answers.items()})
    return list(check_webhook(upper, facts(upper, topology=topology(webhook={"enabled": True, **webhook}))))


def test_a_webhook_that_responds_at_its_url_is_ok() -> None:
    """Doctor calls the URL from this machine."""
    finding = only_finding(hook({"url": URL}, address=QueryAnswer(contact()), hook=QueryAnswer({}), call=QueryAnswer()))
    assert (finding.level, finding.what) == (Level.OK, f"it answers at {URL}, called from here")


def test_a_webhook_without_a_listener_fails() -> None:
    """A missing registration is a separate warning."""
    gone = QueryAnswer(contact(Stage.CONNECTION, "Connection refused"))
    failing, warning = hook({"url": URL}, address=gone, hook=QueryAnswer(error="not found", status=404))
    assert (failing.level, failing.what) == (Level.FAIL, f"no webhook answers at {URL} (Connection refused)")
    assert (warning.level, "it is not registered yet" in warning.what) == (Level.WARN, True)


def test_a_webhook_port_of_another_program_fails_with_the_engines_report() -> None:
    """The local engine reports the conflict; a response at that port is not from the webhook."""
    message = (
        "webhook cannot listen on port 8443 of 127.0.0.1: another program uses this port: set another webhook.port"
    )
    report = QueryAnswer({"topology": "demo", "accepted": {"pending": [message]}})
    finding = only_finding(hook({"url": URL}, address=QueryAnswer(contact()), hook=QueryAnswer({}), engine=report))
    assert finding.what == "webhook cannot listen on port 8443 of 127.0.0.1: another program uses this port"
    assert finding.advice == "set another webhook.port"


def test_a_response_of_another_program_at_the_webhook_url_fails() -> None:
    """The test call of an admission review shows that the response is not the webhook's."""
    answer = QueryAnswer(error=f"{URL}: the response is not from this webhook (HTTP 404)")
    finding = only_finding(hook({"url": URL}, address=QueryAnswer(contact()), hook=QueryAnswer({}), call=answer))
    assert (finding.level, "the response is not from this webhook" in finding.what) == (Level.FAIL, True)


def test_a_webhook_without_url_or_service_has_advice_to_set_one() -> None:
    """Such a webhook is never registered."""
    assert "set webhook.service or webhook.url" in only_finding(hook({})).advice


SERVICE = {"service": {"namespace": "ops", "name": "hooks"}}
READY = QueryAnswer([{"endpoints": [{"conditions": {}}]}])
DENIED = QueryAnswer(error="forbidden", status=403)


@pytest.mark.parametrize(
    ("address", "slices", "level", "message"),
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
def test_a_webhook_service_needs_to_exist_and_have_ready_endpoints(
    address: QueryAnswer, slices: list[Manifest], level: Level, message: str
) -> None:
    """Without a call, doctor cannot know whether the upper apiserver reaches the endpoints."""
    finding = only_finding(hook(SERVICE, address=address, slices=QueryAnswer(slices)))
    assert (finding.level, message in finding.what) == (level, True)


@pytest.mark.parametrize(
    ("call", "level", "message"),
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
def test_the_apiservers_call_of_the_webhook_service_decides_the_level(
    call: QueryAnswer, level: Level, message: str
) -> None:
    """A connection error is a failure; a call that the apiserver does not forward is skipped."""
    finding = only_finding(hook(SERVICE, address=QueryAnswer({}), slices=READY, call=call))
    assert (finding.level, message in finding.what) == (level, True)


def test_a_timed_out_webhook_call_has_advice_to_open_the_port() -> None:
    """The advice names the port that the apiserver has to reach."""
    call = QueryAnswer(False, "error trying to reach service: dial tcp 10.1.0.4:9443: i/o timeout", 503)
    finding = only_finding(hook({**SERVICE, "port": 9443}, address=QueryAnswer({}), slices=READY, call=call))
    assert "let the upper's apiserver through to port 9443" in finding.advice


def test_a_successful_call_is_ok_if_the_webhook_service_is_unreadable() -> None:
    """The response counts, regardless of the rights to read the Service or its endpoints."""
    well = QueryAnswer(True, "ok", 200)
    assert only_finding(hook(SERVICE, address=DENIED, slices=DENIED, call=well)).level == Level.OK
    assert only_finding(hook(SERVICE, address=DENIED, slices=READY, call=well)).level == Level.OK


@pytest.mark.parametrize(("address", "slices"), [(DENIED, DENIED), (QueryAnswer({}), DENIED), (QueryAnswer({}), READY)])
def test_a_webhook_that_was_not_called_is_skipped_with_a_command(address: QueryAnswer, slices: QueryAnswer) -> None:
    """The command is for an administrator, is a server-side dry run, and uses a namespace that the webhook handles."""
    finding = only_finding(hook(SERVICE, address=address, slices=slices))
    who, command = finding.advice.splitlines()
    assert (finding.level, who.startswith("as an administrator of the upper cluster")) == (Level.SKIP, True)
    assert command.startswith("kubectl -n default run ")
    assert "--dry-run=server" in command
    (named,) = hook({"service": {"namespace": "default", "name": "hooks"}}, address=QueryAnswer({}), slices=READY)
    assert "kubectl -n NAMESPACE run " in named.advice


def test_unreadable_webhook_endpoints_are_skipped() -> None:
    """Whether ready endpoints exist is also unknown if the query timed out."""
    finding = only_finding(hook(SERVICE, address=QueryAnswer({}), slices=DENIED))
    assert finding.level == Level.SKIP
    assert finding.what.startswith("not checked: the endpoints of Service ops/hooks cannot be read (forbidden): this")
    assert "(no answer in time)" in only_finding(hook(SERVICE, address=QueryAnswer({}))).what
    assert only_finding(hook(SERVICE)).level == Level.SKIP


def test_a_disabled_webhook_or_unreachable_upper_has_no_webhook_finding() -> None:
    """Neither case has a webhook to check."""
    known = facts()
    assert not list(check_webhook(known.upper, known))
    upper = cluster_facts(UPPER, contact=contact(Stage.LOGIN, "HTTP 401"))
    assert not list(check_webhook(upper, facts(upper, topology=topology(webhook={"enabled": True}))))
