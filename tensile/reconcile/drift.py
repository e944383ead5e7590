"""Which writes put back what another client changed in an object of ours, as opposed to following the upper object.

A copy drifted if it differs although nothing else is wanted than what was written last, and it was written since. After
a restart that is not known, and for objects that are no copies it never is: then managedFields tell whether another
client owns a changed field and wrote it after us. What defaulting and admission webhooks make of our own write counts
as ours in either case. All of that is looked up only when there is a write to send: without drift it costs nothing.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tensile.kube.store import Entry
from tensile.names import FIELD_MANAGER, EventReason, Owner
from tensile.objects import NODE, POD, UPPER, Manifest, Ref
from tensile.reconcile.diff import fields, parts
from tensile.reconcile.ownership import is_ours, our_keys
from tensile.reconcile.plan import Step

DRIFT_REVERTED: EventReason = "DriftReverted"
"""Another client changed or deleted what the engine made for the object, and the engine puts it back. Remedy: change
the upper object instead; the audit log of the cluster in the message has the client."""
DELETED = "deleted"
"""Stands for the changed fields if another client deleted the copy."""
AGAIN = 1800.0
"""Seconds after which the same change of the same object counts again: a controller may make it all the time."""
_MOST_FIELDS = 5
_KEY_DEPTH = 3
_SHARED = ("f:spec", "f:taints")
"""A field of Nodes that is one list to managedFields: the node lifecycle controller writes it as the engine does."""


class _Written(NamedTuple):
    """What was wanted of a copy at our last write (a hash), and the resourceVersion that the write had.

    `mutated`: the object differed right after a write of that content, so an admission webhook changes it.
    """

    content: int
    version: int
    mutated: bool = False


class DriftDetector:
    """Knows what was written last to copies, and which drift was found lately. `limit` is for how many objects each."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._written: OrderedDict[Ref, _Written] = OrderedDict()
        self._found: OrderedDict[Ref, tuple[str, float]] = OrderedDict()

    def note(self, step: Step, entry: Entry | None) -> None:
        """Record a write that succeeded, and the object as it is known now."""
        if step.verb == "delete":
            self._written.pop(step.ref, None)
        elif step.content and entry is not None:
            before = self._written.get(step.ref)
            mutated = before is not None and before.content == step.content and before.mutated
            _remember(self._written, step.ref, _Written(step.content, entry.version, mutated), self._limit)

    def forget(self, lower: str) -> None:
        """Remove all that is known of a lower that is left: another cluster may come back under its name."""
        for book in (self._written, self._found):
            for ref in [ref for ref in book if ref.cluster == lower]:
                del book[ref]

    def find(self, step: Step, entry: Entry | None, owner: Owner, now: float) -> str:
        """Return what another client changed that a step puts back, "" for nothing and for what was found lately.

        `entry` is the object as it is known before the step. `now` is in monotonic seconds.
        """
        found = self._changed(step, entry, owner)
        if not found:
            return ""
        state = f"{found}: {step.operations!r}"
        if self._is_known(step.ref, state, now):
            return ""
        _remember(self._found, step.ref, (state, now), self._limit)
        return found

    def _is_known(self, ref: Ref, state: str, now: float) -> bool:
        before, since = self._found.get(ref, ("", now))
        return before == state and now - since < AGAIN

    def _changed(self, step: Step, entry: Entry | None, owner: Owner) -> str:
        written = self._written.get(step.ref) if step.content else None
        is_wanted_still = written is not None and written.content == step.content
        if step.verb == "create":
            return DELETED if is_wanted_still and entry is None else ""
        if entry is None or not _may_revert(step):
            return ""
        seen = entry.manifest()
        if not is_ours(seen, owner):
            return ""
        if written is not None and is_wanted_still and entry.version == written.version:
            self._written[step.ref] = written._replace(mutated=True)
        elif written is not None and is_wanted_still and not written.mutated:
            return _shown(fields(list(step.operations)))
        return _shown(list(dict.fromkeys(taken_over(step, seen))))


def _may_revert(step: Step) -> bool:
    """Report whether a step is a write of content: to a lower object, or to a Node of ours."""
    is_ours = step.ref.cluster != UPPER or step.ref.kind == NODE
    return step.verb == "patch" and step.in_plan and is_ours and step.subresource in ("", "resize")


def taken_over(step: Step, seen: Manifest) -> Iterator[str]:
    """Yield the fields of a patch that another client owns in the object, and wrote after our last write."""
    books = [
        book for book in seen["metadata"].get("managedFields") or () if book.get("subresource") in (None, "resize")
    ]
    ours = max((_time(book) for book in books if book.get("manager") == FIELD_MANAGER), default="")
    later = [book for book in books if book.get("manager") != FIELD_MANAGER and _time(book) >= ours]
    for name, path in _paths(step) if later else ():
        if path[: len(_SHARED)] == _SHARED and step.ref.kind == NODE:
            continue
        if any(_owns(book.get("fieldsV1") or {}, path) for book in later) or _is_lost_key(path, step, seen):
            yield name


def _is_lost_key(path: Sequence[str], step: Step, seen: Manifest) -> bool:
    """Report whether another client owns a label or annotation of a pod: of pods, only our own keys are kept."""
    if step.ref.kind != POD or path[0] != "f:metadata" or len(path) != _KEY_DEPTH:
        return False
    section, key = (part[2:] for part in path[1:])
    return key in (seen["metadata"].get(section) or {}) and key not in our_keys(seen, section)


def _paths(step: Step) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each field that a patch changes, with its path in managedFields.

    A strategic merge patch changes containers, which are known by name, and what else in it was added to the upper pod.
    """
    for operation in step.operations:
        path = tuple(parts(operation["path"]))
        name, steps, value = ".".join(path), tuple(f"f:{part}" for part in path), operation.get("value")
        if step.patch is None or step.patch.media != "strategic-merge-patch":
            yield name, steps
            continue
        for item in value if isinstance(value, list) else ():
            for field in item if "name" in item else ():
                if field != "name":
                    yield f"{name}.{item['name']}.{field}", (*steps, f'k:{{"name":"{item["name"]}"}}', f"f:{field}")


def _owns(held: Any, path: Sequence[str]) -> bool:
    """Report whether fields in the form of managedFields have a path, a part of it, or a value that contains it."""
    for depth, part in enumerate(path):
        if depth and not held:
            return True
        if part not in held:
            return False
        held = held[part]
    return True


def _time(book: Manifest) -> str:
    return str(book.get("time") or "")


def _shown(names: list[str]) -> str:
    """Return fields for people, "" for none."""
    more = ["..."] if len(names) > _MOST_FIELDS else []
    return ", ".join([*names[:_MOST_FIELDS], *more])


def _remember(book: OrderedDict[Ref, Any], ref: Ref, what: Any, limit: int) -> None:
    """Store a value for an object. Beyond the limit the oldest are dropped."""
    book[ref] = what
    book.move_to_end(ref)
    if len(book) > limit:
        book.popitem(last=False)
