"""What each controller of the topology follows, beyond what every pod needs anyway.

A controller is a few rules and the kinds that they look at, on either side. The kinds stand here, so that a cluster
is asked only for what a topology enables: without a controller, its kinds are not listed, and need no rights.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tensile.cache import Cache, Digest, Index, keep_all
from tensile.cluster import Selection
from tensile.names import OWNER, Owner
from tensile.objects import CLUSTER_ROLE, ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Kind
from tensile.reconcile import accounts, roles
from tensile.topology import Controller


class Follow(NamedTuple):
    """One kind that is followed, `above` in the upper cluster or else in each lower, and how it is kept.

    With `ours`, only what carries our mark.
    """

    kind: Kind
    above: bool
    ours: bool = False
    digest: Digest = keep_all
    indexes: Mapping[str, Index] = {}

    def selection(self, owner: Owner) -> Selection:
        """Say which objects are followed."""
        return Selection(labels=f"{OWNER}={owner.mark}") if self.ours else Selection()


FOLLOWS: dict[Controller, tuple[Follow, ...]] = {
    "PV": (),
    "Service": (),
    "RBAC": (
        Follow(ROLE, above=True),
        Follow(ROLE, above=False, ours=True),
        Follow(ROLE_BINDING, above=True, digest=roles.digest, indexes=roles.INDEXES),
        Follow(ROLE_BINDING, above=False, ours=True),
        Follow(CLUSTER_ROLE, above=False, digest=roles.existence),
    ),
    "ServiceAccount": (
        Follow(SERVICE_ACCOUNT, above=True, digest=accounts.digest, indexes=accounts.INDEXES),
        Follow(SERVICE_ACCOUNT, above=False, ours=True),
    ),
}
"""The kinds by controller. A kind that two controllers follow on one side is the same in both."""


def followed(controllers: Iterable[Controller], *, above: bool) -> dict[Kind, Follow]:
    """Give what these controllers follow on one side."""
    found = (follow for controller in controllers for follow in FOLLOWS[controller])
    return {follow.kind: follow for follow in found if follow.above == above}


def caches(*, above: bool) -> dict[Kind, Cache]:
    """Make a cache for each kind that any controller follows on one side; it stays out of sync until it is fed."""
    kinds = followed(FOLLOWS, above=above)
    return {kind: Cache(follow.digest, follow.indexes) for kind, follow in kinds.items()}
