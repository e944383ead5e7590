"""The reference of the topology file, written from the models, so a new field needs no text elsewhere.

Write it with `PYTHONPATH=tests/kit .venv/bin/python -m topologypage`.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from tensile.topology import fields, models
from tensile.topology.fields import write_duration
from tensile.topology.models import field_texts

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "topology.md"
BEGIN, END = "<!-- fields -->", "<!-- end of fields -->"
WORDS: tuple[tuple[Any, str], ...] = (
    (fields.LabelName, "name (DNS label)"),
    (fields.AliasName, "name (DNS label that starts with a letter)"),
    (fields.ObjectName, "name (DNS subdomain)"),
    (fields.NodeName, "name (DNS subdomain)"),
    (fields.DataKey, "key of a Secret"),
    (fields.OwnLabelKey, "label key"),
    (fields.LabelValue, "label value"),
    (fields.FilePath, "path"),
    (fields.Word, "text"),
    (fields.Address, "IP address"),
    (fields.ReachableAddress, "IP address"),
    (fields.Url, "URL, https"),
    (fields.ServerUrl, "`https://HOST:PORT`"),
    (fields.Duration, "duration"),
    (fields.Schedule, "cron schedule"),
    (fields.TimeZone, "time zone"),
    (fields.Port, "port, 1-65535"),
    (fields.Count, "whole number"),
    (fields.Percent, "percent, 0-100"),
    (fields.Controllers, "set of `PV`, `Service`, `RBAC`, `ServiceAccount`"),
    (fields.LabelKeys, "set of label keys"),
    (fields.NamespaceNames, "set of namespaces"),
    (fields.NodeLabels, "label keys to values"),
    (fields.NodeAnnotations, "annotation keys to values"),
    (fields.Resources, "resources to quantities"),
    (fields.StorageClasses, "names to names"),
    (bool, "`true` or `false`"),
    (None, "`null`"),
)
"""The names of field types; a type that is absent here ends the program."""
FIRST = ("name", "kubeconfig")
"""Fields of a lower that come before those which lowerDefaults may have too."""


def reference() -> str:
    """Return all sections, each after the one that contains it."""
    return "\n".join(_section(models.TopologyFile, ""))


def rewritten(text: str) -> str:
    """Return a text with the sections between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


def paths() -> set[str]:
    """Return every path of the file, such as `lowers.node.name`."""
    return set(_paths(models.TopologyFile, ""))


def _paths(model: type[models.Section], path: str) -> Iterator[str]:
    for name, _, inner, _ in _fields(model):
        yield f"{path}{name}"
        if inner is not None:
            yield from _paths(inner, f"{path}{name}.")


def _section(model: type[models.Section], path: str) -> Iterator[str]:
    """Yield the lines of a section: its heading, a line for each field, and its nested sections."""
    texts = field_texts()[model.__name__]
    yield f"{'###' if '.' in path else '##'} {path or 'The file'}\n\n{_words_of(model)}\n"
    yield "| field | type | default | meaning |\n|---|---|---|---|"
    rows = list(_fields(model))
    for name, hint, inner, field in rows:
        kind = _type(hint) if inner is None else f"[{_many(hint)}](#{_slug(_place(path, name))})"
        yield f"| `{name}` | {kind} | {_default(field)} | {_escaped(texts[name])} |"
    yield ""
    for name, _, inner, _ in rows:
        if inner is not None and not (model is models.TopologyFile and inner is models.LowerDefaults):
            yield from _section(inner, _place(path, name))


def _words_of(model: type[models.Section]) -> str:
    if model is models.LowerEntry:
        return f"{_own(model)} All but `name` and `kubeconfig` may stand in `lowerDefaults` for all lowers."
    return _own(model)


def _own(model: type[models.Section]) -> str:
    return " ".join((model.__doc__ or "").split())


def _place(path: str, name: str) -> str:
    """Return the name of a section in the table of contents; lowerDefaults has the fields of a lower."""
    return "lowers" if name == "lowerDefaults" else f"{path}.{name}" if path else name


def _fields(model: type[models.Section]) -> Iterator[tuple[str, Any, type[models.Section] | None, FieldInfo]]:
    """Yield each field: its key, its type, the section that it holds if it does, and pydantic's information."""
    hints = get_type_hints(model, include_extras=True)
    named = sorted(model.model_fields, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    order = named if model is models.LowerEntry else list(model.model_fields)
    for name in order:
        field = model.model_fields[name]
        yield str(field.alias), hints[name], _inner(hints[name]), field


def _inner(hint: Any) -> type[models.Section] | None:
    """Return the section that a type holds."""
    if isinstance(hint, type) and issubclass(hint, models.Section):
        return hint
    return next((found for part in get_args(hint) if (found := _inner(part)) is not None), None)


def _many(hint: Any) -> str:
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return "list" if get_origin(bare) is tuple else "section"


def _type(hint: Any) -> str:
    """Return in words what a field accepts; null is only in the column of the default."""
    known = next((words for one, words in WORDS if one == hint), None)
    if known is not None:
        return known
    parts = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_type(part) for part in parts if part is not type(None))
    if get_origin(hint) is Literal:
        return ("one of " if len(parts) > 1 else "") + ", ".join(f"`{part}`" for part in parts)
    if get_origin(hint) is Annotated:
        return _type(parts[0])
    raise TypeError(f"{hint} has no words: add it to WORDS")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.default
    if isinstance(value, models.Section) or value is None:
        return "" if value is not None or field.json_schema_extra is not None else "`null`"
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    """Return a value as a file has it, on one line."""
    if isinstance(value, timedelta):
        return write_duration(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, models.Section):
        given = value.model_dump(by_alias=True)
        return f"{{{', '.join(f'{key}: {_written(one)}' for key, one in given.items())}}}"
    return value if isinstance(value, str) and value else json.dumps(value)


def _slug(heading: str) -> str:
    return heading.lower().replace(".", "")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
