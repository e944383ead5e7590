"""A rendering in a directory: the same again changes nothing, what others put there is never touched."""

from pathlib import Path

import pytest
from setupkit import TOPOLOGIES, setup, text

from tensile.errors import TensileError
from tensile.manifests.commands import written
from tensile.manifests.folder import write
from tensile.manifests.rendering import MARK

MINE = "# mine\n"


def held(directory: Path) -> dict[str, str]:
    """Give every file below a directory, by its path there."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_text() for path in files}


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    """Not a byte, and nothing is said."""
    assert len(written(setup(), tmp_path, "elsewhere/topology.yaml")) == len(held(tmp_path)) > 8
    before = held(tmp_path)
    assert written(setup(), tmp_path, "elsewhere/topology.yaml") == []
    assert held(tmp_path) == before


def test_what_is_there_no_more_goes(tmp_path: Path) -> None:
    """With the folder of a lower cluster; the first rendering of less gives the same."""
    whole, little = setup(**TOPOLOGIES["whole"]), setup(**TOPOLOGIES["little"])
    written(whole, tmp_path / "a", "topology.yaml")
    said = written(little, tmp_path / "a", "topology.yaml")
    written(little, tmp_path / "b", "topology.yaml")
    assert held(tmp_path / "a") == held(tmp_path / "b")
    assert not (tmp_path / "a" / "lowers").exists()
    assert f"{tmp_path / 'a' / 'scheduler-extender.yaml'}: removed" in said
    assert f"{tmp_path / 'a' / 'roles.yaml'}: changed" in said


def test_files_of_others_stay(tmp_path: Path) -> None:
    """Beside ours, whatever their names."""
    (tmp_path / "lowers" / "old").mkdir(parents=True)
    for path in ("patch.yaml", "README.md", "lowers/old/mine.yaml"):
        (tmp_path / path).write_text(MINE)
    written(setup(), tmp_path, "topology.yaml")
    written(setup(lowers=[]), tmp_path, "topology.yaml")
    found = held(tmp_path)
    assert [found[path] for path in ("patch.yaml", "README.md", "lowers/old/mine.yaml")] == [MINE] * 3


def test_a_file_of_somebody_else_in_the_way_ends_it_before_anything_is_written(tmp_path: Path) -> None:
    """All such files are named."""
    for name in ("engine.yaml", "topology.yaml"):
        (tmp_path / name).write_text(MINE)
    with pytest.raises(TensileError) as refusal:
        written(setup(), tmp_path, "elsewhere/topology.yaml")
    assert held(tmp_path) == {"engine.yaml": MINE, "topology.yaml": MINE}
    told = str(refusal.value).splitlines()
    assert [line.split(": ")[0] for line in told[:-1]] == [
        str(tmp_path / "engine.yaml"),
        str(tmp_path / "topology.yaml"),
    ]
    assert told[-1].startswith("nothing was written")


def test_the_directorys_own_topology_stays_as_it_is(tmp_path: Path) -> None:
    """It is the file that people edit; one that would have to be changed is theirs to change."""
    own = tmp_path / "topology.yaml"
    own.write_text(setup().text)
    assert str(own) not in "".join(written(setup(), tmp_path, str(own)))
    assert own.read_text() == setup().text
    own.write_text(text())
    with pytest.raises(TensileError, match="topology"):
        written(setup(), tmp_path, str(own))
    assert own.read_text() == text()


def test_a_copy_of_a_topology_says_what_it_is_made_of(tmp_path: Path) -> None:
    """By its name alone, so that the same comes out wherever it is; then the copy can be the source itself."""
    written(setup(), tmp_path, "/somewhere/else/mine.yaml")
    copy = tmp_path / "topology.yaml"
    assert copy.read_text() == f"{MARK} It is made of mine.yaml: edit that one.\n{setup().text}"
    assert written(setup()._replace(text=copy.read_text()), tmp_path, str(copy)) == []


def test_what_was_there_already_is_taken_for_ours(tmp_path: Path) -> None:
    """A file without our mark that is just as it would be written is in nobody's way."""
    assert write(tmp_path, {"a.yaml": MINE}) == [f"{tmp_path / 'a.yaml'}: written"]
    assert write(tmp_path, {"a.yaml": MINE}) == []
