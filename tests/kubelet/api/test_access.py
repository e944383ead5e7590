"""Strangers and friends at the door of a real server: who gets which answer, and that nothing reaches the lower."""

import asyncio
import ssl

import pytest
from kubelet_lab import NODE, PATIENCE, QUICK, Lab, answering, leak_watch, request, until
from kubelet_pki import Pki

from tensile.errors import Unreachable

LOGS = "GET /containerLogs/shop/web/main"
EXEC = "POST /exec/shop/web/main?output=1&command=id"
UPGRADE = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
ROUTES = [LOGS, EXEC, "GET /exec/shop/web/main?output=1&command=id", "GET /pods", "GET /healthz", "GET /nothing/there"]
ROBOT = {"username": "robot", "groups": ["system:authenticated"]}


def refused(lab: Lab) -> bool:
    """Report whether nothing reached the lower."""
    return lab.lower.heads == []


@pytest.mark.parametrize("first", ROUTES)
async def test_strangers_get_401_everywhere(lab: Lab, first: str) -> None:
    """Without certificate and token every path, there or not, is the same 401, and nobody is asked."""
    answer = await lab.ask(None, first, *UPGRADE)
    assert (answer.status, answer.body) == (401, b"Unauthorized")
    assert refused(lab)
    assert lab.upper.asked == []


@pytest.mark.parametrize("first", ROUTES)
async def test_without_rights_it_is_403_everywhere(lab: Lab, first: str) -> None:
    """A certificate of the right authority whose user has no rights is 403, whether the path exists or not."""
    answer = await lab.ask(lab.pki.powerless, first, *UPGRADE)
    assert answer.status == 403
    assert b"nobody-special" in answer.body
    assert refused(lab)


async def test_the_apiserver_gets_in(lab: Lab) -> None:
    """The certificate with the right is served, and the review names its user, groups and our node."""
    assert (await lab.ask(lab.pki.apiserver, "GET /healthz")).body == b"ok"
    first = lab.upper.reviews("SubjectAccessReview")[0]
    assert first["user"] == "kube-apiserver"
    assert first["groups"] == ["system:masters", "operators", "system:authenticated"]
    assert first["resourceAttributes"]["name"] == NODE


async def test_a_token_gets_in(lab: Lab) -> None:
    """A token of a user with the right is served without a certificate; a bad one is 401, and never shown again."""
    lab.upper.tokens["good"] = ROBOT
    lab.upper.permit("robot", "get", "pods")
    assert (await lab.ask(None, "GET /pods", "Authorization: Bearer good")).status == 200
    assert (await lab.ask(None, "GET /pods", "Authorization: Bearer evil")).status == 401
    assert (await lab.ask(None, LOGS, "Authorization: Bearer good")).status == 403
    assert "good" not in str(lab.log.entries)
    assert "evil" not in str(lab.log.entries)
    assert refused(lab)


@pytest.mark.parametrize("first", [LOGS, EXEC, "GET /pods"])
async def test_an_upper_that_does_not_answer_lets_nobody_in(lab: Lab, first: str) -> None:
    """While reviews fail, a good certificate and a token are both 503."""
    lab.upper.failing = Unreachable("gone")
    assert (await lab.ask(lab.pki.apiserver, first, *UPGRADE)).status == 503
    assert (await lab.ask(None, first, "Authorization: Bearer good", *UPGRADE)).status == 503
    assert refused(lab)


@pytest.mark.parametrize("first", [LOGS, EXEC, "GET /healthz"])
async def test_without_an_authority_nobody_gets_in(pki: Pki, first: str) -> None:
    """As long as no authority of callers is known, certificates and tokens alike are 401."""
    async with leak_watch(), Lab(pki) as lab:
        lab.client_authority = ""
        lab.upper.tokens["good"] = ROBOT
        assert (await lab.ask(pki.apiserver, first)).status == 401
        assert (await lab.ask(None, first, "Authorization: Bearer good")).status == 401
        assert refused(lab)


async def test_a_new_authority_counts_at_the_next_connection(lab: Lab) -> None:
    """When the authority changes, certificates of the old one fail and those of the new one pass, without a restart."""
    assert (await lab.ask(lab.pki.apiserver, "GET /healthz")).status == 200
    lab.client_authority = lab.pki.others.pem
    lab.time += 60
    assert (await lab.ask(lab.pki.foreign, "GET /healthz")).status == 200
    with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
        await lab.ask(lab.pki.apiserver, "GET /healthz")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_reading_rights_do_not_run_commands(lab: Lab, method: str) -> None:
    """With `get nodes/proxy` logs are served and exec is 403, by GET and by POST."""
    lab.upper.permit("nobody-special", "get", "proxy")
    lab.lower.script = answering("200 OK", b"line\n")
    assert (await lab.ask(lab.pki.powerless, LOGS)).status == 200
    exec_answer = await lab.ask(lab.pki.powerless, f"{method} /exec/shop/web/main?output=1&command=id", *UPGRADE)
    assert exec_answer.status == 403
    assert all(word in exec_answer.body for word in (b"nobody-special", b"create", b"proxy", NODE.encode()))
    assert len(lab.lower.heads) == 1


async def test_a_right_on_one_node_is_none_on_another(lab: Lab) -> None:
    """The node asked about is the listener's: a right on it does not open the next port."""
    await lab.serve("virtual-b")
    assert (await lab.ask(lab.pki.apiserver, LOGS, node="virtual-b")).status == 403
    lab.upper.permit("kube-apiserver", "get", "proxy", "virtual-b")
    lab.time += 30
    lab.lower.script = answering("200 OK", b"line\n")
    assert (await lab.ask(lab.pki.apiserver, LOGS, node="virtual-b")).status == 200


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
async def test_what_is_not_there_is_said_to_friends(lab: Lab, first: str, status: int) -> None:
    """To who may ask, odd paths and pods not of this node are 404 and bad queries 400, with nothing sent down."""
    answer = await lab.ask(lab.pki.apiserver, first, *UPGRADE)
    assert answer.status == status
    assert answer.head.value("content-type").startswith("text/plain")
    assert refused(lab)


async def test_wrong_methods_are_405(lab: Lab) -> None:
    """A method that a route does not have is 405, and HEAD gets no body."""
    lab.upper.permit("kube-apiserver", "", "proxy")
    assert (await lab.ask(lab.pki.apiserver, "POST /containerLogs/shop/web/main")).status == 405
    answer = await lab.ask(lab.pki.apiserver, "HEAD /containerLogs/shop/web/main")
    assert (answer.status, answer.body) == (405, b"")
    assert refused(lab)


async def test_an_exec_without_upgrade_is_400(lab: Lab) -> None:
    """An exec that does not ask for an upgrade is told to."""
    answer = await lab.ask(lab.pki.apiserver, EXEC)
    assert (answer.status, answer.body[:24]) == (400, b"Upgrade request required")
    assert refused(lab)


@pytest.mark.parametrize("path", ["/pods", "/pods/"])
async def test_pods_are_listed(lab: Lab, path: str) -> None:
    """The node's pods are given as the backend lists them, as JSON."""
    answer = await lab.ask(lab.pki.apiserver, f"GET {path}")
    assert answer.body == lab.pods.listed()
    assert answer.head.value("content-type") == "application/json"
    assert answer.head.value("connection") == "close"


@pytest.mark.parametrize("fields", [("Content-Length: 5",), ("Transfer-Encoding: chunked",)])
async def test_a_request_with_a_body_is_400(lab: Lab, fields: tuple[str, ...]) -> None:
    """No route takes a body, so one that is announced is refused."""
    assert (await lab.ask(lab.pki.apiserver, LOGS, *fields)).status == 400
    assert refused(lab)


@pytest.mark.parametrize(
    "rubbish",
    [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"],
)
async def test_what_is_no_http_is_400(lab: Lab, rubbish: bytes) -> None:
    """Bytes that are no request, or one without a host, are 400 and end the connection."""
    stream = await lab.connect(None)
    await stream.send(rubbish)
    assert (await stream.head()).status == 400
    await stream.to_end()
    await stream.close()


async def test_a_head_too_large_is_431(lab: Lab) -> None:
    """A head over the limit is 431, without waiting for its end."""
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(b"GET /healthz HTTP/1.1\r\nX-Large: " + b"x" * (QUICK.head + 100))
    assert (await stream.head()).status == 431
    await stream.close()


async def test_a_long_command_passes(pki: Pki) -> None:
    """By default a head may be nearly a mebibyte, as with Go's servers: an exec of a long script."""
    async with leak_watch(), Lab(pki, limits=QUICK._replace(head=1024 * 1024)) as lab:
        lab.lower.script = answering("403 Forbidden", b"no")
        answer = await lab.ask(pki.apiserver, f"{EXEC}&command={'x' * 60_000}", *UPGRADE)
        assert answer.status == 403
        assert "x" * 60_000 in lab.lower.heads[0].first


@pytest.mark.parametrize("begin", [b"", b"GET /healthz HTTP/1.1\r\nHost: "])
async def test_a_slow_head_is_cut_off(lab: Lab, begin: bytes) -> None:
    """A request that does not come within its time ends the connection."""
    stream = await lab.connect(lab.pki.apiserver)
    await stream.send(begin)
    async with asyncio.timeout(PATIENCE):
        assert await stream.to_end() == b""
    await stream.close()


async def test_those_who_wait_do_not_keep_others_out_for_long(lab: Lab) -> None:
    """Connections that say nothing make room for the next, also for one of their own address that is known."""
    assert (await lab.ask(lab.pki.apiserver, "GET /healthz")).status == 200
    idle = [await asyncio.open_connection("127.0.0.1", lab.server.port(NODE)) for _ in range(QUICK.waiting + 2)]
    assert (await lab.ask(lab.pki.apiserver, "GET /healthz")).status == 200
    for _, writer in idle:
        writer.close()
        await writer.wait_closed()


async def test_streams_do_not_take_places_at_the_door(lab: Lab) -> None:
    """However many streams are open, the next caller gets in."""
    release = asyncio.Event()

    async def script(_head: object, stream: object) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await release.wait()

    lab.lower.script = script
    streams = []
    for _ in range(QUICK.waiting + 2):
        stream = await lab.connect(lab.pki.apiserver)
        await stream.send(request(f"{LOGS}?follow=true"))
        assert (await stream.head()).status == 200
        streams.append(stream)
    assert lab.server.streams() == {NODE: QUICK.waiting + 2}
    assert (await lab.ask(lab.pki.apiserver, "GET /healthz")).status == 200
    release.set()
    for stream in streams:
        await stream.close()
    await until(lambda: lab.server.streams() == {NODE: 0})
