"""Takes the values out of Secrets, wherever an object or an operation on one carries them.

Names of keys stay, since a person has to see what changes. `kubectl apply` keeps the whole object, values included,
in an annotation, so that goes as well.
"""

from collections.abc import Iterable
from typing import Any

from tensile.objects import SECRET, Kind
from tensile.reconcile.diff import Operation, parts
from tensile.reconcile.preview.differences import Difference

REDACTED = "(redacted)"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ROOTS = (("data",), ("stringData",))
_ANNOTATION = ("metadata", "annotations", LAST_APPLIED)

Path = tuple[str, ...]


def redacted(kind: Kind, value: Any, path: Path = ()) -> Any:
    """Give what stands at `path` in an object of that kind, with "(redacted)" for each value of a Secret."""
    return _redacted(value, path) if kind.name == SECRET.name else value


def redacted_operation(kind: Kind, operation: Operation) -> Operation:
    """Give an RFC 6902 operation on an object of that kind without the values of a Secret."""
    if "value" not in operation:
        return operation
    return {**operation, "value": redacted(kind, operation["value"], tuple(parts(operation["path"])))}


def redacted_differences(kind: Kind, found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Give differences of an object of that kind, of a Secret by key and without values."""
    if kind.name != SECRET.name:
        return tuple(found)
    return tuple(
        Difference(
            one.path[:2] if one.path[:1] in _ROOTS else one.path,
            _redacted(one.old, one.path),
            _redacted(one.new, one.path),
        )
        for one in found
    )


def _redacted(value: Any, path: Path) -> Any:
    if value is None:
        return None
    if isinstance(value, dict) and not _is_value(path):
        return {name: _redacted(content, (*path, name)) for name, content in value.items()}
    return REDACTED if _is_value(path) or path[:1] in _ROOTS else value


def _is_value(path: Path) -> bool:
    """Say whether a path leads to a secret value or into one."""
    return (len(path) > 1 and path[:1] in _ROOTS) or path[: len(_ANNOTATION)] == _ANNOTATION
