"""Tests of `tensile bundle`: the parts of its archive, the reasons for missing parts, and what it never contains."""

import stat
import tarfile
from pathlib import Path

import orjson
import pytest
from clikit import Files, run_failing, tensile

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
    """Return the parts of a bundle that was made while no cluster and no engine answered."""
    archive = tmp_path / "bundle.tar.gz"
    result = tensile("bundle", "-f", Files(tmp_path).save(), "-o", archive)
    assert result.code == 0, result
    assert str(archive) in result.out
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    with tarfile.open(archive) as made:
        return unpacked(archive) | {"modes": " ".join({oct(one.mode) for one in made.getmembers()})}


def test_a_bundle_has_all_available_parts_and_reasons_for_the_others(parts: dict[str, str]) -> None:
    """Versions, the unchanged file and doctor's findings need no cluster and no engine; errors.txt names the others."""
    assert parts.keys() >= PARTS
    assert parts["modes"] == "0o600"
    assert orjson.loads(parts["versions.json"])["packages"].keys() >= {"kubernetes", "pydantic"}
    assert parts["topology.yaml"].startswith("apiVersion:")
    assert orjson.loads(parts["doctor.json"])["clusters"]
    errors = dict(line.split(": ", 1) for line in parts["errors.txt"].splitlines() if ": " in line)
    assert {"plan.json", "status.json", "metrics.txt"} <= errors.keys()
    assert "no engine responds" in errors["metrics.txt"]


def test_a_bundle_contains_no_credentials(parts: dict[str, str]) -> None:
    """The kubeconfigs' token is used to contact the clusters, and is in no part."""
    assert not [name for name, text in parts.items() if "a-token-of-no-use" in text]


def test_the_plan_of_a_bundle_has_no_values() -> None:
    """A pod's environment and arguments may be secret, and the changed paths are enough for a report."""
    pod = {"spec": {"containers": [{"args": ["--token=hunter2"]}]}}
    operations = [{"op": "add", "path": "", "value": pod}, {"op": "remove", "path": "/data/a"}]
    kept = orjson.loads(without_values(orjson.dumps({"changes": [{"operations": operations}]}).decode()))
    assert kept == {"changes": [{"operations": [{"op": "add", "path": ""}, {"op": "remove", "path": "/data/a"}]}]}


def test_an_invalid_topology_is_collected_with_its_errors(tmp_path: Path) -> None:
    """The report may be about these errors."""
    (tmp_path / "topology.yaml").write_text("kind: Topologie\n")
    archive = tmp_path / "bundle.tar.gz"
    assert tensile("bundle", "-f", tmp_path / "topology.yaml", "-o", archive).code == 0
    parts = unpacked(archive)
    assert parts["topology.yaml"] == "kind: Topologie\n"
    assert "topology.yaml:1:" in parts["errors.txt"]
    assert "doctor.json" not in parts


def test_an_existing_archive_is_not_overwritten(tmp_path: Path) -> None:
    """The command fails, and the file is unchanged."""
    archive = tmp_path / "bundle.tar.gz"
    archive.write_text("mine")
    (tmp_path / "topology.yaml").write_text("kind: Topologie\n")
    assert "exists already" in run_failing("bundle", "-f", tmp_path / "topology.yaml", "-o", archive)
    assert archive.read_text() == "mine"


def test_an_archive_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Its directory may not exist, for example."""
    (tmp_path / "topology.yaml").write_text("kind: Topologie\n")
    archive = tmp_path / "nowhere" / "bundle.tar.gz"
    assert str(archive) in run_failing("bundle", "-f", tmp_path / "topology.yaml", "-o", archive)
