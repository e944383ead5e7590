"""Which of the tests that `make test` leaves out a change calls for."""

from pathlib import Path

import pytest
from touched import ROOT, RULES, touched


def test_a_change_calls_for_what_it_could_break() -> None:
    """The tools of a bench for its folder, the campaigns on webhooks for the webhook."""
    assert touched(["bench/kit/oracles.py"]) == ["tests/bench"]
    assert "tests/e2e/test_webhook_e2e.py" in touched(["tensile/policy/webhook/server.py"])
    assert touched(["CHANGELOG.md", "tests/kit/worldkit.py"]) == []


def test_a_test_that_changed_calls_for_itself() -> None:
    """Whether `make test` has run it already, its marks tell."""
    assert touched(["tests/faults/test_twins.py"]) == ["tests/faults/test_twins.py"]


def test_every_path_of_the_rules_is_there() -> None:
    """A file that was renamed would never call for anything again."""
    paths = {path for begins, tests in RULES for path in (*begins, *tests)}
    assert [path for path in sorted(paths) if not (ROOT / path).exists() and path != "requirements"] == []


def test_every_test_that_is_left_out_is_called_for_by_some_change(pytestconfig: pytest.Config) -> None:
    """Else CI would never run it before a change lands."""
    (conftest,) = (one for one in pytestconfig.pluginmanager.get_plugins() if hasattr(one, "OWN_SANDBOX"))
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    slow = {path for path in files if path in conftest.OWN_SANDBOX or path.startswith(conftest.SLOW)}
    called = tuple(test for _, tests in RULES for test in tests)
    assert slow
    assert sorted(path for path in slow if not path.startswith(called)) == []
    assert [Path(path).name for path in sorted(conftest.OWN_SANDBOX - files)] == []
