"""What a workload goes through while the engine is killed is drawn beforehand."""

from collections import Counter

import pytest

from bench.faults.outage import draw as draw_outages
from bench.faults.storm import LATEST, Edit, Round, draw, standing

SEEDS = range(20)


def test_a_seed_says_it_all() -> None:
    """The same one draws the same again, another one something else."""
    assert draw(1, 150, 10, "t") == draw(1, 150, 10, "t") != draw(2, 150, 10, "t")
    assert draw_outages(1, ["a", "b"]) == draw_outages(1, ["a", "b"]) != draw_outages(2, ["a", "b"])


@pytest.mark.parametrize("seed", SEEDS)
def test_as_many_pods_are_made_as_were_asked_for(seed: int) -> None:
    """Deployments of 60 % of them in the first round, the others bit by bit; all rounds hold something to do."""
    edits = [edit for one in draw(seed, 150, 10, "t") for edit in one.edits]
    made = sum(edit.replicas for edit in edits if edit.verb == "deploy")
    assert (made, sum(edit.verb == "create" for edit in edits)) == (90, 60)
    assert all(one.edits for one in draw(seed, 150, 10, "t"))


@pytest.mark.parametrize("seed", SEEDS)
def test_names_are_never_used_twice(seed: int) -> None:
    """So that a name in an audit log stands for one pod."""
    edits = [edit for one in draw(seed, 150, 10, "t") for edit in one.edits]
    for verb in ("create", "deploy", "delete"):
        assert max(Counter(edit.name for edit in edits if edit.verb == verb).values()) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_only_what_was_there_in_an_earlier_round_is_deleted(seed: int) -> None:
    """A pod that was made and deleted in one breath would not be seen by anybody."""
    there: set[str] = set()
    for one in draw(seed, 150, 10, "t"):
        assert {edit.name for edit in one.edits if edit.verb == "delete"} <= there
        there |= {edit.name for edit in one.edits if edit.verb == "create"}


@pytest.mark.parametrize("seed", SEEDS)
def test_edits_begin_before_the_kill(seed: int) -> None:
    """And every life ends in time."""
    assert all(0 <= one.begin <= one.kill <= LATEST for one in draw(seed, 30, 3, "t"))


def test_some_lives_end_early_and_some_do_not() -> None:
    """So that both the start and the work are hit."""
    assert {one.early for seed in SEEDS for one in draw(seed, 30, 3, "t")} == {True, False}


def test_what_stands_in_the_end_is_counted() -> None:
    """The last size of each Deployment, and the pods that nobody deleted."""
    first = Round(early=False, kill=1.0, begin=0.0, edits=(Edit("deploy", "g", 10), Edit("create", "a")))
    then = Round(
        early=False, kill=1.0, begin=0.0, edits=(Edit("scale", "g", 4), Edit("delete", "a"), Edit("create", "b"))
    )
    assert standing([first]) == 11
    assert standing([first, then]) == 5
