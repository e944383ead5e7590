"""A plan as a file, and what has moved since it was saved.

A saved plan is a promise about what will be changed, and never a source of changes: `apply` plans again, compares, and
makes the steps of the new plan, or none. So a forged file can only be refused.

The comparison covers what a person approved: for each object its action, its UID, its state without the status, and
the new content. Left out is what changes by itself: amounts that a Node advertises, the taints by which Kubernetes
marks a Node whose engine is away, times, and UIDs of objects that the plan itself would create. Values of Secrets are
not in the file, only salted hashes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import orjson

from tensile.errors import TensileError
from tensile.names import PREFIX
from tensile.objects import NODE, UPPER
from tensile.reconcile.dryrun.cluster import MADE_UP
from tensile.reconcile.report.changes import Change, PlanScope, Preview
from tensile.reconcile.report.render import title
from tensile.reconcile.report.values import unmarked
from tensile.reconcile.world import World
from tensile.text import harmless

SAVED_FORMAT = "1.0"
LARGEST = 64 * 2**20
"""The most bytes of a plan file: one of 10,000 pods has about 40 MiB."""
_MOST_SHOWN = 20
_NEW_UID = re.compile(rb'"%s[0-9a-f]{4}-[0-9a-f]{12}"' % MADE_UP.encode())
_TIMES = frozenset({"lastHeartbeatTime", "lastTransitionTime", "timeAdded", "creationTimestamp"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_TAINTS = "/spec/taints"
_NOTHING = "nothing"


class SavedTopology(msgspec.Struct, frozen=True):
    """The topology of a saved plan: its name, its file ("" for standard input) and the SHA-256 of the content."""

    name: str
    file: str
    sha256: str


class SavedStep(msgspec.Struct, frozen=True):
    """One object that changes. `uid` and `resourceVersion` are those of the present object, "" if there is none.

    `before` is a hash of the present object without its status, "" for none. `operations` lead to the new object
    (RFC 6902), without values of Secrets; `after` is their hash, which covers these values.
    """

    cluster: str
    action: str
    kind: str
    apiVersion: str  # noqa: N815 - the names of the file
    namespace: str
    name: str
    uid: str
    resourceVersion: str  # noqa: N815
    before: str
    after: str
    operations: list[dict[str, Any]]

    @property
    def place(self) -> tuple[str, ...]:
        """What identifies its object."""
        return self.cluster, self.apiVersion, self.kind, self.namespace, self.name

    @property
    def description(self) -> str:
        """Its object for people: "lower-a: Pod shop/web"."""
        return f"{self.cluster}: {self.kind} {f'{self.namespace}/' if self.namespace else ''}{self.name}"


class SavedPlan(msgspec.Struct, frozen=True):
    """The content of a plan file. `clusters` has the UID of kube-system of each cluster that was read, by name."""

    formatVersion: str  # noqa: N815
    topology: SavedTopology
    salt: str
    clusters: dict[str, str]
    lowers: list[str]
    namespaces: list[str]
    kinds: list[str]
    steps: list[SavedStep]

    @property
    def scope(self) -> PlanScope:
        """What the plan is limited to."""
        return PlanScope(tuple(self.lowers), tuple(self.namespaces), tuple(self.kinds))


def identities(world: World) -> dict[str, str]:
    """Return the UID of kube-system of each cluster of a world, by its name for people."""
    lowers = {name: lower.identity for name, lower in world.lowers.items() if lower.connected}
    return {title(UPPER): world.owner.upper, **lowers}


def saved(found: Preview, topology: SavedTopology, clusters: Mapping[str, str], salt: str) -> SavedPlan:
    """Return a preview as a saved plan. `salt` is random text, so that equal Secrets of two files do not show."""
    steps = [_step(change, salt) for change in found.changes]
    only = found.only
    return SavedPlan(
        SAVED_FORMAT,
        topology,
        salt,
        dict(clusters),
        list(only.lowers),
        list(only.namespaces),
        list(only.kinds),
        steps,
    )


def as_file(plan: SavedPlan) -> bytes:
    """Format a saved plan as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"


def parsed(data: bytes, name: str) -> SavedPlan:
    """Parse the file of a saved plan. `name` is shown in errors. Raises TensileError if it is none."""
    try:
        found = msgspec.json.decode(data, type=SavedPlan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise TensileError(
            f"{name}: not a saved plan: save one with `tensile plan --out`; name a topology file with -f"
        ) from None
    if found.formatVersion.partition(".")[0] != SAVED_FORMAT.partition(".")[0]:
        raise TensileError(
            f"{name}: format version {found.formatVersion!r}, expected {SAVED_FORMAT}: "
            "save the plan again with this version of tensile"
        )
    return found


def moved(before: SavedPlan, now: SavedPlan) -> list[str]:
    """Return what differs between a saved plan and the present one with the same salt, one line each, [] for nothing.

    A difference names the object, and its state then and now.
    """
    lines = [*_moved_clusters(before.clusters, now.clusters)]
    old, new = ({step.place: step for step in plan.steps} for plan in (before, now))
    for place in sorted(old.keys() | new.keys()):
        lines += _moved_step(old.get(place), new.get(place))
    more = len(lines) - _MOST_SHOWN
    return [*lines[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _moved_clusters(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            was, is_now = (f"kube-system UID {found[name]}" if name in found else "not read" for found in (old, new))
            yield f"cluster {harmless(name)}: from {harmless(was)} to {harmless(is_now)}"


def _moved_step(old: SavedStep | None, new: SavedStep | None) -> Iterator[str]:
    step = old or new
    if step is None or old == new:
        return
    what = harmless(step.description)
    if old is None or new is None or old.action != new.action:
        yield f"{what}: from {_action(old)} to {_action(new)}"
    elif old.uid != new.uid:
        yield f"{what}: from UID {harmless(old.uid) or 'none'} to UID {harmless(new.uid) or 'none'}"
    elif old.before != new.before:
        was, is_now = (harmless(one.resourceVersion) or "unknown" for one in (old, new))
        yield f"{what}: changed, from resourceVersion {was} to {is_now}"
    elif old.after != new.after:
        yield f"{what}: its new content has changed{_fields(old, new)}"


def _action(step: SavedStep | None) -> str:
    return harmless(step.action) if step else _NOTHING


def _fields(old: SavedStep, new: SavedStep) -> str:
    """Return the first operation that differs, "" if that is only a value of a Secret."""
    for one, other in zip(old.operations, new.operations, strict=False):
        if one != other:
            path = harmless(str(other.get("path", "")))
            return f" at {path}" if path else ""
    return ""


def _step(change: Change, salt: str) -> SavedStep:
    ref = change.ref
    content = [operation for one in change.operations for operation in _stable(change, one)]
    encoded = _normal(content)
    return SavedStep(
        title(ref.cluster),
        change.action,
        ref.kind.name,
        ref.kind.api,
        ref.namespace,
        ref.name,
        change.uid,
        change.version,
        _salted(salt, change.state),
        _salted(salt, encoded.decode() + change.secrets),
        orjson.loads(encoded),
    )


def _salted(salt: str, text: str) -> str:
    return sha256(f"{salt}/{text}".encode()).hexdigest() if text else ""


def _stable(change: Change, operation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an operation without what changes by itself: the status and Kubernetes' taints of a Node, and times."""
    if change.ref.kind != NODE:
        yield _timeless(dict(operation))
    elif operation["path"] == "" and isinstance(operation.get("value"), dict):
        yield _timeless({**operation, "value": {k: v for k, v in operation["value"].items() if k != "status"}})
    elif operation["path"] == _TAINTS:
        yield {"op": "replace", "path": _TAINTS, "value": unmarked(operation.get("value") or ())}
    elif operation["path"].startswith("/status"):
        yield {"op": operation["op"], "path": operation["path"]}
    else:
        yield _timeless(dict(operation))


def _timeless(value: Any, key: str = "") -> Any:
    """Return a value without the times that the engine writes: they are those of the planning."""
    if isinstance(value, dict):
        return {name: _timeless(content, name) for name, content in value.items() if name not in _TIMES}
    if isinstance(value, list):
        return [_timeless(content, key) for content in value]
    is_time = key.startswith(PREFIX) and isinstance(value, str) and _TIME.fullmatch(value)
    return "(time)" if is_time else value


def _normal(content: Sequence[Any]) -> bytes:
    """Return content as JSON, with one word for every UID that a dry run made up."""
    return _NEW_UID.sub(b'"(new)"', orjson.dumps(content, option=orjson.OPT_SORT_KEYS))
