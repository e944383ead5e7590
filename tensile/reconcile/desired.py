"""The result of a rule for one key: the desired objects, the dependencies, and the problem if any.

A rule names states, not requests. Whether a write is needed, and which, follows from a comparison with the observed
state. So all rules share the same code for idempotence, ownership and preconditions.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

import msgspec

from tensile.kube.cluster import Patch
from tensile.kube.store import Cache, Delta
from tensile.objects import Manifest, Ref
from tensile.reconcile.world import Key, Problem, World


class Present(msgspec.Struct, frozen=True, gc=False):
    """The object should exist and match `manifest`.

    If it exists, only `sections` are compared and changed ("metadata.labels" by key, others as a whole). With
    `replaceable`, an object made for another upper object, or with a difference in an immutable section, is deleted and
    created again. `version` (a resourceVersion) makes a change conditional on no other write since. `independent` as in
    `Patched`.
    """

    ref: Ref
    manifest: Manifest
    reason: str
    sections: tuple[str, ...] = ("metadata.labels", "metadata.annotations")
    replaceable: bool = False
    version: str = ""
    independent: bool = False


EvictionCause = Literal["descheduled", "drained", "preempted", "unreachable"]
"""Why the engine ends an upper pod: it fits elsewhere, its lower cluster is drained, a pod of a higher priority needs
its place, or its lower cluster has not answered for too long."""


class PodMove(NamedTuple):
    """The source and targets of a pod that is moved to another node.

    `source` and `targets` are virtual nodes, first the target whose capacity was checked. `node` is the real node
    behind that, "" if none is known.
    """

    source: str
    targets: tuple[str, ...]
    node: str


class Absent(msgspec.Struct, frozen=True, gc=False):
    """The object of that UID should not exist. `requested`: its upper object was deleted on request.

    `after_restore`: the deletion rests on objects that disappeared with a store's history. `only_if_empty`: it is a
    namespace, which is only deleted while it is empty. With a `version`, it is deleted only in that state.
    `independent` as in `Patched`. `evict`: it is a pod, deleted when its disruption budgets allow it. `moving` is where
    it moves, if that was determined. `cause` is why a pod is evicted, None for any other deletion.
    """

    ref: Ref
    uid: str
    reason: str
    grace: int | None = None
    requested: bool = True
    after_restore: bool = False
    only_if_empty: bool = False
    version: str = ""
    independent: bool = False
    evict: bool = False
    moving: PodMove | None = None
    cause: EvictionCause | None = None


class Patched(msgspec.Struct, frozen=True, gc=False):
    """A write that the rule computed itself, such as a status. It contains a UID or resourceVersion.

    `in_plan`: a person decides about it, unlike status and heartbeats. `requested` and `after_restore` as in `Absent`.
    An `independent` write blocks nothing: later writes are made even while it is refused.
    """

    ref: Ref
    patch: Patch
    reason: str
    subresource: str = ""
    in_plan: bool = False
    requested: bool = True
    after_restore: bool = False
    independent: bool = False


class VerifyAbsent(msgspec.Struct, frozen=True, gc=False):
    """The name must be read at quorum before any decision that rests on its absence.

    `uid` is what counts as present: the object's own UID, or that of its upper object.
    """

    ref: Ref
    uid: str
    reason: str
    requested: bool = True


class EmitEvent(msgspec.Struct, frozen=True, gc=False):
    """A Kubernetes Event to record about an object, once."""

    about: Ref
    uid: str
    reason: str
    message: str
    warning: bool = True


class TokenRequest(NamedTuple):
    """One token: its key in the Secret's data, and the TokenRequest to send."""

    entry: str
    request: Manifest


class TokenSecret(msgspec.Struct, frozen=True, gc=False):
    """A Secret should exist with newly issued tokens of an account, whatever tokens it contains.

    `manifest` is the Secret with "" for each token. If it exists, all of its data is replaced.
    """

    ref: Ref
    account: Ref
    asks: tuple[TokenRequest, ...]
    manifest: Manifest
    reason: str


Wanted = Present | Absent | Patched | VerifyAbsent | EmitEvent | TokenSecret


class Decision(NamedTuple):
    """The result of a rule for one key.

    `wanted` is in the order in which it must be achieved. `depends_on` are keys whose next result may change this one.
    `problem` is what blocks it, for people. `requeue_after` requests another reconciliation after so many seconds.
    `reports_on` are keys whose problem this result reports, without depending on them.
    """

    wanted: tuple[Wanted, ...] = ()
    depends_on: tuple[Key, ...] = ()
    problem: Problem | None = None
    requeue_after: float | None = None
    reports_on: tuple[Key, ...] = ()


def problem_events(key: Key, world: World, ref: Ref, uid: str, prefix: str = "") -> Iterator[EmitEvent]:
    """Yield an event about an object on what blocks a key, none if nothing does. `prefix` precedes the message."""
    problem = world.problems.get(key)
    if problem is not None:
        yield EmitEvent(ref, uid, problem.reason, f"{prefix}{problem.message}")


MapKeys = Callable[[World, str, Delta], Iterable[Key]]
"""Returns the keys that a change affects, from the world, the lower's name ("" for an upper cache) and the change."""


class Watch(NamedTuple):
    """A cache whose changes a rule watches.

    `cache` is the attribute's name in LowerWorld, or "upper.NAME" for one of UpperWorld. Instead of an attribute it may
    name a kind that a controller watches ("upper.Service"). `delay` in seconds collects several changes into one
    reconciliation.

    `facts` are the names of the facts on which the keys depend: changes of an existing object that leave them the same
    are not passed to `keys`. () selects objects that are created, deleted or replaced, None every change.
    """

    cache: str
    keys: MapKeys
    delay: float = 0.0
    facts: tuple[str, ...] | None = None


class Rule(Protocol):
    """The extension point: decides what should exist for one key. Synchronous and without side effects.

    The same rules serve `plan` and `run`.
    """

    @property
    def name(self) -> str:
        """The value of `Key.rule` for keys of this rule."""
        ...

    def watches(self) -> tuple[Watch, ...]:
        """Return which changes affect which keys."""
        ...

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Return every key of one lower."""
        ...

    def decide(self, key: Key, world: World) -> Decision:
        """Return what should exist for one key."""
        ...


def find_cache(world: World, lower: str, name: str) -> Cache:
    """Return the cache that a route names."""
    scope, _, attribute = name.rpartition(".")
    holder = world.upper if scope == "upper" else world.lowers[lower]
    for kind, cache in holder.more.items():
        if kind.name == attribute:
            return cache
    found: Cache = getattr(holder, attribute)
    return found
