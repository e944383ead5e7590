"""`tensile bundle`: the parts of its archive, what it says of those that fail, and what it never contains."""

import stat
import tarfile
from pathlib import Path

import orjson
import pytest
from clikit import Files, refused, tensile

from tensile.cli.bundle import without_values

PARTS = {"versions.json", "topology.yaml", "doctor.json", "errors.txt"}
"""The parts that need no cluster and no engine."""


def unpacked(archive: Path) -> dict[str, str]:
    """Return the parts of an archive by name."""
    found: dict[str, str] = {}
    with tarfile.open(archive) as made:
        for one in made.getmembers():
            part = made.extractfile(one)
            assert part is not None
            assert one.name.startswith("tensile-bundle/")
            found[one.name.removeprefix("tensile-bundle/")] = part.read().decode()
    return found


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, str]:
    """The parts of a bundle where no cluster and no engine answers."""
    archive = tmp_path / "bundle.tar.gz"
    told = tensile("bundle", "-f", Files(tmp_path).save(), "-o", archive)
    assert told.code == 0, told
    assert str(archive) in told.out
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    with tarfile.open(archive) as made:
        return unpacked(archive) | {"modes": " ".join({oct(one.mode) for one in made.getmembers()})}


def test_what_can_be_collected_is_and_the_rest_says_why_not(parts: dict[str, str]) -> None:
    """Without clusters and engine: versions, the file as it is, and what doctor found; the errors name the others."""
    assert parts.keys() >= PARTS
    assert parts["modes"] == "0o600"
    assert orjson.loads(parts["versions.json"])["packages"].keys() >= {"kubernetes", "pydantic"}
    assert parts["topology.yaml"].startswith("apiVersion:")
    assert orjson.loads(parts["doctor.json"])["clusters"]
    errors = dict(line.split(": ", 1) for line in parts["errors.txt"].splitlines() if ": " in line)
    assert {"plan.json", "status.json", "metrics.txt"} <= errors.keys()
    assert "no engine responds" in errors["metrics.txt"]


def test_credentials_are_in_no_part(parts: dict[str, str]) -> None:
    """The token of the kubeconfigs is read to reach the clusters, and stays out."""
    assert not [name for name, text in parts.items() if "a-token-of-no-use" in text]


def test_the_plan_of_a_bundle_has_no_values() -> None:
    """The environment and the arguments of a pod may be secret; what would change where is enough for a report."""
    pod = {"spec": {"containers": [{"args": ["--token=hunter2"]}]}}
    operations = [{"op": "add", "path": "", "value": pod}, {"op": "remove", "path": "/data/a"}]
    kept = orjson.loads(without_values(orjson.dumps({"changes": [{"operations": operations}]}).decode()))
    assert kept == {"changes": [{"operations": [{"op": "add", "path": ""}, {"op": "remove", "path": "/data/a"}]}]}


def test_a_topology_that_is_refused_is_collected_with_its_errors(tmp_path: Path) -> None:
    """That may be what the report is about."""
    (tmp_path / "topology.yaml").write_text("kind: Topologie\n")
    archive = tmp_path / "bundle.tar.gz"
    assert tensile("bundle", "-f", tmp_path / "topology.yaml", "-o", archive).code == 0
    parts = unpacked(archive)
    assert parts["topology.yaml"] == "kind: Topologie\n"
    assert "topology.yaml:1:" in parts["errors.txt"]
    assert "doctor.json" not in parts


def test_an_archive_is_never_overwritten(tmp_path: Path) -> None:
    """The file stays as it is."""
    archive = tmp_path / "bundle.tar.gz"
    archive.write_text("mine")
    (tmp_path / "topology.yaml").write_text("kind: Topologie\n")
    assert "exists already" in refused("bundle", "-f", tmp_path / "topology.yaml", "-o", archive)
    assert archive.read_text() == "mine"


def test_an_archive_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """In a directory that does not exist, say."""
    (tmp_path / "topology.yaml").write_text("kind: Topologie\n")
    archive = tmp_path / "nowhere" / "bundle.tar.gz"
    assert str(archive) in refused("bundle", "-f", tmp_path / "topology.yaml", "-o", archive)
