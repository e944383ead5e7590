"""The active namespace mapping of a lower cluster, and when another one may replace it.

Every mapped name depends on the mapping, so a change while pods run would lose them all: by a reload, a restart with
another file, or a renamed topology. So the virtual node records the active mapping, which stays until nothing is left
that would be looked up under the wrong name.
"""

import re

from tensile.names import NAMESPACE_MAPPING, VIRTUAL_NODE
from tensile.objects import VOLUME, Manifest, annotations, labels
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.pods.index import is_mirror
from tensile.reconcile.rules.claims import is_enabled
from tensile.reconcile.world import LowerWorld, NamespaceNaming, World, mapping_note
from tensile.topology import Lower

_NOTED = re.compile(r"same|prefix=([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)")


def asked_for(spec: Lower, world: World) -> NamespaceNaming | None:
    """Return the mapping that the topology requests for a lower, None for the same names."""
    return NamespaceNaming(world.topology.name, world.owner.mark) if spec.namespaces.mapping == "prefix" else None


def learn(lower: LowerWorld, world: World) -> bool:
    """Activate the mapping once it is certain. Report whether that happened now."""
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
    """Activate the mapping that the virtual node records, if any: for callers that only read."""
    noted = _noted(lower, world)
    lower.naming = _read(noted, world) if noted else asked_for(lower.spec, world)


def may_change(lower: LowerWorld, world: World) -> bool:
    """Report whether nothing is left in a lower that another mapping would look up under the wrong name."""
    return _is_listed(lower, world) and not (lower.is_bound or lower.has_orphans or _has_volumes(lower, world))


def _stays(lower: LowerWorld, wanted: NamespaceNaming | None, noted: str, world: World) -> bool:
    """Report whether another mapping than the requested one has to stay active.

    Without a record it is the one of the running pods.
    """
    lower.naming = _other(wanted, noted, world)
    return not may_change(lower, world) if noted else _has_copies(lower, world)


def _other(wanted: NamespaceNaming | None, noted: str, world: World) -> NamespaceNaming | None:
    """Return the recorded mapping. Without a record, return the one that is not requested."""
    if noted:
        return _read(noted, world)
    return NamespaceNaming(world.topology.name, world.owner.mark) if wanted is None else None


def _noted(lower: LowerWorld, world: World) -> str:
    """Return the record on the virtual node, "" if none counts. With onConflict: adopt, another owner's Node counts."""
    entry = world.upper.nodes.get("", lower.node)
    node: Manifest = entry.manifest() if entry is not None else {}
    kind, value = VIRTUAL_NODE
    counts = bool(node) and (
        is_ours(node, world.owner) or ((lower.spec.on_conflict == "adopt") and labels(node).get(kind) == value)
    )
    noted = annotations(node).get(NAMESPACE_MAPPING, "") if counts else ""
    return noted if _NOTED.fullmatch(noted) else ""


def _read(noted: str, world: World) -> NamespaceNaming | None:
    name = noted.partition("=")[2]
    return NamespaceNaming(name, world.owner.mark) if name else None


def _is_listed(lower: LowerWorld, world: World) -> bool:
    """Report whether all caches that a change of the mapping depends on are synced."""
    caches = [lower.upper_pods, lower.pods, lower.namespaces, world.upper.namespaces]
    caches += [world.upper.more[VOLUME]] if is_enabled(lower) else []
    return all(cache.synced for cache in caches)


def _has_copies(lower: LowerWorld, world: World) -> bool:
    """Report whether there are copies of upper pods that have run."""
    for upper in lower.upper_pods:
        below = lower.pods.get(lower.namespace(upper.namespace), upper.name) if upper.facts.ran else None
        if below is not None and is_mirror(below, world.owner) and below.facts.upper_uid == upper.uid:
            return True
    return False


def _has_volumes(lower: LowerWorld, world: World) -> bool:
    """Report whether there are placeholders of ours for volumes of a lower."""
    ours = (one.facts for one in world.upper.more[VOLUME])
    return any(facts.owner == world.owner.mark and facts.lower == lower.name for facts in ours)
