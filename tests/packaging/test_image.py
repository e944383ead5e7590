"""What the Dockerfile and the dependencies' list of the image claim, as far as it holds without building one.

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
    """Read the Dockerfile's instructions, each with its words, in one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(name, words.strip()) for line in lines if line.strip() for name, _, words in [line.partition(" ")]]


def last_stage() -> list[tuple[str, str]]:
    """Return the instructions of what is shipped."""
    found = steps()
    begin = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    return found[begin:]


def locked(file: str) -> dict[str, str]:
    """Read a list of pinned packages: each with all that stands for it."""
    found: dict[str, str] = {}
    name = ""
    for line in (ROOT / file).read_text().splitlines(keepends=True):
        if match := PINNED.match(line):
            name = canonicalize_name(match[1])
        found[name] = found.get(name, "") + line
    return found


def needed(name: str, extras: frozenset[str] = frozenset()) -> dict[str, frozenset[str]]:
    """Return the packages that a package depends on here, without itself, each with the extras required."""
    found: dict[str, frozenset[str]] = {}
    waiting = [(name, extras)]
    while waiting:
        one, wanted = waiting.pop()
        for requirement in map(Requirement, distribution(one).requires or ()):
            asked = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in wanted | {""}
            )
            key = canonicalize_name(requirement.name)
            more = frozenset(requirement.extras)
            if asked and (key not in found or not more <= found[key]):
                found[key] = found.get(key, frozenset()) | more
                waiting.append((key, found[key]))
    return found


def test_the_images_packages_are_those_that_the_program_needs() -> None:
    """All of them, those for traces too, and no other: no tool of the developers gets into an image."""
    assert set(locked("requirements.run.lock")) == set(needed("tensile-kube", frozenset({"otel"})))


def test_the_images_packages_are_pinned_as_for_the_tests() -> None:
    """Version, conditions and hashes are those of the packages that the tests run with."""
    everything, own = locked("requirements.lock"), locked("requirements.run.lock")
    assert {name: everything.get(name) for name in own} == own
    assert all("--hash=sha256:" in text for text in own.values())


def let_through(path: str) -> bool:
    """Report whether .dockerignore lets a path come to the builder; its last word on it counts."""
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
    """Return what the Dockerfile copies out of the repository."""
    calls = [shlex.split(words) for name, words in steps() if name == "COPY"]
    return [path for words in calls if not words[0].startswith("--from") for path in words[:-1]]


def test_what_is_copied_is_there_and_comes_through() -> None:
    """And what comes through is what is copied, so that no other edit makes an image anew."""
    assert {path for path in copied() if not (ROOT / path).exists()} == set()
    tops = {path.name for path in ROOT.iterdir() if let_through(path.name)}
    assert tops == set(copied())


@pytest.mark.parametrize("path", [".git", ".venv", "kubeconfigs", "topology.yaml", "bench", "tests", "docs"])
def test_nothing_else_comes_to_the_builder(path: str) -> None:
    """Credentials that lie beside the sources least of all."""
    assert not let_through(path)


def test_bytecode_of_this_machine_stays_here() -> None:
    """It would be taken for the sources' own."""
    assert not let_through("tensile/__pycache__")
    assert let_through("tensile/cli/program.py")


def test_it_runs_as_nobody_in_particular() -> None:
    """By a number that is not root's, which a cluster that asks for runAsNonRoot can judge."""
    users = [words for name, words in last_stage() if name == "USER"]
    assert users == ["65532:65532"]


def test_it_starts_the_program_and_takes_its_arguments() -> None:
    """`args` of a container are arguments of `tensile`; no shell stands between it and its signals."""
    assert [words for name, words in last_stage() if name in ("ENTRYPOINT", "CMD")] == ['["tensile"]']


def test_what_is_shipped_is_made_by_nothing_but_a_copy() -> None:
    """No command runs in the last stage: no caches, no tools, nothing of the builder's network or dates."""
    assert [words for name, words in last_stage() if name == "RUN"] == []
    assert [words for name, words in last_stage() if name == "COPY"] == ["--from=installed /opt/tensile /opt/tensile"]


def test_every_stage_begins_with_the_base_that_is_given() -> None:
    """One argument chooses it for all: bytecode and virtual environment are for the Python that they were made with."""
    names = [words.split(" AS ") for name, words in steps() if name == "FROM"]
    stages = {stage for _, *rest in names for stage in rest}
    assert {base for base, *_ in names if base not in stages} == {"${BASE}"}
    assert next(words for name, words in steps() if name == "ARG").startswith("BASE=python:3.11-slim")


def test_packages_come_by_their_hashes_or_not_from_a_network() -> None:
    """Every installation asks for hashes, or takes only what was made here."""
    text = " ".join(words for name, words in steps() if name == "RUN")
    calls = [one for one in re.split(r"&&", text) if re.search(r"\binstall\b", one)]
    assert len(calls) == 3
    assert all("--require-hashes" in one or "--no-index" in one for one in calls)
