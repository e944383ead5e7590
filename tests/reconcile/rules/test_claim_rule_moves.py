"""A claim that is to live in another lower than before: the copy that it had goes first."""

import pytest
from storagekit import KEY, above, below, bound, claim, copy, ground, planned, reason, the_step, volume, volumes
from worldkit import A, B, decided, drop, reload

from tensile.names import LOWER
from tensile.objects import CLAIM, Manifest, Ref
from tensile.reconcile.desired import VerifyAbsent
from tensile.reconcile.rules.claim_rule import ClaimRule, key_of
from tensile.reconcile.world import World

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
    assert (found.wanted, found.depends_on, found.problem) == ((), (THERE,), None)
    step = the_step(here, THERE)
    assert (step.verb, step.ref.cluster) == ("delete", B)
    assert step.version


def test_that_copy_goes_without_waiting_also_with_pods_of_its_own() -> None:
    """Otherwise the two keys would depend on each other."""
    here = moved(claim(node=A))
    bound(here, "late", lower=B)
    found = decided(ClaimRule(), THERE, here)[0]
    assert found.problem is not None
    assert (found.depends_on, found.problem.reason) == ((), "ClaimInOtherCluster")
    assert ("delete", B) in [(step.verb, step.ref.cluster) for step in planned(here, THERE).steps]


def test_it_is_made_once_that_copy_is_gone() -> None:
    """And only there."""
    here = moved(claim())
    drop(here.lowers[B].more[CLAIM], "data")
    assert ("create", A) in [(step.verb, step.ref.cluster) for step in planned(here).steps]


def test_a_copy_that_got_its_volume_after_all_keeps_the_claim() -> None:
    """Pods elsewhere are told so."""
    here = moved(claim())
    below(here, copy(claim(), "1Gi"), lower=B)
    assert reason(here) == "ClaimInOtherCluster"


def test_the_note_of_another_lower_is_taken_back_there_first() -> None:
    """Its key may be making the copy at this moment; once it is done, and there is none, the note goes."""
    here = ground()
    above(here, claim(annotations={LOWER: B}))
    bound(here)
    found = decided(ClaimRule(), KEY, here)[0]
    assert (found.wanted, found.depends_on) == ((), (THERE,))
    (step,) = planned(here, THERE).steps
    assert step.patch is not None
    assert step.patch.body["metadata"]["annotations"] == {LOWER: None}
    assert {"uid", "resourceVersion"} <= step.patch.body["metadata"].keys()
    above(here, claim())
    assert [(one.verb, one.ref.cluster) for one in planned(here).steps][-1] == ("create", A)


def test_a_note_stays_while_nobody_needs_the_claim_elsewhere() -> None:
    """It costs nothing, and the next pod may come to the same lower."""
    here = ground()
    above(here, claim(annotations={LOWER: B}))
    assert planned(here, THERE).steps == ()


def test_a_wait_for_a_lower_that_does_not_answer_is_said() -> None:
    """It may take long."""
    here = moved(claim())
    here.lowers[B].unreachable_seconds = 1.0
    assert reason(here) == "LowerUnreachable"


def test_where_storage_is_not_looked_after_any_more_a_read_tells() -> None:
    """Nobody takes a note or a copy back there; one that is there has to be removed by somebody."""
    here = ground()
    reload(here, f"name: {A}", f"name: {B}, controllers: []")
    above(here, claim(annotations={LOWER: B}))
    bound(here)
    found = decided(ClaimRule(), KEY, here)[0]
    assert found.wanted == (
        VerifyAbsent(Ref(B, CLAIM, "default", "data"), "claim-data", "it may have been created there"),
    )
    below(here, copy(claim()), lower=B)
    assert reason(here) == "ClaimInOtherCluster"
    drop(here.lowers[B].more[CLAIM], "data")
    here.lowers[B].more[CLAIM].confirm_absent("default", "data", sought="claim-data")
    assert [(one.verb, one.ref.cluster) for one in planned(here).steps][-1] == ("create", A)


def test_a_copy_stays_while_its_claims_volume_is_not_heard_of() -> None:
    """The claim above may be told as bound before the placeholder is, which we made for this very copy."""
    here = ground()
    made = claim(volume="pvc-claim-data", node=A)
    above(here, made)
    below(here, copy(made))
    bound(here)
    assert [step for step in planned(here).steps if step.verb == "delete"] == []
    volumes(here, volume(made, B))
    assert [(step.verb, step.ref.cluster) for step in planned(here).steps] == [("delete", A)]
