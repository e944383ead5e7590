"""The rule for claims: a claim has one copy, which holds its data, in the lower cluster where its volume is.

The copy is created once and never again. If it was deleted in the lower cluster, its data are gone, and an empty volume
in its place would be taken for them. It is deleted only when the upper cluster requests that: with its volume, by the
reclaim policy (`volumes.py` decides), or before it ever had a volume.
"""

from collections.abc import Iterable, Iterator

from tensile.kube.store import Delta, Entry
from tensile.names import LOWER, LOWER_UNREACHABLE, NAMESPACE_EXCLUDED, UPPER_UID, Owner, ProblemReason
from tensile.objects import CLAIM, VOLUME, Manifest, Ref, annotations
from tensile.reconcile.desired import Decision, Present, VerifyAbsent, Wanted, Watch
from tensile.reconcile.ownership import (
    adoption_problem,
    adopts,
    conflict,
    copy_metadata,
    has_node,
    is_copy,
)
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.rules import claims, namespaces
from tensile.reconcile.rules.mirror_rule import when_node_appears
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "claim"
_SECTIONS = ("metadata.labels", "metadata.annotations")
_GROWING = (*_SECTIONS, "spec.resources")
_SPEC = (
    "accessModes",
    "dataSource",
    "dataSourceRef",
    "resources",
    "selector",
    "volumeAttributesClassName",
    "volumeMode",
)
CLAIM_NOT_FOUND: ProblemReason = "PersistentVolumeClaimNotFound"
"""A pod uses a claim that the upper cluster does not have. Remedy: create the claim."""
CLAIM_IN_OTHER_CLUSTER: ProblemReason = "ClaimInOtherCluster"
"""The volume of the claim is, or will be, in another lower cluster than the pod. Remedy: see
[storage](../howto/storage.md#notes)."""
CLAIM_RETAINED: ProblemReason = "ClaimRetained"
"""A lower claim of that name holds the data of an earlier claim. Remedy: delete it there, or choose another name."""
LOWER_CLAIM_LOST: ProblemReason = "LowerClaimLost"
"""The lower claim is gone though the upper one was not deleted, and its data with it. Remedy: restore it
([storage](../howto/storage.md#restore-a-lower-claim)), or delete the upper claim to begin with an empty volume."""
LOWER_VOLUME_LOST: ProblemReason = "LowerVolumeLost"
"""The lower claim has lost its volume, and the data. Remedy: restore the volume there, or delete the upper claim."""
_DECIDED = frozenset(
    {
        CLAIM_NOT_FOUND,
        CLAIM_IN_OTHER_CLUSTER,
        claims.CLAIM_NOT_BOUND,
        claims.CLAIM_NOT_MIRRORED,
        CLAIM_RETAINED,
        LOWER_CLAIM_LOST,
        LOWER_UNREACHABLE,
        LOWER_VOLUME_LOST,
        NAMESPACE_EXCLUDED,
    }
)
"""Problems that are found in each decision; any other is a cluster's answer to the last write."""
_UPPER_ONLY = (
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "kubectl.kubernetes.io/last-",
)


def key_of(lower: str, namespace: str, name: str) -> Key:
    """Return the key of a claim in a lower, by its upper namespace and name."""
    return Key(NAME, lower, namespace, name)


def missing(world: World, lower: LowerWorld, namespace: str, wanted: Iterable[Reference]) -> list[Key]:
    """Return the keys of the claims that a pod has to wait for: those without a copy in the lower cluster yet.

    Without the controller PV, that is all of them: a lower claim of that name is another's.
    """
    named = {reference.name for reference in wanted if reference.kind == CLAIM.name}
    return sorted(key_of(lower.name, namespace, name) for name in named if not _has_copy(world, lower, namespace, name))


def lower_claim(claim: Manifest, owner: Owner, namespace: str, storage_class: str | None) -> Manifest:
    """Return the lower claim for an upper one: what it requests, without what the upper cluster added to it."""
    spec = {field: claim["spec"][field] for field in _SPEC if field in claim["spec"]}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    meta = copy_metadata(claim, owner, namespace)
    kept = {key: text for key, text in meta["annotations"].items() if not key.startswith(_UPPER_ONLY) and key != LOWER}
    return {"apiVersion": CLAIM.api, "kind": CLAIM.name, "metadata": {**meta, "annotations": kept}, "spec": spec}


class ClaimRule:
    """The rule with one key for each claim that a virtual node's pod uses, that is to be created there or is copied."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch claims on both sides, volumes that say where they are, and pods that use them."""
        return (
            Watch("upper.PersistentVolumeClaim", _on_upper_claim),
            Watch("upper.PersistentVolume", _volume),
            Watch("PersistentVolumeClaim", _on_lower_claim),
            Watch("upper_pods", _user, facts=("terminal", "references")),
            Watch("pods", _on_lower_pod, facts=()),
            Watch("upper.nodes", when_node_appears(lambda world, lower_world: self.keys(world, lower_world.name))),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of every claim that is used, chosen or noted for the node, or copied."""
        lower_world = world.lowers[lower]
        if not claims.is_enabled(lower_world):
            return
        found = {(one.namespace, one.name) for one in world.upper.more[CLAIM].select("node", lower_world.node)}
        found |= {(one.namespace, one.name) for one in world.upper.more[CLAIM] if one.facts.chosen == lower}
        found |= {
            (namespace, copy.name)
            for copy in lower_world.more[CLAIM]
            for namespace in lower_world.upper_namespaces_of(copy.namespace)
        }
        found |= {(pod.namespace, name) for pod in lower_world.upper_pods for name in _named(pod)}
        yield from sorted(key_of(lower, namespace, name) for namespace, name in found)

    def decide(self, key: Key, world: World) -> Decision:
        """Return what should exist in the lower cluster for one claim."""
        lower = world.lowers[key.lower]
        if not claims.is_enabled(lower):
            return Decision(problem=_not_mirrored(key, lower))
        if not claims.is_listed(world, lower):
            return Decision()
        claim = world.upper.more[CLAIM].get(key.namespace, key.name)
        if claim is None:
            return _without_original(key, lower, world)
        found, copy = claims.same_named_claim(lower, claim), claims.copy_in(lower, claim, world)
        if found is not None and copy is None and is_copy(found, world.owner):
            return _foreign_copy(key, found, claim, world)
        if claims.home(claim, world).lower != lower.name:
            return _elsewhere(key, claim, copy, world)
        other = _left_in(claim, lower, world) if found is None else None
        return _keep_copy(key, claim, found, copy, world) if other is None else _after(key, claim, other)


def _without_original(key: Key, lower: LowerWorld, world: World) -> Decision:
    """Return the decision about a claim that the upper cluster does not have, and about its copy."""
    namespace = lower.namespace(key.namespace)
    copy = lower.more[CLAIM].get(namespace, key.name) if lower.upper_namespace(namespace) else None
    if copy is not None and is_copy(copy, world.owner):
        return _left_over(key, copy, None, world)
    return Decision(problem=_needed(key, world))


def _foreign_copy(key: Key, found: Entry, claim: Entry, world: World) -> Decision:
    """Decide about a lower claim with our marks that is not the copy of the upper claim of that name."""
    lower = world.lowers[key.lower]
    if found.facts.upper_uid != claim.uid:
        return _left_over(key, found, claim, world)
    if claims.home(claim, world).lower != lower.name:
        return _report_elsewhere(key, claim, world)
    ref = Ref(lower.name, CLAIM, found.namespace, found.name)
    volume = f"volume {claim.facts.volume}" if claim.facts.volume else "its volume"
    why = claims.mark_objection(found, claim, lower) or f"{volume} refers to another lower claim"
    return _blocked(claim, conflict(ref, why), lower, world)


def _keep_copy(key: Key, claim: Entry, found: Entry | None, copy: Entry | None, world: World) -> Decision:
    """Create or update the copy, and report its state on the upper claim; `found` exists under its name."""
    lower = world.lowers[key.lower]
    if claim.facts.ephemeral or not has_node(lower, world) or (found is None and claim.facts.terminating):
        return Decision()
    if found is None and (claim.facts.volume or claims.held_by(claim, lower, world)):
        return _report_lost(key, claim, lower, world)
    if not namespaces.ready(lower, key.namespace):
        return Decision(depends_on=(namespaces.key_of(lower.name, key.namespace),))
    manifest = claim.manifest()
    wanted = _wanted(manifest, lower, world.owner, grows=copy is not None and copy.facts.bound)
    unfitting = _adoption_problem(found, wanted, world) if found is not None and copy is None else None
    if copy is None and unfitting is None:
        unfitting = _data_source_problem(key, manifest, lower, world)
    refused = unfitting or _refused(key, world)
    if copy is None and refused is not None and _is_waited_for(claim, lower, world):
        return Decision(claims.release_node(manifest, refused), problem=refused)
    updates = claims.status_updates(manifest, copy, _lost(copy, lower) or refused, world.now)
    is_left = copy is not None and not is_copy(copy, world.owner) and not adopts(world, lower.name)
    if unfitting is not None or is_left:
        sources = (key_of(lower.name, key.namespace, name) for name in claims.source_claims(manifest["spec"]))
        return Decision(updates, tuple(sources) if unfitting else (), unfitting or _lost(copy, lower))
    home_note = (claims.home_note(manifest, lower.name),) if found is None and _is_unnoted(claim, lower) else ()
    named = claims.pinned(manifest, lower.node) if claim.facts.bound and claim.facts.volume else ()
    return Decision((*updates, *home_note, wanted, *named), problem=_lost(copy, lower))


def _is_unnoted(claim: Entry, lower: LowerWorld) -> bool:
    """Report whether nothing on the upper claim says where it will be created: neither a scheduler nor we."""
    return not claims.is_selected(claim) and not claim.facts.volume and claim.facts.chosen != lower.name


def _left_in(claim: Entry, lower: LowerWorld, world: World) -> LowerWorld | None:
    """Return another lower that still has a copy of a claim, which may get its volume, or is noted as its home.

    That lower's own key removes the note, and so never while it is creating the copy.
    """
    others = (other for other in world.lowers.values() if other.name != lower.name)
    return next((one for one in others if _may_be_in(claim, one) or claims.copy_in(one, claim, world)), None)


def _may_be_in(claim: Entry, lower: LowerWorld) -> bool:
    """Report whether a claim is noted to be created in a lower; without controller PV there, a read decides."""
    if claim.facts.chosen != lower.name:
        return False
    found = lower.more[CLAIM].is_deleted(lower.namespace(claim.namespace), claim.name, claim.uid)
    return claims.is_enabled(lower) or not found


def _after(key: Key, claim: Entry, other: LowerWorld) -> Decision:
    """Wait for another lower to release a claim, and report it if that may take long: two copies are two volumes."""
    where = f"claim {claim.namespace}/{claim.name} must be deleted in lower cluster {other.name} first"
    dependencies = (key_of(other.name, key.namespace, key.name),)
    if other.unreachable_seconds:
        return Decision(depends_on=dependencies, problem=Problem(LOWER_UNREACHABLE, f"{where}, which does not answer"))
    if claims.is_enabled(other):
        return Decision(depends_on=dependencies)
    ref = Ref(other.name, CLAIM, other.namespace(key.namespace), key.name)
    if other.more[CLAIM].get(ref.namespace, ref.name) is None:
        return Decision((VerifyAbsent(ref, claim.uid, "it may have been created there"),))
    return Decision(problem=Problem(CLAIM_IN_OTHER_CLUSTER, f"{where}, where PV is no longer in controllers"))


def _adoption_problem(found: Entry, wanted: Present, world: World) -> Problem | None:
    """Return why a foreign lower claim is not adopted, None where it may be or adoption is not enabled."""
    if not adopts(world, wanted.ref.cluster):
        return None
    why = claims.replacement_objection(found.manifest(), wanted.manifest)
    upper_uid = annotations(wanted.manifest)[UPPER_UID]
    problem = conflict(wanted.ref, why) if why else None
    return adoption_problem(wanted.ref, found.manifest(), upper_uid, world, wanted.ref.cluster) or problem


def _data_source_problem(key: Key, claim: Manifest, lower: LowerWorld, world: World) -> Problem | None:
    """Return why the copy cannot be filled from the claim's data source, None where it can or there is none."""
    where, foreign = f"claim {key.namespace}/{key.name}", claims.foreign_source(claim["spec"])
    if foreign:
        return Problem(claims.CLAIM_NOT_MIRRORED, f"{where} has the data source {foreign}")
    for name in sorted(claims.source_claims(claim["spec"])):
        if not _has_copy(world, lower, key.namespace, name):
            message = f"{where} has the data source claim {name}, which is not in lower cluster {lower.name}"
            return Problem(claims.CLAIM_NOT_MIRRORED, message)
    return None


def _not_mirrored(key: Key, lower: LowerWorld) -> Problem | None:
    """Return the problem that a lower does not have the controller PV, if a pod needs it."""
    if not lower.upper_pods.select("reference", (CLAIM.name, key.namespace, key.name)):
        return None
    message = f"claim {key.namespace}/{key.name}: controller PV is not enabled for lower cluster {lower.name}"
    return Problem(claims.CLAIM_NOT_MIRRORED, f"{message}: add PV to controllers")


def _lost(copy: Entry | None, lower: LowerWorld) -> Problem | None:
    """Return the problem that a lower claim has lost its volume, which Kubernetes reports only there."""
    if copy is None or not copy.facts.lost:
        return None
    message = f"claim {copy.namespace}/{copy.name} in lower cluster {lower.name} has lost its volume and its data"
    return Problem(LOWER_VOLUME_LOST, message)


def _wanted(claim: Manifest, lower: LowerWorld, owner: Owner, *, grows: bool) -> Present:
    """Return the copy as it should be; its size is updated once it is bound, as Kubernetes requires."""
    meta = claim["metadata"]
    ref = Ref(lower.name, CLAIM, lower.namespace(meta["namespace"]), meta["name"])
    manifest = lower_claim(claim, owner, ref.namespace, claims.lower_class(claim, lower))
    reason = f"its volume belongs in lower cluster {lower.name}"
    return Present(ref, manifest, reason, sections=_GROWING if grows else _SECTIONS)


def _refused(key: Key, world: World) -> Problem | None:
    """Return the lower cluster's answer to the last attempt."""
    problem = world.problems.get(key)
    return None if problem is None or problem.reason in _DECIDED else problem


def _is_waited_for(claim: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether the upper scheduler can still choose another node for a claim."""
    return claims.is_selected(claim) and not claims.users(lower, claim, world.topology.exclude_namespaces)


def _blocked(claim: Entry, problem: Problem, lower: LowerWorld, world: World) -> Decision:
    """Let the upper scheduler choose another node for a claim while it can, else report the problem on the claim."""
    if _is_waited_for(claim, lower, world):
        return Decision(claims.release_node(claim.manifest(), problem), problem=problem)
    return Decision(claims.status_updates(claim.manifest(), None, problem, world.now), problem=problem)


def _report_lost(key: Key, claim: Entry, lower: LowerWorld, world: World) -> Decision:
    """Report that the data of a claim are gone in the lower cluster, once that is certain."""
    ref = Ref(lower.name, CLAIM, lower.namespace(key.namespace), key.name)
    if lower.more[CLAIM].tombstone(ref.namespace, ref.name) is None:
        return Decision((VerifyAbsent(ref, claim.uid, "its upper volume refers to it"),))
    message = (
        f"claim {ref.namespace}/{ref.name} with the data is gone in lower cluster {lower.name}, or lost its owner label"
    )
    problem = Problem(LOWER_CLAIM_LOST, f"{message}; to start with an empty volume, delete the upper claim")
    return _blocked(claim, problem, lower, world)


def _elsewhere(key: Key, claim: Entry, copy: Entry | None, world: World) -> Decision:
    """Return why pods in this lower cluster cannot use a claim, and delete an unused copy."""
    lower, place = world.lowers[key.lower], claims.home(claim, world)
    if copy is not None:
        return _report_elsewhere(key, claim, world)._replace(
            wanted=() if _is_volume_unknown(claim, world) else _unused(copy, lower)
        )
    if place.problem is not None and claims.is_selected(claim) and claim.facts.selected == lower.node:
        return Decision(claims.status_updates(claim.manifest(), None, place.problem, world.now), problem=place.problem)
    decision = _report_elsewhere(key, claim, world)
    if copy is None and place.lower and claim.facts.chosen == lower.name and not claim.facts.volume:
        return decision._replace(wanted=(*decision.wanted, claims.home_note(claim.manifest(), None)))
    return decision


def _is_volume_unknown(claim: Entry, world: World) -> bool:
    """Report whether a claim has a volume that is not known yet: it may be the placeholder that we just created.

    Claims and volumes arrive on two watches, and the response to our own write may be read after both.
    """
    return bool(claim.facts.volume) and world.upper.more[VOLUME].get("", claim.facts.volume) is None


def _report_elsewhere(key: Key, claim: Entry, world: World) -> Decision:
    """Return why the pods in this lower cluster, if any, cannot use a claim that lives elsewhere.

    That depends on the upper claim and its volume only. Their changes come here too, so no other lower is waited for.
    """
    lower, place = world.lowers[key.lower], claims.home(claim, world)
    if not claims.users(lower, claim, world.topology.exclude_namespaces):
        return Decision()
    return Decision(problem=place.problem or _in_other_cluster(claim, place.lower))


def _in_other_cluster(claim: Entry, lower: str) -> Problem | None:
    """Return the problem that a claim's volume is in another cluster; the chosen node may be none of ours."""
    where = f"claim {claim.namespace}/{claim.name}"
    if lower:
        return Problem(
            CLAIM_IN_OTHER_CLUSTER, f"{where} has its volume in lower cluster {lower}, not in the cluster of its pod"
        )
    if claim.facts.selected:
        return Problem(
            CLAIM_IN_OTHER_CLUSTER,
            f"{where} gets its volume on node {claim.facts.selected}, not on the node of its pod",
        )
    return None


def _unused(copy: Entry, lower: LowerWorld) -> tuple[Wanted, ...]:
    """Return the deletion of a copy that is not to live here any more, if nothing can have written to it."""
    mounted = lower.pods.select("reference", (CLAIM.name, copy.namespace, copy.name))
    if mounted or copy.facts.terminating or claims.may_hold_data(copy):
        return ()
    return (claims.without_volume(copy, lower, "its upper claim belongs in another lower cluster now"),)


def _left_over(key: Key, copy: Entry, claim: Entry | None, world: World) -> Decision:
    """Return the decision about a copy whose upper claim is gone; if it may hold data, it is not decided here."""
    lower = world.lowers[key.lower]
    named = world.upper.more[VOLUME].select("lower_claim", copy.uid)
    if copy.facts.terminating or any(volume.facts.released and volume.facts.deletes for volume in named):
        return Decision()
    is_rival = claim is not None and bool(claims.held_by(claim, lower, world))
    is_free = not named and not is_rival and not claims.may_hold_data(copy)
    if is_free and (claim is not None or _was_deleted(key, copy, world)):
        return Decision((claims.without_volume(copy, lower, "the upper claim was deleted before it had a volume"),))
    return _in_the_way(key, claim, named[0].name if named else "", world) if claim is not None else Decision()


def _was_deleted(key: Key, copy: Entry, world: World) -> bool:
    """Report whether the upper claim of a copy was seen deleted."""
    tombstone = world.upper.more[CLAIM].tombstone(key.namespace, key.name)
    return tombstone is not None and tombstone.seen and tombstone.uid == copy.facts.upper_uid


def _in_the_way(key: Key, claim: Entry, volume: str, world: World) -> Decision:
    """Return why a claim waits until another one of its name is deleted, whose data may have to be kept."""
    lower = world.lowers[key.lower]
    if claims.home(claim, world).lower != lower.name:
        return _report_elsewhere(key, claim, world)
    name = f"claim {lower.namespace(key.namespace)}/{key.name} in lower cluster {lower.name}"
    kept = f" for volume {volume}" if volume else ""
    problem = Problem(
        CLAIM_RETAINED, f"{name} has the data of an earlier claim{kept}; delete it there, or use another name"
    )
    return _blocked(claim, problem, lower, world)


def _needed(key: Key, world: World) -> Problem | None:
    """Return the problem that a claim does not exist, if a pod needs it."""
    pods = world.lowers[key.lower].upper_pods.select("reference", (CLAIM.name, key.namespace, key.name))
    message = f"{CLAIM.name} {key.namespace}/{key.name} does not exist in the upper cluster"
    return Problem(CLAIM_NOT_FOUND, message) if pods else None


def _has_copy(world: World, lower: LowerWorld, namespace: str, name: str) -> bool:
    """Report whether a pod finds its claim in the lower cluster."""
    claim = world.upper.more[CLAIM].get(namespace, name)
    if claim is None or claims.copy_in(lower, claim, world) is None:
        return False
    return claims.home(claim, world).lower == lower.name


def _named(pod: Entry | None) -> frozenset[str]:
    """Return the names of the claims that a pod refers to."""
    found = pod.facts.references if pod is not None else ()
    return frozenset(reference.name for reference in found if reference.kind == CLAIM.name)


def _on_upper_claim(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield an upper claim's key if this lower's node is chosen for it, or a copy or its pods are in this lower."""
    entry, lower_world = delta.entry, world.lowers[lower]
    chosen = any(one is not None and one.facts.selected == lower_world.node for one in delta)
    copied = lower_world.more[CLAIM].get(lower_world.namespace(entry.namespace), entry.name) is not None
    if chosen or copied or lower_world.upper_pods.select("reference", (CLAIM.name, entry.namespace, entry.name)):
        yield key_of(lower, entry.namespace, entry.name)


def _volume(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key of the claim that has a volume, under the same conditions."""
    for entry in delta:
        claim = world.upper.more[CLAIM].get(*entry.facts.claim) if entry is not None else None
        if claim is not None:
            yield from _on_upper_claim(world, lower, Delta(None, claim))


def _on_lower_claim(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    for namespace in world.lowers[lower].upper_namespaces_of(delta.entry.namespace):
        yield key_of(lower, namespace, delta.entry.name)


def _user(_world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of claims that a pod begins or ceases to use; a pod that has ended needs none any more."""
    before, after = delta
    ended = before is not None and after is not None and before.facts.terminal != after.facts.terminal
    names = _named(delta.entry) if ended else _named(before) ^ _named(after)
    yield from (key_of(lower, delta.entry.namespace, name) for name in sorted(names))


def _on_lower_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of a deleted lower pod's claims: it may have been the last that kept them."""
    if delta.after is None:
        for namespace in world.lowers[lower].upper_namespaces_of(delta.entry.namespace):
            yield from (key_of(lower, namespace, name) for name in sorted(_named(delta.entry)))
