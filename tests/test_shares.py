"""How the files of `make unit` are divided among its processes."""

from pathlib import Path

from shares import divided, last_times

TIMES = {"a": 5.0, "b": 3.0, "c": 3.0, "d": 1.0}


def test_each_process_has_about_the_same_to_do() -> None:
    """Longest first."""
    assert divided([[one] for one in TIMES], TIMES, 2) == {"a": 0, "b": 1, "c": 1, "d": 0}


def test_files_that_share_their_work_stay_together() -> None:
    """Even if that is unequal."""
    assert divided([["a", "b"], ["c"], ["d"]], TIMES, 2) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_a_new_file_counts_as_an_average_one() -> None:
    """Without any time known, all files count the same."""
    assert divided([["new"], ["a"], ["d"]], TIMES, 2) == {"a": 0, "new": 1, "d": 1}
    assert divided([["a"], ["b"], ["c"]], {}, 2) == {"a": 0, "b": 1, "c": 0}


def test_the_times_are_those_of_the_last_run(tmp_path: Path) -> None:
    """Summed by file; none after an interrupted or no run."""
    report = tmp_path / "unit.xml"
    assert last_times(report) == {}
    case = '<testcase classname="tests.kube.test_rest" time="{}"/>'
    report.write_text(f"<testsuite>{case.format(1.5)}{case.format(2)}</testsuite>")
    assert last_times(report) == {"tests/kube/test_rest.py": 3.5}
    report.write_text("<testsuite>")
    assert last_times(report) == {}
