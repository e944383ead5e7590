"""Tests of what a release has besides wheel and sdist: its notes, the workflow that publishes it, and its SBOM."""

import re
import subprocess
from pathlib import Path

import orjson
import pytest
import yaml
from licencespage import packages
from packaging.utils import canonicalize_name

import tensile

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"
DATE, TIME = "1700000000", "2023-11-14T22:13:20+00:00"


def make(*arguments: str, code: int = 0) -> str:
    """Run make without echoing commands, check its exit code, and return its output."""
    done = subprocess.run(["make", "--silent", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_release_notes_are_the_changelog_section_of_the_version() -> None:
    """They contain no unreleased changes."""
    notes = make("notes", f"TAG=v{tensile.__version__}")
    assert notes.startswith(f"## [{tensile.__version__}] - ")
    assert notes in (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## ", notes, re.MULTILINE) == ["## "]
    assert make("notes") == notes


def test_making_release_notes_for_another_version_fails() -> None:
    """The workflow then ends before it builds anything."""
    assert make("notes", "TAG=v99.0.0", code=2) == ""


def test_the_release_workflow_only_runs_for_tags_and_uses_existing_make_targets() -> None:
    """It uses no actions, because they are third-party programs that may change."""
    workflow = yaml.load(WORKFLOW.read_text(), Loader=yaml.BaseLoader)  # in which `on` stays a string
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    steps = workflow["jobs"]["release"]["steps"]
    assert [step for step in steps if "uses" in step] == []
    used = re.findall(r"\bmake (?:--silent )?(\w+)", " ".join(step["run"] for step in steps))
    assert used == ["notes", "dist"]
    assert set(used) <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The SBOM as `make sbom` writes it; the first time, the packages of its tool are installed."""
    dist = tmp_path_factory.mktemp("sbom")
    path = make("sbom", f"DIST={dist}", f"SOURCE_DATE_EPOCH={DATE}").splitlines()[-1]
    assert Path(path).name == f"tensile_kube-{tensile.__version__}.cdx.json"
    return Path(path).read_bytes()


def test_the_sbom_lists_exactly_the_installed_packages_with_their_licenses(sbom: bytes) -> None:
    """The packages and versions are those of the page of licenses."""
    document = orjson.loads(sbom)
    assert (document["bomFormat"], document["metadata"]["timestamp"]) == ("CycloneDX", TIME)
    root = document["metadata"]["component"]
    assert (root["name"], root["version"]) == ("tensile-kube", tensile.__version__)
    found = {canonicalize_name(one["name"]): one for one in document["components"]}
    wanted = {one.name: one for one in packages()}
    assert set(found) == set(wanted)
    assert {name: one["version"] for name, one in found.items()} == {name: one.version for name, one in wanted.items()}
    assert [name for name, one in found.items() if not one.get("licenses")] == []


def test_the_sbom_has_the_dependencies_of_the_program_and_its_packages(sbom: bytes) -> None:
    """They refer to components of the SBOM."""
    document = orjson.loads(sbom)
    needs = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    references = {one["bom-ref"] for one in document["components"]}
    assert {one for found in needs.values() for one in found} <= references
    assert len(needs[document["metadata"]["component"]["bom-ref"]]) > 10
