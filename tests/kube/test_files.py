"""Tests of reading small files: limits, kinds of files, and messages."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tensile.errors import AccessError
from tensile.kube.files import LARGEST, UnreadableFile, read_regular, read_small
from tensile.text import shown


def test_a_file_larger_than_the_limit_is_rejected(home: Path) -> None:
    """A file of exactly the limit is read whole."""
    (home / "f").write_bytes(b"abc")
    assert read_small(home / "f", 3) == b"abc"
    with pytest.raises(AccessError, match="f: larger than 2 bytes"):
        read_small(home / "f", 2)


def test_the_error_for_an_unreadable_file_has_the_reason_of_the_system(home: Path) -> None:
    """It also advises to check the path."""
    with pytest.raises(AccessError, match=r"cannot be read \(Not a directory\): check the path"):
        read_small(home.joinpath("f", "x") if (home / "f").write_bytes(b"") == 0 else home, 9)


def test_the_error_for_a_kubeconfig_of_a_stopped_sandbox_names_the_command_to_start_one(home: Path) -> None:
    """If the folder of the sandbox still exists, the advice is to check the path."""
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
def test_only_regular_files_up_to_the_limit_are_read(home: Path, make: Callable[[Path], object], why: str) -> None:
    """A pipe without a writer, an endless device or a huge file in a topology must not block or fill the engine."""
    make(home / "f")
    with pytest.raises(UnreadableFile) as raised:
        read_regular(home / "f")
    assert (raised.value.strerror, bool(raised.value.advice)) == (why, True)


def test_shown_shortens_long_text_and_escapes_unprintable_characters() -> None:
    """The middle of a long name is left out."""
    assert shown("plain/path-1.yaml") == "plain/path-1.yaml"
    assert shown("it's \\ \u00e9") == "it's \\ \u00e9"
    assert shown("a\x1b\n\u202e") == "a\\x1b\\n\\u202e"
    assert shown("a" * 50 + "b" * 50, 10) == "aaaaa...bbbbb"


@pytest.mark.parametrize("path", ["~/.kube/config", "~ops/config", "$HOME/config", "${HOME}/config"])
def test_the_error_for_an_unexpanded_path_says_that_no_shell_expands_it(path: str, tmp_path: Path) -> None:
    """Another path that does not exist only has the advice to check it."""
    with pytest.raises(AccessError, match="write the path in full: `~` and variables are not expanded here"):
        read_small(tmp_path / path, 9)
    with pytest.raises(AccessError, match="check the path"):
        read_small(tmp_path / "config~$", 9)
