"""One cluster of a sandbox as a bench sees it: raw JSON by an administrator's own connection.

Nothing of the engine's access is used, so that a defect in it cannot hide itself.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tensile.sandbox.sandbox import ClusterProcesses

Manifest = dict[str, Any]
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
PODS = "/api/v1/namespaces/{}/pods"
NODES = "/api/v1/nodes"
MERGE = "application/merge-patch+json"
AWAY = (aiohttp.ClientError, ConnectionError, TimeoutError)
PAUSE = 0.1


class Refused(Exception):
    """An apiserver said no; `status` is HTTP's."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class NotInTime(Exception):
    """What was waited for did not come."""


class Site:
    """One cluster; used with `async with`. Paths are the API's. So many requests may be under way `at_once`."""

    def __init__(self, cluster: "ClusterProcesses", at_once: int = 100) -> None:
        self.name = cluster.name
        self.audit_log = cluster.audit_log
        pki = cluster.audit_log.parent / "pki"
        tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self.session = aiohttp.ClientSession(
            cluster.server,
            connector=aiohttp.TCPConnector(ssl=tls, limit=at_once, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            headers={"User-Agent": "bench"},
            read_bufsize=1 << 20,
        )

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        await self.session.close()

    async def call(
        self, method: str, path: str, body: object = None, media: str = "application/json", user: str = ""
    ) -> Manifest:
        """Make one request, as another `user` if one is named; raises Refused for a status of 400 or more."""
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": media, **({"Impersonate-User": user} if user else {})}
        async with self.session.request(method, path, data=data, headers=headers) as answer:
            told: Manifest = orjson.loads(await answer.read())
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise Refused(answer.status, f"{self.name}: {method} {path}: {told.get('message')}")
            return told

    async def items(self, path: str) -> list[Manifest]:
        """List a collection."""
        found: list[Manifest] = (await self.call("GET", path))["items"]
        return found

    async def remove(self, path: str) -> None:
        """Delete an object, or nothing where there is none."""
        try:
            await self.call("DELETE", path)
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    async def version(self) -> str:
        """Return the cluster's version such as "v1.36.3"."""
        return str((await self.call("GET", "/version"))["gitVersion"])

    async def watch(self, path: str, query: str = "") -> AsyncIterator[tuple[str, Manifest]]:
        """Yield the objects of a collection as ADDED and every event after them, through every end of the watch."""
        while True:
            try:
                async for event in self.watch_once(path, query):
                    yield event
            except (Refused, *AWAY):
                await asyncio.sleep(PAUSE)

    async def watch_once(self, path: str, query: str = "") -> AsyncIterator[tuple[str, Manifest]]:
        """Yield the events of one watch until that ends, or cannot go on."""
        async with self.session.get(f"{path}?watch=1&timeoutSeconds=300&{query}") as stream:
            while line := await stream.content.readline():
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]


async def until(holds: Callable[[], Awaitable[object]], what: str, limit: float, pause: float = PAUSE) -> None:
    """Ask again and again, also while a cluster is away, until it holds; raises NotInTime after `limit` seconds."""
    end = time.monotonic() + limit
    while not await _answered(holds):
        if time.monotonic() > end:
            raise NotInTime(f"not within {limit:g} s: {what}")
        await asyncio.sleep(pause)


async def patiently(request: Callable[[], Awaitable[object]], limit: float) -> None:
    """Make a request, again and again while its cluster is away; what it returns is left alone."""

    async def came_through() -> bool:
        """Try once."""
        await request()
        return True

    await until(came_through, "a request came through", limit)


async def until_gone(site: Site, path: str, query: str, limit: float) -> None:
    """Return when a collection holds no object of a selection; raises NotInTime after `limit` seconds."""

    async def is_empty() -> bool:
        """Ask for one object of it."""
        return not await site.items(f"{path}?limit=1&{query}")

    await until(is_empty, f"{site.name}: {path} is empty", limit)


async def _answered(holds: Callable[[], Awaitable[object]]) -> bool:
    """Ask once; a cluster that is away, or in trouble, has not answered."""
    try:
        return bool(await holds())
    except AWAY:
        return False
    except Refused as error:
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        return False
