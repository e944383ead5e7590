"""Tests of serving and registering the webhook, over real TLS on loopback with an in-memory cluster."""

import asyncio
import os
import socket
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio
from admissionkit import VK_B
from answering import FakeCluster
from filekit import wait_for_watcher
from hookkit import INSIDE, NAME, WebhookHarness, webhook_harness

from bench.kit.spareports import spare_port
from tensile.errors import Denied, TensileError, Unreachable
from tensile.kube.store import Cache
from tensile.kube.tls import KeyPair, self_signed
from tensile.names import TRIED
from tensile.objects import MUTATING_WEBHOOK
from tensile.policy.descheduler.limits import EvictionRecord, encode_records
from tensile.policy.webhook.certificates import OVERLAP
from tensile.policy.webhook.registration import call
from tensile.policy.webhook.server import CHECK_SECONDS, ERROR_SECONDS, WebhookListener
from tensile.topology import parse
from tensile.topology.models import ServiceRef

HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\n"
POD = {
    "metadata": {"name": "web", "namespace": "default", "labels": {"virtual-pod": "true"}},
    "spec": {"nodeSelector": {"disk": "ssd"}},
}


@pytest_asyncio.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[WebhookHarness]:
    """A webhook server with an empty cluster."""
    async with webhook_harness(tmp_path) as made:
        yield made


async def send_request(
    of: WebhookHarness, body: bytes, method: str = "POST", path: str = "/anything"
) -> tuple[int, bytes]:
    """Send a request that trusts the registered CA, and return the status and the body of the response."""
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=of.ca_bundle().decode())
    url = f"https://127.0.0.1:{of.port}{path}"
    sent = {"data": BytesIO(body), "ssl": trusted}
    async with aiohttp.ClientSession() as session, session.request(method, url, **sent) as response:
        return response.status, await response.read()


def review(pod: dict[str, Any] | None = None) -> bytes:
    """Return a review of a new pod."""
    request = {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "default", "object": pod or POD}
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


async def test_the_webhook_is_registered_after_it_has_called_itself(webhook: WebhookHarness) -> None:
    """The configuration has its own CA, and a second check writes nothing."""
    await webhook.server.serve(webhook.topology())
    assert webhook.registered() is None
    assert await webhook.server.reconcile() == CHECK_SECONDS
    found = webhook.registered()
    assert found is not None
    assert found["webhooks"][0]["clientConfig"]["url"].endswith(f":{webhook.port}/mutate")
    status, review_response = await send_request(webhook, review())
    response = orjson.loads(review_response)["response"]
    assert (status, response["allowed"], "patch" in response) == (200, True, True)
    version = found["metadata"]["resourceVersion"]
    await webhook.server.reconcile()
    assert (webhook.registered() or {})["metadata"]["resourceVersion"] == version


async def test_other_requests_have_their_own_status(webhook: WebhookHarness) -> None:
    """A malformed review is 400, another method 405, a large body 413, and the health check 200."""
    await webhook.start()
    status, review_response = await send_request(webhook, b"{")
    assert (status, review_response[:39]) == (400, b"the request is not an AdmissionReview: ")
    assert (await send_request(webhook, b"", "GET"))[0] == 405
    assert await send_request(webhook, b"", "GET", "/healthz") == (200, b"ok")
    assert (await send_request(webhook, b"x" * (5 << 20)))[0] == 413


async def listening(
    of: WebhookHarness, answer: Callable[[bytes], bytes], **given: float
) -> tuple[WebhookListener, bytes]:
    """Start a listener with another answer function, and return it with the certificate to trust."""
    pair = self_signed("x", "127.0.0.1", ["127.0.0.1"], of.now, timedelta(days=1))
    made = WebhookListener(pair, answer, **given)
    await made.start("127.0.0.1", 0)
    return made, pair.certificate


async def test_an_announced_body_that_is_not_sent_times_out(webhook: WebhookHarness) -> None:
    """Such a client holds a connection for a few seconds only."""
    made, trusted = await listening(webhook, bytes, patience=2.0)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_verify_locations(cadata=trusted.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port, ssl=tls)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
    assert b" 408 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
    await made.close()


async def test_a_defect_is_answered_with_an_internal_error(webhook: WebhookHarness) -> None:
    """The apiserver continues without the webhook's answer."""

    def broken(_body: bytes) -> bytes:
        """Raise an unexpected error."""
        raise ZeroDivisionError("of the pod")

    made, trusted = await listening(webhook, broken)
    with pytest.raises(TensileError, match="HTTP 500"):
        await call(f"https://127.0.0.1:{made.port}/", trusted)
    await made.close()


async def test_a_long_response_to_the_test_call_is_read_completely(webhook: WebhookHarness) -> None:
    """A single read returns only the part that has arrived."""

    def long(body: bytes) -> bytes:
        """Return an allowing response with a long warning."""
        answer = {"uid": orjson.loads(body)["request"]["uid"], "allowed": True}
        return orjson.dumps({"warnings": "x" * 1_000_000, "response": answer})

    made, trusted = await listening(webhook, long)
    await call(f"https://127.0.0.1:{made.port}/", trusted)
    await made.close()


async def test_a_large_review_is_answered(webhook: WebhookHarness) -> None:
    """The pod has an annotation of two MiB."""
    await webhook.start()
    large = {**POD, "metadata": {**POD["metadata"], "annotations": {"a": "x" * (2 << 20)}}}
    assert (await send_request(webhook, review(large)))[0] == 200


async def test_an_unreachable_webhook_is_not_registered(webhook: WebhookHarness) -> None:
    """A wrong address would delay every creation by the timeout; the registration is retried."""
    await webhook.server.serve(webhook.topology(url=f"https://127.0.0.1:{spare_port()}/"))
    assert await webhook.server.reconcile() == ERROR_SECONDS
    assert webhook.registered() is None
    await webhook.start()
    assert webhook.registered() is not None


async def test_a_webhook_without_an_address_is_served_but_not_registered(webhook: WebhookHarness) -> None:
    """A user may register it manually."""
    topology = webhook.topology()
    nowhere = topology.model_copy(update={"webhook": topology.webhook.model_copy(update={"url": None})})
    await webhook.server.serve(nowhere)
    await webhook.server.reconcile()
    assert webhook.registered() is None
    assert webhook.server.port == webhook.port


async def test_a_configuration_of_another_owner_is_neither_changed_nor_deleted(webhook: WebhookHarness) -> None:
    """It also stays when the webhook is disabled."""
    there = webhook.upper.place(MUTATING_WEBHOOK, {"metadata": {"name": NAME}, "webhooks": []})
    assert await webhook.start() == ERROR_SECONDS
    await webhook.server.serve(webhook.topology(enabled=False))
    assert await webhook.server.reconcile() is None
    assert webhook.registered() == there


async def test_a_disabled_webhook_is_unregistered_and_not_served(webhook: WebhookHarness) -> None:
    """Otherwise every creation would wait for the timeout; it is registered again when it is enabled."""
    await webhook.start()
    await webhook.server.serve(webhook.topology(enabled=False))
    assert await webhook.server.reconcile() is None
    assert webhook.registered() is None
    with pytest.raises(OSError, match=r"."):
        await asyncio.open_connection("127.0.0.1", webhook.port)
    await webhook.start()
    assert webhook.registered() is not None


async def test_an_engine_that_stops_keeps_the_registration(webhook: WebhookHarness) -> None:
    """This or another engine will start again, and the apiserver continues without an answer until then."""
    await webhook.start()
    await webhook.server.close()
    assert webhook.registered() is not None


async def test_a_changed_registration_is_corrected(webhook: WebhookHarness) -> None:
    """For example, failure policy Fail would make creations fail."""
    await webhook.start()
    found = webhook.registered() or {}
    webhook.upper.place(MUTATING_WEBHOOK, {**found, "webhooks": [{**found["webhooks"][0], "failurePolicy": "Fail"}]})
    await webhook.server.reconcile()
    assert (webhook.registered() or {})["webhooks"][0]["failurePolicy"] == "Ignore"


def files(of: WebhookHarness, directory: Path) -> KeyPair:
    """Write a certificate and its key, as another issuer would."""
    pair = self_signed("someone", "hook", ["127.0.0.1"], of.now, timedelta(days=5))
    (directory / "hook.crt").write_bytes(pair.certificate)
    (directory / "hook.key").write_bytes(pair.key)
    return pair


def changed(of: WebhookHarness, directory: Path) -> AbstractAsyncContextManager[None]:
    """Wait until the file watcher has observed a change of the files made in this context."""
    return wait_for_watcher(of.watcher, directory / "hook.crt", directory / "hook.key")


FILES = ", tlsCertFile: hook.crt, tlsKeyFile: hook.key"


async def test_certificate_files_are_used_and_watched(webhook: WebhookHarness, tmp_path: Path) -> None:
    """A renewed pair is trusted before it is served, and the former one a while longer; half a pair has no effect."""
    files(webhook, tmp_path)
    await webhook.start(FILES)
    first = await webhook.served_certificate()
    async with changed(webhook, tmp_path):
        (tmp_path / "hook.key").write_bytes(b"half")
    assert await webhook.server.reconcile() == ERROR_SECONDS
    assert await webhook.served_certificate() == first
    async with changed(webhook, tmp_path):
        files(webhook, tmp_path)
    await webhook.server.reconcile()
    assert (webhook.count_trusted_cas(), await webhook.served_certificate()) == (2, first)
    webhook.advance(seconds=OVERLAP)
    await webhook.server.reconcile()
    assert (webhook.count_trusted_cas(), await webhook.served_certificate() == first) == (2, False)
    await webhook.call_webhook()
    webhook.advance(seconds=OVERLAP)
    await webhook.server.reconcile()
    assert webhook.count_trusted_cas() == 1


async def test_certificate_files_for_another_host_are_reported_and_not_served(
    webhook: WebhookHarness, tmp_path: Path
) -> None:
    """The apiserver would reject them, and admit every pod without the webhook."""
    files(webhook, tmp_path)
    await webhook.start(FILES)
    first = await webhook.served_certificate()
    pair = self_signed("someone", "hook", ["webhook.example.com"], webhook.now, timedelta(days=5))
    async with changed(webhook, tmp_path):
        (tmp_path / "hook.crt").write_bytes(pair.certificate)
        (tmp_path / "hook.key").write_bytes(pair.key)
    assert await webhook.server.reconcile() == ERROR_SECONDS
    webhook.advance(seconds=OVERLAP)
    await webhook.server.reconcile()
    assert (webhook.count_trusted_cas(), await webhook.served_certificate()) == (1, first)
    assert "hook.crt is for webhook.example.com, and the apiserver calls the webhook at 127.0.0.1" in " ".join(
        webhook.server.unregistered
    )


async def test_a_service_is_refused_if_the_engine_runs_outside_the_cluster(webhook: WebhookHarness) -> None:
    """The Service's name cannot be resolved there; the message has the remedy."""
    topology = webhook.topology()
    service = ServiceRef(namespace=INSIDE, name="webhook")
    inside = topology.webhook.model_copy(update={"url": None, "service": service})
    await webhook.server.serve(topology.model_copy(update={"webhook": inside}))
    assert await webhook.server.reconcile() == ERROR_SECONDS
    (message,) = webhook.server.unregistered
    assert message.endswith("this engine runs outside the upper cluster: set webhook.url instead of webhook.service")


@pytest.mark.parametrize("missing", ["hook.crt", "hook.key"])
async def test_unusable_certificate_files_raise_an_error_with_their_name(
    webhook: WebhookHarness, tmp_path: Path, missing: str
) -> None:
    """A file may be no certificate, missing or no regular file."""
    files(webhook, tmp_path)
    (tmp_path / missing).write_bytes(b"nothing")
    with pytest.raises(TensileError, match=rf"{missing}: it contains no "):
        await webhook.server.serve(webhook.topology(FILES))
    async with changed(webhook, tmp_path):
        (tmp_path / missing).unlink()
    with pytest.raises(TensileError, match=missing):
        await webhook.server.serve(webhook.topology(FILES))
    async with changed(webhook, tmp_path):
        os.mkfifo(tmp_path / missing)
    with pytest.raises(TensileError, match=rf"{missing}: cannot be read \(not a file\): name a regular file"):
        await webhook.server.serve(webhook.topology(FILES))


async def test_a_port_of_another_program_is_pending_until_it_is_free(webhook: WebhookHarness) -> None:
    """The webhook is not registered until then, and needs no second edit afterwards."""
    with socket.create_server(("127.0.0.1", webhook.port)):
        with pytest.raises(TensileError, match=f"port {webhook.port} .*another program uses the port"):
            await webhook.server.serve(webhook.topology())
        assert await webhook.server.reconcile() == ERROR_SECONDS
        (message,) = webhook.server.pending
        assert "another program uses the port: stop that program, or set another webhook.port, also in" in message
        assert message in webhook.server.waits()
        assert (webhook.registered(), webhook.server.port) == (None, 0)
    assert await webhook.server.reconcile() == CHECK_SECONDS
    assert (webhook.server.pending, webhook.server.waits()) == ((), "")
    assert (await send_request(webhook, review()))[0] == 200


async def test_a_pending_port_is_cleared_when_the_webhook_is_disabled(webhook: WebhookHarness) -> None:
    """Nothing waits for the port any more."""
    with socket.create_server(("127.0.0.1", webhook.port)), pytest.raises(TensileError):
        await webhook.server.serve(webhook.topology())
    await webhook.server.serve(webhook.topology(enabled=False))
    assert await webhook.server.reconcile() is None
    assert (webhook.server.pending, webhook.server.waits(), webhook.server.port) == ((), "", 0)


async def test_missing_certificate_files_of_an_edit_are_pending(webhook: WebhookHarness, tmp_path: Path) -> None:
    """The former certificate is served until the files exist."""
    await webhook.start()
    before = await webhook.served_certificate()
    with pytest.raises(TensileError, match=r"hook\.crt"):
        await webhook.server.serve(webhook.topology(FILES))
    assert await webhook.server.reconcile() == ERROR_SECONDS
    assert "hook.crt" in webhook.server.pending[0]
    assert await webhook.served_certificate() == before
    async with changed(webhook, tmp_path):
        files(webhook, tmp_path)
    await webhook.server.reconcile()
    assert webhook.server.pending == ()


async def test_a_new_address_is_registered_only_after_it_responds(webhook: WebhookHarness) -> None:
    """The certificate has both names under the same CA, and the former address stays registered until then."""
    await webhook.start()
    former, trusted = await webhook.call_webhook(), webhook.ca_bundle()
    assert await webhook.start(url=f"https://nowhere.invalid:{webhook.port}/mutate") == ERROR_SECONDS
    assert await webhook.call_webhook() == former
    (message,) = webhook.server.unregistered
    assert message.startswith(f"the webhook is not registered as configured: https://nowhere.invalid:{webhook.port}/")
    other = f"https://localhost:{webhook.port}/mutate"
    assert await webhook.start(url=other) == CHECK_SECONDS
    assert webhook.server.unregistered == ()
    assert (await webhook.call_webhook(), webhook.ca_bundle()) == (other, trusted)


async def test_outside_a_cluster_the_certificate_is_renewed_under_the_same_ca(webhook: WebhookHarness) -> None:
    """The registration does not change."""
    webhook.advance(days=-22)
    await webhook.start()
    first, registered = await webhook.served_certificate(), webhook.registered()
    webhook.advance(days=22)
    await webhook.server.reconcile()
    assert await webhook.served_certificate() != first
    assert webhook.registered() == registered
    await webhook.call_webhook()


async def test_an_engine_outside_a_cluster_registers_a_new_ca_after_a_restart(
    webhook: WebhookHarness, tmp_path: Path
) -> None:
    """The key of the former CA was only in memory."""
    await webhook.start()
    before = webhook.ca_bundle()
    async with webhook_harness(tmp_path, webhook.upper) as other:
        await other.start()
        assert other.ca_bundle() != before
        assert other.count_trusted_cas() == 1
        await other.call_webhook()


async def test_changed_selector_keys_apply_from_the_next_review(webhook: WebhookHarness) -> None:
    """A reload without other changes keeps the certificate."""
    await webhook.start()
    before = await webhook.served_certificate()
    await webhook.server.serve(webhook.topology(", ignoreSelectorKeys: [disk]"))
    assert await webhook.served_certificate() == before
    _, review_response = await send_request(webhook, review())
    assert b"disk" not in review_response
    assert orjson.loads(review_response)["response"]["allowed"]


async def test_the_selected_node_of_a_claim_is_read_from_the_store(webhook: WebhookHarness) -> None:
    """A claim that is not in the store has none."""
    await webhook.server.serve(webhook.topology())
    claim = {"metadata": {"name": "data", "namespace": "default", "uid": "c", "resourceVersion": "2"}}
    noted = {**claim["metadata"], "annotations": {"volume.kubernetes.io/selected-node": VK_B}}
    webhook.claims.put(orjson.dumps({**claim, "metadata": noted}))
    assert webhook.server._node_of("default", "data") == VK_B
    assert webhook.server._node_of("default", "other") == ""


async def test_a_pod_avoids_nodes_that_its_controllers_pods_left(webhook: WebhookHarness) -> None:
    """The eviction records of enabled descheduling count, and only for the same controller."""
    node = {"metadata": {"name": VK_B, "uid": "n", "resourceVersion": "1"}}
    notes = encode_records([EvictionRecord("rs", "old", webhook.now, (VK_B,))])
    webhook.nodes.put(orjson.dumps({"metadata": {**node["metadata"], "annotations": {TRIED: notes}}}))
    lower = "name: b, kubeconfig: k, node: {name: " + VK_B + "}"
    topology = webhook.topology(more="}\ndescheduler: {enabled: true")
    await webhook.server.serve(topology.model_copy(update={"lowers": parse(HEAD + f"lowers: [{{{lower}}}]\n").lowers}))
    await webhook.server.reconcile()
    owner = {"kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}
    for uid, is_kept_off in (("rs", True), ("other", False)):
        pod = {**POD, "metadata": {**POD["metadata"], "ownerReferences": [{**owner, "uid": uid}]}}
        _, review_response = await send_request(webhook, review(pod))
        patch = b64decode(orjson.loads(review_response)["response"]["patch"]).decode()
        assert ("NotIn" in patch and VK_B in patch) == is_kept_off


async def test_run_reconciles_at_once_when_the_topology_changes(webhook: WebhookHarness) -> None:
    """It does not wait for the remaining delay."""
    calls: asyncio.Queue[bool] = asyncio.Queue()
    cache = Cache()
    cache.subscribe(lambda delta: calls.put_nowait(delta.after is not None))
    webhook.upper.follow(MUTATING_WEBHOOK, cache, bool)
    await webhook.server.serve(webhook.topology())
    running = asyncio.create_task(webhook.server.run())
    try:
        async with asyncio.timeout(4):
            assert await calls.get()
            await webhook.server.serve(webhook.topology(enabled=False))
            assert not await calls.get()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("error", [Denied("no right to that", status=403), Unreachable("away")])
async def test_a_failed_registration_does_not_stop_serving(
    tmp_path: Path, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is retried, because another client may have registered the webhook; a remaining registration is logged."""
    upper = FakeCluster("")
    async with webhook_harness(tmp_path, upper) as webhook:
        upper.queue_responses("read", error, error)
        assert await webhook.start() == ERROR_SECONDS
        assert webhook.server.port == webhook.port
        assert webhook.server.waits() == ""
        await webhook.server.serve(webhook.topology(enabled=False))
        assert await webhook.server.reconcile() == (ERROR_SECONDS if isinstance(error, Unreachable) else None)
    assert "the webhook registration may still exist" in capsys.readouterr().out


async def test_a_test_call_fails_with_another_certificate(webhook: WebhookHarness) -> None:
    """The webhook must have the certificate that is trusted."""
    await webhook.server.serve(webhook.topology())
    stranger = self_signed("x", "127.0.0.1", ["127.0.0.1"], webhook.now, timedelta(days=1))
    with pytest.raises(TensileError, match="certificate verify failed"):
        await call(f"https://127.0.0.1:{webhook.port}/", stranger.certificate)
