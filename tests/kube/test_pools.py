"""Tests of requests over persistent connections, against a server that sends exactly the bytes of each test."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import cast

import pytest
from scripted import access_to

from tensile.errors import Unreachable
from tensile.kube.credentials import Access
from tensile.kube.limits import ResponseBudget, TooLarge
from tensile.kube.pools import RequestPool
from tensile.kube.wire import IDLE_SECONDS, KeepAlive, ProtocolError, RequestLimits

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class RawHttpServer:
    """The requests of each connection, and the responses that remain to be sent, in order."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.port = 0
        self.requests: list[bytes] = []
        self.ended = asyncio.Event()
        self.serving: list[asyncio.Task[None]] = []
        self.paused = asyncio.Event()
        self._is_paused = False
        self._answers = list(answers)

    def pause(self) -> None:
        """Send no more responses; `paused` is set at the next request."""
        self._is_paused = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to each request of a connection; a response of b"" closes it instead."""
        self.requests.append(b"")
        self.serving.append(cast("asyncio.Task[None]", asyncio.current_task()))
        while head := await self._request(reader):
            self.requests[-1] += head
            if self._is_paused:
                self.paused.set()
                continue
            answer = self._answers.pop(0)
            if not answer:
                break
            writer.write(answer)
        self.ended.set()
        writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
        return head + await reader.readexactly(length)


@asynccontextmanager
async def wire(*answers: bytes, idle: float = IDLE_SECONDS) -> AsyncIterator[tuple[RawHttpServer, Access, RequestPool]]:
    """Serve responses in plain HTTP on loopback, and yield the server, the access and a pool of connections."""
    made, calls = RawHttpServer(answers), RequestPool(keep=KeepAlive(idle=idle))
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.port = server.sockets[0].getsockname()[1]
        yield made, access_to(made.port), calls
        await calls.close()
        await asyncio.gather(*made.serving)


async def ask(calls: RequestPool, access: Access, method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
    """Request /x, and return status and body."""
    answer = await calls.call(access, method, "/x", {}, body or None)
    return answer.status, answer.body


async def test_a_request_has_the_form_that_http_requires() -> None:
    """It has path, host, length, body and the given headers, and no other headers."""
    async with wire(OK) as (made, access, calls):
        here = replace(access, url=f"{access.url}/k8s")
        answer = await calls.call(here, "POST", "/x?y=z", {"User-Agent": "test", "Content-Type": "a/b"}, b"body")
    first, *lines = made.requests[0].decode().removesuffix("\r\n\r\nbody").split("\r\n")
    assert first == "POST /k8s/x?y=z HTTP/1.1"
    fields = {"User-Agent: test", "Content-Type: a/b", "Content-Length: 4"}
    assert set(lines) == {f"Host: 127.0.0.1:{made.port}", *fields}
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"{}", "application/json")


async def test_consecutive_calls_use_one_connection() -> None:
    """The connection is kept open between calls."""
    async with wire(OK, OK, OK) as (made, access, calls):
        for method in ("GET", "PATCH", "DELETE"):
            assert await ask(calls, access, method) == (200, b"{}")
    assert len(made.requests) == 1


async def test_concurrent_calls_use_separate_connections() -> None:
    """No call waits for the response to another."""
    async with wire(OK, OK) as (made, access, calls):
        await asyncio.gather(ask(calls, access), ask(calls, access))
    assert len(made.requests) == 2


async def test_idle_connections_are_closed_after_a_burst() -> None:
    """With many clusters they would be most of all connections; the next call opens a new one."""
    async with wire(OK, OK, OK, OK, idle=0.05) as (made, access, calls):
        await asyncio.gather(*(ask(calls, access) for _ in range(3)))
        await asyncio.gather(*made.serving)
        assert await ask(calls, access) == (200, b"{}")
    assert len(made.requests) == 4


async def test_canceling_a_call_closes_idle_connections_too() -> None:
    """They may be half open like that of the call, and each would cost a later call its whole timeout."""
    async with wire(OK, OK) as (made, access, calls):
        await asyncio.gather(ask(calls, access), ask(calls, access))
        made.pause()
        given_up = asyncio.create_task(ask(calls, access))
        await made.paused.wait()
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await asyncio.gather(*made.serving)


@pytest.mark.parametrize(
    ("first", "connections"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 1),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 1),
        (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK, 1),
        (OK.replace(b"Content-Type", b"Connection: close\r\nContent-Type"), 2),
        (OK + OK, 2),
        (OK.replace(b"1.1", b"1.0"), 2),
    ],
    ids=["chunked", "continue", "hints", "close", "extra response", "http/1.0"],
)
async def test_every_form_of_a_response_is_read_completely(first: bytes, connections: int) -> None:
    """The connection is used again unless the server ends it or sent more than one response."""
    async with wire(first, OK) as (made, access, calls):
        assert await ask(calls, access) == (200, b"{}")
        assert await ask(calls, access) == (200, b"{}")
    assert len(made.requests) == connections


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n{}"],
    ids=["closed", "no HTTP", "endless headers"],
)
async def test_an_invalid_response_fails_only_its_call(answer: bytes) -> None:
    """The next call uses a new connection."""
    async with wire(answer, OK) as (made, access, calls):
        with pytest.raises((ProtocolError, TooLarge)):
            await ask(calls, access, "POST")
        assert await ask(calls, access) == (200, b"{}")
    assert len(made.requests) == 2


async def test_canceling_a_call_closes_its_connection() -> None:
    """Otherwise its late response would be read as that of the next call."""
    async with wire(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", OK) as (made, access, calls):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ask(calls, access)
        await made.ended.wait()
        assert await ask(calls, access) == (200, b"{}")


async def test_a_call_that_times_out_closes_its_connection() -> None:
    """The time counts from the start of the call, both on an open and on a new connection."""
    half, limits = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", RequestLimits(seconds=0.05)
    async with wire(half, OK, half, OK) as (made, access, calls):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await calls.call(access, "GET", "/x", {}, limits=limits)
            assert await ask(calls, access) == (200, b"{}")
    assert len(made.requests) == 3


async def test_the_timeout_of_a_call_does_not_apply_to_the_next_one() -> None:
    """The next call on the connection has its own timeout."""
    async with wire(OK, OK) as (made, access, calls):
        await calls.call(access, "GET", "/x", {}, limits=RequestLimits(seconds=0.05))
        made.pause()
        late = asyncio.create_task(ask(calls, access))
        await made.paused.wait()
        done, _ = await asyncio.wait({late}, timeout=0.1)
        assert not done
        late.cancel()
    assert len(made.requests) == 1


async def test_each_call_sends_its_own_headers() -> None:
    """The pool caches the text of a limited number of headers."""
    async with wire(*[OK] * 40) as (made, access, calls):
        for number in [*range(20), *range(20)]:
            await calls.call(access, "GET", "/x", {"X-Number": str(number)})
    sent = [line for line in made.requests[0].decode().split("\r\n") if line.startswith("X-Number")]
    assert sent == [f"X-Number: {number}" for number in [*range(20), *range(20)]]


async def test_a_connection_is_not_used_with_another_tls_context() -> None:
    """A connection that was opened with other certificates must not be used."""
    async with wire(OK, OK) as (made, access, calls):
        await ask(calls, access)
        await ask(calls, replace(access, tls=ssl.create_default_context()))
    assert len(made.requests) == 2


async def connected(made: RawHttpServer, count: int) -> None:
    """Wait until that many connections were accepted."""
    while len(made.requests) < count:  # noqa: ASYNC110 - the server does not notify
        await asyncio.sleep(0)


async def test_closing_the_pool_fails_calls_that_ran_beside_a_canceled_call() -> None:
    """Their connections are not used for new calls, but are still closed with the pool."""
    async with wire(OK, OK) as (made, access, calls):
        made.pause()
        under_way, given_up = (asyncio.create_task(ask(calls, access)) for _ in range(2))
        await connected(made, 2)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        third = asyncio.create_task(ask(calls, access))
        await connected(made, 3)
        await calls.close()
        async with asyncio.timeout(5):
            results = await asyncio.gather(under_way, third, return_exceptions=True)
        assert all(isinstance(one, ProtocolError) for one in results)


async def test_a_call_after_the_pool_was_closed_raises_an_error() -> None:
    """The open connections are closed with the pool."""
    async with wire(OK) as (made, access, calls):
        await ask(calls, access)
        await calls.close()
        with pytest.raises(ProtocolError):
            await ask(calls, access)
        await made.ended.wait()


@pytest.mark.parametrize(
    ("target", "value", "why"),
    [
        *(("/x", value, r"header|Newline") for value in ("a\r\nX: y", "a\ny", "a\0")),
        *((target, "a", "space") for target in ("/x y", "/x\r\nHost: z", "/\u00e4")),
    ],
)
async def test_a_path_or_header_with_a_line_break_is_rejected(target: str, value: str, why: str) -> None:
    """A space or a non-ASCII character in a path is rejected too, before anything is sent."""
    async with wire(OK) as (made, access, calls):
        with pytest.raises(ValueError, match=why):
            await calls.call(access, "GET", target, {"Authorization": value})
        assert made.requests in ([], [b""])


def head(*fields: str, status: str = "200 OK") -> bytes:
    """Return the head of a response."""
    return "\r\n".join((f"HTTP/1.1 {status}", "Content-Type: application/json", *fields, "", "")).encode()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (head("Content-Length: 3000") + b"x" * 3000, ""),
        (head("Content-Length: 9000000") + b"x" * 300_000, "more than 128 KiB"),
        (head("Transfer-Encoding: chunked") + b"ffffff\r\n" + b"x" * 300_000, "more than 128 KiB"),
        (head("Transfer-Encoding: chunked") + b"2;" + b"x" * 100_000, "more than 64 KiB outside of its body"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 4_000, "more than 64 KiB outside of its body"),
        (head("Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 30_000, "outside of its body"),
        (
            head("Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\nX: " + b"x" * 400_000,
            "more than 64 KiB outside of its body",
        ),
    ],
    ids=["within", "declared", "chunk", "extension", "hints", "pieces", "trailer"],
)
async def test_a_response_that_is_too_long_raises_too_large(answer: bytes, message: str) -> None:
    """This applies to each part of a response; its bytes are released from the budget, and the next call succeeds."""
    # data outside of the body may arrive in pieces of any size, so its total is within the other limit
    limits = RequestLimits(most=(1 << 20) if "outside" in message else (128 << 10))
    account = ResponseBudget()
    async with wire(answer, OK) as (_, access, _calls):
        calls = RequestPool(account)
        with pytest.raises(TooLarge, match=message) if message else nullcontext():
            assert len((await calls.call(access, "GET", "/x", {}, limits=limits)).body) == 3_000
        await asyncio.sleep(0)
        assert account.held == 0
        assert (await calls.call(access, "GET", "/x", {})).body == b"{}"
        await calls.close()


async def test_only_the_beginning_of_an_error_response_is_read() -> None:
    """The status is known, however long the body is, and the connection is not used again."""
    long = head("Content-Length: 90000000", status="409 Conflict") + b"x" * 200_000
    async with wire(long, OK) as (made, access, calls):
        status, body = await ask(calls, access)
        assert (status, len(body)) == (409, 64 << 10)
        assert await ask(calls, access) == (200, b"{}")
    assert len(made.requests) == 2


async def test_concurrent_responses_share_one_budget() -> None:
    """Each one is short enough alone; a call succeeds when the budget is free again."""
    half = head("Content-Length: 60000") + b"x" * 40_000
    account = ResponseBudget(60_000)
    async with wire(half, half, OK) as (_, access, _calls):
        calls = RequestPool(account)
        first, second = (asyncio.create_task(calls.call(access, "GET", "/x", {})) for _ in range(2))
        done, left = await asyncio.wait({first, second}, return_when=asyncio.FIRST_EXCEPTION)
        with pytest.raises(Unreachable, match="in progress at once"):
            done.pop().result()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert account.held == 0
        assert (await calls.call(access, "GET", "/x", {})).body == b"{}"
        await calls.close()
