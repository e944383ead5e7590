"""What a rule says about one key: what should be, what it waits for, and what is wrong.

A rule names states, not calls. Whether a write is needed at all, and which, is found out later by comparing it with
what is observed, so that every rule gets idempotence, ownership and preconditions from the same few lines.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from tensile.kube.cluster import Patch
from tensile.kube.store import Cache, Delta
from tensile.objects import Manifest, Ref
from tensile.reconcile.world import Key, Problem, World


class Present(msgspec.Struct, frozen=True, gc=False):
    """The object should exist and look like `manifest`.

    Once it exists, only `sections` are compared and changed ("metadata.labels" key by key, others whole); with
    `replaceable`, one made for another upper object, or differing in a section that cannot change, is deleted and made
    anew. `version` (a resourceVersion) makes a change conditional on nobody having written since. `apart` as in
    Patched.
    """

    ref: Ref
    manifest: Manifest
    reason: str
    sections: tuple[str, ...] = ("metadata.labels", "metadata.annotations")
    replaceable: bool = False
    version: str = ""
    apart: bool = False


class Moving(NamedTuple):
    """Where a pod comes from that leaves for another node, and where the one made in its place may go.

    `source` and `targets` are virtual nodes, the target first on which room was counted; `node` is the real one behind
    that, "" where none is known.
    """

    source: str
    targets: tuple[str, ...]
    node: str


class Absent(msgspec.Struct, frozen=True, gc=False):
    """The object of that UID should not exist; `asked` is whether somebody deleted its upper object.

    `lost` is whether it rests on what went missing with the history of a store. With `vacant` it is a namespace, and
    goes only where nothing is in it. With a `version` it goes only as it was then. `apart` as in Patched. One that is
    `evicted` is a pod, and goes when its disruption budgets allow it; `moving` is where to, where that was looked at.
    """

    ref: Ref
    uid: str
    reason: str
    grace: int | None = None
    asked: bool = True
    lost: bool = False
    vacant: bool = False
    version: str = ""
    apart: bool = False
    evicted: bool = False
    moving: Moving | None = None


class Patched(msgspec.Struct, frozen=True, gc=False):
    """One write that the rule has worked out itself, such as a status; it carries a UID or resourceVersion.

    `shown` is whether a person decides about it: status and heartbeats are not. `asked` and `lost` as in Absent. One
    that is `apart` holds nothing up: what comes after it is done also while it is refused.
    """

    ref: Ref
    patch: Patch
    reason: str
    subresource: str = ""
    shown: bool = False
    asked: bool = True
    lost: bool = False
    apart: bool = False


class Confirmed(msgspec.Struct, frozen=True, gc=False):
    """The name has to be read at quorum before anything that rests on its absence is decided.

    `uid` is what would have to be there for it to count as present: the object's own, or that of its upper object.
    """

    ref: Ref
    uid: str
    reason: str
    asked: bool = True


class Told(msgspec.Struct, frozen=True, gc=False):
    """A Kubernetes Event should say this about an object, once."""

    about: Ref
    uid: str
    reason: str
    message: str
    warning: bool = True


class Ask(NamedTuple):
    """One token: the key of the Secret's data under which it goes, and the TokenRequest to send for it."""

    entry: str
    request: Manifest


class Granted(msgspec.Struct, frozen=True, gc=False):
    """A Secret should exist with tokens of an account that are issued now, whatever tokens it has.

    `manifest` is the Secret with "" for each token; once it exists, all of its data is written anew.
    """

    ref: Ref
    account: Ref
    asks: tuple[Ask, ...]
    manifest: Manifest
    reason: str


Wanted = Present | Absent | Patched | Confirmed | Told | Granted


class Decision(NamedTuple):
    """A rule's answer for one key.

    `wanted` in the order in which it has to come true; `waits` are keys whose next result can change the answer;
    `problem` is what stands in the way, for people; `again` asks for another look after so many seconds; `heeds` are
    keys whose problem the answer tells of, without waiting for them.
    """

    wanted: tuple[Wanted, ...] = ()
    waits: tuple[Key, ...] = ()
    problem: Problem | None = None
    again: float | None = None
    heeds: tuple[Key, ...] = ()


Keys = Callable[[World, str, Delta], Iterable[Key]]
"""Which keys a change concerns: given the world, the lower's name ("" where an upper cache changed), the change."""


class Route(NamedTuple):
    """A cache whose changes a rule wants to hear of.

    `cache` is the attribute's name in LowerWorld, or "upper.NAME" for one of UpperWorld; in place of an attribute the
    name of a kind that a controller follows ("upper.Service"). `delay` in seconds collects several changes into one
    look.
    """

    cache: str
    keys: Keys
    delay: float = 0.0


class Rule(Protocol):
    """The seam: what should exist, for one key. Synchronous, without side effects, the same for `plan` and `run`."""

    @property
    def name(self) -> str:
        """What `Key.rule` says for keys of this rule."""
        ...

    def routes(self) -> tuple[Route, ...]:
        """Return which changes concern which keys."""
        ...

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Return every key of one lower that there is something to decide about."""
        ...

    def decide(self, key: Key, world: World) -> Decision:
        """Return what should be, for one key."""
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
