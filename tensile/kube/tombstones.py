"""What a cache knows of names without an object: deleted, empty, lost when the store was restored, or back since.

A name without an object may only be missing from the cache. A tombstone proves more: the deletion was seen on the
watch, or a quorum read later than any event found the name empty. Only a tombstone allows irreversible actions. It
proves nothing about an object that another client created under the name since, before the watch delivers it. Where
that could do harm, callers ask whether the object of a UID is deleted.
"""

from collections import OrderedDict
from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

Name = tuple[str, str]
"""A namespace and a name."""

_KEPT = 20_000
_BYTES = 16 << 20
_LAST_BYTES = 16 << 20
_LOST_KEPT = 20_000
_UIDS_KEPT = 8


class Tombstone(NamedTuple):
    """The last known facts of a deleted object. uid is "" if the name was only found empty.

    `seen`: the deletion was seen on the watch, or in the response to our own deletion. An object that was only found
    missing may have disappeared with the history of its store.
    """

    uid: str
    facts: Any
    seen: bool = True


class _Record(NamedTuple):
    """A tombstone, its bytes, the version at which the object left (infinite: unknown), and whether it is valid."""

    tombstone: Tombstone
    size: int
    left: float
    valid: bool = True


class Tombstones:
    """The tombstones of one cache, the UIDs deleted under each name, and what a restored store has lost or returned.

    No name with an object has a tombstone. `remembers` is how many deleted objects keep their last state.
    """

    def __init__(self, remembers: int = 0) -> None:
        self._remembers = remembers
        self._records: OrderedDict[Name, _Record] = OrderedDict()
        self._size = 0
        self._uids: OrderedDict[Name, tuple[str, ...]] = OrderedDict()
        self._last: OrderedDict[Name, bytes] = OrderedDict()
        self._last_size = 0
        self._lost: dict[Name, str] = {}
        self._returned: dict[Name, str] = {}

    def get(self, name: Name) -> Tombstone | None:
        """Return the tombstone of a name that is known to be empty, None if that is not known."""
        record = self._records.get(name)
        return record.tombstone if record is not None and record.valid else None

    def last(self, name: Name) -> bytes:
        """Return the last state of a deleted object whose name is still free, b"" if it is not kept."""
        return self._last.get(name, b"")

    def left_at(self, name: Name, uid: str) -> float:
        """Return the version at which the object of that UID left a name. -1: it did not; infinite: it is deleted."""
        record = self._records.get(name)
        return record.left if record is not None and record.tombstone.uid == uid else -1

    def is_deleted(self, name: Name, uid: str) -> bool:
        """Report whether the object of that UID is known to be deleted, whatever has the name now."""
        record = self._records.get(name)
        is_last = record is not None and record.valid and record.tombstone.uid == uid
        return is_last or uid in self._uids.get(name, ())

    def is_lost(self, name: Name, uid: str = "") -> bool:
        """Report whether an object of that UID ("": any) disappeared when the store's history went back."""
        lost = self._lost.get(name)
        return lost is not None and uid in ("", lost)

    def came_back(self, name: Name, uid: str) -> bool:
        """Report whether the object of that UID exists again since the store's history went back."""
        return self._returned.get(name) == uid

    def add(
        self, name: Name, tombstone: Tombstone, size: int, *, left: float = inf, raw: bytes | None = None
    ) -> Tombstone | None:
        """Store the tombstone of a name, and return the previous one, valid or not.

        `size` is its bytes, `left` the version at which the object left, `raw` its last state. Beyond a limit, in
        number or in bytes, the oldest are dropped.
        """
        before = self._pop(name)
        if tombstone.seen and tombstone.uid == self._lost.get(name):
            del self._lost[name]
        self._records[name] = _Record(tombstone, size, left)
        self._size += size
        while len(self._records) > _KEPT or self._size > _BYTES:
            self._pop(next(iter(self._records)))
        if raw is not None:
            self._keep_last(name, raw)
        return None if before is None else before.tombstone

    def confirm(self, name: Name, *, seen: bool) -> None:
        """Record again that a name without an object is empty. `seen` is for a name without a tombstone."""
        known = self._records.get(name)
        if known is None:
            self.add(name, Tombstone("", None, seen), 0)
        else:
            self.add(name, known.tombstone, known.size, left=known.left)

    def mark_deleted(self, name: Name, uid: str) -> None:
        """Record that the object of that UID is deleted. Only the latest UIDs of a name are kept."""
        known = self._uids.pop(name, ())
        self._uids[name] = (*(one for one in known if one != uid), uid)[-_UIDS_KEPT:]
        if len(self._uids) > _KEPT:
            self._uids.popitem(last=False)

    def invalidate(self, name: Name) -> None:
        """Invalidate the knowledge that a name is empty: an object may be about to be created under it."""
        record = self._records.get(name)
        if record is not None:
            self._records[name] = record._replace(valid=False)
        self._uids.pop(name, None)

    def replace(self, name: Name, before: str, uid: str) -> None:
        """Drop the tombstone of a name that has a new object with `uid`.

        The deletion of the previous UID stays recorded: `before`, "" for that of the tombstone.
        """
        record = self._pop(name)
        previous = before or (record.tombstone.uid if record is not None else "")
        self._lost.pop(name, None)
        self._uids.pop(name, None)
        if previous not in ("", uid):
            self.mark_deleted(name, previous)
        self._forget_last(name)

    def forget_return(self, name: Name) -> None:
        """Record that the object of a name is removed: it is no longer one that came back."""
        self._returned.pop(name, None)

    def rewind(self, before: Mapping[Name, str], after: Mapping[Name, str], *, limited: bool) -> None:
        """Record that the store's history went back: the UIDs before and after, by name.

        `limited`: beyond a number, the oldest are dropped.
        """
        self._lost |= {name: uid for name, uid in before.items() if after.get(name) != uid}
        self._returned |= {name: uid for name, uid in after.items() if before.get(name) != uid}
        for known in (self._lost, self._returned) if limited else ():
            while len(known) > _LOST_KEPT:
                del known[next(iter(known))]

    def copy(self) -> "Tombstones":
        """Return an independent copy."""
        made = Tombstones(self._remembers)
        made._records, made._size = self._records.copy(), self._size
        made._last, made._last_size = self._last.copy(), self._last_size
        made._uids, made._lost, made._returned = self._uids.copy(), self._lost.copy(), self._returned.copy()
        return made

    def _pop(self, name: Name) -> _Record | None:
        record = self._records.pop(name, None)
        if record is not None:
            self._size -= record.size
        return record

    def _keep_last(self, name: Name, raw: bytes) -> None:
        """Keep an object's last state. Beyond a limit, the oldest are dropped."""
        self._forget_last(name)
        self._last[name] = raw
        self._last_size += len(raw)
        while self._last and (len(self._last) > self._remembers or self._last_size > _LAST_BYTES):
            self._forget_last(next(iter(self._last)))

    def _forget_last(self, name: Name) -> None:
        self._last_size -= len(self._last.pop(name, b""))
