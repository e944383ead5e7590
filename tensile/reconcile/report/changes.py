"""From the recorded steps of a dry run to a preview: one change per object, cluster by cluster, and the problems.

Only the first and last state of an object count. An object that is created and patched counts as created, one that is
created and deleted as no change, and one that is deleted and created again as replaced. A step that was refused is not
recorded: what blocks it is a problem in the world.

Preconditions (UID and resourceVersion) are left out, as they identify the object. Merge patches are described by their
effect on the object at hand, since "replace the list" would be wrong for a list that is merged. The order depends on
names only, so two plans of one state are the same text. No Secret's value is in a preview, so no output can show one.

A change may have the line of the topology file that causes it. A plan compares the file with the clusters, and does not
know the previous file. So a line is named only if the change follows from the text there, whatever was edited: a field
of the Node that the file gives, the maintenance that cordons or drains, the entry of a lower cluster that is new. Other
changes, such as those that follow from pods, from capacity, or from what is not in the file any more, have no line.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import orjson

from tensile.errors import ClusterError, Denied, TensileError
from tensile.kube.cluster import Patch
from tensile.names import BOOKKEEPING
from tensile.objects import (
    CONFIG_MAP,
    NAMESPACE,
    NODE,
    POD,
    SECRET,
    UPPER,
    Manifest,
    Ref,
    annotations,
    labels,
    metadata,
)
from tensile.reconcile.desired import PodMove
from tensile.reconcile.diff import Difference, Operation, between, parts
from tensile.reconcile.dryrun.patch import patched
from tensile.reconcile.plan import Step
from tensile.reconcile.redaction import redacted, redacted_differences, redacted_operation
from tensile.reconcile.report.values import differences, unmarked, written
from tensile.reconcile.world import Key, Problem, World
from tensile.topology import Lower, Topology
from tensile.yaml_document import Path, YAMLNode, compose, find, locate

Action = Literal["create", "update", "delete", "replace"]

_FENCES = ("uid", "resourceVersion")
_END = frozenset({"phase", "reason", "message"})
"""The fields of a pod's status that say how it ended."""
_POINTERS = tuple(f"/metadata/{name}" for name in _FENCES)

_RANKS = {NAMESPACE.name: 0, CONFIG_MAP.name: 1, SECRET.name: 2, POD.name: 4, NODE.name: 5}
_OTHER_RANK = 3
_DIGITS = re.compile(r"([0-9]+)")

ReadBefore = Callable[[Ref], Manifest | None]


class PlanScope(NamedTuple):
    """The part of a plan that is shown: names of lowers, namespaces and kinds, () for all of them.

    A namespace is an upper one. Cluster-scoped objects are in none, but for the namespace itself.
    """

    lowers: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """The scope for people, "" for a whole plan: "lower-a, namespace shop, kind Pod"."""
        named = [*(f"namespace {name}" for name in self.namespaces), *(f"kind {name}" for name in self.kinds)]
        return ", ".join([*self.lowers, *named])

    def takes(self, lower: str, namespace: str, kind: str) -> bool:
        """Report whether it has an object, by the lower of its key, its upper namespace and its kind."""
        wanted = ((lower, self.lowers), (namespace, self.namespaces), (kind, self.kinds))
        return all(not names or one in names for one, names in wanted)


WHOLE_PLAN = PlanScope()


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one object, and its reason.

    `operations` lead from the present object to the future one (RFC 6902; the path "" is the whole object).
    `differences` are the same by field. `manifest` is the future object if it is created. `moving` is where an evicted
    pod goes.

    `uid` and `version` identify the present object, "" if there is none. `state` is a hash of it without its status and
    the taints by which Kubernetes marks a Node, and `secrets` one of a Secret's new values, "" for other kinds. `line`
    is the line of the topology file that causes the change, 0 if none is known.
    """

    ref: Ref
    action: Action
    reason: str
    operations: tuple[Operation, ...]
    differences: tuple[Difference, ...] = ()
    manifest: Manifest | None = None
    moving: PodMove | None = None
    uid: str = ""
    version: str = ""
    state: str = ""
    secrets: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Preview:
    """All changes, by cluster, with the upper one (`objects.UPPER`) first.

    Every cluster is included, even without changes. `problems` are what blocks further changes. `unreached` holds by
    name why a lower cannot be reached: nothing is planned for it. `only` is what the preview is limited to. `file` is
    the name of the topology file for people, "" if changes have no lines.
    """

    topology: str
    clusters: Mapping[str, tuple[Change, ...]]
    problems: tuple[tuple[Key, Problem], ...] = ()
    unreached: Mapping[str, str] = field(default_factory=dict)
    only: PlanScope = WHOLE_PLAN
    file: str = ""

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes of all clusters, in order. Empty for a plan without changes."""
        return tuple(change for changes in self.clusters.values() for change in changes)


class Counts(NamedTuple):
    """How many objects are created, changed and deleted. One that is replaced counts as created and deleted."""

    add: int = 0
    change: int = 0
    delete: int = 0


class RecordedStep(NamedTuple):
    """A step that succeeded, and its key."""

    key: Key
    step: Step


class Recorder:
    """Observes a loop. `recorded` are the shown steps in order, `broken` the bugs in rules."""

    def __init__(self) -> None:
        self.recorded: list[RecordedStep] = []
        self.broken: list[tuple[Key, Exception]] = []

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Record a step that succeeded and that a person decides about."""
        if error is None and step.in_plan:
            self.recorded.append(RecordedStep(key, step))

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Record nothing: the world holds the problems that are left at the end."""

    def on_unexpected_error(self, key: Key, error: Exception) -> None:
        """Record a bug: a plan made with it is not reliable."""
        self.broken.append((key, error))


def count(changes: Iterable[Change]) -> Counts:
    """Count changes for the summary."""
    actions = [change.action for change in changes]
    replaced = actions.count("replace")
    return Counts(actions.count("create") + replaced, actions.count("update"), actions.count("delete") + replaced)


def subject(key: Key) -> str:
    """Return what a key is about: "pod shop/web-1", "ConfigMap shop/settings", "orphans"."""
    kind, _, name = key.name.rpartition("/")
    where = f"{key.namespace}/{name}" if key.namespace else name
    return f"{kind or key.rule} {where}".rstrip()


def defects(broken: Iterable[tuple[Key, Exception]]) -> str:
    """Return one line per key that says why there is no plan, "" without bugs."""
    last = dict(broken)
    return "\n".join(
        f"{subject(key)} on {key.lower}: planning failed: {type(error).__name__}: {error}; "
        "this is a bug in tensile: please report this line"
        for key, error in sorted(last.items(), key=lambda one: one[0])
    )


def after(state: Manifest, step: Step) -> Manifest | None:
    """Return the object after a patch, None if that is unknown."""
    if step.patch is None:
        return None
    try:
        return patched(state, _unfenced(step.patch))
    except Denied:
        return None


def operations(step: Step, state: Manifest | None, then: Manifest | None) -> list[Operation]:
    """Return a patch as operations. `state` is the object before it, `then` after it, None if unknown."""
    if step.patch is not None and step.patch.media != "json-patch" and state is not None and then is not None:
        return between(state, then)
    return [operation for operation in step.operations if operation["path"] not in _POINTERS]


def _unfenced(patch: Patch) -> Patch:
    if patch.media == "json-patch":
        return patch._replace(body=[operation for operation in patch.body if operation["path"] not in _POINTERS])
    meta = {name: content for name, content in patch.body.get("metadata", {}).items() if name not in _FENCES}
    return patch._replace(body={**patch.body, "metadata": meta})


def fold(ref: Ref, steps: Sequence[Step], seen: Manifest | None) -> Change | None:
    """Fold the steps for one object, at least one. Return None if they have no effect.

    `seen` is the object before the first step, None if it did not exist or is unknown.
    """
    endings = [index for index, step in enumerate(steps) if step.verb in ("create", "delete")]
    if not endings:
        return _updated(ref, steps, seen)
    existed, last = steps[0].verb != "create", endings[-1]
    if steps[last].verb == "delete":
        return _deleted(ref, steps) if existed else None
    made = _made(steps[last:])
    return _replaced(ref, steps, made, seen) if existed else _created(ref, steps[last].reason, made)


def _identified(change: Change | None, steps: Sequence[Step], seen: Manifest | None) -> Change | None:
    """Add the identity and the state of the present object to a change."""
    if change is None:
        return None
    is_secret = change.ref.kind.name == SECRET.name
    secrets = hashed([[one.body, one.operations] for one in steps]) if is_secret else ""
    if seen is None:
        uid = "" if change.action == "create" else next((one.uid for one in steps if one.uid), "")
        return replace(change, uid=uid, secrets=secrets)
    meta, kept = metadata(seen), written(seen)
    if change.ref.kind == NODE:
        spec = kept.get("spec") or {}
        kept = {**kept, "spec": {**spec, "taints": unmarked(spec.get("taints") or ())}}
    notes = {key: value for key, value in annotations(seen).items() if key not in BOOKKEEPING}
    state = hashed({**kept, "metadata": {"labels": labels(seen), "annotations": notes}})
    return replace(
        change, uid=str(meta.get("uid", "")), version=meta.get("resourceVersion", ""), state=state, secrets=secrets
    )


def hashed(content: Any) -> str:
    """Return the SHA-256 of plain data, independent of the order of keys."""
    return sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _made(steps: Sequence[Step]) -> Manifest:
    """Return the result of a creation and later patches."""
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
    changed = differences(written(seen), written(made)) if seen is not None else ()
    whole: Operation = {"op": "replace", "path": "", "value": shown}
    reason, shown_differences = _reason(steps, "delete", "create"), redacted_differences(ref.kind, changed)
    return Change(ref, "replace", reason, (whole,), shown_differences, shown, _moving(steps))


def _updated(ref: Ref, steps: Sequence[Step], seen: Manifest | None) -> Change | None:
    """Join patches. Without the previous object, only the new values are known."""
    joined: list[Operation] = []
    state = seen
    for step in steps:
        then = None if state is None else after(state, step)
        joined += operations(step, state, then)
        state = then
    if seen is not None and seen == state:
        return None
    changed = _stated(joined) if seen is None or state is None else differences(seen, state)
    if ref.kind == POD:
        joined = [operation for operation in joined if _is_shown_of_pod(parts(operation["path"]))]
        changed = tuple(one for one in changed if _is_shown_of_pod(one.path))
    reason = "; ".join(dict.fromkeys(step.reason for step in steps))
    shown = tuple(redacted_operation(ref.kind, operation) for operation in joined)
    return Change(ref, "update", reason, shown, redacted_differences(ref.kind, changed))


def _is_shown_of_pod(path: Sequence[str]) -> bool:
    """Report whether a field of a pod is shown: of its status, only how it ends, as the rest follows from that."""
    return "status" not in path[:1] or not _END.isdisjoint(path[1:2])


def _moving(steps: Sequence[Step]) -> PodMove | None:
    return next((step.moving for step in steps if step.moving), None)


def _reason(steps: Sequence[Step], *verbs: str) -> str:
    """Return the reason of the first step with the first verb that occurs.

    An object that disappears by itself, with its last finalizer, is replaced without a deletion.
    """
    return next(step.reason for verb in verbs for step in steps if step.verb == verb)


def _stated(joined: Iterable[Operation]) -> tuple[Difference, ...]:
    """Return the differences that the operations themselves state."""
    return tuple(Difference(tuple(parts(one["path"])), None, one.get("value")) for one in joined if one["path"])


def preview(
    recorded: Iterable[RecordedStep],
    problems: Mapping[Key, Problem],
    before: ReadBefore,
    *,
    topology: str,
    lowers: Sequence[str],
    unreached: Mapping[str, str],
    only: PlanScope = WHOLE_PLAN,
    home: Callable[[Ref], str] = attrgetter("namespace"),
) -> Preview:
    """Fold recorded steps into one change for each object.

    `before` returns an object as observed before the first step, None for none. `topology` is the topology's name,
    `lowers` the names of its lowers in the file's order. Lowers that left the file follow them. `unreached` holds why
    some of them could not be read. `only` is what to show. Changes in the upper cluster, such as that of a Node, belong
    to the lower of their key. `home` returns the upper namespace of an object of either cluster.
    """
    found = [change for change in folded(recorded, before, only=only, home=home) if change is not None]
    return arranged(found, problems, topology=topology, lowers=lowers, unreached=unreached, only=only)


def folded(
    recorded: Iterable[RecordedStep],
    before: ReadBefore,
    *,
    only: PlanScope = WHOLE_PLAN,
    home: Callable[[Ref], str] = attrgetter("namespace"),
) -> Iterator[Change | None]:
    """Yield the change of one object after the other, None for an object that does not change.

    Arguments as in `preview`. A change takes a third of a millisecond, so a caller on an event loop can pause.
    """
    steps: dict[Ref, list[Step]] = {}
    for one in recorded:
        if only.takes(one.key.lower, home(one.step.ref), one.step.ref.kind.name):
            steps.setdefault(one.step.ref, []).append(one.step)
    for ref, group in sorted(steps.items(), key=lambda item: object_order(item[0])):
        seen = before(ref)
        yield _identified(fold(ref, group, seen), group, seen)


def arranged(
    found: Sequence[Change],
    problems: Mapping[Key, Problem],
    *,
    topology: str,
    lowers: Sequence[str],
    unreached: Mapping[str, str],
    only: PlanScope = WHOLE_PLAN,
) -> Preview:
    """Return the preview of changes in their order; arguments as in `preview`."""
    problems = {key: problem for key, problem in problems.items() if _is_shown(key, only)}
    if only.lowers:
        unreached = {name: message for name, message in unreached.items() if name in only.lowers}
        lowers = [name for name in lowers if name in only.lowers]
    left = sorted({change.ref.cluster for change in found} - {UPPER, *lowers})
    reached = [name for name in lowers if name not in unreached]
    clusters = {cluster: _of(cluster, found) for cluster in (UPPER, *reached, *left)}
    positions = {cluster: position for position, cluster in enumerate(clusters)}
    blocked = sorted(
        problems.items(), key=lambda item: (positions.get(item[0].lower, len(positions)), _key_order(item[0]))
    )
    return Preview(topology, clusters, tuple(blocked), unreached, only)


def preview_of(
    recorder: Recorder,
    problems: Mapping[Key, Problem],
    before: ReadBefore,
    topology: Topology,
    *,
    unreached: Mapping[str, str],
    only: PlanScope = WHOLE_PLAN,
    home: Callable[[Ref], str] = attrgetter("namespace"),
) -> Preview:
    """Return the `preview` of all that a recorder has recorded. Raises TensileError for a bug in a rule."""
    if broken := defects(recorder.broken):
        raise TensileError(broken)
    lowers = [spec.name for spec in topology.lowers]
    return preview(
        recorder.recorded,
        problems,
        before,
        topology=topology.name,
        lowers=lowers,
        unreached=unreached,
        only=only,
        home=home,
    )


def _is_shown(key: Key, only: PlanScope) -> bool:
    """Report whether a problem is shown. One of a whole lower, such as blocked deletions, concerns every namespace."""
    kind = key.name.rpartition("/")[0]
    namespace = key.namespace or next(iter(only.namespaces), "")
    return only.takes(key.lower, namespace, kind or next(iter(only.kinds), ""))


def observed(world: World) -> ReadBefore:
    """Return a lookup in a world's caches. The world must not change while the dry run uses a copy of it."""

    def find(ref: Ref) -> Manifest | None:
        is_upper_pod = ref.cluster == UPPER and ref.kind == POD
        caches = [
            world.cache(ref.cluster, ref.kind, lower) for lower in (world.lowers if is_upper_pod else (ref.cluster,))
        ]
        caches += [world.upper.waiting] if is_upper_pod else []
        entries = (cache.get(ref.namespace, ref.name) for cache in caches if cache is not None)
        return next((entry.manifest() for entry in entries if entry is not None and entry.raw), None)

    return find


def _of(cluster: str, changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(change for change in changes if change.ref.cluster == cluster)


def object_order(ref: Ref) -> tuple[Any, ...]:
    """Sort namespaces first, then configuration, pods and nodes."""
    return (_RANKS.get(ref.kind.name, _OTHER_RANK), ref.kind.name, _counted(ref.namespace), _counted(ref.name))


def _key_order(key: Key) -> tuple[Any, ...]:
    return (key.lower, key.rule, _counted(key.namespace), _counted(key.name))


def _counted(name: str) -> list[tuple[int, str]]:
    """Split a name for natural sorting: web-2 before web-10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in _DIGITS.split(name) if part]


Lines = Callable[[Preview], Preview]
"""Adds the lines of a file to the changes that they cause."""


def lines_of(name: str, text: str, topology: Topology) -> Lines:
    """Return what adds the lines of a topology file, by its name for people, to a preview.

    `topology` is the one that the text was parsed to.
    """
    root = compose(text).root

    def added(found: Preview) -> Preview:
        """Return the preview with lines."""
        if root is None:
            return found
        clusters = {
            name: tuple(replace(change, line=line_of(change, root, topology)) for change in changes)
            for name, changes in found.clusters.items()
        }
        return replace(found, clusters=clusters, file=name)

    return added


def line_of(change: Change, root: YAMLNode, topology: Topology) -> int:
    """Return the line that causes a change, counted from 1, 0 if it is not certain."""
    lines = (_line(path, root) for path in _paths(change, topology))
    return next((line for line in lines if line), 0)


def _line(path: Path, root: YAMLNode) -> int:
    """Return the line of a path, or of the same field in `lowerDefaults`, 0 if the file has neither."""
    inherited = ("lowerDefaults", *path[2:])
    for one in (path, inherited) if len(path) > 2 else (path,):  # noqa: PLR2004 - lowers and the index
        if find(root, one) is not None:
            return locate(root, one, key=True).line
    return 0


def _paths(change: Change, topology: Topology) -> Iterator[Path]:
    """Yield the paths whose values a change follows from."""
    if change.ref.cluster != UPPER:
        return
    if change.ref.kind == NODE:
        for index, spec in enumerate(topology.lowers):
            if spec.node.name == change.ref.name:
                yield from _of_node(change, ("lowers", index), spec)
    elif change.ref.kind == POD and change.action == "delete":
        for index, spec in enumerate(topology.lowers):
            if spec.maintenance == "drain" and change.reason == f"lower cluster {spec.name} is being drained":
                yield ("lowers", index, "maintenance")


def _of_node(change: Change, lower: Path, spec: Lower) -> Iterator[Path]:
    if change.action == "create":
        yield lower
    elif change.action == "update":
        for one in change.differences:
            yield from _of_field(one, lower, spec)


def _of_field(one: Difference, lower: Path, spec: Lower) -> Iterator[Path]:
    """Yield the field of the file that a field of the Node is given by."""
    if one.path[:2] == ("spec", "taints"):
        yield (*lower, "node", "taints")
    elif one.path == ("spec", "unschedulable") and one.new is True and spec.maintenance != "none":
        yield (*lower, "maintenance")
    elif len(one.path) == 3 and one.path[0] == "metadata":  # noqa: PLR2004 - metadata, section, key
        section, key = one.path[1:]
        given = {"labels": spec.node.labels, "annotations": spec.node.annotations}.get(section, {})
        if one.new is not None and given.get(key) == one.new:
            yield (*lower, "node", section, key)
