"""Tests of access to a real server: which caller gets which answer, and that no refused request reaches the lower."""

import asyncio
import ssl

import pytest
from kubelet_lab import NODE, PATIENCE, QUICK, KubeletApiHarness, answering, leak_watch, request, wait_until
from kubelet_pki import Pki

from tensile.errors import Unreachable

LOGS = "GET /containerLogs/shop/web/main"
EXEC = "POST /exec/shop/web/main?output=1&command=id"
UPGRADE = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
ROUTES = [LOGS, EXEC, "GET /exec/shop/web/main?output=1&command=id", "GET /pods", "GET /healthz", "GET /nothing/there"]
ROBOT = {"username": "robot", "groups": ["system:authenticated"]}


def refused(kubelet_api: KubeletApiHarness) -> bool:
    """Report whether nothing reached the lower cluster."""
    return kubelet_api.lower.heads == []


@pytest.mark.parametrize("first", ROUTES)
async def test_requests_without_credentials_get_401_on_every_path(kubelet_api: KubeletApiHarness, first: str) -> None:
    """Without a certificate or token every path, known or not, gets the same 401, and no review is requested."""
    answer = await kubelet_api.ask(None, first, *UPGRADE)
    assert (answer.status, answer.body) == (401, b"Unauthorized")
    assert refused(kubelet_api)
    assert kubelet_api.upper.reviews_received == []


@pytest.mark.parametrize("first", ROUTES)
async def test_a_user_without_rights_gets_403_on_every_path(kubelet_api: KubeletApiHarness, first: str) -> None:
    """A certificate of the right CA whose user has no rights gets 403, whether the path exists or not."""
    answer = await kubelet_api.ask(kubelet_api.pki.powerless, first, *UPGRADE)
    assert answer.status == 403
    assert b"nobody-special" in answer.body
    assert refused(kubelet_api)


async def test_the_apiservers_certificate_is_served(kubelet_api: KubeletApiHarness) -> None:
    """A certificate whose user has the right is served, and the review contains its user, groups and this node."""
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")).body == b"ok"
    first = kubelet_api.upper.reviews("SubjectAccessReview")[0]
    assert first["user"] == "kube-apiserver"
    assert first["groups"] == ["system:masters", "operators", "system:authenticated"]
    assert first["resourceAttributes"]["name"] == NODE


async def test_a_token_with_the_right_is_served_without_a_certificate(kubelet_api: KubeletApiHarness) -> None:
    """A token is served by its user's rights, an invalid one gets 401, and neither appears in the log."""
    kubelet_api.upper.tokens["good"] = ROBOT
    kubelet_api.upper.permit("robot", "get", "pods")
    assert (await kubelet_api.ask(None, "GET /pods", "Authorization: Bearer good")).status == 200
    assert (await kubelet_api.ask(None, "GET /pods", "Authorization: Bearer evil")).status == 401
    assert (await kubelet_api.ask(None, LOGS, "Authorization: Bearer good")).status == 403
    assert "good" not in str(kubelet_api.log.entries)
    assert "evil" not in str(kubelet_api.log.entries)
    assert refused(kubelet_api)


@pytest.mark.parametrize("first", [LOGS, EXEC, "GET /pods"])
async def test_requests_get_503_while_reviews_fail(kubelet_api: KubeletApiHarness, first: str) -> None:
    """While reviews fail, a valid certificate and a token both get 503."""
    kubelet_api.upper.failing = Unreachable("gone")
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, first, *UPGRADE)).status == 503
    assert (await kubelet_api.ask(None, first, "Authorization: Bearer good", *UPGRADE)).status == 503
    assert refused(kubelet_api)


@pytest.mark.parametrize("first", [LOGS, EXEC, "GET /healthz"])
async def test_requests_get_401_if_no_client_ca_is_known(pki: Pki, first: str) -> None:
    """As long as no client CA is known, certificates and tokens both get 401."""
    async with leak_watch(), KubeletApiHarness(pki) as kubelet_api:
        kubelet_api.client_authority = ""
        kubelet_api.upper.tokens["good"] = ROBOT
        assert (await kubelet_api.ask(pki.apiserver, first)).status == 401
        assert (await kubelet_api.ask(None, first, "Authorization: Bearer good")).status == 401
        assert refused(kubelet_api)


async def test_a_new_client_ca_applies_from_the_next_connection(kubelet_api: KubeletApiHarness) -> None:
    """After a change of CA, old certificates fail and new ones are accepted, without a restart."""
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")).status == 200
    kubelet_api.client_authority = kubelet_api.pki.others.pem
    kubelet_api.time += 60
    assert (await kubelet_api.ask(kubelet_api.pki.foreign, "GET /healthz")).status == 200
    with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
        await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_user_with_get_nodes_proxy_cannot_exec(kubelet_api: KubeletApiHarness, method: str) -> None:
    """With `get nodes/proxy` logs are served, and exec gets 403, by GET and by POST."""
    kubelet_api.upper.permit("nobody-special", "get", "proxy")
    kubelet_api.lower.script = answering("200 OK", b"line\n")
    assert (await kubelet_api.ask(kubelet_api.pki.powerless, LOGS)).status == 200
    exec_answer = await kubelet_api.ask(
        kubelet_api.pki.powerless, f"{method} /exec/shop/web/main?output=1&command=id", *UPGRADE
    )
    assert exec_answer.status == 403
    assert all(word in exec_answer.body for word in (b"nobody-special", b"create", b"proxy", NODE.encode()))
    assert len(kubelet_api.lower.heads) == 1


async def test_a_right_on_one_node_does_not_apply_to_another_node(kubelet_api: KubeletApiHarness) -> None:
    """The review is for the node of the listener, so a right on that node does not open another node's port."""
    await kubelet_api.serve("virtual-b")
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, LOGS, node="virtual-b")).status == 403
    kubelet_api.upper.permit("kube-apiserver", "get", "proxy", "virtual-b")
    kubelet_api.time += 30
    kubelet_api.lower.script = answering("200 OK", b"line\n")
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, LOGS, node="virtual-b")).status == 200


@pytest.mark.parametrize(
    ("first", "status"),
    [
        ("GET /nothing/there", 404),
        ("GET /containerLogs/other/web/main", 404),
        ("GET /containerLogs/mapped/web-0/main", 404),
        ("GET /containerLogs/shop/web/main?tailLines=x", 400),
        ("POST /exec/shop/other/main?output=1&command=id", 404),
        ("POST /exec/shop/web/main?output=1", 400),
    ],
)
async def test_an_authorized_caller_gets_404_or_400_for_unknown_paths_and_bad_queries(
    kubelet_api: KubeletApiHarness, first: str, status: int
) -> None:
    """Unknown paths and pods of other nodes are 404, bad queries are 400, and nothing is sent to the lower."""
    answer = await kubelet_api.ask(kubelet_api.pki.apiserver, first, *UPGRADE)
    assert answer.status == status
    assert answer.head.value("content-type").startswith("text/plain")
    assert refused(kubelet_api)


async def test_an_unsupported_method_gets_405(kubelet_api: KubeletApiHarness) -> None:
    """A method that a route does not support gets 405, and the answer to HEAD has no body."""
    kubelet_api.upper.permit("kube-apiserver", "", "proxy")
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "POST /containerLogs/shop/web/main")).status == 405
    answer = await kubelet_api.ask(kubelet_api.pki.apiserver, "HEAD /containerLogs/shop/web/main")
    assert (answer.status, answer.body) == (405, b"")
    assert refused(kubelet_api)


async def test_an_exec_without_upgrade_gets_400(kubelet_api: KubeletApiHarness) -> None:
    """The answer to an exec that requests no upgrade reads "Upgrade request required"."""
    answer = await kubelet_api.ask(kubelet_api.pki.apiserver, EXEC)
    assert (answer.status, answer.body[:24]) == (400, b"Upgrade request required")
    assert refused(kubelet_api)


@pytest.mark.parametrize("path", ["/pods", "/pods/"])
async def test_pods_are_listed_as_json(kubelet_api: KubeletApiHarness, path: str) -> None:
    """The node's pods are returned as JSON, exactly as the backend lists them."""
    answer = await kubelet_api.ask(kubelet_api.pki.apiserver, f"GET {path}")
    assert answer.body == kubelet_api.pods.listed()
    assert answer.head.value("content-type") == "application/json"
    assert answer.head.value("connection") == "close"


@pytest.mark.parametrize("fields", [("Content-Length: 5",), ("Transfer-Encoding: chunked",)])
async def test_a_request_with_a_body_gets_400(kubelet_api: KubeletApiHarness, fields: tuple[str, ...]) -> None:
    """No route accepts a body, so a request that announces one is rejected."""
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, LOGS, *fields)).status == 400
    assert refused(kubelet_api)


@pytest.mark.parametrize(
    "rubbish",
    [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"],
)
async def test_invalid_http_gets_400_and_ends_the_connection(kubelet_api: KubeletApiHarness, rubbish: bytes) -> None:
    """Bytes that are no request, or a request without a Host header, get 400 and end the connection."""
    stream = await kubelet_api.connect(None)
    await stream.send(rubbish)
    assert (await stream.head()).status == 400
    await stream.read_to_end()
    await stream.close()


async def test_a_head_over_the_limit_gets_431(kubelet_api: KubeletApiHarness) -> None:
    """A request head over the limit gets 431 before its end has arrived."""
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(b"GET /healthz HTTP/1.1\r\nX-Large: " + b"x" * (QUICK.head + 100))
    assert (await stream.head()).status == 431
    await stream.close()


async def test_a_long_exec_command_is_forwarded(pki: Pki) -> None:
    """With a head limit of one mebibyte, as in Go's servers, an exec of a long script reaches the lower."""
    async with leak_watch(), KubeletApiHarness(pki, limits=QUICK._replace(head=1024 * 1024)) as kubelet_api:
        kubelet_api.lower.script = answering("403 Forbidden", b"no")
        answer = await kubelet_api.ask(pki.apiserver, f"{EXEC}&command={'x' * 60_000}", *UPGRADE)
        assert answer.status == 403
        assert "x" * 60_000 in kubelet_api.lower.heads[0].first


@pytest.mark.parametrize("begin", [b"", b"GET /healthz HTTP/1.1\r\nHost: "])
async def test_a_head_that_does_not_arrive_in_time_ends_the_connection(
    kubelet_api: KubeletApiHarness, begin: bytes
) -> None:
    """A connection whose request head is not complete within its time is closed without an answer."""
    stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await stream.send(begin)
    async with asyncio.timeout(PATIENCE):
        assert await stream.read_to_end() == b""
    await stream.close()


async def test_idle_connections_do_not_block_the_next_caller(kubelet_api: KubeletApiHarness) -> None:
    """Connections that send nothing are replaced by new ones, also for an authenticated caller of the same address."""
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")).status == 200
    idle = [await asyncio.open_connection("127.0.0.1", kubelet_api.server.port(NODE)) for _ in range(QUICK.waiting + 2)]
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")).status == 200
    for _, writer in idle:
        writer.close()
        await writer.wait_closed()


async def test_open_streams_do_not_count_as_waiting_connections(kubelet_api: KubeletApiHarness) -> None:
    """The next caller is served although more streams are open than connections may wait."""
    release = asyncio.Event()

    async def script(_head: object, stream: object) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await release.wait()

    kubelet_api.lower.script = script
    streams = []
    for _ in range(QUICK.waiting + 2):
        stream = await kubelet_api.connect(kubelet_api.pki.apiserver)
        await stream.send(request(f"{LOGS}?follow=true"))
        assert (await stream.head()).status == 200
        streams.append(stream)
    assert kubelet_api.server.streams() == {NODE: QUICK.waiting + 2}
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")).status == 200
    release.set()
    for stream in streams:
        await stream.close()
    await wait_until(lambda: kubelet_api.server.streams() == {NODE: 0})
