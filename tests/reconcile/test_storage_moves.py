"""A claim that is to live in another lower than before: the copy that it had goes first."""

import pytest
from storagekit import KEY, above, below, bound, claim, copy, ground, planned, reason, the_step
from worldkit import A, B, decided, drop

from tensile.objects import CLAIM, Manifest
from tensile.reconcile.storage import ClaimRule, key_of
from tensile.world import World

THERE = key_of(B, "default", "data")


def moved(made: Manifest) -> World:
    """Let a claim have a copy in lower-b, and be needed in lower-a alone."""
    here = ground()
    above(here, made)
    below(here, copy(made), lower=B)
    bound(here)
    return here


@pytest.mark.parametrize("made", [claim(), claim(node=A)], ids=["by its pod", "by the scheduler"])
def test_a_claim_waits_for_the_copy_that_it_had_elsewhere(made: Manifest) -> None:
    """That one may be getting its volume at this moment; it goes as it was seen, without one."""
    here = moved(made)
    found = decided(ClaimRule(), KEY, here)[0]
    assert (found.wanted, found.waits, found.problem) == ((), (THERE,), None)
    step = the_step(here, THERE)
    assert (step.verb, step.ref.cluster) == ("delete", B)
    assert step.version


def test_it_is_made_once_that_copy_is_gone() -> None:
    """And only there."""
    here = moved(claim())
    drop(here.lowers[B].more[CLAIM], "data")
    assert ("create", A) in [(step.verb, step.ref.cluster) for step in planned(here).steps]


def test_a_copy_that_got_its_volume_after_all_keeps_the_claim() -> None:
    """Pods elsewhere are told so."""
    here = moved(claim())
    below(here, copy(claim(), "1Gi"), lower=B)
    assert reason(here) == "ClaimElsewhere"


def test_a_wait_for_a_lower_that_does_not_answer_is_said() -> None:
    """It may take long."""
    here = moved(claim())
    here.lowers[B].silent = 1.0
    assert reason(here) == "LowerUnreachable"
