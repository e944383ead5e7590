"""Tests of a rendering in a directory: repetition changes nothing, and other files are never changed."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from setupkit import TOPOLOGIES, lower, setup, text

from tensile.deploy.manifests import MARK, NAMESPACE, RenderOptions, rendering, write, written
from tensile.deploy.setup import Setup
from tensile.errors import TensileError

MINE = "# mine\n"


def held(directory: Path) -> dict[str, str]:
    """Return every file in a directory tree, by its relative path."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_text() for path in files}


def test_a_repeated_rendering_changes_nothing(tmp_path: Path) -> None:
    """No byte differs, and no message is returned."""
    assert len(written(setup(), tmp_path, "elsewhere/topology.yaml")) == len(held(tmp_path)) > 8
    before = held(tmp_path)
    assert written(setup(), tmp_path, "elsewhere/topology.yaml") == []
    assert held(tmp_path) == before


def test_files_that_are_no_longer_rendered_are_removed(tmp_path: Path) -> None:
    """Folders of lower clusters are removed too; the result equals a first rendering of the smaller topology."""
    whole, little = setup(**TOPOLOGIES["whole"]), setup(**TOPOLOGIES["little"])
    written(whole, tmp_path / "a", "topology.yaml")
    output = written(little, tmp_path / "a", "topology.yaml")
    written(little, tmp_path / "b", "topology.yaml")
    assert held(tmp_path / "a") == held(tmp_path / "b")
    assert not (tmp_path / "a" / "lowers").exists()
    assert f"{tmp_path / 'a' / 'storageclass.yaml'}: removed" in output
    assert f"{tmp_path / 'a' / 'roles.yaml'}: changed" in output


def test_other_files_are_kept(tmp_path: Path) -> None:
    """Files beside the rendered ones are kept, whatever their names."""
    (tmp_path / "lowers" / "old").mkdir(parents=True)
    for path in ("patch.yaml", "README.md", "lowers/old/mine.yaml"):
        (tmp_path / path).write_text(MINE)
    written(setup(), tmp_path, "topology.yaml")
    written(setup(lowers=[]), tmp_path, "topology.yaml")
    found = held(tmp_path)
    assert [found[path] for path in ("patch.yaml", "README.md", "lowers/old/mine.yaml")] == [MINE] * 3


def test_a_foreign_file_with_a_rendered_name_is_an_error_before_any_write(tmp_path: Path) -> None:
    """The error names all such files."""
    for name in ("engine.yaml", "topology.yaml"):
        (tmp_path / name).write_text(MINE)
    with pytest.raises(TensileError) as refusal:
        written(setup(), tmp_path, "elsewhere/topology.yaml")
    assert held(tmp_path) == {"engine.yaml": MINE, "topology.yaml": MINE}
    error_lines = str(refusal.value).splitlines()
    assert [line.split(": ")[0] for line in error_lines[:-1]] == [
        str(tmp_path / "engine.yaml"),
        str(tmp_path / "topology.yaml"),
    ]
    assert error_lines[-1].startswith("nothing was written")


def test_the_directorys_own_topology_is_not_changed(tmp_path: Path) -> None:
    """Users edit this file, and edits since it was read are kept."""
    own = tmp_path / "topology.yaml"
    own.write_text(setup().text)
    assert str(own) not in "".join(written(setup(), tmp_path, str(own)))
    assert own.read_text() == setup().text
    own.write_text(text(controllers=[]))
    with pytest.raises(TensileError, match="topology"):
        written(setup(), tmp_path, str(own))
    assert own.read_text() == text(controllers=[])


def test_a_copy_of_a_topology_names_its_source(tmp_path: Path) -> None:
    """It has only the file name, so the result does not depend on the folder; the copy can be the source itself."""
    written(setup(), tmp_path, "/somewhere/else/mine.yaml")
    copy = tmp_path / "topology.yaml"
    assert copy.read_text() == f"{MARK} It is a copy of mine.yaml: edit that file.\n{setup().text}"
    assert written(setup()._replace(text=copy.read_text()), tmp_path, str(copy)) == []
    assert written(setup()._replace(text="\ufeff" + setup().text), tmp_path, "/somewhere/else/mine.yaml") == []


def test_an_unmarked_file_with_the_rendered_content_is_accepted(tmp_path: Path) -> None:
    """A file without the mark is no conflict if its content would not change."""
    assert write(tmp_path, {"a.yaml": MINE}) == [f"{tmp_path / 'a.yaml'}: written"]
    assert write(tmp_path, {"a.yaml": MINE}) == []


def refused(found: Setup, directory: Path, name: str = "elsewhere/topology.yaml") -> str:
    """Render with an expected error, check that nothing has changed, and return the error."""
    before = held(directory)
    with pytest.raises(TensileError) as refusal:
        written(found, directory, name)
    assert held(directory) == before
    return str(refusal.value)


@contextmanager
def full(limit: int) -> Iterator[None]:
    """Limit the size of files to this many bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["engine.yaml", "topology.yaml"])
def test_a_symbolic_link_is_not_written_through(tmp_path: Path, name: str) -> None:
    """Its target belongs to another owner, even if it was rendered by this program, or does not exist yet."""
    written(setup(), tmp_path / "other", "elsewhere/topology.yaml")
    target, here = tmp_path / "other" / name, tmp_path / "here"
    here.mkdir()
    (here / name).symlink_to(target)
    before = target.read_text()
    assert f"{here / name}: a symbolic link, or not a regular file" in refused(
        setup(image="new:1", kubelet={"port": 9000}), here
    )
    assert target.read_text() == before
    target.unlink()
    assert f"{here / name}: a symbolic link" in refused(setup(), here)
    assert not target.exists()


def test_a_linked_folder_is_not_written_through(tmp_path: Path) -> None:
    """No file is removed through it either."""
    written(setup(), tmp_path / "other", "topology.yaml")
    for place in ("lowers", "lowers/lower-a"):
        here = tmp_path / place.replace("/", "-")
        (here / place).parent.mkdir(parents=True)
        (here / place).symlink_to(tmp_path / "other" / place)
        before = held(tmp_path / "other")
        assert f"{here / place}: a symbolic link, or not a directory" in refused(
            setup(image="a:1", controllers=["PV"]), here
        )
        written(setup(lowers=[]), here, "topology.yaml")
        assert held(tmp_path / "other") == before


def test_the_directory_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    """The user named it, so its target gets all files."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    written(setup(), tmp_path / "link", "topology.yaml")
    assert len(held(tmp_path / "real")) > 8
    written(setup(lowers=[]), tmp_path / "link", "topology.yaml")
    assert not (tmp_path / "real" / "lowers").exists()


def test_an_entry_that_is_no_regular_file_is_an_error_only_if_its_name_is_needed(tmp_path: Path) -> None:
    """An entry of another name is not even opened."""
    os.mkfifo(tmp_path / "storageclass.yaml")
    (tmp_path / "extra.yaml").mkdir()
    written(setup(controllers=[]), tmp_path, "topology.yaml")
    assert f"{tmp_path / 'storageclass.yaml'}: a symbolic link, or not a regular file" in refused(setup(), tmp_path)
    (tmp_path / "lowers" / "lower-c").write_text(MINE)
    lowers = [lower("lower-c")]
    error = refused(setup(lowers=lowers, controllers=[]), tmp_path)
    assert error.count(f"{tmp_path / 'lowers' / 'lower-c'}: a symbolic link, or not a directory") == 1


def test_a_copy_under_another_name_is_kept(tmp_path: Path) -> None:
    """It is kept despite its mark, because the user copied it."""
    written(setup(), tmp_path, "topology.yaml")
    for name, copy in (
        ("network.yaml", "network-extra.yaml"),
        ("lowers/lower-a/access.yaml", "lowers/lower-a/more.yaml"),
    ):
        (tmp_path / copy).write_bytes((tmp_path / name).read_bytes())
    written(setup(lowers=[]), tmp_path, "topology.yaml")
    found = held(tmp_path)
    assert {"network-extra.yaml", "lowers/lower-a/more.yaml"} <= set(found)
    assert "lowers/lower-a/access.yaml" not in found


def test_a_topology_keeps_its_line_ends_and_its_encoding(tmp_path: Path) -> None:
    """The directory's own topology and a copy keep both."""
    lines = f"# Für uns.\n{setup().text}".replace("\n", "\r\n")
    own = tmp_path / "own" / "topology.yaml"
    own.parent.mkdir()
    own.write_bytes(lines.encode())
    found = rendering(own.read_bytes(), str(own), RenderOptions(NAMESPACE, None))
    written(found, own.parent, str(own))
    assert own.read_bytes() == lines.encode()
    assert written(found, own.parent, str(own)) == []
    written(found, tmp_path / "copy", str(own))
    assert (tmp_path / "copy" / "topology.yaml").read_bytes().endswith(lines.encode())


def test_the_directorys_own_topology_is_recognized_by_another_path(tmp_path: Path) -> None:
    """Through a parent folder or a link it is the same file and is not overwritten by a copy."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "topology.yaml").write_text(setup().text)
    (tmp_path / "link").symlink_to(here)
    for name in (here / ".." / "here" / "topology.yaml", tmp_path / "link" / "topology.yaml"):
        written(setup(), here, str(name))
        assert (here / "topology.yaml").read_text() == setup().text


def test_a_file_that_cannot_be_written_keeps_its_content(tmp_path: Path) -> None:
    """The error names it, no other file is left, and the next rendering with enough space writes it."""
    written(setup(), tmp_path, "topology.yaml")
    before = (tmp_path / "engine.yaml").read_text()
    with (
        full(1000),
        pytest.raises(TensileError, match=r"engine.yaml: cannot be written: File too large. The old content is kept"),
    ):
        written(setup(image="new:1"), tmp_path, "topology.yaml")
    assert (tmp_path / "engine.yaml").read_text() == before
    assert not list(tmp_path.rglob(".*"))
    assert written(setup(image="new:1"), tmp_path, "topology.yaml") == [f"{tmp_path / 'engine.yaml'}: changed"]
    (tmp_path / "plain").write_text(MINE)
    with pytest.raises(TensileError, match=r"plain/kustomization.yaml: cannot be written: "):
        written(setup(), tmp_path / "plain", "topology.yaml")
