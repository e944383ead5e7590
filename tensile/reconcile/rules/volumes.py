"""Volumes on both sides: one placeholder in the upper cluster for each claim that a lower serves, until its reclaim.

A scheduler binds a pod only once its claims have volumes, and a lower cluster often creates a volume only for an
existing pod. So the upper cluster gets a placeholder: a volume on one virtual node that holds no data itself. What it
represents is written in its annotations, because Kubernetes does not allow a volume's source to change.

A stock upper scheduler waits for a volume before it binds the pod, so the placeholder is created as soon as the lower
cluster has accepted the claim. A scheduler that ignores volumes has bound the pod already, so the placeholder is
created with the lower volume. Data are deleted when the upper cluster requests it: the claim is gone and the policy is
Delete. Then the lower claim is deleted by its UID, and after it the placeholder. With Retain nothing is deleted.
"""

from collections.abc import Iterator

import msgspec
import orjson

from tensile.kube.store import Delta, Entry, Transformed
from tensile.names import HOSTNAME, LOWER, LOWER_CLAIM_UID, LOWER_VOLUME, LOWER_VOLUME_SOURCE, PROVISIONER
from tensile.objects import CLAIM, STORAGE_CLASS, UPPER, VOLUME, Manifest, Ref, annotations, labels, metadata
from tensile.reconcile.desired import Absent, Decision, Present, VerifyAbsent, Watch, problem_events
from tensile.reconcile.ownership import adopts, has_node, is_copy, marks_of
from tensile.reconcile.rules import claim_rule
from tensile.reconcile.rules.claims import class_of, copy_in, home, is_enabled, is_listed, is_selected
from tensile.reconcile.rules.mirror_rule import when_node_appears
from tensile.reconcile.world import Key, LowerWorld, World

NAME = "volume"
_SECTIONS = ("metadata.annotations", "spec.capacity")
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
SOURCE = {"path": "/tensile-placeholder"}
"""A path that does not exist: a volume needs a source, and `local` is the only kind that no controller touches."""
_PREFIX = "pvc-"
_NO_SOURCES = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)


class VolumeFacts(msgspec.Struct, frozen=True, gc=False):
    """One volume of the upper cluster.

    `owner` is our mark and `lower` the lower cluster that it is for ("" where it is not ours). `lower_claim` is the UID
    of the lower claim that holds the data, "" for none. `claim` and `claim_uid` are of the upper claim that has it.
    `released` is whether that claim is gone, `deletes` whether the data are to be deleted with it.
    """

    owner: str
    upper_uid: str
    lower: str
    lower_claim: str
    claim: tuple[str, str]
    claim_uid: str
    released: bool
    deletes: bool
    terminating: bool


class LowerVolume(msgspec.Struct, frozen=True, gc=False):
    """One volume of a lower cluster: the UID of the claim that has it, its kind of source and its reclaim policy."""

    claim_uid: str
    source: str
    policy: str


def name_of(claim_uid: str) -> str:
    """Return the name of the placeholder for an upper claim, in the form that every provisioner uses."""
    return _PREFIX + claim_uid


def claim_uid_of(name: str) -> str:
    """Return the UID of the claim that a placeholder of that name is for."""
    return name.removeprefix(_PREFIX)


def transform(raw: bytes) -> Transformed:
    """Transform a volume of the upper cluster: its bytes and facts."""
    volume: Manifest = orjson.loads(raw)
    spec, notes, marks = volume.get("spec") or {}, annotations(volume), marks_of(volume)
    claim_ref = spec.get("claimRef") or {}
    facts = VolumeFacts(
        owner=marks.owner,
        upper_uid=marks.upper_uid,
        lower=notes.get(LOWER, ""),
        lower_claim=notes.get(LOWER_CLAIM_UID, ""),
        claim=(claim_ref.get("namespace", ""), claim_ref.get("name", "")),
        claim_uid=claim_ref.get("uid", ""),
        released=(volume.get("status") or {}).get("phase") in ("Released", "Failed"),
        deletes=spec.get("persistentVolumeReclaimPolicy") == "Delete",
        terminating="deletionTimestamp" in metadata(volume),
    )
    return Transformed(raw, facts)


def transform_lower(raw: bytes) -> Transformed:
    """Transform a volume of a lower cluster to the facts that are reported upwards; it is never ours to change."""
    spec = orjson.loads(raw).get("spec") or {}
    claim_uid = (spec.get("claimRef") or {}).get("uid", "")
    return Transformed(b"", LowerVolume(claim_uid, _source(spec), spec.get("persistentVolumeReclaimPolicy", "Retain")))


def _source(spec: Manifest) -> str:
    """Return the kind of a volume's source, with its driver if it has one."""
    found = next((field for field in sorted(spec) if field not in _NO_SOURCES), "")
    driver = spec[found].get("driver") if found and isinstance(spec[found], dict) else ""
    return f"{found} {driver}" if driver else found


def _by_claim(entry: Entry) -> Iterator[str]:
    yield entry.facts.claim_uid


def _by_lower_claim(entry: Entry) -> Iterator[str]:
    yield entry.facts.lower_claim


INDEXES = {"claim": _by_claim, "lower_claim": _by_lower_claim}
LOWER_INDEXES = {"claim": _by_claim}


def lower_volume(lower: LowerWorld, claim: Entry | None) -> Entry | None:
    """Return the lower volume that a lower claim is bound to, None when there is none."""
    found = lower.more[VOLUME].select("claim", claim.uid) if claim is not None and claim.facts.bound else ()
    return found[0] if found else None


def lower_volume_annotations(copy: Entry | None, volume: Entry | None) -> dict[str, str]:
    """Return the annotations with the lower claim, and the volume that it has."""
    found = {LOWER_CLAIM_UID: copy.uid} if copy is not None else {}
    if volume is not None:
        found |= {LOWER_VOLUME: volume.name, LOWER_VOLUME_SOURCE: volume.facts.source}
    return found


def key_of(lower: str, name: str) -> Key:
    """Return the key of an upper volume that represents one of a lower."""
    return Key(NAME, lower, "", name)


class VolumeRule:
    """The rule with one key for each placeholder of a lower, existing or to be created."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch volumes and claims on both sides, and the node, without which nothing is created."""
        return (
            Watch("upper.PersistentVolumeClaim", _on_upper_claim),
            Watch("upper.PersistentVolume", _on_upper_volume),
            Watch("PersistentVolumeClaim", _on_lower_claim),
            Watch("PersistentVolume", _on_lower_volume),
            Watch("upper.nodes", when_node_appears(lambda world, lower_world: self.keys(world, lower_world.name))),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of every placeholder of the lower, and of every claim that may need one."""
        lower_world = world.lowers[lower]
        if not is_enabled(lower_world):
            return
        found = {volume.name for volume in world.upper.more[VOLUME] if volume.facts.lower == lower}
        found |= {name_of(claim.uid) for claim in world.upper.more[CLAIM].select("node", lower_world.node)}
        copies = (copy for copy in lower_world.placed(lower_world.more[CLAIM]) if is_copy(copy, world.owner))
        found |= {name_of(copy.facts.upper_uid) for copy in copies}
        yield from sorted(key_of(lower, name) for name in found)

    def decide(self, key: Key, world: World) -> Decision:
        """Return what one placeholder should be."""
        lower = world.lowers[key.lower]
        if not is_listed(world, lower) or not world.upper.more[STORAGE_CLASS].synced:
            return Decision()
        volume = world.upper.more[VOLUME].get("", key.name)
        if volume is None or volume.facts.owner != world.owner.mark:
            return _new(key, volume, lower, world)
        if volume.facts.lower != lower.name:
            return Decision()
        return _reclaimed(volume, lower, world) if volume.facts.released else _updated(volume, lower)


def _new(key: Key, foreign: Entry | None, lower: LowerWorld, world: World) -> Decision:
    """Create the placeholder of a claim that lives in this lower, once there is something that it can represent.

    A lower claim that is being deleted does not count: bound to that, the upper claim could never be used again.
    """
    found = world.upper.more[CLAIM].select("uid", claim_uid_of(key.name))
    claim = found[0] if found else None
    if claim is None or claim.facts.terminating or not has_node(lower, world):
        return Decision()
    if claim.facts.volume:
        return _left_by_another(key, claim, foreign, lower, world)
    if home(claim, world).lower != lower.name:
        return Decision()
    copy = copy_in(lower, claim, world)
    if copy is not None and copy.facts.terminating:
        return Decision()
    if claim.facts.ephemeral and not is_selected(claim):
        return Decision()
    if copy is None and not claim.facts.ephemeral:
        return Decision(depends_on=(claim_rule.key_of(lower.name, claim.namespace, claim.name),))
    if not is_selected(claim) and lower_volume(lower, copy) is None:
        return Decision()
    events = problem_events(key, world, Ref(UPPER, CLAIM, claim.namespace, claim.name), claim.uid)
    return Decision((*events, _placeholder(claim, copy, lower, world)))


def _left_by_another(key: Key, claim: Entry, volume: Entry | None, lower: LowerWorld, world: World) -> Decision:
    """Adopt the placeholder that a former engine made for a claim, if adoption is enabled."""
    ref = Ref(UPPER, VOLUME, "", key.name)
    if claim.facts.volume != key.name or not adopts(world, lower.name):
        return Decision()
    if volume is None:
        is_known = world.upper.more[VOLUME].tombstone("", key.name) is not None
        return Decision() if is_known else Decision((VerifyAbsent(ref, "", "its claim is bound to it"),))
    if volume.facts.lower != lower.name:
        return Decision()
    notes = annotations(volume.manifest()) | world.owner.signed(claim.uid)
    meta = {"name": key.name, "labels": world.owner.label, "annotations": notes}
    reason = f"claim {claim.namespace}/{claim.name} has its volume in lower cluster {lower.name}"
    return Decision((Present(ref, {"metadata": meta}, reason, sections=_SECTIONS),))


def _placeholder(claim: Entry, copy: Entry | None, lower: LowerWorld, world: World) -> Present:
    """Return the upper volume that represents the volume of an upper claim in a lower cluster.

    It has the size of the lower claim, else the requested one.
    """
    manifest, volume = claim.manifest(), lower_volume(lower, copy)
    meta, spec = metadata(manifest), manifest["spec"]
    kept = {field: spec[field] for field in ("accessModes", "volumeMode", "volumeAttributesClassName") if field in spec}
    node_requirement = {"key": HOSTNAME, "operator": "In", "values": [lower.node]}
    notes = {LOWER: lower.name, PROVISIONED_BY: PROVISIONER, **lower_volume_annotations(copy, volume)}
    made = {
        "apiVersion": VOLUME.api,
        "kind": VOLUME.name,
        "metadata": {
            "name": name_of(claim.uid),
            "labels": world.owner.label,
            "annotations": world.owner.signed(claim.uid) | notes,
        },
        "spec": {
            **kept,
            "capacity": {"storage": _size_of_lower_claim(copy) or spec["resources"]["requests"]["storage"]},
            "storageClassName": class_of(manifest) or "",
            "persistentVolumeReclaimPolicy": _policy(claim, volume, world),
            "claimRef": {
                "apiVersion": CLAIM.api,
                "kind": CLAIM.name,
                **{field: meta[field] for field in ("namespace", "name", "uid")},
            },
            "local": SOURCE,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node_requirement]}]}},
        },
    }
    reason = f"claim {claim.namespace}/{claim.name} needs a volume in lower cluster {lower.name}"
    return Present(Ref(UPPER, VOLUME, "", name_of(claim.uid)), made, reason, sections=_SECTIONS)


def _policy(claim: Entry, volume: Entry | None, world: World) -> str:
    """Return the upper class's reclaim policy; without a class, the lower volume's own, in doubt Retain.

    The placeholder of an ephemeral volume represents nothing that could be lost.
    """
    if claim.facts.ephemeral:
        return "Delete"
    known = world.upper.more[STORAGE_CLASS].get("", claim.facts.storage_class)
    if known is not None:
        return str(known.manifest().get("reclaimPolicy") or "Delete")
    return "Delete" if volume is not None and volume.facts.policy == "Delete" else "Retain"


def _updated(volume: Entry, lower: LowerWorld) -> Decision:
    """Update a placeholder's annotations and capacity from the lower claim and its volume."""
    copy = _lower_claim(volume, lower)
    if copy is None:
        return Decision()
    manifest = volume.manifest()
    size = _size_of_lower_claim(copy)
    notes = {**manifest["metadata"]["annotations"], **lower_volume_annotations(copy, lower_volume(lower, copy))}
    wanted: Manifest = {
        "metadata": {"name": volume.name, "labels": labels(manifest), "annotations": notes},
        "spec": {"capacity": {"storage": size} if size else manifest["spec"]["capacity"]},
    }
    ref, reason = Ref(UPPER, VOLUME, "", volume.name), "the lower claim has changed"
    return Decision((Present(ref, wanted, reason, sections=_SECTIONS),))


def _lower_claim(volume: Entry, lower: LowerWorld) -> Entry | None:
    """Return the lower claim that holds a placeholder's data."""
    namespace, name = volume.facts.claim
    copy = lower.more[CLAIM].get(lower.namespace(namespace), name)
    return copy if copy is not None and copy.uid == volume.facts.lower_claim else None


def _reclaimed(volume: Entry, lower: LowerWorld, world: World) -> Decision:
    """Apply the reclaim policy of a placeholder whose claim is gone."""
    facts = volume.facts
    claim = world.upper.more[CLAIM].get(*facts.claim)
    if not facts.deletes or (claim is not None and claim.uid == facts.claim_uid):
        return Decision()
    deletion = Absent(Ref(UPPER, VOLUME, "", volume.name), volume.uid, "its claim and its lower volume are gone")
    if not facts.lower_claim:
        return Decision() if facts.terminating else Decision((deletion,))
    return _delete_data(volume, deletion, lower, world)


def _delete_data(volume: Entry, deletion: Absent, lower: LowerWorld, world: World) -> Decision:
    """Delete the lower claim by its UID, and then the placeholder."""
    facts = volume.facts
    namespace, name = lower.namespace(facts.claim[0]), facts.claim[1]
    ref = Ref(lower.name, CLAIM, namespace, name)
    copy = lower.more[CLAIM].get(namespace, name)
    if copy is not None and copy.uid == facts.lower_claim:
        reason = f"the upper claim was deleted, and volume {volume.name} has reclaim policy Delete"
        is_its_copy = is_copy(copy, world.owner) and copy.facts.upper_uid in (facts.upper_uid, facts.claim_uid)
        return Decision((Absent(ref, copy.uid, reason),) if is_its_copy and not copy.facts.terminating else ())
    if copy is None and lower.more[CLAIM].tombstone(namespace, name) is None:
        return Decision((VerifyAbsent(ref, facts.lower_claim, "it must be gone before its upper volume is deleted"),))
    return Decision() if facts.terminating else Decision((deletion,))


def _size_of_lower_claim(copy: Entry | None) -> str:
    """Return the size of a lower claim that has its volume, else ""."""
    if copy is None or not copy.facts.bound:
        return ""
    return str((copy.manifest()["status"].get("capacity") or {}).get("storage", ""))


def _on_upper_claim(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield a claim's placeholders if this lower's node is chosen for it, or its copy or volume is in this lower."""
    lower_world, entry = world.lowers[lower], delta.entry
    chosen = any(one is not None and one.facts.selected == lower_world.node for one in delta)
    if chosen or copy_in(lower_world, entry, world) is not None:
        yield key_of(lower, name_of(entry.uid))
    for volume in world.upper.more[VOLUME].select("claim", entry.uid):
        if volume.facts.lower == lower:
            yield key_of(lower, volume.name)


def _on_upper_volume(_world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.facts.lower == lower:
        yield key_of(lower, delta.entry.name)


def _on_lower_claim(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the placeholders that name a lower claim, and the one that it does not have yet."""
    yield from _placeholder_keys(world, lower, delta.entry.uid)
    if is_copy(delta.entry, world.owner):
        yield key_of(lower, name_of(delta.entry.facts.upper_uid))


def _on_lower_volume(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the placeholders of the claim that has a lower volume, and the one that this claim does not have yet."""
    claim_uid = delta.entry.facts.claim_uid
    yield from _placeholder_keys(world, lower, claim_uid)
    for copy in world.lowers[lower].more[CLAIM].select("uid", claim_uid):
        if is_copy(copy, world.owner):
            yield key_of(lower, name_of(copy.facts.upper_uid))


def _placeholder_keys(world: World, lower: str, lower_claim: str) -> Iterator[Key]:
    for volume in world.upper.more[VOLUME].select("lower_claim", lower_claim):
        if volume.facts.lower == lower:
            yield key_of(lower, volume.name)
