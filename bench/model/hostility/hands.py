"""By what tenants act on clusters, in memory or real: an action does not know which."""

from typing import Protocol

from bench.model.hostility.ledger import Ledger
from tensile.objects import Kind, Manifest, Ref

HONEST = "honest"
"""Who acts, where it is none of `marks.ABOVE` and `marks.BELOW`."""


class Hands(Protocol):
    """Clusters to act on. `who` acts is one of `HONEST`, `ABOVE`, `BELOW`; what is refused raises nothing."""

    ledger: Ledger

    def find(self, ref: Ref) -> Manifest | None:
        """Return an object as it is, or was a moment ago."""
        ...

    def every(self, cluster: str, kind: Kind) -> list[Manifest]:
        """Return all objects of a kind in the namespaces of this play, as they are."""
        ...

    async def create(self, ref: Ref, body: Manifest, who: str, manager: str = "") -> None:
        """Make an object, as a field manager; `body` needs no name and no namespace."""
        ...

    async def patch(self, ref: Ref, change: Manifest, who: str, manager: str = "") -> None:
        """Change an object by a merge patch, as a field manager."""
        ...

    async def delete(self, ref: Ref, found: Manifest, who: str, grace: int | None = None) -> None:
        """Delete the very object that was found; a pod's `grace` of 0 is by force."""
        ...

    async def read(self, ref: Ref) -> None:
        """Read the log of an upper pod as its own tenant, by the kubelet API."""
        ...

    async def befall(self, what: str, number: int) -> None:
        """Apply a fault to the engine or its watches: crash, down, up, hold, release."""
        ...

    async def rest(self, seconds: float) -> None:
        """Let time pass."""
        ...
