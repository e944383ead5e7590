"""Tests that the log explains once why a caller was rejected and what helps; and tests of the limits of streams."""

import asyncio
import socket
import ssl
from typing import Any

import pytest
from kubelet_lab import (
    NODE,
    PATIENCE,
    QUICK,
    HttpHead,
    HttpStream,
    KubeletApiHarness,
    RecordingLogger,
    answering,
    leak_watch,
    request,
    switching,
    wait_until,
)
from kubelet_pki import Identity, Pki

from tensile.kubelet.api.auth import ADDRESS_RATE
from tensile.kubelet.api.routes import HTTPError
from tensile.kubelet.api.service import AGAIN_SECONDS, RejectionLog

LOGS = "GET /containerLogs/shop/web/main"
EXEC = "POST /exec/shop/web/main?output=1&command=id"
UPGRADE = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
EVENT = "kubelet API request rejected"


def rejection_entries(kubelet_api: KubeletApiHarness) -> list[dict[str, object]]:
    """Return the log entries about callers that were rejected."""
    return [fields for event, fields in kubelet_api.log.entries if event == EVENT]


NO_TLS = 0


async def fail(kubelet_api: KubeletApiHarness, identity: Identity | None, *fields: str) -> int:
    """Request a log that is refused, and return the status, or NO_TLS if the handshake already fails."""
    try:
        return (await kubelet_api.ask(identity, LOGS, *fields)).status
    except (OSError, asyncio.IncompleteReadError):
        return NO_TLS


WHO = [
    ("foreign", NO_TLS, "was rejected", "extension-apiserver-authentication must contain"),
    ("expired", NO_TLS, "certificate has expired", "--kubelet-client-certificate"),
    ("server_only", NO_TLS, "was rejected", "--kubelet-client-certificate"),
    ("nameless", 401, "does not accept", "use another"),
    ("powerless", 403, "user=nobody-special", "system:kubelet-api-admin"),
]


@pytest.mark.parametrize(("who", "status", "why", "advice"), WHO)
async def test_each_rejection_is_logged_once_with_reason_and_advice(
    kubelet_api: KubeletApiHarness, who: str, status: int, why: str, advice: str
) -> None:
    """This applies to a certificate of another CA, expired, for servers only, without a name, or without rights."""
    assert [await fail(kubelet_api, getattr(kubelet_api.pki, who)) for _ in range(3)] == [status] * 3
    assert kubelet_api.lower.heads == []
    await wait_until(lambda: bool(rejection_entries(kubelet_api)))
    [entry] = rejection_entries(kubelet_api)
    assert entry["node"] == NODE
    assert why in str(entry["why"])
    assert advice in str(entry["advice"])


async def test_missing_and_invalid_credentials_are_logged_differently(kubelet_api: KubeletApiHarness) -> None:
    """A request without credentials and one with an unknown token have their own entries, without the token."""
    assert [await fail(kubelet_api, None), await fail(kubelet_api, None, "Authorization: Bearer evil")] == [401, 401]
    first, second = rejection_entries(kubelet_api)
    assert "neither a certificate nor a token" in str(first["why"])
    assert "--kubelet-client-certificate" in str(first["advice"])
    assert "does not accept" in str(second["why"])
    assert "evil" not in str(kubelet_api.log.entries)


async def test_an_address_that_sends_many_invalid_tokens_is_logged_once(kubelet_api: KubeletApiHarness) -> None:
    """Tokens over the limit get 429 without a review, and one entry explains it without any token."""
    statuses = set()
    for number in range(ADDRESS_RATE[0] + 10):
        statuses.add((await kubelet_api.ask(None, LOGS, f"Authorization: Bearer evil-{number}")).status)
    assert statuses == {401, 429}
    entries = [
        one for one in rejection_entries(kubelet_api) if "too many requests from this address" in str(one["why"])
    ]
    assert len(entries) == 1
    assert "many invalid tokens" in str(entries[0]["advice"])
    assert "evil" not in str(kubelet_api.log.entries)


def shaken(port: int, context: ssl.SSLContext, name: str) -> None:
    """Do a handshake as other programs do, because asyncio's own closes without sending the alert."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as plain:
        context.wrap_socket(plain, server_hostname=name).close()


@pytest.mark.parametrize("purpose", ["other authority", "other name"])
async def test_a_client_that_rejects_the_serving_certificate_is_logged(
    kubelet_api: KubeletApiHarness, purpose: str
) -> None:
    """If a client's TLS alert rejects the issuer or the name, the log contains the certificate's issuer and advice."""
    context = ssl.create_default_context(
        cadata=kubelet_api.pki.others.pem if purpose == "other authority" else kubelet_api.pki.servers.pem
    )
    name = "localhost" if purpose == "other authority" else "elsewhere.example"
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.to_thread(shaken, kubelet_api.server.port(NODE), context, name)
    await wait_until(lambda: bool(rejection_entries(kubelet_api)))
    [entry] = rejection_entries(kubelet_api)
    assert "rejected the serving certificate" in str(entry["why"])
    assert "--kubelet-certificate-authority" in str(entry["advice"])
    assert "issued by CN=servers" in str(entry["advice"])


async def test_a_caller_that_disconnects_without_tls_is_not_logged(kubelet_api: KubeletApiHarness) -> None:
    """A port scan, or plain HTTP to this port, does not fill the log."""
    for first in (b"", b"GET / HTTP/1.1\r\n\r\n"):
        stream = HttpStream(*await asyncio.open_connection("127.0.0.1", kubelet_api.server.port(NODE)))
        await stream.send(first)
        await stream.close()
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")).status == 200
    assert rejection_entries(kubelet_api) == []


def test_a_rejection_is_logged_again_after_ten_minutes() -> None:
    """A rejection is logged once per node and reason in that time, and statuses that are no rejections never."""
    now, log = [0.0], RecordingLogger()
    complaints = RejectionLog(log, lambda: now[0])
    for status in (403, 403, 404, 503, 400):
        complaints.refused("a", HTTPError(status, f"message {status}"), has_credential=True)  # type: ignore[arg-type]
    assert [fields["why"] for _, fields in log.entries] == ["message 403"]
    complaints.refused("b", HTTPError(403, "message 403"), has_credential=True)  # type: ignore[arg-type]
    now[0] = AGAIN_SECONDS
    complaints.refused("a", HTTPError(403, "message 403"), has_credential=True)  # type: ignore[arg-type]
    assert [fields["node"] for _, fields in log.entries] == ["a", "b", "a"]


async def silent(_head: HttpHead, stream: HttpStream) -> None:
    """Accept an upgrade and send nothing more."""
    await stream.send(switching("SPDY/3.1"))
    await stream.read_to_end()


async def test_a_users_streams_are_limited(pki: Pki) -> None:
    """A stream over the limit gets 429 with the reason, for that user only; a stream that ends makes room."""
    async with leak_watch(), KubeletApiHarness(pki, limits=QUICK._replace(streams=2)) as kubelet_api:
        kubelet_api.lower.script = silent
        kubelet_api.upper.permit("nobody-special", "create", "proxy")
        streams = [(await kubelet_api.upgrade(pki.apiserver, EXEC, UPGRADE[1]))[1] for _ in range(2)]
        refused = await kubelet_api.ask(pki.apiserver, EXEC, *UPGRADE)
        assert (refused.status, b"kube-apiserver has 2 open streams" in refused.body) == (429, True)
        assert len(kubelet_api.lower.heads) == 2
        head, other = await kubelet_api.upgrade(pki.powerless, EXEC, UPGRADE[1])
        assert head.status == 101
        await streams[0].close()
        await wait_until(lambda: kubelet_api.server.streams() == {NODE: 2})
        head, again = await kubelet_api.upgrade(pki.apiserver, EXEC, UPGRADE[1])
        assert head.status == 101
        for stream in (streams[1], other, again):
            await stream.close()


async def test_completed_answers_do_not_count_as_streams(pki: Pki) -> None:
    """Consecutive logs and errors of the lower leave the whole limit to the next request."""
    async with leak_watch(), KubeletApiHarness(pki, limits=QUICK._replace(streams=1)) as kubelet_api:
        for script in (answering("200 OK", b"line\n"), answering("404 Not Found", b"gone")):
            kubelet_api.lower.script = script
            for _ in range(5):
                assert (await kubelet_api.ask(pki.apiserver, LOGS)).status in {200, 404}


async def test_an_idle_stream_is_closed_after_the_idle_time(pki: Pki) -> None:
    """Both ends of a stream without traffic are closed, and a stream with traffic continues."""
    async with leak_watch(), KubeletApiHarness(pki, limits=QUICK._replace(idle=1.5)) as kubelet_api:
        kubelet_api.lower.script = silent
        _, idle = await kubelet_api.upgrade(pki.apiserver, EXEC, UPGRADE[1])
        async with asyncio.timeout(PATIENCE):
            assert await idle.read_to_end() == b""
        await idle.close()
        kubelet_api.lower.script = ticking
        _, busy = await kubelet_api.upgrade(pki.apiserver, EXEC, UPGRADE[1])
        async with asyncio.timeout(PATIENCE):
            assert await busy.reader.readexactly(len(TICKS)) == TICKS
        await busy.close()


TICKS = b"tick" * 12


async def ticking(_head: HttpHead, stream: HttpStream) -> None:
    """Send a word five times a second, for longer than the idle time."""
    await stream.send(switching("SPDY/3.1"))
    for _ in range(12):
        await asyncio.sleep(0.2)
        await stream.send(b"tick")
    await stream.read_to_end()


async def test_a_followed_log_is_not_closed_when_idle(pki: Pki) -> None:
    """The idle time is for streams that run a command; a followed log waits for its next line."""
    line = asyncio.Event()

    async def script(_head: HttpHead, stream: HttpStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await line.wait()
        await stream.send(b"5\r\nline\n\r\n0\r\n\r\n")

    async with leak_watch(), KubeletApiHarness(pki, limits=QUICK._replace(idle=0.1)) as kubelet_api:
        kubelet_api.lower.script = script
        stream = await kubelet_api.connect(pki.apiserver)
        await stream.send(request(f"{LOGS}?follow=true"))
        head: Any = await stream.head()
        assert head.status == 200
        asyncio.get_running_loop().call_later(0.5, line.set)
        assert b"line" in await stream.read_to_end()
        await stream.close()
