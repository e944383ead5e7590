"""The kinds that each controller of the topology watches, besides those that all pods need.

A controller is a few rules and the kinds that they read, on both sides. The kinds are declared here, so that only those
of enabled controllers are listed: without a controller, its kinds need no permissions.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tensile.kube.cluster import Selection
from tensile.kube.store import Cache, Index, Transform, keep_all
from tensile.names import OWNER, Owner
from tensile.objects import (
    CLAIM,
    CLUSTER_ROLE,
    ENDPOINT_SLICE,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    VOLUME,
    Kind,
)
from tensile.reconcile.rules import claims, rbac, service_accounts, service_index, volumes
from tensile.reconcile.schemas import checked
from tensile.topology import Controller


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


_SERVICES = (
    WatchedKind(
        SERVICE, above=True, digest=service_index.upper_service, indexes={"namespace": service_index.by_namespace}
    ),
    WatchedKind(
        ENDPOINT_SLICE,
        above=True,
        digest=service_index.upper_slice,
        indexes={"namespace": service_index.by_namespace, "service": service_index.by_service},
    ),
    WatchedKind(
        SERVICE,
        above=False,
        ours=True,
        digest=service_index.lower_service,
        indexes={"namespace": service_index.by_namespace},
    ),
    WatchedKind(
        ENDPOINT_SLICE,
        above=False,
        ours=True,
        digest=service_index.lower_slice,
        indexes={"service": service_index.by_service},
    ),
)
_STORAGE = (
    WatchedKind(CLAIM, above=True, digest=claims.digest, indexes=claims.INDEXES),
    WatchedKind(VOLUME, above=True, ours=True, digest=volumes.digest, indexes=volumes.INDEXES),
    WatchedKind(STORAGE_CLASS, above=True),
    WatchedKind(CLAIM, above=False, ours=True, digest=claims.digest, indexes=claims.INDEXES),
    WatchedKind(VOLUME, above=False, digest=volumes.digest_below, indexes=volumes.INDEXES_BELOW),
)
_RIGHTS = (
    WatchedKind(ROLE, above=True),
    WatchedKind(ROLE, above=False, ours=True),
    WatchedKind(ROLE_BINDING, above=True, digest=rbac.digest, indexes=rbac.INDEXES),
    WatchedKind(ROLE_BINDING, above=False, ours=True),
    WatchedKind(CLUSTER_ROLE, above=False, digest=rbac.existence),
)
_ACCOUNTS = (
    WatchedKind(SERVICE_ACCOUNT, above=True, digest=service_accounts.digest, indexes=service_accounts.INDEXES),
    WatchedKind(SERVICE_ACCOUNT, above=False, ours=True),
)
FOLLOWS: dict[Controller, tuple[WatchedKind, ...]] = {
    "PV": _STORAGE,
    "Service": _SERVICES,
    "RBAC": _RIGHTS,
    "ServiceAccount": _ACCOUNTS,
}
"""The kinds by controller. A kind that two controllers watch on one side is the same in both."""


def watched_kinds(controllers: Iterable[Controller], *, above: bool) -> dict[Kind, WatchedKind]:
    """Return what these controllers watch on one side."""
    found = (follow for controller in controllers for follow in FOLLOWS[controller])
    return {follow.kind: follow for follow in found if follow.above == above}


def caches(*, above: bool) -> dict[Kind, Cache]:
    """Create a cache for each kind that any controller watches on one side. It is not synced until it is fed."""
    kinds = watched_kinds(FOLLOWS, above=above)
    return {kind: Cache(_digest(follow), follow.indexes) for kind, follow in kinds.items()}


def _digest(follow: WatchedKind) -> Transform:
    """Return the transform of a kind. Objects of a lower cluster are checked first."""
    return follow.digest if follow.above else checked(follow.kind, follow.digest)
