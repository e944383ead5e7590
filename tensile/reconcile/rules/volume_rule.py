"""The rule for upper volumes: one placeholder for each claim that a lower cluster serves, from creation to reclaim.

A stock upper scheduler waits for a volume before it binds the pod, so the placeholder is created as soon as the lower
cluster has accepted the claim. A scheduler that ignores volumes has bound the pod already, so the placeholder is
created with the lower volume. Data are deleted when the upper cluster requests it: the claim is gone and the policy is
Delete. Then the lower claim is deleted by its UID, and after it the placeholder. With Retain nothing is deleted.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.objects import CLAIM, STORAGE_CLASS, UPPER, VOLUME, Manifest, Ref, annotations, labels
from tensile.reconcile.adoption import adopts
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Present, VerifyAbsent, Watch
from tensile.reconcile.ownership import has_node, node_begins
from tensile.reconcile.rules import claim_rule
from tensile.reconcile.rules.claims import can_tell, copy_in, home, is_copy, is_enabled, is_selected
from tensile.reconcile.rules.volumes import below, claim_uid_of, facts_below, name_of, placeholder
from tensile.reconcile.world import Key, LowerWorld, World

NAME = "volume"
_SECTIONS = ("metadata.annotations", "spec.capacity")


def key_of(lower: str, name: str) -> Key:
    """Return the key of an upper volume that represents one of a lower."""
    return Key(NAME, lower, "", name)


class VolumeRule:
    """The rule with one key for each placeholder of a lower, existing or to be created."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch volumes and claims on both sides, and the node, without which nothing is created."""
        return (
            Watch("upper.PersistentVolumeClaim", _claim_above),
            Watch("upper.PersistentVolume", _above),
            Watch("PersistentVolumeClaim", _claim_below),
            Watch("PersistentVolume", _below),
            Watch("upper.nodes", _node),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of every placeholder of the lower, and of every claim that may need one."""
        here = world.lowers[lower]
        if not is_enabled(here):
            return
        found = {volume.name for volume in world.upper.more[VOLUME] if volume.facts.lower == lower}
        found |= {name_of(claim.uid) for claim in world.upper.more[CLAIM].select("node", here.node)}
        copies = (copy for copy in here.placed(here.more[CLAIM]) if is_copy(copy, world.owner))
        found |= {name_of(copy.facts.upper_uid) for copy in copies}
        yield from sorted(key_of(lower, name) for name in found)

    def decide(self, key: Key, world: World) -> Decision:
        """Return what one placeholder should be."""
        lower = world.lowers[key.lower]
        if not can_tell(lower, world) or not world.upper.more[STORAGE_CLASS].synced:
            return Decision()
        volume = world.upper.more[VOLUME].get("", key.name)
        if volume is None or volume.facts.owner != world.owner.mark:
            return _new(key, volume, lower, world)
        if volume.facts.lower != lower.name:
            return Decision()
        return _reclaimed(volume, lower, world) if volume.facts.released else _kept(volume, lower)


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
    if claim.facts.passing and not is_selected(claim):
        return Decision()
    if copy is None and not claim.facts.passing:
        return Decision(depends_on=(claim_rule.key_of(lower.name, claim.namespace, claim.name),))
    if not is_selected(claim) and below(lower, copy) is None:
        return Decision()
    return Decision((*_told(key, claim, world), _placeholder(claim, copy, lower, world)))


def _told(key: Key, claim: Entry, world: World) -> Iterator[EmitEvent]:
    """Yield an event on the claim about what keeps its volume from being created."""
    problem = world.problems.get(key)
    if problem is not None:
        yield EmitEvent(Ref(UPPER, CLAIM, claim.namespace, claim.name), claim.uid, problem.reason, problem.message)


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
    """Return the placeholder of a claim, with the size of the lower claim, else the requested one."""
    manifest = claim.manifest()
    size = _size_below(copy) or manifest["spec"]["resources"]["requests"]["storage"]
    volume = below(lower, copy)
    made = placeholder(manifest, lower, world.owner, _policy(claim, volume, world), size)
    made["metadata"]["annotations"] |= facts_below(copy, volume)
    reason = f"claim {claim.namespace}/{claim.name} is to have its volume in lower cluster {lower.name}"
    return Present(Ref(UPPER, VOLUME, "", name_of(claim.uid)), made, reason, sections=_SECTIONS)


def _policy(claim: Entry, volume: Entry | None, world: World) -> str:
    """Return the upper class's reclaim policy; without a class, the lower volume's own, in doubt Retain.

    The placeholder of an ephemeral volume represents nothing that could be lost.
    """
    if claim.facts.passing:
        return "Delete"
    known = world.upper.more[STORAGE_CLASS].get("", claim.facts.storage_class)
    if known is not None:
        return str(known.manifest().get("reclaimPolicy") or "Delete")
    return "Delete" if volume is not None and volume.facts.policy == "Delete" else "Retain"


def _kept(volume: Entry, lower: LowerWorld) -> Decision:
    """Update a placeholder's annotations and capacity from the lower claim and its volume."""
    copy = _holder(volume, lower)
    if copy is None:
        return Decision()
    manifest = volume.manifest()
    size = _size_below(copy)
    notes = {**manifest["metadata"]["annotations"], **facts_below(copy, below(lower, copy))}
    wanted: Manifest = {
        "metadata": {"name": volume.name, "labels": labels(manifest), "annotations": notes},
        "spec": {"capacity": {"storage": size} if size else manifest["spec"]["capacity"]},
    }
    ref, reason = Ref(UPPER, VOLUME, "", volume.name), "the lower claim says so"
    return Decision((Present(ref, wanted, reason, sections=_SECTIONS),))


def _holder(volume: Entry, lower: LowerWorld) -> Entry | None:
    """Return the lower claim that holds a placeholder's data."""
    namespace, name = volume.facts.claim
    copy = lower.more[CLAIM].get(lower.namespace(namespace), name)
    return copy if copy is not None and copy.uid == volume.facts.lower_claim else None


def _reclaimed(volume: Entry, lower: LowerWorld, world: World) -> Decision:
    """Apply the reclaim policy of a placeholder whose claim is gone."""
    facts = volume.facts
    holder = world.upper.more[CLAIM].get(*facts.claim)
    if not facts.deletes or (holder is not None and holder.uid == facts.claim_uid):
        return Decision()
    gone = Absent(Ref(UPPER, VOLUME, "", volume.name), volume.uid, "its claim and what it stood for are gone")
    if not facts.lower_claim:
        return Decision() if facts.terminating else Decision((gone,))
    return _data_go(volume, gone, lower, world)


def _data_go(volume: Entry, gone: Absent, lower: LowerWorld, world: World) -> Decision:
    """Delete the lower claim by its UID, and then the placeholder."""
    facts = volume.facts
    namespace, name = lower.namespace(facts.claim[0]), facts.claim[1]
    ref = Ref(lower.name, CLAIM, namespace, name)
    copy = lower.more[CLAIM].get(namespace, name)
    if copy is not None and copy.uid == facts.lower_claim:
        asked = f"the upper claim was deleted, and volume {volume.name} has the policy Delete"
        its = is_copy(copy, world.owner) and copy.facts.upper_uid in (facts.upper_uid, facts.claim_uid)
        return Decision((Absent(ref, copy.uid, asked),) if its and not copy.facts.terminating else ())
    if copy is None and lower.more[CLAIM].tombstone(namespace, name) is None:
        return Decision((VerifyAbsent(ref, facts.lower_claim, "it has to be gone before its volume above goes"),))
    return Decision() if facts.terminating else Decision((gone,))


def _size_below(copy: Entry | None) -> str:
    """Return the size of a lower claim that has its volume, else ""."""
    if copy is None or not copy.facts.bound:
        return ""
    return str((copy.manifest()["status"].get("capacity") or {}).get("storage", ""))


def _claim_above(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield a claim's placeholders if this lower's node is chosen for it, or its copy or volume is in this lower."""
    here, entry = world.lowers[lower], delta.entry
    chosen = any(one is not None and one.facts.selected == here.node for one in delta)
    if chosen or copy_in(here, entry, world) is not None:
        yield key_of(lower, name_of(entry.uid))
    for volume in world.upper.more[VOLUME].select("claim", entry.uid):
        if volume.facts.lower == lower:
            yield key_of(lower, volume.name)


def _above(_world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.facts.lower == lower:
        yield key_of(lower, delta.entry.name)


def _claim_below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the placeholders that name a lower claim, and the one that it does not have yet."""
    yield from _standing_for(world, lower, delta.entry.uid)
    if is_copy(delta.entry, world.owner):
        yield key_of(lower, name_of(delta.entry.facts.upper_uid))


def _below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the placeholders of the claim that has a lower volume, and the one that this claim does not have yet."""
    holder = delta.entry.facts.claim_uid
    yield from _standing_for(world, lower, holder)
    for copy in world.lowers[lower].more[CLAIM].select("uid", holder):
        if is_copy(copy, world.owner):
            yield key_of(lower, name_of(copy.facts.upper_uid))


def _node(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    here = world.lowers[lower]
    if is_enabled(here) and node_begins(here, delta):
        for claim in world.upper.more[CLAIM].select("node", here.node):
            yield key_of(lower, name_of(claim.uid))


def _standing_for(world: World, lower: str, lower_claim: str) -> Iterator[Key]:
    for volume in world.upper.more[VOLUME].select("lower_claim", lower_claim):
        if volume.facts.lower == lower:
            yield key_of(lower, volume.name)
