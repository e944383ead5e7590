"""The operations of a cluster that the engine uses, as one protocol.

The HTTP client implements it, and so does the in-memory dry run for `plan` and the tests, so that all other code exists
once. Bodies are returned as the bytes that the apiserver sent: callers that need the content decode it.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple, Protocol

import orjson

from tensile.errors import NotFound
from tensile.objects import Kind, Manifest, Ref


class Selection(NamedTuple):
    """The selected objects of a kind: a namespace ("" for all), and label and field selectors ("" for none)."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


Read = Callable[[bytes], Any]


class Listing(NamedTuple):
    """The complete result of a LIST: what was read from each object, and the collection's resourceVersion."""

    items: list[Any]
    version: str


class WatchEvent(NamedTuple):
    """A watch event: ADDED, MODIFIED, DELETED, BOOKMARK or a future type, with the object's bytes.

    An ERROR event is raised as an error instead.
    """

    type: str
    raw: bytes


class Patch(NamedTuple):
    """A PATCH body and its media type: "json-patch", "merge-patch", "strategic-merge-patch" or "apply-patch"."""

    media: str
    body: Any


class Endpoint(NamedTuple):
    """How to open a direct connection to a cluster's apiserver, for streams.

    `prefix` is the path before /api, usually "". `headers` carry the credential if it is a token.
    """

    address: str
    port: int
    tls: ssl.SSLContext
    server_name: str
    prefix: str
    headers: Mapping[str, str]


class Cluster(Protocol):
    """One cluster. Every method raises the matching `ClusterError`, and nothing else."""

    @property
    def name(self) -> str:
        """The lower's name, or `objects.UPPER`."""
        ...

    async def read(self, ref: Ref) -> bytes:
        """Return the object from a quorum read, so that "not found" means that it does not exist."""
        ...

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Return what `read` makes of every selected object: a quorum read of all pages.

        Objects for which `read` returns None are left out. If `read` raises anything but a ClusterError, raises
        Unreachable.
        """
        ...

    def watch(
        self, kind: Kind, selection: Selection, version: str, seconds: int, opened: Callable[[], object] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """Watch the selection from `version` on, until the server ends the watch after about `seconds`.

        Calls `opened` once the server has accepted the watch; the first event may come a minute later.

        Raises Expired when `version` cannot be resumed from. Raises Unreachable when nothing, not even the end, came
        within `seconds` and a margin: a connection can hang without an error.
        """
        ...

    async def kinds(self) -> tuple[Kind, ...]:
        """Return every namespaced kind whose objects can be listed, each in one version."""
        ...

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create the object (for a review: request it) and return it as stored."""
        ...

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch the object, or one of its subresources, and return it as stored.

        The body carries metadata.uid or metadata.resourceVersion as a precondition. Raises Conflict when it fails.
        """
        ...

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
        """Delete the object if it still has that UID, else raise Conflict.

        With a `version` its resourceVersion has to match too. `grace` is in seconds, None for the object's own grace
        period. Returns the object in its present state, which does not show whether it is gone or still terminating, or
        a v1 Status.
        """
        ...

    async def evict(self, ref: Ref, *, uid: str) -> None:
        """Evict a pod if it still has that UID, else raise Conflict. The pod keeps its own grace period.

        Raises Throttled when a PodDisruptionBudget does not allow the eviction now.
        """
        ...

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Request a token for a ServiceAccount. Return the answered TokenRequest, which contains the token."""
        ...

    async def version(self) -> str:
        """Return the server's version such as "v1.36.3"."""
        ...

    def endpoint(self) -> Endpoint:
        """Return how to open a direct connection."""
        ...


async def read_or_none(cluster: Cluster, ref: Ref) -> Manifest | None:
    """Return an object, decoded; None if it does not exist, or if the cluster does not have its kind."""
    try:
        found: Manifest = orjson.loads(await cluster.read(ref))
    except NotFound:
        return None
    return found
