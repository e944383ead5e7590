"""Tests of spliced streams: exact bytes both ways after a 101, none without it, and all ways in which streams end."""

import asyncio
import random
import socket
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from kubelet_lab import (
    LOWER_TOKEN,
    NODE,
    PATIENCE,
    QUICK,
    ConnectionScript,
    HttpHead,
    HttpStream,
    KubeletApiHarness,
    SlowCaller,
    answering,
    request,
    switching,
    wait_until,
)

from tensile.errors import Unreachable

QUERY = "output=1&error=1&input=1&command=sh&command=-c&command=the+secret+word"
EXEC = f"/exec/shop/web/main?{QUERY}"
SPDY = ("POST", "SPDY/3.1", ("X-Stream-Protocol-Version: v4.channel.k8s.io",))
SOCKET = ("GET", "websocket", ("Sec-WebSocket-Key: a2V5", "Sec-WebSocket-Version: 13"))
KINDS = pytest.mark.parametrize("kind", [SPDY, SOCKET], ids=["spdy", "websocket"])
Result = TypeVar("Result")
Kind = tuple[str, str, tuple[str, ...]]

BIG = 5 * 1024 * 1024
UP = random.Random(1).randbytes(BIG)
DOWN = random.Random(2).randbytes(BIG)


async def within(work: Awaitable[Result]) -> Result:
    """Wait for a result, with a timeout."""
    async with asyncio.timeout(PATIENCE):
        return await work


async def opened(kubelet_api: KubeletApiHarness, kind: Kind = SPDY, path: str = EXEC) -> HttpStream:
    """Open a stream to the pod, which must succeed."""
    method, protocol, fields = kind
    head, stream = await kubelet_api.upgrade(
        kubelet_api.pki.apiserver, f"{method} {path}", f"Upgrade: {protocol}", *fields
    )
    assert head.status == 101, head
    return stream


def agreeing(then: ConnectionScript, protocol: str = "SPDY/3.1", first: bytes = b"") -> ConnectionScript:
    """Return a script that accepts the upgrade, sends `first` together with it, and continues with `then`."""

    async def script(head: HttpHead, stream: HttpStream) -> None:
        await stream.send(switching(protocol) + first)
        await then(head, stream)

    return script


async def echo(_head: HttpHead, stream: HttpStream) -> None:
    """Send all received data back until the end."""
    while data := await stream.reader.read(65536):
        await stream.send(data)


class RecordingScript:
    """A script that sends one message, and keeps what it receives until the end."""

    def __init__(self, sending: bytes = b"", expecting: int = -1) -> None:
        self._sending = sending
        self._expecting = expecting
        self.received = b""
        self.done = asyncio.Event()

    async def __call__(self, _head: HttpHead, stream: HttpStream) -> None:
        """Send and receive."""
        saying = asyncio.create_task(stream.send(self._sending))
        if self._expecting < 0:
            self.received = await stream.read_to_end()
        else:
            self.received = await stream.reader.readexactly(self._expecting)
        await saying
        self.done.set()


@KINDS
async def test_five_megabytes_pass_in_both_directions_at_once(kubelet_api: KubeletApiHarness, kind: Kind) -> None:
    """The bytes arrive exactly as they were sent, by SPDY and by WebSocket."""
    talk = RecordingScript(DOWN, expecting=BIG)
    kubelet_api.lower.script = agreeing(talk, kind[1])
    stream = await opened(kubelet_api, kind)
    sending = asyncio.create_task(stream.send(UP))
    received = await within(stream.read_to_end())
    await sending
    await stream.close()
    assert received == DOWN
    assert talk.received == UP


@KINDS
async def test_bytes_sent_with_the_request_head_or_the_101_are_kept(kubelet_api: KubeletApiHarness, kind: Kind) -> None:
    """They are the beginning of the stream in each direction."""
    kubelet_api.lower.script = agreeing(echo, kind[1], first=b"welcome ")
    method, protocol, fields = kind
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(request(f"{method} {EXEC}", "Connection: Upgrade", f"Upgrade: {protocol}", *fields) + b"early ")
    assert (await stream.head()).status == 101
    await stream.send(b"late")
    assert await within(stream.reader.readexactly(18)) == b"welcome early late"
    await stream.close()


@KINDS
async def test_the_lower_receives_a_request_in_the_form_of_its_apiserver(
    kubelet_api: KubeletApiHarness, kind: Kind
) -> None:
    """It contains the lower pod, the apiserver's parameters, the lower's credential and the caller's upgrade fields."""
    kubelet_api.lower.script = agreeing(echo, kind[1])
    method, protocol, fields = kind
    stream = await opened(kubelet_api, kind)
    await stream.close()
    head = kubelet_api.lower.heads[0]
    streams = "stdin=true&stdout=true&stderr=true&container=main"
    path = f"/front/api/v1/namespaces/mapped/pods/web-0/exec?{streams}&command=sh&command=-c&command=the+secret+word"
    assert head.first == f"{method} {path} HTTP/1.1"
    sent = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    assert dict(head.fields).items() >= {**sent, "upgrade": protocol, "connection": "Upgrade"}.items()
    assert head.value("authorization") == f"Bearer {LOWER_TOKEN}"


async def test_other_headers_and_parameters_of_the_caller_do_not_reach_the_lower(
    kubelet_api: KubeletApiHarness,
) -> None:
    """Only those of the upgrade and of the exec are forwarded."""
    kubelet_api.lower.script = agreeing(echo)
    names = ("Cookie", "Impersonate-User", "X-Remote-User", "Origin", "Forwarded", "X-Forwarded-For", "X-Other")
    extra = ("Authorization: Bearer mine", *(f"{name}: marker" for name in names))
    first = f"POST {EXEC}&marker=1&container=marker&stdin=marker"
    head, stream = await kubelet_api.upgrade(kubelet_api.pki.apiserver, first, "Upgrade: SPDY/3.1", *extra)
    await stream.close()
    assert head.status == 101
    below = kubelet_api.lower.heads[0]
    names = [name for name, _ in below.fields]
    assert sorted(names) == ["authorization", "connection", "host", "upgrade", "user-agent"]
    assert "marker" not in str(below)
    assert "mine" not in str(below)


async def test_the_lowers_upgrade_headers_are_returned_to_the_caller(kubelet_api: KubeletApiHarness) -> None:
    """The caller receives the lower's protocols and accept key, and no other header."""

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        fields = (
            "Sec-WebSocket-Accept: xyz",
            "Sec-WebSocket-Protocol: v5.channel.k8s.io",
            "X-Stream-Protocol-Version: v4.channel.k8s.io",
            "Audit-Id: 7",
            "Set-Cookie: a=b",
            "Date: today",
        )
        await stream.send(switching("websocket", *fields))

    kubelet_api.lower.script = script
    head, stream = await kubelet_api.upgrade(kubelet_api.pki.apiserver, f"GET {EXEC}", "Upgrade: websocket")
    await stream.close()
    assert sorted(head.fields) == [
        ("connection", "Upgrade"),
        ("sec-websocket-accept", "xyz"),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
        ("upgrade", "websocket"),
        ("x-stream-protocol-version", "v4.channel.k8s.io"),
    ]


STATUS = b'{"kind":"Status","reason":"BadRequest","message":"container x is not valid"}'


@pytest.mark.parametrize(
    ("lowers", "ours", "message"),
    [
        (answering("400 Bad Request", STATUS), 400, b"container x is not valid"),
        (answering("403 Forbidden", b"no"), 403, b"lower-a: no"),
        (answering("200 OK", b"tunnel?"), 502, b"lower-a: exec of pod mapped/web-0: unexpected response 200"),
        (
            answering("302 Found", b"", "Location: https://127.0.0.1:1/elsewhere"),
            502,
            b"lower-a: exec of pod mapped/web-0: the response is a redirect, which is not followed",
        ),
    ],
)
@KINDS
async def test_an_answer_other_than_101_is_returned_as_an_error_and_not_spliced(
    kubelet_api: KubeletApiHarness, kind: Kind, lowers: ConnectionScript, ours: int, message: bytes
) -> None:
    """The lower is requested once, and data that the caller sent behind its request is not forwarded."""
    received = b""

    async def script(head: HttpHead, stream: HttpStream) -> None:
        nonlocal received
        await lowers(head, stream)
        received = await stream.read_to_end()

    kubelet_api.lower.script = script
    method, protocol, _ = kind
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(request(f"{method} {EXEC}", "Connection: Upgrade", f"Upgrade: {protocol}") + b"GET / smuggled")
    head = await within(stream.head())
    assert (head.status, await within(stream.read_to_end())) == (ours, message)
    await stream.close()
    await within(kubelet_api.lower.ended.wait())
    assert received == b""
    assert len(kubelet_api.lower.heads) == 1


async def hang_up(_head: HttpHead, _stream: HttpStream) -> None:
    """Close the connection without sending anything."""


async def test_an_unreachable_lower_gets_502(kubelet_api: KubeletApiHarness) -> None:
    """This applies to a lower that hangs up, that does not listen, or whose endpoint is unknown."""
    kubelet_api.lower.script = hang_up
    first = await kubelet_api.upgrade(kubelet_api.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    await kubelet_api.lower.close()
    second = await kubelet_api.upgrade(kubelet_api.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    kubelet_api.cluster.failing = Unreachable("closed", cluster="lower-a")
    third = await kubelet_api.upgrade(kubelet_api.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    for head, stream in (first, second, third):
        assert head.status == 502
        assert b"lower-a: exec of pod mapped/web-0" in await within(stream.read_to_end())
        await stream.close()


async def test_no_credential_is_sent_to_a_lower_whose_certificate_does_not_verify(
    kubelet_api: KubeletApiHarness,
) -> None:
    """The error names the failed verification, and no request reaches the lower."""
    kubelet_api.cluster.server_name = "another.example"
    head, stream = await kubelet_api.upgrade(kubelet_api.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    body = await within(stream.read_to_end())
    await stream.close()
    assert head.status == 502
    assert b"certificate verify failed" in body
    assert kubelet_api.lower.heads == []


async def test_an_invalid_lower_credential_gets_502_and_is_not_exposed(kubelet_api: KubeletApiHarness) -> None:
    """A credential with a line break is neither in the answer nor in the log."""
    kubelet_api.cluster.credential = {"Authorization": "Bearer sensitive\n"}
    head, stream = await kubelet_api.upgrade(kubelet_api.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    body = await within(stream.read_to_end())
    await stream.close()
    assert head.status == 502
    assert body.startswith(b"lower-a: exec of pod mapped/web-0: ")
    assert b"sensitive" not in body
    assert "sensitive" not in str(kubelet_api.log.entries)


@KINDS
async def test_the_end_of_the_lower_ends_the_callers_stream(kubelet_api: KubeletApiHarness, kind: Kind) -> None:
    """The caller receives all that was sent before the end."""
    kubelet_api.lower.script = agreeing(hang_up, kind[1], first=b"goodbye")
    stream = await opened(kubelet_api, kind)
    assert await within(stream.read_to_end()) == b"goodbye"
    await stream.close()


async def test_the_end_of_the_caller_ends_the_lowers_stream(kubelet_api: KubeletApiHarness) -> None:
    """The lower receives all that was sent before the end."""
    talk = RecordingScript()
    kubelet_api.lower.script = agreeing(talk)
    stream = await opened(kubelet_api)
    await stream.send(UP)
    await stream.close()
    await within(talk.done.wait())
    assert talk.received == UP


@pytest.mark.parametrize("side", ["caller", "lower"])
async def test_a_reset_of_one_side_ends_the_other(kubelet_api: KubeletApiHarness, side: str) -> None:
    """The stream is no longer counted after that."""
    breaking = asyncio.Event()

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        if side == "caller":
            await stream.read_to_end()
        else:
            await breaking.wait()
            reset(stream)

    kubelet_api.lower.script = agreeing(script)
    stream = await opened(kubelet_api)
    assert kubelet_api.server.streams() == {NODE: 1}
    breaking.set()
    if side == "caller":
        reset(stream)
        await within(kubelet_api.lower.ended.wait())
    else:
        assert await within(stream.read_to_end()) == b""
    await wait_until(lambda: kubelet_api.server.streams() == {NODE: 0})
    await stream.close()


def reset(stream: HttpStream) -> None:
    """Reset a connection, as the kernel does for a crashed machine."""
    option = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    stream.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
    stream.writer.transport.abort()


async def test_the_lowers_connection_ends_if_the_caller_leaves_before_an_answer(kubelet_api: KubeletApiHarness) -> None:
    """A lower that does not answer an exec is not kept connected without a caller."""
    requested = asyncio.Event()

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        requested.set()
        await stream.read_to_end()

    kubelet_api.lower.script = script
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(request(f"POST {EXEC}", "Connection: Upgrade", "Upgrade: SPDY/3.1"))
    await within(requested.wait())
    reset(stream)
    await stream.close()
    await within(kubelet_api.lower.ended.wait())


async def test_a_slow_caller_receives_all_data_after_the_lower_has_ended(kubelet_api: KubeletApiHarness) -> None:
    """A caller that is still connected gets every byte, however late it reads."""
    content = DOWN[: 192 * 1024]

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        await stream.send(content)

    kubelet_api.lower.script = agreeing(script)
    caller = SlowCaller(kubelet_api, kubelet_api.pki.apiserver)
    began = await asyncio.to_thread(caller.ask, f"POST {EXEC}", "Connection: Upgrade", "Upgrade: SPDY/3.1")
    await within(kubelet_api.lower.ended.wait())
    await asyncio.sleep(4 * QUICK.leaving)
    received = began + await asyncio.to_thread(caller.read)
    assert received.partition(b"\r\n\r\n")[2] == content


async def test_a_fast_caller_is_held_back_while_the_lower_does_not_read(kubelet_api: KubeletApiHarness) -> None:
    """All data arrives at the lower byte by byte when it reads again."""
    reading = asyncio.Event()
    content = UP * 8

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        stream.writer.transport.pause_reading()
        await reading.wait()
        stream.writer.transport.resume_reading()
        assert await stream.reader.readexactly(len(content)) == content
        await stream.send(b"all of it")

    kubelet_api.lower.script = agreeing(script)
    stream = await opened(kubelet_api)

    async def pour() -> None:
        for start in range(0, len(content), 65536):
            await stream.send(content[start : start + 65536])

    sending = asyncio.create_task(pour())
    await asyncio.wait({sending}, timeout=3 * QUICK.leaving)
    assert not sending.done()
    reading.set()
    assert await within(stream.read_to_end()) == b"all of it"
    await sending
    await stream.close()


@pytest.mark.parametrize(
    ("path", "subresource"),
    [
        ("/attach/shop/web/main?output=1", "attach?stdout=true&container=main"),
        ("/portForward/shop/web", "portforward"),
        ("/portForward/shop/web?port=80", "portforward?ports=80"),
    ],
)
@KINDS
async def test_attach_and_port_forward_are_spliced_like_exec(
    kubelet_api: KubeletApiHarness, kind: Kind, path: str, subresource: str
) -> None:
    """Both routes connect to their own subresources of the lower pod."""
    kubelet_api.lower.script = agreeing(echo, kind[1])
    stream = await opened(kubelet_api, kind, path)
    await stream.send(UP[:100_000])
    assert await within(stream.reader.readexactly(100_000)) == UP[:100_000]
    await stream.close()
    assert kubelet_api.lower.heads[0].first.split()[1] == f"/front/api/v1/namespaces/mapped/pods/web-0/{subresource}"


async def test_an_exec_is_logged_without_its_command(kubelet_api: KubeletApiHarness) -> None:
    """The entry contains user, place, and the number and length of the words, but not the words themselves."""
    kubelet_api.lower.script = agreeing(hang_up)
    await (await opened(kubelet_api)).close()
    place = {"namespace": "shop", "pod": "web", "container": "main"}
    who = {"user": "kube-apiserver", "node": NODE, "lower": "lower-a"}
    assert kubelet_api.log.entries == [("exec", {**who, **place, "command_words": 3, "command_length": 19})]
    assert "secret" not in str(kubelet_api.log.entries)
