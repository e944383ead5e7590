"""Tests of the edits of a workload that are drawn in advance for a storm, in which the engine is killed."""

from collections import Counter

import pytest

from bench.faults.crash_plan import LATEST, Edit, Round, draw, standing
from bench.faults.outage import draw as draw_outages

SEEDS = range(20)


def test_a_seed_determines_all_edits() -> None:
    """The same seed draws the same edits and outages, another one others."""
    assert draw(1, 150, 10, "t") == draw(1, 150, 10, "t") != draw(2, 150, 10, "t")
    assert draw_outages(1, ["a", "b"]) == draw_outages(1, ["a", "b"]) != draw_outages(2, ["a", "b"])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_requested_number_of_pods_is_created(seed: int) -> None:
    """Deployments create 60 % of them, single pods the others, and each round has an edit."""
    edits = [edit for one in draw(seed, 150, 10, "t") for edit in one.edits]
    made = sum(edit.replicas for edit in edits if edit.verb == "deploy")
    assert (made, sum(edit.verb == "create" for edit in edits)) == (90, 60)
    assert all(one.edits for one in draw(seed, 150, 10, "t"))


@pytest.mark.parametrize("seed", SEEDS)
def test_names_are_used_only_once(seed: int) -> None:
    """Therefore a name in an audit log identifies one pod."""
    edits = [edit for one in draw(seed, 150, 10, "t") for edit in one.edits]
    for verb in ("create", "deploy", "delete"):
        assert max(Counter(edit.name for edit in edits if edit.verb == verb).values()) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_only_pods_of_an_earlier_round_are_deleted(seed: int) -> None:
    """A pod that is created and deleted at once would not be seen by any engine."""
    there: set[str] = set()
    for one in draw(seed, 150, 10, "t"):
        assert {edit.name for edit in one.edits if edit.verb == "delete"} <= there
        there |= {edit.name for edit in one.edits if edit.verb == "create"}


@pytest.mark.parametrize("seed", SEEDS)
def test_edits_begin_before_the_engine_is_killed(seed: int) -> None:
    """The engine is killed before the latest time."""
    assert all(0 <= one.begin <= one.kill <= LATEST for one in draw(seed, 30, 3, "t"))


def test_some_rounds_kill_the_engine_early_and_some_do_not() -> None:
    """Therefore both its start and its work are interrupted."""
    assert {one.early for seed in SEEDS for one in draw(seed, 30, 3, "t")} == {True, False}


def test_the_pods_that_exist_at_the_end_are_counted() -> None:
    """They are the last size of each Deployment, and the pods that were not deleted."""
    first = Round(early=False, kill=1.0, begin=0.0, edits=(Edit("deploy", "g", 10), Edit("create", "a")))
    then = Round(
        early=False, kill=1.0, begin=0.0, edits=(Edit("scale", "g", 4), Edit("delete", "a"), Edit("create", "b"))
    )
    assert standing([first]) == 11
    assert standing([first, then]) == 5
