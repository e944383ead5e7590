"""Tests of which refusals of a stale plan the bench of stale plans accepts."""

from typing import Any

import pytest

from bench.conformance.stale.__main__ import STALE, UNCHANGED, named, wrong
from bench.conformance.stale.other_changes import OTHER_CHANGES
from bench.conformance.stale.setup import Done
from bench.conformance.stale.unrelated_changes import UNRELATED_CHANGES

LINE = "lower-a: Pod shop/web: from nothing to create"
SAYS = r"lower-a: Pod shop/web: from nothing to create"


def refused(*lines: str, code: int = 1) -> Done:
    """Return the result of an `apply` that refuses a plan."""
    return Done(code, "", "\n".join((STALE, *lines, UNCHANGED, "")))


def test_a_refusal_with_the_right_reason_is_accepted() -> None:
    """It may have more lines about the same namespace."""
    assert list(wrong(refused(LINE), [], SAYS, "shop")) == []
    assert list(wrong(refused(LINE, "lower-a: ConfigMap shop/a: from create to nothing"), [], SAYS, "shop")) == []


@pytest.mark.parametrize(
    ("done", "wrote", "words"),
    [
        (refused(LINE, code=0), [], "exit code 0"),
        (Done(0, "Applied: 1 to add", ""), [], "exit code 0"),
        (Done(1, "", "upper: out of reach\n"), [], "not reported as stale"),
        (refused("lower-b: Pod shop/web: from nothing to create"), [], "another message than"),
        (refused(LINE, "upper: Node a: from UID u to UID v"), [], "said besides"),
        (refused(LINE), ["create lower-a: /api/v1/pods"], "it wrote"),
    ],
)
def test_every_other_result_is_rejected(done: Done, wrote: list[str], words: str) -> None:
    """Another exit code or reason, an unrelated line, or a write is wrong."""
    assert any(words in one for one in wrong(done, wrote, SAYS, "shop"))


class OneNode:
    """The upper cluster with the Node of a lower, whose only condition is the engine's."""

    def __init__(self) -> None:
        self.upper = self
        self.conditions = [{"type": "Ready", "status": "True"}]

    async def call(self, _method: str, _path: str) -> dict[str, Any]:
        """Return the Node."""
        return {"status": {"conditions": self.conditions}}

    async def patch(self, _cluster: str, _path: str, body: dict[str, Any]) -> None:
        """Replace the conditions, as a merge patch of a list does."""
        self.conditions = body["status"]["conditions"]


async def test_the_harmless_change_of_a_node_condition_adds_one_and_keeps_the_others() -> None:
    """Without a changed condition, the case would not show what its name says."""
    here = OneNode()
    await UNRELATED_CHANGES["node-condition"](here)  # type: ignore[arg-type]
    assert [(one["type"], one["status"]) for one in here.conditions] == [
        ("Ready", "True"),
        ("example.com/Seen", "True"),
    ]


def test_there_are_at_least_two_hundred_cases_and_twenty_harmless_changes() -> None:
    """Each case has a unique name."""
    cases = named()
    assert len(cases.keys() | OTHER_CHANGES.keys()) == len(cases) + len(OTHER_CHANGES) >= 200
    assert len(UNRELATED_CHANGES) == 20
