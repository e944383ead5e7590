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
    Head,
    Lab,
    Script,
    SlowCaller,
    Stream,
    answering,
    request,
    switching,
    until,
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


async def opened(lab: Lab, kind: Kind = SPDY, path: str = EXEC) -> Stream:
    """Open a stream to the pod, which must succeed."""
    method, protocol, fields = kind
    head, stream = await lab.upgrade(lab.pki.apiserver, f"{method} {path}", f"Upgrade: {protocol}", *fields)
    assert head.status == 101, head
    return stream


def agreeing(then: Script, protocol: str = "SPDY/3.1", first: bytes = b"") -> Script:
    """Return a script that accepts the upgrade, sends `first` together with it, and continues with `then`."""

    async def script(head: Head, stream: Stream) -> None:
        await stream.send(switching(protocol) + first)
        await then(head, stream)

    return script


async def echo(_head: Head, stream: Stream) -> None:
    """Send all received data back until the end."""
    while data := await stream.reader.read(65536):
        await stream.send(data)


class Talk:
    """A script that sends one message, and keeps what it receives until the end."""

    def __init__(self, sending: bytes = b"", expecting: int = -1) -> None:
        self._sending = sending
        self._expecting = expecting
        self.heard = b""
        self.done = asyncio.Event()

    async def __call__(self, _head: Head, stream: Stream) -> None:
        """Send and receive."""
        saying = asyncio.create_task(stream.send(self._sending))
        if self._expecting < 0:
            self.heard = await stream.to_end()
        else:
            self.heard = await stream.reader.readexactly(self._expecting)
        await saying
        self.done.set()


@KINDS
async def test_five_megabytes_pass_in_both_directions_at_once(lab: Lab, kind: Kind) -> None:
    """The bytes arrive exactly as they were sent, by SPDY and by WebSocket."""
    talk = Talk(DOWN, expecting=BIG)
    lab.lower.script = agreeing(talk, kind[1])
    stream = await opened(lab, kind)
    sending = asyncio.create_task(stream.send(UP))
    heard = await within(stream.to_end())
    await sending
    await stream.close()
    assert heard == DOWN
    assert talk.heard == UP


@KINDS
async def test_bytes_sent_with_the_request_head_or_the_101_are_kept(lab: Lab, kind: Kind) -> None:
    """They are the beginning of the stream in each direction."""
    lab.lower.script = agreeing(echo, kind[1], first=b"welcome ")
    method, protocol, fields = kind
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(request(f"{method} {EXEC}", "Connection: Upgrade", f"Upgrade: {protocol}", *fields) + b"early ")
    assert (await stream.head()).status == 101
    await stream.send(b"late")
    assert await within(stream.reader.readexactly(18)) == b"welcome early late"
    await stream.close()


@KINDS
async def test_the_lower_receives_a_request_in_the_form_of_its_apiserver(lab: Lab, kind: Kind) -> None:
    """It contains the lower pod, the apiserver's parameters, the lower's credential and the caller's upgrade fields."""
    lab.lower.script = agreeing(echo, kind[1])
    method, protocol, fields = kind
    stream = await opened(lab, kind)
    await stream.close()
    head = lab.lower.heads[0]
    streams = "stdin=true&stdout=true&stderr=true&container=main"
    path = f"/front/api/v1/namespaces/mapped/pods/web-0/exec?{streams}&command=sh&command=-c&command=the+secret+word"
    assert head.first == f"{method} {path} HTTP/1.1"
    sent = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    assert dict(head.fields).items() >= {**sent, "upgrade": protocol, "connection": "Upgrade"}.items()
    assert head.value("authorization") == f"Bearer {LOWER_TOKEN}"


async def test_other_headers_and_parameters_of_the_caller_do_not_reach_the_lower(lab: Lab) -> None:
    """Only those of the upgrade and of the exec are forwarded."""
    lab.lower.script = agreeing(echo)
    names = ("Cookie", "Impersonate-User", "X-Remote-User", "Origin", "Forwarded", "X-Forwarded-For", "X-Other")
    extra = ("Authorization: Bearer mine", *(f"{name}: marker" for name in names))
    first = f"POST {EXEC}&marker=1&container=marker&stdin=marker"
    head, stream = await lab.upgrade(lab.pki.apiserver, first, "Upgrade: SPDY/3.1", *extra)
    await stream.close()
    assert head.status == 101
    below = lab.lower.heads[0]
    names = [name for name, _ in below.fields]
    assert sorted(names) == ["authorization", "connection", "host", "upgrade", "user-agent"]
    assert "marker" not in str(below)
    assert "mine" not in str(below)


async def test_the_lowers_upgrade_headers_are_returned_to_the_caller(lab: Lab) -> None:
    """The caller receives the lower's protocols and accept key, and no other header."""

    async def script(_head: Head, stream: Stream) -> None:
        fields = (
            "Sec-WebSocket-Accept: xyz",
            "Sec-WebSocket-Protocol: v5.channel.k8s.io",
            "X-Stream-Protocol-Version: v4.channel.k8s.io",
            "Audit-Id: 7",
            "Set-Cookie: a=b",
            "Date: today",
        )
        await stream.send(switching("websocket", *fields))

    lab.lower.script = script
    head, stream = await lab.upgrade(lab.pki.apiserver, f"GET {EXEC}", "Upgrade: websocket")
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
    lab: Lab, kind: Kind, lowers: Script, ours: int, message: bytes
) -> None:
    """The lower is requested once, and data that the caller sent behind its request is not forwarded."""
    heard = b""

    async def script(head: Head, stream: Stream) -> None:
        nonlocal heard
        await lowers(head, stream)
        heard = await stream.to_end()

    lab.lower.script = script
    method, protocol, _ = kind
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(request(f"{method} {EXEC}", "Connection: Upgrade", f"Upgrade: {protocol}") + b"GET / smuggled")
    head = await within(stream.head())
    assert (head.status, await within(stream.to_end())) == (ours, message)
    await stream.close()
    await within(lab.lower.ended.wait())
    assert heard == b""
    assert len(lab.lower.heads) == 1


async def hang_up(_head: Head, _stream: Stream) -> None:
    """Close the connection without sending anything."""


async def test_an_unreachable_lower_gets_502(lab: Lab) -> None:
    """This applies to a lower that hangs up, that does not listen, or whose endpoint is unknown."""
    lab.lower.script = hang_up
    first = await lab.upgrade(lab.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    await lab.lower.close()
    second = await lab.upgrade(lab.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    lab.cluster.failing = Unreachable("closed", cluster="lower-a")
    third = await lab.upgrade(lab.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    for head, stream in (first, second, third):
        assert head.status == 502
        assert b"lower-a: exec of pod mapped/web-0" in await within(stream.to_end())
        await stream.close()


async def test_no_credential_is_sent_to_a_lower_whose_certificate_does_not_verify(lab: Lab) -> None:
    """The error names the failed verification, and no request reaches the lower."""
    lab.cluster.server_name = "another.example"
    head, stream = await lab.upgrade(lab.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    body = await within(stream.to_end())
    await stream.close()
    assert head.status == 502
    assert b"certificate verify failed" in body
    assert lab.lower.heads == []


async def test_an_invalid_lower_credential_gets_502_and_is_not_exposed(lab: Lab) -> None:
    """A credential with a line break is neither in the answer nor in the log."""
    lab.cluster.credential = {"Authorization": "Bearer sensitive\n"}
    head, stream = await lab.upgrade(lab.pki.apiserver, f"POST {EXEC}", "Upgrade: SPDY/3.1")
    body = await within(stream.to_end())
    await stream.close()
    assert head.status == 502
    assert body.startswith(b"lower-a: exec of pod mapped/web-0: ")
    assert b"sensitive" not in body
    assert "sensitive" not in str(lab.log.entries)


@KINDS
async def test_the_end_of_the_lower_ends_the_callers_stream(lab: Lab, kind: Kind) -> None:
    """The caller receives all that was sent before the end."""
    lab.lower.script = agreeing(hang_up, kind[1], first=b"goodbye")
    stream = await opened(lab, kind)
    assert await within(stream.to_end()) == b"goodbye"
    await stream.close()


async def test_the_end_of_the_caller_ends_the_lowers_stream(lab: Lab) -> None:
    """The lower receives all that was sent before the end."""
    talk = Talk()
    lab.lower.script = agreeing(talk)
    stream = await opened(lab)
    await stream.send(UP)
    await stream.close()
    await within(talk.done.wait())
    assert talk.heard == UP


@pytest.mark.parametrize("side", ["caller", "lower"])
async def test_a_reset_of_one_side_ends_the_other(lab: Lab, side: str) -> None:
    """The stream is no longer counted after that."""
    breaking = asyncio.Event()

    async def script(_head: Head, stream: Stream) -> None:
        if side == "caller":
            await stream.to_end()
        else:
            await breaking.wait()
            reset(stream)

    lab.lower.script = agreeing(script)
    stream = await opened(lab)
    assert lab.server.streams() == {NODE: 1}
    breaking.set()
    if side == "caller":
        reset(stream)
        await within(lab.lower.ended.wait())
    else:
        assert await within(stream.to_end()) == b""
    await until(lambda: lab.server.streams() == {NODE: 0})
    await stream.close()


def reset(stream: Stream) -> None:
    """Reset a connection, as the kernel does for a crashed machine."""
    option = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    stream.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
    stream.writer.transport.abort()


async def test_the_lowers_connection_ends_if_the_caller_leaves_before_an_answer(lab: Lab) -> None:
    """A lower that does not answer an exec is not kept connected without a caller."""
    asked = asyncio.Event()

    async def script(_head: Head, stream: Stream) -> None:
        asked.set()
        await stream.to_end()

    lab.lower.script = script
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(request(f"POST {EXEC}", "Connection: Upgrade", "Upgrade: SPDY/3.1"))
    await within(asked.wait())
    reset(stream)
    await stream.close()
    await within(lab.lower.ended.wait())


async def test_a_slow_caller_receives_all_data_after_the_lower_has_ended(lab: Lab) -> None:
    """A caller that is still connected gets every byte, however late it reads."""
    content = DOWN[: 192 * 1024]

    async def script(_head: Head, stream: Stream) -> None:
        await stream.send(content)

    lab.lower.script = agreeing(script)
    caller = SlowCaller(lab, lab.pki.apiserver)
    began = await asyncio.to_thread(caller.ask, f"POST {EXEC}", "Connection: Upgrade", "Upgrade: SPDY/3.1")
    await within(lab.lower.ended.wait())
    await asyncio.sleep(4 * QUICK.leaving)
    heard = began + await asyncio.to_thread(caller.read)
    assert heard.partition(b"\r\n\r\n")[2] == content


async def test_a_fast_caller_is_held_back_while_the_lower_does_not_read(lab: Lab) -> None:
    """All data arrives at the lower byte by byte when it reads again."""
    reading = asyncio.Event()
    content = UP * 8

    async def script(_head: Head, stream: Stream) -> None:
        stream.writer.transport.pause_reading()
        await reading.wait()
        stream.writer.transport.resume_reading()
        assert await stream.reader.readexactly(len(content)) == content
        await stream.send(b"all of it")

    lab.lower.script = agreeing(script)
    stream = await opened(lab)

    async def pour() -> None:
        for start in range(0, len(content), 65536):
            await stream.send(content[start : start + 65536])

    sending = asyncio.create_task(pour())
    await asyncio.wait({sending}, timeout=3 * QUICK.leaving)
    assert not sending.done()
    reading.set()
    assert await within(stream.to_end()) == b"all of it"
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
async def test_attach_and_port_forward_are_spliced_like_exec(lab: Lab, kind: Kind, path: str, subresource: str) -> None:
    """Both routes connect to their own subresources of the lower pod."""
    lab.lower.script = agreeing(echo, kind[1])
    stream = await opened(lab, kind, path)
    await stream.send(UP[:100_000])
    assert await within(stream.reader.readexactly(100_000)) == UP[:100_000]
    await stream.close()
    assert lab.lower.heads[0].first.split()[1] == f"/front/api/v1/namespaces/mapped/pods/web-0/{subresource}"


async def test_an_exec_is_logged_without_its_command(lab: Lab) -> None:
    """The entry contains user, place, and the number and length of the words, but not the words themselves."""
    lab.lower.script = agreeing(hang_up)
    await (await opened(lab)).close()
    place = {"namespace": "shop", "pod": "web", "container": "main"}
    who = {"user": "kube-apiserver", "node": NODE, "lower": "lower-a"}
    assert lab.log.entries == [("exec", {**who, **place, "command_words": 3, "command_length": 19})]
    assert "secret" not in str(lab.log.entries)
