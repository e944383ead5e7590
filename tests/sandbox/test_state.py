"""Tests of the state file, which records what runs."""

from pathlib import Path

import pytest

from tensile.sandbox import state
from tensile.sandbox.state import Binaries, Layout, Options, Process, SandboxCluster, SandboxError, State


@pytest.fixture
def whole(upper: Layout, lower: Layout, binaries: Binaries) -> State:
    """Return a state with a value in every field."""
    process = Process(4711, 99, ["/bin/etcd", "--name=x"], "/tmp/etcd.log")
    return State(
        identity="abc",
        options=Options(1, 2, compressed_eviction=True, verify_kubelet=False),
        entries=["upper", "lower-a"],
        made=["/x/y", "/x"],
        ready=True,
        binaries=binaries,
        clusters={"upper": SandboxCluster(upper, {"etcd": process}), "lower-a": SandboxCluster(lower)},
    )


def test_a_saved_state_is_loaded_unchanged(tmp_path: Path, whole: State) -> None:
    """The file keeps every field of a state."""
    state.save(tmp_path, whole)
    assert state.load(tmp_path) == whole


def test_the_clusters_keep_their_order(tmp_path: Path, whole: State) -> None:
    """The upper cluster stays the first one."""
    state.save(tmp_path, whole)
    loaded = state.load(tmp_path)
    assert loaded is not None
    assert list(loaded.clusters) == ["upper", "lower-a"]


def test_saving_leaves_one_file(tmp_path: Path, whole: State) -> None:
    """The temporary file is renamed, so no other file is left."""
    state.save(tmp_path, whole)
    state.save(tmp_path, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_the_later_state_replaces_the_earlier_one(tmp_path: Path, whole: State) -> None:
    """A second save overwrites the first."""
    state.save(tmp_path, whole)
    whole.clusters["lower-a"].processes["kwok"] = Process(1, 2, [], "")
    state.save(tmp_path, whole)
    assert state.load(tmp_path) == whole


def test_an_unfinished_state_file_is_ignored(tmp_path: Path, whole: State) -> None:
    """If a writer is killed before the rename, the previous state remains valid."""
    state.save(tmp_path, whole)
    (tmp_path / state.NEW_FILE).write_text('{"identity": "half')
    assert state.load(tmp_path) == whole


def test_no_state_is_loaded_without_a_file(tmp_path: Path) -> None:
    """Neither an empty nor a missing directory is an error."""
    assert state.load(tmp_path) is None
    assert state.load(tmp_path / "missing") is None


def test_a_path_that_is_a_file_has_no_state(tmp_path: Path) -> None:
    """A file in place of the directory is no error."""
    (tmp_path / "file").write_text("")
    assert state.load(tmp_path / "file") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"identity": 3}', '{"identity": "a"}'])
def test_a_foreign_state_file_is_an_error(tmp_path: Path, content: str) -> None:
    """The error names the file and the remedy."""
    (tmp_path / state.FILE).write_text(content)
    with pytest.raises(SandboxError, match=r"state\.json: not the state of a sandbox .* another --dir"):
        state.load(tmp_path)


def test_two_states_share_no_clusters(upper: Layout) -> None:
    """A new state starts without the clusters of another one."""
    one, two = (State(name, Options(), [], []) for name in "ab")
    one.clusters["upper"] = SandboxCluster(upper)
    one.clusters["upper"].processes["etcd"] = Process(1, 2, [], "")
    assert two.clusters == {}
    assert SandboxCluster(upper).processes == {}
