"""A server that answers as an apiserver, except in one way as a hostile one.

Without a cluster behind it, it answers all other requests as an empty, idle apiserver would. With one, it forwards all
requests that the way does not concern, so that pods really run there: the engine sees a healthy cluster with one
hostile behavior. Every request is recorded as it was received.
"""

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from bench.faults.hostile.answer_parts import CHUNKED, AnswerPart, Deaf, Reset, Stall, Wait, head, line, whole
from bench.faults.hostile.behaviors import Behavior, sort_of
from bench.faults.hostile.objects import listing
from bench.kit.faultproxy.requests import ProxiedRequest, parse_request

UID = "11111111-0000-0000-0000-000000000000"
_HEAD_AT_MOST = 1 << 20
_KEPT = 20_000
_RESET = struct.pack("ii", 1, 0)
_DROPPED = frozenset({"authorization"})


class ReceivedRequest(NamedTuple):
    """A request as received: its meaning, its path, header fields (names in lower case) and body."""

    parsed: ProxiedRequest
    sort: str
    method: str
    path: str
    fields: dict[str, str]
    body: bytes


class RealCluster(NamedTuple):
    """The cluster behind: its address, and the TLS context that authenticates every client as an administrator."""

    host: str
    port: int
    tls: ssl.SSLContext


class HostileServer:
    """The server; `way` may be replaced at any time, None: it answers as it should.

    It keeps the last requests; `applied_count` counts those that got the hostile answer, `sent` the bytes of these
    answers.
    """

    def __init__(self, real_cluster: RealCluster | None = None) -> None:
        self.behavior: Behavior | None = None
        self.port = 0
        self.requests: deque[ReceivedRequest] = deque(maxlen=_KEPT)
        self.applied_count = 0
        self.sent = 0
        self.connections = 0
        self._real_cluster = real_cluster
        self._created = count(1_000)
        self._answering: set[asyncio.StreamWriter] = set()

    def set_behavior(self, behavior: Behavior | None) -> None:
        """Answer in another way from now on; abort answers of the last way that are in progress."""
        self.behavior, self.applied_count, self.sent = behavior, 0, 0
        for writer in tuple(self._answering):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        self.connections += 1
        forwarder = Forwarder(self._real_cluster, writer) if self._real_cluster else None
        try:
            while found := await _read(reader):
                received, raw = found
                self.requests.append(received)
                behavior = self.behavior
                if behavior is not None and behavior.sort == received.sort:
                    await self._play(behavior, received, reader, writer)
                elif forwarder is not None:
                    await forwarder.forward(received, raw, reader)
                else:
                    await self._respond_as_empty_cluster(received, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            return
        finally:
            if forwarder is not None:
                await forwarder.close()
            writer.transport.abort()

    async def _play(
        self, behavior: Behavior, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.applied_count += 1
        self._answering.add(writer)
        try:
            for part in behavior.answer(received.parsed):
                await self._send(part, reader, writer)
        finally:
            self._answering.discard(writer)

    async def _send(self, part: AnswerPart, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match part:
            case bytes():
                writer.write(part)
                self.sent += len(part)
                await writer.drain()
                await asyncio.sleep(0)
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Stall():
                while await reader.read(1 << 16):
                    continue
                raise EOFError
            case Deaf():
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.Event().wait()
            case Reset():
                plain = writer.get_extra_info("socket")
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
                raise EOFError

    async def _respond_as_empty_cluster(self, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        """Answer as an empty cluster in which nothing happens."""
        if received.sort == "watch":
            writer.write(head("200 OK", *CHUNKED))
            start = parse_qs(received.parsed.query).get("resourceVersion", ["100"])[0]
            writer.write(line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": start}}))
            await writer.drain()
            await asyncio.Event().wait()
        writer.write(whole(_empty_cluster_body(received, next(self._created))))
        await writer.drain()


def _empty_cluster_body(received: ReceivedRequest, number: int) -> dict[str, Any]:
    """Return the body of an answer of an empty cluster."""
    match received.sort:
        case "version":
            return {"gitVersion": "v1.36.3"}
        case "identity":
            return {"kind": "Namespace", "metadata": {"name": "kube-system", "uid": UID, "resourceVersion": "3"}}
        case "discovery":
            return {"groups": [], "resources": []}
        case "list":
            return listing(received.parsed)
    parsed = received.parsed
    meta = {"name": parsed.name or "x", "uid": f"uid-{number}", "resourceVersion": str(number)}
    namespace_field = {"namespace": parsed.namespace} if parsed.namespace and parsed.resource != "namespaces" else {}
    return {"metadata": {**meta, **namespace_field}}


class Forwarder:
    """A connection to the cluster behind, for one client connection; its answers are forwarded as they arrive."""

    def __init__(self, real_cluster: RealCluster, near: asyncio.StreamWriter) -> None:
        self._real_cluster = real_cluster
        self._near = near
        self._far: asyncio.StreamWriter | None = None
        self._pump: asyncio.Task[None] | None = None

    async def forward(self, received: ReceivedRequest, raw: bytes, reader: asyncio.StreamReader) -> None:
        """Forward a request; after an upgrade, also all data that follows it."""
        if self._far is None or (self._pump is not None and self._pump.done()):
            far_reader, self._far = await asyncio.open_connection(*self._real_cluster[:2], ssl=self._real_cluster.tls)
            self._pump = asyncio.create_task(_copy(far_reader, self._near))
        self._far.write(raw)
        await self._far.drain()
        if "upgrade" in received.fields:
            await _copy(reader, self._far)

    async def close(self) -> None:
        """Close the connection."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        if self._far is not None:
            self._far.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _read(reader: asyncio.StreamReader) -> tuple[ReceivedRequest, bytes] | None:
    """Read a request, and return it with the bytes to forward, which lack the credential for the hostile server."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    pairs = [(name.lower(), value.strip()) for name, _, value in (one.partition(":") for one in lines)]
    fields = dict(pairs)
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    found = parse_request("", method, target, body, agent=fields.get("user-agent", ""))
    path = urlsplit(target).path
    kept = "".join(f"{name}: {value}\r\n" for name, value in pairs if name not in _DROPPED)
    return ReceivedRequest(
        found, sort_of(path, found), method, path, fields, body
    ), f"{first}\r\n{kept}\r\n".encode() + body


@asynccontextmanager
async def serving(front: HostileServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[HostileServer]:
    """Run a front on a free loopback port, which is then its `port`."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection in a task of its own."""
        task = asyncio.create_task(front.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", front.port, ssl=tls, limit=_HEAD_AT_MOST)
    front.port = server.sockets[0].getsockname()[1]
    try:
        yield front
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
