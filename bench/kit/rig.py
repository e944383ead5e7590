"""A separate topology behind fault proxies, on a sandbox that may be shared, and its engine as a process.

Its names, nodes and ports are unique, so several rigs can be used side by side on the same three clusters.
"""

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aiohttp
import yaml

from bench.kit import topologies
from bench.kit.child_processes import Child
from bench.kit.faultproxy.journal import Journal, Write
from bench.kit.faultproxy.proxy import Director, PassThrough, Proxy
from bench.kit.sites import NODES, Manifest, NotInTime, Refused, Site, patiently, until
from bench.kit.spareports import spare_ports
from tensile.names import LOWER_SCHEDULABLE, OWNER, owner_of
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LOWERS = ("lower-a", "lower-b")
LIMIT = 60.0
LAST_WRITES = 5
"""The number of writes that an error names if the engine does not become idle."""


class Rig:
    """A topology with proxies and an engine; used with `async with`, at whose end the engine is killed.

    `start` starts the engine. `sites` access the clusters without the proxies; `journal` has the engine's writes, in
    the order of all clusters. `more` are further fields of the topology file, from the next `save` on.
    """

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self.name = f"rig-{uuid4().hex[:8]}"
        self.sandbox = sandbox
        self.directory = directory
        self.journal = Journal()
        self.log = directory / "engine.log"
        self.nodes = {lower: f"{self.name}-{lower[-1]}" for lower in LOWERS}
        self.sites: dict[str, Site] = {}
        self.proxies: dict[str, Proxy] = {}
        self.child: Child | None = None
        self.ports = spare_ports(len(LOWERS) + 2)
        self.extra_fields: Manifest = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "Self":
        for name in (UPPER, *LOWERS):
            cluster = self.sandbox.clusters[name]
            pki = cluster.audit_log.parent / "pki"
            self.sites[name] = await self._open.enter_async_context(Site(cluster))
            proxy = Proxy(name, cluster.server, pki, journal=self.journal)
            self.proxies[name] = await self._open.enter_async_context(proxy)
            text = topologies.kubeconfig(cluster, self.name, server=proxy.url)
            (self.directory / f"{name}.kubeconfig").write_text(text)
        for name in ("kubelet.crt", "kubelet.key"):
            shutil.copy(self.sandbox.directory / name, self.directory)
        system = await self.upper.call("GET", "/api/v1/namespaces/kube-system")
        self.mark = owner_of(system["metadata"]["uid"], self.name).mark
        self.save()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if self.child is not None:
            self.child.kill()
        for node in self.nodes.values():
            await self.upper.delete(f"{NODES}/{node}")
        for lower in LOWERS:
            await self._remove_namespaces(self.sites[lower])
        await self._open.aclose()

    @property
    def upper(self) -> Site:
        """The upper cluster."""
        return self.sites[UPPER]

    def set_director(self, director: Director | None = None) -> None:
        """Set one director for all proxies; None lets everything pass."""
        for proxy in self.proxies.values():
            proxy.director = director or PassThrough()

    # The topology and the engine.

    def save(self, *lowers: str) -> None:
        """Write the topology file with these lowers (all if there are none) atomically, as editors do."""
        ports = dict(zip(LOWERS, self.ports, strict=False))
        wanted = {name: node for name, node in self.nodes.items() if name in (lowers or LOWERS)}
        own = [*(ports[name] for name in wanted), *self.ports[-2:]]
        found = topologies.topology_of(self.name, wanted, own, capacity={"basis": "allocatable"})
        topologies.save({**found, **self.extra_fields}, self.directory)

    def start(self) -> Child:
        """Start the engine; an earlier one must have ended."""
        assert self.child is None or not self.child.is_running
        topology = str(self.directory / "topology.yaml")
        self.child = Child(["tensile", "run", "-f", topology, "--log-format", "json"], self.sandbox, self.log)
        return self.child

    def kill(self) -> None:
        """Kill the engine as a crash does; it may have ended already."""
        if self.child is not None:
            self.child.kill()

    async def is_ready(self) -> bool:
        """Report whether the engine's /readyz succeeds."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.ports[-1]}/readyz") as response,
            ):
                return response.ok
        except aiohttp.ClientError:
            return False

    async def wait_until_usable(self, *lowers: str) -> None:
        """Return when the nodes of these lowers (all if there are none) accept pods."""

        async def are_usable() -> bool:
            """Report whether all wanted nodes are usable."""
            found = await self.list_nodes()
            wanted = {self.nodes[lower] for lower in lowers or LOWERS}
            return wanted <= {one["metadata"]["name"] for one in found if _is_usable(one)}

        await until(are_usable, f"{self.name}: nodes are usable", LIMIT)

    async def list_nodes(self) -> list[Manifest]:
        """Return the virtual nodes that exist now."""
        return await self.upper.items(f"{NODES}?labelSelector={OWNER}={self.mark}")

    def writes_since(self, start: int) -> list[Write]:
        """Return the engine's writes after the first `start` writes, except those of leases."""
        return [one for one in self.journal.since(start) if one.request.resource != "leases"]

    async def wait_until_idle(self, start: int, seconds: float, limit: float = LIMIT) -> int:
        """Wait until the engine writes nothing except leases for so long; return the number of all writes until then.

        Raises NotInTime, with the last writes, if the engine still writes after `limit` seconds.

        Args:
            start: the number of writes after which others count.
            seconds: how long nothing may be written.
            limit: after how many seconds the wait fails.
        """
        end = asyncio.get_running_loop().time() + limit
        known = start
        while True:
            await asyncio.sleep(seconds)
            now, recent = len(self.journal), self.writes_since(known)
            if not recent:
                return now
            if asyncio.get_running_loop().time() > end:
                last = "; ".join(f"{write.request} ({write.status})" for write in recent[-LAST_WRITES:])
                raise NotInTime(f"{self.name}: the engine still writes after {limit:g} s, last: {last}")
            known = now

    async def _remove_namespaces(self, site: Site) -> None:
        """Start the deletion of the lower namespaces that the engine created."""
        for one in await site.items(f"/api/v1/namespaces?labelSelector={OWNER}={self.mark}"):
            try:
                await patiently(lambda one=one: site.delete(f"/api/v1/namespaces/{one['metadata']['name']}"), LIMIT)
            except Refused:
                continue


def _is_usable(node: Manifest) -> bool:
    found = {one["type"]: one["status"] for one in node["status"].get("conditions") or ()}
    return found.get(LOWER_SCHEDULABLE) == "True" and found.get("Ready") == "True"


def with_own_ports(sandbox: Sandbox) -> tuple[dict[str, Any], int]:
    """Return the sandbox's topology with unused ports, for one of several engines on a machine.

    Another unused port is returned with it, for any further server.
    """
    found: dict[str, Any] = yaml.safe_load((sandbox.directory / "topology.yaml").read_text())
    *nodes, kubelet, telemetry, more = spare_ports(len(found["lowers"]) + 3)
    for lower, port in zip(found["lowers"], nodes, strict=True):
        lower.setdefault("node", {})["kubeletPort"] = port
    found["kubelet"]["port"] = kubelet
    found["telemetry"] = {"bind": "127.0.0.1", "port": telemetry}
    return found, more
