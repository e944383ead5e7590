"""Tests of the Dockerfile and the package list of the image, without building it.

`python -m bench.packaging.image` builds it and runs it.
"""

import fnmatch
import re
import shlex
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==\S+")


def steps() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments in one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(name, arguments.strip()) for line in lines if line.strip() for name, _, arguments in [line.partition(" ")]]


def last_stage() -> list[tuple[str, str]]:
    """Return the instructions of the last stage, which is shipped."""
    found = steps()
    begin = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    return found[begin:]


def locked(file: str) -> dict[str, str]:
    """Parse a list of pinned packages: the lines of each package by its name."""
    found: dict[str, str] = {}
    name = ""
    for line in (ROOT / file).read_text().splitlines(keepends=True):
        if match := PINNED.match(line):
            name = canonicalize_name(match[1])
        found[name] = found.get(name, "") + line
    return found


def needed(name: str, extras: frozenset[str] = frozenset()) -> dict[str, frozenset[str]]:
    """Return the transitive dependencies of a package in this environment, each with the required extras."""
    found: dict[str, frozenset[str]] = {}
    waiting = [(name, extras)]
    while waiting:
        one, wanted = waiting.pop()
        for requirement in map(Requirement, distribution(one).requires or ()):
            is_wanted = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in wanted | {""}
            )
            key = canonicalize_name(requirement.name)
            more = frozenset(requirement.extras)
            if is_wanted and (key not in found or not more <= found[key]):
                found[key] = found.get(key, frozenset()) | more
                waiting.append((key, found[key]))
    return found


def test_the_image_has_exactly_the_packages_that_the_program_needs() -> None:
    """This includes those for traces, and no tool for development."""
    assert set(locked("requirements.run.lock")) == set(needed("tensile-kube", frozenset({"otel"})))


def test_the_packages_of_the_image_are_pinned_as_for_the_tests() -> None:
    """Version, markers and hashes are the same."""
    everything, own = locked("requirements.lock"), locked("requirements.run.lock")
    assert {name: everything.get(name) for name in own} == own
    assert all("--hash=sha256:" in text for text in own.values())


def let_through(path: str) -> bool:
    """Report whether .dockerignore includes a path; its last matching line counts."""
    answer = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        allows = pattern.startswith("!")
        pattern = pattern.removeprefix("!").removeprefix("**/")
        if any(fnmatch.fnmatch(part, pattern) for part in (path, Path(path).parts[0], Path(path).name)):
            answer = allows
    return answer


def copied() -> list[str]:
    """Return the paths of the repository that the Dockerfile copies."""
    calls = [shlex.split(words) for name, words in steps() if name == "COPY"]
    return [path for words in calls if not words[0].startswith("--from") for path in words[:-1]]


def test_the_build_context_has_exactly_the_files_that_are_copied() -> None:
    """Other files in it would invalidate the cached layers of the image."""
    assert {path for path in copied() if not (ROOT / path).exists()} == set()
    tops = {path.name for path in ROOT.iterdir() if let_through(path.name)}
    assert tops == set(copied())


@pytest.mark.parametrize("path", [".git", ".venv", "kubeconfigs", "topology.yaml", "bench", "tests", "docs"])
def test_the_build_context_excludes_other_files(path: str) -> None:
    """Credentials beside the sources must not get into it."""
    assert not let_through(path)


def test_the_build_context_excludes_bytecode() -> None:
    """Python would use it as that of the sources."""
    assert not let_through("tensile/__pycache__")
    assert let_through("tensile/cli/program.py")


def test_the_image_runs_as_a_numeric_non_root_user() -> None:
    """A cluster with runAsNonRoot can only check a numeric user ID."""
    users = [arguments for name, arguments in last_stage() if name == "USER"]
    assert users == ["65532:65532"]


def test_the_entrypoint_of_the_image_is_tensile_without_a_shell() -> None:
    """`args` of a container are arguments of `tensile`, which receives signals directly."""
    assert [arguments for name, arguments in last_stage() if name in ("ENTRYPOINT", "CMD")] == ['["tensile"]']


def test_the_last_stage_of_the_image_only_copies_the_installation() -> None:
    """No command runs there, so the image has no caches, tools or timestamps of the build."""
    assert [arguments for name, arguments in last_stage() if name == "RUN"] == []
    assert [arguments for name, arguments in last_stage() if name == "COPY"] == [
        "--from=installed /opt/tensile /opt/tensile"
    ]


def test_every_stage_of_the_image_starts_from_the_base_argument() -> None:
    """Bytecode and virtual environment only work with the Python that they were created with."""
    names = [arguments.split(" AS ") for name, arguments in steps() if name == "FROM"]
    stages = {stage for _, *rest in names for stage in rest}
    assert {base for base, *_ in names if base not in stages} == {"${BASE}"}
    assert next(arguments for name, arguments in steps() if name == "ARG").startswith("BASE=python:3.11-slim")


def test_packages_are_installed_with_hashes_or_without_a_network() -> None:
    """Each installation requires hashes, or uses only packages that were built here."""
    text = " ".join(arguments for name, arguments in steps() if name == "RUN")
    calls = [one for one in re.split(r"&&", text) if re.search(r"\binstall\b", one)]
    assert len(calls) == 3
    assert all("--require-hashes" in one or "--no-index" in one for one in calls)
