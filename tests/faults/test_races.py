"""The same name, another object: every race of `python -m bench.model.sequences.races`, in memory."""

from collections import Counter

import pytest

from bench.model.sequences.races import BEGUN, COPIES, raced, races

RACES = {one.name: one for one in races()}
SHARES = 4


def test_races_are_a_thousand() -> None:
    """Of pods at everything that can be going on with one, and of each kind that pods depend on."""
    assert len(RACES) >= 1_000
    kinds = Counter(name.split()[0] for name in RACES)
    assert set(kinds) == {"Pod", *COPIES}
    assert {name.removeprefix("Pod ").split(",")[0] for name in RACES if name.startswith("Pod")} == set(BEGUN)
    assert all(sum(action.sort in ("again", "unmake", "anew") for action in one.actions) == 1 for one in RACES.values())


@pytest.mark.parametrize("share", range(SHARES))
def test_the_one_that_comes_after_is_another(share: int) -> None:
    """It is not deleted, has a status and content of its own, and nothing of the one before is left."""
    every = list(RACES.values())[share::SHARES]
    assert [words for words in map(raced, every) if words] == []
