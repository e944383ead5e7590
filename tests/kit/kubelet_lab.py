"""A harness for the kubelet API: a real server on loopback between scripted upper and lower clusters."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import orjson
from kubelet_pki import Identity, Pki

from bench.kit.spareports import spare_port
from tensile.kube.cluster import Endpoint
from tensile.kubelet.api.auth import Authenticator, Authorizer
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate, ServingFiles
from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.requests import PodLister, PodTarget
from tensile.kubelet.api.server import KubeletServer, NodeEndpoint
from tensile.kubelet.api.service import RequestAuth
from tensile.kubelet.stats.collector import StatsCollector
from tensile.kubelet.stats.usage import RunningPod
from tensile.objects import TOKEN_REVIEW, UPPER, Manifest, Ref

NODE = "virtual-a"
PATIENCE = 20.0
CONTAINERS = frozenset({"main"})
LOWER_TOKEN = "the-lower-credential"
if TYPE_CHECKING:
    from tensile.errors import ClusterError

UNPAUSED = 1 << 30
"""A stream buffer limit that is never reached: TLS on uvloop loses data before an EOF while it is paused."""

QUICK = ConnectionLimits(
    head=16 * 1024, unknown=16 * 1024, asking=2.0, handshake=2.0, answering=2.0, leaving=0.3, waiting=4
)


class RecordingLogger:
    """A logger that records its entries."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        """Record an entry."""
        self.entries.append((event, fields))

    warning = info


class FakeUpperCluster:
    """The upper cluster as far as reviews need it: it has some tokens and rights, records each review, or fails."""

    name = UPPER

    def __init__(self) -> None:
        self.tokens: dict[str, Manifest] = {}
        self.rights: set[tuple[str, str, str, str]] = set()
        self.reviews_received: list[Manifest] = []
        self.failing: ClusterError | None = None
        self.answer: bytes | None = None

    def permit(self, user: str, verb: str, subresource: str, node: str = NODE) -> None:
        """Grant a user a verb on a subresource of a node."""
        self.rights.add((user, verb, subresource, node))

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Answer a review."""
        self.reviews_received.append(body)
        if self.failing is not None:
            raise self.failing
        answer = self._token(body["spec"]) if ref.kind == TOKEN_REVIEW else self._access(body["spec"])
        return self.answer or orjson.dumps({**body, "status": answer})

    def _token(self, spec: Manifest) -> Manifest:
        user = self.tokens.get(spec["token"])
        return {"authenticated": True, "user": user} if user else {"error": "unknown"}

    def _access(self, spec: Manifest) -> Manifest:
        wanted = spec["resourceAttributes"]
        key = (spec["user"], wanted["verb"], wanted["subresource"], wanted["name"])
        return {"allowed": key in self.rights}

    def reviews(self, kind: str) -> list[Manifest]:
        """Return the specs of the reviews of a kind."""
        return [body["spec"] for body in self.reviews_received if body["kind"] == kind]

    def _never(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the kubelet API asks for reviews only")

    read = list = watch = patch = delete = version = endpoint = _never


class FakeLowerCluster:
    """A lower cluster as far as streams need it: it returns the endpoint to connect to."""

    def __init__(self, name: str, port: int, tls: ssl.SSLContext) -> None:
        self.name = name
        self.server_name = "localhost"
        self.credential = {"Authorization": f"Bearer {LOWER_TOKEN}"}
        self._port = port
        self._tls = tls
        self.failing: ClusterError | None = None

    def endpoint(self) -> Endpoint:
        """Return the endpoint, or raise the configured error."""
        if self.failing is not None:
            raise self.failing
        return Endpoint("127.0.0.1", self._port, self._tls, self.server_name, "/front", self.credential)


class HttpHead(NamedTuple):
    """The first line of a request or an answer, and its header fields (names in lower case)."""

    first: str
    fields: list[tuple[str, str]]

    def value(self, name: str) -> str:
        """Return the values of a header, joined."""
        return ", ".join(value for key, value in self.fields if key == name)

    @property
    def status(self) -> int:
        """The status code of an answer."""
        return int(self.first.split()[1])


class HttpStream(NamedTuple):
    """Both directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def head(self) -> HttpHead:
        """Read the head of a message."""
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = raw.removesuffix("\r\n\r\n").split("\r\n")
        return HttpHead(first, [(k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in lines)])

    async def send(self, data: bytes) -> None:
        """Write data and drain the writer."""
        self.writer.write(data)
        await self.writer.drain()

    def stop_reading(self) -> None:
        """Stop reading, with a small kernel buffer, because buffers grow to 32 MiB on a busy machine."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self.writer.transport.pause_reading()

    async def read_to_end(self) -> bytes:
        """Read until the peer closes or cuts the connection."""
        whole = bytearray()
        with suppress(OSError):
            while piece := await self.reader.read(65536):
                whole += piece
        return bytes(whole)

    async def close(self) -> None:
        """Close this end."""
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


ConnectionScript = Callable[[HttpHead, HttpStream], Awaitable[None]]


def switching(protocol: str, *fields: str) -> bytes:
    """Return a 101 response."""
    lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", f"Upgrade: {protocol}", *fields]
    return "\r\n".join((*lines, "", "")).encode()


def answering(status: str, body: bytes = b"", *fields: str) -> ConnectionScript:
    """Return a script that answers once, with a body of known length."""

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""]
        await stream.send("\r\n".join(lines).encode() + body)

    return script


class ScriptedLowerServer:
    """A lower apiserver that runs its script once for every connection."""

    def __init__(self) -> None:
        self.heads: list[HttpHead] = []
        self.script: ConnectionScript = answering("500 Not Scripted")
        self.ended = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, tls: ssl.SSLContext) -> int:
        """Listen on a free port of loopback and return the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls, limit=UNPAUSED)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and cancel the scripts that run."""
        assert self._server
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(task := asyncio.current_task())
        task.add_done_callback(self._tasks.discard)
        stream = HttpStream(reader, writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                self.heads.append(await stream.head())
                await self.script(self.heads[-1], stream)
        finally:
            await stream.close()
            self.ended.set()


class NamedPods:
    """The pods of a node: which lower pod belongs to an upper pod."""

    def __init__(self, targets: dict[tuple[str, str], PodTarget] | None = None) -> None:
        self.targets = targets or {}
        self.running_pods: list[RunningPod] = []

    def locate(self, namespace: str, pod: str) -> PodTarget | None:
        """Return the lower pod of an upper pod, None if it is not known."""
        return self.targets.get((namespace, pod))

    def listed(self) -> bytes:
        """Return a list of their names."""
        return orjson.dumps({"kind": "PodList", "apiVersion": "v1", "items": sorted(p for _, p in self.targets)})

    def running(self) -> list[RunningPod]:
        """Return the running pods that a test has set."""
        return self.running_pods


class KubeletResponse(NamedTuple):
    """A whole answer of the kubelet API."""

    head: HttpHead
    body: bytes

    @property
    def status(self) -> int:
        """Its status code."""
        return self.head.status


class KubeletApiHarness:
    """A served virtual node with the upper pod shop/web, whose lower pod is mapped/web-0."""

    def __init__(self, pki: Pki, limits: ConnectionLimits = QUICK, files: ServingFiles | None = None) -> None:
        self.pki = pki
        self._files = files or pki.serving_files
        self.log = RecordingLogger()
        self.upper = FakeUpperCluster()
        self.upper.permit("kube-apiserver", "create", "proxy")
        self.upper.permit("kube-apiserver", "get", "proxy")
        self.lower = ScriptedLowerServer()
        self.pods = NamedPods()
        self.time = 1000.0
        self.client_authority = pki.clients.pem
        self.authority_readable = asyncio.Event()
        self.authority_readable.set()
        self._limits = limits

    async def _authority(self) -> str:
        await self.authority_readable.wait()
        return self.client_authority

    async def __aenter__(self) -> Self:
        port = await self.lower.start(self.pki.server_context())
        self.cluster = FakeLowerCluster("lower-a", port, self.pki.client_context(None))
        self.pods.targets["shop", "web"] = PodTarget(self.cluster, "mapped", "web-0", CONTAINERS)
        gate = RequestAuth(
            ServingCertificate(self.log, "127.0.0.1", self._files),
            ClientCA(self.log, source=self._authority, clock=lambda: self.time),
            Authenticator(self.upper, self.log, clock=lambda: self.time),
            Authorizer(self.upper, self.log, clock=lambda: self.time),
        )
        self.server = KubeletServer(gate, self.log, self._limits)
        self.endpoints: dict[str, NodeEndpoint] = {}
        await self.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()
        await self.lower.close()

    async def serve(
        self,
        node: str = NODE,
        *,
        port: int | None = None,
        pods: PodLister | None = None,
        meter: StatsCollector | None = None,
    ) -> None:
        """Serve a node from now on, and the others as before; raise the TensileError that prevents it.

        Without a `port`, the first node has any free port and another one a spare port; each keeps the port that it
        has.
        """
        known = self.endpoints.get(node)
        found = known.address[1] if known else 0 if node == NODE else spare_port()
        seat = NodeEndpoint(("127.0.0.1", found if port is None else port), self.pods if pods is None else pods, meter)
        problems = await self.server.serve({**self.endpoints, node: seat})
        if node in problems:
            raise problems[node]
        self.endpoints[node] = seat

    async def connect(self, identity: Identity | None, node: str = NODE) -> HttpStream:
        """Connect to a node with an identity, or with none."""
        tls = self.pki.client_context(identity)
        port = self.server.port(node)
        return HttpStream(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=UNPAUSED))

    async def ask(self, identity: Identity | None, first: str, *fields: str, node: str = NODE) -> KubeletResponse:
        """Make one request, such as "GET /healthz", and read the answer to its end."""
        stream = await self.connect(identity, node)
        try:
            await stream.send(request(first, *fields))
            async with asyncio.timeout(PATIENCE):
                return KubeletResponse(await stream.head(), await stream.read_to_end())
        finally:
            await stream.close()

    async def upgrade(self, identity: Identity | None, first: str, *fields: str) -> tuple[HttpHead, HttpStream]:
        """Request an upgraded stream; return the answer's head, and the connection."""
        stream = await self.connect(identity)
        await stream.send(request(first, "Connection: Upgrade", *fields))
        async with asyncio.timeout(PATIENCE):
            return await stream.head(), stream


class SlowCaller:
    """A caller that leaves bytes in its kernel buffer until it reads, which asyncio's streams do not do."""

    def __init__(self, kubelet_api: KubeletApiHarness, identity: Identity) -> None:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(("127.0.0.1", kubelet_api.server.port(NODE)))
        plain.settimeout(PATIENCE)
        tls = kubelet_api.pki.client_context(identity)
        self._socket = tls.wrap_socket(plain, server_hostname="localhost", do_handshake_on_connect=False)

    def ask(self, first: str, *fields: str) -> bytes:
        """Do the TLS handshake, make a request and read the first bytes of the answer."""
        self._socket.do_handshake()
        self._socket.sendall(request(first, *fields))
        return self._socket.recv(1024)

    def read(self) -> bytes:
        """Read to the end and close."""
        whole = bytearray()
        with self._socket:
            while piece := self._socket.recv(65536):
                whole += piece
        return bytes(whole)

    def leave(self) -> None:
        """Close without reading the data that arrived."""
        self._socket.close()


def request(first: str, *fields: str) -> bytes:
    """Return a request's bytes."""
    return "\r\n".join((f"{first} HTTP/1.1", "Host: node", *fields, "", "")).encode()


def unchunked(body: bytes) -> bytes:
    """Return the content of a chunked body; raise ValueError if its end is missing."""
    content, rest = bytearray(), BytesIO(body)
    while size := int(rest.readline(), 16):
        content += rest.read(size)
        rest.readline()
    return bytes(content)


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds that the event loop brings about; fail if it does not."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


def count_descriptors() -> int:
    """Count the open file descriptors of this process, without the spare one that uvloop keeps for itself."""
    targets = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            targets.append(each.readlink())
    return len([target for target in targets if target != Path(os.devnull)])


def other_tasks() -> set[asyncio.Task[Any]]:
    """Return all tasks except the current one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


@asynccontextmanager
async def leak_watch() -> AsyncIterator[None]:
    """Fail if there are more tasks or file descriptors afterwards than before."""
    tasks, count = other_tasks(), count_descriptors()
    yield
    await wait_until(lambda: other_tasks() <= tasks and count_descriptors() <= count)


EXEC = "POST /exec/shop/web/main?output=1&input=1&command=cat"


async def echo(_head: HttpHead, stream: HttpStream) -> None:
    """Accept an upgrade and send back every byte that arrives."""
    await stream.send(switching("SPDY/3.1"))
    while data := await stream.reader.read(65536):
        await stream.send(data)


async def open_exec_stream(kubelet_api: KubeletApiHarness) -> HttpStream:
    """Open an exec that echoes."""
    kubelet_api.lower.script = echo
    head, stream = await kubelet_api.upgrade(kubelet_api.pki.apiserver, EXEC, "Upgrade: SPDY/3.1")
    assert head.status == 101
    return stream


async def is_alive(stream: HttpStream) -> bool:
    """Report whether a stream still carries bytes both ways."""
    await stream.send(b"ping")
    async with asyncio.timeout(PATIENCE):
        return await stream.reader.readexactly(4) == b"ping"
