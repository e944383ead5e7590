"""Format a preview: as text for people, as Markdown for pull requests, as JSON for programs.

In the text, one line per object has the action, the object and the reason, followed by its fields. Many equal changes
in one cluster are shown once, so that a different one stands out in a long plan.

The JSON has a semantic `formatVersion`, so that pipelines can rely on it: a new field raises the second number, an
incompatible change the first.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from tensile.objects import UPPER
from tensile.reconcile.desired import PodMove
from tensile.reconcile.report.changes import Action, Change, Counts, Preview, count, subject
from tensile.reconcile.report.values import shown_values, summary
from tensile.reconcile.world import Key, Problem
from tensile.text import harmless, listed

FORMAT = "1.5"

_MARKS: dict[Action, str] = {"create": "+", "update": "~", "delete": "-", "replace": "-/+"}
_COLOURS = {"+": "32", "~": "33", "-": "31", "-/+": "35", "!": "1;31", "?": "36", "": "1"}
_ALONE = 10
"""The most equal changes that are shown one by one."""
_NAMED = 3
_FIELDS = 20
_INDENT = "    "


class _Line(NamedTuple):
    """A line with its mark, which may be coloured: "" for a heading, " " for details."""

    mark: str
    text: str


def as_text(found: Preview, *, colour: bool, more: Iterable[str] = ()) -> str:
    """Format a preview as lines, without a newline at the end. `colour` adds terminal colours.

    `more` are further sections, for people, which come before the last line.
    The last line is always `Plan: 3 to add, 1 to change, 0 to delete (...)`.
    """
    sections = [_cluster(name, changes, found.file) for name, changes in found.clusters.items() if changes]
    if not found.changes:
        sections = [[_Line(" ", _nothing(found))]]
    if found.problems:
        sections.append([_Line("", "Problems"), *_problems(found.problems)])
    if found.unreached:
        away = (_Line("!", f"{name}: {harmless(why)}") for name, why in found.unreached.items())
        sections.append([_Line("", "Not planned"), *away])
    sections += [[_Line(" ", section)] for section in more]
    sections.append([_Line(" ", summary_line(found))])
    return "\n\n".join("\n".join(marked_line(*line, colour=colour) for line in section) for section in sections)


def as_markdown(found: Preview, more: Iterable[str] = ()) -> str:
    """Format a preview as a diff block, which code forges colour, followed by the summary."""
    return fenced(as_text(found, colour=False, more=more))


def fenced(text: str) -> str:
    """Return a text as a diff block in Markdown, with its last section, the summary, below."""
    body, _, last = text.rpartition("\n\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    return f"{fence}diff\n{body}\n{fence}\n\n{last}"


def summary_line(found: Preview) -> str:
    """Return the last line: all counts, those of each cluster with changes, and which lowers are left out."""
    whole = count(found.changes)
    parts = [f"{title(name)}: {_counted(count(changes))}" for name, changes in found.clusters.items() if changes]
    counts = f"{whole.add} to add, {whole.change} to change, {whole.delete} to delete"
    away = f"; not planned: {', '.join(found.unreached)}" if found.unreached else ""
    filtered = f"; partial: only {found.only.description} shown" if found.only.description else ""
    return f"Plan: {counts} ({'; '.join(parts) or 'no changes'}{away}{filtered})"


def title(cluster: str) -> str:
    """Return the name of a cluster for people."""
    return "upper" if cluster == UPPER else cluster


def _counted(counts: Counts) -> str:
    pairs = zip(counts, ("add", "change", "delete"), strict=True)
    return ", ".join(f"{number} to {word}" for number, word in pairs if number)


def _nothing(found: Preview) -> str:
    if found.only.description:
        return f"No changes for {found.only.description}. The rest of the plan is not shown."
    if found.problems:
        return "No changes. Some objects are blocked: see the problems."
    if found.unreached:
        return "No changes. Every cluster that was reached matches the topology."
    return "No changes. Every cluster matches the topology."


def marked_line(mark: str, text: str, *, colour: bool) -> str:
    """Return a line with a mark, which may be coloured: "" for a heading, " " for details."""
    code = _COLOURS.get(mark) if colour else None
    if mark == "":
        return f"\x1b[{code}m{text}\x1b[0m" if code else text
    if mark == " ":
        return text
    return f"\x1b[{code}m{mark}\x1b[0m {text}" if code else f"{mark} {text}"


def _cluster(name: str, changes: Sequence[Change], file: str) -> list[_Line]:
    kind = "Upper cluster" if name == UPPER else f"Lower cluster {name}"
    lines = [_Line("", f"{kind}: {_counted(count(changes))}")]
    for group in _alike(changes):
        lines += _group(group, file)
    return lines


def _alike(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Yield changes one by one, but many equal ones together, at the position of the first."""
    likenesses = [_likeness(change) for change in changes]
    groups: dict[bytes, list[Change]] = {}
    for change, likeness in zip(changes, likenesses, strict=True):
        groups.setdefault(likeness, []).append(change)
    for change, likeness in zip(changes, likenesses, strict=True):
        group = groups[likeness]
        if len(group) <= _ALONE:
            yield [change]
        elif change is group[0]:
            yield group


def _likeness(change: Change) -> bytes:
    """Return what two changes need in common to be shown as one: everything but the name."""
    fields = [list(one) for one in change.differences]
    alike = [list(change.ref.kind), change.action, change.reason, change.line, fields, _details(change)]
    return orjson.dumps(alike, option=orjson.OPT_SORT_KEYS)


def _group(group: Sequence[Change], file: str) -> Iterator[_Line]:
    first = group[0]
    names = [change.ref.namespaced_name for change in group]
    many = len(group) > 1
    what = f"{len(group)} x {first.ref.kind.name}" if many else f"{first.ref.kind.name} {harmless(names[0])}"
    cause = f" ({harmless(file)}:{first.line})" if first.line else ""
    yield _Line(_MARKS[first.action], f"{what}: {harmless(first.reason)}{cause}")
    if many:
        yield _Line(" ", _INDENT + listed(names, _NAMED))
    yield from (_Line(" ", _INDENT + line) for line in _details(first))


def _details(change: Change) -> list[str]:
    """Return the lines below a change: its fields, or a summary of a new object."""
    if change.action == "create":
        return summary(change.ref.kind, change.manifest or {})
    lines = [line for one in change.differences[:_FIELDS] for line in shown_values(one)]
    more = len(change.differences) - _FIELDS
    return [*lines, f"and {more} more fields"] if more > 0 else lines


def _problems(problems: Iterable[tuple[Key, Problem]]) -> Iterator[_Line]:
    """Yield a line for each problem. One that many keys of a lower share is shown once."""
    groups: dict[tuple[str, str, Problem], list[Key]] = {}
    for key, problem in problems:
        groups.setdefault((key.rule, key.lower, problem), []).append(key)
    for (rule, lower, problem), keys in groups.items():
        why = f"on {lower}: {harmless(problem.reason)}: {harmless(problem.message)}"
        if len(keys) > _ALONE:
            names = listed((subject(key).removeprefix(f"{rule} ") for key in keys), _NAMED)
            yield _Line("!", f"{len(keys)} x {rule} {why}")
            yield _Line(" ", _INDENT + names)
        else:
            yield from (_Line("!", f"{harmless(subject(key))} {why}") for key in keys)


class Later(NamedTuple):
    """What a topology has, and a plan does not: fields that need a restart of the engine, and those that wait."""

    restartNeeded: tuple[str, ...] = ()  # noqa: N815 - as in the engine's status
    pending: tuple[str, ...] = ()

    def sections(self) -> list[str]:
        """Return it as sections of text."""
        titled = (("Needs a restart of the engine", self.restartNeeded), ("Takes effect later", self.pending))
        return [
            "\n".join([f"{title}:", *(f"  {harmless(item)}" for item in items)]) for title, items in titled if items
        ]


def as_json(found: Preview, **more: Any) -> bytes:
    """Format a preview as JSON (UTF-8, indented by two spaces, in the order of the text), without a final newline.

    `more` are further fields of the document.
    """
    document = {
        "formatVersion": FORMAT,
        "topology": found.topology,
        "changes": [_change(change) for change in found.changes],
        "problems": [_problem(key, problem) for key, problem in found.problems],
        "unreached": [{"lower": name, "message": why} for name, why in found.unreached.items()],
        "only": found.only.lowers,
        "onlyNamespaces": found.only.namespaces,
        "onlyKinds": found.only.kinds,
        "summary": {**count(found.changes)._asdict(), "clusters": _clusters(found)},
        **more,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _change(change: Change) -> dict[str, Any]:
    return {
        "cluster": title(change.ref.cluster),
        "action": change.action,
        "kind": change.ref.kind.name,
        "apiVersion": change.ref.kind.api,
        "namespace": change.ref.namespace,
        "name": change.ref.name,
        "reason": change.reason,
        "fields": [one.field for one in change.differences],
        "operations": change.operations,
        **({"move": _move(change.moving)} if change.moving else {}),
        **({"line": change.line} if change.line else {}),
    }


def _move(moving: PodMove) -> dict[str, Any]:
    """Return where a pod moves: between virtual nodes, and the real node that has capacity for it."""
    return {"from": moving.source, "to": moving.targets, "node": moving.node}


def _problem(key: Key, problem: Problem) -> dict[str, str]:
    return {
        "lower": key.lower,
        "rule": key.rule,
        "namespace": key.namespace,
        "name": key.name,
        "reason": problem.reason,
        "message": problem.message,
    }


def _clusters(found: Preview) -> dict[str, dict[str, int]]:
    return {title(name): count(changes)._asdict() for name, changes in found.clusters.items()}
