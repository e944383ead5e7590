"""The guard holds back what nobody asked for when it is much, and nothing else."""

from dataclasses import replace

import pytest

from tensile.objects import POD, Ref
from tensile.reconcile.guard import guard
from tensile.reconcile.plan import Plan, Step
from tensile.topology import Guard

LIMITS = Guard(max_deletes=2, max_delete_percent=50)


def deletions(unasked: int, asked: int = 0) -> Plan:
    """Give a plan with so many deletions of either sort."""
    return Plan(
        tuple(
            Step("delete", Ref("a", POD, "default", f"pod-{number}"), "because", uid="u", asked=number >= unasked)
            for number in range(unasked + asked)
        )
    )


@pytest.mark.parametrize(("unasked", "owned"), [(0, 0), (2, 2), (3, 6), (50, 100)])
def test_few_in_number_or_in_share_pass(unasked: int, owned: int) -> None:
    """Both limits have to be broken."""
    plan = deletions(unasked)
    assert guard(plan, LIMITS, owned=owned, settled=True) == (plan, "", "")


@pytest.mark.parametrize(("unasked", "owned"), [(3, 5), (3, 0), (100, 100)])
def test_many_are_held_and_the_reason_names_the_limits(unasked: int, owned: int) -> None:
    """The words say which field, and what to do when the deletions are right."""
    guarded = guard(deletions(unasked), LIMITS, owned=owned, settled=True)
    assert guarded.plan.steps == ()
    assert guarded.reason == "GuardHolds"
    assert "guard.maxDeletes: 2" in guarded.held
    assert "tensile apply --force" in guarded.held


def test_what_was_asked_for_passes_beside_what_is_held() -> None:
    """A deletion that somebody ordered is never held back."""
    guarded = guard(deletions(3, asked=4), LIMITS, owned=5, settled=True)
    assert len(guarded.plan.steps) == 4
    assert all(step.asked for step in guarded.plan.steps)


def test_incomplete_caches_hold_even_one() -> None:
    """Nothing that rests on absence is done while absence means nothing."""
    assert guard(deletions(1), LIMITS, owned=100, settled=False).plan.steps == ()


@pytest.mark.parametrize("noted", [True, False], ids=["noted on the node", "seen by this engine"])
def test_of_what_a_restored_store_lacks_not_even_one_passes(noted: bool) -> None:  # noqa: FBT001 - a parameter
    """All wait that nobody asked for, since which of them are right cannot be told; what was asked for passes."""
    plan = deletions(1, asked=1)
    if not noted:
        plan = Plan((replace(plan.steps[0], lost=True), *plan.steps[1:]))
    guarded = guard(plan, LIMITS, owned=100, settled=True, restored=noted)
    assert guarded.plan.steps == plan.steps[1:]
    assert guarded.reason == "StoreRestored"
    assert "went back to an earlier state" in guarded.held
    assert "tensile apply --force" in guarded.held
    assert guard(plan, LIMITS, owned=100, settled=True, restored=noted, forced=True).plan == plan


def test_a_restored_store_holds_nothing_that_was_asked_for() -> None:
    """There is nothing to say then either."""
    plan = deletions(0, asked=3)
    assert guard(plan, LIMITS, owned=3, settled=True, restored=True) == (plan, "", "")


def test_force_lets_everything_pass() -> None:
    """A person who says so is believed."""
    assert len(guard(deletions(9), LIMITS, owned=9, settled=False, forced=True).plan.steps) == 9
