"""Small files: what is read of them, and what counts as a change."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tensile.errors import AccessError
from tensile.kube.files import LARGEST, Unfit, Watched, read_regular, read_small, watched
from tensile.kube.wording import shown


def rewritten(path: Path) -> None:
    """Write another content of the same length, with the same time of change as before."""
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "written": lambda path: path.write_bytes(b"longer"),
    "written alike": rewritten,
    "touched": os.utime,
    "gone": lambda path: path.unlink(),
    "renamed over": lambda path: (path.with_name("new").write_bytes(b"one"), path.with_name("new").rename(path)),
    "a folder now": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_way_to_change_a_file_is_seen(home: Path, change: str) -> None:
    """Also one that leaves length and time as they were; nothing is seen where nothing happened."""
    path = home / "f"
    path.write_bytes(b"one")
    before = watched([path, home / "other"])
    assert before.again() == before
    CHANGES[change](path)
    assert before.again() != before


def test_a_swap_of_links_is_seen(home: Path) -> None:
    """Kubernetes swaps the folder behind a link; the link that the path names stays as it is."""
    for name in ("one", "two"):
        (home / name).mkdir()
        (home / name / "token").write_text("same")
    (home / "..data").symlink_to("one")
    (home / "token").symlink_to("..data/token")
    before = watched([home / "token"])
    (home / "..new").symlink_to("two")
    (home / "..new").rename(home / "..data")
    assert before.again() != before


def test_no_files_never_change() -> None:
    """What was read from no file has nothing to be looked at."""
    assert Watched().again() == Watched()
    assert watched(["a\0b"]).again() == watched(["a\0b"])


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
    with pytest.raises(Unfit) as met:
        read_regular(home / "f")
    assert (met.value.strerror, bool(met.value.advice)) == (why, True)


def test_words_of_others_are_short_and_print() -> None:
    """The middle of a long name is left out, what does not print is escaped."""
    assert shown("plain/path-1.yaml") == "plain/path-1.yaml"
    assert shown("it's \\ \u00e9") == "it's \\ \u00e9"
    assert shown("a\x1b\n\u202e") == "a\\x1b\\n\\u202e"
    assert shown("a" * 50 + "b" * 50, 10) == "aaaaa...bbbbb"
