"""Tests of another object of the same name: every race of `python -m bench.model.sequences.races`, in memory."""

from collections import Counter

import pytest

from bench.model.sequences.races import BEGUN, COPIES, raced, races

RACES = {one.name: one for one in races()}
SHARES = 4


def test_there_are_at_least_a_thousand_races() -> None:
    """They have pods in every state, and each kind that pods depend on."""
    assert len(RACES) >= 1_000
    kinds = Counter(name.split()[0] for name in RACES)
    assert set(kinds) == {"Pod", *COPIES}
    assert {name.removeprefix("Pod ").split(",")[0] for name in RACES if name.startswith("Pod")} == set(BEGUN)
    assert all(sum(action.sort in ("again", "unmake", "anew") for action in one.actions) == 1 for one in RACES.values())


@pytest.mark.parametrize("share", range(SHARES))
def test_a_recreated_object_is_handled_as_another_object(share: int) -> None:
    """It is not deleted, has its own status and content, and nothing of its predecessor is left."""
    every = list(RACES.values())[share::SHARES]
    assert [violation for violation in map(raced, every) if violation] == []
