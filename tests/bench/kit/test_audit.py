"""Reading an audit log."""

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
    """A log with two records."""
    path = tmp_path / "audit.log"
    path.write_text("".join(json.dumps(record(verb)) + "\n" for verb in ("create", "get")))
    return path


def append(log: Path, text: str) -> None:
    """Add to the log as the apiserver does."""
    with log.open("a") as file:
        file.write(text)


def test_a_log_is_read_line_by_line(log: Path) -> None:
    """Each line is a record, in the order of the file."""
    assert [one["verb"] for one in audit.read(log)] == ["create", "get"]


def test_reading_goes_on_from_a_position(log: Path) -> None:
    """Only what was added after the position is read."""
    start = audit.position(log)
    append(log, json.dumps(record("delete")) + "\n")
    assert [one["verb"] for one in audit.read(log, start)] == ["delete"]


def test_a_position_is_where_a_record_begins(log: Path) -> None:
    """Taken while a line is being written, it is before that line: a reader never begins in its middle."""
    line = json.dumps(record("patch"))
    append(log, line[:20])
    start = audit.position(log)
    append(log, line[20:] + "\n")
    assert [one["verb"] for one in audit.read(log, start)] == ["patch"]


def test_a_line_that_is_being_written_is_left_alone(log: Path) -> None:
    """Half a record is no record, until its other half arrives."""
    start = audit.position(log)
    line = json.dumps(record("patch"))
    append(log, line[:20])
    assert audit.read(log, start) == []
    append(log, line[20:] + "\n")
    assert [one["verb"] for one in audit.read(log, start)] == ["patch"]


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    """Before the first request there is nothing to read, and reading starts at the beginning."""
    assert audit.position(tmp_path / "none") == 0
    assert audit.read(tmp_path / "none") == []


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete", "deletecollection"])
def test_what_changes_something_is_a_write(verb: str) -> None:
    """Every verb that changes an object counts."""
    assert audit.writes([record(verb)], "tensile/") == [record(verb)]


@pytest.mark.parametrize("verb", ["get", "list", "watch", "connect"])
def test_what_only_looks_is_no_write(verb: str) -> None:
    """Reading does not count."""
    assert audit.writes([record(verb)], "tensile/") == []


def test_only_the_writes_of_one_agent_count() -> None:
    """What kubectl and the controllers write is not the engine's, and neither is what names no agent."""
    others = [record("create", agent="kubectl/v1.36"), record("create", agent="not-tensile/1"), {"verb": "create"}]
    assert audit.writes([*others, record("create")], "tensile/") == [record("create")]


def test_some_resources_do_not_count() -> None:
    """Heartbeats can be left out of the count."""
    records = [record("update", "leases"), record("patch", "nodes"), record("create", "pods")]
    assert audit.writes(records, "tensile/", without=("leases", "nodes")) == [record("create", "pods")]


def test_a_write_without_an_object_counts() -> None:
    """A request that names no object is a write all the same."""
    bare = {"verb": "create", "userAgent": "tensile/1"}
    assert audit.writes([bare], "tensile/", without=("leases",)) == [bare]
