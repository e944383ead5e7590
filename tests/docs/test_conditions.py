"""The reference of conditions, reasons, Events and metrics is complete: it has what the code can emit, and no more."""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import get_args

import pytest
from conditionspage import DOCUMENT, nodes, words

from tensile import objects
from tensile.engine.metrics import Metrics
from tensile.engine.status.report import LowerState

REASON_AT = {"Problem": 0, "PodNote": 0, "EmitEvent": 2, "Skip": 2, "condition": None, "Denied": None}
"""What a reason is passed to, and its place among the arguments where it is not only passed by name."""
DECIDING = (
    "tensile.engine.status",
    "tensile.kubelet.node",
    "tensile.kubelet.pods",
    "tensile.policy.descheduler",
    "tensile.reconcile",
)
"""Where statuses, problems and Events are made."""
REHEARSING = "tensile.reconcile.dryrun"
"""What stands in for an apiserver, whose reasons it uses."""
SHOWING = tuple(f"tensile.engine.status.{one}" for one in ("details", "html", "page", "site"))
"""What only shows the reasons that others give."""
OF_KUBERNETES = {
    "Always", "Bound", "Cluster", "ClusterIP", "DaemonSet", "Delete", "DeletionByPodGC",
    "DeletionByTaintManager", "DoesNotExist", "Equal", "Exists", "ExternalName", "Failed", "False", "Gt",
    "Hostname", "IPv", "In", "Infeasible", "IntOrString", "InternalError", "InternalIP", "Job", "Lost", "Lt",
    "Memory", "NoExecute", "NoSchedule", "None", "Normal", "NotIn", "ObjectMeta", "OnFailure", "Opaque",
    "Pending", "PodStatus", "Port", "PreferDualStack", "Quantity", "Released", "ReplicaSet",
    "ReplicationController", "Restart", "RestartAllContainers", "Retain", "SchedulerError", "SingleStack",
    "StatefulSet", "Status", "Succeeded", "Time", "TokenRequest", "True", "Unknown", "Unschedulable", "Warning",
}  # fmt: skip
"""Capitalized words of its API that the code reads, or copies into an object, and that are no reasons of ours."""
OF_OURSELVES = {"Accepted", "Rejected", "Amount", "Item", "Lines", "Problems", *get_args(LowerState)}
"""Others: words of the topology's status, of a heading, and names of types."""


def is_decided_in(module: str) -> bool:
    """Report whether a module makes statuses, problems or Events."""
    return module.startswith(DECIDING) and not module.startswith((REHEARSING, *SHOWING))


def literals(within: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """Yield the words with a capital first that stand in a module as literals, abbreviations left out."""
    for node in within:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch("[A-Z][A-Za-z]*[a-z][A-Za-z]*", node.value)
        ):
            yield node


def passed_reasons(within: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield what a module passes as reason to anything that makes a problem, an Event or a condition."""
    for node in within:
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in REASON_AT:
                place = REASON_AT[name]
                yield from (one.value for one in node.keywords if one.arg == "reason")
                if place is not None and len(node.args) > place:
                    yield node.args[place]


def is_literal(node: ast.expr) -> bool:
    """Report whether an expression holds text of its own, in which a reason would be unknown to the page."""
    return any(isinstance(one, ast.JoinedStr) or is_text(one) for one in ast.walk(node))


def is_text(node: ast.AST) -> bool:
    """Report whether a node is a string that is not empty."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def test_every_reason_is_a_constant_that_the_page_has() -> None:
    """A literal in the place of a reason would be in no table. An apiserver's stand-in is let off."""
    found = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, every in nodes().items()
        if not module.startswith((REHEARSING, "tensile.kube."))
        for node in passed_reasons(every)
        if is_literal(node)
    ]
    assert found == [], "make it a constant with one of the annotations of names.py, and `make generate`"


def test_no_other_word_could_be_a_reason() -> None:
    """Conditions are made out of tuples and dicts too, so each capitalized word has to be known for what it is."""
    kinds = {one.name for one in vars(objects).values() if isinstance(one, objects.Kind)}
    classes = {node.name for every in nodes().values() for node in every if isinstance(node, ast.ClassDef)}
    known = {one.value for one in words()} | kinds | classes | OF_KUBERNETES | OF_OURSELVES
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


def test_words_that_are_excused_are_used() -> None:
    """So that the list above does not excuse what nobody writes any more."""
    used = {node.value for module, every in nodes().items() if is_decided_in(module) for node in literals(every)}
    assert sorted((OF_KUBERNETES | OF_OURSELVES) - used) == []


def test_every_word_of_the_page_is_used() -> None:
    """A constant that nothing reads is one that the code cannot emit."""
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
    assert [one for one in words() if one.name not in used and imported.get(one.name) not in used] == []


def test_no_reason_is_defined_twice() -> None:
    """It would have two meanings. Nodes and pods both have a condition Ready, as in Kubernetes."""
    values = [(one.kind, one.value) for one in words() if one.value != "Ready"]
    assert sorted(values) == sorted(set(values))


def test_every_metric_that_is_exported_is_on_the_page() -> None:
    """And of those of the engine none that it does not export."""
    section = DOCUMENT.read_text().partition("## Metrics of the engine\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(one.removesuffix("_total") for one in told) == sorted(one.name for one in Metrics().collect())


def test_metrics_are_made_in_two_modules() -> None:
    """Those whose metrics the page takes: the engine's own, and a kubelet's."""
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
def test_what_counts_as_a_bare_reason(code: str, *, is_bare: bool) -> None:
    """Text anywhere in the argument; a message is none, nor is a reason that is left out."""
    assert [is_literal(node) for node in passed_reasons(ast.walk(ast.parse(code)))] == [is_bare]
