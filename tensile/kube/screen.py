"""Holds each object that a cluster tells of against what it was asked for, before anything is made of it.

An object that is none, or that was not asked for, is left out and counted; the others of its list count all the same.
To refuse the list instead would let one object, or one mistake of ours in reading it, stop a whole cluster until that
is found. And to leave one out decides nothing that cannot be undone: that an object is merely missing from a list is
never taken for its end.
"""

import msgspec

from tensile.cache import Meta
from tensile.cluster import Selection
from tensile.errors import Malformed
from tensile.objects import Kind

NOTHING = Selection(fields="metadata.name=-")
"""Selects nothing, as no object has such a name: the answer tells the collection's version alone."""
_BY_NAME = "metadata.name="
_SHOWN = 100


class _Labelled(Meta, frozen=True, gc=False):
    """Metadata by which a selector of labels chooses."""

    labels: dict[str, str] | None = None


class _Seen(msgspec.Struct, frozen=True, gc=False):
    """The part of an object that tells what it is."""

    metadata: Meta
    kind: str = ""


class _Chosen(msgspec.Struct, frozen=True, gc=False):
    """The same with labels, which cost more to read."""

    metadata: _Labelled
    kind: str = ""


_SEEN = msgspec.json.Decoder(_Seen)
_CHOSEN = msgspec.json.Decoder(_Chosen)


class Screen:
    """What is looked for: objects of a kind, by a selection.

    Compared are kind, namespace, a name that is asked for, and labels that are asked for by equality.
    """

    def __init__(self, kind: Kind, selection: Selection) -> None:
        self._kind = kind
        self._namespace = selection.namespace
        self._name = selection.fields.removeprefix(_BY_NAME) if _is_name(selection.fields) else ""
        self._labels = _equalities(selection.labels)

    def meta(self, raw: bytes, *, leaves: bool = False) -> Meta:
        """Return what an object is filed by; raises Malformed for what is none, or was not asked for.

        `leaves`: it is deleted, or is selected no more, so that its labels may be others by now.
        """
        decoder = _CHOSEN if self._labels and not leaves else _SEEN
        try:
            seen = decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Malformed(str(error)) from None
        objection = self._objection(seen)
        if objection:
            raise Malformed(f"{seen.metadata.namespace}/{seen.metadata.name[:_SHOWN]}: {objection}")
        return seen.metadata

    def _objection(self, seen: _Seen | _Chosen) -> str:
        """Return why an object was not asked for, "" where it was."""
        meta = seen.metadata
        if seen.kind not in ("", self._kind.name):
            return f"a {seen.kind[:_SHOWN]} instead of a {self._kind.name}"
        if self._namespace not in ("", meta.namespace) or bool(meta.namespace) is not self._kind.namespaced:
            return "in a namespace that was not asked for"
        if self._name not in ("", meta.name):
            return "a name that was not asked for"
        if isinstance(meta, _Labelled) and not self._labels <= (meta.labels or {}).items():
            return "without the labels that were asked for"
        return ""


def unwanted(raw: bytes) -> None:
    """Refuse whatever is listed where nothing can be: raises Malformed."""
    raise Malformed(f"an object where none can be, of {len(raw)} bytes")


def _is_name(fields: str) -> bool:
    return fields.startswith(_BY_NAME) and "," not in fields


def _equalities(labels: str) -> frozenset[tuple[str, str]]:
    """Return the labels that a selector asks for by equality; other terms are left to the cluster."""
    terms = [] if "(" in labels else labels.split(",")
    pairs = (term.split("=", 1) for term in terms if "=" in term and "!" not in term and "==" not in term)
    return frozenset((key, value) for key, value in pairs)
