"""Small files: what is read of them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tensile.errors import AccessError
from tensile.kube.files import LARGEST, UnreadableFile, read_regular, read_small
from tensile.text import shown


def test_no_more_is_read_than_allowed(home: Path) -> None:
    """A file of just the size is whole, one byte more is refused."""
    (home / "f").write_bytes(b"abc")
    assert read_small(home / "f", 3) == b"abc"
    with pytest.raises(AccessError, match="f: larger than 2 bytes"):
        read_small(home / "f", 2)


def test_a_file_that_may_not_be_read_is_told(home: Path) -> None:
    """The system's reason is in the message."""
    with pytest.raises(AccessError, match=r"cannot be read \(Not a directory\): check the path"):
        read_small(home.joinpath("f", "x") if (home / "f").write_bytes(b"") == 0 else home, 9)


def test_a_kubeconfig_of_a_stopped_sandbox_is_missing_with_the_command_that_starts_one(home: Path) -> None:
    """Only if the whole folder of the sandbox is gone; otherwise the path is wrong."""
    folder = home / "my files" / ".tensile-sandbox"
    command = f"tensile sandbox up --dir '{folder}'"
    with pytest.raises(AccessError, match=f"No such file or directory.*: no sandbox runs there: .*`{command}`"):
        read_small(folder / "upper.kubeconfig", 9)
    folder.mkdir(parents=True)
    with pytest.raises(AccessError, match=r"No such file or directory.*: check the path"):
        read_small(folder / "upper.kubeconfig", 9)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not a file"),
        (Path.mkdir, "not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a file"),
        (lambda path: path.write_bytes(b"a" * (LARGEST + 1)), "larger than 1048576 bytes"),
    ],
)
def test_only_regular_files_are_read(home: Path, make: Callable[[Path], object], why: str) -> None:
    """A pipe that nobody writes, a device without end and a file of any length cost no more than a file."""
    make(home / "f")
    with pytest.raises(UnreadableFile) as met:
        read_regular(home / "f")
    assert (met.value.strerror, bool(met.value.advice)) == (why, True)


def test_words_of_others_are_short_and_print() -> None:
    """The middle of a long name is left out, what does not print is escaped."""
    assert shown("plain/path-1.yaml") == "plain/path-1.yaml"
    assert shown("it's \\ \u00e9") == "it's \\ \u00e9"
    assert shown("a\x1b\n\u202e") == "a\\x1b\\n\\u202e"
    assert shown("a" * 50 + "b" * 50, 10) == "aaaaa...bbbbb"


@pytest.mark.parametrize("path", ["~/.kube/config", "~ops/config", "$HOME/config", "${HOME}/config"])
def test_a_path_that_a_shell_would_expand_is_told(path: str, tmp_path: Path) -> None:
    """A topology is no shell script; any other path that does not exist is to be checked."""
    with pytest.raises(AccessError, match="write the path in full: `~` and variables are not expanded here"):
        read_small(tmp_path / path, 9)
    with pytest.raises(AccessError, match="check the path"):
        read_small(tmp_path / "config~$", 9)
