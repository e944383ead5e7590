"""The table from an apiserver's answers to our errors, and watch events out of chunks."""

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import bookmark, event, pod, refusal, status_body

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
    strange,
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
def test_status_reason_and_causes_decide(
    status: int, reason: str, causes: tuple[tuple[str, str], ...], sort: type[ClusterError]
) -> None:
    """Each answer is exactly one of our errors, and carries what the API said."""
    error = error_of(DOING, status, refusal(status, reason, *causes).body)
    assert type(error) is sort
    assert (error.status, error.reason, error.cluster) == (status, reason, "lower-a")
    assert error.causes == tuple(cause for cause, _ in causes)
    assert str(error) == f"lower-a: create Pod default/web: {sort.title}: words about {reason}"


def test_an_admission_webhook_cannot_pretend_a_conflict() -> None:
    """Another cause beside does not hide the UID's, and the same field in a plain 403 means a denial."""
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
def test_the_wait_that_the_server_asks_for_is_kept(status: int, seconds: int, header: str, wait: float) -> None:
    """Retry-After counts, then the Status' own seconds, then one second; with either, 500 and 503 only ask to wait."""
    error = error_of(DOING, status, refusal(status, "Busy", seconds=seconds).body, header)
    assert isinstance(error, Throttled)
    assert error.retry_after == wait


def test_a_retry_after_of_another_form_is_no_wait() -> None:
    """A date, which Kubernetes never sends, is passed over, and other errors carry no wait."""
    assert type(error_of(DOING, 503, b"", "Wed, 21 Oct 2026 07:28:00 GMT")) is Unreachable
    assert error_of(DOING, 404, refusal(404, "NotFound", seconds=5).body).retry_after == 0.0


SECRET = "hunter2-the-database-password"
FOREIGN = {
    "a page": (f"<html>{SECRET}</html>".encode(), "text/html; charset=utf-8", "text/html"),
    "text": (SECRET.encode(), "text/plain", "text/plain"),
    "JSON of something else": (
        orjson.dumps({"message": SECRET, "reason": SECRET}),
        "application/json",
        "application/json",
    ),
    "a Status of no version": (
        orjson.dumps({"kind": "Status", "message": SECRET}),
        "application/json",
        "application/json",
    ),
    "another kind": (
        orjson.dumps({"kind": "X", "apiVersion": "v1", "message": SECRET}),
        "application/json",
        "application/json",
    ),
    "a reason that is none": (
        orjson.dumps({"kind": "Status", "apiVersion": "v1", "reason": f"a {SECRET}"}),
        "application/json",
        "application/json",
    ),
    "a type that is none": (b"x", f"{SECRET}\x1b[2J", "an unknown type"),
    "a text in JSON": (orjson.dumps(SECRET), "", "an unknown type"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 503])
def test_of_what_is_no_apiservers_answer_no_word_is_told(kind: str, status: int) -> None:
    """Its status, type and length, and what to check: whoever names an address does not read what is there by that."""
    body, media, shown = FOREIGN[kind]
    error = error_of(DOING, status, body, media=media)
    assert error.message == (
        f"HTTP status {status} with {len(body)} bytes of {shown} instead of a Kubernetes Status: check that the "
        "server address is that of an apiserver"
    )
    assert SECRET not in f"{error}{error.reason}{error.causes}"


def test_an_empty_answer_still_says_something() -> None:
    """And a Status without a message says its reason."""
    assert error_of(DOING, 502, b"").message == "HTTP status 502"
    bare = {"kind": "Status", "apiVersion": "v1", "reason": "Forbidden"}
    assert error_of(DOING, 403, orjson.dumps(bare)).message == "Forbidden"


def test_the_words_of_a_status_are_short_and_harmless() -> None:
    """One line, no escape sequence, an end, and no credential that a webhook quotes."""
    words = "no:\n\x1b[2J Authorization: Bearer abcdefgh12345678 \u202e" + "x" * 5000
    body = {**status_body(403, "Forbidden"), "message": words}
    message = error_of(DOING, 403, orjson.dumps(body)).message
    assert message.startswith("no: \\x1b[2J Authorization: Bearer (not shown) \\u202ex")
    assert len(message) == 1024
    assert message.isprintable()


def test_a_page_is_cut_into_the_bytes_of_its_objects() -> None:
    """Objects come back as they were sent, fields unknown to us and spaces included."""
    first, second = b'{"a": 1,  "new":[]}', b'{"metadata":{"name":"b"}}'
    body = (
        b'{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"c"},"items":[' + first + b"," + second + b"]}"
    )
    assert page_of(DOING, body) == ([first, second], "7", "c")


def test_an_empty_list_may_be_null() -> None:
    """Go writes an empty list as null."""
    assert page_of(DOING, b'{"metadata":{"resourceVersion":"7"},"items":null}') == ([], "7", "")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items":3,"metadata":{}}'])
def test_what_is_no_page_says_that_this_is_no_apiserver(body: bytes) -> None:
    """The message tells what to check."""
    with pytest.raises(Unreachable, match="check that the server address"):
        page_of(DOING, body)


def test_identity_and_version_are_taken_out_of_an_object() -> None:
    """UID, resourceVersion and release are read; a version that is no number counts as none."""
    raw = orjson.dumps(pod("a", 17))
    assert (identity_of(DOING, raw), version_of(DOING, raw)) == ("uid-a", 17)
    assert version_of(DOING, b'{"metadata":{"resourceVersion":"abc"}}') == 0
    assert version_of(DOING, b'{"metadata":{}}') == 0
    assert release_of(DOING, b'{"gitVersion":"v1.36.3","major":"1"}') == "v1.36.3"
    with pytest.raises(Unreachable):
        release_of(DOING, b"no")
    with pytest.raises(Unreachable):
        identity_of(DOING, b"{}")


def test_versions_of_api_groups_are_read_the_preferred_one_first() -> None:
    """Once each, so that a kind that several versions serve is found in the one that the server prefers."""
    versions = [{"groupVersion": "batch/v1beta1"}, {"groupVersion": "batch/v1"}]
    groups = [{"name": "batch", "versions": versions, "preferredVersion": versions[1]}, {"name": "none"}]
    assert apis_of(DOING, orjson.dumps({"groups": groups}))[:2] == ["batch/v1", "batch/v1beta1"]
    with pytest.raises(Unreachable):
        apis_of(DOING, b"{}")


def test_kinds_are_those_in_namespaces_that_can_be_listed() -> None:
    """No subresources, nothing that is only asked, and nothing of the cluster as a whole."""
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


EVENTS = [event("ADDED", pod("a", 11)), bookmark(12), event("MODIFIED", pod("ü", 13)), event("NEW", pod("b", 14))]
WIRE = b"".join(orjson.dumps(one) + b"\n" for one in EVENTS)


@given(st.lists(st.integers(0, len(WIRE)), max_size=12))
def test_chunks_may_end_anywhere(cuts: list[int]) -> None:
    """However the bytes are cut, the same events come out, in order, with unknown types passed on."""
    lines = WatchDecoder(DOING)
    places = [0, *sorted(cuts), len(WIRE)]
    seen = [found for a, b in pairwise(places) for found in lines.feed(WIRE[a:b])]
    assert [(found.type, orjson.loads(found.raw)) for found in seen] == [(one["type"], one["object"]) for one in EVENTS]


def test_an_unfinished_line_is_no_event() -> None:
    """What the connection's end cut off is not taken for an object."""
    assert WatchDecoder(DOING).feed(WIRE[: WIRE.index(b"\n")]) == []


def test_a_line_without_end_is_given_up() -> None:
    """A server that never ends its line cannot fill the memory."""
    lines = WatchDecoder(DOING, longest=3 << 20)
    part = b"x" * (2 << 20)
    lines.feed(part)
    with pytest.raises(Unreachable, match="more than 3 MiB"):
        lines.feed(part)


def test_many_long_lines_are_no_endless_one() -> None:
    """The bound is for each line, and starts anew with every end."""
    lines = WatchDecoder(DOING, longest=len(WIRE))
    for _ in range(5):
        assert lines.feed(WIRE[:-10]) != []
        assert len(lines.feed(WIRE[-10:])) == 1


def test_an_error_line_is_the_error_that_its_status_means() -> None:
    """410 comes as an event inside a watch that was answered with 200, as Kubernetes does after compaction."""
    with pytest.raises(Expired, match="words about Expired"):
        WatchDecoder(DOING).feed(orjson.dumps(event("ERROR", status_body(410, "Expired"))) + b"\n")
    with pytest.raises(Unreachable):
        WatchDecoder(DOING).feed(orjson.dumps(event("ERROR", {})) + b"\n")


@pytest.mark.parametrize("line", [b"<html>\n", b"{}\n", b'{"type":1,"object":{}}\n', b'{"type":"ADDED"\n'])
def test_what_is_no_event_is_not_followed(line: bytes) -> None:
    """Bytes that are no watch event end the watch with an error."""
    with pytest.raises(Unreachable):
        WatchDecoder(DOING).feed(line)


def test_strange_answers_name_where_they_came_up() -> None:
    """The error has the cluster and what was done."""
    assert str(strange(DOING, "a page")).startswith("lower-a: create Pod default/web: not reachable: this is not")
