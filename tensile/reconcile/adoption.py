"""Name conflicts, and which objects of other owners `onConflict: adopt` takes over.

Adoption is for objects without a living owner: those of tensile-kube, and those of an engine like this one that will
not return. It never guesses. An object of another owner is adopted only if it was made for the same upper object, and
its owner keeps no node alive. Such an owner is another topology of this upper cluster. An object marked from another
upper cluster must be released by a user, who removes the label. All other objects are left alone.
"""

from tensile.names import LEGACY, NO_ORIGINAL, OWNER, OWNER_NAME, UPPER_UID, VIRTUAL_NODE, VIRTUAL_POD, ProblemReason
from tensile.objects import NODE, POD, Manifest, Ref, annotations, labels, metadata
from tensile.reconcile.diff import Operation, changes
from tensile.reconcile.ownership import upper_uid_of
from tensile.reconcile.world import Problem, World

REASON: ProblemReason = "NameConflict"
"""An object that is not the engine's has the name, so the engine leaves it alone. Remedy: rename or delete one of
the two, or [adopt](../limits.md#name-conflicts) it."""
UNMARKED = (
    f'only objects created by tensile-kube or by this program are adopted; to allow it, set annotation {LEGACY}: "true"'
)

NOT_ABOVE = "the upper cluster has no such object; rename or delete it, or remove the optional reference"


def conflict(ref: Ref, why: str = "") -> Problem:
    """Return the problem that an object which is not ours has the name. `why`: the reason against its adoption.

    A user has to decide which of the two keeps the name.
    """
    cluster = f"lower cluster {ref.cluster}" if ref.cluster else "the upper cluster"
    where = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
    advice = f"it is not adopted: {why}" if why else "rename or delete one of the two"
    return Problem(REASON, f"{ref.kind.name} {where} exists in {cluster} and has another owner: {advice}")


def claim(ref: Ref, found: Manifest, upper_uid: str, world: World, lower: str) -> Problem | None:
    """Return why an object that is not ours must not be adopted, None if it may.

    `upper_uid` is the UID of the upper object that ours would be made for. `lower` is the lower whose `onConflict`
    counts.
    """
    if upper_uid == NO_ORIGINAL:
        return conflict(ref, NOT_ABOVE)
    if not adopts(world, lower):
        return conflict(ref)
    why = objection(ref, found, upper_uid, world)
    return conflict(ref, why) if why else None


def adopts(world: World, lower: str) -> bool:
    """Report whether conflicts in a lower are resolved by adoption."""
    return world.lowers[lower].spec.on_conflict == "adopt"


def objection(ref: Ref, found: Manifest, upper_uid: str, world: World) -> str:
    """Return why an object is not adopted, "" if it is."""
    if "deletionTimestamp" in metadata(found):
        return "it is being deleted"
    if ref.kind == NODE:
        return _of_node(found)
    mark = labels(found).get(OWNER, "")
    if mark not in ("", world.owner.mark):
        name = annotations(found).get(OWNER_NAME, mark)
        return of_another(mark, name, annotations(found).get(UPPER_UID, ""), upper_uid, world)
    known = mark or UPPER_UID in annotations(found) or annotations(found).get(LEGACY) == "true"
    return "" if known or (ref.kind == POD and labels(found).get(VIRTUAL_POD) == "true") else UNMARKED


def of_another(mark: str, name: str, made_for: str, upper_uid: str, world: World) -> str:
    """Return why an object with another owner's mark is not adopted, "" if that owner is certainly gone."""
    if made_for != upper_uid:
        return f"topology {name} owns it; if that topology is permanently gone, remove label {OWNER} from it"
    if mark in running(world):
        return f"topology {name} of this upper cluster owns it and is running"
    return ""


def marking(wanted: Manifest, seen: Manifest, sections: tuple[str, ...]) -> list[Operation]:
    """Return the operations that put our marks on an object, and apply the given `sections`.

    If another client wrote a mark with the same value, the mark would stay theirs. So it is removed, and written again
    once the rest is ours.
    """
    operations = changes(wanted, seen, sections)
    made_for = annotations(seen).get(UPPER_UID)
    if made_for and made_for == annotations(wanted).get(UPPER_UID) and not upper_uid_of(seen):
        operations.append({"op": "remove", "path": f"/metadata/annotations/{UPPER_UID.replace('/', '~1')}"})
    return operations


def running(world: World) -> frozenset[str]:
    """Return the marks of the owners in the upper cluster whose engines keep a node alive."""
    nodes = (entry.manifest() for entry in world.upper.nodes)
    return frozenset(labels(node).get(OWNER, "") for node in nodes if is_kept(node))


def is_kept(node: Manifest) -> bool:
    """Report whether an engine keeps a virtual node alive: Ready becomes Unknown a minute after the last heartbeat."""
    conditions = node.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] != "Unknown" for one in conditions)


def _of_node(found: Manifest) -> str:
    kind, value = VIRTUAL_NODE
    if labels(found).get(kind) != value:
        return f"it is not a virtual node (label {kind}: {value})"
    return "another engine updates it: stop that engine first, and wait a minute" if is_kept(found) else ""
