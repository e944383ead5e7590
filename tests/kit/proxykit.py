"""An apiserver behind a fault proxy, and an administrator's connection through it."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import aiohttp
import orjson

from bench.kit.faultproxy.directors import ScriptedDirector
from bench.kit.faultproxy.proxy import Proxy
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.faultproxy.watch_streams import Event
from bench.kit.sites import Site
from tensile.sandbox.sandbox import Sandbox

CLUSTER = "lower-a"
Manifest = dict[str, Any]
BROKEN = (aiohttp.ClientError, ConnectionError)


class Fronted:
    """A proxy with its script, connections through it (`site`) and around it (`past`), and a collection."""

    def __init__(self, proxy: Proxy, site: Site, past: Site) -> None:
        self.proxy = proxy
        self.script = ScriptedDirector()
        proxy.director = self.script
        self.site = site
        self.past = past
        self.mark = uuid4().hex[:8]
        self.maps = "/api/v1/namespaces/default/configmaps"

    def name(self, number: int = 0) -> str:
        """Return a unique name."""
        return f"proxied-{self.mark}-{number}"

    def body(self, number: int = 0, **meta: Any) -> Manifest:
        """Make a ConfigMap's manifest."""
        return {"metadata": {"name": self.name(number), "labels": {"proxied": self.mark}, **meta}, "data": {"n": "1"}}

    async def make(self, number: int = 0, *, past: bool = False) -> Manifest:
        """Create a ConfigMap through the proxy, or around it."""
        return await (self.past if past else self.site).call("POST", self.maps, self.body(number))

    async def names(self) -> list[str]:
        """Return the names of the existing ConfigMaps, listed around the proxy."""
        found = await self.past.items(f"{self.maps}?labelSelector=proxied={self.mark}")
        return sorted(one["metadata"]["name"] for one in found)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncGenerator[tuple[str, str], None]]:
        """Watch the ConfigMaps through the proxy from now on; yield the type and name of each event."""
        version = (await self.past.call("GET", f"{self.maps}?limit=1"))["metadata"]["resourceVersion"]
        query = f"watch=1&timeoutSeconds=60&labelSelector=proxied={self.mark}&resourceVersion={version}"
        async with self.site.session.get(f"{self.maps}?{query}") as stream:
            yield _watched_events(stream)


async def _watched_events(stream: aiohttp.ClientResponse) -> AsyncGenerator[tuple[str, str], None]:
    async for line in stream.content:
        event = orjson.loads(line)
        yield event["type"], event["object"]["metadata"].get("name", str(event["object"].get("code")))


@asynccontextmanager
async def fronted(sandbox: Sandbox) -> AsyncIterator[Fronted]:
    """Put a proxy in front of lower-a; its ConfigMaps are removed at the end."""
    processes = sandbox.clusters[CLUSTER]
    pki = processes.audit_log.parent / "pki"
    async with (
        Proxy(CLUSTER, processes.server, pki) as proxy,
        Site(processes) as past,
        Site(replace(processes, server=proxy.url)) as site,
    ):
        found = Fronted(proxy, site, past)
        try:
            yield found
        finally:
            for name in await found.names():
                await past.delete(f"{found.maps}/{name}")


# Events without a cluster.

WATCH = ProxiedRequest("upper", "watch", "pods")


def event(name: str, number: int, sort: str = "MODIFIED", namespace: str = "shop") -> Event:
    """Make an event whose line contains its name and version."""
    return Event(sort, namespace, name, f"uid-{name}", str(number), f"{name}@{number}".encode())
