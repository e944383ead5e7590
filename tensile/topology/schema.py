"""The JSON schema of the topology file, for editors and external checks.

The descriptions are the texts under the fields of the models. They are read from the source when a schema is requested,
not by pydantic when the models are built, which would add 20 ms to every start.
"""

import ast
import inspect
from datetime import timedelta
from typing import Any

from tensile.topology import models
from tensile.topology.fields import write_duration

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _texts(definition: ast.ClassDef) -> dict[str, str]:
    """Return the text under each field of a class."""
    found: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)):
            continue
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def field_texts() -> dict[str, dict[str, str]]:
    """Return the text under each field, by the model's name and the field's key, including inherited fields."""
    tree = ast.parse(inspect.getsource(models))
    own = {node.name: _texts(node) for node in tree.body if isinstance(node, ast.ClassDef)}
    return {
        model.__name__: {
            str(field.alias): next(own[base.__name__][name] for base in model.__mro__ if name in own[base.__name__])
            for name, field in model.model_fields.items()
        }
        for model in vars(models).values()
        if isinstance(model, type) and issubclass(model, models.Section)
    }


def _complete(entry: dict[str, Any], default: Any, text: str) -> None:
    """Complete the schema of a field: description, default as in the file, and no additional keys."""
    entry["description"] = text
    entry.pop("title", None)
    if isinstance(default, timedelta):
        entry["default"] = write_duration(default)
    if not _is_writable(entry):
        entry.pop("default", None)
    if "patternProperties" in entry:
        entry["additionalProperties"] = False


def _is_writable(entry: dict[str, Any]) -> bool:
    """Report whether a default is meaningful. For a section it is not, as its fields have their own."""
    may_be_null = any(one.get("type") == "null" for one in entry.get("anyOf", ()))
    return "$ref" not in entry and (entry.get("default") is not None or may_be_null)


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the topology file: every field, its default and its description.

    Constraints across fields (names, ports, pairs) are not in it: `parse` checks them.
    """
    made = models.TopologyFile.model_json_schema(by_alias=True)
    texts = field_texts()
    for name, section in {"TopologyFile": made, **made["$defs"]}.items():
        for field in getattr(models, name).model_fields.values():
            key = str(field.alias)
            _complete(section["properties"][key], field.default, texts[name][key])
        section["description"] = " ".join(section["description"].split())
    return {"$schema": _DIALECT, **made, "title": "Topology"}
