"""From the steps for one object to one change.

What counts is where the object begins and where it ends: one that is made and then changed is made, one that is made
and taken away again is nothing at all, and one that is taken away and made anew under its name is replaced.
"""

from collections.abc import Iterable, Sequence

from tensile.objects import Manifest, Ref
from tensile.reconcile.desired import Moving
from tensile.reconcile.diff import Operation, parts
from tensile.reconcile.plan import Step
from tensile.reconcile.preview.changes import Change
from tensile.reconcile.preview.differences import Difference, differences, written
from tensile.reconcile.preview.operations import after, operations
from tensile.reconcile.preview.secrecy import redacted, redacted_differences, redacted_operation


def fold(ref: Ref, steps: Sequence[Step], seen: Manifest | None) -> Change | None:
    """Fold the steps for one object, at least one; None when they come to nothing.

    `seen` is the object before the first step, None when there was none, or when it is not known.
    """
    turns = [place for place, step in enumerate(steps) if step.verb in ("create", "delete")]
    if not turns:
        return _updated(ref, steps, seen)
    existed, last = steps[0].verb != "create", turns[-1]
    if steps[last].verb == "delete":
        return _deleted(ref, steps) if existed else None
    made = _made(steps[last:])
    return _replaced(ref, steps, made, seen) if existed else _created(ref, steps[last].reason, made)


def _made(steps: Sequence[Step]) -> Manifest:
    """Give what a creation and the patches after it come to."""
    made = steps[0].body or {}
    for step in steps[1:]:
        made = after(made, step) or made
    return made


def _created(ref: Ref, reason: str, made: Manifest) -> Change:
    shown = redacted(ref.kind, made)
    return Change(ref, "create", reason, ({"op": "add", "path": "", "value": shown},), manifest=shown)


def _deleted(ref: Ref, steps: Sequence[Step]) -> Change:
    whole: Operation = {"op": "remove", "path": ""}
    return Change(ref, "delete", _reason(steps, "delete"), (whole,), moving=_moving(steps))


def _replaced(ref: Ref, steps: Sequence[Step], made: Manifest, seen: Manifest | None) -> Change:
    shown = redacted(ref.kind, made)
    told = differences(written(seen), written(made)) if seen is not None else ()
    whole: Operation = {"op": "replace", "path": "", "value": shown}
    reason, shown_differences = _reason(steps, "delete", "create"), redacted_differences(ref.kind, told)
    return Change(ref, "replace", reason, (whole,), shown_differences, shown, _moving(steps))


def _updated(ref: Ref, steps: Sequence[Step], seen: Manifest | None) -> Change | None:
    """Join patches; without what was seen before, only the values afterwards are known."""
    joined: list[Operation] = []
    state = seen
    for step in steps:
        then = None if state is None else after(state, step)
        joined += operations(step, state, then)
        state = then
    if seen is not None and seen == state:
        return None
    told = _alleged(joined) if seen is None or state is None else differences(seen, state)
    reason = "; ".join(dict.fromkeys(step.reason for step in steps))
    shown = tuple(redacted_operation(ref.kind, operation) for operation in joined)
    return Change(ref, "update", reason, shown, redacted_differences(ref.kind, told))


def _moving(steps: Sequence[Step]) -> Moving | None:
    return next((step.moving for step in steps if step.moving), None)


def _reason(steps: Sequence[Step], *verbs: str) -> str:
    """Give the reason of the first step of the first verb that there is one of.

    An object that goes by itself, when its last finalizer does, is replaced without having been deleted.
    """
    return next(step.reason for verb in verbs for step in steps if step.verb == verb)


def _alleged(joined: Iterable[Operation]) -> tuple[Difference, ...]:
    """Give what operations say of themselves."""
    return tuple(Difference(tuple(parts(one["path"])), None, one.get("value")) for one in joined if one["path"])
