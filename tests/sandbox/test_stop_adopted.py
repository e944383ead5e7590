"""What others put into a sandbox's directory, and have removed with it."""

import uuid
from pathlib import Path

import pytest

from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options, SandboxError, State, load, save


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a sandbox that has no process and no file of its own."""
    place = tmp_path / "s"
    place.mkdir()
    save(place, State(uuid.uuid4().hex, Options(lowers=0), ["upper"], [str(place)]))
    return place


def test_what_is_adopted_goes_with_the_sandbox(directory: Path) -> None:
    """Files and folders that were adopted are removed, even those written later or never."""
    sandbox = Sandbox.attach(directory)
    sandbox.adopt("workload.yaml", "cache", "never-written")
    (directory / "workload.yaml").write_text("kind: Pod\n")
    (directory / "cache" / "deep").mkdir(parents=True)
    assert sandbox.stop() == []
    assert not directory.exists()


def test_what_is_not_adopted_stays(directory: Path) -> None:
    """A file of somebody else is told and kept."""
    sandbox = Sandbox.attach(directory)
    sandbox.adopt("workload.yaml")
    (directory / "notes.txt").write_text("mine")
    assert sandbox.stop() == ["notes.txt"]
    assert (directory / "notes.txt").read_text() == "mine"


def test_a_name_is_written_down_once(directory: Path) -> None:
    """Adopting again, or a name of the sandbox's own, changes nothing."""
    sandbox = Sandbox.attach(directory)
    for _ in range(2):
        sandbox.adopt("upper", "workload.yaml")
    found = load(directory)
    assert found is not None
    assert found.entries == ["upper", "workload.yaml"]


def test_nothing_is_adopted_where_there_is_no_sandbox(tmp_path: Path) -> None:
    """The error says how to get one."""
    with pytest.raises(SandboxError, match="start one with `tensile sandbox up --dir /"):
        Sandbox(tmp_path).adopt("workload.yaml")
