"""Tests of the translation of the kubelet's query parameters to the apiserver's; no other parameter is forwarded."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.api.requests import attach_query, exec_query, log_query, port_query
from tensile.kubelet.api.routes import HTTPError, Query

STREAMS = (("input", "1"), ("output", "1"), ("error", "1"))


def pairs(query: str) -> list[tuple[str, str]]:
    """Decode a query."""
    return parse_qsl(query, keep_blank_values=True, errors="surrogateescape")


def test_exec_translates_streams_and_keeps_the_command() -> None:
    """input, output and error become stdin, stdout and stderr; the command's words keep their order and bytes."""
    query = (*STREAMS, ("command", "sh"), ("command", "-c"), ("command", "echo a&b=c +\udcff"), ("command", ""))
    assert pairs(exec_query(query, "main")) == [
        ("stdin", "true"),
        ("stdout", "true"),
        ("stderr", "true"),
        ("container", "main"),
        ("command", "sh"),
        ("command", "-c"),
        ("command", "echo a&b=c +\udcff"),
        ("command", ""),
    ]


def test_a_terminal_requests_no_stderr() -> None:
    """With tty, stderr is not requested, as by the kubelet."""
    query = dict(pairs(attach_query((*STREAMS, ("tty", "1")), "main")))
    assert query == {"stdin": "true", "stdout": "true", "tty": "true", "container": "main"}


@pytest.mark.parametrize(
    "given_streams", [(), (("tty", "1"),), (("input", "0"),), (("output", "true"),), (("stdin", "1"),)]
)
def test_a_query_without_streams_is_rejected(given_streams: Query) -> None:
    """An exec or attach without one of the kubelet's stream parameters set to 1 is 400."""
    for translate in (exec_query, attach_query):
        with pytest.raises(HTTPError) as refused:
            translate((*given_streams, ("command", "id")), "main")
        assert refused.value.status == 400


def test_tty_with_only_stderr_is_rejected() -> None:
    """A terminal has no stderr, so no stream is left, which is 400."""
    with pytest.raises(HTTPError):
        attach_query((("error", "1"), ("tty", "1")), "main")


def test_exec_without_a_command_is_rejected() -> None:
    """An exec without a command is 400, and the message names the parameter."""
    with pytest.raises(HTTPError, match="command") as refused:
        exec_query(STREAMS, "main")
    assert refused.value.status == 400


def test_attach_drops_the_command() -> None:
    """A command in an attach request is not forwarded."""
    assert "command" not in attach_query((*STREAMS, ("command", "id")), "main")


@pytest.mark.parametrize(
    ("given_ports", "expected"),
    [
        ((), []),
        ((("port", "80"),), [("ports", "80")]),
        ((("port", "80,443"),), [("ports", "80"), ("ports", "443")]),
        ((("port", "80"), ("port", "65535"), ("x", "y")), [("ports", "80"), ("ports", "65535")]),
    ],
)
def test_ports_are_forwarded_one_by_one(given_ports: Query, expected: list[tuple[str, str]]) -> None:
    """Repeated and comma-separated ports are forwarded as single parameters."""
    assert pairs(port_query(given_ports)) == expected


@pytest.mark.parametrize("port", ["0", "65536", "-1", "", "http", "80,", "1e3", "\u0665"])
def test_invalid_ports_are_rejected(port: str) -> None:
    """A value that is no port number is 400."""
    with pytest.raises(HTTPError, match="port") as refused:
        port_query((("port", port),))
    assert refused.value.status == 400


ALL_OPTIONS = (
    ("follow", "true"),
    ("previous", "true"),
    ("timestamps", "true"),
    ("sinceSeconds", "30"),
    ("tailLines", "0"),
    ("limitBytes", "1"),
    ("stream", "Stderr"),
)


@pytest.mark.parametrize(
    ("query", "passed"),
    [
        (ALL_OPTIONS, ALL_OPTIONS),
        ((("sinceTime", "2024-01-31T12:00:00Z"),), (("sinceTime", "2024-01-31T12:00:00Z"),)),
        ((("sinceTime", "2024-01-31T12:00:00.5+02:00"),), (("sinceTime", "2024-01-31T12:00:00.5+02:00"),)),
        ((("sinceTime", "2024-01-31t12:00:00z"),), (("sinceTime", "2024-01-31t12:00:00z"),)),
        ((("follow", "1"),), (("follow", "true"),)),
        ((("follow", ""),), (("follow", "true"),)),
        ((("follow", "yes"),), (("follow", "true"),)),
        ((("follow", "False"),), (("follow", "false"),)),
        ((("follow", "0"),), (("follow", "false"),)),
        ((("stream", "All"),), ()),
        ((("tailLines", "1"), ("tailLines", "2"), ("container", "other")), (("tailLines", "1"),)),
    ],
)
def test_log_options_are_forwarded(query: Query, passed: Query) -> None:
    """Each option is forwarded once with its first value; times are kept and booleans are parsed as by Kubernetes.

    The container is never the one of the query. The default stream is omitted because an apiserver without that feature
    rejects it.
    """
    assert pairs(log_query(query, "main")) == [("container", "main"), *passed]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sinceSeconds", "0"),
        ("sinceSeconds", "-5"),
        ("sinceSeconds", "soon"),
        ("sinceSeconds", "9223372036854775808"),
        ("sinceSeconds", "1" * 5000),
        ("tailLines", "-1"),
        ("tailLines", ""),
        ("tailLines", "1.5"),
        ("tailLines", "\u0661"),
        ("limitBytes", "0"),
        ("limitBytes", "1k"),
        ("sinceTime", "yesterday"),
        ("sinceTime", "2024-01-31"),
        ("sinceTime", "2024-01-31T12:00:00Z\nx"),
        ("stream", "stdout"),
    ],
)
def test_invalid_log_options_are_rejected(key: str, value: str) -> None:
    """A value that Kubernetes would not accept is 400, and the message names the option."""
    with pytest.raises(HTTPError, match=key) as refused:
        log_query(((key, value),), "main")
    assert refused.value.status == 400


def test_since_seconds_with_since_time_is_rejected() -> None:
    """Both options together are 400, as in Kubernetes."""
    with pytest.raises(HTTPError):
        log_query((("sinceSeconds", "1"), ("sinceTime", "2024-01-31T12:00:00Z")), "main")


KNOWN = {
    "container",
    "follow",
    "previous",
    "timestamps",
    "sinceSeconds",
    "sinceTime",
    "tailLines",
    "limitBytes",
    "stream",
}
NAMES = st.sampled_from(sorted(KNOWN)) | st.text(max_size=8)


@given(st.lists(st.tuples(NAMES, st.text(max_size=8)), max_size=6))
def test_only_known_log_options_are_forwarded(query: list[tuple[str, str]]) -> None:
    """For any query only known keys are sent, once each, with the path's container, in plain ASCII."""
    try:
        made = log_query(tuple(query), "main")
    except HTTPError:
        return
    keys = [key for key, _ in pairs(made)]
    assert set(keys) <= KNOWN
    assert len(set(keys)) == len(keys)
    assert ("container", "main") in pairs(made)
    assert made.isascii()
    assert made.isprintable()


@given(
    st.lists(
        st.tuples(st.sampled_from(["input", "command", "tty", "container", "stdin", "x"]), st.text(max_size=8)),
        max_size=6,
    )
)
def test_only_known_exec_options_are_forwarded(query: list[tuple[str, str]]) -> None:
    """For any query an exec has only known keys, the path's container and all words of the command."""
    made = pairs(exec_query((("output", "1"), *query, ("command", "last")), "main"))
    assert {key for key, _ in made} <= {"stdin", "stdout", "tty", "container", "command"}
    assert [value for key, value in made if key == "container"] == ["main"]
    assert [v for k, v in made if k == "command"] == [*(v for k, v in query if k == "command"), "last"]
