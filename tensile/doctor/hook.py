"""Whether the webhook is registered, and answers where the upper's apiserver calls it."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus

from tensile.doctor.facts import HOOK, HOOK_ADDRESS, HOOK_CALL, HOOK_SLICES, Answer, Contact, Facts, Side, Stage
from tensile.doctor.finding import Finding, Level
from tensile.objects import UPPER, Manifest
from tensile.policy.registration import address_of, is_reachable

_LATE = Answer(error="no answer in time")


def hooked(side: Side, facts: Facts) -> Iterator[Finding]:
    """Say whether the webhook is registered, and answers where it is called."""
    webhook = facts.topology.webhook
    if side.name != UPPER or not webhook.enabled or not side.is_in:
        return
    if not is_reachable(webhook):
        what = "the webhook is enabled, and how the upper's apiserver reaches it is not said: it is never registered"
        yield Finding(UPPER, "webhook", Level.FAIL, what, "set webhook.service or webhook.url in the topology")
        return
    yield from _service(side, facts) if webhook.service else _url(side, facts)
    if side.answers.get(HOOK, Answer()).status == HTTPStatus.NOT_FOUND:
        what = "it is not registered yet: the engine does that after a call to itself at that address came through"
        yield Finding(UPPER, "webhook", Level.WARN, what, "start the engine, and see what its log says of the webhook")


def _url(upper: Side, facts: Facts) -> Iterator[Finding]:
    where = address_of(facts.topology.webhook)
    contact: Contact | None = upper.value(HOOK_ADDRESS)
    advice = (
        "start the engine, let the upper's apiserver through to webhook.port, and correct webhook.url, which has to "
        "lead there"
    )
    if contact is None or contact.stage != Stage.DONE:
        why = contact.error if contact else "not looked at in time"
        yield Finding(UPPER, "webhook", Level.FAIL, f"nothing answers at {where} ({why})", advice)
        return
    call = upper.answers.get(HOOK_CALL)
    if call is not None and call.error:
        advice = "look whether another program listens there, and at the engine's log"
        yield Finding(UPPER, "webhook", Level.FAIL, f"a call as the apiserver's fails: {call.error}", advice)
    elif call is not None:
        yield Finding(UPPER, "webhook", Level.OK, f"it answers at {where}, called from here")


def _service(upper: Side, facts: Facts) -> Iterator[Finding]:
    service = facts.topology.webhook.service
    assert service is not None
    name = f"Service {service.namespace}/{service.name}"
    answer, slices = (upper.answers.get(one, _LATE) for one in (HOOK_ADDRESS, HOOK_SLICES))
    if answer.status == HTTPStatus.NOT_FOUND:
        advice = "create it, with port 443 leading to webhook.port of the engine, or correct webhook.service"
        yield Finding(UPPER, "webhook", Level.FAIL, f"{name} does not exist", advice)
    elif answer.error:
        yield Finding(UPPER, "webhook", Level.SKIP, f"not looked at: {name} is not told ({answer.error})")
    elif slices.error:
        what = f"not looked at: the endpoints of {name} are not told ({slices.error})"
        yield Finding(UPPER, "webhook", Level.SKIP, what)
    elif not _ready(slices.value):
        advice = (
            f"look whether the engine's pods are Ready, and at the selector: kubectl -n {service.namespace} get pods"
        )
        yield Finding(UPPER, "webhook", Level.FAIL, f"{name} has no ready endpoint", advice)
    else:
        yield Finding(UPPER, "webhook", Level.OK, f"{name} has ready endpoints")


def _ready(slices: Sequence[Manifest]) -> bool:
    endpoints = [endpoint for one in slices for endpoint in one.get("endpoints") or ()]
    return any((endpoint.get("conditions") or {}).get("ready", True) for endpoint in endpoints)
