"""One cluster of a sandbox for a test or a bench: raw JSON over an administrator's own connection.

It does not use the engine's client, so that a defect in it cannot hide itself, except for the function that cuts a text
that another test has nested too deep to be decoded. Conditions are awaited with a watch if the cluster stays up
(`Site.until`), and by polling if it may be unreachable (`until`).
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from tensile.kube.responses import cut
from tensile.sandbox.apiserver import RESOURCES

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tensile.sandbox.sandbox import ClusterProcesses

Manifest = dict[str, Any]
Holds = Callable[[Manifest], object]
AllHold = Callable[[dict[str, Manifest]], object]
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
PODS = "/api/v1/namespaces/{}/pods"
NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
MEDIA = {"merge": MERGE, "strategic": STRATEGIC}
AWAY = (aiohttp.ClientError, ConnectionError, TimeoutError)
PAUSE = 0.1
LIMIT = float(os.environ.get("TENSILE_PATIENCE", "60"))
"""Seconds until a test stops waiting; a trial that removes rights waits for a shorter time."""
GONE: Manifest = {}


class Refused(Exception):
    """An apiserver denied a request; `status` is the HTTP status, which the message contains too."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotInTime(Exception):
    """An awaited condition did not become true in time."""


class Site:
    """One cluster; created inside a running event loop, closed by `async with` or `close`; paths are the API's.

    `at_once` limits the number of concurrent requests. A watch that is abandoned leaves a connection in TLS shutdown;
    `close` closes those too.
    """

    def __init__(self, cluster: "ClusterProcesses", at_once: int = 100) -> None:
        self.name = cluster.name
        self.audit_log = cluster.audit_log
        self.logs = cluster.logs
        pki = cluster.audit_log.parent / "pki"
        tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self.session = aiohttp.ClientSession(
            cluster.server,
            connector=aiohttp.TCPConnector(ssl=tls, limit=at_once, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            headers={"User-Agent": "bench"},
            read_bufsize=1 << 20,
        )

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self.session.close()

    async def call(
        self, method: str, path: str, body: object = None, media: str = "application/json", user: str = ""
    ) -> Manifest:
        """Make one request, as another `user` if it is set; raises Refused for a status of 400 or more."""
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": media, **({"Impersonate-User": user} if user else {})}
        async with self.session.request(method, path, data=data, headers=headers) as answer:
            content = _decoded(await answer.read())
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise Refused(answer.status, f"{self.name}: {method} {path}: {answer.status} {content.get('message')}")
            return content

    async def items(self, path: str) -> list[Manifest]:
        """List a collection."""
        found: list[Manifest] = (await self.call("GET", path))["items"]
        return found

    async def create(self, path: str, body: Manifest) -> Manifest:
        """Create an object in a collection."""
        return await self.call("POST", path, body)

    async def read(self, path: str) -> Manifest:
        """Read an object or a list; return {} if it does not exist."""
        try:
            return await self.call("GET", path)
        except Refused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return GONE
            raise

    async def patch(self, path: str, body: Manifest, how: str = "merge") -> Manifest:
        """Change an object by a merge patch ("merge") or a strategic one ("strategic")."""
        return await self.call("PATCH", path, body, MEDIA[how])

    async def delete(self, path: str, grace: int | None = None) -> None:
        """Delete an object or a collection; an absent object is no error."""
        query = "" if grace is None else f"?gracePeriodSeconds={grace}"
        try:
            await self.call("DELETE", path + query)
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def websocket(self, path: str, protocol: str) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Open a stream by WebSocket; raises aiohttp.WSServerHandshakeError if it is refused."""
        return self.session.ws_connect(path, protocols=(protocol,))

    async def version(self) -> str:
        """Return the cluster's version such as "v1.36.3"."""
        return str((await self.call("GET", "/version"))["gitVersion"])

    async def watch(self, path: str, query: str = "") -> AsyncIterator[tuple[str, Manifest]]:
        """Yield the objects of a collection as ADDED and every event after them, and restart the watch when it ends."""
        while True:
            try:
                async for event in self.watch_once(path, query):
                    yield event
            except (Refused, *AWAY):
                await asyncio.sleep(PAUSE)

    async def watch_once(self, path: str, query: str = "") -> AsyncIterator[tuple[str, Manifest]]:
        """Yield the events of one watch until it ends or cannot continue."""
        async with self.session.get(f"{path}?watch=1&timeoutSeconds=300&{query}") as stream:
            while line := await stream.content.readline():
                event = _decoded(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]

    async def until(self, path: str, holds: Holds, limit: float = LIMIT) -> Manifest:
        """Watch one object until a condition holds for it ({} while it does not exist), and return it.

        A condition on a missing field does not hold yet.
        """
        collection, _, name = path.rpartition("/")
        found: Manifest = GONE

        def wanted(objects: dict[str, Manifest]) -> bool:
            """Report whether the condition holds for the one object."""
            nonlocal found
            found = next(iter(objects.values()), GONE)
            with suppress(LookupError):
                return bool(holds(found))
            return False

        await self.until_all(f"{collection}?fieldSelector={quote(f'metadata.name={name}')}", wanted, limit)
        return found

    async def add_node(self, name: str, **room: str) -> str:
        """Add a node like the cluster's others, but with these resources, and return its name once it is Ready."""
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
        """Watch objects until each is deleted."""
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
        """Yield the objects of a collection by name, again after every change, until the server ends the watch."""
        listed = await self.call("GET", collection)
        objects = {one["metadata"]["name"]: one for one in listed["items"]}
        yield objects
        since = f"watch=1&timeoutSeconds=60&resourceVersion={listed['metadata']['resourceVersion']}"
        joint = "&" if "?" in collection else "?"
        async with self.session.get(f"{collection}{joint}{since}") as answer:
            async for line in answer.content:
                event = _decoded(line)
                if event["type"] == "ERROR":
                    return
                one = event["object"]
                objects.pop(one["metadata"]["name"], None)
                if event["type"] != "DELETED":
                    objects[one["metadata"]["name"]] = one
                yield objects


async def until(holds: Callable[[], Awaitable[object]], what: str, limit: float, pause: float = PAUSE) -> None:
    """Poll a condition, also while a cluster is unreachable, until it holds; raise NotInTime after `limit` seconds."""
    end = time.monotonic() + limit
    while not await _answered(holds):
        if time.monotonic() > end:
            raise NotInTime(f"not within {limit:g} s: {what}")
        await asyncio.sleep(pause)


async def patiently(request: Callable[[], Awaitable[object]], limit: float) -> None:
    """Make a request, and retry it while its cluster is unreachable; its result is ignored."""

    async def came_through() -> bool:
        """Try the request once."""
        await request()
        return True

    await until(came_through, "a request came through", limit)


async def until_gone(site: Site, path: str, query: str, limit: float) -> None:
    """Return when a collection holds no object of a selection; raise NotInTime after `limit` seconds."""

    async def is_empty() -> bool:
        """Report whether the selection is empty, by listing at most one object."""
        return not await site.items(f"{path}?limit=1&{query}")

    await until(is_empty, f"{site.name}: {path} is empty", limit)


async def _answered(holds: Callable[[], Awaitable[object]]) -> bool:
    """Evaluate the condition once; it does not hold if the cluster is unreachable or returns a server error."""
    try:
        return bool(await holds())
    except AWAY:
        return False
    except Refused as error:
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        return False


def _decoded(text: bytes) -> Manifest:
    """Return a response's object; cut a text that nests too deep for the decoder, which only tests create."""
    found: Manifest
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = orjson.loads(cut(text))
    return found


def condition_of(found: Manifest, kind: str) -> Manifest:
    """Return a condition of an object by its type, {} if there is none."""
    conditions = found.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), GONE)


def is_true(found: Manifest, kind: str) -> bool:
    """Report whether an object has a condition whose status is True."""
    return bool(condition_of(found, kind).get("status") == "True")


def phase_of(found: Manifest) -> str:
    """Return a pod's phase, "" for none."""
    return str(found.get("status", {}).get("phase", ""))


def is_ready(found: Manifest) -> bool:
    """Report whether a pod runs and is ready."""
    return phase_of(found) == "Running" and is_true(found, "Ready")
