"""All objects of three real clusters, from watches of each checked kind, delivered to the sequences by namespace.

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
from bench.model.hostility.checker import KINDS
from tensile.objects import NAMESPACE, UPPER, Kind, Manifest, Ref, metadata
from tensile.sandbox.state import UPPER as ABOVE

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LATER = 2.0
_LOOK = 0.2
Listener = Callable[[Ref, Manifest, float, bool], None]
"""Takes an object's place, the object, when it was observed, and whether it is deleted."""


class _Observation(NamedTuple):
    """An object that a cluster reported, and when."""

    ref: Ref
    manifest: Manifest
    gone: bool
    at: float


class ObjectWatches:
    """The watches of all clusters, used with `async with`; `listeners` are by upper or lower namespace."""

    def __init__(self, rig: Rig) -> None:
        self.held: dict[tuple[str, Kind], dict[tuple[str, str], Manifest]] = {}
        self.listeners: dict[str, Listener] = {}
        self._rig = rig
        self._nodes = {node: lower for lower, node in rig.nodes.items()}
        self._late: deque[_Observation] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Self":
        for cluster in (ABOVE, *LOWERS):
            for kind in KINDS:
                self.held[_name(cluster), kind] = {}
                self._tasks.append(asyncio.create_task(self._follow(cluster, kind)))
        self._tasks.append(asyncio.create_task(self._deliver_lower_objects()))
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
                    self._record(*place, manifest, gone=sort == "DELETED")
            except (Refused, *AWAY):
                await asyncio.sleep(PAUSE)

    def _replace(self, cluster: str, kind: Kind, items: list[Manifest]) -> None:
        known, before = {_place(one) for one in items}, self.held[cluster, kind]
        for place in [place for place in before if place not in known]:
            self._record(cluster, kind, before[place], gone=True)
        for one in items:
            self._record(cluster, kind, one, gone=False)

    def _record(self, cluster: str, kind: Kind, received: Manifest, *, gone: bool) -> None:
        """Record an observed object; the name of a virtual node in it is replaced by the lower cluster's name."""
        place, manifest = _place(received), self._with_lower_name(received)
        if gone:
            self.held[cluster, kind].pop(place, None)
        else:
            self.held[cluster, kind][place] = manifest
        observation = _Observation(Ref(cluster, kind, *place), manifest, gone, asyncio.get_running_loop().time())
        if cluster == UPPER:
            self._deliver(observation)
        else:
            self._late.append(observation)

    async def _deliver_lower_objects(self) -> None:
        """Deliver the objects of lower clusters after a delay."""
        while True:
            await asyncio.sleep(_LOOK)
            now = asyncio.get_running_loop().time()
            while self._late and now - self._late[0].at > LATER:
                self._deliver(self._late.popleft())

    def _deliver(self, observation: _Observation) -> None:
        where = observation.ref.name if observation.ref.kind == NAMESPACE else observation.ref.namespace
        listener = self.listeners.get(where)
        if listener is not None:
            listener(observation.ref, observation.manifest, observation.at, observation.gone)

    def _with_lower_name(self, received: Manifest) -> Manifest:
        node = (received.get("spec") or {}).get("nodeName")
        return (
            {**received, "spec": {**received["spec"], "nodeName": self._nodes[node]}}
            if node in self._nodes
            else received
        )


def _name(cluster: str) -> str:
    return UPPER if cluster == ABOVE else cluster


def _place(manifest: Manifest) -> tuple[str, str]:
    return metadata(manifest).get("namespace", ""), metadata(manifest)["name"]
