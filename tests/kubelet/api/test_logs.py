"""Tests of logs: every option, immediate delivery of lines, and no reading after the caller has left."""

import asyncio
import random

import pytest
from kubelet_lab import (
    LOWER_TOKEN,
    NODE,
    PATIENCE,
    HttpHead,
    HttpStream,
    KubeletApiHarness,
    SlowCaller,
    answering,
    request,
    unchunked,
    wait_until,
)

LOGS = "/containerLogs/shop/web/main"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
BIG = random.Random(3).randbytes(3 * 1024 * 1024)


def chunk(data: bytes) -> bytes:
    """Return a chunk of a body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def read_chunk(stream: HttpStream) -> bytes:
    """Read one chunk."""
    async with asyncio.timeout(PATIENCE):
        size = int(await stream.reader.readline(), 16)
        return (await stream.reader.readexactly(size + 2))[:-2]


async def test_a_large_log_is_forwarded_completely(kubelet_api: KubeletApiHarness) -> None:
    """A log of 3 MB arrives byte by byte as plain text with a final chunk, and is not logged as an exec is."""
    kubelet_api.lower.script = answering("200 OK", BIG, "Content-Type: text/plain")
    answer = await kubelet_api.ask(kubelet_api.pki.apiserver, f"GET {LOGS}")
    assert {name for name, _ in answer.head.fields} == {
        "content-type",
        "transfer-encoding",
        "connection",
        "x-content-type-options",
    }
    assert answer.head.value("content-type").startswith("text/plain")
    assert unchunked(answer.body) == BIG
    assert kubelet_api.log.entries == []


async def test_an_empty_log_has_an_empty_body(kubelet_api: KubeletApiHarness) -> None:
    """A log without lines gets an answer without content."""
    kubelet_api.lower.script = answering("200 OK")
    assert unchunked((await kubelet_api.ask(kubelet_api.pki.apiserver, f"GET {LOGS}")).body) == b""


async def test_log_options_are_forwarded_to_the_lower(kubelet_api: KubeletApiHarness) -> None:
    """Each known option is sent by its name, unknown ones are dropped, and the credential is the lower's."""
    kubelet_api.lower.script = answering("200 OK", b"x")
    options = "follow=true&previous=true&timestamps=true&sinceSeconds=5&tailLines=7&limitBytes=9"
    await kubelet_api.ask(
        kubelet_api.pki.apiserver,
        f"GET {LOGS}?{options}&container=other&evil=1",
        "Authorization: Bearer mine",
        "X-A: b",
    )
    head = kubelet_api.lower.heads[0]
    assert head.first == f"GET /front/api/v1/namespaces/mapped/pods/web-0/log?container=main&{options} HTTP/1.1"
    assert [name for name, _ in head.fields] == ["host", "user-agent", "authorization"]
    assert head.value("authorization") == f"Bearer {LOWER_TOKEN}"


async def test_a_log_of_an_unknown_container_gets_404(kubelet_api: KubeletApiHarness) -> None:
    """As on a real node it is 404, and the lower, whose apiserver would answer 400, gets no request."""
    answer = await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /containerLogs/shop/web/nosuch")
    assert (answer.status, answer.body) == (404, b'container "nosuch" not found in pod "web"')
    assert kubelet_api.lower.heads == []


async def test_each_line_of_a_followed_log_is_delivered_immediately(kubelet_api: KubeletApiHarness) -> None:
    """A line arrives before the next one is written, because nothing is buffered."""
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        await stream.send(CHUNKED)
        while line := await lines.get():
            await stream.send(chunk(line))
        await stream.send(chunk(b""))

    kubelet_api.lower.script = script
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(request(f"GET {LOGS}?follow=true"))
    assert (await stream.head()).status == 200
    assert kubelet_api.server.streams() == {NODE: 1}
    for number in range(20):
        line = b"line %d\n" % number
        lines.put_nowait(line)
        assert await read_chunk(stream) == line
    lines.put_nowait(b"")
    assert await stream.read_to_end() == b"0\r\n\r\n"
    await stream.close()
    await wait_until(lambda: kubelet_api.server.streams() == {NODE: 0})


@pytest.mark.parametrize("chatter", [b"", b"chatter" * 100_000], ids=["silent", "talkative"])
async def test_a_reader_that_leaves_ends_the_request_to_the_lower(
    kubelet_api: KubeletApiHarness, chatter: bytes
) -> None:
    """This holds while the log is silent, also if the reader sent much unread data and closes only TLS."""

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        await stream.send(CHUNKED)
        await stream.read_to_end()

    kubelet_api.lower.script = script
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(request(f"GET {LOGS}?follow=true"))
    await stream.head()
    await stream.send(chatter)
    async with asyncio.timeout(PATIENCE):
        await stream.close()
        await kubelet_api.lower.ended.wait()
    await wait_until(lambda: kubelet_api.server.streams() == {NODE: 0})


async def test_only_content_is_copied_from_the_lowers_chunks(kubelet_api: KubeletApiHarness) -> None:
    """Content that arrived together is sent as one chunk, without the lower's extensions and trailers."""

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        end = b"05\r\nthree\r\n000\r\nX-Evil: 1\r\n\r\n"
        await stream.send(CHUNKED + b"4;evil=1\r\none \r\n" + chunk(b"two ") + end)

    kubelet_api.lower.script = script
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, f"GET {LOGS}")).body == chunk(b"one two three") + chunk(
        b""
    )


async def test_an_http_1_0_caller_gets_the_log_without_chunks(kubelet_api: KubeletApiHarness) -> None:
    """HTTP/1.0 has no chunked encoding, so the answer ends with the connection."""

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        await stream.send(CHUNKED + chunk(b"a line\n"))
        await stream.send(chunk(b"another\n") + chunk(b""))

    kubelet_api.lower.script = script
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(f"GET {LOGS} HTTP/1.0\r\n\r\n".encode())
    assert (await stream.head()).value("transfer-encoding") == ""
    assert await stream.read_to_end() == b"a line\nanother\n"
    await stream.close()


async def test_a_slow_reader_holds_back_the_lower(kubelet_api: KubeletApiHarness) -> None:
    """A caller that stops reading stops the lower's sending, and receives everything when it reads again."""
    sent = 0

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        nonlocal sent
        await stream.send(CHUNKED)
        for _ in range(16):
            await stream.send(chunk(BIG))
            sent += 1
        await stream.send(chunk(b""))

    kubelet_api.lower.script = script
    caller = SlowCaller(kubelet_api, kubelet_api.pki.apiserver)
    began = await asyncio.to_thread(caller.ask, f"GET {LOGS}")
    held = -1
    while held != sent:
        held = sent
        await asyncio.sleep(0.2)
    assert sent < 16
    received = began + await asyncio.to_thread(caller.read)
    assert unchunked(received.partition(b"\r\n\r\n")[2]) == BIG * 16
