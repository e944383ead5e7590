"""Tests of the sandbox's directory: it is created, locked, and left as it was before."""

import fcntl
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tensile.sandbox import stop
from tensile.sandbox.state import SandboxError, claimed
from tensile.sandbox.stop import PACKAGE_ROOT

HOLDER = """
import sys
from pathlib import Path
from tensile.sandbox.state import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
    {last}
"""


def lockable(directory: Path) -> bool:
    """Report whether no process holds the directory's lock."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def holder(directory: Path, last: str = "pass") -> subprocess.Popen[str]:
    """Start a process that holds the directory until its input ends, and then runs `last`."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(last=last), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )


def wait_until_held(process: subprocess.Popen[str]) -> None:
    """Return when the other process holds the lock."""
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"


def test_a_directory_that_cannot_be_created_is_an_error() -> None:
    """In /proc the kernel answers as if another command had just deleted the directory."""
    with pytest.raises(SandboxError, match="use another directory with --dir"), claimed(Path("/proc/sandbox/here")):
        pass


def test_a_missing_directory_is_created(tmp_path: Path) -> None:
    """Its missing parents are created and recorded too, the deepest first."""
    directory = tmp_path / "a" / "b"
    with claimed(directory) as claim:
        assert directory.is_dir()
        assert claim.created == [str(tmp_path / "a" / "b"), str(tmp_path / "a")]


def test_an_existing_directory_is_not_recorded_as_created(tmp_path: Path) -> None:
    """A directory that existed before was not created for the sandbox."""
    with claimed(tmp_path) as claim:
        assert claim.created == []


def test_the_lock_is_held_only_inside_the_block(tmp_path: Path) -> None:
    """No other process gets it within the block, and any can get it afterwards."""
    with claimed(tmp_path):
        assert not lockable(tmp_path)
    assert lockable(tmp_path)


def test_the_lock_leaves_no_file(tmp_path: Path) -> None:
    """The directory itself is locked."""
    with claimed(tmp_path):
        assert list(tmp_path.iterdir()) == []


def winner_of(one: subprocess.Popen[str], two: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Return the process that reports first that it holds the lock; the other one must not have reported so."""
    ready, _, _ = select.select([one.stdout, two.stdout], [], [], 30)
    assert len(ready) == 1
    winner = one if ready[0] is one.stdout else two
    wait_until_held(winner)
    return winner


@pytest.mark.process
def test_a_second_claim_waits_for_the_first(tmp_path: Path) -> None:
    """It returns only when the holder has ended."""
    with holder(tmp_path) as one, holder(tmp_path) as two:
        first = winner_of(one, two)
        second = two if first is one else one
        assert not lockable(tmp_path)
        first.communicate()
        wait_until_held(second)
        second.communicate()
    assert lockable(tmp_path)


@pytest.mark.process
def test_the_lock_ends_with_a_killed_holder(tmp_path: Path) -> None:
    """A killed command does not block later ones."""
    with holder(tmp_path) as process:
        wait_until_held(process)
        assert not lockable(tmp_path)
        process.kill()
    assert lockable(tmp_path)


@pytest.mark.process
def test_a_directory_that_was_removed_during_the_wait_is_created_again(tmp_path: Path) -> None:
    """A process that waited for the lock of a removed directory gets a new one."""
    directory = tmp_path / "s"
    with holder(directory, "Path(sys.argv[1]).rmdir()") as process:
        wait_until_held(process)
        assert process.stdin is not None
        process.stdin.close()
        with claimed(directory):
            assert directory.is_dir()
            assert not lockable(directory)


def test_a_file_in_place_of_a_directory_is_named(tmp_path: Path) -> None:
    """The error has the path and the remedy."""
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SandboxError, match=r"file.*Not a directory; use another directory"),
        claimed(tmp_path / "file"),
    ):
        pass


def test_only_named_entries_are_removed(tmp_path: Path) -> None:
    """Named files and folders are removed, and all others are kept."""
    (tmp_path / "upper" / "etcd").mkdir(parents=True)
    (tmp_path / "upper" / "etcd" / "db").write_text("x")
    (tmp_path / "upper.kubeconfig").write_text("x")
    (tmp_path / "notes.txt").write_text("x")
    stop.remove_entries(tmp_path, ["upper", "upper.kubeconfig", "never-made"])
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_symbolic_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    """If a link replaced a folder, its target is kept."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (tmp_path / "upper").symlink_to(tmp_path / "precious")
    stop.remove_entries(tmp_path, ["upper"])
    assert not (tmp_path / "upper").is_symlink()
    assert (tmp_path / "precious" / "file").exists()


def test_empty_directories_that_were_created_are_removed(tmp_path: Path) -> None:
    """The deepest is removed first, and directories that existed before are kept."""
    with claimed(tmp_path / "a" / "b") as claim:
        made = claim.created
    assert stop.remove_created(tmp_path / "a" / "b", made) == []
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_other_files_is_kept(tmp_path: Path) -> None:
    """Its files are reported, and its parents are not removed either."""
    with claimed(tmp_path / "a" / "b") as claim:
        made = claim.created
    (tmp_path / "a" / "b" / "notes.txt").write_text("x")
    assert stop.remove_created(tmp_path / "a" / "b", made) == ["notes.txt"]
    assert (tmp_path / "a" / "b" / "notes.txt").exists()


def test_removing_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    """The directory may have been removed before."""
    missing = tmp_path / "gone"
    assert stop.remove_created(missing, [str(missing)]) == []


def test_ending_a_missing_sandbox_creates_no_directory(tmp_path: Path) -> None:
    """The directory is not created only to look for a sandbox in it."""
    assert stop.end(tmp_path / "missing") is None
    assert not (tmp_path / "missing").exists()
