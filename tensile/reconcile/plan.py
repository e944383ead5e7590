"""From what a rule wants and what is observed to the steps that make it so.

Every choice is made here or earlier: a step says which request to send, to the letter, with its precondition. That
is why
the steps that `plan` prints are the ones that `run` carries out.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from tensile.cache import Entry
from tensile.cluster import Patch
from tensile.names import COMPONENT, UPPER_UID
from tensile.objects import EVENT, Manifest, Ref, annotations
from tensile.reconcile.desired import Absent, Confirmed, Decision, Patched, Present, Told, Wanted
from tensile.reconcile.diff import Operation, changes
from tensile.reconcile.observed import is_ours
from tensile.world import Key, Problem, World

Verb = Literal["create", "patch", "delete", "confirm"]
_NAME_LIMIT = 200
_MESSAGE_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Step:
    """One request to one cluster, and why.

    `operations` say what it changes as RFC 6902; `shown` is whether a person decides about it; `asked` is false
    for what
    ends something that nobody deleted above (the guard counts those).
    """

    verb: Verb
    ref: Ref
    reason: str
    body: Manifest | None = None
    patch: Patch | None = None
    subresource: str = ""
    uid: str = ""
    grace: int | None = None
    operations: tuple[Operation, ...] = field(default=())
    shown: bool = True
    asked: bool = True

    @property
    def identity(self) -> tuple[str, Ref, str]:
        """Tell steps apart without looking at what they carry."""
        return (self.verb, self.ref, self.subresource)


class Plan(NamedTuple):
    """The steps for one key in their order, and what stands in the way of the rest."""

    steps: tuple[Step, ...]
    problem: Problem | None = None


def plan(key: Key, decision: Decision, world: World) -> Plan:
    """Work out the steps that make a decision come true."""
    steps: list[Step] = []
    problem = decision.problem
    for wanted in decision.wanted:
        found = _steps(key, wanted, world)
        if isinstance(found, Problem):
            problem = found
            break
        steps += found
    return Plan(tuple(steps), problem)


def _steps(key: Key, wanted: Wanted, world: World) -> list[Step] | Problem:
    match wanted:
        case Present():
            return _present(key, wanted, world)
        case Absent(ref, uid, reason, grace, asked):
            operations: tuple[Operation, ...] = ({"op": "remove", "path": ""},)
            return [Step("delete", ref, reason, uid=uid, grace=grace, operations=operations, asked=asked)]
        case Patched(ref, patch, reason, subresource, shown, asked):
            body = _operations_of(patch)
            step = Step("patch", ref, reason, patch=patch, subresource=subresource, operations=body)
            return [_as(step, shown=shown, asked=asked)]
        case Confirmed(ref, uid, reason, asked):
            return [Step("confirm", ref, reason, uid=uid, shown=False, asked=asked)]
        case Told():
            return [_event(wanted, world)]


def _present(key: Key, wanted: Present, world: World) -> list[Step] | Problem:
    cache = world.cache(wanted.ref.cluster, wanted.ref.kind, key.lower)
    entry = cache.get(wanted.ref.namespace, wanted.ref.name) if cache else None
    if entry is None:
        whole: tuple[Operation, ...] = ({"op": "add", "path": "", "value": wanted.manifest},)
        return [Step("create", wanted.ref, wanted.reason, body=wanted.manifest, operations=whole)]
    seen = entry.manifest()
    if not is_ours(seen, world.owner):
        return conflict(wanted.ref)
    if wanted.replaceable and annotations(seen)[UPPER_UID] != annotations(wanted.manifest)[UPPER_UID]:
        reason = "was made for an upper object that is gone"
        return [Step("delete", wanted.ref, reason, uid=entry.uid, operations=({"op": "remove", "path": ""},))]
    return _change(wanted, entry, changes(wanted.manifest, seen, wanted.sections))


def _change(wanted: Present, entry: Entry, operations: list[Operation]) -> list[Step]:
    if not operations:
        return []
    fence: list[Operation] = [{"op": "replace", "path": "/metadata/uid", "value": entry.uid}]
    if wanted.version:
        fence.append({"op": "replace", "path": "/metadata/resourceVersion", "value": wanted.version})
    patch = Patch("json-patch", fence + operations)
    return [Step("patch", wanted.ref, wanted.reason, patch=patch, operations=tuple(operations))]


def conflict(ref: Ref) -> Problem:
    """Say that a name is taken by an object that is not ours."""
    cluster = ref.cluster or "the upper cluster"
    where = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
    message = f"{ref.kind.name} {where} exists in {cluster} and is not ours: rename or remove one of the two"
    return Problem("NameConflict", message)


def _as(step: Step, *, shown: bool, asked: bool) -> Step:
    return Step(
        step.verb,
        step.ref,
        step.reason,
        patch=step.patch,
        subresource=step.subresource,
        operations=step.operations,
        shown=shown,
        asked=asked,
    )


def _operations_of(patch: Patch) -> tuple[Operation, ...]:
    """Say a merge patch's content as operations, without its preconditions."""
    if patch.media == "json-patch":
        return tuple(patch.body)
    found: list[Operation] = []
    for section, content in patch.body.items():
        for name, value in content.items() if section != "metadata" else ():
            found.append({"op": "replace", "path": f"/{section}/{name}", "value": value})
    return tuple(found)


def _event(told: Told, world: World) -> Step:
    """Make an Event whose name follows from what it says, so that it exists once however often it is said."""
    digest = sha256(f"{told.uid}/{told.reason}/{told.message}".encode()).hexdigest()[:16]
    ref = Ref(told.about.cluster, EVENT, told.about.namespace or "default", f"{told.about.name[:_NAME_LIMIT]}.{digest}")
    moment = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    body: dict[str, Any] = {
        "apiVersion": EVENT.api,
        "kind": EVENT.name,
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "involvedObject": {
            "apiVersion": told.about.kind.api,
            "kind": told.about.kind.name,
            "namespace": told.about.namespace,
            "name": told.about.name,
            "uid": told.uid,
        },
        "reason": told.reason,
        "message": told.message[:_MESSAGE_LIMIT],
        "type": "Warning" if told.warning else "Normal",
        "source": {"component": COMPONENT},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
    return Step("create", ref, told.reason, body=body, shown=False)
