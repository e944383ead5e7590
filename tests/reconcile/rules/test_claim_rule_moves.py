"""Tests of a claim whose home changes to another lower: its former copy is deleted first."""

import pytest
from storagekit import (
    KEY,
    make_claim,
    make_lower_claim,
    make_placeholder,
    only_step,
    plan_of,
    problem_reason,
    put_bound_pod,
    put_lower_claims,
    put_upper_claims,
    put_upper_volumes,
    storage_world,
)
from worldkit import A, B, apply_topology, decision_and_plan, delete_observed

from tensile.names import LOWER
from tensile.objects import CLAIM, Manifest, Ref
from tensile.reconcile.desired import VerifyAbsent
from tensile.reconcile.rules.claim_rule import ClaimRule, key_of
from tensile.reconcile.world import World

THERE = key_of(B, "default", "data")


def moved(made: Manifest) -> World:
    """Create a world in which a claim has a copy in lower-b, but is only needed in lower-a."""
    world = storage_world()
    put_upper_claims(world, made)
    put_lower_claims(world, make_lower_claim(made), lower=B)
    put_bound_pod(world)
    return world


@pytest.mark.parametrize("made", [make_claim(), make_claim(node=A)], ids=["by its pod", "by the scheduler"])
def test_a_claim_waits_for_the_deletion_of_its_copy_in_another_lower(made: Manifest) -> None:
    """That copy may be getting its volume.

    Its delete requires the resourceVersion that was read without a volume.
    """
    world = moved(made)
    found = decision_and_plan(ClaimRule(), KEY, world)[0]
    assert (found.wanted, found.depends_on, found.problem) == ((), (THERE,), None)
    step = only_step(world, THERE)
    assert (step.verb, step.ref.cluster) == ("delete", B)
    assert step.version


def test_the_former_copy_is_deleted_without_waiting_even_if_it_has_pods() -> None:
    """Otherwise the two keys would depend on each other."""
    world = moved(make_claim(node=A))
    put_bound_pod(world, "late", lower=B)
    found = decision_and_plan(ClaimRule(), THERE, world)[0]
    assert found.problem is not None
    assert (found.depends_on, found.problem.reason) == ((), "ClaimInOtherCluster")
    assert ("delete", B) in [(step.verb, step.ref.cluster) for step in plan_of(world, THERE).steps]


def test_the_new_copy_is_created_once_the_former_one_is_absent() -> None:
    """It is created in the new home."""
    world = moved(make_claim())
    delete_observed(world.lowers[B].more[CLAIM], "data")
    assert ("create", A) in [(step.verb, step.ref.cluster) for step in plan_of(world).steps]


def test_a_former_copy_that_gets_a_volume_stays_the_home_of_the_claim() -> None:
    """Pods in other lowers report a problem."""
    world = moved(make_claim())
    put_lower_claims(world, make_lower_claim(make_claim(), "1Gi"), lower=B)
    assert problem_reason(world) == "ClaimInOtherCluster"


def test_the_annotation_for_another_lower_is_removed_by_that_lowers_key_first() -> None:
    """That key may be creating the copy.

    When it is done without a copy, it removes the annotation.
    """
    world = storage_world()
    put_upper_claims(world, make_claim(annotations={LOWER: B}))
    put_bound_pod(world)
    found = decision_and_plan(ClaimRule(), KEY, world)[0]
    assert (found.wanted, found.depends_on) == ((), (THERE,))
    (step,) = plan_of(world, THERE).steps
    assert step.patch is not None
    assert step.patch.body["metadata"]["annotations"] == {LOWER: None}
    assert {"uid", "resourceVersion"} <= step.patch.body["metadata"].keys()
    put_upper_claims(world, make_claim())
    assert [(one.verb, one.ref.cluster) for one in plan_of(world).steps][-1] == ("create", A)


def test_the_annotation_for_a_lower_stays_if_no_other_lower_needs_the_claim() -> None:
    """The next pod may be bound to the same lower."""
    world = storage_world()
    put_upper_claims(world, make_claim(annotations={LOWER: B}))
    assert plan_of(world, THERE).steps == ()


def test_waiting_for_a_lower_that_does_not_respond_is_a_problem() -> None:
    """It may take long, so the problem is reported."""
    world = moved(make_claim())
    world.lowers[B].unreachable_seconds = 1.0
    assert problem_reason(world) == "LowerUnreachable"


def test_without_the_controller_a_confirm_replaces_the_other_lowers_key() -> None:
    """No rule removes an annotation or a copy in that lower, so a user has to delete an existing copy."""
    world = storage_world()
    apply_topology(world, f"name: {A}", f"name: {B}, controllers: []")
    put_upper_claims(world, make_claim(annotations={LOWER: B}))
    put_bound_pod(world)
    found = decision_and_plan(ClaimRule(), KEY, world)[0]
    assert found.wanted == (
        VerifyAbsent(Ref(B, CLAIM, "default", "data"), "claim-data", "it may have been created there"),
    )
    put_lower_claims(world, make_lower_claim(make_claim()), lower=B)
    assert problem_reason(world) == "ClaimInOtherCluster"
    delete_observed(world.lowers[B].more[CLAIM], "data")
    world.lowers[B].more[CLAIM].confirm_absent("default", "data", uid="claim-data")
    assert [(one.verb, one.ref.cluster) for one in plan_of(world).steps][-1] == ("create", A)


def test_a_copy_is_not_deleted_before_the_volume_of_its_claim_is_known() -> None:
    """The watch may report the bound claim before its placeholder, which may be for this very copy."""
    world = storage_world()
    made = make_claim(volume="pvc-claim-data", node=A)
    put_upper_claims(world, made)
    put_lower_claims(world, make_lower_claim(made))
    put_bound_pod(world)
    assert [step for step in plan_of(world).steps if step.verb == "delete"] == []
    put_upper_volumes(world, make_placeholder(made, B))
    assert [(step.verb, step.ref.cluster) for step in plan_of(world).steps] == [("delete", A)]
