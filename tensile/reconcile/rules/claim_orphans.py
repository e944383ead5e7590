"""The rule for lower claims that never had a volume and whose upper claim is missing without a seen deletion.

They hold no data, yet a missing upper claim may come back. So each is read at quorum first, and all of one lower are
decided in one plan, which the guard can hold. A claim with a volume stays, whatever is missing in the upper cluster:
only its placeholder's reclaim policy deletes it.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.objects import CLAIM, UPPER, VOLUME, Ref
from tensile.reconcile.desired import Absent, Decision, VerifyAbsent, Watch
from tensile.reconcile.rules.claims import can_tell, is_copy, is_enabled, may_hold_data, without_volume
from tensile.reconcile.world import Key, LowerWorld, World

NAME = "claim-orphans"
_COLLECT = 0.5


def key_of(lower: str) -> Key:
    """Return the one key of a lower."""
    return Key(NAME, lower, "", "")


class ClaimOrphanRule:
    """The rule with one key for each lower that has the controller PV."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch upper claims that are deleted, and lower ones that have no upper one."""
        return (
            Watch("upper.PersistentVolumeClaim", _above, delay=_COLLECT),
            Watch("PersistentVolumeClaim", _below, delay=_COLLECT),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key."""
        if is_enabled(world.lowers[lower]):
            yield key_of(lower)

    def decide(self, key: Key, world: World) -> Decision:
        """Return deletions of certain orphans and quorum reads of uncertain ones."""
        lower = world.lowers[key.lower]
        if not can_tell(lower, world) or lower.unreachable_seconds:
            return Decision()
        copies = sorted(lower.placed(lower.more[CLAIM]), key=lambda copy: (copy.namespace, copy.name))
        return Decision(tuple(one for copy in copies for one in _orphan(copy, lower, world)))


def _orphan(copy: Entry, lower: LowerWorld, world: World) -> Iterator[Absent | VerifyAbsent]:
    facts = copy.facts
    above = Ref(UPPER, CLAIM, lower.upper_namespace(copy.namespace), copy.name)
    claims = world.upper.more[CLAIM]
    spared = may_hold_data(copy) or facts.terminating or not is_copy(copy, world.owner) or not above.namespace
    if spared or claims.get(above.namespace, above.name) or world.upper.more[VOLUME].select("lower_claim", copy.uid):
        return
    departure = claims.tombstone(above.namespace, above.name)
    if departure is None or not claims.is_deleted(above.namespace, above.name, facts.upper_uid):
        yield VerifyAbsent(above, facts.upper_uid, "its claim below stands", requested=False)
    elif not (departure.seen and departure.uid == facts.upper_uid):
        reason = "its upper claim is gone, and nobody is known to have deleted it"
        yield without_volume(copy, lower, reason, asked=False, lost=claims.is_lost(above.namespace, above.name))


def _above(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key when an upper claim that has a copy is deleted."""
    here, entry = world.lowers[lower], delta.entry
    if delta.after is None and here.more[CLAIM].get(here.namespace(entry.namespace), entry.name) is not None:
        yield key_of(lower)


def _below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key when a lower claim has no upper one."""
    here, after = world.lowers[lower], delta.after
    for namespace in here.above(after.namespace) if after else ():
        if world.upper.more[CLAIM].get(namespace, delta.entry.name) is None:
            yield key_of(lower)
