"""Tests that the reference of conditions, reasons, Events and metrics has exactly what the code can emit."""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import get_args

import pytest
from conditionspage import DOCUMENT, documented_constants, nodes

from tensile import objects
from tensile.engine.metrics import Metrics
from tensile.engine.status.report import LowerState

REASON_AT = {"Problem": 0, "PodNote": 0, "EmitEvent": 2, "Skip": 2, "condition": None, "Denied": None}
"""The callables that have a reason as an argument, and its position (None: only by keyword)."""
DECIDING = (
    "tensile.engine.status",
    "tensile.kubelet.node",
    "tensile.kubelet.pods",
    "tensile.policy.descheduler",
    "tensile.reconcile",
)
"""The packages that create statuses, problems and Events."""
REHEARSING = "tensile.reconcile.dryrun"
"""The dry-run replacement of an apiserver, which uses reasons of Kubernetes."""
SHOWING = tuple(f"tensile.engine.status.{one}" for one in ("details", "html", "page", "site"))
"""The modules that only display reasons of other modules."""
OF_KUBERNETES = {
    "Always", "Bound", "Cluster", "ClusterIP", "DaemonSet", "Delete", "DeletionByPodGC",
    "DeletionByTaintManager", "DoesNotExist", "Equal", "Exists", "ExternalName", "Failed", "False", "Gt",
    "Hostname", "IPv", "In", "Infeasible", "IntOrString", "InternalError", "InternalIP", "Job", "Lost", "Lt",
    "Memory", "NoExecute", "NoSchedule", "None", "Normal", "NotIn", "ObjectMeta", "OnFailure", "Opaque",
    "Pending", "PodStatus", "Port", "PreferDualStack", "Quantity", "Released", "ReplicaSet",
    "ReplicationController", "Restart", "RestartAllContainers", "Retain", "SchedulerError", "SingleStack",
    "StatefulSet", "Status", "Succeeded", "Time", "TokenRequest", "True", "Unknown", "Unschedulable", "Warning",
}  # fmt: skip
"""Capitalized words of the Kubernetes API that the code reads or copies into objects, and that are no reasons."""
OF_OURSELVES = {"Accepted", "Rejected", "Amount", "Item", "Lines", "Problems", *get_args(LowerState)}
"""Others: words of the topology's status, of a heading, and names of types."""


def is_decided_in(module: str) -> bool:
    """Report whether a module creates statuses, problems or Events."""
    return module.startswith(DECIDING) and not module.startswith((REHEARSING, *SHOWING))


def literals(within: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """Yield the capitalized words that are literals in a module, without abbreviations."""
    for node in within:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch("[A-Z][A-Za-z]*[a-z][A-Za-z]*", node.value)
        ):
            yield node


def passed_reasons(within: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield what a module passes as a reason to a call that creates a problem, an Event or a condition."""
    for node in within:
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in REASON_AT:
                place = REASON_AT[name]
                yield from (one.value for one in node.keywords if one.arg == "reason")
                if place is not None and len(node.args) > place:
                    yield node.args[place]


def is_literal(node: ast.expr) -> bool:
    """Report whether an expression contains literal text, because such a reason would be missing on the page."""
    return any(isinstance(one, ast.JoinedStr) or is_text(one) for one in ast.walk(node))


def is_text(node: ast.AST) -> bool:
    """Report whether a node is a string that is not empty."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def test_every_reason_in_the_code_is_a_constant() -> None:
    """A literal reason would be missing in the tables of the page; the dry-run apiserver is exempt."""
    found = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, every in nodes().items()
        if not module.startswith((REHEARSING, "tensile.kube."))
        for node in passed_reasons(every)
        if is_literal(node)
    ]
    assert found == [], "make it a constant with one of the annotations of names.py, and `make generate`"


def test_every_capitalized_literal_is_a_known_word() -> None:
    """Conditions are also built from tuples and dicts, so each such word must be a constant or be listed above."""
    kinds = {one.name for one in vars(objects).values() if isinstance(one, objects.Kind)}
    classes = {node.name for every in nodes().values() for node in every if isinstance(node, ast.ClassDef)}
    known = {one.value for one in documented_constants()} | kinds | classes | OF_KUBERNETES | OF_OURSELVES
    found = [
        f"{module}:{node.lineno}: {node.value}"
        for module, every in nodes().items()
        if is_decided_in(module)
        for node in literals(every)
        if node.value not in known
    ]
    assert found == [], (
        "a reason is a constant with one of the annotations of names.py; a word of Kubernetes goes above"
    )


def test_every_listed_word_of_kubernetes_is_used_in_the_code() -> None:
    """The lists must not exempt words that no code uses."""
    used = {node.value for module, every in nodes().items() if is_decided_in(module) for node in literals(every)}
    assert sorted((OF_KUBERNETES | OF_OURSELVES) - used) == []


def test_every_constant_on_the_page_is_used_in_the_code() -> None:
    """The code cannot emit a constant that it does not use."""
    used = {
        name
        for every in nodes().values()
        for node in every
        for name in ([node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else [])
        + ([node.attr] if isinstance(node, ast.Attribute) else [])
    }
    imported = {
        alias.name: alias.asname
        for every in nodes().values()
        for node in every
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert [one for one in documented_constants() if one.name not in used and imported.get(one.name) not in used] == []


def test_no_reason_is_defined_twice() -> None:
    """It would have two meanings; only Ready is a condition of both nodes and pods, as in Kubernetes."""
    values = [(one.kind, one.value) for one in documented_constants() if one.value != "Ready"]
    assert sorted(values) == sorted(set(values))


def test_the_page_has_exactly_the_metrics_that_the_engine_exports() -> None:
    """The list is complete and has no metric that does not exist."""
    section = DOCUMENT.read_text().partition("## Metrics of the engine\n")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(one.removesuffix("_total") for one in documented) == sorted(one.name for one in Metrics().collect())


def test_only_two_modules_create_metrics() -> None:
    """The page is made from these: the metrics of the engine and those of the kubelet."""
    makers = {
        module
        for module, every in nodes().items()
        for node in every
        if isinstance(node, ast.ImportFrom) and node.module == "prometheus_client.core"
    }
    assert makers == {"tensile.engine.metrics", "tensile.kubelet.stats.collector"}


@pytest.mark.parametrize(
    ("code", "is_bare"),
    [
        ("Problem('Odd', message)", True),
        ("Problem(f'{kind}NotFound', message)", True),
        ("Problem(error.reason or 'Odd', message)", True),
        ("EmitEvent(ref, uid, 'Odd', message)", True),
        ("condition(pod, READY, 'False', reason='Odd')", True),
        ("condition(pod, READY, 'False', reason='')", False),
        ("Problem(ODD, 'message')", False),
    ],
)
def test_text_in_a_reason_argument_is_recognized(code: str, *, is_bare: bool) -> None:
    """A message, or an empty reason, is no such text."""
    assert [is_literal(node) for node in passed_reasons(ast.walk(ast.parse(code)))] == [is_bare]
