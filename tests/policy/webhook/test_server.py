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
from answering import Answering
from filekit import heard
from hookkit import INSIDE, NAME, Scene, scene

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
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    """A webhook server with an empty cluster."""
    async with scene(tmp_path) as made:
        yield made


async def asked(of: Scene, body: bytes, method: str = "POST", path: str = "/anything") -> tuple[int, bytes]:
    """Send a request that trusts the registered CA, and return the status and the body of the response."""
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=of.trusted().decode())
    url = f"https://127.0.0.1:{of.port}{path}"
    sent = {"data": BytesIO(body), "ssl": trusted}
    async with aiohttp.ClientSession() as session, session.request(method, url, **sent) as response:
        return response.status, await response.read()


def review(pod: dict[str, Any] | None = None) -> bytes:
    """Return a review of a new pod."""
    request = {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "default", "object": pod or POD}
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


async def test_the_webhook_is_registered_after_it_has_called_itself(here: Scene) -> None:
    """The configuration has its own CA, and a second check writes nothing."""
    await here.server.serve(here.topology())
    assert here.registered() is None
    assert await here.server.reconcile() == CHECK_SECONDS
    found = here.registered()
    assert found is not None
    assert found["webhooks"][0]["clientConfig"]["url"].endswith(f":{here.port}/mutate")
    status, said = await asked(here, review())
    response = orjson.loads(said)["response"]
    assert (status, response["allowed"], "patch" in response) == (200, True, True)
    version = found["metadata"]["resourceVersion"]
    await here.server.reconcile()
    assert (here.registered() or {})["metadata"]["resourceVersion"] == version


async def test_other_requests_have_their_own_status(here: Scene) -> None:
    """A malformed review is 400, another method 405, a large body 413, and the health check 200."""
    await here.begin()
    status, said = await asked(here, b"{")
    assert (status, said[:39]) == (400, b"the request is not an AdmissionReview: ")
    assert (await asked(here, b"", "GET"))[0] == 405
    assert await asked(here, b"", "GET", "/healthz") == (200, b"ok")
    assert (await asked(here, b"x" * (5 << 20)))[0] == 413


async def listening(of: Scene, answer: Callable[[bytes], bytes], **given: float) -> tuple[WebhookListener, bytes]:
    """Start a listener with another answer function, and return it with the certificate to trust."""
    pair = self_signed("x", "127.0.0.1", ["127.0.0.1"], of.now, timedelta(days=1))
    made = WebhookListener(pair, answer, **given)
    await made.start("127.0.0.1", 0)
    return made, pair.certificate


async def test_an_announced_body_that_is_not_sent_times_out(here: Scene) -> None:
    """Such a client holds a connection for a few seconds only."""
    made, trusted = await listening(here, bytes, patience=2.0)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_verify_locations(cadata=trusted.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port, ssl=tls)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
    assert b" 408 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
    await made.close()


async def test_a_defect_is_answered_with_an_internal_error(here: Scene) -> None:
    """The apiserver continues without the webhook's answer."""

    def broken(_body: bytes) -> bytes:
        """Raise an unexpected error."""
        raise ZeroDivisionError("of the pod")

    made, trusted = await listening(here, broken)
    with pytest.raises(TensileError, match="HTTP 500"):
        await call(f"https://127.0.0.1:{made.port}/", trusted)
    await made.close()


async def test_a_long_response_to_the_test_call_is_read_completely(here: Scene) -> None:
    """A single read returns only the part that has arrived."""

    def long(body: bytes) -> bytes:
        """Return an allowing response with a long warning."""
        answer = {"uid": orjson.loads(body)["request"]["uid"], "allowed": True}
        return orjson.dumps({"warnings": "x" * 1_000_000, "response": answer})

    made, trusted = await listening(here, long)
    await call(f"https://127.0.0.1:{made.port}/", trusted)
    await made.close()


async def test_a_large_review_is_answered(here: Scene) -> None:
    """The pod has an annotation of two MiB."""
    await here.begin()
    large = {**POD, "metadata": {**POD["metadata"], "annotations": {"a": "x" * (2 << 20)}}}
    assert (await asked(here, review(large)))[0] == 200


async def test_an_unreachable_webhook_is_not_registered(here: Scene) -> None:
    """A wrong address would delay every creation by the timeout; the registration is retried."""
    await here.server.serve(here.topology(url=f"https://127.0.0.1:{spare_port()}/"))
    assert await here.server.reconcile() == ERROR_SECONDS
    assert here.registered() is None
    await here.begin()
    assert here.registered() is not None


async def test_a_webhook_without_an_address_is_served_but_not_registered(here: Scene) -> None:
    """A user may register it manually."""
    topology = here.topology()
    nowhere = topology.model_copy(update={"webhook": topology.webhook.model_copy(update={"url": None})})
    await here.server.serve(nowhere)
    await here.server.reconcile()
    assert here.registered() is None
    assert here.server.port == here.port


async def test_a_configuration_of_another_owner_is_neither_changed_nor_deleted(here: Scene) -> None:
    """It also stays when the webhook is disabled."""
    there = here.upper.place(MUTATING_WEBHOOK, {"metadata": {"name": NAME}, "webhooks": []})
    assert await here.begin() == ERROR_SECONDS
    await here.server.serve(here.topology(enabled=False))
    assert await here.server.reconcile() is None
    assert here.registered() == there


async def test_a_disabled_webhook_is_unregistered_and_not_served(here: Scene) -> None:
    """Otherwise every creation would wait for the timeout; it is registered again when it is enabled."""
    await here.begin()
    await here.server.serve(here.topology(enabled=False))
    assert await here.server.reconcile() is None
    assert here.registered() is None
    with pytest.raises(OSError, match=r"."):
        await asyncio.open_connection("127.0.0.1", here.port)
    await here.begin()
    assert here.registered() is not None


async def test_an_engine_that_stops_keeps_the_registration(here: Scene) -> None:
    """This or another engine will start again, and the apiserver continues without an answer until then."""
    await here.begin()
    await here.server.close()
    assert here.registered() is not None


async def test_a_changed_registration_is_corrected(here: Scene) -> None:
    """For example, failure policy Fail would make creations fail."""
    await here.begin()
    found = here.registered() or {}
    here.upper.place(MUTATING_WEBHOOK, {**found, "webhooks": [{**found["webhooks"][0], "failurePolicy": "Fail"}]})
    await here.server.reconcile()
    assert (here.registered() or {})["webhooks"][0]["failurePolicy"] == "Ignore"


def files(of: Scene, directory: Path) -> KeyPair:
    """Write a certificate and its key, as another issuer would."""
    pair = self_signed("someone", "hook", ["127.0.0.1"], of.now, timedelta(days=5))
    (directory / "hook.crt").write_bytes(pair.certificate)
    (directory / "hook.key").write_bytes(pair.key)
    return pair


def changed(of: Scene, directory: Path) -> AbstractAsyncContextManager[None]:
    """Wait until the file watcher has observed a change of the files made in this context."""
    return heard(of.watcher, directory / "hook.crt", directory / "hook.key")


FILES = ", tlsCertFile: hook.crt, tlsKeyFile: hook.key"


async def test_certificate_files_are_used_and_watched(here: Scene, tmp_path: Path) -> None:
    """A renewed pair is trusted before it is served, and the former one a while longer; half a pair has no effect."""
    files(here, tmp_path)
    await here.begin(FILES)
    first = await here.shown()
    async with changed(here, tmp_path):
        (tmp_path / "hook.key").write_bytes(b"half")
    assert await here.server.reconcile() == ERROR_SECONDS
    assert await here.shown() == first
    async with changed(here, tmp_path):
        files(here, tmp_path)
    await here.server.reconcile()
    assert (here.trusts(), await here.shown()) == (2, first)
    here.add_after(seconds=OVERLAP)
    await here.server.reconcile()
    assert (here.trusts(), await here.shown() == first) == (2, False)
    await here.heard()
    here.add_after(seconds=OVERLAP)
    await here.server.reconcile()
    assert here.trusts() == 1


async def test_certificate_files_for_another_host_are_reported_and_not_served(here: Scene, tmp_path: Path) -> None:
    """The apiserver would reject them, and admit every pod without the webhook."""
    files(here, tmp_path)
    await here.begin(FILES)
    first = await here.shown()
    pair = self_signed("someone", "hook", ["webhook.example.com"], here.now, timedelta(days=5))
    async with changed(here, tmp_path):
        (tmp_path / "hook.crt").write_bytes(pair.certificate)
        (tmp_path / "hook.key").write_bytes(pair.key)
    assert await here.server.reconcile() == ERROR_SECONDS
    here.add_after(seconds=OVERLAP)
    await here.server.reconcile()
    assert (here.trusts(), await here.shown()) == (1, first)
    assert "hook.crt is for webhook.example.com, and the apiserver calls the webhook at 127.0.0.1" in " ".join(
        here.server.unregistered
    )


async def test_a_service_is_refused_if_the_engine_runs_outside_the_cluster(here: Scene) -> None:
    """The Service's name cannot be resolved there; the message has the remedy."""
    topology = here.topology()
    service = ServiceRef(namespace=INSIDE, name="webhook")
    inside = topology.webhook.model_copy(update={"url": None, "service": service})
    await here.server.serve(topology.model_copy(update={"webhook": inside}))
    assert await here.server.reconcile() == ERROR_SECONDS
    (words,) = here.server.unregistered
    assert words.endswith("this engine runs outside the upper cluster: set webhook.url instead of webhook.service")


@pytest.mark.parametrize("missing", ["hook.crt", "hook.key"])
async def test_unusable_certificate_files_raise_an_error_with_their_name(
    here: Scene, tmp_path: Path, missing: str
) -> None:
    """A file may be no certificate, missing or no regular file."""
    files(here, tmp_path)
    (tmp_path / missing).write_bytes(b"nothing")
    with pytest.raises(TensileError, match=rf"{missing}: it contains no "):
        await here.server.serve(here.topology(FILES))
    async with changed(here, tmp_path):
        (tmp_path / missing).unlink()
    with pytest.raises(TensileError, match=missing):
        await here.server.serve(here.topology(FILES))
    async with changed(here, tmp_path):
        os.mkfifo(tmp_path / missing)
    with pytest.raises(TensileError, match=rf"{missing}: cannot be read \(not a file\): name a regular file"):
        await here.server.serve(here.topology(FILES))


async def test_a_port_of_another_program_is_pending_until_it_is_free(here: Scene) -> None:
    """The webhook is not registered until then, and needs no second edit afterwards."""
    with socket.create_server(("127.0.0.1", here.port)):
        with pytest.raises(TensileError, match=f"port {here.port} .*another program uses the port"):
            await here.server.serve(here.topology())
        assert await here.server.reconcile() == ERROR_SECONDS
        (words,) = here.server.pending
        assert "another program uses the port: stop that program, or set another webhook.port, also in" in words
        assert words in here.server.waits()
        assert (here.registered(), here.server.port) == (None, 0)
    assert await here.server.reconcile() == CHECK_SECONDS
    assert (here.server.pending, here.server.waits()) == ((), "")
    assert (await asked(here, review()))[0] == 200


async def test_a_pending_port_is_cleared_when_the_webhook_is_disabled(here: Scene) -> None:
    """Nothing waits for the port any more."""
    with socket.create_server(("127.0.0.1", here.port)), pytest.raises(TensileError):
        await here.server.serve(here.topology())
    await here.server.serve(here.topology(enabled=False))
    assert await here.server.reconcile() is None
    assert (here.server.pending, here.server.waits(), here.server.port) == ((), "", 0)


async def test_missing_certificate_files_of_an_edit_are_pending(here: Scene, tmp_path: Path) -> None:
    """The former certificate is served until the files exist."""
    await here.begin()
    before = await here.shown()
    with pytest.raises(TensileError, match=r"hook\.crt"):
        await here.server.serve(here.topology(FILES))
    assert await here.server.reconcile() == ERROR_SECONDS
    assert "hook.crt" in here.server.pending[0]
    assert await here.shown() == before
    async with changed(here, tmp_path):
        files(here, tmp_path)
    await here.server.reconcile()
    assert here.server.pending == ()


async def test_a_new_address_is_registered_only_after_it_responds(here: Scene) -> None:
    """The certificate has both names under the same CA, and the former address stays registered until then."""
    await here.begin()
    former, trusted = await here.heard(), here.trusted()
    assert await here.begin(url=f"https://nowhere.invalid:{here.port}/mutate") == ERROR_SECONDS
    assert await here.heard() == former
    (words,) = here.server.unregistered
    assert words.startswith(f"the webhook is not registered as configured: https://nowhere.invalid:{here.port}/")
    other = f"https://localhost:{here.port}/mutate"
    assert await here.begin(url=other) == CHECK_SECONDS
    assert here.server.unregistered == ()
    assert (await here.heard(), here.trusted()) == (other, trusted)


async def test_outside_a_cluster_the_certificate_is_renewed_under_the_same_ca(here: Scene) -> None:
    """The registration does not change."""
    here.add_after(days=-22)
    await here.begin()
    first, registered = await here.shown(), here.registered()
    here.add_after(days=22)
    await here.server.reconcile()
    assert await here.shown() != first
    assert here.registered() == registered
    await here.heard()


async def test_an_engine_outside_a_cluster_registers_a_new_ca_after_a_restart(here: Scene, tmp_path: Path) -> None:
    """The key of the former CA was only in memory."""
    await here.begin()
    before = here.trusted()
    async with scene(tmp_path, here.upper) as other:
        await other.begin()
        assert other.trusted() != before
        assert other.trusts() == 1
        await other.heard()


async def test_changed_selector_keys_apply_from_the_next_review(here: Scene) -> None:
    """A reload without other changes keeps the certificate."""
    await here.begin()
    before = await here.shown()
    await here.server.serve(here.topology(", ignoreSelectorKeys: [disk]"))
    assert await here.shown() == before
    _, said = await asked(here, review())
    assert b"disk" not in said
    assert orjson.loads(said)["response"]["allowed"]


async def test_the_selected_node_of_a_claim_is_read_from_the_store(here: Scene) -> None:
    """A claim that is not in the store has none."""
    await here.server.serve(here.topology())
    claim = {"metadata": {"name": "data", "namespace": "default", "uid": "c", "resourceVersion": "2"}}
    noted = {**claim["metadata"], "annotations": {"volume.kubernetes.io/selected-node": VK_B}}
    here.claims.put(orjson.dumps({**claim, "metadata": noted}))
    assert here.server._node_of("default", "data") == VK_B
    assert here.server._node_of("default", "other") == ""


async def test_a_pod_avoids_nodes_that_its_controllers_pods_left(here: Scene) -> None:
    """The eviction records of enabled descheduling count, and only for the same controller."""
    node = {"metadata": {"name": VK_B, "uid": "n", "resourceVersion": "1"}}
    notes = encode_records([EvictionRecord("rs", "old", here.now, (VK_B,))])
    here.nodes.put(orjson.dumps({"metadata": {**node["metadata"], "annotations": {TRIED: notes}}}))
    lower = "name: b, kubeconfig: k, node: {name: " + VK_B + "}"
    topology = here.topology(more="}\ndescheduler: {enabled: true")
    await here.server.serve(topology.model_copy(update={"lowers": parse(HEAD + f"lowers: [{{{lower}}}]\n").lowers}))
    await here.server.reconcile()
    owner = {"kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}
    for uid, is_kept_off in (("rs", True), ("other", False)):
        pod = {**POD, "metadata": {**POD["metadata"], "ownerReferences": [{**owner, "uid": uid}]}}
        _, said = await asked(here, review(pod))
        patch = b64decode(orjson.loads(said)["response"]["patch"]).decode()
        assert ("NotIn" in patch and VK_B in patch) == is_kept_off


async def test_run_reconciles_at_once_when_the_topology_changes(here: Scene) -> None:
    """It does not wait for the remaining delay."""
    heard: asyncio.Queue[bool] = asyncio.Queue()
    cache = Cache()
    cache.subscribe(lambda delta: heard.put_nowait(delta.after is not None))
    here.upper.follow(MUTATING_WEBHOOK, cache, bool)
    await here.server.serve(here.topology())
    running = asyncio.create_task(here.server.run())
    try:
        async with asyncio.timeout(4):
            assert await heard.get()
            await here.server.serve(here.topology(enabled=False))
            assert not await heard.get()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("error", [Denied("no right to that", status=403), Unreachable("away")])
async def test_a_failed_registration_does_not_stop_serving(
    tmp_path: Path, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is retried, because another client may have registered the webhook; a remaining registration is logged."""
    upper = Answering("")
    async with scene(tmp_path, upper) as here:
        upper.answer("read", error, error)
        assert await here.begin() == ERROR_SECONDS
        assert here.server.port == here.port
        assert here.server.waits() == ""
        await here.server.serve(here.topology(enabled=False))
        assert await here.server.reconcile() == (ERROR_SECONDS if isinstance(error, Unreachable) else None)
    assert "the webhook registration may still exist" in capsys.readouterr().out


async def test_a_test_call_fails_with_another_certificate(here: Scene) -> None:
    """The webhook must have the certificate that is trusted."""
    await here.server.serve(here.topology())
    stranger = self_signed("x", "127.0.0.1", ["127.0.0.1"], here.now, timedelta(days=1))
    with pytest.raises(TensileError, match="certificate verify failed"):
        await call(f"https://127.0.0.1:{here.port}/", stranger.certificate)
