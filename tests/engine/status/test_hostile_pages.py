"""Tests of hostile names and messages on every status page, and in the output of commands.

Whoever may create a pod in some namespace chooses names, messages and images, and the operator reads them in a browser
or in a terminal. Each text is shown in each place, and none of it may become an element, an attribute, a control
sequence or another line.
"""

import re
from collections.abc import Callable

import pytest
import worldkit
from pagekit import ParsedPage, StatusPageHarness, populated, step
from previewkit import A, B, create, json_patch, pod, previewed
from statuskit import NOW, accepted, row
from worldkit import make_lower_pod, make_upper_pod, put

from tensile.cli.status import as_text as status_text
from tensile.diagnostics.inventory import Inventory, Item
from tensile.diagnostics.inventory import as_text as list_text
from tensile.engine.status.details import (
    FoundPod,
    PageOfPods,
    TopologyCheck,
    lower_page,
    pod_page,
    search_page,
    topology_page,
)
from tensile.engine.status.page import ResourceUsage, page
from tensile.engine.status.report import StatusReport
from tensile.kubelet.pods.events import CarriedEvent
from tensile.objects import POD, Ref
from tensile.reconcile.drift import Drift, RecentDrift
from tensile.reconcile.plan import Step
from tensile.reconcile.report import as_text as plan_text
from tensile.reconcile.world import Key, Problem

PLAIN = "harmless"
TEXTS = {
    "script": "<script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "attribute": '"><svg onload=alert(1)>',
    "handler": "' onmouseover='alert(1)",
    "frame": "</main></body><iframe src=//example.com>",
    "textarea": "</textarea></style></script><base href=//example.com>",
    "address": "javascript:alert(1)",
    "terminal": "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "lines": "one\r\ntwo\n\u2028three\x00",
    "direction": "a\u202egnp.exe\u2066b\u200f",
    "entity": "&lt;b&gt;&#60;i&#62;",
    "surrogate": "\ud800\udfff",
    "long": "x" * 1_000_000,
}
LONGEST_NAME = 1000
"""The store accepts no longer name; a message has no such limit."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MOST = 100_000
"""Bytes of a page that shows a text of a megabyte."""


def stage_of(text: str) -> tuple[StatusPageHarness, FoundPod]:
    """Return a world whose pod, problems, changes and events consist of a text.

    JSON has no lone surrogates, so the stored text has them replaced.
    """
    world, stored = populated(1, 1), text.encode(errors="replace").decode()
    lower, name = world.lowers["lower-00"], stored[:LONGEST_NAME]
    waiting = {"name": name, "image": stored, "state": {"waiting": {"reason": stored, "message": stored}}}
    conditions = [{"type": name, "status": name, "reason": stored, "message": stored}]
    status = {"phase": name, "reason": stored, "message": stored, "podIP": stored}
    status |= {"conditions": conditions, "containerStatuses": [waiting]}
    upper_object = make_upper_pod(
        name, {"nodeName": lower.node}, status, namespace="shop", uid="above", annotations={name: name}
    )
    entry = put(lower.upper_pods, upper_object)
    lower_object = make_lower_pod(upper_object, status)
    lower_object["spec"] = {**lower_object["spec"], "hostname": name, "nodeName": name, "schedulerName": name}
    put(lower.pods, lower_object)
    lower.warning = text
    world.problems[Key("pod", "lower-00", "shop", name)] = Problem(text, text)
    world.problems[Key(text, text, text, text)] = Problem(text, text)
    status_page = StatusPageHarness(world)
    gone = Step("delete", Ref("lower-00", POD, text, text), text)
    status_page.held_steps[Key("orphans", "lower-00", "", "pods")] = (gone,)
    status_page.changes.add(Step("delete", Ref("lower-00", POD, "shop", name), text))
    status_page.changes.add(step(text, reason=text))
    ref = Ref("lower-00", POD, text, text)
    status_page.drift.add("lower-00", RecentDrift(NOW, ref, Drift((text, text), (text, text))))
    status_page.carried_events = (CarriedEvent(text, text, text, text, text, 1),)
    return status_page, FoundPod(entry, lower)


def overview(text: str) -> str:
    """Return the overview."""
    status_page, _ = stage_of(text)
    view = status_page.view(ResourceUsage())
    rows = (row(text, node=text, message=text), *(view.report.lowers or ()))
    report = StatusReport(text, accepted(), rows, text)
    return page(view._replace(report=report))


def lower(text: str) -> str:
    """Return the page of a lower cluster."""
    status_page, _ = stage_of(text)
    return lower_page(
        status_page.view(ResourceUsage()), status_page.world, "lower-00", PageOfPods("shop"), status_page.held_steps
    )


def one_pod(text: str) -> str:
    """Return the page of a pod."""
    status_page, found = stage_of(text)
    return pod_page(status_page.view(ResourceUsage()), status_page.world, found, status_page.carried_events)


def search(text: str) -> str:
    """Return two search pages: one with the text as the query, and one that finds a pod of that name."""
    status_page, _ = stage_of(text)
    put(status_page.world.lowers["lower-00"].upper_pods, make_upper_pod("x", namespace="shop"))
    return search_page(status_page.world, text[:LONGEST_NAME].encode(errors="replace").decode()) + search_page(
        status_page.world, "shop/"
    )


def topology(text: str) -> str:
    """Return the topology page, with the text as the topology and as every result of its check."""
    check = TopologyCheck("", (text,), (text,), (text,), (text,), ((text, text),))
    return topology_page(text[:LONGEST_NAME], check)


PAGES = (overview, lower, one_pod, search, topology)


@pytest.mark.parametrize("made", PAGES, ids=lambda made: made.__name__)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_from_clusters_adds_no_markup_to_a_page(text: str, made: Callable[[str], str]) -> None:
    """It adds no element, attribute or control character, links stay on this server, and long text is cut."""
    plain, whole = ParsedPage(made(PLAIN)), made(text)
    found = ParsedPage(whole)
    assert found.opened == plain.opened
    assert found.tags == plain.tags
    assert attributes_of(found) == attributes_of(plain)
    assert [one for one in found.links if not re.match(r"/(?!/)|#main$", one)] == []
    assert CONTROL.search(whole) is None
    assert len(whole) < MOST


def attributes_of(shown: ParsedPage) -> list[list[str]]:
    """Return the names of the attributes of each element, without the class of a cell with long text."""
    return [sorted(name for name in attributes if name != "class") for _, attributes in shown.elements]


def status(text: str) -> str:
    """Return what `tensile status` prints."""
    rows = (row(text, node=text, message=text, state=text),)
    return status_text(StatusReport(text, accepted(), rows, text).document(), colour=False)


def plan(text: str) -> str:
    """Return what `tensile plan` prints."""
    text = text.encode(errors="replace").decode()
    body = worldkit.make_upper_pod(text, {"containers": [{"name": text, "image": text}]})
    relabelled = json_patch(pod("other"), {"op": "replace", "path": "/metadata/labels/x", "value": text}, reason=text)
    steps = (create(pod(text), body, text), relabelled)
    found = previewed(*steps, problems={Key("pod", A, text, text): Problem(text, text)}, unreached={B: text})
    return plan_text(found, colour=False)


def inventory(text: str) -> str:
    """Return what `tensile list` prints."""
    return list_text(Inventory((Item(A, text, text, text, text, text),), (text,)))


PRINTED = (status, plan, inventory)


@pytest.mark.parametrize("made", PRINTED, ids=lambda made: made.__name__)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_from_clusters_adds_no_control_sequence_to_a_terminal(text: str, made: Callable[[str], str]) -> None:
    """It adds no control sequence, no change of the text direction and no line."""
    plain, found = made(PLAIN), made(text)
    assert found.count("\n") == plain.count("\n")
    assert CONTROL.search(found) is None
