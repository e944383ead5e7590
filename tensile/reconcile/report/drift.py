"""The output of `plan --drift`: what other clients changed in our objects, as text, as Markdown and as JSON.

A field has its value as the engine writes it (`old`) and as it is now (`new`): it shows what was changed, so a plan,
which shows how it is put back, has the two the other way round. Values of Secrets are removed when an object is added,
so that no output can show one.

The JSON has a semantic `formatVersion` as that of a plan.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from tensile.objects import UPPER, Ref
from tensile.reconcile.diff import Difference
from tensile.reconcile.drift import FieldDrift, pointer
from tensile.reconcile.redaction import redacted
from tensile.reconcile.report.changes import WHOLE_PLAN, PlanScope
from tensile.reconcile.report.render import fenced, marked_line, title
from tensile.reconcile.report.values import shown_values
from tensile.text import harmless

FORMAT = "1.0"
DriftSort = Literal["changed", "deleted", "unmarked", "stray"]
"""What became of an object: fields of it were changed, it was deleted, its marks were removed, so that it is ours no
longer, or it has our marks without an upper object."""
PUT_BACK = "the engine puts it back"
STAYS = "Kubernetes does not allow it to be put back"
REPLACED = "the engine deletes it and creates it again"
CREATED = "the engine creates it again"
LOST = "the engine marks the upper pod Failed, so that its controller replaces it"
LEFT = "the engine leaves it alone"
_MARKS: Mapping[DriftSort, str] = {"changed": "~", "deleted": "-", "unmarked": "!", "stray": "?"}
_NAMES: Mapping[DriftSort, str] = {
    "changed": "changed",
    "deleted": "deleted",
    "unmarked": "without marks",
    "stray": "without an upper object",
}
_FIELDS = 20
_INDENT = "    "
_LEGEND = "Values: as the engine writes them -> as they are now."


class DriftedField(NamedTuple):
    """A field: its path (RFC 6901), its value as the engine writes it and as it is now, None for none.

    `manager` and `time` (RFC 3339) are those of managedFields, "" if unknown. `lasts`: it cannot be put back.
    """

    path: str
    old: Any
    new: Any
    manager: str = ""
    time: str = ""
    lasts: bool = False


@dataclass(frozen=True, slots=True)
class DriftedObject:
    """One object that drifted, and what the engine does about it. `evidence` is how a deletion is known, "" else."""

    ref: Ref
    sort: DriftSort
    outcome: str
    fields: tuple[DriftedField, ...] = ()
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class DriftReport:
    """All drift of a topology. `unreached` holds by name why a lower cluster was not examined."""

    topology: str
    objects: tuple[DriftedObject, ...]
    unreached: Mapping[str, str] = field(default_factory=dict)
    only: PlanScope = WHOLE_PLAN


def changed_object(
    ref: Ref, found: Iterable[FieldDrift], lasting: Iterable[FieldDrift] = (), *, replaced: bool = False
) -> DriftedObject | None:
    """Return an object whose fields another client changed, None without such fields.

    `lasting` are those that cannot be put back; `replaced`: the object is deleted and created again for the others.
    """
    reverted = [_field(ref, one, lasts=False) for one in found]
    stays = [_field(ref, one, lasts=True) for one in lasting]
    if not (reverted or stays):
        return None
    outcome = REPLACED if replaced else PUT_BACK
    if stays:
        outcome = f"{outcome}, but not all of it: Kubernetes does not allow that" if reverted else STAYS
    return DriftedObject(ref, "changed", outcome, (*reverted, *stays))


def _field(ref: Ref, one: FieldDrift, *, lasts: bool) -> DriftedField:
    path, now, then = one.field
    names = tuple(map(str, path))
    old, new = (redacted(ref.kind, value, names) for value in (then, now))
    return DriftedField(pointer(path), old, new, one.manager, one.time, lasts)


def drift_text(found: DriftReport, *, colour: bool) -> str:
    """Format a report as lines, without a newline at the end. `colour` adds terminal colours.

    The last line is always `Drift: 1 changed, 0 deleted, ... (...)`.
    """
    clusters = dict.fromkeys(one.ref.cluster for one in found.objects)
    sections = [_cluster(name, [one for one in found.objects if one.ref.cluster == name]) for name in clusters]
    if not found.objects:
        where = f" of {found.only.description}" if found.only.description else ""
        sections.append([(" ", f"No drift. No other client is known to have changed objects{where}.")])
    if any(one.fields for one in found.objects):
        sections.append([(" ", _LEGEND)])
    if found.unreached:
        away = [("!", f"{name}: {harmless(why)}") for name, why in found.unreached.items()]
        sections.append([("", "Not examined"), *away])
    sections.append([(" ", _summary(found))])
    lines = ((marked_line(*line, colour=colour) for line in section) for section in sections)
    return "\n\n".join("\n".join(section) for section in lines)


def drift_markdown(found: DriftReport) -> str:
    """Format a report as a diff block, which code forges colour, followed by the summary."""
    return fenced(drift_text(found, colour=False))


def _cluster(name: str, objects: Sequence[DriftedObject]) -> list[tuple[str, str]]:
    kind = "Upper cluster" if name == UPPER else f"Lower cluster {name}"
    lines = [("", f"{kind}: {_counted(objects, all_sorts=False)}")]
    for one in objects:
        lines += _lines(one)
    return lines


def _lines(one: DriftedObject) -> Iterator[tuple[str, str]]:
    what = f"{one.ref.kind.name} {harmless(one.ref.namespaced_name)}"
    yield _MARKS[one.sort], f"{what}: {_story(one)}; {one.outcome}"
    for found in one.fields[:_FIELDS]:
        last = " (lasts)" if found.lasts and one.outcome != STAYS else ""
        for line in shown_values(Difference((found.path,), found.old, found.new)):
            yield " ", f"{_INDENT}{line}{last}"
    more = len(one.fields) - _FIELDS
    if more > 0:
        yield " ", f"{_INDENT}and {more} more fields"


def _story(one: DriftedObject) -> str:
    """Return what was done to an object, and by whom."""
    match one.sort:
        case "changed":
            return f"changed by {_writers(one)}"
        case "unmarked":
            return "another client removed its marks"
        case "deleted":
            return f"deleted by another client ({harmless(one.evidence)})"
        case "stray":
            return "it has the marks of this topology, but no upper namespace maps to its namespace"


def _writers(one: DriftedObject) -> str:
    """Return the clients that changed an object, each with the time of its last change."""
    last: dict[str, str] = {}
    for found in one.fields:
        if found.manager:
            last[found.manager] = max(last.get(found.manager, ""), found.time)
    named = [f"{harmless(name)} at {harmless(time)}" if time else harmless(name) for name, time in last.items()]
    unknown = ["an unknown client"] if any(not found.manager for found in one.fields) else []
    return " and ".join([*named, *unknown])


def _summary(found: DriftReport) -> str:
    """Return the last line: all counts, those of each cluster with drift, and which lowers are left out."""
    clusters = dict.fromkeys(one.ref.cluster for one in found.objects)
    parts = [
        f"{title(name)}: {_counted([one for one in found.objects if one.ref.cluster == name], all_sorts=False)}"
        for name in clusters
    ]
    away = f"; not examined: {', '.join(found.unreached)}" if found.unreached else ""
    filtered = f"; partial: only {found.only.description} shown" if found.only.description else ""
    return f"Drift: {_counted(found.objects, all_sorts=True)} ({'; '.join(parts) or 'none'}{away}{filtered})"


def _counted(objects: Sequence[DriftedObject], *, all_sorts: bool) -> str:
    counts = Counter(one.sort for one in objects)
    return ", ".join(f"{counts[sort]} {name}" for sort, name in _NAMES.items() if all_sorts or counts[sort])


def drift_json(found: DriftReport) -> str:
    """Format a report as JSON, indented by two spaces, in the order of the text, without a final newline."""
    counts = Counter(one.sort for one in found.objects)
    document = {
        "formatVersion": FORMAT,
        "topology": found.topology,
        "drift": [_document(one) for one in found.objects],
        "unreached": [{"lower": name, "message": why} for name, why in found.unreached.items()],
        "only": found.only.lowers,
        "onlyNamespaces": found.only.namespaces,
        "onlyKinds": found.only.kinds,
        "summary": {sort: counts[sort] for sort in _NAMES},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _document(one: DriftedObject) -> dict[str, Any]:
    return {
        "cluster": title(one.ref.cluster),
        "kind": one.ref.kind.name,
        "apiVersion": one.ref.kind.api,
        "namespace": one.ref.namespace,
        "name": one.ref.name,
        "change": one.sort,
        "outcome": one.outcome,
        **({"evidence": one.evidence} if one.evidence else {}),
        "fields": [_field_document(found) for found in one.fields],
    }


def _field_document(found: DriftedField) -> dict[str, Any]:
    return {
        "path": found.path,
        "from": found.old,
        "to": found.new,
        "manager": found.manager or None,
        "time": found.time or None,
        "putBack": not found.lasts,
    }
