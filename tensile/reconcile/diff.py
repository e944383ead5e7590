"""What differs between an object as it should be and as it is, as RFC 6902 operations.

`==` comes first: it takes microseconds, and most objects are as they should be. jsonpatch then works out the operations
of what did change. They are both what `plan -o json` prints and the body that is sent, so a plan cannot say one
thing and do another.
"""

from typing import Any

from jsonpatch import JsonPatch
from jsonpointer import JsonPointer

from tensile.objects import Manifest
from tensile.reconcile.ownership import our_keys

Operation = dict[str, Any]
_KEYED = {"metadata.labels": "labels", "metadata.annotations": "annotations"}


def changes(wanted: Manifest, seen: Manifest, sections: tuple[str, ...]) -> list[Operation]:
    """Return the operations that turn the given sections of `seen` into those of `wanted`; [] when there are none."""
    operations: list[Operation] = []
    for section in sections:
        path = section.split(".")
        want, see = _at(wanted, path), _at(seen, path)
        if want == see:
            continue
        if section in _KEYED:
            want = _merged(want or {}, see or {}, our_keys(seen, _KEYED[section]))
        if want != see and not (_is_nothing(want) and _is_nothing(see)):
            operations += _operations("/" + "/".join(path), want, see)
    return operations


def between(old: Manifest, new: Manifest, root: str = "") -> list[Operation]:
    """Return the operations from one map to another, for a reader: one key gone and another set, nothing moved."""
    found = JsonPatch.from_diff(old, new, optimization=False).patch
    return [{**operation, "path": root + operation["path"]} for operation in found]


def parts(pointer: str) -> list[str]:
    """Split a JSON pointer (RFC 6901) into the names on its way."""
    return list(JsonPointer(pointer).parts)


def fields(operations: list[Operation]) -> list[str]:
    """Name the fields that operations touch, each once, in words a person knows ("metadata.labels.app")."""
    return list(dict.fromkeys(".".join(parts(operation["path"])) for operation in operations))


def _is_nothing(value: Any) -> bool:
    """Report whether the API stores nothing for a value: false is something."""
    return value is None or value in ({}, [], "")


def _at(manifest: Manifest, path: list[str]) -> Any:
    found: Any = manifest
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _merged(want: dict[str, str], see: dict[str, str], ours: frozenset[str]) -> dict[str, str]:
    """Lay what we want over what is there; keys of ours that are not wanted any more go, others' stay."""
    kept = {key: value for key, value in see.items() if key not in ours}
    return {**kept, **want}


def _operations(root: str, want: Any, see: Any) -> list[Operation]:
    if see is None:
        return [{"op": "add", "path": root, "value": want}]
    if want is None:
        return [{"op": "remove", "path": root}]
    if not (isinstance(want, dict) and isinstance(see, dict)):
        return [{"op": "replace", "path": root, "value": want}]
    return between(see, want, root)
