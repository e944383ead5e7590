"""The namespace of one trial on a rig: its objects in all clusters, and the history of its pods.

`RESOURCES` lists the kinds that are checked; another kind that the engine mirrors needs an entry there.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.final_states import Objects, State, state_of, strays, touched
from bench.kit.histories import PodEvent
from bench.kit.oracles import Manifest
from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import NODE_LEASES, Refused, until
from tensile.names import OWNER, UPPER_UID
from tensile.sandbox.state import UPPER

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Resource(NamedTuple):
    """A kind that is checked: its API, its name in paths, and the names of objects that Kubernetes itself creates."""

    api: str
    plural: str
    given: tuple[str, ...] = ()


RESOURCES = (
    Resource("api/v1", "pods"),
    Resource("api/v1", "configmaps", ("kube-root-ca.crt",)),
    Resource("api/v1", "secrets"),
)
CANARY = "canary"
Holds = Callable[[Objects], bool]
_STRANGER = {"labels": {OWNER: "f" * 16}, "annotations": {UPPER_UID: "somebody-else"}}
_LIMIT = 30.0


class TrialNamespace:
    """A namespace and its default service account, which exist inside `async with`."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.namespace = f"{rig.name}-{uuid4().hex[:6]}"
        self.pod_events: list[PodEvent] = []
        self._canaries: dict[str, list[Manifest]] = {}
        self._following: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Self":
        upper = self.rig.upper
        await upper.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})

        async def has_account() -> bool:
            """Report whether the service account exists, which is created a moment after the namespace."""
            with suppress(Refused):
                return bool(await upper.call("GET", self.path("serviceaccounts", "default")))
            return False

        await until(has_account, "the namespace has its account", _LIMIT)
        self._following = [asyncio.create_task(self._follow(name)) for name in (UPPER, *LOWERS)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self.rig.upper.delete(f"/api/v1/namespaces/{self.namespace}")

    def path(self, plural: str, name: str = "", api: str = "api/v1") -> str:
        """Return the path of a collection in the namespace, or of one object of it."""
        return f"/{api}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def contains(self, request: ProxiedRequest) -> bool:
        """Report whether a request is about this namespace, in any cluster."""
        return request.namespace == self.namespace

    # The objects.

    async def objects(self) -> Objects:
        """Return everything in the namespace in all clusters, and the rig's nodes."""
        found: dict[str, dict[str, list[Manifest]]] = {}
        for name, site in self.rig.sites.items():
            found[name] = {one.plural: await self._items(name, one) for one in RESOURCES}
            found[name]["namespaces"] = await site.items(f"/api/v1/namespaces?fieldSelector={self._named()}")
            if name == UPPER:
                found[name]["nodes"] = await self.rig.list_nodes()
                leases = await site.items(NODE_LEASES)
                found[name]["leases"] = [one for one in leases if one["metadata"]["name"] in self.rig.nodes.values()]
        return found

    async def state(self) -> State:
        """Return the objects in a form that can be compared with the state of another namespace."""
        return state_of(await self.objects(), {self.namespace: "NAMESPACE", self.rig.name: "RIG", **self._ports()})

    async def wait_until(self, holds: Holds, what: str, limit: float = _LIMIT) -> None:
        """Return when the existing objects satisfy a condition."""

        async def is_true() -> bool:
            """Report whether the objects satisfy the condition now."""
            return holds(await self.objects())

        await until(is_true, what, limit)

    # Objects that must not be changed.

    async def create_canaries(self) -> None:
        """Create objects that the engine does not own.

        They have no marks, the marks of another owner, or only some of this topology's marks.
        """
        for name, site in self.rig.sites.items():
            half = {"labels": {OWNER: self.rig.mark}}
            for number, marks in enumerate(({}, _STRANGER, half) if name != UPPER else ({},)):
                body = {"metadata": {"name": f"{CANARY}-{number}", **marks}, "data": {"sings": "eQ=="}}
                for plural in ("configmaps", "secrets"):
                    with suppress(Refused):
                        made = await site.call("POST", self.path(plural), body)
                        self._canaries.setdefault(name, []).append(made)

    async def find_damage(self) -> list[str]:
        """Return the canaries that were changed, and the mirrored objects without an upper object."""
        objects = await self.objects()
        damage = strays(_without_nodes(objects), UPPER, self.rig.mark)
        for name, before in self._canaries.items():
            after = [
                one
                for plural in ("configmaps", "secrets")
                for one in await self.rig.sites[name].items(self.path(plural))
            ]
            damage += touched(before, after, name)
        return damage

    async def _items(self, cluster: str, resource: Resource) -> list[Manifest]:
        found = await self.rig.sites[cluster].items(self.path(resource.plural, api=resource.api))
        return [one for one in found if not _is_given(one["metadata"]["name"], resource)]

    async def _follow(self, cluster: str) -> None:
        async for sort, manifest in self.rig.sites[cluster].watch(self.path("pods")):
            self.pod_events.append(PodEvent(cluster, sort, manifest))

    def _named(self) -> str:
        return f"metadata.name%3D{self.namespace}"

    def _ports(self) -> dict[str, str]:
        """Return placeholders for the ports, which differ between rigs."""
        return {str(port): f"PORT{number}" for number, port in enumerate(self.rig.ports)}


def _is_given(name: str, resource: Resource) -> bool:
    return name in resource.given or name.startswith(f"{CANARY}-")


def _without_nodes(objects: Objects) -> Objects:
    kinds = [*(one.plural for one in RESOURCES), "namespaces"]
    return {name: {plural: found[plural] for plural in kinds} for name, found in objects.items()}
