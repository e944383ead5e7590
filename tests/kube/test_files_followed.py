"""The way to a file: what of it has to be watched."""

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


def above(*directories: Path) -> set[str]:
    """Return directories and all those that they are in."""
    return {str(each) for one in directories for each in (one, *one.parents)}


def test_every_step_counts(home: Path) -> None:
    """Each directory on the way, as whoever renames one of them has the path lead elsewhere."""
    file = home / "a" / "b" / "f"
    file.parent.mkdir(parents=True)
    file.write_text("")
    trail = resolve_path(file, NOTHING)
    assert trail == ResolvedPath(frozenset(above(file) - {"/"}), frozenset(above(file.parent)), str(file), "")


def test_symlinks_count_and_what_they_lead_to(home: Path) -> None:
    """A relative one, an absolute one, one that goes up, and the directory in which each of them is."""
    (home / "real").mkdir()
    (home / "links").mkdir()
    (home / "real" / "f").write_text("")
    (home / "links" / "up").symlink_to("../real/./f")
    (home / "entry").symlink_to(home / "links" / "up")
    trail = resolve_path(home / "entry", NOTHING)
    steps = [home / "entry", home / "links", home / "links" / "up", home / "real", home / "real" / "f"]
    assert trail.end == str(home / "real" / "f")
    assert trail.names >= {str(step) for step in steps}
    assert trail.targets == above(home / "links", home / "real")


@pytest.mark.parametrize("path", ["gone", "gone/b/f", "file/f", "loop", "loop/f", "zero\0byte"])
def test_a_way_that_ends_early_is_watched_up_to_there(home: Path, path: str) -> None:
    """Where the next step may come one day."""
    (home / "file").write_text("")
    (home / "loop").symlink_to("loop")
    trail = resolve_path(home / path, NOTHING)
    assert (trail.end, trail.dark) == ("", "")
    assert trail.targets == above(home)
    assert str(home / path.partition("/")[0]) in trail.names


def test_a_file_that_others_can_write_to_elsewhere_is_watched_itself(home: Path) -> None:
    """One with another name, and one that is mounted over another; for all others the directory is enough."""
    for name in ("linked", "mounted", "plain"):
        (home / name).write_text("")
    os.link(home / "linked", home / "other")
    mounts = Mounts({}, frozenset({str(home / "mounted")}))
    alone = {
        name for name in ("linked", "mounted", "plain") if str(home / name) in resolve_path(home / name, mounts).targets
    }
    assert alone == {"linked", "mounted"}


def test_network_file_systems_are_known_by_their_mounts() -> None:
    """Those that others write to; also where files are mounted, as they are spelled."""
    found = read_mounts(MOUNTINFO)
    assert found.network == {"0:45": "nfs4", "0:46": "fuse.sshfs"}
    assert {"/srv/with space", "/etc/token"} <= found.points
    assert read_mounts("") == NOTHING


def test_nothing_is_told_of_a_network_file_system(home: Path) -> None:
    """It is said where that is, and what it is."""
    (home / "f").write_text("")
    device = home.stat().st_dev
    mounts = Mounts({f"{os.major(device)}:{os.minor(device)}": "nfs4"}, frozenset())
    assert (
        resolve_path(home / "f", mounts).dark
        == f"{home} is on a file system of type nfs4, which other hosts can write to"
    )
