"""What an apiserver answers -> our errors, listings and watch events, by one table.

Kubernetes tells what happened by status, reason and causes; its sentences are for people and change between releases,
so no decision reads them. Objects are never decoded here, only cut out of what surrounds them.

Only a v1 Status is told in its own words. What answers may be no apiserver, since a kubeconfig names any address that
this program reaches and its author may not: of another answer people see its status, its type and its length.

Holds each object that a cluster tells of against what it was asked for, before anything is made of it.

An object that is none, or that was not asked for, is left out and counted; the others of its list count all the same.
To refuse the list instead would let one object, or one mistake of ours in reading it, stop a whole cluster until that
is found. And to leave one out decides nothing that cannot be undone: that an object is merely missing from a list is
never taken for its end.

Objects that nest deeper than can be decoded, cut down to what anybody looks at.

An apiserver bounds how deep a pod is, and not the book-keeping (managedFields) that whoever may write an object may
write with it: it takes ten thousand objects within each other. Decoders here end at a tenth of that, encoders before,
with an error that would keep the whole list from being read. What lies deeper than any field of an object is taken
out; nothing of that is ever asked for.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import msgspec
import orjson

from tensile.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Denied,
    Expired,
    Malformed,
    NotFound,
    Throttled,
    Unauthorized,
    Unreachable,
)
from tensile.kube.cluster import Selection, WatchEvent
from tensile.kube.limits import GROUPS, LONGEST_WAIT, OBJECT, TOKEN, Account, TooLarge, mebibytes
from tensile.kube.store import Meta
from tensile.objects import Kind, Ref
from tensile.text import clean

NOTHING = Selection(fields="metadata.name=-")
"""Selects nothing, as no object has such a name: the answer tells the collection's version alone."""
_BY_NAME = "metadata.name="
_FIELDS_SHOWN = 100


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
            raise Malformed(f"{seen.metadata.namespace}/{seen.metadata.name[:_FIELDS_SHOWN]}: {objection}")
        return seen.metadata

    def _objection(self, seen: _Seen | _Chosen) -> str:
        """Return why an object was not asked for, "" where it was."""
        meta = seen.metadata
        if seen.kind not in ("", self._kind.name):
            return f"a {seen.kind[:_FIELDS_SHOWN]} instead of a {self._kind.name}"
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


DEEPEST = 64
"""Objects and lists within each other that are left: no field lies half as deep."""
_ENCODED = 200
"""Objects within each other that can be encoded again, as part of something else."""
_MOST_TOKENS = 1_000_000
"""Strings, objects and lists: the two largest objects of which the smallest page consists have fewer."""
_NESTING = b'":{'
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""Strings, of which the last may have no end, so that none is looked at twice; and what begins and ends a value."""
_EMPTY = {b"{": b"{}", b"[": b"[]"}


def shallow(raw: bytes) -> bytes:
    """Return an object as it came if it can be decoded and encoded again, else what `cut` leaves of it.

    One that cannot be cut stays as it came: whoever decodes it will say that it is malformed.

    As an apiserver writes JSON, what nests deep enough for that has as many objects that are values. To count objects
    alone takes a third of the time, and few objects have so many.
    """
    if raw.count(b"{") < _ENCODED or raw.count(_NESTING) < _ENCODED:
        return raw
    try:
        orjson.dumps(orjson.loads(raw))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        with suppress(RecursionError):
            return cut(raw)
    return raw


def cut(text: bytes) -> bytes:
    """Return JSON with nothing in the objects and lists that lie deeper than `DEEPEST`; what is no JSON stays none.

    Raises RecursionError for a text that would take the event loop's time for more than half a second.
    """
    if text.count(b'"') // 2 + text.count(b"{") + text.count(b"[") > _MOST_TOKENS:
        raise RecursionError(f"more than {_MOST_TOKENS:,} parts, and nested without end")
    return b"".join(_left(text))


def _left(text: bytes) -> Iterator[bytes]:
    """Yield what is left, piece by piece."""
    depth = done = 0
    for token in _TOKENS.finditer(text):
        sign = text[token.start()]
        if sign in b"{[":
            depth += 1
            if depth == DEEPEST + 1:
                yield text[done : token.start()]
                done = token.start()
        elif sign in b"}]":
            if depth == DEEPEST + 1:
                yield _EMPTY[text[done : done + 1]]
                done = token.end()
            depth -= 1
    yield text[done:]


_LONGEST_WORDS = 1_024
_REASON = re.compile(r"[A-Za-z0-9.-]{0,128}").fullmatch
_MEDIA = re.compile(r"(application|audio|font|image|message|model|multipart|text|video)/[a-z0-9.+-]{1,40}(?![^;\s])")
_PATIENCE = 1.0
_DIGITS = 9
_SHOWN = 100
_MOST_PARTS = 1_000
_RELEASE = re.compile(r"v[0-9]+\.[0-9]+[0-9A-Za-z.+~-]{0,100}").fullmatch
_GROUP_VERSION = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}/[a-z][a-z0-9-]{0,62}").fullmatch


class _Cause(msgspec.Struct, frozen=True):
    """One reason in a Status: `reason` machine-readable, `field` the path it is about."""

    reason: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True):
    """What a Status says beyond its reason."""

    causes: list[_Cause] | None = None
    retryAfterSeconds: int = 0  # noqa: N815 - the API's spelling


class _Status(msgspec.Struct, frozen=True):
    """The API's answer to what it did not do."""

    kind: str = ""
    apiVersion: str = ""  # noqa: N815 - the API's spelling
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


class _ListMeta(msgspec.Struct, frozen=True, rename={"more": "continue"}):
    """Where a page stands: its resourceVersion, and the token for the next page, "" after the last."""

    resourceVersion: Annotated[str, msgspec.Meta(max_length=20)] = ""  # noqa: N815 - the API's spelling
    more: Annotated[str, msgspec.Meta(max_length=TOKEN)] = ""


class _Page(msgspec.Struct, frozen=True):
    """One page of a LIST."""

    metadata: _ListMeta
    kind: str = ""
    items: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class _Identified(msgspec.Struct, frozen=True):
    """The part of an object that tells it from its successors; a Status has nothing of it."""

    kind: str = ""
    metadata: "_Identity | None" = None


class _Identity(msgspec.Struct, frozen=True):
    """UID and resourceVersion of an object, and by what a deletion that goes on is told from one that is done."""

    name: str = ""
    namespace: str = ""
    uid: Annotated[str, msgspec.Meta(max_length=128)] = ""
    resourceVersion: Annotated[str, msgspec.Meta(max_length=20)] = ""  # noqa: N815 - the API's spelling
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815
    deletionGracePeriodSeconds: int | None = None  # noqa: N815


class _Version(msgspec.Struct, frozen=True):
    """The answer of /version."""

    gitVersion: str = ""  # noqa: N815 - the API's spelling


class _GroupVersion(msgspec.Struct, frozen=True):
    """One version of an API group, as "GROUP/VERSION"."""

    groupVersion: str = ""  # noqa: N815 - the API's spelling


class _Group(msgspec.Struct, frozen=True):
    """One API group; the version that the server prefers is among its versions."""

    versions: list[_GroupVersion] = []
    preferredVersion: _GroupVersion = _GroupVersion()  # noqa: N815


class _Groups(msgspec.Struct, frozen=True):
    """The answer of /apis."""

    groups: list[_Group]


class _Resource(msgspec.Struct, frozen=True):
    """One resource of an API group, or, with a slash in its name, a subresource."""

    name: str
    kind: str
    namespaced: bool = False
    verbs: list[str] = []


class _Resources(msgspec.Struct, frozen=True):
    """The answer of /api/v1 and the like."""

    resources: list[_Resource]


class Page(NamedTuple):
    """One page of a listing; `more` is the token for the next, "" after the last."""

    items: list[bytes]
    version: str
    more: str


class Doing(NamedTuple):
    """Which cluster is asked for what; for errors."""

    cluster: str
    verb: str
    what: str

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


_STRANGE = (msgspec.MsgspecError, RecursionError)
"""What decoders raise for what no apiserver answers."""
_STATUSES = msgspec.json.Decoder(_Status)
_PAGES = msgspec.json.Decoder(_Page)
_LINES = msgspec.json.Decoder(_Line)
_IDENTIFIED = msgspec.json.Decoder(_Identified)
_VERSIONS = msgspec.json.Decoder(_Version)
_GROUPS = msgspec.json.Decoder(_Groups)
_RESOURCES = msgspec.json.Decoder(_Resources)

_BY_STATUS: dict[int, type[ClusterError]] = {
    401: Unauthorized,
    404: NotFound,
    408: Unreachable,
    409: Conflict,
    410: Expired,
    429: Throttled,
}


def error_of(doing: Doing, code: int, body: bytes, retry_after: str = "", media: str = "") -> ClusterError:
    """Return the error that an answer with HTTP status `code` means.

    `retry_after` and `media` are the values of its headers Retry-After and Content-Type.
    """
    status = _status(body)
    details = status.details or _Details()
    causes = details.causes or []
    asked = _seconds(retry_after) or min(float(details.retryAfterSeconds), LONGEST_WAIT)
    sort = _sort(code, status.reason, causes, asked)
    return sort(
        _words(code, status, body, media),
        cluster=doing.cluster,
        doing=str(doing),
        status=code,
        reason=status.reason,
        causes=tuple(cause.reason for cause in causes),
        retry_after=(asked or _PATIENCE) if sort is Throttled else 0.0,
    )


def _sort(code: int, reason: str, causes: list[_Cause], asked: float) -> type[ClusterError]:
    """Return the sort of error: the table itself."""
    if reason == "AlreadyExists":
        return AlreadyExists
    if any(cause.field == "metadata.uid" for cause in causes) and code in (409, 422):
        return Conflict
    if any(cause.reason == "ResourceVersionTooLarge" for cause in causes):
        return Expired
    if code in (500, 503) and asked:
        return Throttled
    if code in _BY_STATUS:
        return _BY_STATUS[code]
    return Denied if 400 <= code < 500 else Unreachable  # noqa: PLR2004 - HTTP's classes


def _status(body: bytes) -> _Status:
    """Decode a v1 Status; an empty one for what is none."""
    try:
        found = _STATUSES.decode(body)
    except _STRANGE:
        return _Status()
    is_one = (found.kind, found.apiVersion) == ("Status", "v1") and _REASON(found.reason)
    return found if is_one else _Status()


def _words(code: int, status: _Status, body: bytes, media: str) -> str:
    """Return what is told to people, in one line of bounded length."""
    if status.kind or not body:
        words = clean(" ".join(status.message[: 2 * _LONGEST_WORDS].split()))
        cut = words if len(words) <= _LONGEST_WORDS else words[: _LONGEST_WORDS - 3] + "..."
        return cut or status.reason or f"HTTP status {code}"
    return (
        f"HTTP status {code} with {len(body)} bytes of {media_shown(media)}, which are no Status of Kubernetes: check "
        "that the server address is that of an apiserver"
    )


def media_shown(header: str) -> str:
    """Return the media type that a Content-Type names, as far as it is one: it may say anything."""
    found = _MEDIA.match(header.lower())
    return found[0] if found else "an unknown type"


def _seconds(header: str) -> float:
    """Return the seconds of a Retry-After, as far as they are believed; 0 when it is in another form."""
    return min(float(header[:_DIGITS]), LONGEST_WAIT) if header.isdecimal() else 0.0


def page_of(doing: Doing, body: bytes, kind: str = "") -> Page:
    """Cut a page of a LIST into objects. Raises Unreachable when it is none, or one of another kind than `kind`.

    Raises TooLarge when it nests without end, and is too long for what does to be taken out.
    """
    try:
        page = _page(body)
    except RecursionError as error:
        raise TooLarge(f"a page that nests without end ({error})", cluster=doing.cluster, doing=str(doing)) from None
    except _STRANGE as error:
        raise strange(doing, error) from None
    if kind and page.kind not in ("", f"{kind}List"):
        raise strange(doing, f"a {page.kind[:_SHOWN]} instead of a {kind}List")
    items = [shallow(bytes(item)) for item in page.items or ()]
    return Page(items, page.metadata.resourceVersion, page.metadata.more)


def _page(body: bytes) -> _Page:
    """Decode a page, however deep what is on it nests."""
    try:
        return _PAGES.decode(body)
    except RecursionError:
        return _PAGES.decode(cut(body))


def identity_of(doing: Doing, body: bytes) -> str:
    """Return an object's UID. Raises Unreachable when it has none."""
    uid = _identity(doing, body).uid
    if not uid:
        raise strange(doing, "an object without a UID")
    return uid


def version_of(doing: Doing, body: bytes) -> int:
    """Return an object's resourceVersion as a number, 0 where it has none. Raises Unreachable for no object."""
    version = _identity(doing, body).resourceVersion
    return int(version) if version.isdecimal() else 0


def of_another(ref: Ref, body: bytes) -> str:
    """Return why a body is not that of the object that was asked for, "" where it is, or is a Status.

    What has no name, as an answer to a review, is not compared.
    """
    if not ref.name:
        return ""
    try:
        found = _IDENTIFIED.decode(body)
    except _STRANGE as error:
        return str(error)
    if found.kind == "Status":
        return ""
    if found.kind not in ("", ref.kind.name) or found.metadata is None:
        return f"a {found.kind[:_SHOWN] or 'thing without metadata'} instead of a {ref.kind.name}"
    place = found.metadata.namespace, found.metadata.name
    if found.metadata.name and place != (ref.namespace, ref.name):
        return f"{ref.kind.name} {'/'.join(place)[:_SHOWN]} instead of {ref.namespace}/{ref.name}"
    return ""


def _identity(doing: Doing, body: bytes) -> _Identity:
    """Decode the part of an object that tells it from others."""
    try:
        found = _IDENTIFIED.decode(body).metadata
    except _STRANGE as error:
        raise strange(doing, error) from None
    if found is None:
        raise strange(doing, "an object without metadata")
    return found


def release_of(doing: Doing, body: bytes) -> str:
    """Return the release that /version names, such as "v1.36.3". Raises Unreachable for what is no release."""
    try:
        release = _VERSIONS.decode(body).gitVersion
    except _STRANGE as error:
        raise strange(doing, error) from None
    if not _RELEASE(release):
        raise strange(doing, f"a version like {release[:_SHOWN]!r}")
    return release


def apis_of(doing: Doing, body: bytes) -> list[str]:
    """Return the API groups' versions that /apis names, as "GROUP/VERSION", the preferred one of each group first.

    Raises TooLarge for more than any cluster has, and Unreachable for one that cannot be part of a path.
    """
    try:
        groups = _GROUPS.decode(body).groups
    except _STRANGE as error:
        raise strange(doing, error) from None
    found = [one.groupVersion for group in groups for one in (group.preferredVersion, *group.versions)]
    versions = list(dict.fromkeys(filter(None, found)))
    if not all(map(_GROUP_VERSION, versions)):
        raise strange(doing, "a version of an API group that is none")
    if len(versions) > GROUPS:
        raise TooLarge(f"more than {GROUPS:,} versions of API groups", cluster=doing.cluster, doing=str(doing))
    return versions


def kinds_of(doing: Doing, api: str, body: bytes) -> list[Kind]:
    """Return the namespaced kinds of one API version whose objects can be listed."""
    try:
        found = _RESOURCES.decode(body).resources
    except _STRANGE as error:
        raise strange(doing, error) from None
    return [Kind(api, one.kind, one.name, namespaced=True) for one in found if one.namespaced and "list" in one.verbs]


class Lines:
    """Watch events out of chunks of bytes that end anywhere.

    A chunk may hold hundreds of lines, and a line of megabytes may come in hundreds of chunks: whole lines are decoded
    at one go, and an unfinished one is only joined when its end is there. One of more than `longest` bytes is refused.
    """

    def __init__(self, doing: Doing, longest: int = OBJECT, account: Account | None = None) -> None:
        self._doing = doing
        self._longest = longest
        self._account = account or Account()
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[WatchEvent]:
        """Return the events that end in this chunk.

        Raises the error that an ERROR line stands for, after which the watch is over, and Unreachable for what is no
        watch event.
        """
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            self._hold(chunk)
            return []
        whole = b"".join((*self._held, chunk[:cut]))
        self.forget()
        if cut < len(chunk):
            self._hold(chunk[cut:])
        return self._events(whole)

    def forget(self) -> None:
        """Keep nothing of a line that has not ended."""
        self._account.give_back(self._size)
        self._held, self._size = [], 0

    def _hold(self, part: bytes) -> None:
        """Keep the beginning of a line for later; many small parts are joined now and then, as each has a cost."""
        self._held.append(part)
        self._size += len(part)
        self._account.take(len(part))
        if self._size > self._longest:
            raise TooLarge(f"a line of more than {mebibytes(self._longest)}")
        if len(self._held) > _MOST_PARTS:
            self._held = [b"".join(self._held)]

    def _events(self, whole: bytes) -> list[WatchEvent]:
        """Decode whole lines."""
        try:
            lines = _lines(whole)
        except _STRANGE as error:
            raise strange(self._doing, error) from None
        return [self._event(line) for line in lines]

    def _event(self, line: _Line) -> WatchEvent:
        """Return a line's event; raise what an ERROR stands for."""
        raw = shallow(bytes(line.object))
        if line.type == "ERROR":
            raise error_of(self._doing, _status(raw).code or 500, raw)
        return WatchEvent(line.type, raw)


def _lines(whole: bytes) -> list[_Line]:
    """Decode whole lines, however deep what they tell of nests."""
    try:
        return _LINES.decode_lines(whole)
    except RecursionError:
        return _LINES.decode_lines(cut(whole))


def strange(doing: Doing, what: Any) -> Unreachable:
    """Return the error for an answer that no apiserver gives."""
    return Unreachable(
        f"the answer is not Kubernetes' ({what}): check that the server address is that of an apiserver",
        cluster=doing.cluster,
        doing=str(doing),
    )
