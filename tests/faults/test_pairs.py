"""Two engines in memory, one of which knows late: `python -m bench.model.sequences.pairs` carries every play out."""

import pytest

from bench.model.sequences.actions import Action, read
from bench.model.sequences.model import LOWERS
from bench.model.sequences.pairs import ORDERS, SINCE, pairs, played, tried
from bench.model.sequences.playing import ended, in_no_time, staged
from bench.model.sequences.races import BEGUN, COPIES
from bench.model.sequences.stage import Stage

PAIRS = {one.name: one for one in pairs()}
SHARES = 3
EVERY = 7
APART = 120.0
FOUGHT_OVER, MOST = 3, 90
"""The status and the taints of a node, and the status of a pod; so many writes of each, both engines together."""


def test_plays_are_of_all_that_can_be_going_on() -> None:
    """Of pods at every moment, of each kind that pods depend on, and with watches that go on in either order."""
    assert {name.removeprefix("Pod ").split(",")[0] for name in PAIRS} == {*BEGUN, *COPIES}
    assert {name.split(", ")[-1] for name in PAIRS} == set(ORDERS)
    assert {name.split(", ")[2] for name in PAIRS if name.startswith("Pod ")} == set(SINCE)
    assert all([action.sort for action in one.actions].count("stop") == 3 for one in PAIRS.values())
    assert all([action.sort for action in one.actions].count("go") == 3 for one in PAIRS.values())


@pytest.mark.parametrize("share", range(SHARES))
def test_an_engine_that_knows_late_does_no_harm(share: int) -> None:
    """Nothing is ended that lives, nothing runs twice, and both come to rest."""
    every = list(PAIRS.values())[::EVERY][share::SHARES]
    assert [words for words in map(tried, every) if words] == []


@pytest.mark.parametrize("name", [name for name in PAIRS if name.startswith("Pod told, 16, runs")])
def test_a_pod_that_runs_outlives_an_engine_that_knows_an_older_one(name: str) -> None:
    """That engine finds a lower pod which is not that of the upper one it knows: which is the older, it has to ask."""
    assert tried(PAIRS[name]) == ""


def test_two_engines_come_to_rest_with_nobody_doing_anything() -> None:
    """A write of the one gives the other nothing to do, with lists as with watches."""
    actions: list[Action] = read(["pod:90", "serve:0", "wait:3", "run:0", "wait:3"])
    assert in_no_time(lambda: played(actions)) == []


def test_an_engine_that_cannot_reach_what_another_can_is_no_fast_fight() -> None:
    """Each goes on saying what it sees of node and pod, every few seconds; when both see the same, that is said."""
    written: list[str] = []

    async def run() -> list[str]:
        """Cut one off for two minutes."""
        stage, model, play = staged()
        late = Stage(model.look, stage)
        await stage.start()
        await late.start()
        for action in read(["pod:90", "serve:0", "wait:3", "run:0", "wait:3"]):
            await play.carry_out(action)
        late.leave(LOWERS[1], 600.0)
        start = len(stage.done)
        await stage.rest(APART)
        written.extend(stage.done[start:])
        await late.recover()
        said = [*await ended(stage, model), *late.defects]
        await stage.crash()
        await late.crash()
        return said

    assert in_no_time(run) == []
    assert 2 * FOUGHT_OVER < len(written) <= MOST * FOUGHT_OVER
