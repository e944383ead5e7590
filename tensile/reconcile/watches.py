"""The rules of mirrored kinds, and the kinds that each controller of the topology watches.

A controller is a few rules and the kinds that they read, on both sides, besides those that all pods need. Only those of
enabled controllers are listed: without a controller, its kinds need no permissions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

from tensile.kube.cluster import Selection
from tensile.kube.store import Cache, Index, Transform, keep_all
from tensile.names import OWNER, Owner
from tensile.objects import CLAIM, CLUSTER_ROLE, STORAGE_CLASS, VOLUME, Kind
from tensile.reconcile.rules import claims, config, endpoint_slices, rbac, service_accounts, services, volumes
from tensile.reconcile.rules.mirror import MirroredKind, MirrorRule
from tensile.reconcile.schemas import checked
from tensile.topology import Controller

MIRRORED: tuple[MirrorRule, ...] = (
    config.RULE,
    service_accounts.RULE,
    rbac.RULE,
    services.RULE,
    endpoint_slices.RULE,
)
"""The rules of mirrored kinds, in the order in which their keys are listed. CONTRIBUTING.md says how to add one."""


class WatchedKind(NamedTuple):
    """One watched kind, in the upper cluster (`above`) or in each lower, and how it is cached.

    With `ours`, only objects with our mark are watched.
    """

    kind: Kind
    above: bool
    ours: bool = False
    digest: Transform = keep_all
    indexes: Mapping[str, Index] = {}

    def selection(self, owner: Owner) -> Selection:
        """Return which objects are watched."""
        return Selection(labels=f"{OWNER}={owner.mark}") if self.ours else Selection()


_MORE: dict[Controller, tuple[WatchedKind, ...]] = {
    "PV": (
        WatchedKind(CLAIM, above=True, digest=claims.digest, indexes=claims.INDEXES),
        WatchedKind(VOLUME, above=True, ours=True, digest=volumes.digest, indexes=volumes.INDEXES),
        WatchedKind(STORAGE_CLASS, above=True),
        WatchedKind(CLAIM, above=False, ours=True, digest=claims.digest, indexes=claims.INDEXES),
        WatchedKind(VOLUME, above=False, digest=volumes.digest_below, indexes=volumes.INDEXES_BELOW),
    ),
    "RBAC": (WatchedKind(CLUSTER_ROLE, above=False, digest=rbac.existence),),
}


def follows(rules: Sequence[MirrorRule]) -> dict[Controller, tuple[WatchedKind, ...]]:
    """Return the kinds by controller: the originals and our copies of those that it mirrors, and what else it reads."""
    found: dict[Controller, tuple[WatchedKind, ...]] = {}
    for controller in get_args(Controller):
        mirrored = (one for rule in rules if rule.controller == controller for one in rule.kinds)
        found[controller] = (*(side for one in mirrored for side in _sides(one)), *_MORE.get(controller, ()))
    return found


def _sides(one: MirroredKind) -> Iterator[WatchedKind]:
    yield WatchedKind(one.kind, above=True, digest=one.digest_above, indexes=one.indexes_above)
    yield WatchedKind(one.kind, above=False, ours=True, digest=one.digest_below, indexes=one.indexes_below)


FOLLOWS = follows(MIRRORED)
"""The kinds by controller. A kind that two controllers watch on one side is the same in both."""


def watched_kinds(controllers: Iterable[Controller], *, above: bool) -> dict[Kind, WatchedKind]:
    """Return what these controllers watch on one side."""
    found = (follow for controller in controllers for follow in FOLLOWS[controller])
    return {follow.kind: follow for follow in found if follow.above == above}


def caches(*, above: bool) -> dict[Kind, Cache]:
    """Create a cache for each kind that any controller watches on one side. It is not synced until it is fed."""
    return {kind: cache_of(one) for kind, one in watched_kinds(FOLLOWS, above=above).items()}


def cache_of(one: WatchedKind) -> Cache:
    """Create the cache of a kind. Objects of a lower cluster are checked before they are transformed."""
    return Cache(one.digest if one.above else checked(one.kind, one.digest), one.indexes)
