"""All that a cluster can do for the engine, as one protocol.

The client over HTTP honours it, and so does the rehearsal in memory that `plan` and the tests use, so that everything
above is written once. Bodies come back as the bytes the apiserver sent: who needs the content decodes it.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from tensile.objects import Kind, Manifest, Ref


class Selection(NamedTuple):
    """Which objects of a kind: a namespace ("" for all) and the API's label and field selectors ("" for none)."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


Read = Callable[[bytes], Any]


class Listing(NamedTuple):
    """The whole answer of a LIST: what was read out of each object, and the collection's resourceVersion."""

    items: list[Any]
    version: str


class WatchEvent(NamedTuple):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK, or a type not known yet, with the object's bytes.

    An ERROR line is never passed on: it is raised.
    """

    type: str
    raw: bytes


class Patch(NamedTuple):
    """A PATCH body and its media type: "json-patch", "merge-patch", "strategic-merge-patch" or "apply-patch"."""

    media: str
    body: Any


class Endpoint(NamedTuple):
    """Where and how to open a connection of one's own to a cluster's apiserver, for streams.

    `prefix` is the path before /api ("" as a rule), `headers` carry the credential, where it is a token.
    """

    address: str
    port: int
    tls: ssl.SSLContext
    server_name: str
    prefix: str
    headers: Mapping[str, str]


class Cluster(Protocol):
    """One cluster. Every method raises the `ClusterError` that fits, and nothing else."""

    @property
    def name(self) -> str:
        """The lower's name, or `objects.UPPER`."""
        ...

    async def read(self, ref: Ref) -> bytes:
        """Return the object at quorum, so that "not found" means that it does not exist."""
        ...

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Return what `read` makes of every object of the selection, at quorum, all pages.

        What `read` makes None of is left out. Raises Unreachable where it raises anything but a ClusterError.
        """
        ...

    def watch(self, kind: Kind, selection: Selection, version: str, seconds: int) -> AsyncIterator[WatchEvent]:
        """Follow the selection from `version` on; ends when the server ends it, after about `seconds`.

        Raises Expired when `version` cannot be resumed from, and Unreachable when nothing (not even the end) came
        in `seconds` and a margin: a connection can hang without an error.
        """
        ...

    async def kinds(self) -> tuple[Kind, ...]:
        """Return every namespaced kind whose objects can be listed, each in one version."""
        ...

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create the object (for reviews: ask) and give it as stored."""
        ...

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Change the object, or a subresource of it, and give it as stored.

        The body carries metadata.uid or metadata.resourceVersion: where they do not fit any more, Conflict is raised.
        """
        ...

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
        """Delete the object if it is still the one with that UID (else Conflict).

        With a `version` it has to be as it was at that resourceVersion too.
        `grace` in seconds, None for the object's own. Gives the object as it is now, which does not tell by itself
        whether it is gone or only ending, or a v1 Status.
        """
        ...

    async def evict(self, ref: Ref, *, uid: str) -> None:
        """Ask for the deletion of a pod if it is still the one with that UID (else Conflict), with its own grace.

        Raises Throttled where a PodDisruptionBudget does not allow it now.
        """
        ...

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Have a token of a ServiceAccount issued, as a TokenRequest asks; returns that, answered: it holds the token."""
        ...

    async def version(self) -> str:
        """Return the server's version such as "v1.36.3"."""
        ...

    def endpoint(self) -> Endpoint:
        """Return how to open a connection of one's own."""
        ...
