"""Checks whether the webhook is registered, and reachable from the upper apiserver."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus

from tensile.diagnostics.doctor.facts import (
    HOOK,
    HOOK_ADDRESS,
    HOOK_CALL,
    HOOK_SLICES,
    ClusterFacts,
    ContactResult,
    Facts,
    Finding,
    Level,
    QueryAnswer,
    Stage,
)
from tensile.names import CLUSTER_SELECTOR, VIRTUAL_POD
from tensile.objects import UPPER, Manifest
from tensile.policy.webhook.registration import address_of
from tensile.reconcile.pods.scheduling import left_alone
from tensile.topology import Topology

_ALIVE = "ok"
"""The response of the webhook at /healthz."""
_UNREACHED = "error trying to reach service"
"""The beginning of an apiserver's error about a connection that failed."""
_LATE = QueryAnswer(error="no answer in time")


def hooked(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether the webhook is registered, and reachable at its address."""
    webhook = facts.topology.webhook
    if side.name != UPPER or not webhook.enabled or not side.is_in:
        return
    if not webhook.is_reachable:
        what = "the webhook is enabled, but has no address for the upper apiserver: it is never registered"
        yield Finding(UPPER, "webhook", Level.FAIL, what, "set webhook.service or webhook.url in the topology")
        return
    yield from _service(side, facts) if webhook.service else _url(side, facts)
    if side.answers.get(HOOK, QueryAnswer()).status == HTTPStatus.NOT_FOUND:
        what = "it is not registered yet: the engine first calls itself at that address"
        yield Finding(
            UPPER, "webhook", Level.WARN, what, "start the engine, and see what its log reports about the webhook"
        )


def _url(upper: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    where = address_of(facts.topology.webhook)
    contact: ContactResult | None = upper.value(HOOK_ADDRESS)
    advice = (
        "start the engine, let the upper's apiserver through to webhook.port, and correct webhook.url, which has to "
        "lead there"
    )
    if contact is None or contact.stage != Stage.DONE:
        why = contact.error if contact else "not checked in time"
        yield Finding(UPPER, "webhook", Level.FAIL, f"nothing answers at {where} ({why})", advice)
        return
    call = upper.answers.get(HOOK_CALL)
    if call is not None and call.error:
        advice = "check whether another program listens there, and the engine's log"
        yield Finding(UPPER, "webhook", Level.FAIL, f"a call like the apiserver's fails: {call.error}", advice)
    elif call is not None:
        yield Finding(UPPER, "webhook", Level.OK, f"it answers at {where}, called from here")


def _service(upper: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    service = facts.topology.webhook.service
    assert service is not None
    name = f"Service {service.namespace}/{service.name}"
    answer, slices = (upper.answers.get(one, _LATE) for one in (HOOK_ADDRESS, HOOK_SLICES))
    if answer.status == HTTPStatus.NOT_FOUND:
        advice = "create it, with port 443 leading to webhook.port of the engine, or correct webhook.service"
        yield Finding(UPPER, "webhook", Level.FAIL, f"{name} does not exist", advice)
    elif not (answer.error or slices.error or _ready(slices.value)):
        advice = f"check that the engine's pods are Ready, and the selector: kubectl -n {service.namespace} get pods"
        yield Finding(UPPER, "webhook", Level.FAIL, f"{name} has no ready endpoint", advice)
    else:
        yield _called(name, _seen(name, answer, slices), upper.answers.get(HOOK_CALL), facts.topology)


def _seen(name: str, answer: QueryAnswer, slices: QueryAnswer) -> str:
    """Return what is known of a Service that could not be called."""
    if answer.error:
        return f"not checked: {name} cannot be read ({answer.error})"
    if slices.error:
        return f"not checked: the endpoints of {name} cannot be read ({slices.error})"
    return f"{name} has ready endpoints, but the call from the upper apiserver was not tested"


def _called(name: str, seen: str, call: QueryAnswer | None, topology: Topology) -> Finding:
    """Return the finding on a call to the Service through the upper apiserver (None: the apiserver does not permit it).

    The apiserver proxies calls to pods only, and to no endpoints that a user wrote by hand: not every refusal is an
    error.
    """
    if call is None:
        what = f"{seen}: this needs the permission to get services/proxy, which the engine does not need"
        return Finding(UPPER, "webhook", Level.SKIP, what, tried(topology))
    if call.value and call.error == _ALIVE:
        return Finding(UPPER, "webhook", Level.OK, f"the upper's apiserver reaches {name}")
    said = f"HTTP {call.status or '-'}: {call.error}"
    if call.value:
        advice = "check that the targetPort of the Service's port 443 is the engine's webhook.port"
        return Finding(UPPER, "webhook", Level.WARN, f"something else answers at {name} ({said})", advice)
    if call.status == 0 or _UNREACHED in call.error:
        advice = (
            f"let the upper's apiserver through to port {topology.webhook.port} of the engine's pods (the firewall "
            "between control plane and nodes, NetworkPolicy): until then pods are not mutated, without any error"
        )
        what = f"the upper's apiserver does not reach {name} ({said})"
        return Finding(UPPER, "webhook", Level.FAIL, what, advice)
    return Finding(
        UPPER, "webhook", Level.SKIP, f"{seen}: the apiserver does not forward the call ({said})", tried(topology)
    )


def tried(topology: Topology) -> str:
    """Return a command that makes the upper apiserver call the webhook for a pod that is not stored.

    The pod selects a label besides its virtual node, which the webhook moves to an annotation under any topology.
    """
    space = "NAMESPACE" if "default" in left_alone(topology) else "default"
    asks = '{"spec":{"nodeSelector":{"probe":"probe"}}}'
    return (
        "as an administrator of the upper cluster, have it ask about a pod that is not stored; it is reached if this "
        "prints a selector:\n"
        f"kubectl -n {space} run probe --image=probe --labels={VIRTUAL_POD}=true --dry-run=server "
        f"--overrides='{asks}' -o jsonpath='{{.metadata.annotations.{CLUSTER_SELECTOR}}}'"
    )


def _ready(slices: Sequence[Manifest]) -> bool:
    endpoints = [endpoint for one in slices for endpoint in one.get("endpoints") or ()]
    return any((endpoint.get("conditions") or {}).get("ready", True) for endpoint in endpoints)
