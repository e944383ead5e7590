"""Tests of files that other programs put into a sandbox's directory and have removed with it."""

import uuid
from pathlib import Path

import pytest

from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options, SandboxError, State, load, save


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Create the directory of a sandbox that has no processes and no files other than its state."""
    place = tmp_path / "s"
    place.mkdir()
    save(place, State(uuid.uuid4().hex, Options(lowers=0), ["upper"], [str(place)]))
    return place


def test_adopted_entries_are_removed_with_the_sandbox(directory: Path) -> None:
    """Files and folders are removed even if they were written after the adoption, and may be missing."""
    sandbox = Sandbox.attach(directory)
    sandbox.adopt("workload.yaml", "cache", "never-written")
    (directory / "workload.yaml").write_text("kind: Pod\n")
    (directory / "cache" / "deep").mkdir(parents=True)
    assert sandbox.stop() == []
    assert not directory.exists()


def test_other_files_are_kept(directory: Path) -> None:
    """A file that was not adopted is reported and kept."""
    sandbox = Sandbox.attach(directory)
    sandbox.adopt("workload.yaml")
    (directory / "notes.txt").write_text("mine")
    assert sandbox.stop() == ["notes.txt"]
    assert (directory / "notes.txt").read_text() == "mine"


def test_a_name_is_recorded_once(directory: Path) -> None:
    """A repeated name, or a name of the sandbox itself, changes nothing."""
    sandbox = Sandbox.attach(directory)
    for _ in range(2):
        sandbox.adopt("upper", "workload.yaml")
    found = load(directory)
    assert found is not None
    assert found.entries == ["upper", "workload.yaml"]


def test_adopt_fails_without_a_sandbox(tmp_path: Path) -> None:
    """The error has the command that starts one."""
    with pytest.raises(SandboxError, match="start one with `tensile sandbox up --dir /"):
        Sandbox(tmp_path).adopt("workload.yaml")
