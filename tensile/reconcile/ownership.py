"""The owner of an observed object, which of its fields are ours, and whether an object of another owner is adopted.

An object is ours if it has the label and the UID annotation, and we wrote the annotation. Marks can also be copied with
a manifest or restored from a backup, and then the object is another's. The writer is read from managedFields. They also
show which keys of a map we set earlier. So a label removed from the upper object is removed from the lower one, and a
label that another client set there stays.

Where an object that is not ours has the name of one of ours, there is a conflict. `onConflict: adopt` takes over
objects without a living owner: those of tensile-kube, and those of an engine like this one that will not return. It
never guesses. An object of another owner is adopted only if it was made for the same upper object, and its owner keeps
no node alive. Such an owner is another topology of this upper cluster. An object marked from another upper cluster must
be released by a user, who removes the label. All other objects are left alone.
"""

from collections.abc import Iterator, Sequence
from sys import intern
from typing import Any, NamedTuple

import msgspec
import orjson

from tensile.kube.store import Delta, Entry, Transformed, decoded
from tensile.names import (
    FIELD_MANAGER,
    LEGACY,
    NAMESPACE_MAPPING,
    NO_ORIGINAL,
    OWNER,
    OWNER_NAME,
    UPPER_UID,
    VIRTUAL_NODE,
    VIRTUAL_POD,
    WRITTEN_KEYS,
    Owner,
    ProblemReason,
    owner_of,
)
from tensile.objects import NODE, POD, Manifest, Ref, annotations, labels, metadata, uid
from tensile.reconcile.world import LowerWorld, Problem, World, mapping_note

_NOT_COPIED = frozenset({"kubectl.kubernetes.io/last-applied-configuration", "kubernetes.io/enforce-mountable-secrets"})
"""Annotations that a copy does not get.

With the second, pods that mount Secrets which their account does not list are refused; the upper cluster has enforced
it, and the list is not copied.
"""
NAME_CONFLICT: ProblemReason = "NameConflict"
"""An object that is not the engine's has the name, so the engine leaves it alone. Remedy: rename or delete one of
the two, or [adopt](../limits.md#name-conflicts) it."""
UNMARKED = (
    "only objects created by tensile-kube or by this program are adopted; to allow it, annotate this object with "
    f'{LEGACY}: "true"'
)
NOT_IN_UPPER = "the upper cluster has no such object; rename or delete it, or remove the optional reference"


class Marks(msgspec.Struct, frozen=True, gc=False):
    """The owner of a copy, and the UID of its upper object, both "" if we did not write them.

    `token` is the metadata of a Secret with tokens of the upper cluster, None for a copy.
    """

    owner: str = ""
    upper_uid: str = ""
    token: Any = None


class NodeFacts(NamedTuple):
    """The owner of a virtual node, "" if we did not write its marks, and its recorded namespace mapping."""

    owner: str = ""
    mapping: str = ""


def marks_of(manifest: Manifest, token: Any = None) -> Marks:
    """Return the marks of a decoded object."""
    upper_uid = upper_uid_of(manifest)
    return Marks(intern(labels(manifest).get(OWNER, "")) if upper_uid else "", upper_uid, token)


def transform_copy(raw: bytes) -> Transformed:
    """Keep a lower object with its marks: a pod with a hundred references needs them again and again."""
    return Transformed(raw, marks_of(decoded(raw)))


def _by_reserved(entry: Entry) -> Iterator[str]:
    if entry.facts.upper_uid == NO_ORIGINAL:
        yield entry.namespace


INDEXES = {"held": _by_reserved}
"""For lower ConfigMaps and Secrets: by namespace, those that reserve a name that the upper cluster does not have."""


def is_ours(manifest: Manifest, owner: Owner) -> bool:
    """Report whether an object has both of our marks, written by us."""
    return labels(manifest).get(OWNER) == owner.mark and bool(upper_uid_of(manifest))


def upper_uid_of(manifest: Manifest) -> str:
    """Return the UID of the upper object that an object was made for, "" if we did not write it."""
    meta = manifest.get("metadata") or {}
    found: str = (meta.get("annotations") or {}).get(UPPER_UID, "")
    return found if found and UPPER_UID in our_keys(manifest, "annotations") else ""


def is_of(manifest: Manifest, owner: Owner, upper_uid: str) -> bool:
    """Report whether an object is ours and was made for the upper object of that UID."""
    return is_ours(manifest, owner) and upper_uid_of(manifest) == upper_uid


def is_copy(entry: Entry, owner: Owner) -> bool:
    """Report whether a cached lower object is ours, by its facts."""
    return bool(entry.facts.owner == owner.mark)


def is_copy_of(entry: Entry | None, owner: Owner, upper_uid: str) -> bool:
    """Report whether a cached lower object is ours and was made for the upper object of that UID, by its facts."""
    return entry is not None and (entry.facts.owner, entry.facts.upper_uid) == (owner.mark, upper_uid)


def copy_metadata(original: Manifest, owner: Owner, namespace: str) -> Manifest:
    """Return the metadata of the copy of an upper object: its name, labels and annotations, and our marks."""
    kept = {key: value for key, value in annotations(original).items() if key not in _NOT_COPIED}
    return {
        "name": metadata(original)["name"],
        "namespace": namespace,
        "labels": labels(original) | owner.label,
        "annotations": kept | owner.signed(uid(original)),
    }


def has_node(lower: LowerWorld, world: World) -> bool:
    """Report whether a lower's Node exists, is ours, and records no other namespace mapping.

    Pods on another owner's Node are not ours. And objects created while the Node records another mapping than the
    active one would be looked up under the wrong names after a restart.
    """
    node = world.upper.nodes.get("", lower.node)
    if node is None or node.facts.owner != world.owner.mark:
        return False
    return not lower.mapping_known or node.facts.mapping in ("", mapping_note(lower.naming))


def foreign_node(name: str, world: World) -> Entry | None:
    """Return the virtual node of that name if it has the marks of another owner, else None."""
    node = world.upper.nodes.get("", name)
    return node if node is not None and node.facts.owner not in ("", world.owner.mark) else None


def node_appears(lower: LowerWorld, delta: Delta) -> bool:
    """Report whether a change is that a lower's Node is created, or gets another owner."""
    before, after = delta
    is_news = after is not None and (before is None or before.facts != after.facts)
    return is_news and delta.entry.name == lower.node


def transform_node(raw: bytes) -> Transformed:
    """Keep a Node of the upper cluster, and its `NodeFacts`."""
    node = decoded(raw)
    mark = labels(node).get(OWNER, "") if upper_uid_of(node) else ""
    return Transformed(raw, NodeFacts(mark, annotations(node).get(NAMESPACE_MAPPING, "")))


def others_wrote(manifest: Manifest, path: Sequence[str]) -> bool:
    """Report whether another client owns a field now. `path` is in the form of managedFields, "f:spec" first."""
    entries = manifest.get("metadata", {}).get("managedFields") or ()
    return any(_holds(entry.get("fieldsV1"), path) for entry in entries if entry.get("manager") != FIELD_MANAGER)


def we_wrote(manifest: Manifest, path: Sequence[str]) -> bool:
    """Report whether we own a field now. `path` is in the form of managedFields, "f:spec" first."""
    entries = manifest.get("metadata", {}).get("managedFields") or ()
    return any(_holds(entry.get("fieldsV1"), path) for entry in entries if entry.get("manager") == FIELD_MANAGER)


def _holds(fields: Any, path: Sequence[str]) -> bool:
    """Report whether a managedFields entry contains a path."""
    for part in path:
        if not isinstance(fields, dict) or part not in fields:
            return False
        fields = fields[part]
    return True


def our_keys(manifest: Manifest, section: str) -> frozenset[str]:
    """Return the keys of metadata.labels or metadata.annotations that we wrote and still own.

    `section` is "labels" or "annotations".
    """
    found: list[str] = []
    for entry in manifest.get("metadata", {}).get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER and not entry.get("subresource"):
            fields = entry.get("fieldsV1", {}).get("f:metadata", {}).get(f"f:{section}", {})
            found += [field[2:] for field in fields if field.startswith("f:")]
    return frozenset(found)


def noted_keys(lower_pod: Manifest, section: str) -> frozenset[str] | None:
    """Return the keys of "labels" or "annotations" that we last wrote to a lower pod, None if that is not noted.

    Our marks are not among them: every lower pod has those.
    """
    try:
        noted = orjson.loads(annotations(lower_pod).get(WRITTEN_KEYS, ""))
    except orjson.JSONDecodeError:
        return None
    keys = noted.get(section, []) if isinstance(noted, dict) else None
    return frozenset(key for key in keys if isinstance(key, str)) if isinstance(keys, list) else None


def conflict(ref: Ref, why: str = "") -> Problem:
    """Return the problem that an object which is not ours has the name. `why`: the reason against its adoption.

    A user has to decide which of the two keeps the name.
    """
    cluster = f"lower cluster {ref.cluster}" if ref.cluster else "the upper cluster"
    advice = f"it is not adopted: {why}" if why else "rename or delete one of the two"
    return Problem(
        NAME_CONFLICT, f"{ref.kind.name} {ref.namespaced_name} exists in {cluster} and has another owner: {advice}"
    )


def other_topology(node: Manifest, owner: Owner) -> str:
    """Return the name of another topology of this upper cluster that a Node is marked for, "" for none."""
    name = annotations(node).get(OWNER_NAME, "")
    mark = labels(node).get(OWNER)
    return name if mark and mark != owner.mark and owner_of(owner.upper, name).mark == mark else ""


def rename_advice(topology: str) -> str:
    """Return what to do about a Node of another topology, which may be this one under its former name."""
    return f"if this topology was renamed, set `name: {topology}` again; otherwise give the lower another node.name"


def adoption_problem(ref: Ref, found: Manifest, upper_uid: str, world: World, lower: str) -> Problem | None:
    """Return why an object that is not ours must not be adopted, None if it may.

    `upper_uid` is the UID of the upper object that ours would be made for. `lower` is the lower whose `onConflict`
    counts.
    """
    if upper_uid == NO_ORIGINAL:
        return conflict(ref, NOT_IN_UPPER)
    if not adopts(world, lower):
        topology = other_topology(found, world.owner) if ref.kind == NODE else ""
        message = f"Node {ref.name} belongs to topology {topology}: {rename_advice(topology)}"
        return Problem(NAME_CONFLICT, message) if topology else conflict(ref)
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
        return _node_objection(found)
    mark = labels(found).get(OWNER, "")
    if mark not in ("", world.owner.mark):
        name = annotations(found).get(OWNER_NAME, mark)
        return other_owner_objection(mark, name, annotations(found).get(UPPER_UID, ""), upper_uid, world)
    is_adoptable = mark or UPPER_UID in annotations(found) or annotations(found).get(LEGACY) == "true"
    return "" if is_adoptable or (ref.kind == POD and labels(found).get(VIRTUAL_POD) == "true") else UNMARKED


def other_owner_objection(mark: str, name: str, made_for: str, upper_uid: str, world: World) -> str:
    """Return why an object with another owner's mark is not adopted, "" if that owner is certainly gone."""
    if made_for != upper_uid:
        return f"topology {name} owns it; if that topology is permanently gone, remove label {OWNER} from it"
    if mark in running_owners(world):
        return f"topology {name} of this upper cluster owns it and is running"
    return ""


def running_owners(world: World) -> frozenset[str]:
    """Return the marks of the owners in the upper cluster whose engines keep a node alive."""
    nodes = (entry.manifest() for entry in world.upper.nodes)
    return frozenset(labels(node).get(OWNER, "") for node in nodes if is_kept_alive(node))


def is_kept_alive(node: Manifest) -> bool:
    """Report whether an engine keeps a virtual node alive: Ready becomes Unknown a minute after the last heartbeat."""
    conditions = node.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] != "Unknown" for one in conditions)


def _node_objection(found: Manifest) -> str:
    kind, value = VIRTUAL_NODE
    if labels(found).get(kind) != value:
        return f"it is not a virtual node (label {kind}: {value})"
    return "another engine updates it: stop that engine first, and wait a minute" if is_kept_alive(found) else ""
