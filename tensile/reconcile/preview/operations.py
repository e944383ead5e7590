"""One patch as RFC 6902 operations, and what an object is after it.

Preconditions (UID and resourceVersion) are left out: they say which object is meant, not what changes. Bodies that
merge are told by what they do to the object at hand, since "replace the list" would be untrue of a list that merges.
"""

from tensile.cluster import Patch
from tensile.errors import Denied
from tensile.objects import Manifest
from tensile.reconcile.diff import Operation, between
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
        return between(state, then)
    return [operation for operation in step.operations if operation["path"] not in _POINTERS]


def _unfenced(patch: Patch) -> Patch:
    if patch.media == "json-patch":
        return patch._replace(body=[operation for operation in patch.body if operation["path"] not in _POINTERS])
    meta = {name: content for name, content in patch.body.get("metadata", {}).items() if name not in _FENCES}
    return patch._replace(body={**patch.body, "metadata": meta})
