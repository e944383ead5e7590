"""Whose an observed object is, and which of its fields are ours.

Ownership is the label and the UID annotation together, the latter written by us: marks can be copied with a manifest,
or come back with a backup, and then the object is another's. Who wrote what is read from the API's own book-keeping
(managedFields); it also tells which keys of a map we set earlier, so that a label that vanished above vanishes below
and one that somebody else set there stays.
"""

from collections.abc import Iterator, Sequence
from sys import intern
from typing import Any, NamedTuple

import msgspec

from tensile.kube.store import Delta, Entry, Kept, decoded
from tensile.names import FIELD_MANAGER, NAMESPACE_MAPPING, NO_ORIGINAL, OWNER, UPPER_UID, Owner
from tensile.objects import Manifest, annotations, labels
from tensile.reconcile.world import LowerWorld, World, mapping_note


class Marks(msgspec.Struct, frozen=True, gc=False):
    """Whose a ConfigMap or Secret below is: owner and UID of the upper object, both "" where we did not write that.

    `token` is what one with tokens of the upper cluster says of them, None for a copy.
    """

    owner: str = ""
    upper_uid: str = ""
    token: Any = None


def marks_of(manifest: Manifest, token: Any = None) -> Marks:
    """Take the marks out of a decoded object."""
    upper_uid = upper_uid_of(manifest)
    return Marks(intern(labels(manifest).get(OWNER, "")) if upper_uid else "", upper_uid, token)


def digest_marks(raw: bytes) -> Kept:
    """Keep an object below with its marks: a pod with a hundred references asks for them again and again."""
    return Kept(raw, marks_of(decoded(raw)))


def _by_held(entry: Entry) -> Iterator[str]:
    if entry.facts.upper_uid == NO_ORIGINAL:
        yield entry.namespace


INDEXES = {"held": _by_held}
"""Of ConfigMaps and Secrets below: by namespace, those that hold a name which the upper cluster does not have."""


def is_ours(manifest: Manifest, owner: Owner) -> bool:
    """Report whether an object carries both of our marks, from our own hand."""
    return labels(manifest).get(OWNER) == owner.mark and bool(upper_uid_of(manifest))


def upper_uid_of(manifest: Manifest) -> str:
    """Return the UID of the upper object that we made an object for, "" where somebody else wrote that or nobody."""
    found = annotations(manifest).get(UPPER_UID, "")
    return found if found and UPPER_UID in our_keys(manifest, "annotations") else ""


def is_of(manifest: Manifest, owner: Owner, upper_uid: str) -> bool:
    """Report whether an object is ours and was made for the upper object of that UID."""
    return is_ours(manifest, owner) and upper_uid_of(manifest) == upper_uid


class NodeFacts(NamedTuple):
    """Whose a virtual node is, "" where somebody else wrote the marks, and the mapping of namespaces that it notes."""

    owner: str = ""
    mapping: str = ""


def has_node(lower: LowerWorld, world: World) -> bool:
    """Report whether the Node by which pods come to a lower is there, is ours, and notes no other mapping.

    Pods on another's Node are not our concern. And what is made while the Node notes another mapping of namespaces
    than the one in force would be looked for in the wrong place after a restart.
    """
    node = world.upper.nodes.get("", lower.node)
    if node is None or node.facts.owner != world.owner.mark:
        return False
    return not lower.mapping_known or node.facts.mapping in ("", mapping_note(lower.naming))


def node_begins(lower: LowerWorld, delta: Delta) -> bool:
    """Report whether a change is that the Node of a lower comes, or gets another owner."""
    before, after = delta
    is_news = after is not None and (before is None or before.facts != after.facts)
    return is_news and delta.entry.name == lower.node


def digest_node(raw: bytes) -> Kept:
    """Keep a Node of the upper cluster, and its `NodeFacts`."""
    node = decoded(raw)
    mark = labels(node).get(OWNER, "") if upper_uid_of(node) else ""
    return Kept(raw, NodeFacts(mark, annotations(node).get(NAMESPACE_MAPPING, "")))


def others_wrote(manifest: Manifest, path: Sequence[str]) -> bool:
    """Report whether somebody else owns a field now; `path` is in the API's book-keeping form, "f:spec" first."""
    books = manifest.get("metadata", {}).get("managedFields") or ()
    return any(_holds(book.get("fieldsV1"), path) for book in books if book.get("manager") != FIELD_MANAGER)


def we_wrote(manifest: Manifest, path: Sequence[str]) -> bool:
    """Report whether we own a field now; `path` is in the API's book-keeping form, "f:spec" first."""
    books = manifest.get("metadata", {}).get("managedFields") or ()
    return any(_holds(book.get("fieldsV1"), path) for book in books if book.get("manager") == FIELD_MANAGER)


def _holds(fields: Any, path: Sequence[str]) -> bool:
    """Report whether a book has a path."""
    for part in path:
        if not isinstance(fields, dict) or part not in fields:
            return False
        fields = fields[part]
    return True


def our_keys(manifest: Manifest, section: str) -> frozenset[str]:
    """Return the keys of metadata.labels or metadata.annotations that we wrote and nobody else took over.

    `section` is "labels" or "annotations".
    """
    found: set[str] = set()
    for book in manifest.get("metadata", {}).get("managedFields") or ():
        if book.get("manager") == FIELD_MANAGER and not book.get("subresource"):
            fields = book.get("fieldsV1", {}).get("f:metadata", {}).get(f"f:{section}", {})
            found.update(field[2:] for field in fields if field.startswith("f:"))
    return frozenset(found)
