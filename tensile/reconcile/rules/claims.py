"""Claims on both sides: their facts, the lower cluster where each one's volume is or will be, writes to upper claims.

A volume exists in one cluster only, so every claim has one home. The first of these that is known determines it:
- the volume that the claim is bound to;
- a copy that has a volume already (it may hold data);
- the node that the upper scheduler chose;
- where that scheduler ignores volumes, the pod that used the claim first.

`claim_rule.py` makes the copy in that lower cluster, and `volumes.py` the placeholder volume in the upper one.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import orjson

from tensile.kube.cluster import Patch
from tensile.kube.store import Entry, Transformed
from tensile.names import (
    LOWER,
    LOWER_UNREACHABLE,
    MIRRORED,
    NAMESPACE_EXCLUDED,
    PROVISIONER,
    ConditionType,
    EventReason,
    ProblemReason,
)
from tensile.objects import (
    CLAIM,
    UPPER,
    VOLUME,
    Manifest,
    Ref,
    annotations,
    as_read,
    controller_of,
    metadata,
    timestamp,
    uid,
)
from tensile.reconcile.desired import Absent, EmitEvent, Patched, Wanted
from tensile.reconcile.diff import fence
from tensile.reconcile.ownership import is_copy_of, marks_of, we_wrote
from tensile.reconcile.pods.index import by_uid, needs_lower_pod
from tensile.reconcile.world import LowerWorld, Problem, World
from tensile.resources import parse

SELECTED_NODE = "volume.kubernetes.io/selected-node"
_PROVISIONERS = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
_BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
_OLD_CLASS = "volume.beta.kubernetes.io/storage-class"
_FIELDS = ("dataSource", "dataSourceRef")
PROVISIONING_FAILED: EventReason = "ProvisioningFailed"
"""On a claim: no volume can be created in the lower cluster of the chosen node, so the scheduler chooses again;
Kubernetes' provisioners use the same reason. Remedy: see the message."""
CLAIM_NOT_MIRRORED: ProblemReason = "ClaimNotMirrored"
"""The claim cannot be copied: its class, data source or volume is not one that a lower cluster has, or PV is not
among `controllers`. Remedy: see the message and [storage](../howto/storage.md)."""
CLAIM_NOT_BOUND: ProblemReason = "ClaimNotBound"
"""The claim asks for a volume that is not bound to it. Remedy: wait for the binding, or correct `spec.volumeName`."""
_COPIED = ("capacity", "allocatedResources", "allocatedResourceStatuses")
RESIZING: ConditionType = "Resizing"
"""On a claim: as in the lower cluster. Remedy: nothing."""
FILE_SYSTEM_RESIZE_PENDING: ConditionType = "FileSystemResizePending"
"""On a claim: as in the lower cluster. Remedy: nothing."""
CONTROLLER_RESIZE_ERROR: ConditionType = "ControllerResizeError"
"""On a claim: as in the lower cluster. Remedy: see its message, and the storage driver there."""
NODE_RESIZE_ERROR: ConditionType = "NodeResizeError"
"""On a claim: as in the lower cluster. Remedy: see its message, and the storage driver there."""
_RESIZING = (RESIZING, FILE_SYSTEM_RESIZE_PENDING, CONTROLLER_RESIZE_ERROR, NODE_RESIZE_ERROR)


class ClaimFacts(msgspec.Struct, frozen=True, gc=False):
    """One claim of either side.

    `owner` and `upper_uid` are our marks ("" in the upper cluster, and where we did not write them). `selected` is the
    node that a scheduler chose, `chosen` the lower that we chose. `provisioner` is who is to create the volume,
    `volume` the one that it has or requests; each is "" for none. `prebound` is whether its author named the volume,
    and not the controller that binds claims. `ephemeral` is whether it is that of a pod's generic ephemeral
    volume, and is deleted with the pod.
    """

    owner: str
    upper_uid: str
    selected: str
    chosen: str
    provisioner: str
    volume: str
    prebound: bool
    storage_class: str
    bound: bool
    lost: bool
    ephemeral: bool
    terminating: bool


class ClaimHome(NamedTuple):
    """The name of the lower cluster where a claim lives, "" for none; `problem` is why pods elsewhere cannot use it."""

    lower: str = ""
    problem: Problem | None = None


def transform(raw: bytes) -> Transformed:
    """Transform a claim: its bytes and facts."""
    return Transformed(raw, facts_of(orjson.loads(raw)))


def facts_of(claim: Manifest) -> ClaimFacts:
    """Return the facts of a decoded claim."""
    spec, phase, notes = claim.get("spec") or {}, (claim.get("status") or {}).get("phase"), annotations(claim)
    marks = marks_of(claim)
    return ClaimFacts(
        owner=marks.owner,
        upper_uid=marks.upper_uid,
        selected=notes.get(SELECTED_NODE, ""),
        chosen=notes.get(LOWER, ""),
        provisioner=next((notes[key] for key in _PROVISIONERS if key in notes), ""),
        volume=spec.get("volumeName") or "",
        prebound=_is_prebound(claim),
        storage_class=class_of(claim) or "",
        bound=phase == "Bound",
        lost=phase == "Lost",
        ephemeral=controller_of(claim).get("kind") == "Pod",
        terminating="deletionTimestamp" in metadata(claim),
    )


def _is_prebound(claim: Manifest) -> bool:
    """Report whether a claim's author named its volume: we never do, and the controller marks it when it does."""
    if not (claim.get("spec") or {}).get("volumeName"):
        return False
    return _BOUND_BY_CONTROLLER not in annotations(claim) or we_wrote(claim, ("f:spec", "f:volumeName"))


def class_of(claim: Manifest) -> str | None:
    """Return the name of a claim's storage class, None where it does not name one."""
    found: str | None = annotations(claim).get(_OLD_CLASS, (claim.get("spec") or {}).get("storageClassName"))
    return found


def _by_node(entry: Entry) -> Iterator[str]:
    if entry.facts.selected:
        yield entry.facts.selected


INDEXES = {"node": _by_node, "uid": by_uid}


def is_enabled(lower: LowerWorld) -> bool:
    """Report whether a lower has the controller PV."""
    return "PV" in lower.spec.controllers


def is_listed(world: World, lower: LowerWorld) -> bool:
    """Report whether all that decisions about storage rest on has been listed."""
    upper_caches, lower_caches = world.upper.more, lower.more
    known = all(
        cache.synced for cache in (upper_caches[CLAIM], upper_caches[VOLUME], lower_caches[CLAIM], lower_caches[VOLUME])
    )
    return is_enabled(lower) and known and lower.settled


def copy_in(lower: LowerWorld, claim: Entry, world: World) -> Entry | None:
    """Return the copy of an upper claim in a lower cluster, None where there is none.

    Once a placeholder of ours names the lower claim that holds the data, that is the copy, whatever its marks say.
    Before that, it is the claim under the upper claim's name with our marks, if it could have been made for it.
    """
    found = same_named_claim(lower, claim)
    named = held_by(claim, lower, world)
    if found is None or named:
        return found if found is not None and found.uid == named else None
    return found if is_copy_of(found, world.owner, claim.uid) and not mark_objection(found, claim, lower) else None


def same_named_claim(lower: LowerWorld, claim: Entry) -> Entry | None:
    """Return the lower claim under an upper claim's name that has our label, whatever else is written on it."""
    namespace = lower.namespace(claim.namespace)
    return lower.more[CLAIM].get(namespace, claim.name) if lower.upper_namespace(namespace) else None


def held_by(claim: Entry, lower: LowerWorld, world: World) -> str:
    """Return the UID of the lower claim that a placeholder of ours names for an upper claim, "" for none."""
    volumes = world.upper.more[VOLUME].select("claim", claim.uid)
    ours = (one.facts for one in volumes if one.facts.owner == world.owner.mark)
    return next((facts.lower_claim for facts in ours if facts.lower == lower.name and facts.lower_claim), "")


def mark_objection(found: Entry, claim: Entry, lower: LowerWorld) -> str:
    """Return why a lower claim with our marks cannot have been made for an upper one, "" where it can.

    Its storage class is not compared: `storageClasses` may have been edited since.
    """
    if found.facts.prebound and not claim.facts.prebound and lower.spec.on_conflict == "fail":
        return f"it requests volume {found.facts.volume}"
    return replacement_objection(found.manifest(), {"spec": {**claim.manifest()["spec"], "storageClassName": None}})


def replacement_objection(seen: Manifest, wanted: Manifest) -> str:
    """Return why a foreign lower claim cannot serve in place of the wanted one, "" where it can.

    What it lacks cannot be added, and it may hold other data than the upper claim is to have.
    """
    present, requested = seen["spec"], wanted["spec"]
    for field in ("accessModes", "storageClassName", "volumeMode"):
        if requested.get(field) is not None and requested[field] != present.get(field):
            return f"its {field} is {present.get(field)}, not {requested[field]}"
    sizes = [parse(one["resources"]["requests"]["storage"]) for one in (present, requested)]
    return "it requests more storage, and claims cannot shrink" if sizes[0] > sizes[1] else ""


def may_hold_data(copy: Entry) -> bool:
    """Report whether a lower claim has a volume, is about to have it, or had one."""
    return bool(copy.facts.bound or copy.facts.lost or copy.facts.volume)


def without_volume(copy: Entry, lower: LowerWorld, reason: str) -> Absent:
    """Return the deletion of a lower claim without a known volume; if it gets one meanwhile, it stays."""
    return Absent(Ref(lower.name, CLAIM, copy.namespace, copy.name), copy.uid, reason, version=str(copy.version))


def home(claim: Entry, world: World) -> ClaimHome:
    """Return where an upper claim lives."""
    if claim.facts.volume:
        return _home_of_volume(claim, world)
    if claim.namespace in world.topology.exclude_namespaces:
        message = f"claims of namespace {claim.namespace} are not mirrored (excludeNamespaces)"
        return ClaimHome(problem=Problem(NAMESPACE_EXCLUDED, message))
    if holder := _holder(claim, world):
        return ClaimHome(holder)
    if is_selected(claim):
        chosen = (lower for lower in world.lowers.values() if lower.node == claim.facts.selected)
        return next((ClaimHome(lower.name) for lower in chosen if is_enabled(lower)), ClaimHome())
    return _home_of_users(claim, world)


def is_selected(claim: Entry) -> bool:
    """Report whether the upper scheduler waits for a volume of ours on the node that it chose."""
    return bool(claim.facts.selected) and claim.facts.provisioner == PROVISIONER and not claim.facts.volume


def namespaces_selected_in(world: World, lower: LowerWorld) -> set[str]:
    """Return the upper namespaces with claims that are to be created in a lower before any pod is bound there."""
    chosen = world.upper.more[CLAIM].select("node", lower.node) if is_enabled(lower) else ()
    return {claim.namespace for claim in chosen if is_selected(claim)} - set(world.topology.exclude_namespaces)


def users(lower: LowerWorld, claim: Entry, excluded: Iterable[str]) -> list[Entry]:
    """Return the pods bound to a lower's node that use an upper claim."""
    mentioned = lower.upper_pods.select("reference", (CLAIM.name, claim.namespace, claim.name))
    hidden = frozenset(excluded)
    return [pod for pod in mentioned if needs_lower_pod(pod, hidden)]


def mapped(classes: Mapping[str, str], name: str) -> str:
    """Return the lower name of a storage class: the same, unless the topology maps it."""
    return classes.get(name, name)


def lower_class(claim: Manifest, lower: LowerWorld) -> str | None:
    """Return the lower name of a claim's storage class, None where it does not name one."""
    name = class_of(claim)
    return name if name is None else mapped(lower.spec.storage_classes, name)


def _home_of_volume(claim: Entry, world: World) -> ClaimHome:
    name = claim.facts.volume
    volume = world.upper.more[VOLUME].get("", name)
    where = f"claim {claim.namespace}/{claim.name}"
    if volume is None or volume.facts.owner != world.owner.mark:
        return ClaimHome(
            problem=Problem(CLAIM_NOT_MIRRORED, f"{where} has volume {name}, which is in no lower cluster")
        )
    if volume.facts.claim_uid != claim.uid:
        return ClaimHome(problem=Problem(CLAIM_NOT_BOUND, f"{where} requests volume {name}, which is not bound to it"))
    return ClaimHome(volume.facts.lower)


def _holder(claim: Entry, world: World) -> str:
    """Return the name of the lower whose copy of a claim may hold data, "" for none."""
    copies = ((lower.name, copy_in(lower, claim, world)) for lower in world.lowers.values())
    return next((name for name, copy in copies if copy is not None and may_hold_data(copy)), "")


def _home_of_users(claim: Entry, world: World) -> ClaimHome:
    """Return the lower with a copy in use, or that may have one while its claims are unknown, else the oldest pod's."""
    using = {lower.name: users(lower, claim, world.topology.exclude_namespaces) for lower in world.lowers.values()}
    for lower in world.lowers.values():
        if using[lower.name] and copy_in(lower, claim, world) is not None:
            return ClaimHome(lower.name)
    chosen = world.lowers.get(claim.facts.chosen)
    if chosen is not None and is_enabled(chosen) and not chosen.more[CLAIM].synced:
        return ClaimHome(chosen.name, _unknown(claim, chosen))
    oldest = [(_age(pod), name) for name, pods in using.items() for pod in pods]
    return _first(claim, world.lowers[min(oldest)[1]]) if oldest else ClaimHome()


def _unknown(claim: Entry, lower: LowerWorld) -> Problem:
    """Return the problem that a claim may be in a lower that has not answered since the engine started."""
    where = f"claim {claim.namespace}/{claim.name}"
    return Problem(
        LOWER_UNREACHABLE, f"{where} may have its volume in lower cluster {lower.name}, which does not answer"
    )


def _first(claim: Entry, lower: LowerWorld) -> ClaimHome:
    """Return the home of a claim that a pod is the first to use: the pod's lower, if the claim can be created there."""
    facts = claim.facts
    if facts.provisioner in ("", PROVISIONER) or facts.storage_class in lower.spec.storage_classes:
        return ClaimHome(lower.name) if is_enabled(lower) else ClaimHome()
    message = f"claim {claim.namespace}/{claim.name} needs a volume of {facts.provisioner}, which no lower cluster has"
    advice = f"to create it in {lower.name}, add class {facts.storage_class} to storageClasses"
    return ClaimHome(problem=Problem(CLAIM_NOT_MIRRORED, f"{message}; {advice}"))


def _age(pod: Entry) -> tuple[str, str]:
    return (metadata(pod.manifest()).get("creationTimestamp", ""), pod.uid)


def foreign_source(spec: Manifest) -> str:
    """Return the description of a data source in a claim's spec that has no copy of ours, "" for none.

    The lower cluster would fill the claim from its own object of that name, which may be another tenant's data. A claim
    of the same namespace is safe if its copy is ours. Snapshots and all other sources are not mirrored, so a lower
    object of that name is never the upper one.
    """
    for source in _sources(spec):
        if not _is_claim(source):
            where = f" of namespace {source['namespace']}" if source.get("namespace") else ""
            named = f"{source.get('kind', 'an object')} {source.get('name', '')}{where}"
            return f"{named}: only claims of its own namespace are mirrored"
    return ""


def source_claims(spec: Manifest) -> frozenset[str]:
    """Return the names of the claims that a claim is to be cloned from; usually both fields name the same one."""
    return frozenset(str(source.get("name", "")) for source in _sources(spec) if _is_claim(source))


def _sources(spec: Manifest) -> Iterator[Manifest]:
    for field in _FIELDS:
        if spec.get(field):
            yield spec[field]


def _is_claim(source: Manifest) -> bool:
    return source.get("kind") == CLAIM.name and not source.get("apiGroup") and not source.get("namespace")


def status_updates(claim: Manifest, copy: Entry | None, problem: Problem | None, now: datetime) -> tuple[Wanted, ...]:
    """Return the patch of the upper claim's status: the lower claim's sizes and resizing, and a problem with its event.

    It is empty without changes. `copy` is the lower claim, None where there is none. Kubernetes' upper controllers bind
    claims to volumes; sizes and the conditions of resizing belong to who resizes, which is the lower cluster.
    """
    seen: Manifest = claim.get("status") or {}
    bound_copy = copy.manifest() if copy is not None and copy.facts.bound else {}
    fields = _sizes(seen, bound_copy.get("status") or {}) if seen.get("phase") == "Bound" and bound_copy else {}
    conditions = _conditions(seen.get("conditions") or [], bound_copy.get("status"), problem, timestamp(now))
    changed = {field: value or None for field, value in {**fields, "conditions": conditions}.items()}
    changed = {field: value for field, value in changed.items() if value != (seen.get(field) or None)}
    if not changed:
        return ()
    body = {"metadata": as_read(claim), "status": changed}
    reason = problem.message if problem else "the status of the lower claim changed"
    wanted = Patched(_ref(claim), Patch("merge-patch", body), reason, "status")
    event = EmitEvent(_ref(claim), uid(claim), problem.reason, problem.message) if problem else None
    return (wanted, event) if event and "conditions" in changed else (wanted,)


def release_node(claim: Manifest, problem: Problem) -> tuple[Wanted, ...]:
    """Return the patch that lets the upper scheduler choose another node, as provisioners do on failure."""
    fenced = fence(uid(claim), metadata(claim)["resourceVersion"])
    removal = {"op": "remove", "path": f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}"}
    reason = f"no volume can be created there: {problem.message}"
    event = EmitEvent(_ref(claim), uid(claim), PROVISIONING_FAILED, problem.message)
    return (event, Patched(_ref(claim), Patch("json-patch", [*fenced, removal]), reason, in_plan=True))


def home_note(claim: Manifest, lower: str | None) -> Wanted:
    """Return the note on a claim in which lower it will be created, so that no later engine creates it elsewhere.

    None removes the note: the claim is not in that lower, and will not be created there.
    """
    known = annotations(claim).get(LOWER)
    where = f"belongs in lower cluster {lower}" if lower else f"does not belong in lower cluster {known} any more"
    body = {"metadata": {**as_read(claim), "annotations": {LOWER: lower}}}
    return Patched(_ref(claim), Patch("merge-patch", body), f"its volume {where}", in_plan=True)


def pinned(claim: Manifest, node: str) -> tuple[Wanted, ...]:
    """Return the patch that names a bound claim's node, for a scheduler that ignores volumes."""
    notes = annotations(claim)
    if SELECTED_NODE in notes or not notes:
        return ()
    added = {"op": "add", "path": f"/metadata/annotations/{SELECTED_NODE.replace('/', '~1')}", "value": node}
    reason = f"its volume is on node {node}"
    return (Patched(_ref(claim), Patch("json-patch", [*fence(uid(claim)), added]), reason, in_plan=True),)


def _sizes(seen: Manifest, lower_status: Manifest) -> dict[str, Any]:
    """Return the fields with sizes; keys to remove from a map are null."""
    found: dict[str, Any] = {}
    for field in _COPIED:
        old, new = seen.get(field) or {}, lower_status.get(field) or {}
        if old != new:
            found[field] = new and {**dict.fromkeys(old), **new}
    return found


def _conditions(
    seen: list[Manifest], lower_status: Manifest | None, problem: Problem | None, now: str
) -> list[Manifest]:
    """Return all conditions as they should be: the lower's on resizing, ours on problems, others' unchanged."""
    kept = [one for one in seen if one["type"] != MIRRORED and (lower_status is None or one["type"] not in _RESIZING)]
    sizing = [one for one in (lower_status or {}).get("conditions") or () if one["type"] in _RESIZING]
    return _in_order(seen, [*kept, *sizing, *([_mirrored_condition(seen, problem, now)] if problem else [])])


def _in_order(seen: list[Manifest], wanted: list[Manifest]) -> list[Manifest]:
    """Return conditions in their present order, so that equal lists compare equal."""
    positions = {one["type"]: position for position, one in enumerate(seen)}
    return sorted(wanted, key=lambda one: positions.get(one["type"], len(positions)))


def _mirrored_condition(seen: list[Manifest], problem: Problem, now: str) -> Manifest:
    old = next((one for one in seen if one["type"] == MIRRORED), {})
    condition = {"type": MIRRORED, "status": "False", "reason": problem.reason, "message": problem.message}
    return {**condition, "lastProbeTime": None, "lastTransitionTime": old.get("lastTransitionTime") or now}


def _ref(claim: Manifest) -> Ref:
    meta = metadata(claim)
    return Ref(UPPER, CLAIM, meta["namespace"], meta["name"])
