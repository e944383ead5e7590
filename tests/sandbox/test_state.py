"""The file that says what runs."""

from pathlib import Path

import pytest

from tensile.sandbox import state
from tensile.sandbox.state import Binaries, Layout, Options, Process, SandboxCluster, SandboxError, State


@pytest.fixture
def whole(upper: Layout, lower: Layout, binaries: Binaries) -> State:
    """A state with something in every field."""
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


def test_what_is_saved_is_loaded(tmp_path: Path, whole: State) -> None:
    """Nothing of a state is lost on the way through the file."""
    state.save(tmp_path, whole)
    assert state.load(tmp_path) == whole


def test_the_clusters_keep_their_order(tmp_path: Path, whole: State) -> None:
    """The upper cluster stays the first one."""
    state.save(tmp_path, whole)
    loaded = state.load(tmp_path)
    assert loaded is not None
    assert list(loaded.clusters) == ["upper", "lower-a"]


def test_saving_leaves_one_file(tmp_path: Path, whole: State) -> None:
    """The file is written beside its place and renamed; nothing stays behind."""
    state.save(tmp_path, whole)
    state.save(tmp_path, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_the_later_state_counts(tmp_path: Path, whole: State) -> None:
    """Saving replaces what was there."""
    state.save(tmp_path, whole)
    whole.clusters["lower-a"].processes["kwok"] = Process(1, 2, [], "")
    state.save(tmp_path, whole)
    assert state.load(tmp_path) == whole


def test_a_half_written_state_does_not_count(tmp_path: Path, whole: State) -> None:
    """A writer that was killed before renaming left the former state in force."""
    state.save(tmp_path, whole)
    (tmp_path / state.NEW_FILE).write_text('{"identity": "half')
    assert state.load(tmp_path) == whole


def test_where_no_file_is_there_is_no_sandbox(tmp_path: Path) -> None:
    """Neither an empty directory nor a missing one is an error."""
    assert state.load(tmp_path) is None
    assert state.load(tmp_path / "missing") is None


def test_a_file_is_no_sandboxs_directory(tmp_path: Path) -> None:
    """A path that leads through a file has no sandbox."""
    (tmp_path / "file").write_text("")
    assert state.load(tmp_path / "file") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"identity": 3}', '{"identity": "a"}'])
def test_a_foreign_file_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    """A state.json that is not ours is an error that names it and the way out."""
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
