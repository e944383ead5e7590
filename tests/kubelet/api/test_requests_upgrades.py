"""Tests of forwarded upgrade headers, of the errors that callers get, and of the cache of decisions."""

from typing import Any

import orjson
import pytest

from tensile.kubelet.api.auth import TTLCache
from tensile.kubelet.api.requests import Headers, PodTarget, request_to_lower, upgrade_request_headers
from tensile.kubelet.api.routes import HTTPError, container_ref, from_lower, parse_call

SPDY: Headers = (("connection", "Upgrade"), ("upgrade", "SPDY/3.1"), ("x-stream-protocol-version", "v4.channel.k8s.io"))
TARGET = PodTarget(None, "mapped", "web-0", frozenset({"main"}))  # type: ignore[arg-type]  # never called here


def test_a_spdy_upgrade_is_forwarded() -> None:
    """The versions of the stream protocol are forwarded in their order."""
    headers = (*SPDY, ("x-stream-protocol-version", "v3.channel.k8s.io"))
    assert upgrade_request_headers(headers) == headers


def test_a_websocket_upgrade_is_forwarded() -> None:
    """Key, version, extensions and subprotocols are forwarded."""
    headers: Headers = (
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "abc"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-extensions", "x"),
        ("sec-websocket-protocol", "v5.channel.k8s.io, v4.channel.k8s.io"),
    )
    assert upgrade_request_headers(headers) == (("connection", "Upgrade"), *headers[1:])


def test_a_token_in_a_websocket_subprotocol_is_removed() -> None:
    """A bearer token that is the only subprotocol removes the whole header."""
    token = "base64url.bearer.authorization.k8s.io.c2VjcmV0"
    upgrade: Headers = (("connection", "Upgrade"), ("upgrade", "websocket"))
    mixed = upgrade_request_headers((*upgrade, ("sec-websocket-protocol", f"{token}, v4.channel.k8s.io")))
    assert mixed == (*upgrade, ("sec-websocket-protocol", "v4.channel.k8s.io"))
    assert upgrade_request_headers((*upgrade, ("sec-websocket-protocol", token.upper()))) == upgrade


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("upgrade", "websocket"),),
        (("connection", "Upgrade"),),
        (("connection", "keep-alive"), ("upgrade", "websocket")),
        (("connection", "Upgrade"), ("upgrade", "h2c")),
        (("connection", "Upgrade"), ("upgrade", "websocket, h2c")),
        (("connection", "Upgrade"), ("upgrade", "websocket"), ("upgrade", "SPDY/3.1")),
        (("connection", "Upgrade"), ("upgrade", "SPDY/4")),
    ],
)
def test_other_upgrades_are_rejected(headers: Headers) -> None:
    """Without exactly one upgrade to WebSocket or SPDY/3.1, an exec is 400."""
    with pytest.raises(HTTPError, match="Upgrade request required") as refused:
        upgrade_request_headers(headers)
    assert refused.value.status == 400


def test_an_invalid_query_is_reported_before_an_unknown_container() -> None:
    """The kubelet too parses the query first."""
    call = parse_call("GET", "/containerLogs/shop/web/nosuch?tailLines=x")
    with pytest.raises(HTTPError, match="tailLines"):
        request_to_lower(call, container_ref(call), TARGET, SPDY)


@pytest.mark.parametrize(
    ("status", "body", "expected_status", "message"),
    [
        (404, b'{"kind":"Status","message":"pods \\"web-0\\" not found"}', 404, 'lower-a: pods "web-0" not found'),
        (403, b"no", 403, "lower-a: no"),
        (500, b"", 500, "lower-a: Internal Server Error"),
        (400, b'{"code":1}', 400, 'lower-a: {"code":1}'),
        (400, b"[1]", 400, "lower-a: [1]"),
        (400, b"a\x1b[31m\r\nb", 400, "lower-a: a [31m  b"),
        (302, b"elsewhere", 502, "lower-a: exec: the response is a redirect, which is not followed"),
        (200, b"hello", 502, "lower-a: exec: unexpected response 200"),
        (101, b"", 502, "lower-a: exec: unexpected response 101"),
        (799, b"", 502, "lower-a: exec: unexpected response 799"),
    ],
)
def test_a_lowers_error_keeps_its_status_and_names_the_lower(
    status: int, body: bytes, expected_status: int, message: str
) -> None:
    """Control characters are removed from its message, and statuses other than 4xx and 5xx become 502."""
    refused = from_lower("lower-a", "exec", status, body)
    assert (refused.status, refused.message) == (expected_status, message)


def status_object(reason: str, message: str, **more: Any) -> bytes:
    """Return a v1 Status."""
    return orjson.dumps({"kind": "Status", "reason": reason, "message": message, **more})


RUNTIME = {"details": {"causes": [{"message": "the runtime is down"}]}}


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, b'container not found ("main")', 'container not found ("main")'),
        (404, b"pod does not exist", "pod does not exist"),
        (400, b'{"message": "Missing podID."}', '{"message": "Missing podID."}'),
        (
            400,
            status_object("BadRequest", 'previous terminated container "main" not found'),
            'previous terminated container "main" not found',
        ),
        (
            500,
            status_object("InternalError", "Internal error occurred: the runtime is down", **RUNTIME),
            "the runtime is down",
        ),
        (500, b"a\x1b[31m\r\nb", "a [31m  b"),
        (404, status_object("NotFound", 'pods "web-0" not found'), 'lower-a: pods "web-0" not found'),
        (
            500,
            status_object("", "Get https://10.0.0.1:10250: dial tcp"),
            "lower-a: Get https://10.0.0.1:10250: dial tcp",
        ),
        (500, status_object("InternalError", "Internal error occurred"), "lower-a: Internal error occurred"),
        (500, status_object("InternalError", "odd", details={"causes": None}), "lower-a: odd"),
        (500, b" \n", "lower-a: Internal Server Error"),
        (401, b"Unauthorized", "lower-a: Unauthorized"),
        (403, b"Forbidden (user=apiserver, verb=get)", "lower-a: Forbidden (user=apiserver, verb=get)"),
        (403, status_object("Forbidden", "pods is forbidden"), "lower-a: pods is forbidden"),
        (503, b"no healthy upstream", "lower-a: no healthy upstream"),
    ],
)
def test_a_kubelets_error_message_is_returned_unchanged(status: int, body: bytes, message: str) -> None:
    """The message may be plain text, a Status, or wrapped by the apiserver in a Status 500.

    A message that does not come from a kubelet, such as an apiserver's own error or its missing rights on the kubelet,
    has the lower's name as its prefix.
    """
    refused = from_lower("lower-a", "exec", status, body, of_kubelet=True)
    assert (refused.status, refused.message) == (status, message)


def test_a_long_error_message_is_truncated() -> None:
    """The message of an error is limited to 5000 characters."""
    assert len(from_lower("l", "exec", 500, b"x" * 100_000).message) < 5000


def test_the_decision_cache_evicts_the_least_recently_used_entry() -> None:
    """A full cache drops the entry that was not used for the longest time."""
    verdicts: TTLCache[str, int] = TTLCache(2)
    verdicts.put("a", 1, 9.0)
    verdicts.put("b", 2, 9.0)
    assert verdicts.get("a", 1.0) == 1
    verdicts.put("c", 3, 9.0)
    assert [verdicts.get(key, 1.0) for key in "abc"] == [1, None, 3]
