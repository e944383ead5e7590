"""Responses of an apiserver: errors, lists and watch events, checks of each object, limits of nesting.

Kubernetes describes a failure by status, reason and causes. Its messages are for people and change between releases, so
no decision reads them. Only the message of a v1 Status is shown: a kubeconfig may name any address that this program
can reach and its author cannot. Of other responses users see the status, the media type and the length.

An object that is invalid or was not requested is left out and counted, and the rest of its list counts. If the list
were refused, one object or one decoding bug would stop a whole cluster. Leaving it out has no irreversible effect: an
object that is merely missing from a list never counts as deleted.

An apiserver limits the nesting of a pod's fields, but not of managedFields, which may nest 10,000 levels deep. The
decoders here fail at a tenth of that, encoders earlier, and the whole list would be lost. So what is nested deeper than
any field of an object is removed. No code reads it.
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
from tensile.kube.limits import GROUPS, LONGEST_WAIT, OBJECT, TOKEN, ResponseBudget, TooLarge, mebibytes
from tensile.kube.store import Meta
from tensile.objects import Kind, Ref
from tensile.text import clean

NOTHING = Selection("default", fields="metadata.name=-")
"""Selects nothing, as no object has that name: the response only contains the collection's version.

The apiserver looks up a name in one namespace, where it would read a whole collection in all of them.
"""
_BY_NAME = "metadata.name="
_FIELDS_SHOWN = 100

DEEPEST = 64
"""The most levels of objects and lists that are kept. No field is nested half as deep."""
_ENCODED = 200
"""The nesting up to which an object can be encoded again inside another."""
_MOST_TOKENS = 1_000_000
"""The most strings, objects and lists: the two largest objects, which fill the smallest page, have fewer."""
_NESTING = b'":{'
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""Strings and brackets. The last string may be unterminated, so that nothing is scanned twice."""
_EMPTY = {b"{": b"{}", b"[": b"[]"}

_LONGEST_MESSAGE = 1_024
_REASON = re.compile(r"[A-Za-z0-9.-]{0,128}").fullmatch
_MEDIA = re.compile(r"(application|audio|font|image|message|model|multipart|text|video)/[a-z0-9.+-]{1,40}(?![^;\s])")
_DEFAULT_RETRY_SECONDS = 1.0
_DIGITS = 9
_SHOWN = 100
_MOST_PARTS = 1_000
_RELEASE = re.compile(r"v[0-9]+\.[0-9]+[0-9A-Za-z.+~-]{0,100}").fullmatch
_GROUP_VERSION = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}/[a-z][a-z0-9-]{0,62}").fullmatch

_DECODE_ERRORS = (msgspec.MsgspecError, RecursionError)
"""What decoders raise for data that no apiserver sends."""

_BY_STATUS: dict[int, type[ClusterError]] = {
    401: Unauthorized,
    404: NotFound,
    408: Unreachable,
    409: Conflict,
    410: Expired,
    429: Throttled,
}


class Page(NamedTuple):
    """One page of a list. `more` is the continue token, "" on the last page."""

    items: list[bytes]
    version: str
    more: str


class RequestInfo(NamedTuple):
    """The cluster and the request, for errors."""

    cluster: str
    verb: str
    what: str

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


class _Labelled(Meta, frozen=True, gc=False):
    """Metadata with labels, for label selectors."""

    labels: dict[str, str] | None = None


class _Seen(msgspec.Struct, frozen=True, gc=False):
    """The part of an object that identifies it."""

    metadata: Meta
    kind: str = ""


class _SeenWithLabels(msgspec.Struct, frozen=True, gc=False):
    """The same with labels, which cost more to decode."""

    metadata: _Labelled
    kind: str = ""


_SEEN = msgspec.json.Decoder(_Seen)
_SEEN_WITH_LABELS = msgspec.json.Decoder(_SeenWithLabels)


class ObjectFilter:
    """Checks that objects match a request: a kind and a selection.

    Compared are the kind, the namespace, a requested name, and labels that are selected by equality.
    """

    def __init__(self, kind: Kind, selection: Selection) -> None:
        self._kind = kind
        self._namespace = selection.namespace
        self._name = selection.fields.removeprefix(_BY_NAME) if _is_name(selection.fields) else ""
        self._labels = _equalities(selection.labels)

    def meta(self, raw: bytes, *, is_leaving: bool = False) -> Meta:
        """Return an object's metadata. Raises Malformed if it is invalid or was not requested.

        `is_leaving`: it is deleted or no longer selected, so that its labels may have changed.
        """
        decoder = _SEEN_WITH_LABELS if self._labels and not is_leaving else _SEEN
        try:
            seen = decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Malformed(str(error)) from None
        objection = self._objection(seen)
        if objection:
            raise Malformed(f"{seen.metadata.namespace}/{seen.metadata.name[:_FIELDS_SHOWN]}: {objection}")
        return seen.metadata

    def _objection(self, seen: _Seen | _SeenWithLabels) -> str:
        """Return why an object does not match the request, "" if it does."""
        meta = seen.metadata
        if seen.kind not in ("", self._kind.name):
            return f"a {seen.kind[:_FIELDS_SHOWN]} instead of a {self._kind.name}"
        if self._namespace not in ("", meta.namespace) or bool(meta.namespace) is not self._kind.namespaced:
            return "its namespace was not requested"
        if self._name not in ("", meta.name):
            return "its name was not requested"
        if isinstance(meta, _Labelled) and not self._labels <= (meta.labels or {}).items():
            return "it lacks the requested labels"
        return ""


def refuse_object(raw: bytes) -> None:
    """Raise Malformed for any object of a list that must be empty."""
    raise Malformed(f"an object of {len(raw)} bytes in a list that must be empty")


def _is_name(fields: str) -> bool:
    return fields.startswith(_BY_NAME) and "," not in fields


def _equalities(labels: str) -> frozenset[tuple[str, str]]:
    """Return the labels that a selector requires by equality. Other terms are left to the cluster."""
    terms = [] if "(" in labels else labels.split(",")
    pairs = (term.split("=", 1) for term in terms if "=" in term and "!" not in term and "==" not in term)
    return frozenset((key, value) for key, value in pairs)


def shallow(raw: bytes) -> bytes:
    """Return an object unchanged if it can be decoded and encoded again, else what `cut` leaves of it.

    An object that cannot be cut is returned unchanged: decoding it will raise Malformed.

    An apiserver's JSON that is nested too deep has at least as many objects that are values. Counting braces first
    takes a third of the time, and few objects have that many.
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
    """Return JSON with everything deeper than `DEEPEST` levels removed. Invalid JSON stays invalid.

    Raises RecursionError for a text that would occupy the event loop for more than half a second.
    """
    if text.count(b'"') // 2 + text.count(b"{") + text.count(b"[") > _MOST_TOKENS:
        raise RecursionError(f"more than {_MOST_TOKENS:,} tokens, nested too deep")
    return b"".join(_shallow_parts(text))


def _shallow_parts(text: bytes) -> Iterator[bytes]:
    """Yield the remaining text, piece by piece."""
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


class _Cause(msgspec.Struct, frozen=True):
    """One cause in a Status: `reason` is machine-readable, `field` is the path that it is about."""

    reason: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True):
    """The details of a Status."""

    causes: list[_Cause] | None = None
    retryAfterSeconds: int = 0  # noqa: N815 - the API's spelling


class _Status(msgspec.Struct, frozen=True):
    """The API's response to a request that failed."""

    kind: str = ""
    apiVersion: str = ""  # noqa: N815 - the API's spelling
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


class _ListMeta(msgspec.Struct, frozen=True, rename={"more": "continue"}):
    """The metadata of a page: its resourceVersion, and the continue token, "" on the last page."""

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
    """The part of an object that identifies it. A Status has no such metadata."""

    kind: str = ""
    metadata: "_Identity | None" = None


class _Identity(msgspec.Struct, frozen=True):
    """UID and resourceVersion of an object, and fields that distinguish a pending deletion from a completed one."""

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
    """The response of /version."""

    gitVersion: str = ""  # noqa: N815 - the API's spelling


class _GroupVersion(msgspec.Struct, frozen=True):
    """One version of an API group, as "GROUP/VERSION"."""

    groupVersion: str = ""  # noqa: N815 - the API's spelling


class _Group(msgspec.Struct, frozen=True):
    """One API group. The version that the server prefers is among its versions."""

    versions: list[_GroupVersion] = []
    preferredVersion: _GroupVersion = _GroupVersion()  # noqa: N815


class _Groups(msgspec.Struct, frozen=True):
    """The response of /apis."""

    groups: list[_Group]


class _Resource(msgspec.Struct, frozen=True):
    """One resource of an API group or, with a slash in its name, a subresource."""

    name: str
    kind: str
    namespaced: bool = False
    verbs: list[str] = []


class _Resources(msgspec.Struct, frozen=True):
    """The response of /api/v1 and the like."""

    resources: list[_Resource]


_STATUSES = msgspec.json.Decoder(_Status)
_PAGES = msgspec.json.Decoder(_Page)
_LINES = msgspec.json.Decoder(_Line)
_IDENTIFIED = msgspec.json.Decoder(_Identified)
_VERSIONS = msgspec.json.Decoder(_Version)
_GROUPS = msgspec.json.Decoder(_Groups)
_RESOURCES = msgspec.json.Decoder(_Resources)


_BUSY = b"Too many requests, please try again later."


def error_of(doing: RequestInfo, code: int, body: bytes, retry_after: str = "", media: str = "") -> ClusterError:
    """Return the error for a response with HTTP status `code`.

    `retry_after` and `media` are the values of its headers Retry-After and Content-Type.
    """
    status = _status(body)
    details = status.details or _Details()
    causes = details.causes or []
    delay = _seconds(retry_after) or min(float(details.retryAfterSeconds), LONGEST_WAIT)
    error_type = _error_type(code, status.reason, causes, delay)
    return error_type(
        _message(code, status, body, media),
        cluster=doing.cluster,
        doing=str(doing),
        status=code,
        reason=status.reason,
        causes=tuple(cause.reason for cause in causes),
        retry_after=(delay or _DEFAULT_RETRY_SECONDS) if error_type is Throttled else 0.0,
    )


def _error_type(code: int, reason: str, causes: list[_Cause], delay: float) -> type[ClusterError]:
    """Return the type of the error, by reason, causes and status."""
    if reason == "AlreadyExists":
        return AlreadyExists
    if any(cause.field == "metadata.uid" for cause in causes) and code in (409, 422):
        return Conflict
    if any(cause.reason == "ResourceVersionTooLarge" for cause in causes):
        return Expired
    if code in (500, 503) and delay:
        return Throttled
    if code in _BY_STATUS:
        return _BY_STATUS[code]
    return Denied if 400 <= code < 500 else Unreachable  # noqa: PLR2004 - HTTP's classes


def _status(body: bytes) -> _Status:
    """Decode a v1 Status. Return an empty one for any other body but that of a busy apiserver, which is plain text."""
    if body[: len(_BUSY) + 1].rstrip() == _BUSY:
        return _Status(kind="Status", apiVersion="v1", reason="TooManyRequests", message=_BUSY.decode())
    try:
        found = _STATUSES.decode(body)
    except _DECODE_ERRORS:
        return _Status()
    is_one = (found.kind, found.apiVersion) == ("Status", "v1") and _REASON(found.reason)
    return found if is_one else _Status()


def _message(code: int, status: _Status, body: bytes, media: str) -> str:
    """Return the message for users, on one line of bounded length."""
    if status.kind or not body:
        message = clean(" ".join(status.message[: 2 * _LONGEST_MESSAGE].split()))
        shortened = message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 3] + "..."
        return shortened or status.reason or f"HTTP status {code}"
    return (
        f"HTTP status {code} with {len(body)} bytes of {media_shown(media)} instead of a Kubernetes Status: check "
        "that the server address is that of an apiserver"
    )


def media_shown(header: str) -> str:
    """Return the media type in a Content-Type header if it has a valid form: it may contain anything."""
    found = _MEDIA.match(header.lower())
    return found[0] if found else "an unknown type"


def _seconds(header: str) -> float:
    """Return the seconds of a Retry-After, up to `LONGEST_WAIT`. 0 if it has another form."""
    return min(float(header[:_DIGITS]), LONGEST_WAIT) if header.isdecimal() else 0.0


def page_of(doing: RequestInfo, body: bytes, kind: str = "") -> Page:
    """Split a page of a LIST into objects. Raises Unreachable if it is no page, or one of another kind than `kind`.

    Raises TooLarge if it is nested too deep and is too long for `cut`.
    """
    try:
        page = _page(body)
    except RecursionError as error:
        raise TooLarge(f"a page that is nested too deep ({error})", cluster=doing.cluster, doing=str(doing)) from None
    except _DECODE_ERRORS as error:
        raise unexpected_response(doing, error) from None
    if kind and page.kind not in ("", f"{kind}List"):
        raise unexpected_response(doing, f"a {page.kind[:_SHOWN]} instead of a {kind}List")
    items = [shallow(bytes(item)) for item in page.items or ()]
    return Page(items, page.metadata.resourceVersion, page.metadata.more)


def _page(body: bytes) -> _Page:
    """Decode a page, whatever its nesting."""
    try:
        return _PAGES.decode(body)
    except RecursionError:
        return _PAGES.decode(cut(body))


def identity_of(doing: RequestInfo, body: bytes) -> str:
    """Return an object's UID. Raises Unreachable when it has none."""
    uid = _identity(doing, body).uid
    if not uid:
        raise unexpected_response(doing, "an object without a UID")
    return uid


def version_of(doing: RequestInfo, body: bytes) -> int:
    """Return an object's resourceVersion as a number, 0 if it has none. Raises Unreachable if it is no object."""
    version = _identity(doing, body).resourceVersion
    return int(version) if version.isdecimal() else 0


def mismatch(ref: Ref, body: bytes) -> str:
    """Return why a body is not the requested object, "" if it is, or if it is a Status.

    A reference without a name, as for a review, is not compared.
    """
    if not ref.name:
        return ""
    try:
        found = _IDENTIFIED.decode(body)
    except _DECODE_ERRORS as error:
        return str(error)
    if found.kind == "Status":
        return ""
    if found.kind not in ("", ref.kind.name) or found.metadata is None:
        return f"a {found.kind[:_SHOWN] or 'body without metadata'} instead of a {ref.kind.name}"
    name = found.metadata.namespace, found.metadata.name
    if found.metadata.name and name != (ref.namespace, ref.name):
        return f"{ref.kind.name} {'/'.join(name)[:_SHOWN]} instead of {ref.namespace}/{ref.name}"
    return ""


def _identity(doing: RequestInfo, body: bytes) -> _Identity:
    """Decode the identity of an object."""
    try:
        found = _IDENTIFIED.decode(body).metadata
    except _DECODE_ERRORS as error:
        raise unexpected_response(doing, error) from None
    if found is None:
        raise unexpected_response(doing, "an object without metadata")
    return found


def release_of(doing: RequestInfo, body: bytes) -> str:
    """Return the release in /version, such as "v1.36.3". Raises Unreachable if it is no release."""
    try:
        release = _VERSIONS.decode(body).gitVersion
    except _DECODE_ERRORS as error:
        raise unexpected_response(doing, error) from None
    if not _RELEASE(release):
        raise unexpected_response(doing, f"the version {release[:_SHOWN]!r}")
    return release


def apis_of(doing: RequestInfo, body: bytes) -> list[str]:
    """Return the versions of API groups in /apis, as "GROUP/VERSION", the preferred one of each group first.

    Raises TooLarge for more than any cluster has, and Unreachable for one that is not valid in a path.
    """
    try:
        groups = _GROUPS.decode(body).groups
    except _DECODE_ERRORS as error:
        raise unexpected_response(doing, error) from None
    found = [one.groupVersion for group in groups for one in (group.preferredVersion, *group.versions)]
    versions = list(dict.fromkeys(filter(None, found)))
    if not all(map(_GROUP_VERSION, versions)):
        raise unexpected_response(doing, "an invalid version of an API group")
    if len(versions) > GROUPS:
        raise TooLarge(f"more than {GROUPS:,} versions of API groups", cluster=doing.cluster, doing=str(doing))
    return versions


def kinds_of(doing: RequestInfo, api: str, body: bytes) -> list[Kind]:
    """Return the namespaced kinds of one API version whose objects can be listed."""
    try:
        found = _RESOURCES.decode(body).resources
    except _DECODE_ERRORS as error:
        raise unexpected_response(doing, error) from None
    return [Kind(api, one.kind, one.name, namespaced=True) for one in found if one.namespaced and "list" in one.verbs]


class WatchDecoder:
    """Splits a stream of bytes into watch events. Chunks may end anywhere.

    A chunk may contain hundreds of lines, and a long line may span hundreds of chunks. Complete lines are decoded
    together, and an incomplete one is only joined once its end has arrived. A line of more than `longest` bytes is
    refused.
    """

    def __init__(self, doing: RequestInfo, longest: int = OBJECT, account: ResponseBudget | None = None) -> None:
        self._doing = doing
        self._longest = longest
        self._budget = account or ResponseBudget()
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[WatchEvent]:
        """Return the events that end in this chunk.

        Raises the error of an ERROR event, after which the watch is over, and Unreachable for an invalid event.
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
        """Drop the incomplete line."""
        self._budget.give_back(self._size)
        self._held, self._size = [], 0

    def _hold(self, part: bytes) -> None:
        """Store the beginning of a line. Many small parts are joined now and then, as each part has a cost."""
        self._held.append(part)
        self._size += len(part)
        self._budget.take(len(part))
        if self._size > self._longest:
            raise TooLarge(f"a watch event of more than {mebibytes(self._longest)}")
        if len(self._held) > _MOST_PARTS:
            self._held = [b"".join(self._held)]

    def _events(self, whole: bytes) -> list[WatchEvent]:
        """Decode complete lines."""
        try:
            lines = _lines(whole)
        except _DECODE_ERRORS as error:
            raise unexpected_response(self._doing, error) from None
        return [self._event(line) for line in lines]

    def _event(self, line: _Line) -> WatchEvent:
        """Return the event of a line. Raise the error of an ERROR event."""
        raw = shallow(bytes(line.object))
        if line.type == "ERROR":
            raise error_of(self._doing, _status(raw).code or 500, raw)
        return WatchEvent(line.type, raw)


def _lines(whole: bytes) -> list[_Line]:
    """Decode complete lines, whatever the nesting of their objects."""
    try:
        return _LINES.decode_lines(whole)
    except RecursionError:
        return _LINES.decode_lines(cut(whole))


def unexpected_response(doing: RequestInfo, what: Any) -> Unreachable:
    """Return the error for a response that no apiserver sends."""
    return Unreachable(
        f"this is not a response of Kubernetes ({what}): check that the server address is that of an apiserver",
        cluster=doing.cluster,
        doing=str(doing),
    )
