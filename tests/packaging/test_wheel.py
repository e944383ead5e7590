"""The wheel: it has all that the program reads, says what it is, and is the same wherever it is built.

It is built by `make wheel` from copies, with the build tools that are installed here, so no index is asked.
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
    """Copy what a wheel is made of, as a checkout with these modes in which somebody has built before."""
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
    """Build there with the tools of this environment, and give the wheel, or what another target builds."""
    tools = ENVIRONMENT / "bin"
    command = ["make", "--no-print-directory", "-o", str(tools / ".installed"), target, f"BIN={tools}", f"DIST={dist}"]
    done = subprocess.run(
        command, cwd=place, env={**os.environ, "SOURCE_DATE_EPOCH": DATE}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = Path(done.stdout.splitlines()[-1])
    assert list(dist.iterdir()) == [said]
    return said


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of the sources as they are."""
    folder = tmp_path_factory.mktemp("sdist")
    return built(checkout(folder / "checkout", mode=0o644, leftover="gone.py"), folder / "dist", target="sdist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sources as they are."""
    folder = tmp_path_factory.mktemp("wheel")
    return built(checkout(folder / "checkout", mode=0o644, leftover="gone.py"), folder / "dist")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed, without what it needs."""
    folder = tmp_path_factory.mktemp("installed") / "packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*command, str(folder), str(wheel)], check=True, capture_output=True)
    return folder


def metadata(wheel: Path) -> Message:
    """Read what the wheel says of itself."""
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def test_it_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    """Go sources, checksums and stages as well as modules; nothing of what an earlier build left in the checkout."""
    sources = (path for path in (ROOT / "tensile").rglob("*") if path.is_file() and path.suffix != ".pyc")
    wanted = {str(path.relative_to(ROOT)) for path in sources}
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == wanted
    assert {"tensile/py.typed", "tensile/sandbox/controlplane/kubernetes/go.sum"} <= names


def test_it_is_the_same_to_the_byte_wherever_it_is_built(wheel: Path, tmp_path: Path) -> None:
    """Another folder, other modes and dates of files, and other leftovers: the same file."""
    other = built(checkout(tmp_path / "elsewhere", mode=0o600, leftover="old.py"), tmp_path / "dist")
    assert other.name == wheel.name
    assert other.read_bytes() == wheel.read_bytes()


def test_the_source_distribution_is_the_same_to_the_byte_wherever_it_is_built(sdist: Path, tmp_path: Path) -> None:
    """As the wheel; setuptools alone would write the time of the build into it."""
    place = checkout(tmp_path / "elsewhere", mode=0o600, leftover="old.py")
    other = built(place, tmp_path / "dist", target="sdist")
    assert other.name == sdist.name == f"tensile_kube-{tensile.__version__}.tar.gz"
    assert other.read_bytes() == sdist.read_bytes()


def test_the_source_distribution_builds_the_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """The same file, from nothing but the archive, as an installer builds it that finds no wheel."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": DATE}
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(sdist)], check=True, env=variables, capture_output=True)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_it_says_what_it_is(wheel: Path) -> None:
    """Its version is the package's, its long description the README, and its licence is in it."""
    told = metadata(wheel)
    assert (told["Name"], told["Version"]) == ("tensile-kube", tensile.__version__)
    assert (told["License-Expression"], told["License-File"]) == ("Apache-2.0", "LICENSE")
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    with ZipFile(wheel) as archive:
        licence = next(name for name in archive.namelist() if name.endswith("licenses/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_version_is_written_in_one_place() -> None:
    """A release changes one line."""
    texts = {path: path.read_text() for path in [*(ROOT / "tensile").rglob("*.py"), ROOT / "pyproject.toml"]}
    found = [path.name for path, text in texts.items() if f'"{tensile.__version__}"' in text]
    assert found == ["__init__.py"]


def test_its_program_is_tensile_and_a_plugin_of_kubectl(wheel: Path) -> None:
    """Installing it returns one command by two names, and the program that completes its words for kubectl."""
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


def test_what_is_installed_runs_by_itself(installed: Path, tmp_path: Path) -> None:
    """Far from the repository it says its version, and reads a topology."""
    (tmp_path / "topology.yaml").write_bytes((ROOT / "topology.example.yaml").read_bytes())
    variables = {**os.environ, "PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import tensile; print(tensile.__file__)"]
    for arguments, said in (
        (where, str(installed / "tensile")),
        ([sys.executable, "-m", "tensile", "--version"], f"tensile {tensile.__version__}"),
        ([sys.executable, "-m", "tensile", "validate"], ""),
    ):
        done = subprocess.run(
            arguments, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(said)


@pytest.mark.parametrize(
    "wanted",
    [getattr(binaries, name) for name in ("CONTROL_PLANE", "KWOK", "ENDPOINT", "KUBELET", "NODE", "METRICS")],
    ids=lambda one: str(one.name),
)
def test_the_sandbox_builds_from_it_what_it_builds_from_the_repository(
    installed: Path, wanted: binaries.ProgramSet
) -> None:
    """The names in the cache are hashes of the sources: the same names are the same programs."""
    sources = installed / "tensile" / "sandbox" / "controlplane"
    assert binaries.cache_name(wanted, sources) == binaries.cache_name(wanted)
