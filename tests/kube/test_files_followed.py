"""Tests of the resolution of paths: which directories and files must be watched for one file."""

import os
from pathlib import Path

import pytest

from tensile.kube.files import Mounts, ResolvedPath, read_mounts, resolve_path

NOTHING = Mounts({}, frozenset())
MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 27 0:45 / /srv/with\040space rw,relatime shared:9 master:2 - nfs4 10.0.0.1:/export rw,vers=4.2
32 27 0:46 / /home/a rw - fuse.sshfs a@b: rw
33 27 0:47 / /var/lib/box rw - fuse.fuse-overlayfs box rw
34 27 254:0 /host/token /etc/token rw,relatime - ext4 /dev/vda rw
nonsense
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a directory by its real path."""
    return tmp_path.resolve()


def with_parents(*directories: Path) -> set[str]:
    """Return these directories and all their parents."""
    return {str(each) for one in directories for each in (one, *one.parents)}


def test_every_directory_on_the_path_is_watched(home: Path) -> None:
    """If any of them is renamed, the path leads to another file."""
    file = home / "a" / "b" / "f"
    file.parent.mkdir(parents=True)
    file.write_text("")
    trail = resolve_path(file, NOTHING)
    assert trail == ResolvedPath(
        frozenset(with_parents(file) - {"/"}), frozenset(with_parents(file.parent)), str(file), ""
    )


def test_symlinks_and_their_targets_are_watched(home: Path) -> None:
    """Symlinks may be relative or absolute or contain `..`, and the directory of each symlink is watched."""
    (home / "real").mkdir()
    (home / "links").mkdir()
    (home / "real" / "f").write_text("")
    (home / "links" / "up").symlink_to("../real/./f")
    (home / "entry").symlink_to(home / "links" / "up")
    trail = resolve_path(home / "entry", NOTHING)
    steps = [home / "entry", home / "links", home / "links" / "up", home / "real", home / "real" / "f"]
    assert trail.end == str(home / "real" / "f")
    assert trail.names >= {str(step) for step in steps}
    assert trail.targets == with_parents(home / "links", home / "real")


@pytest.mark.parametrize("path", ["gone", "gone/b/f", "file/f", "loop", "loop/f", "zero\0byte"])
def test_a_path_that_does_not_exist_is_watched_as_far_as_it_exists(home: Path, path: str) -> None:
    """The next part of the path may be created later."""
    (home / "file").write_text("")
    (home / "loop").symlink_to("loop")
    trail = resolve_path(home / path, NOTHING)
    assert (trail.end, trail.unwatchable) == ("", "")
    assert trail.targets == with_parents(home)
    assert str(home / path.partition("/")[0]) in trail.names


def test_a_file_with_hard_links_or_a_mount_is_watched_itself(home: Path) -> None:
    """It can be written without a notice in its directory; for all other files the directory is enough."""
    for name in ("linked", "mounted", "plain"):
        (home / name).write_text("")
    os.link(home / "linked", home / "other")
    mounts = Mounts({}, frozenset({str(home / "mounted")}))
    alone = {
        name for name in ("linked", "mounted", "plain") if str(home / name) in resolve_path(home / name, mounts).targets
    }
    assert alone == {"linked", "mounted"}


def test_read_mounts_returns_network_file_systems_and_mount_points() -> None:
    """Network file systems are those that other hosts can write to; escapes in mount points are decoded."""
    found = read_mounts(MOUNTINFO)
    assert found.network == {"0:45": "nfs4", "0:46": "fuse.sshfs"}
    assert {"/srv/with space", "/etc/token"} <= found.points
    assert read_mounts("") == NOTHING


def test_the_resolved_path_says_if_it_is_on_a_network_file_system(home: Path) -> None:
    """The system reports no changes there, so the message names the directory and the type of the file system."""
    (home / "f").write_text("")
    device = home.stat().st_dev
    mounts = Mounts({f"{os.major(device)}:{os.minor(device)}": "nfs4"}, frozenset())
    assert (
        resolve_path(home / "f", mounts).unwatchable
        == f"{home} is on a file system of type nfs4, which other hosts can write to"
    )
