"""Logs: every option, each line when it comes, and no reading on for nobody."""

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


async def test_all_of_a_log_is_passed_on(lab: Lab) -> None:
    """A log of 3 MB arrives byte by byte, as plain text, with a proper end."""
    lab.lower.script = answering("200 OK", BIG, "Content-Type: text/plain")
    answer = await lab.ask(lab.pki.apiserver, f"GET {LOGS}")
    assert answer.head.value("content-type").startswith("text/plain")
    assert unchunked(answer.body) == BIG


async def test_an_empty_log_is_empty(lab: Lab) -> None:
    """A log without a line is an answer without a body."""
    lab.lower.script = answering("200 OK")
    assert unchunked((await lab.ask(lab.pki.apiserver, f"GET {LOGS}")).body) == b""


async def test_the_lower_is_asked_for_what_was_asked(lab: Lab) -> None:
    """Each option goes down by its name, unknown ones stay behind, and the credential is ours."""
    lab.lower.script = answering("200 OK", b"x")
    options = "follow=true&previous=true&timestamps=true&sinceSeconds=5&tailLines=7&limitBytes=9"
    await lab.ask(
        lab.pki.apiserver, f"GET {LOGS}?{options}&container=other&evil=1", "Authorization: Bearer mine", "X-A: b"
    )
    head = lab.lower.heads[0]
    assert head.first == f"GET /front/api/v1/namespaces/mapped/pods/web-0/log?container=main&{options} HTTP/1.1"
    assert [name for name, _ in head.fields] == ["host", "user-agent", "authorization"]
    assert head.value("authorization") == f"Bearer {LOWER_TOKEN}"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            "400 Bad Request",
            b'{"kind":"Status","reason":"BadRequest","message":"container \\"main\\" is waiting to start"}',
            b'container "main" is waiting to start',
        ),
        ("404 Not Found", b'{"kind":"Status","message":"gone"}', b"lower-a: gone"),
        ("500 Internal Server Error", b"boom", b"boom"),
    ],
)
async def test_errors_of_the_lower_are_passed_on(lab: Lab, status: str, body: bytes, message: bytes) -> None:
    """An error keeps its status and its message, a kubelet's own to the letter."""
    lab.lower.script = answering(status, body)
    answer = await lab.ask(lab.pki.apiserver, f"GET {LOGS}")
    assert (answer.status, answer.body) == (int(status[:3]), message)


async def test_the_log_of_a_container_that_the_pod_lacks_is_not_found(lab: Lab) -> None:
    """As on a real node; the lower, whose apiserver says 400, is not asked."""
    answer = await lab.ask(lab.pki.apiserver, "GET /containerLogs/shop/web/nosuch")
    assert (answer.status, answer.body) == (404, b'container "nosuch" not found in pod "web"')
    assert lab.lower.heads == []


async def test_redirects_are_not_followed(lab: Lab) -> None:
    """A redirect is an error, and nobody is asked a second time."""
    lab.lower.script = answering("307 Temporary Redirect", b"", "Location: /front/other")
    assert (await lab.ask(lab.pki.apiserver, f"GET {LOGS}")).status == 502
    assert len(lab.lower.heads) == 1


async def test_lines_come_one_by_one(lab: Lab) -> None:
    """With follow, each line arrives before the next is written: nothing waits for more."""
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


async def test_a_reader_that_leaves_stops_the_lower(lab: Lab) -> None:
    """When the caller goes while the log is silent, the lower's connection is closed."""

    async def script(_head: Head, stream: Stream) -> None:
        await stream.send(CHUNKED)
        await stream.to_end()

    lab.lower.script = script
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(request(f"GET {LOGS}?follow=true"))
    await stream.head()
    await stream.close()
    async with asyncio.timeout(PATIENCE):
        await lab.lower.ended.wait()
    await until(lambda: lab.server.streams() == {NODE: 0})


async def test_a_talkative_reader_that_leaves_is_noticed(lab: Lab) -> None:
    """A caller that sends what nobody reads, and ends TLS only, is gone as well: its goodbye is behind all of that."""

    async def script(_head: Head, stream: Stream) -> None:
        await stream.send(CHUNKED)
        await stream.to_end()

    lab.lower.script = script
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(request(f"GET {LOGS}?follow=true"))
    await stream.head()
    await stream.send(b"chatter" * 100_000)
    async with asyncio.timeout(PATIENCE):
        await stream.close()
        await lab.lower.ended.wait()
    await until(lambda: lab.server.streams() == {NODE: 0})


async def test_a_log_that_breaks_off_has_no_end(lab: Lab) -> None:
    """When the lower breaks off, what came is passed on, and the missing end tells that it is not all."""

    async def script(_head: Head, stream: Stream) -> None:
        await stream.send(CHUNKED + chunk(b"half a "))

    lab.lower.script = script
    answer = await lab.ask(lab.pki.apiserver, f"GET {LOGS}")
    assert answer.status == 200
    assert not answer.body.endswith(b"0\r\n\r\n")


async def test_nothing_but_content_is_taken_over_from_the_lowers_chunks(lab: Lab) -> None:
    """What came at once goes on as one chunk of ours; extensions and trailers of the lower's stay behind."""

    async def script(_head: Head, stream: Stream) -> None:
        end = b"05\r\nthree\r\n000\r\nX-Evil: 1\r\n\r\n"
        await stream.send(CHUNKED + b"4;evil=1\r\none \r\n" + chunk(b"two ") + end)

    lab.lower.script = script
    assert (await lab.ask(lab.pki.apiserver, f"GET {LOGS}")).body == chunk(b"one two three") + chunk(b"")


@pytest.mark.parametrize("bad", [b"no chunk\r\n", b"2\r\nabc\r\n", b"1" * 20 + b"\r\n"])
async def test_what_is_no_chunk_breaks_the_log_off(lab: Lab, bad: bytes) -> None:
    """A lower that sends what cannot be read is not believed to have come to the log's end."""

    async def script(_head: Head, stream: Stream) -> None:
        await stream.send(CHUNKED + chunk(b"good"))
        await stream.send(bad)
        await stream.to_end()

    lab.lower.script = script
    answer = await lab.ask(lab.pki.apiserver, f"GET {LOGS}")
    assert (answer.status, b"0\r\n" in answer.body) == (200, False)


async def test_a_caller_of_http_1_0_gets_the_log_without_chunks(lab: Lab) -> None:
    """It would not understand them: its answer ends with the connection."""

    async def script(_head: Head, stream: Stream) -> None:
        await stream.send(CHUNKED + chunk(b"a line\n"))
        await stream.send(chunk(b"another\n") + chunk(b""))

    lab.lower.script = script
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(f"GET {LOGS} HTTP/1.0\r\n\r\n".encode())
    assert (await stream.head()).value("transfer-encoding") == ""
    assert await stream.to_end() == b"a line\nanother\n"
    await stream.close()


async def test_a_slow_reader_holds_the_lower(lab: Lab) -> None:
    """A caller that stops reading stops the lower, and gets everything when it goes on."""
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


async def test_logs_leave_no_line_about_commands(lab: Lab) -> None:
    """Reading a log is not noted as running a command."""
    lab.lower.script = answering("200 OK", b"x")
    await lab.ask(lab.pki.apiserver, f"GET {LOGS}")
    assert lab.log.entries == []
