"""Tests of logs: every option, immediate delivery of lines, and no reading after the caller has left."""

import asyncio
import random

import pytest
from kubelet_lab import LOWER_TOKEN, NODE, PATIENCE, Head, Lab, SlowCaller, Stream, answering, request, unchunked, until

LOGS = "/containerLogs/shop/web/main"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
BIG = random.Random(3).randbytes(3 * 1024 * 1024)


def chunk(data: bytes) -> bytes:
    """Return a chunk of a body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def read_chunk(stream: Stream) -> bytes:
    """Read one chunk."""
    async with asyncio.timeout(PATIENCE):
        size = int(await stream.reader.readline(), 16)
        return (await stream.reader.readexactly(size + 2))[:-2]


async def test_a_large_log_is_forwarded_completely(lab: Lab) -> None:
    """A log of 3 MB arrives byte by byte as plain text with a final chunk, and is not logged as an exec is."""
    lab.lower.script = answering("200 OK", BIG, "Content-Type: text/plain")
    answer = await lab.ask(lab.pki.apiserver, f"GET {LOGS}")
    assert {name for name, _ in answer.head.fields} == {
        "content-type",
        "transfer-encoding",
        "connection",
        "x-content-type-options",
    }
    assert answer.head.value("content-type").startswith("text/plain")
    assert unchunked(answer.body) == BIG
    assert lab.log.entries == []


async def test_an_empty_log_has_an_empty_body(lab: Lab) -> None:
    """A log without lines gets an answer without content."""
    lab.lower.script = answering("200 OK")
    assert unchunked((await lab.ask(lab.pki.apiserver, f"GET {LOGS}")).body) == b""


async def test_log_options_are_forwarded_to_the_lower(lab: Lab) -> None:
    """Each known option is sent by its name, unknown ones are dropped, and the credential is the lower's."""
    lab.lower.script = answering("200 OK", b"x")
    options = "follow=true&previous=true&timestamps=true&sinceSeconds=5&tailLines=7&limitBytes=9"
    await lab.ask(
        lab.pki.apiserver, f"GET {LOGS}?{options}&container=other&evil=1", "Authorization: Bearer mine", "X-A: b"
    )
    head = lab.lower.heads[0]
    assert head.first == f"GET /front/api/v1/namespaces/mapped/pods/web-0/log?container=main&{options} HTTP/1.1"
    assert [name for name, _ in head.fields] == ["host", "user-agent", "authorization"]
    assert head.value("authorization") == f"Bearer {LOWER_TOKEN}"


async def test_a_log_of_an_unknown_container_gets_404(lab: Lab) -> None:
    """As on a real node it is 404, and the lower, whose apiserver would answer 400, gets no request."""
    answer = await lab.ask(lab.pki.apiserver, "GET /containerLogs/shop/web/nosuch")
    assert (answer.status, answer.body) == (404, b'container "nosuch" not found in pod "web"')
    assert lab.lower.heads == []


async def test_each_line_of_a_followed_log_is_delivered_immediately(lab: Lab) -> None:
    """A line arrives before the next one is written, because nothing is buffered."""
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(_head: Head, stream: Stream) -> None:
        await stream.send(CHUNKED)
        while line := await lines.get():
            await stream.send(chunk(line))
        await stream.send(chunk(b""))

    lab.lower.script = script
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(request(f"GET {LOGS}?follow=true"))
    assert (await stream.head()).status == 200
    assert lab.server.streams() == {NODE: 1}
    for number in range(20):
        line = b"line %d\n" % number
        lines.put_nowait(line)
        assert await read_chunk(stream) == line
    lines.put_nowait(b"")
    assert await stream.to_end() == b"0\r\n\r\n"
    await stream.close()
    await until(lambda: lab.server.streams() == {NODE: 0})


@pytest.mark.parametrize("chatter", [b"", b"chatter" * 100_000], ids=["silent", "talkative"])
async def test_a_reader_that_leaves_ends_the_request_to_the_lower(lab: Lab, chatter: bytes) -> None:
    """This holds while the log is silent, also if the reader sent much unread data and closes only TLS."""

    async def script(_head: Head, stream: Stream) -> None:
        await stream.send(CHUNKED)
        await stream.to_end()

    lab.lower.script = script
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(request(f"GET {LOGS}?follow=true"))
    await stream.head()
    await stream.send(chatter)
    async with asyncio.timeout(PATIENCE):
        await stream.close()
        await lab.lower.ended.wait()
    await until(lambda: lab.server.streams() == {NODE: 0})


async def test_only_content_is_copied_from_the_lowers_chunks(lab: Lab) -> None:
    """Content that arrived together is sent as one chunk, without the lower's extensions and trailers."""

    async def script(_head: Head, stream: Stream) -> None:
        end = b"05\r\nthree\r\n000\r\nX-Evil: 1\r\n\r\n"
        await stream.send(CHUNKED + b"4;evil=1\r\none \r\n" + chunk(b"two ") + end)

    lab.lower.script = script
    assert (await lab.ask(lab.pki.apiserver, f"GET {LOGS}")).body == chunk(b"one two three") + chunk(b"")


async def test_an_http_1_0_caller_gets_the_log_without_chunks(lab: Lab) -> None:
    """HTTP/1.0 has no chunked encoding, so the answer ends with the connection."""

    async def script(_head: Head, stream: Stream) -> None:
        await stream.send(CHUNKED + chunk(b"a line\n"))
        await stream.send(chunk(b"another\n") + chunk(b""))

    lab.lower.script = script
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(f"GET {LOGS} HTTP/1.0\r\n\r\n".encode())
    assert (await stream.head()).value("transfer-encoding") == ""
    assert await stream.to_end() == b"a line\nanother\n"
    await stream.close()


async def test_a_slow_reader_holds_back_the_lower(lab: Lab) -> None:
    """A caller that stops reading stops the lower's sending, and receives everything when it reads again."""
    sent = 0

    async def script(_head: Head, stream: Stream) -> None:
        nonlocal sent
        await stream.send(CHUNKED)
        for _ in range(16):
            await stream.send(chunk(BIG))
            sent += 1
        await stream.send(chunk(b""))

    lab.lower.script = script
    caller = SlowCaller(lab, lab.pki.apiserver)
    began = await asyncio.to_thread(caller.ask, f"GET {LOGS}")
    held = -1
    while held != sent:
        held = sent
        await asyncio.sleep(0.2)
    assert sent < 16
    heard = began + await asyncio.to_thread(caller.read)
    assert unchunked(heard.partition(b"\r\n\r\n")[2]) == BIG * 16
