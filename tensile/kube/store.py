"""A store for the objects of one kind, in a compact form for tens of thousands of objects.

Decoded objects take five times their bytes and slow the garbage collector down. So an entry holds the bytes and the
facts that a transform extracted when the object arrived, and a decision decodes the few objects that it needs. An
informer feeds a cache. Responses to our own writes are applied too, so that the next decision sees them before the
watch does. What is known of names without an object is in `tensile.kube.tombstones`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from sys import intern
from typing import Annotated, Any, NamedTuple

import msgspec
import orjson
from msgspec.structs import astuple

from tensile.errors import Malformed
from tensile.kube.tombstones import Name, Tombstone, Tombstones
from tensile.objects import Manifest

_NO_NAMES = frozenset[str]()
_DECODED_KEPT, _DECODED_BYTES = 128, 8 << 20
_OVERHEAD = 512
"""Bytes of an object besides its content: in the cache and its indexes."""
_SPREAD = 8
"""Bytes in Python objects and indexes per byte of facts, at least."""


class Meta(msgspec.Struct, frozen=True, gc=False):
    """The part of metadata that identifies an object. No value is longer than an apiserver allows."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    uid: Annotated[str, msgspec.Meta(max_length=128)] = ""
    namespace: Annotated[str, msgspec.Meta(max_length=253)] = ""
    resourceVersion: Annotated[str, msgspec.Meta(max_length=20)] = "0"  # noqa: N815 - the API's spelling


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    """The part of an object that is needed to store it."""

    metadata: Meta


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One object: its identity, its bytes (b"" where only facts are kept) and the facts from the transform.

    `weight` is the approximate memory in bytes, 0 where it is not counted.
    """

    namespace: str
    name: str
    uid: str
    version: int
    raw: bytes
    facts: Any
    weight: int = 0

    def manifest(self) -> Manifest:
        """Return the decoded object, which may be shared."""
        return decoded(self.raw)


_recent: dict[bytes, Manifest] = {}
_recent_size = 0


def decoded(raw: bytes) -> Manifest:
    """Decode an object. The last ones stay decoded, as the transform and the decision about one follow each other."""
    manifest = _recent.get(raw)
    return _remember_decoded(raw, orjson.loads(raw)) if manifest is None else manifest


def forget_decoded() -> None:
    """Drop the decoded objects before idle time: they take ten times as much memory as their bytes."""
    global _recent_size  # noqa: PLW0603 - the size of this module's own cache
    _recent.clear()
    _recent_size = 0


def packed(manifest: Manifest) -> bytes:
    """Encode an object of which some parts were removed.

    It returns a copy, as orjson returns its work buffer, which may be ten times as large as its content.
    """
    return bytes(memoryview(orjson.dumps(manifest)))


def _remember_decoded(raw: bytes, manifest: Manifest) -> Manifest:
    """Keep an object decoded. Beyond a limit, in number or in bytes, the oldest are dropped."""
    global _recent_size  # noqa: PLW0603
    _recent_size += 0 if raw in _recent else len(raw)
    _recent[raw] = manifest
    while len(_recent) > _DECODED_KEPT or _recent_size > _DECODED_BYTES:
        oldest = next(iter(_recent))
        del _recent[oldest]
        _recent_size -= len(oldest)
    return manifest


class Transformed(NamedTuple):
    """The result of a transform: the bytes to keep (b"" for none), and facts that decisions need often.

    `manifest` is the decoded form of the bytes, with the complete metadata, if the transform had to decode the object.
    It must not be changed.
    """

    raw: bytes
    facts: Any
    manifest: Manifest | None = None


Transform = Callable[[bytes], Transformed]
Index = Callable[[Entry], Iterable[Hashable]]


class Delta(NamedTuple):
    """The change of one name: before and after. None where there was or is no object."""

    before: Entry | None
    after: Entry | None

    @property
    def entry(self) -> Entry:
        """The present object, or the last one before its deletion."""
        entry = self.after or self.before
        assert entry is not None, "a delta has an object before or after"
        return entry


def changed_facts(delta: Delta) -> frozenset[str] | None:
    """Return the names of the facts that differ, None if the object was created, deleted or replaced."""
    before, after = delta
    if before is None or after is None or before.uid != after.uid:
        return None
    old, new = before.facts, after.facts
    if old == new:
        return _NO_NAMES
    if not isinstance(old, msgspec.Struct):
        names: tuple[str, ...] = getattr(old, "_fields", ())
        return frozenset([name for name in names if getattr(old, name) != getattr(new, name)])
    values = zip(old.__struct_fields__, astuple(old), astuple(new), strict=True)
    return frozenset([name for name, was, now in values if was != now])


class CacheTotals:
    """The number of objects in several caches together, and their approximate size in bytes."""

    def __init__(self) -> None:
        self.objects = 0
        self.content = 0

    def add(self, objects: int, content: int) -> None:
        """Add objects, or with negative numbers remove some."""
        self.objects += objects
        self.content += content

    def replace(self, before: Entry | None, after: Entry | None) -> None:
        """Count `after` instead of `before`; None for no object."""
        self.add(
            (after is not None) - (before is not None),
            (after.weight if after else 0) - (before.weight if before else 0),
        )


def keep_all(raw: bytes) -> Transformed:
    """Keep an object's bytes and no facts."""
    return Transformed(raw, None)


_ENVELOPES = msgspec.json.Decoder(_Envelope)
Listener = Callable[[Delta], None]


class Cache:
    """The objects of one kind, by (namespace, name), with indexes. Listeners are called after every change.

    `synced` becomes true with a complete list, and false by `mark_stale`, as the contents may be of a lost history.
    `version` is the newest resourceVersion seen. `remembers` is how many deleted objects keep their last state.
    `selects` reports whether the watch selects an object that was read by name. Objects stored from now on count in
    `tally`, if set. Objects that cannot be decoded raise Malformed.
    """

    def __init__(
        self,
        transform: Transform = keep_all,
        indexes: Mapping[str, Index] | None = None,
        *,
        remembers: int = 0,
        selects: Callable[[Manifest], bool] = lambda _manifest: True,
    ) -> None:
        self.selects = selects
        self.synced = False
        self.version = 0
        self.tally: CacheTotals | None = None
        self._transform = transform
        self._entries: dict[Name, Entry] = {}
        self._index_of = dict(indexes or {})
        self._indexes: dict[str, dict[Hashable, dict[Name, Entry]]] = {i: {} for i in self._index_of}
        self._tombstones = Tombstones(remembers)
        self._listeners: list[Listener] = []
        self._sync_listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def get(self, namespace: str, name: str) -> Entry | None:
        """Return the object of that name, None when none is known."""
        return self._entries.get((namespace, name))

    def select(self, index: str, value: Hashable) -> tuple[Entry, ...]:
        """Return the objects that an index has under `value`."""
        return tuple(self._indexes[index].get(value, {}).values())

    def count(self, index: str, value: Hashable) -> int:
        """Return how many objects an index has under `value`."""
        return len(self._indexes[index].get(value, ()))

    def values(self, index: str) -> tuple[Hashable, ...]:
        """Return every value of an index."""
        return tuple(self._indexes[index])

    def tombstone(self, namespace: str, name: str) -> Tombstone | None:
        """Return the tombstone of a name that is known to be empty, None if that is not known."""
        return self._tombstones.get((namespace, name))

    def is_deleted(self, namespace: str, name: str, uid: str) -> bool:
        """Report whether the object of that UID is known to be deleted, whatever has the name now.

        `uid` may also be that of the upper object for which a quorum read found no copy.
        """
        return self._tombstones.is_deleted((namespace, name), uid)

    def mark_deleted(self, namespace: str, name: str, uid: str) -> None:
        """Record that the object of that UID is deleted. Only the latest UIDs of a name are kept."""
        self._tombstones.mark_deleted((namespace, name), uid)

    def last(self, namespace: str, name: str) -> bytes:
        """Return the last state of a deleted object whose name is still free, b"" if it is not kept."""
        return self._tombstones.last((namespace, name))

    def is_lost(self, namespace: str, name: str, uid: str = "") -> bool:
        """Report whether an object of that UID ("": any) disappeared when the store's history went back.

        It is false once the object is back, its deletion was seen, or another object was created under the name. An
        older object that came back changes nothing.
        """
        return self._tombstones.is_lost((namespace, name), uid)

    def came_back(self, entry: Entry) -> bool:
        """Report whether a deleted object exists again since the store's history went back."""
        return self._tombstones.came_back((entry.namespace, entry.name), entry.uid)

    def invalidate(self, namespace: str, name: str) -> None:
        """Forget that a name is empty, and which UIDs were deleted under it: an object may be about to be created."""
        self._tombstones.invalidate((namespace, name))

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` after every change, until `unsubscribe`."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener, waiting: Callable[[], None] | None = None) -> None:
        """Remove a listener, and one that is `waiting` for the cache to sync."""
        self._listeners.remove(listener)
        if waiting is not None:
            self._sync_listeners.remove(waiting)

    def on_sync(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time the cache becomes synced, after the resulting changes."""
        self._sync_listeners.append(listener)

    def replace(self, raws: Iterable[bytes], version: int) -> None:
        """Replace the contents by a complete list. Missing objects are removed without a tombstone."""
        self.take_over(map(self.read, raws), version)

    def take_over(self, entries: Iterable[Entry], version: int, *, rewound: bool = False) -> None:
        """Replace the contents by a complete list of entries. `rewound`: the store's history went back.

        Entries newer than the list stay while the cache is synced. They are responses to writes that were sent after
        it, and the watch from its version on will deliver the rest.
        """
        fresh = {(entry.namespace, entry.name): entry for entry in entries}
        self.version = version
        was_synced, self.synced = self.synced, True
        keeps_newer = was_synced and not rewound
        before = {name: entry.uid for name, entry in self._entries.items()} if rewound else {}
        newer = {name for name, known in self._entries.items() if keeps_newer and known.version > version}
        for name in [name for name in self._entries if name not in fresh and name not in newer]:
            self._file(name, None)
        for name, entry in fresh.items():
            known = self._entries.get(name)
            if known is None or ((known.uid, known.version) != (entry.uid, entry.version) and name not in newer):
                self._file(name, entry)
        if rewound:
            after = {name: entry.uid for name, entry in fresh.items()}
            self._tombstones.rewind(before, after, limited=self.tally is not None)
        for listener in () if was_synced else tuple(self._sync_listeners):
            listener()

    def read(self, raw: bytes, meta: Meta | None = None) -> Entry:
        """Decode an object's metadata, unless given, and transform the rest. Nothing is stored.

        It does not stay decoded: in a list, thousands of others follow before any decision.
        """
        meta = meta or meta_of(raw)
        return self._entry(meta, version_in(meta), self._transformed(raw))

    def put(self, raw: bytes, meta: Meta | None = None) -> None:
        """Store an object from the watch.

        An object that is not newer than the known one is skipped without a transform: most are echoes of our own
        writes. So is a late event of a deleted object. A UID only comes back if the object left the selection and
        entered it again, with a newer version than at its leaving.
        """
        meta = meta or meta_of(raw)
        name, version = (meta.namespace, meta.name), version_in(meta)
        self.version = max(self.version, version)
        known = self._entries.get(name)
        if known is not None and known.version >= version:
            return
        if known is not None or version > self._tombstones.left_at(name, meta.uid):
            self._file(name, self._digested(meta, version, raw))

    def add_unselected(self, raw: bytes) -> None:
        """Store an object from a quorum read that the watch may not select, as it does not have our labels yet.

        Its selection may have been removed by another client, and it may be in the state in which it left. If the watch
        selects it, later events take precedence. Otherwise no event reports its changes: it is for the one decision
        whether to adopt it, or to restore its labels.
        """
        entry = self.read(raw)
        name = (entry.namespace, entry.name)
        known = self._entries.get(name)
        if known is None:
            is_new = entry.version >= self._tombstones.left_at(name, entry.uid)
        else:
            is_new = entry.version > known.version
        if is_new:
            self._file(name, entry)

    def apply_response(self, raw: bytes) -> None:
        """Store the response to a write of ours, unless the watch has already delivered the result."""
        meta = meta_of(raw)
        if meta.resourceVersion.isdecimal():
            name, version = (meta.namespace, meta.name), int(meta.resourceVersion)
            known = self._entries.get(name)
            if version > (known.version if known else self.version):
                self._file(name, self._digested(meta, version, raw))

    def remove(self, raw: bytes, meta: Meta | None = None) -> None:
        """Apply a deletion that the watch saw. An object with another UID stays.

        If the event's object cannot be read, the known state of the object is its last one.
        """
        meta = meta or meta_of(raw)
        version, name = version_in(meta), (meta.namespace, meta.name)
        known = self._entries.get(name)
        try:
            entry = self.read(raw, meta)
        except Malformed:
            if known is None or known.uid != meta.uid:
                raise
            entry = known
        self.version = max(self.version, version)
        if known is not None and known.uid != entry.uid:
            return
        tombstone = Tombstone(entry.uid, entry.facts)
        before = self._tombstones.add(name, tombstone, _size(entry), left=version, raw=entry.raw)
        self._file(name, None)
        if before is not None and before.uid == entry.uid and not before.seen:
            self._notify(Delta(entry, None))

    def confirm_absent(self, namespace: str, name: str, since: int | None = None, *, uid: str = "") -> None:
        """Record that a quorum read found the name empty, unless the watch has reported a newer object.

        `since` is the `latest_version` when the read was sent; None: now. `uid` is that of the object, or of the upper
        object whose copy was looked for, "" for any object. A last state that `remove` kept stays.
        """
        known = self._entries.get((namespace, name))
        if known is None or since is None or known.version <= since:
            self._mark_empty((namespace, name), seen=False)
            if uid:
                self.mark_deleted(namespace, name, uid)

    def confirm_deleted(self, namespace: str, name: str, uid: str) -> None:
        """Record that our deletion removed the object of that UID, whatever the watch has reported since."""
        known = self._entries.get((namespace, name))
        if known is None or known.uid == uid:
            self._mark_empty((namespace, name), seen=True)

    def latest_version(self, namespace: str, name: str) -> int:
        """Return the newest resourceVersion that precedes a request about that name which is sent now.

        A response to our own write may be ahead of the watch.
        """
        known = self._entries.get((namespace, name))
        return max(self.version, known.version if known else 0)

    def mark_stale(self) -> None:
        """Mark the contents as stale. They stay readable until the next list."""
        self.synced = False

    def copy(self) -> "Cache":
        """Return an independent copy of the contents, without listeners."""
        copied = Cache(self._transform, self._index_of, selects=self.selects)
        copied.synced, copied.version = self.synced, self.version
        for name, entry in self._entries.items():
            copied._file(name, entry)
        copied._tombstones = self._tombstones.copy()
        return copied

    def _mark_empty(self, name: Name, *, seen: bool) -> None:
        """Remove an object and leave a tombstone. `seen` as in `Tombstone`."""
        known = self._entries.get(name)
        if known is None:
            self._tombstones.confirm(name, seen=seen)
        else:
            self._tombstones.add(name, Tombstone(known.uid, known.facts, seen), _size(known))
        self._file(name, None)

    def _digested(self, meta: Meta, version: int, raw: bytes) -> Entry:
        """Transform an object for a decision that may follow next: it stays decoded."""
        kept = self._transformed(raw)
        if kept.manifest is not None:
            _remember_decoded(kept.raw, kept.manifest)
        return self._entry(meta, version, kept)

    def _transformed(self, raw: bytes) -> Transformed:
        """Transform an object. Any error is attributed to the object, and affects only that object."""
        try:
            return self._transform(raw)
        except Exception as error:
            raise Malformed(f"{type(error).__name__}: {error}") from error

    def _entry(self, meta: Meta, version: int, kept: Transformed) -> Entry:
        weight = 0 if self.tally is None else _weight(kept)
        return Entry(intern(meta.namespace), meta.name, meta.uid, version, kept.raw, kept.facts, weight)

    def _notify(self, delta: Delta) -> None:
        """Call the listeners."""
        for listener in self._listeners:
            listener(delta)

    def _file(self, name: Name, entry: Entry | None) -> None:
        """Store an entry under a name, or remove it (None), and update the indexes.

        The listeners are called unless only the resourceVersion changed: decisions do not depend on that.
        """
        before = self._entries.pop(name, None)
        if self.tally is not None:
            self.tally.replace(before, entry)
        if before is not None:
            self._remove_from_indexes(name, before)
        if entry is None:
            self._tombstones.forget_return(name)
        else:
            self._entries[name] = entry
            if before is None or before.uid != entry.uid:
                self._tombstones.replace(name, before.uid if before is not None else "", entry.uid)
            self._add_to_indexes(name, entry)
        if not _is_alike(before, entry):
            self._notify(Delta(before, entry))

    def _add_to_indexes(self, name: Name, entry: Entry) -> None:
        for index, values_of in self._index_of.items():
            for value in values_of(entry):
                self._indexes[index].setdefault(value, {})[name] = entry

    def _remove_from_indexes(self, name: Name, entry: Entry) -> None:
        for index, values_of in self._index_of.items():
            for value in values_of(entry):
                entries = self._indexes[index].get(value, {})
                entries.pop(name, None)
                if not entries:
                    self._indexes[index].pop(value, None)


def _is_alike(before: Entry | None, after: Entry | None) -> bool:
    """Report whether two entries of one name (None: none) differ in nothing but the resourceVersion."""
    if before is None or after is None:
        return before is after
    if before.uid != after.uid or before.facts != after.facts:
        return False
    old, new = b'"resourceVersion":"%d"' % before.version, b'"resourceVersion":"%d"' % after.version
    return before.raw == after.raw.replace(new, old, 1)


def meta_of(raw: bytes) -> Meta:
    """Decode an object's metadata. Raises Malformed."""
    try:
        return _ENVELOPES.decode(raw).metadata
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(str(error)) from None


def version_in(meta: Meta) -> int:
    """Return an object's resourceVersion as a number. Raises Malformed."""
    try:
        return int(meta.resourceVersion)
    except ValueError:
        raise Malformed(f"resourceVersion {meta.resourceVersion!r} is not a number") from None


def _weight(kept: Transformed) -> int:
    """Return the approximate memory of an object in bytes."""
    try:
        facts = len(msgspec.json.encode(kept.facts))
    except (TypeError, ValueError, msgspec.MsgspecError):
        facts = len(kept.raw)
    return len(kept.raw) + _SPREAD * facts + _OVERHEAD


def _size(entry: Entry) -> int:
    """Return the bytes that a tombstone of an object takes, 0 where they are not counted."""
    return max(entry.weight - len(entry.raw), 0)
