"""Tests of a claim whose home changes to another lower: its former copy is deleted first."""

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
    """Create a world in which a claim has a copy in lower-b, but is only needed in lower-a."""
    here = ground()
    above(here, made)
    below(here, copy(made), lower=B)
    bound(here)
    return here


@pytest.mark.parametrize("made", [claim(), claim(node=A)], ids=["by its pod", "by the scheduler"])
def test_a_claim_waits_for_the_deletion_of_its_copy_in_another_lower(made: Manifest) -> None:
    """That copy may be getting its volume.

    Its delete requires the resourceVersion that was read without a volume.
    """
    here = moved(made)
    found = decided(ClaimRule(), KEY, here)[0]
    assert (found.wanted, found.depends_on, found.problem) == ((), (THERE,), None)
    step = the_step(here, THERE)
    assert (step.verb, step.ref.cluster) == ("delete", B)
    assert step.version


def test_the_former_copy_is_deleted_without_waiting_even_if_it_has_pods() -> None:
    """Otherwise the two keys would depend on each other."""
    here = moved(claim(node=A))
    bound(here, "late", lower=B)
    found = decided(ClaimRule(), THERE, here)[0]
    assert found.problem is not None
    assert (found.depends_on, found.problem.reason) == ((), "ClaimInOtherCluster")
    assert ("delete", B) in [(step.verb, step.ref.cluster) for step in planned(here, THERE).steps]


def test_the_new_copy_is_created_once_the_former_one_is_absent() -> None:
    """It is created in the new home."""
    here = moved(claim())
    drop(here.lowers[B].more[CLAIM], "data")
    assert ("create", A) in [(step.verb, step.ref.cluster) for step in planned(here).steps]


def test_a_former_copy_that_gets_a_volume_stays_the_home_of_the_claim() -> None:
    """Pods in other lowers report a problem."""
    here = moved(claim())
    below(here, copy(claim(), "1Gi"), lower=B)
    assert reason(here) == "ClaimInOtherCluster"


def test_the_annotation_for_another_lower_is_removed_by_that_lowers_key_first() -> None:
    """That key may be creating the copy.

    When it is done without a copy, it removes the annotation.
    """
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


def test_the_annotation_for_a_lower_stays_if_no_other_lower_needs_the_claim() -> None:
    """The next pod may be bound to the same lower."""
    here = ground()
    above(here, claim(annotations={LOWER: B}))
    assert planned(here, THERE).steps == ()


def test_waiting_for_a_lower_that_does_not_respond_is_a_problem() -> None:
    """It may take long, so the problem is reported."""
    here = moved(claim())
    here.lowers[B].unreachable_seconds = 1.0
    assert reason(here) == "LowerUnreachable"


def test_without_the_controller_a_confirm_replaces_the_other_lowers_key() -> None:
    """No rule removes an annotation or a copy in that lower, so a user has to delete an existing copy."""
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
    here.lowers[B].more[CLAIM].confirm_absent("default", "data", uid="claim-data")
    assert [(one.verb, one.ref.cluster) for one in planned(here).steps][-1] == ("create", A)


def test_a_copy_is_not_deleted_before_the_volume_of_its_claim_is_known() -> None:
    """The watch may report the bound claim before its placeholder, which may be for this very copy."""
    here = ground()
    made = claim(volume="pvc-claim-data", node=A)
    above(here, made)
    below(here, copy(made))
    bound(here)
    assert [step for step in planned(here).steps if step.verb == "delete"] == []
    volumes(here, volume(made, B))
    assert [(step.verb, step.ref.cluster) for step in planned(here).steps] == [("delete", A)]
