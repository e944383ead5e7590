"""Objects of one kind as a cluster last told, in a form that ten thousand of them can be kept in.

Decoded objects cost five times their bytes and slow the collector down, so an entry holds the bytes and what a `Digest`
took out of them when they came; a decision decodes the few objects that it looks at. An informer feeds a cache; answers
to our own writes are absorbed, so that the next decision sees them without waiting for the watch.

Absence has two strengths. A name that is merely not here may have been missed. One that *departed* was seen deleted
on the watch, or read at quorum, after anything that stood there: only that allows what cannot be undone.

An empty name says nothing of an object that came there since, made by somebody else, of which the watch is yet to tell.
Where that would be harmed, the question is whether an object is *gone*, by its UID.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from math import inf
from sys import intern
from typing import Annotated, Any, NamedTuple

import msgspec
import orjson

from tensile.errors import Malformed
from tensile.objects import Manifest

_DEPARTED_KEPT = 20_000
_DEPARTED_BYTES = 16 << 20
_LAST_BYTES = 16 << 20
_LOST_KEPT = 20_000
_GONE_KEPT = 8
_DECODED_KEPT, _DECODED_BYTES = 128, 8 << 20
_OVERHEAD = 512
"""Bytes that an object takes beside its content: in the cache itself, and in its indexes."""
_SPREAD = 8
"""Bytes that a byte of facts takes in Python's objects and in indexes, at least."""


class Meta(msgspec.Struct, frozen=True, gc=False):
    """The part of metadata that every object is filed by; nothing in it is longer than an apiserver makes it."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    uid: Annotated[str, msgspec.Meta(max_length=128)] = ""
    namespace: Annotated[str, msgspec.Meta(max_length=253)] = ""
    resourceVersion: Annotated[str, msgspec.Meta(max_length=20)] = "0"  # noqa: N815 - the API's spelling


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    """Just enough of an object to file it."""

    metadata: Meta


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One object: what it is filed by, its bytes (b"" where only facts are kept) and what the digest took out.

    `weight` is about how many bytes it takes, 0 where that is not counted.
    """

    namespace: str
    name: str
    uid: str
    version: int
    raw: bytes
    facts: Any
    weight: int = 0

    def manifest(self) -> Manifest:
        """Return the object, decoded; others may hold the same one."""
        return decoded(self.raw)


_recent: dict[bytes, Manifest] = {}
_recent_size = 0


def decoded(raw: bytes) -> Manifest:
    """Decode an object. The last ones stay decoded: what digests one and what decides about it follow each other."""
    manifest = _recent.get(raw)
    return _remembered(raw, orjson.loads(raw)) if manifest is None else manifest


def forget_decoded() -> None:
    """Drop what stayed decoded, when nothing is about to be decided: it takes ten times as much as its bytes."""
    global _recent_size  # noqa: PLW0603 - the size of what is in the module's own book
    _recent.clear()
    _recent_size = 0


def packed(manifest: Manifest) -> bytes:
    """Encode an object of which some parts were left out.

    orjson gives its work buffer away, which may be ten times as large as what is in it: what is kept is a copy.
    """
    return bytes(memoryview(orjson.dumps(manifest)))


def _remembered(raw: bytes, manifest: Manifest) -> Manifest:
    """Keep an object decoded; beyond a bound, in number or in bytes, the oldest go."""
    global _recent_size  # noqa: PLW0603
    _recent_size += 0 if raw in _recent else len(raw)
    _recent[raw] = manifest
    while len(_recent) > _DECODED_KEPT or _recent_size > _DECODED_BYTES:
        oldest = next(iter(_recent))
        del _recent[oldest]
        _recent_size -= len(oldest)
    return manifest


class Kept(NamedTuple):
    """What a digest keeps of an object: bytes (b"" for none) and facts that decisions ask for often.

    `manifest` is what the bytes say, with the whole metadata, where the digest had to decode the object; nobody changes
    it from now on.
    """

    raw: bytes
    facts: Any
    manifest: Manifest | None = None


Digest = Callable[[bytes], Kept]
Index = Callable[[Entry], Iterable[Hashable]]


class Delta(NamedTuple):
    """What changed for one name: before and after; None where there was or is none."""

    before: Entry | None
    after: Entry | None

    @property
    def entry(self) -> Entry:
        """The object as it is, or as it was before it went."""
        entry = self.after or self.before
        assert entry is not None, "a delta tells of something"
        return entry


class Departure(NamedTuple):
    """The last that was known of an object that is gone for certain; uid "" when the name was only read as empty.

    `seen` is whether its going was seen: on the watch, or as the answer to our own deletion. What is merely found
    missing may be gone with the history of its store.
    """

    uid: str
    facts: Any
    seen: bool = True


class Tally:
    """How many objects several caches hold together, and about how many bytes these take."""

    def __init__(self) -> None:
        self.objects = 0
        self.content = 0

    def add(self, objects: int, content: int) -> None:
        """Count objects that came, or with negative numbers some that went."""
        self.objects += objects
        self.content += content


def keep_all(raw: bytes) -> Kept:
    """Keep an object's bytes and no facts."""
    return Kept(raw, None)


_ENVELOPES = msgspec.json.Decoder(_Envelope)
Name = tuple[str, str]
Listener = Callable[[Delta], None]


class Cache:
    """The objects of one kind, by (namespace, name), with indexes, and word of every change to its listeners.

    `synced` turns true with the first complete list and false again while what is here may be lost history.
    `version` is the newest resourceVersion seen. Of so many objects that the watch saw go, `remembers` keeps the last
    state. `selects` says of a decoded object that was read by its name whether the watch tells of it. What is filed
    from now on counts in `tally`, where one is set. Whatever cannot be read raises Malformed.
    """

    def __init__(
        self,
        digest: Digest = keep_all,
        indexes: Mapping[str, Index] | None = None,
        *,
        remembers: int = 0,
        selects: Callable[[Manifest], bool] = lambda _manifest: True,
    ) -> None:
        self.selects = selects
        self.synced = False
        self.version = 0
        self.tally: Tally | None = None
        self._digest = digest
        self._entries: dict[Name, Entry] = {}
        self._index_of = dict(indexes or {})
        self._indexes: dict[str, dict[Hashable, dict[Name, Entry]]] = {i: {} for i in self._index_of}
        self._departed: OrderedDict[Name, Departure] = OrderedDict()
        self._departed_sizes: dict[Name, int] = {}
        self._departed_size = 0
        self._left: dict[Name, int] = {}
        self._doubted: set[Name] = set()
        self._gone: OrderedDict[Name, tuple[str, ...]] = OrderedDict()
        self._lost: dict[Name, str] = {}
        self._back: dict[Name, str] = {}
        self._remembers = remembers
        self._last: OrderedDict[Name, bytes] = OrderedDict()
        self._last_size = 0
        self._listeners: list[Listener] = []
        self._waiting: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def get(self, namespace: str, name: str) -> Entry | None:
        """Return the object of that name, None when none is known."""
        return self._entries.get((namespace, name))

    def select(self, index: str, value: Hashable) -> tuple[Entry, ...]:
        """Return the objects that an index files under `value`."""
        return tuple(self._indexes[index].get(value, {}).values())

    def count(self, index: str, value: Hashable) -> int:
        """Return how many objects an index files under `value`."""
        return len(self._indexes[index].get(value, ()))

    def values(self, index: str) -> tuple[Hashable, ...]:
        """Return every value under which an index files something."""
        return tuple(self._indexes[index])

    def departed(self, namespace: str, name: str) -> Departure | None:
        """Report whether the name is known to be empty, and what stood there last; None: not known."""
        return None if (namespace, name) in self._doubted else self._departed.get((namespace, name))

    def is_gone(self, namespace: str, name: str, uid: str) -> bool:
        """Report whether the object of that UID is known not to stand there any more, whatever does.

        So is that which was made for an upper object of that UID, where a read at quorum looked for it.
        """
        departure = self.departed(namespace, name)
        return uid in self._gone.get((namespace, name), ()) or (departure is not None and departure.uid == uid)

    def note_gone(self, namespace: str, name: str, uid: str) -> None:
        """Note that the object of that UID is not there; of one name the latest are remembered."""
        known = self._gone.pop((namespace, name), ())
        self._gone[namespace, name] = (*(one for one in known if one != uid), uid)[-_GONE_KEPT:]
        if len(self._gone) > _DEPARTED_KEPT:
            self._gone.popitem(last=False)

    def last(self, namespace: str, name: str) -> bytes:
        """Return the object that the watch saw go from an empty name, b"" when it is not remembered."""
        return self._last.get((namespace, name), b"")

    def is_lost(self, namespace: str, name: str, uid: str = "") -> bool:
        """Report whether an object of that UID ("": any) stood there until the store's history went back.

        Not once it is back, or was seen to go, or another was made there; an older one that came back says nothing.
        """
        lost = self._lost.get((namespace, name))
        return lost is not None and uid in ("", lost)

    def came_back(self, entry: Entry) -> bool:
        """Report whether an object that had gone is there again since the store's history went back."""
        return self._back.get((entry.namespace, entry.name)) == entry.uid

    def doubt(self, namespace: str, name: str) -> None:
        """Forget that a name is empty for certain: something may be about to stand there."""
        self._doubted.add((namespace, name))
        self._gone.pop((namespace, name), None)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` after every change, until `unsubscribe`."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener, waiting: Callable[[], None] | None = None) -> None:
        """Call a listener no more, nor one that is `waiting` for the cache to become complete."""
        self._listeners.remove(listener)
        if waiting is not None:
            self._waiting.remove(waiting)

    def on_sync(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time the cache becomes complete, after the changes that this brought."""
        self._waiting.append(listener)

    def replace(self, raws: Iterable[bytes], version: int) -> None:
        """Take over a complete list: what is not in it is gone, but did not depart."""
        self.take_over(map(self.read, raws), version)

    def take_over(self, entries: Iterable[Entry], version: int, *, rewound: bool = False) -> None:
        """Take over a complete list that has been read; `rewound`: of a store that knows less than it did.

        What is newer than the list stays while the cache is in sync: it is the answer to a write that was sent after
        it, and the watch from there will tell the rest.
        """
        fresh = {(entry.namespace, entry.name): entry for entry in entries}
        self.version = version
        was_synced, self.synced = self.synced, True
        is_told = was_synced and not rewound
        before = {name: entry.uid for name, entry in self._entries.items()} if rewound else {}
        newer = {name for name, known in self._entries.items() if is_told and known.version > version}
        for name in [name for name in self._entries if name not in fresh and name not in newer]:
            self._file(name, None)
        for name, entry in fresh.items():
            known = self._entries.get(name)
            if known is None or ((known.uid, known.version) != (entry.uid, entry.version) and name not in newer):
                self._file(name, entry)
        self._lost |= {name: uid for name, uid in before.items() if name not in fresh or fresh[name].uid != uid}
        if rewound:
            self._back |= {name: entry.uid for name, entry in fresh.items() if before.get(name) != entry.uid}
        for book in () if self.tally is None else (self._lost, self._back):
            while len(book) > _LOST_KEPT:
                del book[next(iter(book))]
        for listener in () if was_synced else tuple(self._waiting):
            listener()

    def read(self, raw: bytes, meta: Meta | None = None) -> Entry:
        """Decode what an object is filed by, unless it is given, and digest the rest; nothing is filed.

        One of a list does not stay decoded: thousands of others come before anything is decided about it.
        """
        return self._entry(meta or meta_of(raw), self._kept(raw))

    def put(self, raw: bytes, meta: Meta | None = None) -> None:
        """Take over an object as the watch tells it.

        One that is not newer than what is known is passed over undigested: most are echoes of our own writes. So is a
        late word of one that is known to be gone: no UID comes back, but for an object that left the selection and
        is in it again, which is newer than its leaving.
        """
        meta = meta or meta_of(raw)
        name, version = (meta.namespace, meta.name), version_in(meta)
        self.version = max(self.version, version)
        known = self._entries.get(name)
        if (known is None or known.version < version) and version > self._end(name, meta.uid):
            self._file(name, self._digested(meta, raw))

    def admit(self, raw: bytes) -> None:
        """Take over an object that was just read at quorum though the watch may not select it, as it is not ours yet.

        So it is with one that somebody took out of the selection, which may be as it was when it left; what the watch
        has told since of one that it does select counts more. Of one that it does not, nobody tells the changes: it is
        for the one decision whether to make it ours, or to have it selected again.
        """
        entry = self.read(raw)
        name = (entry.namespace, entry.name)
        known = self._entries.get(name)
        if (known is None or known.version < entry.version) and entry.version >= self._end(name, entry.uid):
            self._file(name, entry)

    def absorb(self, raw: bytes) -> None:
        """Take over the answer to a write of ours, unless the watch has already told what came of it."""
        meta = meta_of(raw)
        if meta.resourceVersion.isdecimal():
            name = (meta.namespace, meta.name)
            known = self._entries.get(name)
            if int(meta.resourceVersion) > (known.version if known else self.version):
                self._file(name, self._digested(meta, raw))

    def remove(self, raw: bytes, meta: Meta | None = None) -> None:
        """Take over that the watch saw an object go; one of another UID stays."""
        entry = self.read(raw, meta)
        self.version = max(self.version, entry.version)
        name = (entry.namespace, entry.name)
        known = self._entries.get(name)
        if known is not None and known.uid != entry.uid:
            return
        before = self._departed.get(name)
        self._depart(name, Departure(entry.uid, entry.facts), entry.weight - len(entry.raw))
        self._left[name] = entry.version
        self._remember(name, entry.raw)
        self._file(name, None)
        if known is None and before is not None and before.uid == entry.uid and not before.seen:
            self._tell(Delta(entry, None))

    def confirm_absent(self, namespace: str, name: str, since: int | None = None, *, sought: str = "") -> None:
        """Note that a read at quorum found the name empty, unless the watch has told of a newer object.

        `since` is the `horizon` when the read was sent; None: as of now. `sought` is the UID of the object, or of the
        upper object of that which was looked for, "" for whatever stands there. What is remembered of the last object
        there stays remembered.
        """
        known = self._entries.get((namespace, name))
        if known is None or since is None or known.version <= since:
            self._empty((namespace, name), seen=False)
            if sought:
                self.note_gone(namespace, name, sought)

    def confirm_deleted(self, namespace: str, name: str, uid: str) -> None:
        """Note that a deletion of ours took away the object of that UID, whatever the watch has told of it since."""
        known = self._entries.get((namespace, name))
        if known is None or known.uid == uid:
            self._empty((namespace, name), seen=True)

    def horizon(self, namespace: str, name: str) -> int:
        """Return the newest resourceVersion known to a request about that name which is sent now.

        The answer to a write of ours may be ahead of the watch.
        """
        known = self._entries.get((namespace, name))
        return max(self.version, known.version if known else 0)

    def distrust(self) -> None:
        """Note that what is here may not be true any more; it stays readable until the next list."""
        self.synced = False

    def copy(self) -> "Cache":
        """Return a cache of its own with what is here now, and without listeners."""
        made = Cache(self._digest, self._index_of, remembers=self._remembers, selects=self.selects)
        made.synced, made.version = self.synced, self.version
        for name, entry in self._entries.items():
            made._file(name, entry)
        made._doubted, made._lost, made._back = self._doubted.copy(), self._lost.copy(), self._back.copy()
        made._departed, made._left, made._last = self._departed.copy(), self._left.copy(), self._last.copy()
        made._last_size, made._gone = self._last_size, self._gone.copy()
        return made

    def _empty(self, name: Name, *, seen: bool) -> None:
        """Take what is known of a name away; `seen` as in `Departure`."""
        known = self._entries.get(name)
        before = self._departed.get(name, Departure("", None, seen))
        size = known.weight - len(known.raw) if known else self._departed_sizes.get(name, 0)
        self._depart(name, Departure(known.uid, known.facts, seen) if known else before, size)
        self._file(name, None)

    def _digested(self, meta: Meta, raw: bytes) -> Entry:
        """Digest an object about which something may be decided next: it stays decoded."""
        kept = self._kept(raw)
        if kept.manifest is not None:
            _remembered(kept.raw, kept.manifest)
        return self._entry(meta, kept)

    def _kept(self, raw: bytes) -> Kept:
        """Digest an object; whatever a digest stumbles over is the object's fault, and costs that object alone."""
        try:
            return self._digest(raw)
        except Exception as error:
            raise Malformed(f"{type(error).__name__}: {error}") from error

    def _entry(self, meta: Meta, kept: Kept) -> Entry:
        weight = 0 if self.tally is None else _weight(kept)
        return Entry(intern(meta.namespace), meta.name, meta.uid, version_in(meta), kept.raw, kept.facts, weight)

    def _end(self, name: Name, uid: str) -> float:
        """Return the version at which the object of that UID left a name; 0: it did not, infinite: gone for good."""
        departure = self._departed.get(name)
        return self._left.get(name, inf) if departure is not None and departure.uid == uid else 0

    def _depart(self, name: Name, departure: Departure, size: int) -> None:
        """Remember that a name is empty for certain; beyond a bound, in number or in bytes, the oldest memories go."""
        self._doubted.discard(name)
        if departure.seen and departure.uid == self._lost.get(name):
            del self._lost[name]
        self._return(name)
        self._departed[name] = departure
        self._departed_size += size
        if size:
            self._departed_sizes[name] = size
        while len(self._departed) > _DEPARTED_KEPT or self._departed_size > _DEPARTED_BYTES:
            oldest = next(iter(self._departed))
            self._return(oldest)
            self._left.pop(oldest, None)

    def _return(self, name: Name) -> Departure | None:
        """Forget that a name is empty, and give what was known of it."""
        self._departed_size -= self._departed_sizes.pop(name, 0)
        return self._departed.pop(name, None)

    def _remember(self, name: Name, raw: bytes) -> None:
        """Keep an object's last state, and forget the oldest beyond the bound."""
        self._forget_last(name)
        self._last[name] = raw
        self._last_size += len(raw)
        while self._last and (len(self._last) > self._remembers or self._last_size > _LAST_BYTES):
            self._forget_last(next(iter(self._last)))

    def _forget_last(self, name: Name) -> None:
        self._last_size -= len(self._last.pop(name, b""))

    def _tell(self, delta: Delta) -> None:
        """Tell the listeners."""
        for listener in self._listeners:
            listener(delta)

    def _file(self, name: Name, entry: Entry | None) -> None:
        """Put an entry in a name's place, or take it away (None), with its indexes.

        The listeners are called unless nothing but the resourceVersion changed: decisions do not depend on that.
        """
        before = self._entries.pop(name, None)
        if self.tally is not None:
            self.tally.add(
                (entry is not None) - (before is not None),
                (entry.weight if entry else 0) - (before.weight if before else 0),
            )
        if before is not None:
            self._unindex(name, before)
        if entry is None:
            self._back.pop(name, None)
        if entry is not None:
            self._entries[name] = entry
            self._succeed(name, before, entry)
            for index, values_of in self._index_of.items():
                for value in values_of(entry):
                    self._indexes[index].setdefault(value, {})[name] = entry
        if not _is_alike(before, entry):
            self._tell(Delta(before, entry))

    def _succeed(self, name: Name, before: Entry | None, entry: Entry) -> None:
        """Forget what was known of the empty name; that the object before this one is gone stays known."""
        departure = self._return(name)
        last = before.uid if before is not None else departure.uid if departure is not None else ""
        if before is None or before.uid != entry.uid:
            self._lost.pop(name, None)
            self._gone.pop(name, None)
            if last not in ("", entry.uid):
                self.note_gone(*name, last)
        self._doubted.discard(name)
        self._left.pop(name, None)
        self._forget_last(name)

    def _unindex(self, name: Name, entry: Entry) -> None:
        """Take an entry out of the indexes."""
        for index, values_of in self._index_of.items():
            for value in values_of(entry):
                filed = self._indexes[index].get(value, {})
                filed.pop(name, None)
                if not filed:
                    self._indexes[index].pop(value, None)


def _is_alike(before: Entry | None, after: Entry | None) -> bool:
    """Report whether two entries of one name (None: none) differ in nothing but the resourceVersion."""
    if before is None or after is None:
        return before is after
    if before.uid != after.uid or before.facts != after.facts:
        return False
    renumbered = after.raw.replace(_version_text(after), _version_text(before), 1)
    return before.raw == renumbered


def _version_text(entry: Entry) -> bytes:
    """Return how an entry's resourceVersion is written in its bytes."""
    return b'"resourceVersion":"%d"' % entry.version


def meta_of(raw: bytes) -> Meta:
    """Decode what an object is filed by; raises Malformed."""
    try:
        return _ENVELOPES.decode(raw).metadata
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(str(error)) from None


def version_in(meta: Meta) -> int:
    """Return an object's resourceVersion as a number; raises Malformed."""
    try:
        return int(meta.resourceVersion)
    except ValueError:
        raise Malformed(f"resourceVersion {meta.resourceVersion!r} is no number") from None


def _weight(kept: Kept) -> int:
    """Return about how many bytes an object takes here."""
    try:
        facts = len(msgspec.json.encode(kept.facts))
    except (TypeError, ValueError, msgspec.MsgspecError):
        facts = len(kept.raw)
    return len(kept.raw) + _SPREAD * facts + _OVERHEAD
