"""All objects of three real clusters, from watches of every kind that is checked, delivered to the plays by namespace.

Each watch begins with a list, so that nothing is missed if a watch ends. Objects of lower clusters are delivered a
little later: by then the upper object that they are for was delivered, and the client that created them knows their
UID.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import AWAY, PAUSE, Refused
from bench.model.hostility.watchman import KINDS
from tensile.objects import NAMESPACE, UPPER, Kind, Manifest, Ref, metadata
from tensile.sandbox.state import UPPER as ABOVE

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LATER = 2.0
_LOOK = 0.2
Heard = Callable[[Ref, Manifest, float, bool], None]
"""Takes an object's place, the object, when it was observed, and whether it is deleted."""


class _Told(NamedTuple):
    """An object that a cluster reported, and when."""

    ref: Ref
    manifest: Manifest
    gone: bool
    at: float


class Lookout:
    """The watches of all clusters, used with `async with`; `listeners` are by upper or lower namespace."""

    def __init__(self, rig: Rig) -> None:
        self.held: dict[tuple[str, Kind], dict[tuple[str, str], Manifest]] = {}
        self.listeners: dict[str, Heard] = {}
        self._rig = rig
        self._nodes = {node: lower for lower, node in rig.nodes.items()}
        self._late: deque[_Told] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Self":
        for cluster in (ABOVE, *LOWERS):
            for kind in KINDS:
                self.held[_name(cluster), kind] = {}
                self._tasks.append(asyncio.create_task(self._follow(cluster, kind)))
        self._tasks.append(asyncio.create_task(self._pass_on()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def find(self, ref: Ref) -> Manifest | None:
        """Return an object in its last observed state."""
        return self.held[ref.cluster, ref.kind].get((ref.namespace, ref.name))

    async def _follow(self, cluster: str, kind: Kind) -> None:
        """List and watch a kind, again and again."""
        site, place = self._rig.sites[cluster], (_name(cluster), kind)
        while True:
            try:
                listed = await site.call("GET", kind.path())
                self._replace(*place, listed["items"])
                query = f"resourceVersion={listed['metadata']['resourceVersion']}"
                async for sort, manifest in site.watch_once(kind.path(), query):
                    self._hear(*place, manifest, gone=sort == "DELETED")
            except (Refused, *AWAY):
                await asyncio.sleep(PAUSE)

    def _replace(self, cluster: str, kind: Kind, items: list[Manifest]) -> None:
        known, before = {_place(one) for one in items}, self.held[cluster, kind]
        for place in [place for place in before if place not in known]:
            self._hear(cluster, kind, before[place], gone=True)
        for one in items:
            self._hear(cluster, kind, one, gone=False)

    def _hear(self, cluster: str, kind: Kind, told: Manifest, *, gone: bool) -> None:
        """Record an observed object; the name of a virtual node in it is replaced by the lower cluster's name."""
        place, manifest = _place(told), self._plain(told)
        if gone:
            self.held[cluster, kind].pop(place, None)
        else:
            self.held[cluster, kind][place] = manifest
        heard = _Told(Ref(cluster, kind, *place), manifest, gone, asyncio.get_running_loop().time())
        if cluster == UPPER:
            self._tell(heard)
        else:
            self._late.append(heard)

    async def _pass_on(self) -> None:
        """Deliver the objects of lower clusters after a delay."""
        while True:
            await asyncio.sleep(_LOOK)
            now = asyncio.get_running_loop().time()
            while self._late and now - self._late[0].at > LATER:
                self._tell(self._late.popleft())

    def _tell(self, told: _Told) -> None:
        where = told.ref.name if told.ref.kind == NAMESPACE else told.ref.namespace
        heard = self.listeners.get(where)
        if heard is not None:
            heard(told.ref, told.manifest, told.at, told.gone)

    def _plain(self, told: Manifest) -> Manifest:
        node = (told.get("spec") or {}).get("nodeName")
        return {**told, "spec": {**told["spec"], "nodeName": self._nodes[node]}} if node in self._nodes else told


def _name(cluster: str) -> str:
    return UPPER if cluster == ABOVE else cluster


def _place(manifest: Manifest) -> tuple[str, str]:
    return metadata(manifest).get("namespace", ""), metadata(manifest)["name"]
