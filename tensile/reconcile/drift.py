"""Which differences of our objects another client made, as opposed to edits that are not carried down yet.

While an engine runs, it remembers what it wrote last: a copy drifted if it differs although nothing else is wanted, and
it was written since. After a restart, for objects that are no copies, and for `plan --drift`, the objects show it:

- A field that is present, but differs or is not wanted, is drift if managedFields says that another client owns it and
  wrote it after our last write. If we own it, the upper object or the topology has changed.
- A field that is missing is drift if the upper object had it before our last write of the copy, which then had it too.
  A removal leaves no owner. managedFields of the upper object has the time, which is compared across the clocks of two
  clusters. Pods have a note of the label and annotation keys that we wrote.
- A missing object is drift if a lower pod of ours refers to it and is newer than the upper object: a pod is created
  only once all that it refers to exists.

Anything else counts as an edit. What defaulting and admission webhooks make of our own write counts as ours. All of
that is looked up only when there is a write to send: without drift it costs nothing.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from tensile.errors import Denied
from tensile.kube.store import Entry
from tensile.names import (
    FIELD_MANAGER,
    NO_ORIGINAL,
    OWNER_NAME,
    TRIPPED_LABELS,
    UPPER_NAMESPACE,
    UPPER_UID,
    VIRTUAL_POD,
    EventReason,
)
from tensile.objects import NAMESPACE, NODE, POD, UPPER, Manifest, Ref, annotations, metadata
from tensile.reconcile.copies import upper_of
from tensile.reconcile.diff import fields
from tensile.reconcile.dryrun.patch import patched
from tensile.reconcile.ownership import is_ours, noted_keys
from tensile.reconcile.plan import Step
from tensile.reconcile.pods.index import is_lower_pod_of
from tensile.reconcile.world import World

DRIFT_REVERTED: EventReason = "DriftReverted"
"""Another client changed or deleted what the engine made for the object, and the engine puts it back. Remedy: change
the upper object instead; the audit log of the cluster in the message has the client."""
DELETED = "deleted"
"""Stands for the changed fields if another client deleted the copy."""
AGAIN = 1800.0
"""Seconds after which the same change of the same object counts again: a controller may make it all the time."""
MOST_KEPT = 50
"""Maximum of the last drifts that are kept."""
_MOST_FIELDS = 5
_OPENED = (1, 2)
"""Depths at which a map that one side lacks is compared key by key: "data", "metadata.labels"."""
_KEY_DEPTH = 3
_TAINTS = ("spec", "taints")
"""A field of Nodes that is one list to managedFields: the node lifecycle controller writes it as the engine does."""
_ALWAYS = frozenset({OWNER_NAME, UPPER_NAMESPACE})
"""Annotations of every copy, or namespace, that no upper object has, and without which it still is ours."""
_ALWAYS_ON_PODS = frozenset({VIRTUAL_POD, TRIPPED_LABELS})
"""The same of pods: a label and an annotation that the note of what we wrote does not list."""

FieldPath = tuple[str | int, ...]
_Part = str | Manifest
"""A part of a path in managedFields: the name of a field, or the element of a list."""


class FieldChange(NamedTuple):
    """A field that differs: where, and its value `now` and as it will be (`then`), None for none."""

    path: FieldPath
    now: Any
    then: Any


class FieldDrift(NamedTuple):
    """A field that another client changed, by its present or future value; who, and when (RFC 3339), "" if unknown."""

    field: FieldChange
    manager: str = ""
    time: str = ""


class Drift(NamedTuple):
    """What another client did to an object: the names of the fields for people, and the clients, as far as known.

    `fields` is (DELETED,) for an object that was deleted.
    """

    fields: tuple[str, ...]
    managers: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first fields for people: "data.key, data.more"."""
        more = ("...",) if len(self.fields) > _MOST_FIELDS else ()
        return ", ".join((*self.fields[:_MOST_FIELDS], *more))


class RecentDrift(NamedTuple):
    """A drift that the engine puts back: when it was found, the object, and what was done to it."""

    time: datetime
    ref: Ref
    drift: Drift


class DriftLog:
    """The drifts that were found: how many, by lower and kind, and the last ones, the latest first."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._last: deque[RecentDrift] = deque(maxlen=MOST_KEPT)

    def add(self, lower: str, found: RecentDrift) -> None:
        """Count a drift in the queue of a lower, and keep it."""
        self.counts[lower, found.ref.kind.name] += 1
        self._last.append(found)

    def of_lower(self, lower: str) -> int:
        """Return the number of drifts that were found in the queue of a lower."""
        return sum(count for (name, _), count in self.counts.items() if name == lower)

    def __iter__(self) -> Iterator[RecentDrift]:
        """Yield the last drifts, the latest first."""
        return reversed(self._last)


class _Written(NamedTuple):
    """What was wanted of a copy at our last write (a hash), and the resourceVersion that the write had.

    `mutated`: the object differed right after a write of that content, so an admission webhook changes it.
    """

    content: int
    version: int
    mutated: bool = False


_DELETED = _Written(0, 0)
"""Stands for an object that we deleted ourselves: it is not missing because of another client."""


class DriftDetector:
    """Knows what was written last to copies, and which drift was found lately, both as hashes.

    `limit` is for how many objects each.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._written: OrderedDict[Ref, _Written] = OrderedDict()
        self._found: OrderedDict[Ref, tuple[int, float]] = OrderedDict()

    def note(self, step: Step, entry: Entry | None) -> None:
        """Record a write that succeeded, and the object as it is known now."""
        if step.verb == "delete" and step.ref.kind != POD:
            _remember(self._written, step.ref, _DELETED, self._limit)
        elif step.content and entry is not None:
            before = self._written.get(step.ref)
            mutated = before is not None and before.content == step.content and before.mutated
            _remember(self._written, step.ref, _Written(step.content, entry.version, mutated), self._limit)

    def forget(self, lower: str) -> None:
        """Remove all that is known of a lower that is left: another cluster may come back under its name."""
        for records in (self._written, self._found):
            for ref in [ref for ref in records if ref.cluster == lower]:
                del records[ref]

    def find(self, step: Step, entry: Entry | None, world: World, now: float) -> Drift | None:
        """Return what another client changed that a step puts back, None for nothing and for what was found lately.

        `entry` is the object as it is known before the step. `now` is in monotonic seconds.
        """
        found = self._changed(step, entry, world)
        if found is None:
            return None
        state = hash(f"{found.fields}: {step.operations!r}")  # the content itself may be large, or a Secret's
        if self._is_known(step.ref, state, now):
            return None
        _remember(self._found, step.ref, (state, now), self._limit)
        return found

    def _is_known(self, ref: Ref, state: int, now: float) -> bool:
        before = self._found.get(ref)
        return before is not None and before[0] == state and now - before[1] < AGAIN

    def _changed(self, step: Step, entry: Entry | None, world: World) -> Drift | None:
        written = self._written.get(step.ref) if step.content else None
        is_unchanged = written is not None and written.content == step.content
        if step.verb == "create":
            existed = is_unchanged if written is not None else bool(holder_of(step, world))
            return Drift((DELETED,)) if existed and entry is None else None
        if entry is None or not is_revertible(step):
            return None
        seen = entry.manifest()
        if not is_ours(seen, world.owner):
            return None
        if written is not None and is_unchanged and entry.version == written.version:
            self._written[step.ref] = written._replace(mutated=True)
        elif written is not None and is_unchanged and not written.mutated:
            return Drift(tuple(fields(list(step.operations))), _managers(_changed_by_others(step, seen, None)))
        # What is missing counts only while nothing is remembered: else the upper object was edited since, or admission
        # removes what we write.
        found = _changed_by_others(step, seen, original_of(step.ref, world) if written is None else None)
        names = tuple(dict.fromkeys(_name(one.field.path, seen) for one in found))
        return Drift(names, _managers(found)) if names else None


def is_revertible(step: Step) -> bool:
    """Report whether a step is a write of content: to a lower object, or to a Node of ours."""
    is_ours = step.ref.cluster != UPPER or step.ref.kind == NODE
    return step.verb == "patch" and step.in_plan and is_ours and step.subresource in ("", "resize")


def upper_ref_of(ref: Ref, world: World) -> Ref | None:
    """Return the upper object that a copy in a lower cluster belongs to by its place, None if there can be none."""
    lower = world.lowers.get(ref.cluster)
    namespace = lower.upper_namespace(ref.namespace or ref.name) if lower is not None else ""
    if not namespace or (not ref.namespace and ref.kind != NAMESPACE):
        return None
    return Ref(UPPER, ref.kind, namespace, ref.name) if ref.namespace else Ref(UPPER, ref.kind, "", namespace)


def original_of(ref: Ref, world: World) -> Manifest | None:
    """Return the upper object of a copy as it is cached, None if it is unknown, or kept without managedFields.

    Upper pods are among these: what was written to a lower pod is noted on it.
    """
    upper_ref = upper_ref_of(ref, world) if ref.kind != POD else None
    cache = world.upper.cache(ref.kind) if upper_ref is not None else None
    entry = cache.get(upper_ref.namespace, upper_ref.name) if cache is not None and upper_ref is not None else None
    found = entry.manifest() if entry is not None and entry.raw else {}
    return found if metadata(found).get("managedFields") else None


def last_written(manifest: Manifest) -> str:
    """Return when the content of an object was last written, or it was created (RFC 3339), "" if unknown."""
    entries = metadata(manifest).get("managedFields") or ()
    times = (_time(entry) for entry in entries if not entry.get("subresource"))
    return max((str(metadata(manifest).get("creationTimestamp") or ""), *times))


def written_by(change: FieldChange, seen: Manifest) -> FieldDrift:
    """Return a change of a field with the client that owns it, if one is known."""
    parts = list(_parts(change.path, seen))
    entries = metadata(seen).get("managedFields") or ()
    owners = [entry for entry in entries if entry.get("manager") != FIELD_MANAGER and _owned_depth(entry, parts)]
    last: Manifest = max(owners, key=_time, default={})
    return FieldDrift(change, str(last.get("manager") or ""), _time(last))


def holder_of(step: Step, world: World) -> str:
    """Return the pod (NAMESPACE/NAME) that shows that the copy which a step creates was there before, "" for none.

    Its upper pod was created after the upper object and refers to it, and it exists in the lower cluster.
    """
    ref, made_for = step.ref, annotations(step.body or {}).get(UPPER_UID, NO_ORIGINAL)
    lower, upper_cache = world.lowers.get(ref.cluster), world.upper.cache(ref.kind) if ref.kind != POD else None
    if lower is None or upper_cache is None or made_for == NO_ORIGINAL or not ref.namespace:
        return ""
    original = upper_cache.get(lower.upper_namespace(ref.namespace), ref.name)
    if original is None or original.uid != made_for or not original.raw:
        return ""
    creation = metadata(original.manifest()).get("creationTimestamp") or ""
    holders = lower.pods.select("reference", (ref.kind.name, ref.namespace, ref.name)) if creation else ()
    for lower_pod in holders:
        upper = upper_of(lower_pod, lower)
        if upper is None or not is_lower_pod_of(lower_pod, upper, world.owner):
            continue
        if (metadata(upper.manifest()).get("creationTimestamp") or "") >= creation:
            return f"{lower_pod.namespace}/{lower_pod.name}"
    return ""


def field_changes(now: Any, then: Any, path: FieldPath = ()) -> Iterator[FieldChange]:
    """Yield the fields in which two states of an object differ. An element of a list has the index in its list."""
    if now == then:
        return
    before, after = _members(now, then, path), _members(then, now, path)
    if before is None or after is None:
        yield FieldChange(path, now, then)
        return
    for name in sorted({**before, **after}, key=str):
        one, other = before.get(name, _ABSENT), after.get(name, _ABSENT)
        place = one.place if one.place is not None else other.place
        yield from field_changes(one.value, other.value, (*path, name if place is None else place))


class _Member(NamedTuple):
    """A part of a value, and its index if the value is a list."""

    value: Any
    place: int | None = None


_ABSENT = _Member(None)


def _members(value: Any, other: Any, path: FieldPath) -> dict[Any, _Member] | None:
    """Return the parts of a value by what identifies them, None if it is compared with the other as a whole."""
    if value is None and isinstance(other, dict) and len(path) in _OPENED:
        return {}
    if isinstance(value, dict):
        is_map = other is None or isinstance(other, dict)
        return {name: _Member(one) for name, one in value.items()} if is_map else None
    both = (value, other)
    if not all(isinstance(one, list) and all(isinstance(element, dict) for element in one) for one in both):
        return None
    is_by_index = len(value) == len(other)
    named = {index if is_by_index else _identity(one): _Member(one, index) for index, one in enumerate(value)}
    return named if len(named) == len(value) else None


def _identity(element: Manifest) -> str:
    """Return what identifies an element of a list whose length differs: its name, else its content."""
    name = element.get("name")
    return name if isinstance(name, str) else orjson.dumps(element, option=orjson.OPT_SORT_KEYS).decode()


def drifted(
    seen: Manifest, then: Manifest, ref: Ref, original: Manifest | None, *, ties: bool = True
) -> list[FieldDrift]:
    """Return the fields that another client changed, out of those in which an object differs from what it will be.

    `then` is the object as the engine would have it. `original` is the upper object with its managedFields, None if
    that is unknown. With `ties`, a field that the upper object got in the second of our last write is ours:
    most copies are made in the second of their upper object, but it is not certain while an engine runs.
    """
    ours, others, since = _managed_fields(seen)
    evidence = _Evidence(ref, seen, then, original, ours, others, since, ties)
    found = map(evidence.attribute, field_changes(_content(seen), _content(then)))
    return [one for one in found if one is not None]


def _content(manifest: Manifest) -> Manifest:
    """Return the part of an object that we write."""
    meta = {name: metadata(manifest).get(name) or {} for name in ("labels", "annotations")}
    rest = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    return {**rest, "metadata": meta}


def _changed_by_others(step: Step, seen: Manifest, original: Manifest | None) -> list[FieldDrift]:
    """Return the fields of a patch that another client changed in the object. Without a trace of that, it is fast."""
    _, others, since = _managed_fields(seen)
    may_have_drifted = original is not None or step.ref.kind == POD or any(_time(entry) >= since for entry in others)
    if step.patch is None or not may_have_drifted:
        return []
    try:
        then = patched(seen, step.patch)
    except Denied:
        return []
    return drifted(seen, then, step.ref, original, ties=False)


class _Evidence(NamedTuple):
    """The evidence of who made a difference: both states, the upper object, and who wrote the present state.

    `ours` and `others` are entries of managedFields, and `since` is the time of our last write. `ties` as in `drifted`.
    """

    ref: Ref
    seen: Manifest
    then: Manifest
    original: Manifest | None
    ours: list[Manifest]
    others: list[Manifest]
    since: str
    ties: bool

    def attribute(self, change: FieldChange) -> FieldDrift | None:
        """Return who made a difference, None if it is no drift."""
        if self.ref.kind == NODE and change.path[: len(_TAINTS)] == _TAINTS:
            return None
        if change.now is None:
            return FieldDrift(change) if self._was_written(change.path) else None
        parts = list(_parts(change.path, self.seen))
        writers = [entry for entry in self.others if _time(entry) >= self.since and _owned_depth(entry, parts)]
        last = max(writers, key=_time, default=None)
        if last is None or max((_owned_depth(entry, parts) for entry in self.ours), default=0) >= _owned_depth(
            last, parts
        ):
            return None
        return FieldDrift(change, str(last.get("manager") or ""), _time(last))

    def _was_written(self, path: FieldPath) -> bool:
        """Report whether our last write had a field that is missing now."""
        if path[:1] == ("metadata",) and len(path) == _KEY_DEPTH:
            section, key = str(path[1]), str(path[2])
            if key in _ALWAYS:
                return True
            if self.ref.kind == POD:
                noted = noted_keys(self.seen, section)
                return noted is not None and (key in noted or key in _ALWAYS_ON_PODS)
        parts = list(_parts(path, self.then))
        entries = metadata(self.original or {}).get("managedFields") or ()
        times = [_time(entry) for entry in entries if _owned_depth(entry, parts)]
        if not times:
            return False
        return min(times) <= self.since if self.ties else min(times) < self.since


def _managed_fields(seen: Manifest) -> tuple[list[Manifest], list[Manifest], str]:
    """Return the entries of managedFields about content: ours, those of others, and the time of our last write."""
    found = metadata(seen).get("managedFields") or ()
    entries = [entry for entry in found if entry.get("subresource") in (None, "", "resize")]
    ours = [entry for entry in entries if entry.get("manager") == FIELD_MANAGER]
    others = [entry for entry in entries if entry.get("manager") != FIELD_MANAGER]
    return ours, others, max(map(_time, ours), default="")


def _parts(path: FieldPath, state: Any) -> Iterator[_Part]:
    """Yield the parts of a path as managedFields has them: an element of a list by its content, in `state`."""
    for part in path:
        if isinstance(part, int):
            state = state[part] if isinstance(state, list) and part < len(state) else None
            yield state if isinstance(state, dict) else {}
        else:
            state = state.get(part) if isinstance(state, dict) else None
            yield part


def _owned_depth(entry: Manifest, parts: Sequence[_Part]) -> int:
    """Return how many parts of a path an entry of managedFields names until it ends, 0 if it does not hold the field.

    A value as a whole holds all that is in it, unless another entry names a field in it: a map of which others took
    every key is left with its owner, in the form of a whole. An entry may have any form.
    """
    fields = entry.get("fieldsV1")
    for depth, part in enumerate(parts):
        if not isinstance(fields, dict):
            return 0
        if depth and not fields:
            return depth
        fields = fields.get(f"f:{part}") if isinstance(part, str) else _element(fields, part)
    return len(parts) if isinstance(fields, dict) else 0


def _element(fields: Manifest, element: Manifest) -> Any:
    """Return the fields of a list's element, which is known by the values of its keys; None if they are missing."""
    for name, fields_of_element in fields.items():
        if name.startswith("k:"):
            try:
                keys = orjson.loads(name[2:])
            except orjson.JSONDecodeError:
                continue
            if isinstance(keys, dict) and keys and keys.items() <= element.items():
                return fields_of_element
    return None


def _time(entry: Manifest) -> str:
    return str(entry.get("time") or "")


def pointer(path: FieldPath) -> str:
    """Return a path as in RFC 6901: "/metadata/labels/example.com~1team"."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def _name(path: FieldPath, seen: Manifest) -> str:
    """Return a path for people: "data.key", "spec.containers.main.image"."""
    names: list[str] = []
    for part, found in zip(path, _parts(path, seen), strict=True):
        name = found.get("name") if isinstance(found, dict) else None
        names.append(name if isinstance(name, str) else str(part))
    return ".".join(names)


def _managers(found: Iterable[FieldDrift]) -> tuple[str, ...]:
    """Return the clients that are known, each once."""
    return tuple(dict.fromkeys(one.manager for one in found if one.manager))


def _remember(records: OrderedDict[Ref, Any], ref: Ref, value: Any, limit: int) -> None:
    """Store a value for an object. Beyond the limit the oldest are dropped."""
    records[ref] = value
    records.move_to_end(ref)
    if len(records) > limit:
        records.popitem(last=False)
