"""The reference of conditions, reasons, Events and metrics, made from the constants in the code and their docstrings.

Write it with `PYTHONPATH=tests/kit .venv/bin/python -m conditionspage`.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from usagekit import node_sample, pod_sample, running

from tensile.engine import metrics
from tensile.kubelet.stats.collector import cadvisor_exposition, exposition, node_metrics
from tensile.kubelet.stats.usage import CPUCounters, usage_report

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "reference" / "conditions.md"
BEGIN, END = "<!-- reasons -->", "<!-- end of reasons -->"
REMEDY = "Remedy:"
"""The mark in a docstring between the meaning and the remedy."""
SECTIONS: Mapping[str, tuple[str, str]] = {
    "ConditionType": ("Condition types", "type"),
    "ProblemReason": ("Reasons of problems", "reason"),
    "ConditionReason": ("Other reasons of conditions and statuses", "reason"),
    "EventReason": ("Other reasons of Events", "reason"),
}
"""The heading for each annotation of a constant, and what the constant is."""


class DocumentedConstant(NamedTuple):
    """A constant of the code: module, name, annotation, value, and the meaning and remedy in its docstring."""

    module: str
    name: str
    kind: str
    value: str
    meaning: str
    remedy: str


@cache
def trees() -> Mapping[str, ast.Module]:
    """Return the syntax tree of each module of the engine, by the module's name."""
    paths = sorted((ROOT / "tensile").rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text()) for path in paths}


@cache
def nodes() -> Mapping[str, tuple[ast.AST, ...]]:
    """Return all nodes of each of these trees, cached because several tests search the half a million of them."""
    return {module: tuple(ast.walk(tree)) for module, tree in trees().items()}


@cache
def documented_constants() -> tuple[DocumentedConstant, ...]:
    """Return every constant whose annotation makes it a row of the page."""
    return tuple(word for module, tree in trees().items() for word in _documented_constants(module, tree))


def _documented_constants(module: str, tree: ast.Module) -> Iterator[DocumentedConstant]:
    for node, text in _with_docstrings(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id=kind)) if kind in SECTIONS:
                value = getattr(import_module(module), name)
                yield DocumentedConstant(module, name, kind, value, *_parts(f"{module}.{name}", text))


def _with_docstrings(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each statement of a module with the string literal that follows it, "" for none."""
    for node, after in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        match after:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node, text
            case _:
                yield node, ""


def _parts(place: str, text: str) -> tuple[str, str]:
    """Return the meaning and the remedy in a docstring."""
    meaning, mark, remedy = " ".join(text.split()).partition(f"{REMEDY} ")
    if not mark or not remedy.endswith("."):
        raise ValueError(f'{place} needs a docstring "MEANING {REMEDY} WHAT TO DO."')
    return meaning.strip(), remedy


def reference() -> str:
    """Return the text of all tables."""
    lines: list[str] = []
    for kind, (heading, column) in SECTIONS.items():
        rows = [f"| `{one.value}` | {one.meaning} | {cased(one.remedy)} |" for one in _of(kind)]
        lines += [f"## {heading}", "", f"| {column} | meaning | what to do |", "|---|---|---|", *rows, ""]
    lines += ["## Metrics of the engine", "", "On the telemetry port (`telemetry.port`, 9095) at `/metrics`:", ""]
    lines += ["| metric | type | labels | meaning | what to do |", "|---|---|---|---|---|", *_own_metrics(), ""]
    lines += ["## Metrics of a virtual node", "", "On its kubelet port, named as a kubelet does. Nothing to do:", ""]
    lines += ["| page | metric | type | labels | meaning |", "|---|---|---|---|---|", *_node_metrics(), ""]
    return "\n".join(lines)


def rewritten(text: str) -> str:
    """Return a text with the tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


def _of(kind: str) -> list[DocumentedConstant]:
    return sorted((one for one in documented_constants() if one.kind == kind), key=lambda one: (one.value, one.meaning))


def _own_metrics() -> Iterator[str]:
    types = {one.name: one.type for one in metrics.Metrics().collect()}
    remedies = {
        node.targets[0].id: text
        for node, text in _with_docstrings(trees()[metrics.__name__])
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for name, family in vars(metrics).items():
        if isinstance(family, metrics.MetricFamily):
            _, remedy = _parts(f"{metrics.__name__}.{name}", remedies[name])
            kind = types[family.name.removesuffix("_total")]
            yield f"| `{family.name}` | {kind} | {_quoted(family.labels)} | {family.meaning} | {cased(remedy)} |"


def _node_metrics() -> Iterator[str]:
    samples = {("mapped", "web-below"): pod_sample(main=1)}
    measured = usage_report("node", node_sample(), [running()], samples, CPUCounters())
    pages = {
        "/metrics": node_metrics("node", [running()]),
        "/metrics/resource": exposition(measured),
        "/metrics/cadvisor": cadvisor_exposition(measured),
    }
    for page, text in pages.items():
        for family in text_string_to_metric_families(text.decode()):
            yield _node_metric(page, family)


def _node_metric(page: str, family: Metric) -> str:
    sample = family.samples[0]
    meaning = f"{family.documentation.rstrip('.')}."
    return f"| `{page}` | `{sample.name}` | {family.type} | {_quoted(sample.labels)} | {meaning} |"


def _quoted(labels: Iterable[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


def cased(remedy: str) -> str:
    """Return a remedy as a separate sentence, with a capital letter."""
    return remedy[0].upper() + remedy[1:]


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
