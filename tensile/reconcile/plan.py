"""From desired and observed objects to the steps between them.

All choices are made here or earlier: a step is an exact request with its precondition. So the steps that `plan` prints
are the ones that `run` carries out.
"""

from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import msgspec
import orjson

from tensile.kube.cluster import Patch
from tensile.kube.store import Entry
from tensile.names import COMPONENT, NO_ORIGINAL, TOKEN_TERM, UPPER_UID
from tensile.objects import EVENT, UPPER, Manifest, Ref, annotations, metadata, timestamp
from tensile.objects import uid as uid_of
from tensile.reconcile.desired import (
    Absent,
    Decision,
    EmitEvent,
    EvictionCause,
    Patched,
    PodMove,
    Present,
    TokenRequest,
    TokenSecret,
    VerifyAbsent,
    Wanted,
)
from tensile.reconcile.diff import Operation, changes, fence, marking
from tensile.reconcile.ownership import adoption_problem, is_ours
from tensile.reconcile.world import Key, Problem, World
from tensile.text import cut

Verb = Literal["create", "patch", "delete", "confirm"]
StepIdentity = tuple[str, Ref, str, str]
_REMOVE: Operation = {"op": "remove", "path": ""}
_FENCES = ("/metadata/uid", "/metadata/resourceVersion")
_METADATA = ("metadata.labels", "metadata.annotations")
TERM_PATH = "/metadata/annotations/" + TOKEN_TERM.replace("/", "~1")
"""The path of the operation that records the term of tokens."""
EVICTION = "eviction"
"""The subresource that deletes a pod if its disruption budgets allow it."""
_NAME_LIMIT = 200
_MESSAGE_LIMIT = 1024


class TokenGrant(NamedTuple):
    """The tokens that a step requests from an account's cluster, and the start of their term."""

    account: Ref
    asks: tuple[TokenRequest, ...]
    since: datetime


class Step(msgspec.Struct, frozen=True, gc=False):
    """One request to one cluster, and its reason.

    `uid` is that of its object, "" for whatever object has the name. `operations` are its changes as RFC 6902.
    `in_plan`: a person decides about it. `requested` is false if it ends something that was not deleted in the upper
    cluster, which the guard counts. `after_restore`: it rests on a store's lost history. Steps after an `independent`
    one do not depend on it.

    An `only_if_empty` namespace is checked at quorum to be empty just before its deletion. `grant` lists the tokens to
    request when the step is carried out; `body` and `patch` contain "" for each. With a `version`, a delete only
    applies to that state. `moving` is where an evicted pod goes, `cause` why it is evicted. `content` is a hash of all
    that is wanted of a copy, 0 for other steps.
    """

    verb: Verb
    ref: Ref
    reason: str
    body: Manifest | None = None
    patch: Patch | None = None
    subresource: str = ""
    uid: str = ""
    grace: int | None = None
    operations: tuple[Operation, ...] = ()
    in_plan: bool = True
    requested: bool = True
    after_restore: bool = False
    independent: bool = False
    only_if_empty: bool = False
    version: str = ""
    grant: TokenGrant | None = None
    moving: PodMove | None = None
    cause: EvictionCause | None = None
    content: int = 0

    @property
    def identity(self) -> StepIdentity:
        """What identifies a step in the back-off. An `independent` one with another content is new."""
        content = repr(self.operations) if self.independent else ""
        return (self.verb, self.ref, self.subresource, content)


class Plan(NamedTuple):
    """The steps for one key in their order, and what blocks the rest."""

    steps: tuple[Step, ...]
    problem: Problem | None = None


def plan(key: Key, decision: Decision, world: World) -> Plan:
    """Compute the steps that achieve a decision. The problem of an `independent` object blocks no other."""
    steps: list[Step] = []
    problem = decision.problem
    for wanted in decision.wanted:
        found = _steps(key, wanted, world)
        if not isinstance(found, Problem):
            steps += found
        elif isinstance(wanted, Present) and wanted.independent:
            problem = problem or found
        else:
            problem = found
            break
    return Plan(tuple(steps), problem)


def _steps(key: Key, wanted: Wanted, world: World) -> list[Step] | Problem:
    match wanted:
        case Present() | Absent() | Patched() | TokenSecret() if _is_anothers(wanted.ref, world):
            return []
        case Present():
            return _present(key, wanted, world)
        case Absent():
            return [_absent(wanted)]
        case Patched():
            return [_patched(wanted)]
        case VerifyAbsent(ref, uid, reason, requested):
            return [Step("confirm", ref, reason, uid=uid, in_plan=False, requested=requested)]
        case EmitEvent():
            return [event(wanted, world.now)]
        case TokenSecret():
            return _granted(key, wanted, world)


def _is_anothers(ref: Ref, world: World) -> bool:
    """Report whether an object is in a lower namespace of another owner, where we write nothing."""
    lower = world.lowers.get(ref.cluster)
    return lower is not None and lower.is_anothers(ref.namespace)


def _present(key: Key, wanted: Present, world: World) -> list[Step] | Problem:
    cache = world.cache(wanted.ref.cluster, wanted.ref.kind, key.lower, key.rule)
    entry = cache.get(wanted.ref.namespace, wanted.ref.name) if cache else None
    if entry is None:
        whole: tuple[Operation, ...] = ({"op": "add", "path": "", "value": wanted.manifest},)
        return [
            Step(
                "create",
                wanted.ref,
                wanted.reason,
                body=wanted.manifest,
                operations=whole,
                independent=wanted.independent,
                content=_content(wanted),
            )
        ]
    seen = entry.manifest()
    if not is_ours(seen, world.owner):
        problem = adoption_problem(wanted.ref, seen, annotations(wanted.manifest).get(UPPER_UID, ""), world, key.lower)
        return problem or _adopt(wanted, entry)
    if wanted.replaceable and annotations(seen)[UPPER_UID] != annotations(wanted.manifest)[UPPER_UID]:
        return [_replace_predecessor(key, wanted.ref, entry, annotations(seen)[UPPER_UID], world)]
    operations = changes(wanted.manifest, seen, wanted.sections)
    if wanted.replaceable and seen.get("immutable") and any(map(_is_content, operations)):
        return [_delete_to_recreate(wanted.ref, entry, "it is immutable and differs from the upper object")]
    return _change(wanted, entry, operations)


def _absent(wanted: Absent) -> Step:
    return Step(
        "delete",
        wanted.ref,
        wanted.reason,
        subresource=EVICTION if wanted.evict else "",
        uid=wanted.uid,
        grace=wanted.grace,
        operations=(_REMOVE,),
        requested=wanted.requested,
        after_restore=wanted.after_restore,
        independent=wanted.independent,
        only_if_empty=wanted.only_if_empty,
        version=wanted.version,
        moving=wanted.moving,
        cause=wanted.cause,
    )


def _adopt(wanted: Present, entry: Entry) -> list[Step]:
    """Put our marks on an object that was not written since the check. Its content is updated once it is ours."""
    operations = marking(wanted.manifest, entry.manifest(), _METADATA)
    adopted = msgspec.structs.replace(wanted, version=str(entry.version), reason="onConflict: adopt")
    return _change(adopted, entry, operations)


def _replace_predecessor(key: Key, ref: Ref, entry: Entry, made_for: str, world: World) -> Step:
    """Replace an object that was made for a previous upper object, once that is gone.

    It may also be for a newer one, which another engine has seen first: so that object is read. Objects for the upper
    cluster itself, or for none of its objects, cannot be.
    """
    upper_ref = Ref(UPPER, ref.kind, key.namespace, ref.name)
    originals = world.cache(UPPER, ref.kind, key.lower)
    if made_for == NO_ORIGINAL:
        return _delete_to_recreate(ref, entry, "it reserved the name until the upper object existed")
    is_alias = made_for == world.owner.upper
    if originals is None or is_alias or originals.is_deleted(upper_ref.namespace, upper_ref.name, made_for):
        return _delete_to_recreate(ref, entry, "it was created for an upper object that is gone")
    return Step("confirm", upper_ref, "its copy blocks a new object of this name", uid=made_for, in_plan=False)


def _delete_to_recreate(ref: Ref, entry: Entry, reason: str) -> Step:
    """Delete an object of ours that cannot be changed as desired. It is created again once it is gone."""
    return Step("delete", ref, reason, uid=entry.uid, operations=(_REMOVE,))


def _is_content(operation: Operation) -> bool:
    return not operation["path"].startswith("/metadata/")


def _change(wanted: Present, entry: Entry, operations: list[Operation]) -> list[Step]:
    if not operations:
        return []
    patch = Patch("json-patch", fence(entry.uid, wanted.version) + operations)
    shown = tuple(operations)
    return [
        Step(
            "patch",
            wanted.ref,
            wanted.reason,
            patch=patch,
            uid=entry.uid,
            operations=shown,
            independent=wanted.independent,
            content=_content(wanted),
        )
    ]


def _content(wanted: Present) -> int:
    """Return a hash of a copy's content, 0 for other objects."""
    return hash(orjson.dumps(wanted.manifest, option=orjson.OPT_SORT_KEYS)) if wanted.replaceable else 0


def _granted(key: Key, wanted: TokenSecret, world: World) -> list[Step] | Problem:
    """Return the step that writes the Secret. Renewed tokens are not shown, as no person decides about them."""
    cache = world.cache(wanted.ref.cluster, wanted.ref.kind, key.lower)
    entry = cache.get(wanted.ref.namespace, wanted.ref.name) if cache else None
    grant = TokenGrant(wanted.account, wanted.asks, world.now)
    if entry is None:
        whole: tuple[Operation, ...] = ({"op": "add", "path": "", "value": wanted.manifest},)
        return [Step("create", wanted.ref, wanted.reason, body=wanted.manifest, operations=whole, grant=grant)]
    seen = entry.manifest()
    if not is_ours(seen, world.owner):
        problem = adoption_problem(wanted.ref, seen, annotations(wanted.manifest).get(UPPER_UID, ""), world, key.lower)
        return problem or _adopt(Present(wanted.ref, wanted.manifest, wanted.reason), entry)
    renewed: tuple[Operation, ...] = (
        {"op": "add", "path": "/data", "value": wanted.manifest["data"]},
        {"op": "add", "path": TERM_PATH, "value": ""},
    )
    patch = Patch("json-patch", [*fence(entry.uid, metadata(seen)["resourceVersion"]), *renewed])
    return [
        Step(
            "patch",
            wanted.ref,
            wanted.reason,
            patch=patch,
            uid=entry.uid,
            operations=renewed,
            in_plan=False,
            grant=grant,
        )
    ]


def _patched(wanted: Patched) -> Step:
    return Step(
        "patch",
        wanted.ref,
        wanted.reason,
        patch=wanted.patch,
        subresource=wanted.subresource,
        uid=_uid_of(wanted.patch),
        operations=_operations_of(wanted.patch),
        in_plan=wanted.in_plan,
        requested=wanted.requested,
        after_restore=wanted.after_restore,
        independent=wanted.independent,
    )


def _uid_of(patch: Patch) -> str:
    """Return the UID that a patch requires, "" for none."""
    if patch.media == "json-patch":
        return next((str(operation["value"]) for operation in patch.body if operation["path"] == "/metadata/uid"), "")
    return uid_of(patch.body)


def _operations_of(patch: Patch) -> tuple[Operation, ...]:
    """Return a patch's content as operations: without preconditions, and for merge patches without all metadata."""
    if patch.media == "json-patch":
        return tuple(
            operation for operation in patch.body if operation["op"] != "test" and operation["path"] not in _FENCES
        )
    found: list[Operation] = []
    for section, content in patch.body.items():
        for name, value in content.items() if section != "metadata" else ():
            found.append({"op": "replace", "path": f"/{section}/{name}", "value": value})
    return tuple(found)


def event(emitted: EmitEvent, now: datetime) -> Step:
    """Return the step that records an Event. Its name follows from its content, so that it is recorded once."""
    digest = sha256(f"{emitted.uid}/{emitted.reason}/{emitted.message}".encode()).hexdigest()[:16]
    name = f"{emitted.about.name[:_NAME_LIMIT].rstrip('-.')}.{digest}"
    ref = Ref(emitted.about.cluster, EVENT, emitted.about.namespace or "default", name)
    time = timestamp(now)
    body: dict[str, Any] = {
        "apiVersion": EVENT.api,
        "kind": EVENT.name,
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "involvedObject": {
            "apiVersion": emitted.about.kind.api,
            "kind": emitted.about.kind.name,
            "namespace": emitted.about.namespace,
            "name": emitted.about.name,
            "uid": emitted.uid,
        },
        "reason": emitted.reason,
        "message": cut(emitted.message, _MESSAGE_LIMIT),
        "type": "Warning" if emitted.warning else "Normal",
        "source": {"component": COMPONENT},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
    return Step("create", ref, emitted.reason, body=body, in_plan=False, independent=True)
