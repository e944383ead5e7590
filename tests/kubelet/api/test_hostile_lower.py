"""Tests of a hostile lower behind the kubelet API: the caller gets a bounded answer, and nothing stays open."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from kubelet_lab import (
    NODE,
    PATIENCE,
    QUICK,
    ConnectionScript,
    HttpHead,
    HttpStream,
    KubeletApiHarness,
    leak_watch,
    request,
    wait_until,
)
from kubelet_pki import Pki

from bench.faults.hostile.answer_parts import AnswerPart, Deaf, Reset, Stall, Wait
from bench.faults.hostile.behaviors import BEHAVIORS
from bench.faults.hostile.streams import BEFORE, EXECS, LOGS
from bench.kit.faultproxy.requests import parse_request
from tensile.kubelet.api.connection import StreamShares

LOG = "GET /containerLogs/shop/web/main?follow=true"
EXEC = "POST /exec/shop/web/main?output=1&input=1&command=sh"
SPDY = ("Connection: Upgrade", "Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: v4.channel.k8s.io")
SWITCHES = ("exec-stalls", "exec-deaf", "exec-flood", "exec-reset-within", "exec-slow")
"""Ways that begin with a 101; a slow one takes longer than the laboratory waits."""
REFUSALS = {
    "exec-never": (504, b"no response in time"),
    "exec-late": (504, b"no response in time"),
    "exec-slow": (504, b"no response in time"),
    "exec-endless-headers": (502, b"the cluster's apiserver"),
    "exec-endless-informational": (502, b"sends only informational responses"),
    "exec-endless-body": (500, b"xxx"),
    "exec-body-first": (502, b"the cluster's apiserver"),
    "exec-ok": (502, b"unexpected response 200"),
    "exec-redirect": (502, b"redirect, which is not followed"),
    "exec-reset": (502, b"the cluster's apiserver"),
    "exec-no-http": (502, b"the cluster's apiserver"),
    "log-never": (504, b"no response in time"),
    "log-slow": (504, b"no response in time"),
    "log-endless-headers": (502, b"the cluster's apiserver"),
    "log-endless-informational": (502, b"sends only informational responses"),
    "log-endless-refusal": (500, b""),
    "log-redirect": (502, b"redirect, which is not followed"),
    "log-switched": (502, b"the cluster's apiserver"),
    "log-no-http": (502, b"the cluster's apiserver"),
}
WHOLE = "log-trailers"
"""Only its content is forwarded, which the tests of logs cover."""
BROKEN = ("log-chunk-beyond-counting", "log-chunk-lies", "log-reset", "log-endless-trailers", "log-endless-extension")
"""Logs that break off: what arrived is forwarded, without the final chunk."""
ENDLESS = ("log-endless", "log-gigantic-chunk", "log-tiny-chunks", "log-stalls")


def hostile(way: str) -> ConnectionScript:
    """Return the script of a lower that behaves in this way."""

    async def script(head: HttpHead, stream: HttpStream) -> None:
        method, target, _ = head.first.split(" ")
        for piece in BEHAVIORS[way].answer(parse_request("", method, target, b"")):
            await _send(piece, stream)

    return script


async def _send(piece: AnswerPart, stream: HttpStream) -> None:
    match piece:
        case bytes():
            await stream.send(piece)
        case Wait(seconds):
            await asyncio.sleep(seconds)
        case Stall():
            await stream.read_to_end()
            raise OSError
        case Deaf():
            stream.stop_reading()
            await asyncio.Event().wait()
        case Reset():
            plain = stream.writer.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.writer.transport.abort()
            raise OSError


async def called(kubelet_api: KubeletApiHarness, way: str) -> HttpStream:
    """Request a log or an exec."""
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(request(LOG) if way in LOGS else request(EXEC, *SPDY))
    return stream


def test_every_hostile_way_is_tested() -> None:
    """Each way is refused, breaks off, is endless, or begins with a 101."""
    assert {*REFUSALS, *BROKEN, *ENDLESS, *SWITCHES} == {*LOGS, *EXECS} - {WHOLE}


@pytest.mark.parametrize("way", REFUSALS)
async def test_the_caller_gets_an_error_that_describes_the_lowers_fault(
    kubelet_api: KubeletApiHarness, way: str
) -> None:
    """It arrives in bounded time with a status and a message, and contains nothing that the lower sent before it."""
    kubelet_api.lower.script = hostile(way)
    status, message = REFUSALS[way]
    stream = await called(kubelet_api, way)
    async with asyncio.timeout(PATIENCE):
        head, rest = await stream.head(), await stream.read_to_end()
    await stream.close()
    assert head.status == status
    assert message in rest
    assert BEFORE not in rest
    assert len(rest) < 10_000
    assert len(kubelet_api.lower.heads) == 1
    await wait_until(lambda: kubelet_api.server.streams() == {NODE: 0})


@pytest.mark.parametrize("way", BROKEN)
async def test_a_log_that_breaks_off_has_no_final_chunk(kubelet_api: KubeletApiHarness, way: str) -> None:
    """The caller receives what arrived, and recognizes by the missing end that the log is incomplete."""
    kubelet_api.lower.script = hostile(way)
    stream = await called(kubelet_api, way)
    async with asyncio.timeout(PATIENCE):
        head, rest = await stream.head(), await stream.read_to_end()
    await stream.close()
    assert head.status == 200
    assert not rest.endswith(b"0\r\n\r\n")
    await wait_until(lambda: kubelet_api.server.streams() == {NODE: 0})


@pytest.mark.parametrize("way", [*ENDLESS, *(way for way in SWITCHES if way not in REFUSALS)])
async def test_both_connections_close_when_the_caller_leaves(kubelet_api: KubeletApiHarness, way: str) -> None:
    """This holds for a lower that sends without end, sends nothing, or does not read."""
    kubelet_api.lower.script = hostile(way)
    stream = await called(kubelet_api, way)
    async with asyncio.timeout(PATIENCE):
        assert (await stream.head()).status in (101, 200)
        if way in EXECS:
            with suppress(OSError):
                async with asyncio.timeout(0.5):
                    await stream.send(b"what is typed" * 300_000)
    stream.writer.transport.abort()
    await wait_until(lambda: kubelet_api.server.streams() == {NODE: 0})
    async with asyncio.timeout(PATIENCE):
        await wait_until(lambda: not kubelet_api.server._listeners[NODE].node_server.connections)


async def test_a_slow_reader_holds_back_a_flood_of_the_lower(kubelet_api: KubeletApiHarness) -> None:
    """The data waits in the kernel, so the lower's sending stops soon after the reader does."""
    sent = 0

    async def script(head: HttpHead, stream: HttpStream) -> None:
        nonlocal sent
        for piece in BEHAVIORS["exec-flood"].answer(parse_request("", "GET", "/", b"")):
            await _send(piece, stream)
            sent += len(piece) if isinstance(piece, bytes) else 0

    kubelet_api.lower.script = script
    stream = await called(kubelet_api, "exec-flood")
    assert (await stream.head()).status == 101
    stream.stop_reading()
    known = -1
    async with asyncio.timeout(PATIENCE):
        while known != (known := sent):  # noqa: ASYNC110 - waits until nothing more is sent
            await asyncio.sleep(0.5)
    assert sent < 32 << 20
    stream.writer.transport.abort()
    await wait_until(lambda: kubelet_api.server.streams() == {NODE: 0})


Follow = Callable[[str, str], Awaitable[int]]


@asynccontextmanager
async def two_nodes(pki: Pki, streams: int, portion: StreamShares) -> AsyncIterator[Follow]:
    """Serve two nodes, and yield a function that follows a pod's log on one.

    The function returns the status of the request. All streams are closed at the end.
    """
    async with (
        leak_watch(),
        KubeletApiHarness(pki, QUICK._replace(waiting=64, streams=streams, portion=portion)) as kubelet_api,
    ):
        kubelet_api.lower.script = hostile("log-stalls")
        kubelet_api.pods.targets["shop", "api"] = kubelet_api.pods.targets["shop", "web"]
        kubelet_api.upper.rights |= {
            (user, verb, rest, "virtual-b") for user, verb, rest, _ in set(kubelet_api.upper.rights)
        }
        await kubelet_api.serve("virtual-b")
        open_streams = []

        async def follow(pod: str, node: str) -> int:
            stream = await kubelet_api.connect(pki.apiserver, node)
            open_streams.append(stream)
            await stream.send(request(f"GET /containerLogs/shop/{pod}/main?follow=true"))
            return (await stream.head()).status

        yield follow
        for stream in open_streams:
            stream.writer.transport.abort()
        await wait_until(lambda: kubelet_api.server.streams() == {NODE: 0, "virtual-b": 0})


async def test_one_pod_or_one_node_cannot_use_all_streams_of_a_user(pki: Pki) -> None:
    """All streams belong to the apiserver's user, so pods and nodes have limits of their own."""
    async with two_nodes(pki, 40, StreamShares(node=6, pod=4)) as follow:
        assert [await follow("web", NODE) for _ in range(5)] == [200] * 4 + [429]
        assert [await follow("api", NODE) for _ in range(3)] == [200] * 2 + [429]
        assert await follow("web", "virtual-b") == 200


async def test_a_node_gets_a_reserved_share_of_streams_if_other_nodes_use_the_rest(pki: Pki) -> None:
    """The share is one twentieth of the user's limit."""
    async with two_nodes(pki, 20, StreamShares(node=100, pod=100)) as follow:
        assert [await follow("web", NODE) for _ in range(21)] == [200] * 20 + [429]
        assert [await follow("web", "virtual-b") for _ in range(2)] == [200, 429]
