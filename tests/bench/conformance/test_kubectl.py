"""Tests of the comparison of kubectl's output for virtual and real nodes, literal except for variable parts."""

import pytest

from bench.conformance.kubectl.__main__ import compared, result_of
from bench.conformance.kubectl.commands import STEPS
from bench.conformance.kubectl.differences import Expected, Line, explained, lines_apart
from bench.conformance.kubectl.document import PAGE, page
from bench.conformance.kubectl.execution import CommandRunner, Completed
from bench.conformance.kubectl.expected import EXPECTED
from bench.conformance.kubectl.normalization import normalized
from bench.conformance.kubectl.steps import EVENTS, TREE, Step

NAMES = {"lower-a-node-1": "NODE", "/tmp/one": "TMP"}
COLOUR = Expected("^get", "a colour", "by decision", real="red", virtual="blue|green")


def said(out: str, form: str = "", err: str = "", code: int = 0) -> list[str]:
    """Return the normalized lines of an output without its exit code, which has to be the last line."""
    *lines, last = normalized(Completed(code, out, err), form, NAMES)
    assert last == f"exit code {code}"
    return lines


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ("web   1/1  Running   0   12s", "web 1/1 Running 0 AGE"),
        ("web 1/1 Running 1 (3s ago) 1m2s", "web 1/1 Running 1 (AGE ago) AGE"),
        ("web 1/1 Running 0 12m", "web 1/1 Running 0 AGE"),
        ("cpu: 100m", "cpu: 100m"),
        ("timeout=1s period=1s", "timeout=1s period=1s"),
        ("on lower-a-node-1, at /tmp/one/file", "on NODE, at TMP/file"),
        ("on lower-a-node-12", "on lower-a-node-12"),
        ("IP: 198.18.7.10", "IP: IP"),
        ("uid 11111111-2222-4333-8444-555555555555", "uid UID"),
        ("at 2026-01-31T12:00:00.123456789Z", "at MOMENT"),
        ("Start Time:  Sat, 31 Jan 2026 12:00:00 +0000", "Start Time: MOMENT"),
        ("fleet-6d4cf56db6-x7x2k", "fleet-HASH-RANDOM"),
        ("replicaset fleet-6d4cf56db6", "replicaset fleet-HASH"),
        ("Forwarding from 127.0.0.1:40123 -> 7001", "Forwarding from 127.0.0.1:PORT -> 7001"),
        ("  indented   line  ", "  indented line"),
    ],
)
def test_variable_parts_of_the_output_are_replaced(told: str, line: str) -> None:
    """These are times, addresses and generated names; values that a user set stay."""
    assert said(told) == [line]


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("tar: removing leading '/' from member names", False),
        ("tar: short read", True),
        ("E1122 09:20:41.123456   12345 websocket.go:297] Unknown stream id 1, discarding message", False),
        ("E1122 09:20:41.123456   12345 websocket.go:297] Unknown stream id 7, discarding message", True),
        ("E1122 09:20:41.1 1 portforward.go:502] error copying from local connection to remote stream: EOF", False),
        ('E1122 09:20:41.1 1 portforward.go:489] "Unhandled Error" err="error copying from remote stream"', True),
    ],
)
def test_messages_about_kubectls_own_threads_are_left_out(line: str, stays: bool) -> None:  # noqa: FBT001 - a table
    """Their order depends on timing; all other messages are compared."""
    assert len(said(f"{line}\n")) == stays


def test_errors_and_exit_codes_are_compared_too() -> None:
    """Each is a line of its own."""
    assert normalized(Completed(3, "out\r\n", "err\n\n"), "", {}) == ["out", "error: err", "exit code 3"]


def test_a_document_becomes_a_line_for_each_value() -> None:
    """Elements of lists are identified by their name, so that one more does not change the others."""
    text = "b: {l: [{name: y, v: '1'}, {name: x}], e: []}\na: [1, 2]\nitems: [{metadata: {name: p}, s: t}]\n"
    assert said(text, TREE) == [
        "a[0]: 1",
        "a[1]: 2",
        "b.e: []",
        "b.l[x].name: x",
        "b.l[y].name: y",
        "b.l[y].v: 1",
        "items[p].metadata.name: p",
        "items[p].s: t",
    ]


def test_objects_with_generated_names_have_no_order() -> None:
    """Two pods of one Deployment are listed in any order."""
    one, two = (f"{{metadata: {{name: fleet-6d4cf56db6-{end}}}, s: {end[0]}}}" for end in ("bbbbb", "ccccc"))
    other = one.replace("bbbbb", "ddddd")
    assert said(f"items: [{one}, {two}]", TREE) == said(f"items: [{two}, {other}]", TREE)


def test_a_missing_document_becomes_an_error_line() -> None:
    """There is no document to split."""
    assert said("", TREE, err="Error: {no", code=1) == ["error: Error: {no"]


def test_events_have_no_order() -> None:
    """They are sorted by seconds, in which several occur, and repeated ones count once."""
    text = "Name: web\nEvents:\n  B  5s (x3 over 10s)\n  A  1s\n  A  2s\n"
    assert said(text, EVENTS) == ["Name: web", "Events:", "  A AGE", "  B AGE"]


@pytest.mark.parametrize("kind", ["configmap", "secret"])
def test_an_event_that_a_volume_cache_is_not_synced_yet_is_left_out(kind: str) -> None:
    """The kubelet retries at once."""
    passed = f"MountVolume.SetUp failed for volume a : failed to sync {kind} cache: timed out waiting for the condition"
    assert said(f"Events:\n  Pulled  1s\n  FailedMount  1s  {passed}\n", EVENTS) == ["Events:", "  Pulled AGE"]


def test_an_event_that_a_volume_does_not_exist_is_kept() -> None:
    """This error is not temporary."""
    lasting = "  FailedMount kubelet MountVolume.SetUp failed for volume a : configmap nosuch not found"
    assert said(f"Events:\n{lasting}\n", EVENTS) == ["Events:", lasting]


def test_lines_that_are_repeated_without_a_break_count_once() -> None:
    """How often a container prints that it waits depends on timing."""
    assert said("ready\nready\nabc\nready\n") == ["ready", "abc", "ready"]


def test_lines_of_one_side_are_returned_with_their_side() -> None:
    """They keep their order."""
    assert lines_apart(["a", "b", "c"], ["a", "x", "c", "d"]) == [
        Line("real", "b"),
        Line("virtual", "x"),
        Line("virtual", "d"),
    ]


def test_a_difference_has_to_be_expected_for_its_command_and_side() -> None:
    """The whole line has to match, on that side; all other lines are unexplained."""
    lines = [Line("real", "red"), Line("virtual", "green"), Line("virtual", "red"), Line("real", "reddish")]
    assert explained("get pods", lines, [COLOUR]) == ({0}, lines[2:])
    assert explained("logs web", lines, [COLOUR]) == (set(), lines)


def test_unexpected_differences_break_the_comparison() -> None:
    """Expected differences that did not occur are listed as unmet."""
    found = compared("v1", {"logs web": ["a"], "exec": ["x"]}, {"logs web": ["b"], "exec": ["x"]})
    assert found["broken"] == ["v1: logs web: real: a", "v1: logs web: virtual: b"]
    assert found["apart"] == {"logs web": 2}
    whole = result_of({"v1": found})
    assert whole["broken"] == ["v1: logs web: real: a", "v1: logs web: virtual: b"]
    assert len(whole["unmet"]) == whole["expected"] == len(EXPECTED)


def test_placeholders_in_commands_are_replaced() -> None:
    """This works in every word, also beside braces that belong to kubectl."""
    hand = CommandRunner("kubectl", PAGE, {"node": "n1", "tmp": "/t"}, PAGE)
    found = hand.arguments(Step("cp {tmp}/a node/{node} 'jsonpath={.a} b'"))
    assert found == ["cp", "/t/a", "node/n1", "jsonpath={.a} b"]


def test_the_page_is_generated_from_the_table() -> None:
    """`python -m bench.conformance.kubectl --document` writes it, with every expected difference and its reason."""
    assert PAGE.read_text() == page()
    assert all(one.why and f"| {one.what} | {one.why} |" in page() for one in EXPECTED)


def test_the_steps_use_every_command_of_the_kubelet_api() -> None:
    """They are logs, exec, attach, cp, port-forward, debug and describe node; streams use both protocols."""
    given = {(step.arguments_text.split()[0], step.spdy) for step in STEPS}
    assert {"logs", "exec", "attach", "cp", "port-forward", "debug", "describe"} <= {word for word, _ in given}
    assert {("exec", True), ("port-forward", True)} <= given
