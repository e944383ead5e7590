"""One patch as RFC 6902 operations, and what an object is after it.

Preconditions (UID and resourceVersion) are left out: they say which object is meant, not what changes. Bodies that
merge are told by what they do to the object at hand, since "replace the list" would be untrue of a list that merges.
"""

from collections.abc import Iterator
from typing import Any

from tensile.cluster import Patch
from tensile.errors import Denied
from tensile.objects import Manifest
from tensile.reconcile.diff import Operation
from tensile.reconcile.patching import patched
from tensile.reconcile.plan import Step

_FENCES = ("uid", "resourceVersion")
_POINTERS = tuple(f"/metadata/{name}" for name in _FENCES)


def after(state: Manifest, step: Step) -> Manifest | None:
    """Give the object as a patch leaves it, None when that cannot be said."""
    if step.patch is None:
        return None
    try:
        return patched(state, _unfenced(step.patch))
    except Denied:
        return None


def operations(step: Step, state: Manifest | None, then: Manifest | None) -> list[Operation]:
    """Give a patch as operations; `state` is the object before, `then` after it, None where it is not known."""
    if step.patch is not None and step.patch.media != "json-patch" and state is not None and then is not None:
        return list(_between(state, then, ""))
    return [operation for operation in step.operations if operation["path"] not in _POINTERS]


def _unfenced(patch: Patch) -> Patch:
    if patch.media == "json-patch":
        return patch._replace(body=[operation for operation in patch.body if operation["path"] not in _POINTERS])
    meta = {name: content for name, content in patch.body.get("metadata", {}).items() if name not in _FENCES}
    return patch._replace(body={**patch.body, "metadata": meta})


def _between(old: Manifest, new: Manifest, root: str) -> Iterator[Operation]:
    """Give the operations from one map to another, key by key; lists are replaced whole."""
    for name in sorted({**old, **new}):
        path = f"{root}/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in new:
            yield {"op": "remove", "path": path}
        elif name not in old:
            yield {"op": "add", "path": path, "value": new[name]}
        else:
            yield from _changed(old[name], new[name], path)


def _changed(old: Any, new: Any, path: str) -> Iterator[Operation]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _between(old, new, path)
    elif old != new:
        yield {"op": "replace", "path": path, "value": new}
