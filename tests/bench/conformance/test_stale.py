"""What the bench of stale plans takes for the right refusal."""

import pytest

from bench.conformance.stale.__main__ import STALE, UNCHANGED, named, wrong
from bench.conformance.stale.harmless import HARMLESS
from bench.conformance.stale.others import OTHERS
from bench.conformance.stale.stage import Done

LINE = "lower-a: Pod shop/web: from nothing to create"
SAYS = r"lower-a: Pod shop/web: from nothing to create"


def refused(*lines: str, code: int = 1) -> Done:
    """Return how `apply` ends that refuses a plan."""
    return Done(code, "", "\n".join((STALE, *lines, UNCHANGED, "")))


def test_a_refusal_with_the_right_reason_is_right() -> None:
    """Also with more lines about the same."""
    assert list(wrong(refused(LINE), [], SAYS, "shop")) == []
    assert list(wrong(refused(LINE, "lower-a: ConfigMap shop/a: from create to nothing"), [], SAYS, "shop")) == []


@pytest.mark.parametrize(
    ("done", "wrote", "words"),
    [
        (refused(LINE, code=0), [], "exit code 0"),
        (Done(0, "Applied: 1 to add", ""), [], "exit code 0"),
        (Done(1, "", "upper: out of reach\n"), [], "not said to be stale"),
        (refused("lower-b: Pod shop/web: from nothing to create"), [], "said otherwise"),
        (refused(LINE, "upper: Node a: from UID u to UID v"), [], "said besides"),
        (refused(LINE), ["create lower-a: /api/v1/pods"], "it wrote"),
    ],
)
def test_any_other_end_is_wrong(done: Done, wrote: list[str], words: str) -> None:
    """Another code, another reason, something besides, or a write."""
    assert any(words in one for one in wrong(done, wrote, SAYS, "shop"))


def test_there_are_two_hundred_ways_and_twenty_harmless_changes() -> None:
    """Each under a name of its own."""
    cases = named()
    assert len(cases.keys() | OTHERS.keys()) == len(cases) + len(OTHERS) >= 200
    assert len(HARMLESS) == 20
