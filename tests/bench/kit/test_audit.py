"""Tests of reading an audit log."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.kit import audit


def record(verb: str, resource: str = "pods", agent: str = "tensile/0.1") -> dict[str, Any]:
    """Return a record as the apiserver writes it, as far as it matters here."""
    return {"verb": verb, "userAgent": agent, "objectRef": {"resource": resource}}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log with two records."""
    path = tmp_path / "audit.log"
    path.write_text("".join(json.dumps(record(verb)) + "\n" for verb in ("create", "get")))
    return path


def append(log: Path, text: str) -> None:
    """Append to the log as the apiserver does."""
    with log.open("a") as file:
        file.write(text)


def test_a_log_is_read_line_by_line(log: Path) -> None:
    """Each line is a record, in the order of the file."""
    assert [one["verb"] for one in audit.read(log)] == ["create", "get"]


def test_reading_continues_from_a_position(log: Path) -> None:
    """Only lines that were appended after the position are read."""
    start = audit.position(log)
    append(log, json.dumps(record("delete")) + "\n")
    assert [one["verb"] for one in audit.read(log, start)] == ["delete"]


def test_a_position_is_always_the_start_of_a_record(log: Path) -> None:
    """While a line is being written, the position is before that line, so a reader never starts in its middle."""
    line = json.dumps(record("patch"))
    append(log, line[:20])
    start = audit.position(log)
    append(log, line[20:] + "\n")
    assert [one["verb"] for one in audit.read(log, start)] == ["patch"]


def test_an_incomplete_line_is_not_read(log: Path) -> None:
    """It is read once its rest is written."""
    start = audit.position(log)
    line = json.dumps(record("patch"))
    append(log, line[:20])
    assert audit.read(log, start) == []
    append(log, line[20:] + "\n")
    assert [one["verb"] for one in audit.read(log, start)] == ["patch"]


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    """Before the first request, there is no record to read, and the position is 0."""
    assert audit.position(tmp_path / "none") == 0
    assert audit.read(tmp_path / "none") == []


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete", "deletecollection"])
def test_verbs_that_change_an_object_are_writes(verb: str) -> None:
    """All five of them count."""
    assert audit.writes([record(verb)], "tensile/") == [record(verb)]


@pytest.mark.parametrize("verb", ["get", "list", "watch", "connect"])
def test_verbs_that_only_read_are_no_writes(verb: str) -> None:
    """Reads and connects do not count."""
    assert audit.writes([record(verb)], "tensile/") == []


def test_only_the_writes_of_one_agent_count() -> None:
    """Writes of kubectl and of controllers are not the engine's, and neither are records without an agent."""
    others = [record("create", agent="kubectl/v1.36"), record("create", agent="not-tensile/1"), {"verb": "create"}]
    assert audit.writes([*others, record("create")], "tensile/") == [record("create")]


def test_given_resources_do_not_count() -> None:
    """A count can therefore leave out heartbeats."""
    records = [record("update", "leases"), record("patch", "nodes"), record("create", "pods")]
    assert audit.writes(records, "tensile/", without=("leases", "nodes")) == [record("create", "pods")]


def test_a_write_without_an_object_counts() -> None:
    """A request without an object reference is a write too."""
    bare = {"verb": "create", "userAgent": "tensile/1"}
    assert audit.writes([bare], "tensile/", without=("leases",)) == [bare]
