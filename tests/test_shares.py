"""Tests of how the test files of `make unit` are divided among its processes."""

from pathlib import Path

from shares import divided, last_times

TIMES = {"a": 5.0, "b": 3.0, "c": 3.0, "d": 1.0}


def test_files_are_divided_evenly_by_their_times() -> None:
    """The file with the longest time is assigned first."""
    assert divided([[one] for one in TIMES], TIMES, 2) == {"a": 0, "b": 1, "c": 1, "d": 0}


def test_files_of_one_group_get_the_same_share() -> None:
    """This is so even if the shares become unequal."""
    assert divided([["a", "b"], ["c"], ["d"]], TIMES, 2) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_a_file_without_a_known_time_counts_as_an_average_one() -> None:
    """If no time is known, all files count the same."""
    assert divided([["new"], ["a"], ["d"]], TIMES, 2) == {"a": 0, "new": 1, "d": 1}
    assert divided([["a"], ["b"], ["c"]], {}, 2) == {"a": 0, "b": 1, "c": 0}


def test_the_times_of_the_last_run_are_summed_by_file(tmp_path: Path) -> None:
    """There are none without a run or after an interrupted one."""
    report = tmp_path / "unit.xml"
    assert last_times(report) == {}
    case = '<testcase classname="tests.kube.test_rest" time="{}"/>'
    report.write_text(f"<testsuite>{case.format(1.5)}{case.format(2)}</testsuite>")
    assert last_times(report) == {"tests/kube/test_rest.py": 3.5}
    report.write_text("<testsuite>")
    assert last_times(report) == {}
