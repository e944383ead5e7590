"""The interface by which tenants act on clusters, in memory or real; an action does not know which."""

from typing import Protocol

from bench.model.hostility.ledger import Ledger
from tensile.objects import Kind, Manifest, Ref

HONEST = "honest"
"""The `who` of every client that is neither `markers.ABOVE` nor `markers.BELOW`."""


class TenantAPI(Protocol):
    """Clusters to act on.

    `who` acts is one of `HONEST`, `ABOVE`, `BELOW`. A request that is refused raises no error.
    """

    ledger: Ledger

    def find(self, ref: Ref) -> Manifest | None:
        """Return an object in its current or a very recent state."""
        ...

    def list_objects(self, cluster: str, kind: Kind) -> list[Manifest]:
        """Return all current objects of a kind in the namespaces of this sequence."""
        ...

    async def create(self, ref: Ref, body: Manifest, who: str, manager: str = "") -> None:
        """Create an object as a field manager; `body` needs no name and no namespace."""
        ...

    async def patch(self, ref: Ref, change: Manifest, who: str, manager: str = "") -> None:
        """Change an object by a merge patch, as a field manager."""
        ...

    async def delete(self, ref: Ref, found: Manifest, who: str, grace: int | None = None) -> None:
        """Delete exactly the object that was found, by its UID; a `grace` of 0 deletes a pod by force."""
        ...

    async def read(self, ref: Ref) -> None:
        """Read the log of an upper pod through the kubelet API, as its own tenant."""
        ...

    async def inject_fault(self, what: str, number: int) -> None:
        """Apply a fault to the engine or its watches: crash, down, up, hold, release."""
        ...

    async def let_time_pass(self, seconds: float) -> None:
        """Let time pass."""
        ...
