"""Tests of the tool that plants bugs into a copy of the engine: it reports bugs that no test catches.

It also reports bugs that it cannot plant.
"""

import ast
from pathlib import Path

import pytest

from bench.mutation.bugs.__main__ import ROOT, Inapplicable, broken, planted, put_to_the_test, tried
from bench.mutation.bugs.table import BUGS, Bug

TEST = """
from thing import answer

def test_the_answer():
    assert answer() == 42
"""


def tree_of(directory: Path) -> Path:
    """Create a tree with a module and its test."""
    (directory / "thing.py").write_text("def answer():\n    return 42\n\n\ndef other():\n    return 7\n")
    (directory / "test_thing.py").write_text(TEST)
    return directory


def bug(old: str, new: str) -> Bug:
    """Return a bug of the module."""
    return Bug("wrong", "thing.py", old, new, ("test_thing.py",))


def test_an_edit_has_to_match_exactly_once() -> None:
    """If its text is missing or repeated, it is unknown which code would be tested."""
    assert planted("a = 1\nb = 2\n", bug("a = 1", "a = 2")) == "a = 2\nb = 2\n"
    for source in ("b = 2\n", "a = 1\na = 1\n"):
        with pytest.raises(Inapplicable, match="not once: 'a = 1'"):
            planted(source, bug("a = 1", "a = 2"))


def test_bugs_have_unique_names_changes_and_tests() -> None:
    """Each bug changes its text and names the tests that should fail."""
    assert len({one.name for one in BUGS}) == len(BUGS) >= 20
    assert all(one.old != one.new and one.tests for one in BUGS)


def test_a_bug_is_caught_missed_or_inapplicable(tmp_path: Path) -> None:
    """In each case, the file is restored afterwards."""
    tree = tree_of(tmp_path)
    before = (tree / "thing.py").read_text()
    caught, missed, gone = (
        tried(tree, one, 0) for one in (bug("return 42", "return 41"), bug("return 7", "return 8"), bug("x", "y"))
    )
    assert (caught["caught"], caught["by"]) == (True, "test_thing.py::test_the_answer")
    assert (missed["caught"], missed["by"]) == (False, "")
    assert not gone["caught"]
    assert (tree / "thing.py").read_text() == before
    assert put_to_the_test(tree, ["test_thing.py"]) == (True, "")
    said = broken([caught, missed, gone])
    assert said == ["wrong: no test notices", "wrong: thing.py has 0 times, not once: 'x'"]


def test_tests_that_cannot_be_run_raise_an_error(tmp_path: Path) -> None:
    """A missing test file is neither a caught nor a missed bug."""
    with pytest.raises(RuntimeError, match="pytest ended with 4"):
        put_to_the_test(tree_of(tmp_path), ["test_nothing.py"])


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_can_be_planted(bug: Bug) -> None:
    """Its text occurs in its file, the result is valid Python, and its tests exist."""
    ast.parse(planted((ROOT / bug.path).read_text(), bug))
    assert [path for path in bug.tests if not (ROOT / path).exists()] == []
