"""What the guard holds back in a lower, as its Node tells it.

The Node is also where a hold for a restored store is kept, since an engine that starts afterwards has not seen it
happen. So what the Node says of that stays until it is certain that nothing rests on it any more: not while caches are
filled, nor while the lower is out of reach.
"""

from collections.abc import Iterator

from tensile.kubelet import orphans
from tensile.names import STORE_RESTORED
from tensile.objects import Manifest
from tensile.reconcile import claimorphans, following, rightorphans, strays, vacancies
from tensile.reconcile.desired import Absent, Confirmed, Patched, Rule
from tensile.reconcile.guard import noted
from tensile.world import Key, LowerWorld, Problem, World

RULES: tuple[Rule, ...] = (
    orphans.OrphanRule(),
    strays.StrayRule(),
    vacancies.VacancyRule(),
    claimorphans.ClaimOrphanRule(),
    rightorphans.RightsOrphanRule(),
)
"""The rules that end what nobody was seen to delete, with one key for each lower."""


def keys(lower: str) -> tuple[Key, ...]:
    """Give the keys whose problems tell what is held back in a lower."""
    return tuple(Key(rule.name, lower, "", "") for rule in RULES)


def held(seen: Manifest, lower: LowerWorld, world: World) -> Problem | None:
    """Say what is held back, None for nothing; `seen` is the Node as it is, {} when there is none."""
    found = [world.problems[key] for key in keys(lower.name) if key in world.problems]
    if found:
        return min(found, key=lambda one: one.reason != STORE_RESTORED)
    note = noted(seen)
    if note is None or (_is_certain(lower, world) and not any(_unasked(lower, world))):
        return None
    return Problem(STORE_RESTORED, note["message"])


def _is_certain(lower: LowerWorld, world: World) -> bool:
    """Say whether everything is known that the rules decide by."""
    if lower.silent or not lower.settled:
        return False
    sides = ((world.upper.more, True), (lower.more, False))
    kinds = ((more, kind) for more, above in sides for kind in following.followed(lower.spec.controllers, above=above))
    return all(more[kind].synced for more, kind in kinds) and all(cache.synced for cache in world.upper.caches())


def _unasked(lower: LowerWorld, world: World) -> Iterator[bool]:
    """Ask the rules for what nobody asked for."""
    for rule in RULES:
        for key in rule.keys(world, lower.name):
            wanted = rule.decide(key, world).wanted
            yield any(isinstance(one, Absent | Confirmed | Patched) and not one.asked for one in wanted)
