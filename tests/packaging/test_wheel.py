"""Tests of the wheel: it is complete, has correct metadata, and is the same wherever it is built.

It is built by `make wheel` from copies, with the build tools that are installed here, so no package index is used.
"""

import os
import shutil
import subprocess
import sys
from configparser import ConfigParser
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from zipfile import ZipFile

import pytest

import tensile
from tensile.sandbox import binaries

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("LICENSE", "README.md", "pyproject.toml", "requirements.lock", "Makefile", "tensile")
DATE = "1700000000"
ENVIRONMENT = Path(sys.prefix)


def checkout(place: Path, *, mode: int, leftover: str) -> Path:
    """Copy the sources of a wheel, as a checkout with these file modes and a file of an earlier build."""
    for part in PARTS:
        take = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        place.mkdir(exist_ok=True)
        take(ROOT / part, place / part)
    for path in place.rglob("*"):
        path.chmod(0o700 if path.is_dir() else mode)
        os.utime(path, (mode, mode))
    stale = place / "build" / "lib" / "tensile" / leftover
    stale.parent.mkdir(parents=True)
    stale.touch()
    return place


def built(place: Path, dist: Path, *, target: str = "wheel") -> Path:
    """Build a target, normally the wheel, with the tools of this environment, and return the path of the result."""
    tools = ENVIRONMENT / "bin"
    command = ["make", "--no-print-directory", "-o", str(tools / ".installed"), target, f"BIN={tools}", f"DIST={dist}"]
    done = subprocess.run(
        command, cwd=place, env={**os.environ, "SOURCE_DATE_EPOCH": DATE}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1])
    assert list(dist.iterdir()) == [path]
    return path


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of the current sources."""
    folder = tmp_path_factory.mktemp("sdist")
    return built(checkout(folder / "checkout", mode=0o644, leftover="gone.py"), folder / "dist", target="sdist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the current sources."""
    folder = tmp_path_factory.mktemp("wheel")
    return built(checkout(folder / "checkout", mode=0o644, leftover="gone.py"), folder / "dist")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel was installed without its dependencies."""
    folder = tmp_path_factory.mktemp("installed") / "packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*command, str(folder), str(wheel)], check=True, capture_output=True)
    return folder


def metadata(wheel: Path) -> Message:
    """Return the metadata of the wheel."""
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def test_the_wheel_has_exactly_the_files_of_the_package(wheel: Path) -> None:
    """It has Go sources, checksums and stages as well as modules, and no file of an earlier build."""
    sources = (path for path in (ROOT / "tensile").rglob("*") if path.is_file() and path.suffix != ".pyc")
    wanted = {str(path.relative_to(ROOT)) for path in sources}
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == wanted
    assert {"tensile/py.typed", "tensile/sandbox/controlplane/kubernetes/go.sum"} <= names


def test_the_wheel_is_the_same_wherever_it_is_built(wheel: Path, tmp_path: Path) -> None:
    """Folder, modes and dates of files, and files of earlier builds do not change a byte."""
    other = built(checkout(tmp_path / "elsewhere", mode=0o600, leftover="old.py"), tmp_path / "dist")
    assert other.name == wheel.name
    assert other.read_bytes() == wheel.read_bytes()


def test_the_source_distribution_is_the_same_wherever_it_is_built(sdist: Path, tmp_path: Path) -> None:
    """Without further steps, setuptools would write the time of the build into it."""
    place = checkout(tmp_path / "elsewhere", mode=0o600, leftover="old.py")
    other = built(place, tmp_path / "dist", target="sdist")
    assert other.name == sdist.name == f"tensile_kube-{tensile.__version__}.tar.gz"
    assert other.read_bytes() == sdist.read_bytes()


def test_the_source_distribution_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """An installer that finds no wheel builds it from the archive alone."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": DATE}
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(sdist)], check=True, env=variables, capture_output=True)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_wheel_has_version_readme_and_license_in_its_metadata(wheel: Path) -> None:
    """The version is that of the package, and the license text is included."""
    fields = metadata(wheel)
    assert (fields["Name"], fields["Version"]) == ("tensile-kube", tensile.__version__)
    assert (fields["License-Expression"], fields["License-File"]) == ("Apache-2.0", "LICENSE")
    assert fields["Description-Content-Type"] == "text/markdown"
    assert fields.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    with ZipFile(wheel) as archive:
        licence = next(name for name in archive.namelist() if name.endswith("licenses/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_version_is_defined_in_one_place() -> None:
    """A release changes one line."""
    texts = {path: path.read_text() for path in [*(ROOT / "tensile").rglob("*.py"), ROOT / "pyproject.toml"]}
    found = [path.name for path, text in texts.items() if f'"{tensile.__version__}"' in text]
    assert found == ["__init__.py"]


def test_the_wheel_installs_tensile_as_a_command_and_as_a_kubectl_plugin(wheel: Path) -> None:
    """It also installs the program for completion in kubectl."""
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        programs = ConfigParser()
        programs.read_string(archive.read(name).decode())
    program = "tensile.__main__:main"
    assert dict(programs["console_scripts"]) == {
        "tensile": program,
        "kubectl-tensile": program,
        "kubectl_complete-tensile": "tensile.cli.main:complete_kubectl",
    }


def test_the_installed_wheel_runs_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    """It prints its version and validates a topology."""
    (tmp_path / "topology.yaml").write_bytes((ROOT / "topology.example.yaml").read_bytes())
    variables = {**os.environ, "PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import tensile; print(tensile.__file__)"]
    for arguments, expected in (
        (where, str(installed / "tensile")),
        ([sys.executable, "-m", "tensile", "--version"], f"tensile {tensile.__version__}"),
        ([sys.executable, "-m", "tensile", "validate"], ""),
    ):
        done = subprocess.run(
            arguments, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(expected)


@pytest.mark.parametrize(
    "wanted",
    [getattr(binaries, name) for name in ("CONTROL_PLANE", "KWOK", "ENDPOINT", "KUBELET", "NODE", "METRICS")],
    ids=lambda one: str(one.name),
)
def test_the_sandbox_builds_the_same_programs_from_the_wheel_as_from_the_repository(
    installed: Path, wanted: binaries.ProgramSet
) -> None:
    """The names in the cache are hashes of the sources, so equal names mean equal programs."""
    sources = installed / "tensile" / "sandbox" / "controlplane"
    assert binaries.cache_name(wanted, sources) == binaries.cache_name(wanted)
