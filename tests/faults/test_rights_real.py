"""Tests of the trial of permissions in a short form: a test must fail on real clusters if one is removed."""

from pathlib import Path
from typing import Any

import pytest

from bench.kit.rbac import Right
from bench.mutation.rights import Measure, Trial, trial_of
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

LIFE = "tests/e2e/test_writes.py::test_a_pods_life_needs_few_writes"
RESIZE = "tests/e2e/test_changes.py::test_a_resize_reaches_the_lower_pod_and_its_result_the_upper_pod"


async def test_a_removed_permission_makes_a_test_fail(sandbox: Sandbox, tmp_path: Path) -> None:
    """The tests pass and are denied nothing with all permissions; a permission that no test needs is reported."""
    rights = [
        Right(UPPER, "pods/status", "patch"),
        Right("lower", "pods/resize", "patch"),
        Right("lower", "nodes", "list"),
        Right("lower", "pods/attach", "create"),
    ]
    noted = list[dict[str, Any]]()
    found = await trial_of(Trial(sandbox, tmp_path), rights, [LIFE, RESIZE], Measure(2, 600.0), noted.append)
    assert [len(one["rows"]) for one in noted] == [1, 2, 3, 4], "what is known is noted as it becomes known"
    rows = found["rows"]
    assert found["broken"] == ["lower: create pods/attach: no test breaks without it, of []"]
    assert RESIZE in rows["lower: patch pods/resize"]["breaks"]
    assert all(rows[str(one)]["breaks"] for one in rights[:3])
