"""Why a machine can have no real node: asked before anything is changed, and said in words that help."""

import os
from pathlib import Path

import pytest

from tensile.sandbox import commands, real_node, start
from tensile.sandbox.state import Options, SandboxError

NOBODY = 65534
FOLDER = Path("/srv/sandbox")


def hierarchy(root: Path, mode: int = 0o755) -> Path:
    """Make a folder that looks like a mounted tree of cgroups."""
    folder = root / "memory"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    return root


def test_it_needs_root() -> None:
    """Another user is told so first of all."""
    assert "root" in real_node.obstacle((FOLDER,), os.environ, NOBODY)


def test_namespaces_are_tried_and_not_guessed() -> None:
    """A child leaves a namespace, where it may; what no kernel knows it may not."""
    assert real_node.can_unshare(0)
    assert not real_node.can_unshare(0x1)


def test_no_cgroups_is_an_obstacle(tmp_path: Path) -> None:
    """Where nothing is mounted no container can be made."""
    assert real_node.cgroups(tmp_path) == f"no cgroups are mounted at {tmp_path}"


def test_cgroups_of_either_form_will_do(tmp_path: Path) -> None:
    """A tree for each controller, or one for all."""
    assert real_node.cgroups(hierarchy(tmp_path / "apart")) == ""
    (tmp_path / "cgroup.procs").touch()
    assert real_node.cgroups(tmp_path) == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="everything can be written by root")
def test_cgroups_that_cannot_be_written_are_an_obstacle(tmp_path: Path) -> None:
    """The tree is named."""
    assert str(tmp_path / "memory") in real_node.cgroups(hierarchy(tmp_path, 0o555))


@pytest.mark.skipif(os.geteuid() != 0, reason="asked only after root")
@pytest.mark.parametrize("covered", ["/run/sandbox", "/var/lib/deep/sandbox", "/var/log/s"])
def test_a_folder_that_the_node_would_not_see_is_an_obstacle(covered: str) -> None:
    """The folder is named, and what to do."""
    found = real_node.obstacle((FOLDER, Path(covered)), os.environ)
    if "namespaces" in found or "cgroup" in found or "overlay" in found:
        pytest.skip(found)
    assert found.startswith(f"{covered} is in ")
    assert "--dir" in found


def test_without_a_runtime_and_a_way_to_fetch_it(tmp_path: Path) -> None:
    """What is missing is named."""
    found = real_node.runtime_obstacle({"PATH": str(tmp_path)})
    assert "containerd" in found
    assert "apt-get" in found


def test_a_refusal_comes_before_anything_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither directory nor state is left when a real node is refused."""
    place = tmp_path / "new"
    assert commands.up(0, 0, place, real_node=True) == 1
    assert "--real-node: the node belongs to a lower cluster" in capsys.readouterr().err
    assert not place.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to come so far")
def test_the_reason_is_in_the_error() -> None:
    """What the machine lacks is in what the user reads."""
    with pytest.raises(SandboxError, match="--real-node: this machine cannot run a real node: "):
        start.check(Options(real_node=True), Path("/run/sandbox"))


def test_nothing_is_asked_without_the_option() -> None:
    """A sandbox of nodes in name only works for everybody, everywhere."""
    start.check(Options(), Path("/run/sandbox"))
