"""The difference between a desired and an observed object, as RFC 6902 operations.

`==` comes first: it takes microseconds, and most objects are as desired. jsonpatch then computes the operations for
what differs. They are the output of `plan -o json` and the body that is sent, so plan and run cannot disagree.
"""

from typing import Any, NamedTuple

from jsonpatch import JsonPatch
from jsonpointer import JsonPointer

from tensile.names import UPPER_UID
from tensile.objects import Manifest, annotations
from tensile.reconcile.ownership import our_keys, upper_uid_of

Operation = dict[str, Any]
_KEYED = {"metadata.labels": "labels", "metadata.annotations": "annotations"}


def changes(wanted: Manifest, seen: Manifest, sections: tuple[str, ...]) -> list[Operation]:
    """Return the operations that turn the given sections of `seen` into those of `wanted`, [] for none."""
    operations: list[Operation] = []
    for section in sections:
        path = section.split(".")
        desired, observed = _at(wanted, path), _at(seen, path)
        if desired == observed:
            continue
        if section in _KEYED:
            desired = _merged(desired or {}, observed or {}, our_keys(seen, _KEYED[section]))
        if desired != observed and not (_is_nothing(desired) and _is_nothing(observed)):
            operations += _operations("/" + "/".join(path), desired, observed)
    return operations


def marking(wanted: Manifest, seen: Manifest, sections: tuple[str, ...]) -> list[Operation]:
    """Return the operations that put our marks on an object, and apply the given `sections`.

    If another client wrote a mark with the same value, the mark would stay theirs. So it is removed, and written again
    once the rest is ours.
    """
    operations = changes(wanted, seen, sections)
    made_for = annotations(seen).get(UPPER_UID)
    if made_for and made_for == annotations(wanted).get(UPPER_UID) and not upper_uid_of(seen):
        operations.append({"op": "remove", "path": f"/metadata/annotations/{UPPER_UID.replace('/', '~1')}"})
    return operations


def fence(uid: str, version: str = "") -> list[Operation]:
    """Return the operations by which a patch applies only to the object of that UID, and only at that version."""
    wanted = [("uid", uid), *([("resourceVersion", version)] if version else [])]
    return [{"op": "replace", "path": f"/metadata/{field}", "value": value} for field, value in wanted]


def between(old: Manifest, new: Manifest, root: str = "") -> list[Operation]:
    """Return the operations from one map to another for a reader: removals and additions, without moves."""
    operations = JsonPatch.from_diff(old, new, optimization=False).patch
    return [{**operation, "path": root + operation["path"]} for operation in operations]


def parts(pointer: str) -> list[str]:
    """Split a JSON pointer (RFC 6901) into its parts."""
    return list(JsonPointer(pointer).parts)


def fields(operations: list[Operation]) -> list[str]:
    """Return the fields that operations change, each once, in the form "metadata.labels.app"."""
    return list(dict.fromkeys(".".join(parts(operation["path"])) for operation in operations))


def _is_nothing(value: Any) -> bool:
    """Report whether the API stores nothing for a value. False is stored."""
    return value is None or value in ({}, [], "")


def _at(manifest: Manifest, path: list[str]) -> Any:
    found: Any = manifest
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _merged(desired: dict[str, str], observed: dict[str, str], ours: frozenset[str]) -> dict[str, str]:
    """Merge `desired` into `observed`. Our keys that are not wanted any more are removed, other keys stay."""
    kept = {key: value for key, value in observed.items() if key not in ours}
    return {**kept, **desired}


def _operations(root: str, desired: Any, observed: Any) -> list[Operation]:
    if observed is None:
        return [{"op": "add", "path": root, "value": desired}]
    if desired is None:
        return [{"op": "remove", "path": root}]
    if not (isinstance(desired, dict) and isinstance(observed, dict)):
        return [{"op": "replace", "path": root, "value": desired}]
    return between(observed, desired, root)


class Difference(NamedTuple):
    """One field: its path, and its value before and after, None for none."""

    path: tuple[str, ...]
    old: Any
    new: Any

    @property
    def field(self) -> str:
        """The path as text: "metadata.labels.app", "spec.taints[key:NoSchedule].value"."""
        return "".join(part if part.startswith("[") else f".{part}" for part in self.path).removeprefix(".")
