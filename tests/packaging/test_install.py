"""Tests that a missing prerequisite of the machine is reported in one line, and that no files are left.

They are a short form of `python -m bench.packaging.install`.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.packaging.install import Case, Place, cases, furnished, judged, tried
from tensile.sandbox.binaries import cache_directory

_ROOT = Path(__file__).resolve().parents[2]
NAMES = [case.name for case in cases(Place(_ROOT, _ROOT, ())) if case.expected_text]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place with the program of this repository and the programs that are built already."""
    program = (sys.executable, "-m", "tensile")
    made = furnished(tmp_path / "place", cache_directory(os.environ).parent, program)
    yield made
    (made.root / "closed").chmod(0o755)
    shutil.rmtree(made.root)


@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
def test_a_missing_prerequisite_is_reported_in_one_line(place: Place, name: str) -> None:
    """The exit code is 1, there is no traceback, and a case that cannot be tested here is skipped with a reason."""
    (case,) = (case for case in cases(place) if case.name == name)
    if why := case.lacks():
        pytest.skip(f"{name}: {why}")
    path = {**dict(case.variables), "PYTHONPATH": f"{dict(case.variables).get('PYTHONPATH', '')}:{_ROOT}"}
    found = tried(place, case._replace(variables=tuple(path.items())))
    assert found["wrong"] == [], found["said"]


def test_the_cases_of_missing_prerequisites_are_complete() -> None:
    """No case gets lost when another one is added."""
    assert NAMES == [
        "no network, no Go",
        "no network, but Go",
        "no pip",
        "a cache that cannot be written",
        "no home and no cache",
        "a full disk",
    ]


MISSING = Case("x", ("no Go", "install"))
WHOLE = "Finished after 20 s. All processes and files of the demo were removed.\n"


@pytest.mark.parametrize(
    ("case", "code", "errors", "output", "wrong"),
    [
        (MISSING, 1, "no Go here: install it\n", "", []),
        (MISSING, 1, "building x\nno Go here: install it\n", "", []),
        (MISSING, 1, "no Go here:\ninstall it\n", "", ["nothing is said of 'no Go'"]),
        (MISSING, 1, "something else: install it\n", "", ["nothing is said of 'no Go'"]),
        (MISSING, 0, "no Go here: install it\n", "", ["it ended with 0"]),
        (MISSING, 1, "", "", ["nothing is said of 'no Go'", "nothing is said of 'install'"]),
        (MISSING, 1, "Traceback: no Go, install\n", "", ["a traceback"]),
        (Case("x"), 0, "", WHOLE, []),
        (Case("x"), 1, "broken\n", "", ["it ended with 1: broken"]),
        (Case("x"), 0, "", "half of it", ["it ended with 0: "]),
    ],
)
def test_judged_returns_what_is_wrong_with_the_result_of_a_case(
    case: Case, code: int, errors: str, output: str, wrong: list[str]
) -> None:
    """A demo that must fail is judged by its error line, and one that must succeed by its last line."""
    assert judged(case, code, errors, output) == wrong
