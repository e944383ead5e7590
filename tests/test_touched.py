"""Tests of the selection of slow tests, which `make test` leaves out, for a change."""

from pathlib import Path

import pytest
from touched import ROOT, RULES, touched


def test_a_change_selects_the_slow_tests_that_it_may_break() -> None:
    """A change in bench/ selects the tests of its tools, and one of the webhook those of the webhook."""
    assert touched(["bench/kit/oracles.py"]) == ["tests/bench"]
    assert "tests/e2e/test_webhook_e2e.py" in touched(["tensile/policy/webhook/server.py"])
    assert touched(["CHANGELOG.md", "tests/kit/worldkit.py"]) == []


def test_a_changed_test_file_selects_itself() -> None:
    """Its marks decide whether `make test` has run it already."""
    assert touched(["tests/faults/test_twins.py"]) == ["tests/faults/test_twins.py"]


def test_every_path_in_the_rules_exists() -> None:
    """A rule for a renamed file would never select a test."""
    paths = {path for begins, tests in RULES for path in (*begins, *tests)}
    assert [path for path in sorted(paths) if not (ROOT / path).exists() and path != "requirements"] == []


def test_every_slow_test_file_is_selected_by_some_rule(pytestconfig: pytest.Config) -> None:
    """Otherwise CI would never run it before a change is merged."""
    (conftest,) = (one for one in pytestconfig.pluginmanager.get_plugins() if hasattr(one, "OWN_SANDBOX"))
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    slow = {path for path in files if path in conftest.OWN_SANDBOX or path.startswith(conftest.SLOW)}
    called = tuple(test for _, tests in RULES for test in tests)
    assert slow
    assert sorted(path for path in slow if not path.startswith(called)) == []
    assert [Path(path).name for path in sorted(conftest.OWN_SANDBOX - files)] == []
