"""Check of zones: a bound volume labelled with a zone or region can only be used from there."""

from collections.abc import Iterable, Iterator

from tensile.objects import Manifest, labels
from tensile.policy.placing.check import Nowhere, Prepared
from tensile.policy.placing.claims import DELAYED, claim_of, class_of, volume_of
from tensile.policy.placing.snapshot import Node, Pod, Snapshot, Storage

CONFLICT = "node(s) had no available volume zone"
_BETA = "failure-domain.beta.kubernetes.io/"
_STABLE = "topology.kubernetes.io/"
_KEYS = (*(_BETA + name for name in ("zone", "region")), *(_STABLE + name for name in ("zone", "region")))
Zone = tuple[str, frozenset[str]]
"""A label key, and the values of it that do."""


def zones(pod: Pod, snapshot: Snapshot) -> Prepared | Nowhere | None:
    """Judge by the zones of bound volumes; nodes that are in no zone at all do."""
    names = [name for name in pod.claims if name not in pod.own_claims]
    found: list[Zone] = []
    for claim in (claim_of(name, pod, snapshot.storage) for name in names):
        told = _zones(claim, snapshot.storage) if claim else ()
        if isinstance(told, Nowhere):
            return told
        found += told
    if not found:
        return None

    def judge(node: Node) -> tuple[str, ...]:
        """Compare the labels of the node."""
        placed = any(key in node.labels for key in _KEYS)
        return (CONFLICT,) if placed and not all(_is_in(node, *zone) for zone in found) else ()

    return Prepared(judge, lambda node: ", ".join(_misses(node, found)))


def _zones(claim: Manifest, storage: Storage) -> Iterable[Zone] | Nowhere:
    """Give the zones of a claim's volume."""
    name = volume_of(claim)
    if not name:
        kind = storage.classes.get(class_of(claim))
        return () if kind and kind.get("volumeBindingMode") == DELAYED else Nowhere("PersistentVolume had no name")
    volume = storage.volumes.get(name)
    if volume is None:
        return Nowhere(f'persistentvolume "{name}" not found')
    carried = labels(volume)
    return [(key, frozenset(part.strip() for part in carried[key].split("__"))) for key in _KEYS if key in carried]


def _is_in(node: Node, key: str, values: frozenset[str]) -> bool:
    """Say whether a node is in a zone; one with the older label also by the newer one."""
    return node.labels.get(key, node.labels.get(key.replace(_BETA, _STABLE))) in values


def _misses(node: Node, found: Iterable[Zone]) -> Iterator[str]:
    return (f"volume in {' or '.join(sorted(values))}" for key, values in found if not _is_in(node, key, values))
