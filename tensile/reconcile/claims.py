"""Claims for storage on both sides, and in which lower cluster the volume of each is, or is to be.

A volume exists in one cluster only, so every claim has one home. Four things can say which, and the first that speaks
decides: the volume that the claim is bound to, a copy below that has a volume already (there may be data in it), the
node that the upper scheduler chose, and, where that scheduler takes no notice of volumes, the pod that came to use it
first.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import orjson

from tensile.cache import Entry, Kept
from tensile.names import LOWER, OWNER, PROVISIONER, Owner
from tensile.objects import CLAIM, VOLUME, Manifest, Ref, annotations, controller_of, labels, metadata
from tensile.quantities import parse
from tensile.reconcile.desired import Absent
from tensile.reconcile.observed import upper_uid_of, we_wrote
from tensile.reconcile.podfacts import lives_below
from tensile.world import LowerWorld, Problem, World

SELECTED_NODE = "volume.kubernetes.io/selected-node"
_PROVISIONERS = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
_BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
_OLD_CLASS = "volume.beta.kubernetes.io/storage-class"
_CONTROLLER = "PV"


class ClaimFacts(msgspec.Struct, frozen=True, gc=False):
    """One claim of either side.

    `owner` and `upper_uid` are our marks ("" above, and where somebody else wrote them). `selected` is the node that a
    scheduler chose, `chosen` the lower that we did, `provisioner` who is to make the volume, `volume` the one that it
    has or asks for: each "" for none. `prebound` is whether its author named the volume, and not the controller that
    binds claims. `passing` is whether it belongs to a pod and goes with it, as a generic ephemeral volume does.
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
    passing: bool
    terminating: bool


class Home(NamedTuple):
    """The name of the lower cluster where a claim lives, "" for none; `problem` is why pods elsewhere cannot use it."""

    lower: str = ""
    problem: Problem | None = None


def digest(raw: bytes) -> Kept:
    """Keep a claim with its facts."""
    return Kept(raw, facts_of(orjson.loads(raw)))


def facts_of(claim: Manifest) -> ClaimFacts:
    """Take the facts out of a decoded claim."""
    spec, phase, notes = claim.get("spec") or {}, (claim.get("status") or {}).get("phase"), annotations(claim)
    upper_uid = upper_uid_of(claim)
    return ClaimFacts(
        owner=labels(claim).get(OWNER, "") if upper_uid else "",
        upper_uid=upper_uid,
        selected=notes.get(SELECTED_NODE, ""),
        chosen=notes.get(LOWER, ""),
        provisioner=next((notes[key] for key in _PROVISIONERS if key in notes), ""),
        volume=spec.get("volumeName") or "",
        prebound=_is_prebound(claim),
        storage_class=class_of(claim) or "",
        bound=phase == "Bound",
        lost=phase == "Lost",
        passing=controller_of(claim).get("kind") == "Pod",
        terminating="deletionTimestamp" in metadata(claim),
    )


def _is_prebound(claim: Manifest) -> bool:
    """Report whether a claim's author named its volume: we never do, and the controller notes it where it does."""
    if not (claim.get("spec") or {}).get("volumeName"):
        return False
    return _BOUND_BY_CONTROLLER not in annotations(claim) or we_wrote(claim, ("f:spec", "f:volumeName"))


def class_of(claim: Manifest) -> str | None:
    """Give the name of a claim's storage class, None where it asks for none in particular."""
    found: str | None = annotations(claim).get(_OLD_CLASS, (claim.get("spec") or {}).get("storageClassName"))
    return found


def _by_node(entry: Entry) -> Iterator[str]:
    if entry.facts.selected:
        yield entry.facts.selected


def _by_uid(entry: Entry) -> Iterator[str]:
    yield entry.uid


INDEXES = {"node": _by_node, "uid": _by_uid}


def is_enabled(lower: LowerWorld) -> bool:
    """Say whether storage is looked after in a lower."""
    return _CONTROLLER in lower.spec.controllers


def can_tell(lower: LowerWorld, world: World) -> bool:
    """Say whether all that decisions about storage rest on is known."""
    above, below = world.upper.more, lower.more
    known = all(cache.synced for cache in (above[CLAIM], above[VOLUME], below[CLAIM], below[VOLUME]))
    return is_enabled(lower) and known and lower.settled


def is_copy(claim: Entry, owner: Owner) -> bool:
    """Say whether a claim below is this owner's."""
    return bool(claim.facts.owner == owner.mark)


def copy_in(lower: LowerWorld, claim: Entry, world: World) -> Entry | None:
    """Return the copy of an upper claim in a lower cluster, None where there is none.

    Once a placeholder of ours names the lower claim that holds the data, that is the copy, whatever is written on it.
    Before that it is what stands at the claim's place with our marks, if it could have been made for it.
    """
    found = standing_in(lower, claim)
    named = held_by(claim, lower, world)
    if found is None or named:
        return found if found is not None and found.uid == named else None
    is_marked = is_copy(found, world.owner) and found.facts.upper_uid == claim.uid
    return found if is_marked and not misfit(found, claim, lower) else None


def standing_in(lower: LowerWorld, claim: Entry) -> Entry | None:
    """Return the lower claim with our label at the place of an upper one, whatever else is written on it."""
    namespace = lower.namespace(claim.namespace)
    return lower.more[CLAIM].get(namespace, claim.name) if lower.upper_namespace(namespace) else None


def held_by(claim: Entry, lower: LowerWorld, world: World) -> str:
    """Return the UID of the lower claim that a placeholder of ours names for an upper claim, "" for none."""
    volumes = world.upper.more[VOLUME].select("claim", claim.uid)
    ours = (one.facts for one in volumes if one.facts.owner == world.owner.mark)
    return next((facts.lower_claim for facts in ours if facts.lower == lower.name and facts.lower_claim), "")


def misfit(found: Entry, claim: Entry, lower: LowerWorld) -> str:
    """Return why a lower claim with our marks cannot have been made for an upper one, "" where it can."""
    if found.facts.prebound and not claim.facts.prebound and lower.spec.on_conflict == "fail":
        return f"it asks for volume {found.facts.volume}"
    above = claim.manifest()
    name = class_of(above)
    wanted = name if name is None else mapped(lower.spec.storage_classes, name)
    return unfit(found.manifest(), {"spec": {**above["spec"], "storageClassName": wanted}})


def unfit(seen: Manifest, wanted: Manifest) -> str:
    """Say why a claim below that is somebody's cannot serve in place of the one that is wanted, "" where it can.

    What it lacks cannot be given to it, and it may hold other data than the claim above is to have.
    """
    has, asked = seen["spec"], wanted["spec"]
    for field in ("accessModes", "storageClassName", "volumeMode"):
        if asked.get(field) is not None and asked[field] != has.get(field):
            return f"its {field} is {has.get(field)}, not {asked[field]}"
    sizes = [parse(one["resources"]["requests"]["storage"]) for one in (has, asked)]
    return "it asks for more storage, which cannot be taken back" if sizes[0] > sizes[1] else ""


def may_hold_data(copy: Entry) -> bool:
    """Say whether a claim below has a volume, is about to have it, or had one."""
    return bool(copy.facts.bound or copy.facts.lost or copy.facts.volume)


def without_volume(copy: Entry, lower: LowerWorld, reason: str, *, asked: bool = True, lost: bool = False) -> Absent:
    """Want a claim below gone that has no volume as far as we know: should it get one meanwhile, it stays."""
    ref = Ref(lower.name, CLAIM, copy.namespace, copy.name)
    return Absent(ref, copy.uid, reason, asked=asked, lost=lost, version=str(copy.version))


def home(claim: Entry, world: World) -> Home:
    """Say where an upper claim lives."""
    if claim.facts.volume:
        return _of_volume(claim, world)
    if claim.namespace in world.topology.exclude_namespaces:
        words = f"claims of namespace {claim.namespace} are not mirrored (excludeNamespaces)"
        return Home(problem=Problem("NamespaceExcluded", words))
    if held := _holder(claim, world):
        return Home(held)
    if is_selected(claim):
        chosen = (lower for lower in world.lowers.values() if lower.node == claim.facts.selected)
        return next((Home(lower.name) for lower in chosen if is_enabled(lower)), Home())
    return _of_user(claim, world)


def is_selected(claim: Entry) -> bool:
    """Say whether the upper scheduler waits for a volume of ours on the node that it chose."""
    return bool(claim.facts.selected) and claim.facts.provisioner == PROVISIONER and not claim.facts.volume


def selected_in(world: World, lower: LowerWorld, upper_namespace: str) -> bool:
    """Say whether claims of a namespace are to be made in a lower before any pod is bound there."""
    concerns = is_enabled(lower) and upper_namespace not in world.topology.exclude_namespaces
    chosen = world.upper.more[CLAIM].select("node", lower.node) if concerns else ()
    return any(claim.namespace == upper_namespace and is_selected(claim) for claim in chosen)


def users(lower: LowerWorld, claim: Entry, excluded: Iterable[str]) -> list[Entry]:
    """Give the pods bound to a lower's node that use an upper claim."""
    mentioned = lower.upper_pods.select("reference", (CLAIM.name, claim.namespace, claim.name))
    hidden = frozenset(excluded)
    return [pod for pod in mentioned if lives_below(pod, hidden)]


def mapped(classes: Mapping[str, str], name: str) -> str:
    """Give the lower name of a storage class: its own, unless the topology maps it."""
    return classes.get(name, name)


def _of_volume(claim: Entry, world: World) -> Home:
    name = claim.facts.volume
    volume = world.upper.more[VOLUME].get("", name)
    where = f"claim {claim.namespace}/{claim.name}"
    if volume is None or volume.facts.owner != world.owner.mark:
        return Home(problem=Problem("ClaimNotMirrored", f"{where} has volume {name}, which is in no lower cluster"))
    if volume.facts.claim_uid != claim.uid:
        return Home(problem=Problem("ClaimNotBound", f"{where} asks for volume {name}, which is not bound to it"))
    return Home(volume.facts.lower)


def _holder(claim: Entry, world: World) -> str:
    """Give the name of the lower whose copy of a claim may hold data, "" for none."""
    copies = ((lower.name, copy_in(lower, claim, world)) for lower in world.lowers.values())
    return next((name for name, copy in copies if copy is not None and may_hold_data(copy)), "")


def _of_user(claim: Entry, world: World) -> Home:
    """Give the lower that has a copy in use, or for all that is known has one, else that of the oldest pod."""
    using = {lower.name: users(lower, claim, world.topology.exclude_namespaces) for lower in world.lowers.values()}
    for lower in world.lowers.values():
        if using[lower.name] and copy_in(lower, claim, world) is not None:
            return Home(lower.name)
    chosen = world.lowers.get(claim.facts.chosen)
    if chosen is not None and is_enabled(chosen) and not chosen.more[CLAIM].synced:
        return Home(chosen.name, _unknown(claim, chosen))
    oldest = [(_age(pod), name) for name, pods in using.items() for pod in pods]
    return _first(claim, world.lowers[min(oldest)[1]]) if oldest else Home()


def _unknown(claim: Entry, lower: LowerWorld) -> Problem:
    """Say that a claim was made, or about to be, in a lower that has not been heard since we started."""
    where = f"claim {claim.namespace}/{claim.name}"
    return Problem("LowerUnreachable", f"{where} may have its volume in lower cluster {lower.name}, which is silent")


def _first(claim: Entry, lower: LowerWorld) -> Home:
    """Say whether a claim that a pod is the first to use can be made where that pod is."""
    facts = claim.facts
    if facts.provisioner in ("", PROVISIONER) or facts.storage_class in lower.spec.storage_classes:
        return Home(lower.name) if is_enabled(lower) else Home()
    waits = f"claim {claim.namespace}/{claim.name} waits for a volume of {facts.provisioner}, which is in no lower"
    advice = f"list its class {facts.storage_class} in storageClasses to have it made in {lower.name}"
    return Home(problem=Problem("ClaimNotMirrored", f"{waits} cluster; {advice}"))


def _age(pod: Entry) -> tuple[str, str]:
    return (metadata(pod.manifest()).get("creationTimestamp", ""), pod.uid)
