"""Tests of the reasons why a machine cannot run a real node: they are checked before any change, with a remedy."""

import os
from pathlib import Path

import pytest

from tensile.sandbox import commands, real_node, start
from tensile.sandbox.state import Options, SandboxError

NOBODY = 65534
FOLDER = Path("/srv/sandbox")


def hierarchy(root: Path, mode: int = 0o755) -> Path:
    """Create a folder that looks like a mounted cgroup hierarchy."""
    folder = root / "memory"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    return root


def test_a_real_node_needs_root() -> None:
    """Another user gets this reason first."""
    assert "root" in real_node.obstacle((FOLDER,), os.environ, NOBODY)


def test_namespaces_are_tried_in_a_child_process() -> None:
    """The child's attempt decides; flags that no kernel knows are refused."""
    assert real_node.can_unshare(0)
    assert not real_node.can_unshare(0x1)


def test_missing_cgroups_are_an_obstacle(tmp_path: Path) -> None:
    """Without mounted cgroups no container can be created."""
    assert real_node.cgroups(tmp_path) == f"no cgroups are mounted at {tmp_path}"


def test_cgroups_of_both_versions_are_accepted(tmp_path: Path) -> None:
    """Either each controller has a hierarchy, or all share one."""
    assert real_node.cgroups(hierarchy(tmp_path / "apart")) == ""
    (tmp_path / "cgroup.procs").touch()
    assert real_node.cgroups(tmp_path) == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="everything can be written by root")
def test_cgroups_without_write_access_are_an_obstacle(tmp_path: Path) -> None:
    """The reason names the hierarchy."""
    assert str(tmp_path / "memory") in real_node.cgroups(hierarchy(tmp_path, 0o555))


@pytest.mark.skipif(os.geteuid() != 0, reason="asked only after root")
@pytest.mark.parametrize("covered", ["/run/sandbox", "/var/lib/deep/sandbox", "/var/log/s"])
def test_a_folder_that_the_node_does_not_see_is_an_obstacle(covered: str) -> None:
    """The reason names the folder and the remedy."""
    found = real_node.obstacle((FOLDER, Path(covered)), os.environ)
    if "namespaces" in found or "cgroup" in found or "overlay" in found:
        pytest.skip(found)
    assert found.startswith(f"{covered} is in ")
    assert "--dir" in found


def test_a_missing_runtime_that_cannot_be_fetched_is_an_obstacle(tmp_path: Path) -> None:
    """The reason names the missing programs."""
    found = real_node.runtime_obstacle({"PATH": str(tmp_path)})
    assert "containerd" in found
    assert "apt-get" in found


def test_a_refused_real_node_leaves_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The refusal precedes the creation of the directory and the state."""
    place = tmp_path / "new"
    assert commands.up(0, 0, place, real_node=True) == 1
    assert "--real-node: the node belongs to a lower cluster" in capsys.readouterr().err
    assert not place.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to come so far")
def test_the_obstacle_is_in_the_error() -> None:
    """The user's error includes what the machine lacks."""
    with pytest.raises(SandboxError, match="--real-node: this machine cannot run a real node: "):
        start.check(Options(real_node=True), Path("/run/sandbox"))


def test_the_machine_is_not_checked_without_the_option() -> None:
    """A sandbox of simulated nodes works for every user on every machine."""
    start.check(Options(), Path("/run/sandbox"))
