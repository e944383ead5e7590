"""A preview as plain data: one change for each object, cluster by cluster, and what stands in the way of more.

Nothing in it holds a Secret's value, so whatever is written out of it cannot show one.

From the steps for one object to one change.

What counts is where the object begins and where it ends: one that is made and then changed is made, one that is made
and taken away again is nothing at all, and one that is taken away and made anew under its name is replaced.

From all that was recorded to a preview: object by object, cluster by cluster, in an order that a person likes.

The order depends on nothing but the names, so two plans of one state are the same text.

Keeps what the loop did in a rehearsal, for as long as the rehearsal lasts.

A step that was refused is not kept: what stands in its way is a problem, and those are the world's to tell.

One patch as RFC 6902 operations, and what an object is after it.

Preconditions (UID and resourceVersion) are left out: they say which object is meant, not what changes. Bodies that
merge are told by what they do to the object at hand, since "replace the list" would be untrue of a list that merges.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tensile.errors import ClusterError, Denied
from tensile.kube.cluster import Patch
from tensile.objects import CONFIG_MAP, NAMESPACE, NODE, POD, SECRET, UPPER, Manifest, Ref
from tensile.reconcile.desired import Moving
from tensile.reconcile.diff import Operation, between, parts
from tensile.reconcile.dryrun.patch import patched
from tensile.reconcile.plan import Step
from tensile.reconcile.report.values import (
    Difference,
    differences,
    redacted,
    redacted_differences,
    redacted_operation,
    written,
)
from tensile.reconcile.world import Key, Problem, World

Action = Literal["create", "update", "delete", "replace"]


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one object, and why.

    `operations` lead from the object as it is to the object as it will be (RFC 6902; the path "" is all of it).
    `differences` say the same field by field, `manifest` is the object as it will be, where it is made. `moving` says
    where a pod goes that leaves for another node.
    """

    ref: Ref
    action: Action
    reason: str
    operations: tuple[Operation, ...]
    differences: tuple[Difference, ...] = ()
    manifest: Manifest | None = None
    moving: Moving | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """Everything that would change: the clusters in their order, the upper one (`objects.UPPER`) first.

    Every cluster is there, also one in which nothing changes. `problems` are what stands in the way of more.
    `unreached` says by name why a lower is out of reach: nothing is planned for it.
    """

    topology: str
    clusters: Mapping[str, tuple[Change, ...]]
    problems: tuple[tuple[Key, Problem], ...] = ()
    unreached: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes of all clusters, in their order; empty where a plan has nothing to do."""
        return tuple(change for changes in self.clusters.values() for change in changes)


class Counts(NamedTuple):
    """How many objects are made, changed and taken away; one that is replaced is made and taken away."""

    add: int = 0
    change: int = 0
    delete: int = 0


def count(changes: Iterable[Change]) -> Counts:
    """Count changes for the summary."""
    actions = [change.action for change in changes]
    replaced = actions.count("replace")
    return Counts(actions.count("create") + replaced, actions.count("update"), actions.count("delete") + replaced)


class Recorded(NamedTuple):
    """A step that came through, and the key that it was for."""

    key: Key
    step: Step


class Recorder:
    """Listens to a loop: `recorded` are the shown steps in their order, `broken` the rules' defects."""

    def __init__(self) -> None:
        self.recorded: list[Recorded] = []
        self.broken: list[tuple[Key, Exception]] = []

    def stepped(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Keep a step that came through and that a person decides about."""
        if error is None and step.shown:
            self.recorded.append(Recorded(key, step))

    def stuck(self, key: Key, problem: Problem) -> None:
        """Keep nothing: whether the key got rid of it is known at the end only, to the world."""

    def broke(self, key: Key, error: Exception) -> None:
        """Keep a defect: a plan that was made with it is not to be trusted."""
        self.broken.append((key, error))


def subject(key: Key) -> str:
    """Return what a key is about: "pod shop/web-1", "ConfigMap shop/settings", "orphans"."""
    kind, _, name = key.name.rpartition("/")
    where = f"{key.namespace}/{name}" if key.namespace else name
    return f"{kind or key.rule} {where}".rstrip()


def defects(broken: Iterable[tuple[Key, Exception]]) -> str:
    """Return in one line for each key why there is no plan; "" when nothing broke."""
    last = dict(broken)
    return "\n".join(
        f"{subject(key)} on {key.lower}: no plan can be made: {type(error).__name__}: {error}; "
        "this is a defect of tensile: please report it with this line"
        for key, error in sorted(last.items(), key=lambda one: one[0])
    )


_FENCES = ("uid", "resourceVersion")
_POINTERS = tuple(f"/metadata/{name}" for name in _FENCES)


def after(state: Manifest, step: Step) -> Manifest | None:
    """Return the object as a patch leaves it, None when that cannot be said."""
    if step.patch is None:
        return None
    try:
        return patched(state, _unfenced(step.patch))
    except Denied:
        return None


def operations(step: Step, state: Manifest | None, then: Manifest | None) -> list[Operation]:
    """Return a patch as operations; `state` is the object before, `then` after it, None where it is not known."""
    if step.patch is not None and step.patch.media != "json-patch" and state is not None and then is not None:
        return between(state, then)
    return [operation for operation in step.operations if operation["path"] not in _POINTERS]


def _unfenced(patch: Patch) -> Patch:
    if patch.media == "json-patch":
        return patch._replace(body=[operation for operation in patch.body if operation["path"] not in _POINTERS])
    meta = {name: content for name, content in patch.body.get("metadata", {}).items() if name not in _FENCES}
    return patch._replace(body={**patch.body, "metadata": meta})


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
    """Return what a creation and the patches after it come to."""
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
    """Return the reason of the first step of the first verb that there is one of.

    An object that goes by itself, when its last finalizer does, is replaced without having been deleted.
    """
    return next(step.reason for verb in verbs for step in steps if step.verb == verb)


def _alleged(joined: Iterable[Operation]) -> tuple[Difference, ...]:
    """Return what operations say of themselves."""
    return tuple(Difference(tuple(parts(one["path"])), None, one.get("value")) for one in joined if one["path"])


Before = Callable[[Ref], Manifest | None]

_RANKS = {NAMESPACE.name: 0, CONFIG_MAP.name: 1, SECRET.name: 2, POD.name: 4, NODE.name: 5}
_OTHER_RANK = 3
_DIGITS = re.compile(r"([0-9]+)")


def preview(
    recorded: Iterable[Recorded],
    problems: Mapping[Key, Problem],
    before: Before,
    *,
    topology: str,
    lowers: Sequence[str],
    unreached: Mapping[str, str],
) -> Preview:
    """Fold recorded steps into one change for each object.

    `before` gives an object as it was observed before the first step, None when there was none. `topology` is the
    topology's name, `lowers` the names of its lowers in the file's order; one that left the file comes after them.
    `unreached` says why some of them could not be looked at.
    """
    steps: dict[Ref, list[Step]] = {}
    for one in recorded:
        steps.setdefault(one.step.ref, []).append(one.step)
    folded = (fold(ref, group, before(ref)) for ref, group in sorted(steps.items(), key=lambda item: _order(item[0])))
    found = [change for change in folded if change is not None]
    left = sorted({change.ref.cluster for change in found} - {UPPER, *lowers})
    looked_at = [name for name in lowers if name not in unreached]
    clusters = {cluster: _of(cluster, found) for cluster in (UPPER, *looked_at, *left)}
    places = {cluster: place for place, cluster in enumerate(clusters)}
    stuck = sorted(problems.items(), key=lambda item: (places.get(item[0].lower, len(places)), _key_order(item[0])))
    return Preview(topology, clusters, tuple(stuck), unreached)


def observed(world: World) -> Before:
    """Look objects up in a world's caches: in one that does not change while a copy of it is rehearsed on."""

    def find(ref: Ref) -> Manifest | None:
        above = ref.cluster == UPPER and ref.kind == POD
        caches = [world.cache(ref.cluster, ref.kind, lower) for lower in (world.lowers if above else (ref.cluster,))]
        caches += [world.upper.waiting] if above else []
        entries = (cache.get(ref.namespace, ref.name) for cache in caches if cache is not None)
        return next((entry.manifest() for entry in entries if entry is not None and entry.raw), None)

    return find


def _of(cluster: str, changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(change for change in changes if change.ref.cluster == cluster)


def _order(ref: Ref) -> tuple[Any, ...]:
    """Put namespaces first, then configuration, pods, nodes."""
    return (_RANKS.get(ref.kind.name, _OTHER_RANK), ref.kind.name, _counted(ref.namespace), _counted(ref.name))


def _key_order(key: Key) -> tuple[Any, ...]:
    return (key.lower, key.rule, _counted(key.namespace), _counted(key.name))


def _counted(name: str) -> list[tuple[int, str]]:
    """Sort names as a person counts: web-2 before web-10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in _DIGITS.split(name) if part]
