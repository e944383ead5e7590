"""Tests of several engines that serve one webhook: one maintains their common certificate, and they stop in order."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from answering import FakeCluster
from hookkit import INSIDE, SECRET_NAME, WebhookHarness, webhook_harness
from tasks import background

from tensile.errors import Conflict, Denied, NotFound
from tensile.kube.cluster import Patch
from tensile.kube.tls import self_signed
from tensile.objects import MUTATING_WEBHOOK, SECRET, UPPER, Manifest, Ref
from tensile.policy.webhook.certificates import OVERLAP, certificates_of
from tensile.policy.webhook.registration import call
from tensile.policy.webhook.server import CHECK_SECONDS, CONFLICT_SECONDS, ERROR_SECONDS, WebhookListener
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.redaction import OMITTED

ASKED = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
PATIENCE = 30.0
NONE_YET = "the webhook has no certificate yet: waiting for the Secrets of the upper cluster"


@pytest_asyncio.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[WebhookHarness]:
    """The leader, in an empty cluster."""
    async with webhook_harness(tmp_path, inside=INSIDE) as made:
        yield made


@pytest_asyncio.fixture
async def other(webhook: WebhookHarness, tmp_path: Path) -> AsyncIterator[WebhookHarness]:
    """A standby engine in the same cluster, on its own port."""
    async with webhook_harness(tmp_path, webhook.upper, INSIDE) as made:
        made.is_leader = False
        yield made


async def call_each_engine(*engines: WebhookHarness) -> None:
    """Call each engine with the registered CA."""
    for engine in engines:
        await call(f"https://127.0.0.1:{engine.port}/mutate", engine.ca_bundle())


async def pass_on(seconds: float, *engines: WebhookHarness) -> None:
    """Advance the time of engines, and reconcile each."""
    for engine in engines:
        engine.advance(seconds=seconds)
        await engine.server.reconcile()


def authority(of: WebhookHarness) -> bytes:
    """Return the CA in the Secret."""
    found = certificates_of(of.secret() or {})
    assert found is not None
    return found.authority.certificate


async def test_the_leader_creates_the_certificate_and_all_engines_serve_it(
    webhook: WebhookHarness, other: WebhookHarness
) -> None:
    """Its CA is registered as trusted."""
    assert await webhook.start() == CHECK_SECONDS
    assert await other.start() == CHECK_SECONDS
    assert webhook.server.waits() == other.server.waits() == ""
    assert await webhook.served_certificate() == await other.served_certificate()
    assert webhook.ca_bundle() == authority(webhook)
    await call_each_engine(webhook, other)


async def test_a_standby_engine_creates_a_missing_secret(webhook: WebhookHarness, other: WebhookHarness) -> None:
    """It is not ready without one, and a leader of another version creates none; the leader uses it too."""
    other.secrets.mark_stale()
    assert await other.start() == CHECK_SECONDS
    assert (other.server.waits(), webhook.secret()) == (NONE_YET, None)
    other.secrets.replace((), 0)
    assert await other.server.reconcile() == CHECK_SECONDS
    assert (other.server.waits(), webhook.registered()) == ("", None)
    made = webhook.secret()
    await webhook.start()
    assert webhook.secret() == made
    await call_each_engine(webhook, other)


async def test_a_standby_engine_with_a_certificate_writes_nothing(
    webhook: WebhookHarness, other: WebhookHarness
) -> None:
    """With other settings it would alternate with the leader; it writes when it becomes the leader."""
    for one in (webhook, other):
        one.advance(days=-22)
        await one.start()
    before = (webhook.registered(), webhook.secret())
    other.advance(days=22)
    await other.server.reconcile()
    await other.server.serve(other.topology(enabled=False))
    assert await other.server.reconcile() is None
    assert (webhook.registered(), webhook.secret()) == before
    await other.start()
    await webhook.delete_secret()
    await other.server.reconcile()
    assert webhook.secret() is None, "it has a certificate"
    webhook.is_leader, other.is_leader = False, True
    await other.start()
    assert str(other.port) in await webhook.call_webhook()


async def test_a_new_leader_uses_the_existing_secret(
    webhook: WebhookHarness, other: WebhookHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the Secret nor the trusted CA changes, so no call fails during the takeover."""
    await webhook.start()
    secret, trusted = webhook.secret(), webhook.ca_bundle()
    await other.start()
    webhook.is_leader, other.is_leader = False, True
    await other.server.reconcile()
    assert (webhook.secret(), webhook.ca_bundle()) == (secret, trusted)
    assert capsys.readouterr().out.count("the webhook has a new certificate") == 1
    await call_each_engine(webhook, other)


async def test_a_renewed_certificate_keeps_the_trusted_ca(webhook: WebhookHarness, other: WebhookHarness) -> None:
    """Apiservers accept both certificates, whichever engine serves which one."""
    for one in (webhook, other):
        one.advance(days=-22)
        await one.start()
    first, registered = await webhook.served_certificate(), webhook.registered()
    webhook.advance(days=22)
    await webhook.server.reconcile()
    assert await webhook.served_certificate() != first
    await call_each_engine(webhook, other)
    await other.server.reconcile()
    assert await webhook.served_certificate() == await other.served_certificate()
    assert webhook.registered() == registered
    await call_each_engine(webhook, other)


async def test_a_deleted_secret_is_created_again_without_failed_calls(
    webhook: WebhookHarness, other: WebhookHarness
) -> None:
    """It has another CA; both CAs are trusted until no engine can serve the former certificate any more."""
    for one in (webhook, other):
        await one.start()
    first, former = await webhook.served_certificate(), authority(webhook)
    await webhook.delete_secret()
    await pass_on(0.0, other, webhook, other)
    assert authority(webhook) != former
    assert (await webhook.served_certificate(), await other.served_certificate(), webhook.count_trusted_cas()) == (
        first,
        first,
        2,
    )
    await call_each_engine(webhook, other)
    await pass_on(OVERLAP, webhook)
    await call_each_engine(webhook, other)
    await pass_on(OVERLAP, other)
    assert await webhook.served_certificate() == await other.served_certificate() != first
    await call_each_engine(webhook, other)
    await pass_on(OVERLAP, webhook)
    assert webhook.ca_bundle() == authority(webhook)
    await call_each_engine(webhook, other)


@asynccontextmanager
async def running(engine: WebhookHarness) -> AsyncIterator[asyncio.Queue[bool]]:
    """Run an engine for less than its check interval, and yield a queue of whether the Secret exists."""
    news: asyncio.Queue[bool] = asyncio.Queue()
    engine.secrets.subscribe(lambda delta: news.put_nowait(delta.after is not None))
    await engine.server.serve(engine.topology())
    async with background(engine.server.run()), asyncio.timeout(CHECK_SECONDS / 2):
        yield news


async def test_a_change_of_the_secret_is_reconciled_at_once(webhook: WebhookHarness) -> None:
    """The engine does not wait for the remaining delay."""
    async with running(webhook) as news:
        assert await news.get()
        await webhook.delete_secret()
        assert [await news.get(), await news.get()] == [False, True]


async def test_an_engine_that_waits_for_the_secrets_continues_after_their_sync(other: WebhookHarness) -> None:
    """A starting engine has not listed them yet."""
    other.secrets.mark_stale()
    async with running(other) as news:
        await asyncio.sleep(0)
        other.secrets.replace((), 0)
        assert await news.get()


def foreign(data: Any = None) -> Manifest:
    """Return a Secret of that name with another owner."""
    return {"metadata": {"namespace": INSIDE, "name": SECRET_NAME}, "data": data or {}}


async def test_a_secret_of_another_owner_is_neither_changed_nor_served(
    webhook: WebhookHarness, other: WebhookHarness
) -> None:
    """The problem is reported, and a new Secret is created after that one is deleted."""
    there = webhook.upper.place(SECRET, foreign())
    webhook.secrets.put(orjson.dumps(there))
    for one in (webhook, other):
        assert await one.start() == ERROR_SECONDS
    assert (
        "Secret engines/tensile-webhook-demo belongs to another owner and is left unchanged: delete it"
        in webhook.server.waits()
    )
    assert (webhook.secret(), webhook.registered()) == (there, None)
    await webhook.server.serve(webhook.topology(enabled=False))
    await webhook.server.reconcile()
    assert webhook.secret() == there
    await webhook.delete_secret()
    assert await webhook.start() == CHECK_SECONDS
    await webhook.call_webhook()


async def test_an_engine_keeps_its_certificate_if_another_owner_creates_the_secret(webhook: WebhookHarness) -> None:
    """Apiservers still trust that certificate."""
    await webhook.start()
    await webhook.delete_secret()
    there = webhook.upper.place(SECRET, foreign())
    assert await webhook.server.reconcile() == ERROR_SECONDS
    assert webhook.secret() == there
    assert webhook.server.waits() == ""
    await webhook.call_webhook()


async def test_invalid_content_of_the_engines_own_secret_is_replaced(
    webhook: WebhookHarness, other: WebhookHarness
) -> None:
    """A standby engine continues to serve its certificate until then."""
    for one in (webhook, other):
        await one.start()
    spoilt = {"data": {"tls.crt": b64encode(b"no certificate").decode()}}
    found = (webhook.secret() or {})["metadata"]
    body = {**spoilt, "metadata": {"uid": found["uid"], "resourceVersion": found["resourceVersion"]}}
    await webhook.upper.patch(Ref(UPPER, SECRET, INSIDE, SECRET_NAME), Patch("merge-patch", body))
    assert await other.server.reconcile() == ERROR_SECONDS
    await call_each_engine(other)
    await pass_on(0.0, webhook, other)
    assert certificates_of(webhook.secret() or {}) is not None
    await pass_on(2 * OVERLAP, webhook, other)
    await call_each_engine(webhook, other)


class RacingSecretCluster(DryRunCluster):
    """A cluster in which another engine is faster: the first read of the Secret does not find it."""

    hides = 1

    async def read(self, ref: Ref) -> bytes:
        """Read an object, or raise NotFound."""
        if ref.kind == SECRET and self.hides:
            self.hides -= 1
            raise NotFound("no such Secret", status=404)
        return await super().read(ref)


async def test_of_two_engines_that_create_the_secret_one_uses_the_others(tmp_path: Path) -> None:
    """No Secret is overwritten."""
    upper = RacingSecretCluster(UPPER, now=lambda: datetime.now(UTC))
    async with webhook_harness(tmp_path, upper, INSIDE) as webhook, webhook_harness(tmp_path, upper, INSIDE) as other:
        await other.start()
        before, upper.hides = webhook.secret(), 1
        assert await webhook.start() == CONFLICT_SECONDS
        assert await webhook.server.reconcile() == CHECK_SECONDS
        assert webhook.secret() == before
        await call_each_engine(webhook, other)


async def test_a_disabled_webhooks_secret_and_registration_are_deleted_by_the_leader(
    webhook: WebhookHarness, other: WebhookHarness
) -> None:
    """Both are created again when the webhook is enabled."""
    for one in (webhook, other):
        await one.start()
        await one.server.serve(one.topology(enabled=False))
    await other.server.reconcile()
    assert None not in (webhook.secret(), webhook.registered())
    assert await webhook.server.reconcile() is None
    assert (webhook.secret(), webhook.registered()) == (None, None)
    await webhook.start()
    assert None not in (webhook.secret(), webhook.registered())
    await webhook.call_webhook()


async def test_a_refusal_that_quotes_the_secrets_key_is_redacted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another webhook or policy may repeat everything that it received."""

    class Quoting(DryRunCluster):
        """A cluster that refuses Secrets and quotes them."""

        async def create(self, ref: Ref, body: Manifest) -> bytes:
            """Raise Denied with the key in the message."""
            raise Denied(f"{ref}: no {body['data']['tls.key']}", status=403)

    async with webhook_harness(tmp_path, Quoting(UPPER, now=lambda: datetime.now(UTC)), INSIDE) as webhook:
        assert await webhook.start() == ERROR_SECONDS
        assert OMITTED in webhook.server.waits()
    assert OMITTED in capsys.readouterr().out


async def test_a_conflict_is_retried_sooner_than_a_refusal(tmp_path: Path) -> None:
    """After a conflict another engine has probably written the object already."""
    async with webhook_harness(tmp_path) as first:
        await first.start()
        there = first.registered() or {}
    upper = FakeCluster("")
    async with webhook_harness(tmp_path, upper) as webhook:
        upper.queue_responses("read", there, there)
        upper.queue_responses("patch", Conflict("changed since", status=409), Denied("no right to that", status=403))
        assert await webhook.start() == CONFLICT_SECONDS
        assert await webhook.server.reconcile() == ERROR_SECONDS
        assert [one.ref.kind for one in upper.calls] == 4 * [MUTATING_WEBHOOK]


class KeepAliveClient:
    """A client that sends requests on one open connection, as an apiserver does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self) -> bytes:
        """Send a request, and return the response's head in lower case, b"" if the connection has ended."""
        self.writer.write(ASKED)
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            return b""
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await self.reader.readexactly(length)
        return head.lower()


@pytest_asyncio.fixture
async def left(webhook: WebhookHarness) -> AsyncIterator[tuple[WebhookListener, KeepAliveClient]]:
    """A listener that responds to any request, and a client that has sent one."""
    pair = self_signed("x", "127.0.0.1", ["127.0.0.1"], webhook.now, timedelta(days=1))
    made = WebhookListener(pair, lambda _body: orjson.dumps({}))
    await made.start("127.0.0.1", 0)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_verify_locations(cadata=pair.certificate.decode())
    asker = KeepAliveClient(*await asyncio.open_connection("127.0.0.1", made.port, ssl=tls))
    head = await asker.ask()
    assert b" 200 " in head
    assert b"connection: close" not in head
    yield made, asker
    asker.writer.close()
    await made.close()


async def test_a_stopping_listener_answers_the_next_request_and_closes_the_connection(
    left: tuple[WebhookListener, KeepAliveClient],
) -> None:
    """The response has "Connection: close", so that the client sends its next request to another engine."""
    listening, asker = left
    leaving = asyncio.ensure_future(listening.close())
    async with asyncio.timeout(PATIENCE):
        await asyncio.sleep(0)
        head = await asker.ask()
        assert b" 200 " in head
        assert b"connection: close" in head
        assert await asker.reader.read() == b""
        await leaving


async def test_a_stopping_listener_refuses_new_connections(left: tuple[WebhookListener, KeepAliveClient]) -> None:
    """New clients connect to another engine."""
    listening, _ = left
    port = listening.port
    leaving = asyncio.ensure_future(listening.close())
    await asyncio.sleep(0)
    with pytest.raises(OSError, match=r"."):
        await asyncio.open_connection("127.0.0.1", port)
    await leaving


async def test_a_stopping_listener_closes_an_idle_connection(left: tuple[WebhookListener, KeepAliveClient]) -> None:
    """It does not wait for a request, so no connection is open without being served."""
    listening, asker = left
    async with asyncio.timeout(PATIENCE):
        await listening.close()
        assert await asker.reader.read() == b""
