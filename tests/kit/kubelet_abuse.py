"""Campaigns against the kubelet API: torn streams, lowers that refuse upgrades, malformed requests, rotations.

Each is one function with a harness, a seed and a count, and returns figures; the tests run short campaigns, the
benchmark long ones.
"""

import asyncio
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from kubelet_lab import (
    NODE,
    PATIENCE,
    HttpHead,
    HttpStream,
    KubeletApiHarness,
    count_descriptors,
    other_tasks,
    request,
    switching,
    wait_until,
)
from kubelet_pki import SERVER, Identity, write

ABREAST = 16
ASKING = 3
LOGS = "GET /containerLogs/shop/web/main?follow=true"
EXEC = "/exec/shop/web/main?output=1&input=1&command=sh"
SPDY = (f"POST {EXEC}", "Connection: Upgrade", "Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: v4.channel.k8s.io")
SOCKET = (f"GET {EXEC}", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: a2V5")
FAILED = "a connection to the kubelet API failed"
EARLY = b"what the caller says before anybody agreed"
POISON = b"what a lower says that did not agree"


WAYS = ("cut at once", "cut after the answer", "cut while reading", "close while sending", "close after the answer")


class Leftovers(NamedTuple):
    """What is left over when a campaign is done: tasks and file descriptors more than before."""

    tasks: int
    descriptors: int


async def run_concurrently(count: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Run something so many times, several at once; only those that run are tasks, because memory is measured."""
    numbers = iter(range(count))

    async def some() -> None:
        """Run the numbers that have not been started yet."""
        for number in numbers:
            async with asyncio.timeout(PATIENCE):
                await one(number)

    await asyncio.gather(*(some() for _ in range(ABREAST)))


async def left_over(before: tuple[set[asyncio.Task[Any]], int]) -> Leftovers:
    """Wait until nothing is left, or until a timeout; return what is left."""
    tasks, count = before
    with suppress(TimeoutError):
        await wait_until(lambda: other_tasks() <= tasks and count_descriptors() <= count)
    return Leftovers(len(other_tasks() - tasks), max(count_descriptors() - count, 0))


def reset_connection(stream: HttpStream) -> None:
    """Reset a connection, without an orderly close of TLS or TCP."""
    plain = stream.writer.get_extra_info("socket")
    with suppress(OSError):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.writer.transport.abort()


class StreamTearingScript:
    """A lower that ends its streams at a random moment and in a random way."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def __call__(self, head: HttpHead, stream: HttpStream) -> None:
        """Serve one connection in a random way."""
        part = self._chance.choice((self._mute, self._rude, self._short, self._flooding, self._patient, self._patient))
        await part(head, stream)

    async def _mute(self, _head: HttpHead, stream: HttpStream) -> None:
        await stream.read_to_end()

    async def _rude(self, _head: HttpHead, stream: HttpStream) -> None:
        reset_connection(stream)

    async def _short(self, head: HttpHead, stream: HttpStream) -> None:
        await stream.send(_agreed(head) + b"the first and the last")

    async def _flooding(self, head: HttpHead, stream: HttpStream) -> None:
        await stream.send(_agreed(head))
        for _ in range(self._chance.randrange(1, 64)):
            await stream.send(b"flood" * 4096)
        reset_connection(stream)

    async def _patient(self, head: HttpHead, stream: HttpStream) -> None:
        await stream.send(_agreed(head) + b"now you")
        await stream.read_to_end()


def _agreed(head: HttpHead) -> bytes:
    """Return the answer to a log request or to an upgrade."""
    upgrade = head.value("upgrade")
    return switching(upgrade) if upgrade else b"HTTP/1.1 200 OK\r\n\r\n"


async def torn(kubelet_api: KubeletApiHarness, seed: int, count: int) -> dict[str, Any]:
    """Tear streams at any moment, on either side; return how they ended and what is left of them."""
    chance = random.Random(seed)
    before = other_tasks(), count_descriptors()
    kubelet_api.lower.script = StreamTearingScript(random.Random(seed + 1))
    ways: Counter[str] = Counter()
    stuck: list[str] = []

    async def one(_number: int) -> None:
        way = chance.choice(WAYS)
        request_fields = chance.choice((SPDY, SOCKET, (LOGS,)))
        try:
            async with asyncio.timeout(PATIENCE / 2):
                await _tear(kubelet_api, way, request_fields)
        except TimeoutError:
            stuck.append(f"{way}: {request_fields[0]}")
        ways[way] += 1

    await run_concurrently(count, one)
    left = await left_over(before)
    return {
        "streams": count,
        "ways": dict(ways),
        "stuck": stuck,
        "open": kubelet_api.server.streams()[NODE],
        **left._asdict(),
    }


async def _tear(kubelet_api: KubeletApiHarness, way: str, request_fields: tuple[str, ...]) -> None:
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    with suppress(OSError, asyncio.IncompleteReadError):
        await stream.send(request(*request_fields) + EARLY)
        if way != "cut at once":
            await stream.head()
        if way == "cut while reading":
            await stream.reader.read(4096)
        if way == "close while sending":
            await stream.send(b"up" * 100_000)
    if way.startswith("cut"):
        reset_connection(stream)
    await stream.close()


REFUSING = (
    *(f"HTTP/1.1 {status} No" for status in (200, 201, 204, 206, 301, 302, 303, 307, 308, 400, 401, 403, 404, 409)),
    *(f"HTTP/1.1 {status} No" for status in (413, 418, 426, 429, 500, 501, 502, 503, 504, 599, 600, 999)),
    "HTTP/2 101 New",
    "SSH-2.0-OpenSSH_9.9",
    "HTTP/1.1 1010 Long",
    "HTTP/1.1 102 Wait",
    "",
)


REFUSING_FIELDS = (
    "",
    "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n",
    "Content-Length: 9\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Location: https://127.0.0.1:1/\r\n",
)


class UpgradeRefusingScript:
    """A lower that answers anything but 101, and records every byte that arrives after the request."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.answers = 0
        self.reached = b""

    async def __call__(self, _head: HttpHead, stream: HttpStream) -> None:
        """Send an answer and more data, as if the stream were open, and read."""
        first = self._chance.choice(REFUSING)
        fields = self._chance.choice(REFUSING_FIELDS)
        self.answers += 1
        await stream.send(f"{first}\r\n{fields}\r\n".encode() + POISON)
        if self._chance.random() < 0.5:
            reset_connection(stream)
        else:
            self.reached += await stream.read_to_end()


async def refused(kubelet_api: KubeletApiHarness, seed: int, count: int) -> dict[str, Any]:
    """Refuse upgrades in many ways; return the bytes that reached lowers, and the statuses that callers received."""
    chance = random.Random(seed)
    before = other_tasks(), count_descriptors()
    lower = kubelet_api.lower.script = UpgradeRefusingScript(random.Random(seed + 1))
    statuses: Counter[int] = Counter()

    async def one(_number: int) -> None:
        stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
        await stream.send(request(*chance.choice((SPDY, SOCKET))) + EARLY)
        statuses[(await stream.head()).status] += 1
        await stream.read_to_end()
        await stream.close()

    await run_concurrently(count, one)
    left = await left_over(before)
    return {
        "answers": lower.answers,
        "bytes_down": len(lower.reached),
        "switched": statuses[101],
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
        **left._asdict(),
    }


PATHS = (
    "/containerLogs/shop/web/main",
    "/exec/shop/web/main?output=1&command=id",
    "/attach/shop/web/main?output=1",
    "/portForward/shop/web?port=80",
    "/run/shop/web/main?cmd=id",
    "/pods",
    "/runningpods/",
    "/healthz",
    "/stats/summary",
    "/metrics/resource",
    "/configz",
    "/logs/../../etc/passwd",
    "*",
    "https://elsewhere.example/pods",
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "get", "PRI", "G\x00T")
QUERIES = (
    "",
    "?follow=true",
    "?tailLines=-1",
    "?sinceTime=now",
    "?tty=1&input=1",
    "?command=%ff%00",
    "?%zz=%",
    "?port=99999",
)
FIELDS = (
    "Connection: Upgrade",
    "Connection: close, Upgrade, keep-alive",
    "Upgrade: websocket",
    "Upgrade: SPDY/3.1",
    "Upgrade: h2c, websocket",
    "Content-Length: 5",
    "Content-Length: 5, 6",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip",
    "Expect: 100-continue",
    "Authorization: Bearer good",
    "Authorization: Bearer " + "x" * 5000,
    "Authorization: Basic YTpi",
    "Authorization:",
    "Host: another",
    "Cookie: a=b",
    "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.eA",
    "X-Forwarded-For: 127.0.0.1",
    "X-Long: " + "y" * 70_000,
    "No colon at all",
    " leading: blank",
    "Nul\x00: x",
    "Umlaut: \xe4\xf6",
)


def fuzzed_request(chance: random.Random) -> bytes:
    """Return the bytes of one request: mostly nearly right, sometimes noise."""
    if chance.random() < 0.05:
        return chance.randbytes(chance.randrange(0, 2000))
    path = chance.choice(PATHS) + chance.choice(QUERIES)
    fields = chance.sample(FIELDS, chance.randrange(0, 5))
    whole = request(f"{chance.choice(METHODS)} {path}", *fields)
    whole += chance.choice((b"", b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", whole))
    return _spoiled(whole, chance)


def _spoiled(whole: bytes, chance: random.Random) -> bytes:
    """Leave bytes unchanged, or change, drop or duplicate some."""
    spoiled = bytearray(whole)
    for _ in range(chance.choice((0, 0, 0, 1, 2, 8))):
        place = chance.randrange(len(spoiled))
        match chance.randrange(3):
            case 0:
                spoiled[place] = chance.randrange(256)
            case 1:
                del spoiled[place : place + chance.randrange(1, 20)]
            case _:
                spoiled[place:place] = spoiled[place : place + chance.randrange(1, 50)]
        if not spoiled:
            return b"\r\n\r\n"
    return bytes(spoiled)


async def fuzz(kubelet_api: KubeletApiHarness, seed: int, count: int, settling: int) -> dict[str, Any]:
    """Send malformed requests with and without rights or a certificate; return answers, errors and memory use.

    The memory is measured once `settling` requests have been made, and at the end.
    """
    chance = random.Random(seed)
    before = other_tasks(), count_descriptors()
    kubelet_api.lower.script = _not_here
    people = (kubelet_api.pki.apiserver, kubelet_api.pki.apiserver, kubelet_api.pki.powerless, None)
    statuses: Counter[str] = Counter()
    unforeseen: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _loop, context: unforeseen.append(str(context.get("exception") or context["message"]))
    )

    async def one(_number: int) -> None:
        statuses[await _status_for(kubelet_api, chance.choice(people), fuzzed_request(chance))] += 1
        unforeseen.extend(str(fields) for event, fields in kubelet_api.log.entries if event == FAILED)
        for kept in (kubelet_api.log.entries, kubelet_api.upper.reviews_received, kubelet_api.lower.heads):
            kept.clear()

    await run_concurrently(settling, one)
    settled = _memory()
    await run_concurrently(count - settling, one)
    left = await left_over(before)
    loop.set_exception_handler(None)
    return {
        "requests": count,
        "statuses": dict(sorted(statuses.items())),
        "errors_of_ours": sum(number for status, number in statuses.items() if status.startswith("5")),
        "unforeseen": unforeseen[:10],
        "memory_settled_mib": settled,
        "memory_end_mib": _memory(),
        **left._asdict(),
    }


async def _not_here(_head: HttpHead, stream: HttpStream) -> None:
    await stream.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone")


async def _status_for(kubelet_api: KubeletApiHarness, identity: Identity | None, sent: bytes) -> str:
    """Send bytes; return the status of the answer, "none" if there is none."""
    stream = await kubelet_api.connect(identity)
    try:
        await stream.send(sent)
        return str((await stream.head()).status)
    except (OSError, asyncio.IncompleteReadError, ValueError, IndexError):
        return "none"
    finally:
        await stream.close()


def _memory() -> float:
    return round(psutil.Process(os.getpid()).memory_info().rss / 2**20, 1)


class CertificateRotation:
    """A harness whose certificate files and client authority change while it is used."""

    def __init__(self, kubelet_api: KubeletApiHarness, folder: Path) -> None:
        self.harness = kubelet_api
        self.folder = folder
        self.failed: list[str] = []
        self.requests = 0
        self.done = False

    async def turn(self, number: int) -> None:
        """Renew the certificate in two steps, with requests in between; each third time the authority too."""
        finish = write_half(self.folder, self.harness.pki.servers.issue(f"node-{number}", usage=SERVER))
        await self._more()
        finish()
        if number % 3 == 0:
            bundle = [self.harness.pki.clients.pem, self.harness.pki.others.pem]
            self.harness.client_authority = "".join(bundle if number % 2 else reversed(bundle))
            self.harness.time += 60
        await self._more()

    async def _more(self) -> None:
        """Wait until each concurrent client has started and finished a request."""
        made = self.requests
        await wait_until(lambda: self.requests > made + ASKING)

    async def ask(self) -> None:
        """Make requests, one after the other, until the campaign is done."""
        while not self.done:
            try:
                status = (await self.harness.ask(self.harness.pki.apiserver, "GET /healthz")).status
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            else:
                self.failed += [] if status == 200 else [str(status)]
            self.requests += 1


def write_half(folder: Path, identity: Identity) -> Callable[[], object]:
    """Write the new certificate beside the old key; return the function that writes the key too."""
    (folder / "tls.crt").write_bytes(identity.certificate)
    return lambda: write(folder, identity)


async def rotated(kubelet_api: KubeletApiHarness, folder: Path, count: int, streams: int) -> dict[str, Any]:
    """Rotate certificates under requests and echoing streams; return failures and the number of missing echoes."""
    rotation = CertificateRotation(kubelet_api, folder)
    kubelet_api.lower.script = _echo
    opened = [(await kubelet_api.upgrade(kubelet_api.pki.apiserver, *_after_first(SPDY)))[1] for _ in range(streams)]
    asking = [asyncio.create_task(rotation.ask()) for _ in range(ASKING)]
    serials, broken = set(), 0
    for number in range(count):
        await rotation.turn(number)
        serials.add(await _serial(kubelet_api))
        broken += sum([not await _echoes(stream, number) for stream in opened])
    rotation.done = True
    await asyncio.gather(*asking)
    for stream in opened:
        await stream.close()
    return {
        "rotations": count,
        "certificates_seen": len(serials),
        "requests": rotation.requests,
        "failed": rotation.failed[:10],
        "streams": streams,
        "echoes_missing": broken,
    }


def _after_first(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Leave the Connection field out: `KubeletApiHarness.upgrade` sends it."""
    return tuple(each for each in fields if not each.startswith("Connection"))


async def _serial(kubelet_api: KubeletApiHarness) -> int:
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    certificate = stream.writer.get_extra_info("ssl_object").getpeercert()
    await stream.close()
    return int(certificate["serialNumber"], 16)


async def _echoes(stream: HttpStream, number: int) -> bool:
    """Report whether a stream echoes a word."""
    word = f"turn {number:04}".encode()
    try:
        await stream.send(word)
        return await stream.reader.readexactly(len(word)) == word
    except (OSError, asyncio.IncompleteReadError):
        return False


async def _echo(_head: HttpHead, stream: HttpStream) -> None:
    await stream.send(switching("SPDY/3.1"))
    while data := await stream.reader.read(65536):
        await stream.send(data)
