"""A scripted apiserver: real sockets, real HTTP, and every misbehavior on demand.

Requests are sorted (list, check, watch, identity, version, write); for each sort, a test sets the answers in order, and
other requests are answered as a healthy, quiet cluster would. A test waits until the effects of its acts are observed,
never for a fixed time.
"""

import asyncio
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson

from bench.kit.faultproxy.requests import parse_path
from tensile.kube.credentials import Access
from tensile.kube.store import Cache
from tensile.objects import Manifest

WAIT = 10.0
UID = "11111111-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class RecordedRequest:
    """One request as it was received."""

    sort: str
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Decode the body."""
        return orjson.loads(self.body)


@dataclass(frozen=True)
class HttpResponse:
    """A complete answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DropConnection:
    """Break the connection off, after so many bytes of an answer's beginning."""

    first: bytes = b""


@dataclass(frozen=True)
class Hang:
    """Never answer."""


class WatchStream:
    """An open watch, which sends immediately what the test adds."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[bytes | DropConnection | None] = asyncio.Queue()

    def send(self, *events: Manifest) -> "WatchStream":
        """Send watch events, one line each."""
        return self.raw(b"".join(orjson.dumps(event) + b"\n" for event in events))

    def raw(self, part: bytes) -> "WatchStream":
        """Send bytes unchanged, as one chunk."""
        self._parts.put_nowait(part)
        return self

    def end(self) -> "WatchStream":
        """End the watch as an apiserver does after its timeout."""
        self._parts.put_nowait(None)
        return self

    def drop(self) -> "WatchStream":
        """Break the connection off in the middle of a chunk."""
        self._parts.put_nowait(DropConnection(b"ff\r\nhalf"))
        return self

    async def parts(self) -> AsyncIterator[bytes | DropConnection | None]:
        """Yield the parts to send."""
        while True:
            yield await self._parts.get()


ServerAction = HttpResponse | DropConnection | Hang | WatchStream


class ScriptedApiserver:
    """The server; `requests` holds every request so far."""

    def __init__(self, uid: str = UID) -> None:
        self.uid = uid
        self.requests: list[RecordedRequest] = []
        self.port = 0
        self.connections = 0
        self._queued: defaultdict[tuple[str, str | None], deque[ServerAction]] = defaultdict(deque)
        self._news = asyncio.Condition()
        self._version = 10

    def queue(self, sort: str, *plays: ServerAction, selector: str | None = None) -> None:
        """Prepare the next answers to requests of a sort, or only to those with this label selector."""
        self._queued[sort, selector] += plays

    def clear_queue(self, sort: str) -> None:
        """Answer requests of a sort as a healthy cluster would from now on."""
        self._queued[sort, None].clear()

    def requests_of(self, sort: str) -> list[RecordedRequest]:
        """Return the requests of a sort so far."""
        return [request for request in self.requests if request.sort == sort]

    async def wait_for_request(self, sort: str, count: int = 1) -> RecordedRequest:
        """Wait for the `count`th request of a sort and return it."""
        async with asyncio.timeout(WAIT), self._news:
            await self._news.wait_for(lambda: len(self.requests_of(sort)) >= count)
        return self.requests_of(sort)[count - 1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it breaks."""
        self.connections += 1
        try:
            while request := await _read(reader):
                self.requests.append(request)
                async with self._news:
                    self._news.notify_all()
                if not await self._answer(request, writer):
                    return
        except (ConnectionError, ssl.SSLError):
            return
        finally:
            writer.transport.abort()

    async def _answer(self, request: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        """Send the next answer; report whether the connection stays open."""
        plays = self._queued[request.sort, request.query.get("labelSelector")] or self._queued[request.sort, None]
        play = plays.popleft() if plays else self._ordinary(request)
        match play:
            case HttpResponse():
                writer.write(_whole(play))
                await writer.drain()
                return True
            case DropConnection(first):
                writer.write(first)
                await writer.drain()
                return False
            case WatchStream():
                return await _pour(play, writer)
            case Hang():
                await asyncio.Event().wait()
        return False

    def _ordinary(self, request: RecordedRequest) -> ServerAction:
        """Answer as a healthy, quiet cluster would."""
        match request.sort:
            case "identity":
                return answer({"metadata": {"name": "kube-system", "uid": self.uid, "resourceVersion": "3"}})
            case "version":
                return answer({"gitVersion": "v1.36.3"})
            case "watch":
                return WatchStream()
            case "list" | "check" if not parse_path(request.path).name:
                return listing(self._version)
        return answer({"metadata": {**_named(request), "uid": "new", "resourceVersion": str(self._version + 1)}})


def _named(request: RecordedRequest) -> dict[str, str]:
    """Return name and namespace of the object of a request, as far as the request contains them."""
    place = parse_path(request.path)
    sent = orjson.loads(request.body) if request.method == "POST" and not place.name else {}
    name = place.name or (sent.get("metadata") or {}).get("name", "")
    return {"name": name, **({"namespace": place.namespace} if place.namespace else {})}


async def _read(reader: asyncio.StreamReader) -> RecordedRequest | None:
    """Read a request, None at the connection's end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    split = urlsplit(target)
    query = dict(parse_qsl(split.query))
    return RecordedRequest(_sort(method, split.path, query), method, split.path, query, headers, body)


def _sort(method: str, path: str, query: Mapping[str, str]) -> str:
    """Return the sort of a request."""
    if method != "GET":
        return "write"
    if path.endswith("/namespaces/kube-system"):
        return "identity"
    if path.endswith("/version"):
        return "version"
    if "watch" in query:
        return "watch"
    return "check" if query.get("fieldSelector") == "metadata.name=-" else "list"


def _whole(answer: HttpResponse) -> bytes:
    """Return the bytes of an answer."""
    headers = {"Content-Type": "application/json", "Content-Length": str(len(answer.body)), **answer.headers}
    lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    return f"HTTP/1.1 {answer.status} Scripted\r\n{lines}\r\n".encode() + answer.body


async def _pour(stream: WatchStream, writer: asyncio.StreamWriter) -> bool:
    """Send a stream's parts as chunks; report whether the connection stays open."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    async for part in stream.parts():
        match part:
            case None:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            case DropConnection(first):
                writer.write(first)
                await writer.drain()
                return False
            case bytes():
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                await writer.drain()
    return False


@asynccontextmanager
async def running(apiserver: ScriptedApiserver, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedApiserver]:
    """Run an apiserver on a free port of loopback."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection in a separate task."""
        task = asyncio.create_task(apiserver.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", apiserver.port, ssl=tls, limit=1 << 24)
    apiserver.port = server.sockets[0].getsockname()[1]
    try:
        yield apiserver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def access_to(
    port: int,
    headers: Mapping[str, str] | None = None,
    renew: Callable[[], Awaitable[Access]] | None = None,
) -> Access:
    """Make the access to an apiserver over plain HTTP, which no kubeconfig could configure."""

    async def again() -> Access:
        """Make the same access again."""
        return access_to(port, headers, renew)

    return Access(
        origin="the test",
        url=f"http://127.0.0.1:{port}",
        address="127.0.0.1",
        port=port,
        prefix="",
        server_name="127.0.0.1",
        tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # unused, and without the authorities that take long to load
        headers=headers or {},
        renew=renew or again,
    )


def answer(body: Any, status: int = 200, **headers: str) -> HttpResponse:
    """Make a JSON answer; `Retry_After` in `headers` is that header."""
    return HttpResponse(status, orjson.dumps(body), {key.replace("_", "-"): value for key, value in headers.items()})


def refusal(status: int, reason: str, *causes: tuple[str, str], seconds: int = 0, **headers: str) -> HttpResponse:
    """Make a Status; `causes` are pairs of reason and field, `seconds` its retryAfterSeconds."""
    return answer(status_body(status, reason, *causes, seconds=seconds), status, **headers)


def status_body(status: int, reason: str, *causes: tuple[str, str], seconds: int = 0) -> Manifest:
    """Make a Status as the API sends it."""
    cause_details = [{"reason": cause, "message": "words", "field": where} for cause, where in causes]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f"words about {reason}",
        "reason": reason,
        "details": {"causes": cause_details, "retryAfterSeconds": seconds},
        "code": status,
    }


def make_pod(name: str, version: int, uid: str = "", **more: Any) -> Manifest:
    """Make a pod in namespace `default` with the label x=y; its UID is derived from its name unless given.

    Two versions of one pod have different content: an annotation contains the version too.
    """
    meta = {"namespace": "default", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**meta, "labels": {"x": "y"}, "annotations": {"version": str(version)}}, **more}


def listing(version: int, *items: Manifest, more: str = "") -> HttpResponse:
    """Make the answer to a LIST; `more` is the token for the next page."""
    meta = {"resourceVersion": str(version), "continue": more}
    return answer({"metadata": meta, "items": list(items)})


def event(sort: str, manifest: Manifest) -> Manifest:
    """Make a watch event."""
    return {"type": sort, "object": manifest}


def bookmark(version: int) -> Manifest:
    """Make a bookmark."""
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


class ChangeSignal:
    """A callback that records changes, and lets a test wait for them."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self, *_: object) -> None:
        """Record that something changed."""
        self._changed.set()

    def fixed_random(self) -> float:
        """Return 0.5 as the random number, and record a change, because the caller is about to wait or to watch."""
        self.notify()
        return 0.5

    async def sleep(self, seconds: float) -> None:
        """Sleep for the caller, and record a change, because the caller has just done something."""
        self.notify()
        await asyncio.sleep(seconds)

    async def wait_until(self, holds: Callable[[], object], limit: float = WAIT) -> None:
        """Wait until a condition holds, checked after each recorded change, for at most `limit` seconds."""
        async with asyncio.timeout(limit):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


async def wait_for_cache(cache: Cache, holds: Callable[[], object], limit: float = WAIT) -> None:
    """Wait until a condition holds that a change of the cache makes true."""
    news = ChangeSignal()
    cache.subscribe(news.notify)
    await news.wait_until(holds, limit)
