"""Whose an observed object is, and which of its fields are ours.

Ownership is the label and the UID annotation together: a label alone can be forged or copied with a manifest.
Which keys
of a map we set earlier is read from the API's own book-keeping (managedFields), so that a label that vanished above
vanishes below and one that somebody else set there stays.
"""

from tensile.names import FIELD_MANAGER, OWNER, UPPER_UID, Owner
from tensile.objects import Manifest, annotations, labels


def is_ours(manifest: Manifest, owner: Owner) -> bool:
    """Say whether an object carries both of our marks."""
    return labels(manifest).get(OWNER) == owner.mark and bool(annotations(manifest).get(UPPER_UID))


def is_of(manifest: Manifest, owner: Owner, upper_uid: str) -> bool:
    """Say whether an object is ours and was made for the upper object of that UID."""
    return is_ours(manifest, owner) and annotations(manifest)[UPPER_UID] == upper_uid


def our_keys(manifest: Manifest, section: str) -> frozenset[str]:
    """Give the keys of metadata.labels or metadata.annotations that we wrote and nobody else took over.

    `section` is "labels" or "annotations".
    """
    found: set[str] = set()
    for book in manifest.get("metadata", {}).get("managedFields") or ():
        if book.get("manager") == FIELD_MANAGER and not book.get("subresource"):
            fields = book.get("fieldsV1", {}).get("f:metadata", {}).get(f"f:{section}", {})
            found.update(field[2:] for field in fields if field.startswith("f:"))
    return frozenset(found)
