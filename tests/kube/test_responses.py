"""Tests of the mapping from responses of an apiserver to errors, and of decoding watch events from chunks."""

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import bookmark, event, make_pod, refusal, status_body

from tensile.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Denied,
    Expired,
    NotFound,
    Throttled,
    Unauthorized,
    Unreachable,
)
from tensile.kube.responses import (
    RequestInfo,
    WatchDecoder,
    apis_of,
    error_of,
    identity_of,
    kinds_of,
    page_of,
    release_of,
    unexpected_response,
    version_of,
)
from tensile.objects import POD

DOING = RequestInfo("lower-a", "create", "Pod default/web")

TABLE = [
    (400, "BadRequest", (), Denied),
    (401, "Unauthorized", (), Unauthorized),
    (403, "Forbidden", (), Denied),
    (403, "Forbidden", (("NamespaceTerminating", "metadata.namespace"),), Denied),
    (404, "NotFound", (), NotFound),
    (405, "MethodNotAllowed", (), Denied),
    (408, "Timeout", (), Unreachable),
    (409, "AlreadyExists", (), AlreadyExists),
    (409, "Conflict", (), Conflict),
    (410, "Expired", (), Expired),
    (410, "Gone", (), Expired),
    (413, "RequestEntityTooLarge", (), Denied),
    (415, "UnsupportedMediaType", (), Denied),
    (422, "Invalid", (("FieldValueInvalid", "spec.containers"),), Denied),
    (422, "Invalid", (("FieldValueInvalid", "metadata.uid"),), Conflict),
    (429, "TooManyRequests", (), Throttled),
    (500, "InternalError", (), Unreachable),
    (502, "BadGateway", (), Unreachable),
    (503, "ServiceUnavailable", (), Unreachable),
    (504, "Timeout", (), Unreachable),
    (504, "Timeout", (("ResourceVersionTooLarge", ""),), Expired),
]


@pytest.mark.parametrize(("status", "reason", "causes", "sort"), TABLE)
def test_status_reason_and_causes_determine_the_error(
    status: int, reason: str, causes: tuple[tuple[str, str], ...], sort: type[ClusterError]
) -> None:
    """Each response maps to exactly one error class, and the error has the message of the API."""
    error = error_of(DOING, status, refusal(status, reason, *causes).body)
    assert type(error) is sort
    assert (error.status, error.reason, error.cluster) == (status, reason, "lower-a")
    assert error.causes == tuple(cause for cause, _ in causes)
    assert str(error) == f"lower-a: create Pod default/web: {sort.title}: words about {reason}"


def test_a_cause_for_the_uid_means_a_conflict_only_with_status_422() -> None:
    """A webhook can return that cause with a 403, which is a denial; other causes beside it do not matter."""
    both = refusal(422, "Invalid", ("FieldValueInvalid", "spec"), ("FieldValueInvalid", "metadata.uid"))
    assert type(error_of(DOING, 422, both.body)) is Conflict
    foreign = refusal(403, "Forbidden", ("FieldValueInvalid", "metadata.uid"))
    assert type(error_of(DOING, 403, foreign.body)) is Denied


@pytest.mark.parametrize(
    ("status", "seconds", "header", "wait"),
    [
        (429, 0, "7", 7.0),
        (429, 4, "", 4.0),
        (429, 0, "", 1.0),
        (503, 0, "2", 2.0),
        (500, 3, "", 3.0),
        (429, 4, "9", 9.0),
    ],
)
def test_an_error_with_a_requested_wait_is_throttled_with_that_wait(
    status: int, seconds: int, header: str, wait: float
) -> None:
    """Retry-After has precedence over retryAfterSeconds; a 429 without both waits one second."""
    error = error_of(DOING, status, refusal(status, "Busy", seconds=seconds).body, header)
    assert isinstance(error, Throttled)
    assert error.retry_after == wait


def test_a_retry_after_that_is_no_number_is_ignored() -> None:
    """Kubernetes never sends a date there; errors such as 404 have no wait at all."""
    assert type(error_of(DOING, 503, b"", "Wed, 21 Oct 2026 07:28:00 GMT")) is Unreachable
    assert error_of(DOING, 404, refusal(404, "NotFound", seconds=5).body).retry_after == 0.0


SECRET = "hunter2-the-database-password"
FOREIGN = {
    "a page": (f"<html>{SECRET}</html>".encode(), "text/html; charset=utf-8", "text/html"),
    "text": (SECRET.encode(), "text/plain", "text/plain"),
    "JSON of another program": (
        orjson.dumps({"message": SECRET, "reason": SECRET}),
        "application/json",
        "application/json",
    ),
    "a Status without a version": (
        orjson.dumps({"kind": "Status", "message": SECRET}),
        "application/json",
        "application/json",
    ),
    "another kind": (
        orjson.dumps({"kind": "X", "apiVersion": "v1", "message": SECRET}),
        "application/json",
        "application/json",
    ),
    "an invalid reason": (
        orjson.dumps({"kind": "Status", "apiVersion": "v1", "reason": f"a {SECRET}"}),
        "application/json",
        "application/json",
    ),
    "an invalid media type": (b"x", f"{SECRET}\x1b[2J", "an unknown type"),
    "a JSON string": (orjson.dumps(SECRET), "", "an unknown type"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 503])
def test_the_error_for_a_response_of_another_program_does_not_quote_it(kind: str, status: int) -> None:
    """It has status, type and length only.

    A user who can name an address must not be able to read what is there by that.
    """
    body, media, shown = FOREIGN[kind]
    error = error_of(DOING, status, body, media=media)
    assert error.message == (
        f"HTTP status {status} with {len(body)} bytes of {shown} instead of a Kubernetes Status: check that the "
        "server address is that of an apiserver"
    )
    assert SECRET not in f"{error}{error.reason}{error.causes}"


def test_the_error_for_an_empty_response_has_the_http_status() -> None:
    """The error for a Status without a message has its reason."""
    assert error_of(DOING, 502, b"").message == "HTTP status 502"
    bare = {"kind": "Status", "apiVersion": "v1", "reason": "Forbidden"}
    assert error_of(DOING, 403, orjson.dumps(bare)).message == "Forbidden"


def test_the_message_of_a_status_is_shortened_and_sanitized() -> None:
    """It becomes one printable line of limited length without a credential that a webhook may have quoted."""
    raw_message = "no:\n\x1b[2J Authorization: Bearer abcdefgh12345678 \u202e" + "x" * 5000
    body = {**status_body(403, "Forbidden"), "message": raw_message}
    message = error_of(DOING, 403, orjson.dumps(body)).message
    assert message.startswith("no: \\x1b[2J Authorization: Bearer (not shown) \\u202ex")
    assert len(message) == 1024
    assert message.isprintable()


def test_a_page_is_split_into_the_unchanged_bytes_of_its_objects() -> None:
    """Unknown fields and spaces are kept."""
    first, second = b'{"a": 1,  "new":[]}', b'{"metadata":{"name":"b"}}'
    body = (
        b'{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"c"},"items":[' + first + b"," + second + b"]}"
    )
    assert page_of(DOING, body) == ([first, second], "7", "c")


def test_a_list_with_null_items_is_empty() -> None:
    """Go encodes an empty list as null."""
    assert page_of(DOING, b'{"metadata":{"resourceVersion":"7"},"items":null}') == ([], "7", "")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items":3,"metadata":{}}'])
def test_the_error_for_an_invalid_page_advises_to_check_the_server_address(body: bytes) -> None:
    """The response is not one of an apiserver."""
    with pytest.raises(Unreachable, match="check that the server address"):
        page_of(DOING, body)


def test_uid_resource_version_and_release_are_read_from_responses() -> None:
    """A resourceVersion that is no number counts as 0; a missing UID or release is an error."""
    raw = orjson.dumps(make_pod("a", 17))
    assert (identity_of(DOING, raw), version_of(DOING, raw)) == ("uid-a", 17)
    assert version_of(DOING, b'{"metadata":{"resourceVersion":"abc"}}') == 0
    assert version_of(DOING, b'{"metadata":{}}') == 0
    assert release_of(DOING, b'{"gitVersion":"v1.36.3","major":"1"}') == "v1.36.3"
    with pytest.raises(Unreachable):
        release_of(DOING, b"no")
    with pytest.raises(Unreachable):
        identity_of(DOING, b"{}")


def test_the_preferred_version_of_an_api_group_is_returned_first() -> None:
    """Each version is returned once, so that a kind in several versions is found in the preferred one."""
    versions = [{"groupVersion": "batch/v1beta1"}, {"groupVersion": "batch/v1"}]
    groups = [{"name": "batch", "versions": versions, "preferredVersion": versions[1]}, {"name": "none"}]
    assert apis_of(DOING, orjson.dumps({"groups": groups}))[:2] == ["batch/v1", "batch/v1beta1"]
    with pytest.raises(Unreachable):
        apis_of(DOING, b"{}")


def test_only_namespaced_kinds_that_can_be_listed_are_returned() -> None:
    """Subresources, kinds that can only be created, and cluster-scoped kinds are left out."""
    verbs = ["get", "list"]
    resources = [
        {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": verbs},
        {"name": "pods/status", "kind": "Pod", "namespaced": True, "verbs": ["get", "patch"]},
        {"name": "bindings", "kind": "Binding", "namespaced": True, "verbs": ["create"]},
        {"name": "nodes", "kind": "Node", "namespaced": False, "verbs": verbs},
    ]
    assert kinds_of(DOING, "v1", orjson.dumps({"resources": resources})) == [POD]
    with pytest.raises(Unreachable):
        kinds_of(DOING, "v1", b"[]")


EVENTS = [
    event("ADDED", make_pod("a", 11)),
    bookmark(12),
    event("MODIFIED", make_pod("ü", 13)),
    event("NEW", make_pod("b", 14)),
]
WIRE = b"".join(orjson.dumps(one) + b"\n" for one in EVENTS)


@given(st.lists(st.integers(0, len(WIRE)), max_size=12))
def test_watch_events_are_decoded_from_chunks_that_end_anywhere(cuts: list[int]) -> None:
    """The same events are returned in order, and unknown types are included."""
    lines = WatchDecoder(DOING)
    places = [0, *sorted(cuts), len(WIRE)]
    seen = [found for a, b in pairwise(places) for found in lines.feed(WIRE[a:b])]
    assert [(found.type, orjson.loads(found.raw)) for found in seen] == [(one["type"], one["object"]) for one in EVENTS]


def test_an_incomplete_line_is_no_watch_event() -> None:
    """A broken connection may have cut it off."""
    assert WatchDecoder(DOING).feed(WIRE[: WIRE.index(b"\n")]) == []


def test_a_watch_line_that_is_too_long_is_an_error() -> None:
    """A server that never ends a line must not fill the memory."""
    lines = WatchDecoder(DOING, longest=3 << 20)
    part = b"x" * (2 << 20)
    lines.feed(part)
    with pytest.raises(Unreachable, match="more than 3 MiB"):
        lines.feed(part)


def test_the_length_limit_applies_to_each_watch_line() -> None:
    """The count restarts at the end of each line."""
    lines = WatchDecoder(DOING, longest=len(WIRE))
    for _ in range(5):
        assert lines.feed(WIRE[:-10]) != []
        assert len(lines.feed(WIRE[-10:])) == 1


def test_an_error_event_raises_the_error_of_its_status() -> None:
    """After a compaction, Kubernetes sends the 410 as an event in a watch that was accepted with 200."""
    with pytest.raises(Expired, match="words about Expired"):
        WatchDecoder(DOING).feed(orjson.dumps(event("ERROR", status_body(410, "Expired"))) + b"\n")
    with pytest.raises(Unreachable):
        WatchDecoder(DOING).feed(orjson.dumps(event("ERROR", {})) + b"\n")


@pytest.mark.parametrize("line", [b"<html>\n", b"{}\n", b'{"type":1,"object":{}}\n', b'{"type":"ADDED"\n'])
def test_an_invalid_watch_line_raises_unreachable(line: bytes) -> None:
    """Bytes that are no watch event end the watch."""
    with pytest.raises(Unreachable):
        WatchDecoder(DOING).feed(line)


def test_the_error_for_an_unexpected_response_names_cluster_and_request() -> None:
    """It also says that the server is not an apiserver."""
    assert str(unexpected_response(DOING, "a page")).startswith(
        "lower-a: create Pod default/web: not reachable: this is not"
    )
