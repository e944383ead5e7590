"""What an apiserver answers -> our errors, listings and watch events, by one table.

Kubernetes tells what happened by status, reason and causes; its sentences are for people and change between releases,
so no decision reads them. Objects are never decoded here, only cut out of what surrounds them.
"""

import re
from typing import Annotated, Any, NamedTuple

import msgspec

from tensile.cluster import WatchEvent
from tensile.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Denied,
    Expired,
    NotFound,
    Throttled,
    Unauthorized,
    Unreachable,
)
from tensile.kube.bounds import GROUPS, LONGEST_WAIT, OBJECT, TOKEN, Account, TooLarge, mebibytes
from tensile.kube.shallow import cut, shallow
from tensile.objects import Kind, Ref

_LONGEST_WORDS = 2_000
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


def error_of(doing: Doing, code: int, body: bytes, retry_after: str = "") -> ClusterError:
    """Give the error that an answer with HTTP status `code` means; `retry_after` is that header's value."""
    status = _status(body)
    details = status.details or _Details()
    causes = details.causes or []
    asked = _seconds(retry_after) or min(float(details.retryAfterSeconds), LONGEST_WAIT)
    sort = _sort(code, status.reason, causes, asked)
    return sort(
        _words(code, status, body),
        cluster=doing.cluster,
        doing=str(doing),
        status=code,
        reason=status.reason,
        causes=tuple(cause.reason for cause in causes),
        retry_after=(asked or _PATIENCE) if sort is Throttled else 0.0,
    )


def _sort(code: int, reason: str, causes: list[_Cause], asked: float) -> type[ClusterError]:
    """Give the sort of error: the table itself."""
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
    """Decode a Status; an empty one for what is none."""
    try:
        return _STATUSES.decode(body)
    except _STRANGE:
        return _Status()


def _words(code: int, status: _Status, body: bytes) -> str:
    """Give what is told to people, in one line of bounded length."""
    words = status.message or body.decode(errors="replace")
    return " ".join(words[:_LONGEST_WORDS].split()) or f"HTTP status {code}"


def _seconds(header: str) -> float:
    """Give the seconds of a Retry-After, as far as they are believed; 0 when it is in another form."""
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
    """Give an object's UID. Raises Unreachable when it has none."""
    uid = _identity(doing, body).uid
    if not uid:
        raise strange(doing, "an object without a UID")
    return uid


def version_of(doing: Doing, body: bytes) -> int:
    """Give an object's resourceVersion as a number, 0 where it has none. Raises Unreachable for no object."""
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
    """Give the release that /version names, such as "v1.36.3". Raises Unreachable for what is no release."""
    try:
        release = _VERSIONS.decode(body).gitVersion
    except _STRANGE as error:
        raise strange(doing, error) from None
    if not _RELEASE(release):
        raise strange(doing, f"a version like {release[:_SHOWN]!r}")
    return release


def apis_of(doing: Doing, body: bytes) -> list[str]:
    """Give the API groups' versions that /apis names, as "GROUP/VERSION", the preferred one of each group first.

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
    """Give the namespaced kinds of one API version whose objects can be listed."""
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
        """Give the events that end in this chunk.

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
        """Give a line's event; raise what an ERROR stands for."""
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
    """Give the error for an answer that no apiserver gives."""
    return Unreachable(
        f"the answer is not Kubernetes' ({what}): check that the server address is that of an apiserver",
        cluster=doing.cluster,
        doing=str(doing),
    )
