"""The result of a PATCH on an object, for the three media types that the engine sends, and of selectors.

A dry run must end in the state of the real cluster, so this module follows Kubernetes also where it is unexpected. A
JSON patch may replace a missing key, and a merged list has the order of the patch. Lists are merged by the key in the
API's types. Container statuses, taints and tolerations are replaced as a whole.

Selectors are read as in the API: a comma means and, and a missing label differs from every value.
"""

from http import HTTPStatus
from typing import Any

import jsonpatch

from tensile.errors import Denied
from tensile.kube.cluster import Patch, Selection
from tensile.objects import Manifest, labels, metadata

_DIRECTIVE = "$patch"
_MERGED_BY = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "ephemeralContainers": "name",
    "hostIPs": "ip",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
}

_FIELDS = ("metadata.name", "metadata.namespace", "spec.nodeName", "status.phase", "type", "involvedObject.uid")


def patched(manifest: Manifest, patch: Patch) -> Manifest:
    """Return the patched object. `manifest` is not changed.

    Raises Denied if Kubernetes refuses the body (400, 422), and for server-side apply, which is not supported.
    """
    match patch.media:
        case "json-patch":
            return _json_patch(manifest, patch.body)
        case "merge-patch":
            found: Manifest = _merge_patch(manifest, patch.body)
            return found
        case "strategic-merge-patch":
            return _strategic_merge(manifest, patch.body)
    raise Denied(
        f"{patch.media} is not supported in a dry run: send another kind of patch",
        status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        reason="UnsupportedMediaType",
    )


def _json_patch(manifest: Manifest, operations: Any) -> Manifest:
    """Apply RFC 6902 operations one by one, as leniently as Kubernetes."""
    if not isinstance(operations, list):
        raise Denied("a JSON patch must be a list of operations", status=HTTPStatus.BAD_REQUEST, reason="BadRequest")
    found = manifest
    try:
        for operation in operations:
            found = jsonpatch.apply_patch(found, [_lenient(found, operation)])
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise Denied(str(error), status=HTTPStatus.UNPROCESSABLE_ENTITY, reason="Invalid") from None
    return found


def _lenient(manifest: Manifest, operation: Manifest) -> Manifest:
    """Convert the replacement of a missing key to an addition."""
    parent, key = jsonpatch.JsonPointer(operation["path"]).to_last(manifest)
    if operation["op"] == "replace" and isinstance(parent, dict) and key is not None and key not in parent:
        return {**operation, "op": "add"}
    return operation


def _merge_patch(seen: Any, patch: Any) -> Any:
    """Merge by RFC 7386: maps are merged, null removes, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    found = dict(seen) if isinstance(seen, dict) else {}
    for field, value in patch.items():
        if value is None:
            found.pop(field, None)
        else:
            found[field] = _merge_patch(found.get(field), value)
    return found


def _strategic_merge(seen: Manifest, patch: Manifest) -> Manifest:
    """Merge maps by Kubernetes' strategic merge."""
    found = {} if patch.get(_DIRECTIVE) == "replace" else dict(seen)
    for field, value in patch.items():
        if field == _DIRECTIVE:
            continue
        if value is None:
            found.pop(field, None)
        else:
            found[field] = _value(field, found.get(field), value)
    return found


def _value(field: str, seen: Any, value: Any) -> Any:
    """Return the merged value of one field."""
    if isinstance(value, dict):
        return _strategic_merge(seen if isinstance(seen, dict) else {}, value)
    if isinstance(value, list) and field in _MERGED_BY:
        return _list(seen or [], value, _MERGED_BY[field])
    return value


def _list(seen: list[Manifest], patch: list[Manifest], key: str) -> list[Manifest]:
    """Merge two lists whose elements are identified by `key`."""
    fresh = [one for one in patch if _DIRECTIVE not in one]
    if any(one.get(_DIRECTIVE) == "replace" for one in patch):
        return fresh
    deleted = {one[key] for one in patch if one.get(_DIRECTIVE) == "delete"}
    known = {one[key]: one for one in seen if one[key] not in deleted}
    changed = {one[key]: _strategic_merge(known.get(one[key], {}), one) for one in fresh}
    whole = known | changed
    return [whole[name] for name in _ordered(list(known), list(changed))]


def _ordered(known: list[str], changed: list[str]) -> list[str]:
    """Return the names of `changed` in their order, with the other known ones before those that they preceded."""
    positions = {name: number for number, name in enumerate(known)}
    others = [name for name in known if name not in changed]
    found: list[str] = []
    for name in changed:
        while others and name in positions and positions[others[0]] < positions[name]:
            found.append(others.pop(0))
        found.append(name)
    return found + others


def is_selected(manifest: Manifest, selection: Selection) -> bool:
    """Report whether a selection contains an object. Raises Denied for an unsupported selector."""
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


def _holds(term: str, present: dict[str, str]) -> bool:
    """Report whether one term of a label selector matches."""
    if "=" in term:
        key, wanted, equal = _comparison(term)
        return (present.get(key) == wanted) == equal
    return term[1:].strip() not in present if term.startswith("!") else term in present


def _equals(term: str, fields: dict[str, str]) -> bool:
    """Report whether one term of a field selector matches."""
    key, wanted, equal = _comparison(term)
    if key not in fields:
        raise _denied(term)
    return (fields[key] == wanted) == equal


def _comparison(term: str) -> tuple[str, str, bool]:
    """Split "KEY=VALUE", "KEY==VALUE" or "KEY!=VALUE" into key, value, and whether they must be equal."""
    key, _, value = term.partition("=")
    return key.rstrip("!").strip(), value.removeprefix("=").strip(), not key.endswith("!")


def _at(manifest: Manifest, path: str) -> str:
    """Return a field by its dotted path, "" if there is none."""
    found: Any = manifest
    for part in path.split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return str(found)


def _denied(selector: str) -> Denied:
    """Return the error for an unsupported selector."""
    return Denied(f"the selector {selector!r} is not supported", status=HTTPStatus.BAD_REQUEST, reason="BadRequest")
