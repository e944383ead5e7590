"""By which names the namespaces of a lower cluster go: the mapping in force, and when another one may follow.

Every place in a lower cluster follows from the mapping, so one that changed while pods run would lose them all: a
reload, a restart with another file, a topology that was renamed. So the virtual node notes the mapping in force, and
that one stays until nothing is left that would be looked for in the wrong place.
"""

import re

from tensile.names import NAMESPACE_MAPPING, VIRTUAL_NODE
from tensile.objects import VOLUME, Manifest, annotations, labels
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.pods.index import is_mirror
from tensile.reconcile.rules.claims import is_enabled
from tensile.reconcile.world import LowerWorld, Naming, World, mapping_note
from tensile.topology import Lower

_NOTED = re.compile(r"same|prefix=([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)")


def asked_for(spec: Lower, world: World) -> Naming | None:
    """Return the mapping that a topology asks for in a lower, None for the same names."""
    return Naming(world.topology.name, world.owner.mark) if spec.namespaces.mapping == "prefix" else None


def learn(lower: LowerWorld, world: World) -> bool:
    """Put the mapping in force as soon as it is certain; return whether it just has become so."""
    if lower.mapping_known or not world.upper.nodes.synced:
        return False
    wanted, noted = asked_for(lower.spec, world), _noted(lower, world)
    if noted != mapping_note(wanted):
        if not _is_listed(lower, world):
            return False
        stays = _stays(lower, wanted, noted, world)
        lower.naming = _other(wanted, noted, world) if stays else wanted
    lower.mapping_known = True
    return True


def follow_note(lower: LowerWorld, world: World) -> None:
    """Put the mapping in force that the virtual node notes, where it notes one; for who only looks."""
    noted = _noted(lower, world)
    lower.naming = _read(noted, world) if noted else asked_for(lower.spec, world)


def may_change(lower: LowerWorld, world: World) -> bool:
    """Report whether nothing is left in a lower that would be looked for in the wrong place by another mapping."""
    return _is_listed(lower, world) and not (lower.is_bound or lower.has_orphans or _has_volumes(lower, world))


def _stays(lower: LowerWorld, wanted: Naming | None, noted: str, world: World) -> bool:
    """Report whether another mapping than the one that is asked for has to stay in force.

    Without a note it is the one by which pods run.
    """
    lower.naming = _other(wanted, noted, world)
    return not may_change(lower, world) if noted else _has_copies(lower, world)


def _other(wanted: Naming | None, noted: str, world: World) -> Naming | None:
    """Return the mapping that is noted; without a note, the one that is not asked for."""
    if noted:
        return _read(noted, world)
    return Naming(world.topology.name, world.owner.mark) if wanted is None else None


def _noted(lower: LowerWorld, world: World) -> str:
    """Return what the virtual node notes, "" for nothing that counts: another's Node does where it is taken over."""
    entry = world.upper.nodes.get("", lower.node)
    node: Manifest = entry.manifest() if entry is not None else {}
    kind, value = VIRTUAL_NODE
    counts = bool(node) and (
        is_ours(node, world.owner) or ((lower.spec.on_conflict == "adopt") and labels(node).get(kind) == value)
    )
    noted = annotations(node).get(NAMESPACE_MAPPING, "") if counts else ""
    return noted if _NOTED.fullmatch(noted) else ""


def _read(noted: str, world: World) -> Naming | None:
    name = noted.partition("=")[2]
    return Naming(name, world.owner.mark) if name else None


def _is_listed(lower: LowerWorld, world: World) -> bool:
    """Report whether all that a change of the mapping rests on is known."""
    caches = [lower.upper_pods, lower.pods, lower.namespaces, world.upper.namespaces]
    caches += [world.upper.more[VOLUME]] if is_enabled(lower) else []
    return all(cache.synced for cache in caches)


def _has_copies(lower: LowerWorld, world: World) -> bool:
    """Report whether lower pods stand at the places of upper pods that have run."""
    for upper in lower.upper_pods:
        below = lower.pods.get(lower.namespace(upper.namespace), upper.name) if upper.facts.ran else None
        if below is not None and is_mirror(below, world.owner) and below.facts.upper_uid == upper.uid:
            return True
    return False


def _has_volumes(lower: LowerWorld, world: World) -> bool:
    """Report whether placeholders of ours stand for volumes of a lower."""
    ours = (one.facts for one in world.upper.more[VOLUME])
    return any(facts.owner == world.owner.mark and facts.lower == lower.name for facts in ours)
