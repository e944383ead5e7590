"""Which objects a label or field selector picks, as far as the engine asks for any.

Read as the API reads them: comma means and, a label that is missing is unequal to every value.
"""

from http import HTTPStatus
from typing import Any

from tensile.cluster import Selection
from tensile.errors import Denied
from tensile.objects import Manifest, labels, metadata

_FIELDS = ("metadata.name", "metadata.namespace", "spec.nodeName", "status.phase", "type", "involvedObject.uid")


def is_selected(manifest: Manifest, selection: Selection) -> bool:
    """Say whether an object is in the selection. Raises Denied for a selector that is not understood."""
    if selection.namespace and metadata(manifest).get("namespace") != selection.namespace:
        return False
    fields = {path: _at(manifest, path) for path in _FIELDS}
    by_label = all(_holds(term, labels(manifest)) for term in _terms(selection.labels))
    return by_label and all(_equals(term, fields) for term in _terms(selection.fields))


def _terms(selector: str) -> list[str]:
    """Split a selector at its commas."""
    if any(sign in selector for sign in "()<>"):
        raise _denied(selector)
    return [term.strip() for term in selector.split(",") if term.strip()]


def _holds(term: str, carried: dict[str, str]) -> bool:
    """Say whether one term of a label selector holds."""
    if "=" in term:
        key, wanted, equal = _comparison(term)
        return (carried.get(key) == wanted) == equal
    return term[1:].strip() not in carried if term.startswith("!") else term in carried


def _equals(term: str, fields: dict[str, str]) -> bool:
    """Say whether one term of a field selector holds."""
    key, wanted, equal = _comparison(term)
    if key not in fields:
        raise _denied(term)
    return (fields[key] == wanted) == equal


def _comparison(term: str) -> tuple[str, str, bool]:
    """Split "KEY=VALUE", "KEY==VALUE" or "KEY!=VALUE" into key, value, and whether they are to be equal."""
    key, _, value = term.partition("=")
    return key.rstrip("!").strip(), value.removeprefix("=").strip(), not key.endswith("!")


def _at(manifest: Manifest, path: str) -> str:
    """Give a field by its dotted path, "" where there is none."""
    found: Any = manifest
    for part in path.split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return str(found)


def _denied(selector: str) -> Denied:
    """Say that a selector is not understood."""
    return Denied(f"the selector {selector!r} is not supported", status=HTTPStatus.BAD_REQUEST, reason="BadRequest")
