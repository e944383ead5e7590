"""One real cluster as a test sees it: by an administrator's own connection, never through the code under test.

Everything is waited for on a watch, with a deadline, so that a test takes as long as the clusters do and no longer.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from tensile.sandbox.apiserver import RESOURCES

if TYPE_CHECKING:
    from tensile.sandbox.sandbox import ClusterProcesses

Manifest = dict[str, Any]
Holds = Callable[[Manifest], object]
AllHold = Callable[[dict[str, Manifest]], object]
LIMIT = float(os.environ.get("TENSILE_PATIENCE", "60"))
"""Seconds after which what has not come is given up; a trial that takes rights away waits for less."""
MEDIA = {"merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json"}
GONE: Manifest = {}


class Refused(Exception):
    """An apiserver's refusal, with its status and message."""


class Site:
    """One cluster; made inside a running event loop, closed with `close`. Every path is one of the API.

    A watch that is left in its middle leaves a connection that says goodbye; `close` hangs up on those, too.
    """

    def __init__(self, cluster: "ClusterProcesses") -> None:
        self.name = cluster.name
        self.audit_log = cluster.audit_log
        self.logs = cluster.logs
        pki = cluster.audit_log.parent / "pki"
        tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        connector = aiohttp.TCPConnector(ssl=tls, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED)
        self._session = aiohttp.ClientSession(cluster.server, connector=connector, headers={"User-Agent": "e2e"})

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def call(self, method: str, path: str, body: object = None, media: str = "application/json") -> Manifest:
        """Make one request; raises Refused for a status of 400 or more."""
        data = None if body is None else orjson.dumps(body)
        async with self._session.request(method, path, data=data, headers={"Content-Type": media}) as answer:
            told: Manifest = orjson.loads(await answer.read())
            if answer.status >= 400:
                raise Refused(f"{self.name}: {method} {path}: {answer.status} {told.get('message')}")
            return told

    def websocket(self, path: str, protocol: str) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Open a stream by WebSocket; aiohttp.WSServerHandshakeError where it is refused."""
        return self._session.ws_connect(path, protocols=(protocol,))

    async def create(self, path: str, body: Manifest) -> Manifest:
        """Create an object in a collection."""
        return await self.call("POST", path, body)

    async def read(self, path: str) -> Manifest:
        """Read an object or a list; {} where there is none."""
        try:
            return await self.call("GET", path)
        except Refused as error:
            if ": 404 " in str(error):
                return GONE
            raise

    async def patch(self, path: str, body: Manifest, how: str = "merge") -> Manifest:
        """Change an object by a merge patch ("merge") or a strategic one ("strategic")."""
        return await self.call("PATCH", path, body, MEDIA[how])

    async def delete(self, path: str, grace: int | None = None) -> None:
        """Delete an object, or a collection; nothing happens where there is none."""
        query = "" if grace is None else f"?gracePeriodSeconds={grace}"
        try:
            await self.call("DELETE", path + query)
        except Refused as error:
            if ": 404 " not in str(error):
                raise

    async def until(self, path: str, holds: Holds, limit: float = LIMIT) -> Manifest:
        """Watch one object until a condition holds for it ({} while there is none), and give it.

        A condition on a field that is not there yet does not hold yet.
        """
        collection, _, name = path.rpartition("/")
        found: Manifest = GONE

        def wanted(objects: dict[str, Manifest]) -> bool:
            """Ask about the one object."""
            nonlocal found
            found = next(iter(objects.values()), GONE)
            with suppress(LookupError):
                return bool(holds(found))
            return False

        await self.until_all(f"{collection}?fieldSelector={quote(f'metadata.name={name}')}", wanted, limit)
        return found

    async def add_node(self, name: str, **room: str) -> str:
        """Return the cluster a node like its others, but with such room besides, and its name once it is Ready."""
        others = await self.until_all("/api/v1/nodes", bool)
        meta, status = next((one["metadata"], one["status"]) for one in others.values())
        offered = {**RESOURCES, **room}
        labels = {**meta["labels"], "kubernetes.io/hostname": name}
        fields = {"name": name, "labels": labels, "annotations": meta["annotations"]}
        filled = {**status, "capacity": offered, "allocatable": offered, "conditions": []}
        await self.create("/api/v1/nodes", {"metadata": fields, "spec": {}, "status": filled})
        await self.until(f"/api/v1/nodes/{name}", is_ready)
        return name

    async def gone(self, *paths: str, limit: float = LIMIT) -> None:
        """Watch objects until each is gone."""
        for path in paths:
            await self.until(path, lambda found: not found, limit)

    async def until_all(self, collection: str, hold: AllHold, limit: float = LIMIT) -> dict[str, Manifest]:
        """Watch a collection (a query may follow its path) until a condition holds for its objects by name."""
        objects: dict[str, Manifest] = {}
        try:
            async with asyncio.timeout(limit):
                while True:
                    async for objects in self.followed(collection):
                        if hold(objects):
                            return objects
        except TimeoutError:
            state = orjson.dumps(list(objects.values())).decode()
            raise AssertionError(f"{self.name}: {collection}: not within {limit:g} s; it is: {state}") from None

    async def followed(self, collection: str) -> AsyncIterator[dict[str, Manifest]]:
        """Yield the objects of a collection by name, anew with every change, until the server ends the watch."""
        listed = await self.call("GET", collection)
        objects = {one["metadata"]["name"]: one for one in listed["items"]}
        yield objects
        since = f"watch=1&timeoutSeconds=60&resourceVersion={listed['metadata']['resourceVersion']}"
        joint = "&" if "?" in collection else "?"
        async with self._session.get(f"{collection}{joint}{since}") as answer:
            async for line in answer.content:
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    return
                one = event["object"]
                objects.pop(one["metadata"]["name"], None)
                if event["type"] != "DELETED":
                    objects[one["metadata"]["name"]] = one
                yield objects


def condition_of(found: Manifest, kind: str) -> Manifest:
    """Return a condition of an object by its type, {} when there is none."""
    conditions = found.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), GONE)


def is_true(found: Manifest, kind: str) -> bool:
    """Report whether an object has a condition that says True."""
    return bool(condition_of(found, kind).get("status") == "True")


def phase_of(found: Manifest) -> str:
    """Return a pod's phase, "" for none."""
    return str(found.get("status", {}).get("phase", ""))


def is_ready(found: Manifest) -> bool:
    """Report whether a pod runs and is ready."""
    return phase_of(found) == "Running" and is_true(found, "Ready")
