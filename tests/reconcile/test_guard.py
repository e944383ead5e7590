"""The guard holds back what nobody asked for when it is much, and nothing else; one namespace holds back no other."""

import pytest
from msgspec.structs import replace
from worldkit import A, put, upper_pod, world

from tensile.objects import NAMESPACE, POD, UPPER, Ref
from tensile.reconcile.guard import GuardedPlan, guard, namespace_of
from tensile.reconcile.plan import Plan, Step, Verb
from tensile.reconcile.world import LowerWorld
from tensile.topology import Guard

LIMITS = Guard(max_deletes=2, max_delete_percent=50)


def owning(**owned: int) -> LowerWorld:
    """Make a lower with so many pods that have run, by namespace; further names are of pods that are gone above."""
    here = world()
    for namespace, count in owned.items():
        for number in range(count):
            running = upper_pod(f"pod-{number}", status={"phase": "Running"}, namespace=namespace, uid=f"{number}")
            put(here.lowers[A].upper_pods, running)
    return here.lowers[A]


def deletions(unasked: int, asked: int = 0, namespace: str = "default", first: int = 0) -> Plan:
    """Make a plan with so many deletions of either sort; pods of the first names may be there above."""
    numbers = range(first, first + unasked + asked)
    steps = (
        Step("delete", Ref(A, POD, namespace, f"pod-{number}"), "because", uid="u", requested=number - first >= unasked)
        for number in numbers
    )
    return Plan(tuple(steps))


def together(*plans: Plan) -> Plan:
    """Make one plan of several."""
    return Plan(tuple(step for plan in plans for step in plan.steps))


def namespaces(guarded: GuardedPlan) -> list[str]:
    """Return the namespaces in which something may be deleted."""
    return sorted({step.ref.namespace for step in guarded.plan.steps})


@pytest.mark.parametrize(("unasked", "owned"), [(0, 0), (2, 2), (3, 6), (50, 100)])
def test_few_in_number_or_in_share_pass(unasked: int, owned: int) -> None:
    """Both limits have to be broken."""
    plan = deletions(unasked)
    assert guard(plan, LIMITS, owning(default=owned)) == (plan, "", "", ())


@pytest.mark.parametrize(("unasked", "owned"), [(3, 5), (3, 0), (100, 100)])
def test_many_are_held_and_the_reason_names_the_limits(unasked: int, owned: int) -> None:
    """The words say which field, and what to do when the deletions are right."""
    guarded = guard(deletions(unasked), LIMITS, owning(default=owned))
    assert guarded.plan.steps == ()
    assert guarded.reason == "DeletionLimitExceeded"
    assert "guard.maxDeletes: 2" in guarded.held
    assert "tensile apply --force" in guarded.held


@pytest.mark.parametrize(("percent", "unasked", "owned"), [(0, 1, 500), (30, 301, 1000)])
def test_a_part_of_a_percent_more_is_more(percent: int, unasked: int, owned: int) -> None:
    """With 0 % not even one deletion passes, however many objects there are."""
    limits = Guard(maxDeletes=0, maxDeletePercent=percent)
    guarded = guard(deletions(unasked), limits, owning(default=owned))
    assert guarded.plan.steps == ()
    assert f"{unasked} deletions in namespace default ({percent + 1} % of the owned objects there)" in guarded.held


def lost(count: int, verb: Verb = "confirm") -> Plan:
    """Make a plan with the steps for so many upper pods whose lower pods are gone."""
    cluster = UPPER if verb == "patch" else A
    refs = (Ref(cluster, POD, "default", f"pod-{number}") for number in range(count))
    return Plan(tuple(Step(verb, ref, "because", uid="u", requested=False) for ref in refs))


@pytest.mark.parametrize("verb", ["confirm", "patch"])
def test_pods_that_were_deleted_only_below_are_said_to_be_that(verb: Verb) -> None:
    """Nothing is to be deleted: the same command has their controllers replace them."""
    guarded = guard(lost(5, verb), LIMITS, owning(default=5))
    assert guarded.plan.steps == ()
    assert guarded.held == (
        "5 pods in namespace default (100 % of the owned objects there) were deleted in the lower cluster, but not in "
        "the upper one, where guard.maxDeletes: 2 and guard.maxDeletePercent: 50 keep them unchanged; "
        "to set them to Failed, so that their controllers replace them, run: tensile apply --force"
    )


def test_both_directions_at_once_are_counted_apart() -> None:
    """Objects that exist only below, and pods that exist only above."""
    words = guard(together(deletions(3, first=100), lost(4)), LIMITS, owning(default=5)).held
    assert words.startswith("7 changes in namespace default (88 % of the owned objects there) that no user requested")
    assert ": 3 deletions there, and 4 pods that were deleted only there; if they are correct, run: " in words


def test_what_was_asked_for_passes_beside_what_is_held() -> None:
    """A deletion that somebody ordered is never held back."""
    guarded = guard(deletions(3, asked=4), LIMITS, owning(default=5))
    assert len(guarded.plan.steps) == 4
    assert all(step.requested for step in guarded.plan.steps)


def test_a_namespace_that_is_held_holds_back_no_other() -> None:
    """Sixty forged orphans of one tenant must not keep the one deletion of another waiting."""
    plan = together(deletions(60, namespace="shop", first=1000), deletions(1, namespace="quiet"))
    guarded = guard(plan, LIMITS, owning(shop=3, quiet=1))
    assert namespaces(guarded) == ["quiet"]
    assert guarded.reason == "DeletionLimitExceeded"
    assert "60 deletions in namespace shop (96 % of the owned objects there)" in guarded.held


def test_a_few_in_each_of_many_namespaces_are_many() -> None:
    """So it looks with a wrong kubeconfig: each namespace loses three pods, which is no more than the limit allows."""
    plan = together(*(deletions(2, namespace=f"n{number}") for number in range(10)))
    guarded = guard(plan, LIMITS, owning(**{f"n{number}": 2 for number in range(10)}))
    assert guarded.plan.steps == ()
    assert "20 deletions (100 % of the owned objects there)" in guarded.held


def test_all_that_is_held_is_counted() -> None:
    """A namespace with many, and many in all others: `tensile apply --force` would make all of these deletions."""
    plan = together(deletions(100, namespace="shop"), *(deletions(2, namespace=f"n{number}") for number in range(10)))
    guarded = guard(plan, LIMITS, owning(shop=100, **{f"n{number}": 2 for number in range(10)}))
    assert guarded.plan.steps == ()
    assert "120 deletions (100 % of the owned objects there)" in guarded.held


def test_what_one_tenant_has_does_not_hide_what_another_loses() -> None:
    """The share is that of the namespace first."""
    guarded = guard(deletions(3, namespace="small"), LIMITS, owning(large=500, small=3))
    assert guarded.plan.steps == ()


def test_what_carries_our_marks_counts_for_nothing_in_the_share() -> None:
    """Lower pods are not what a lower can lose: whoever may create some would weaken the guard."""
    lower = owning(shop=4)
    for number in range(500):
        put(lower.pods, upper_pod(f"forged-{number}", namespace="shop", uid=f"f{number}"))
    assert guard(deletions(3, namespace="shop"), LIMITS, lower).plan.steps == ()


def test_names_of_many_held_namespaces_are_cut() -> None:
    """The first three stand for all."""
    names = [f"n{number}" for number in range(5)]
    guarded = guard(together(*(deletions(3, namespace=name) for name in names)), LIMITS, owning(other=100))
    assert "in namespaces n0, n1, n2 and 2 more" in guarded.held


def test_an_object_belongs_to_the_upper_namespace_of_its_place() -> None:
    """Namespaces to themselves; what is at no place to none."""
    prefixed = world(f"name: {A}, namespaces: {{mapping: prefix}}").lowers[A]
    assert prefixed.namespace("shop") == "demo-shop"
    assert namespace_of(Ref(A, POD, "demo-shop", "web"), prefixed) == "shop"
    assert namespace_of(Ref(A, NAMESPACE, "", "demo-shop"), prefixed) == "shop"
    assert namespace_of(Ref(UPPER, POD, "shop", "web"), prefixed) == "shop"
    assert namespace_of(Ref(A, POD, "elsewhere", "web"), prefixed) == ""


def test_incomplete_caches_hold_even_one() -> None:
    """Nothing that rests on absence is done while absence means nothing."""
    lower = owning(default=100)
    lower.config_maps.mark_stale()
    assert guard(deletions(1), LIMITS, lower).plan.steps == ()


@pytest.mark.parametrize("noted", [True, False], ids=["noted on the node", "seen by this engine"])
def test_of_what_a_restored_store_lacks_not_even_one_passes(noted: bool) -> None:  # noqa: FBT001 - a parameter
    """All wait that nobody asked for, since which of them are right cannot be told; what was asked for passes."""
    plan = deletions(1, asked=1)
    if not noted:
        plan = Plan((replace(plan.steps[0], after_rollback=True), *plan.steps[1:]))
    guarded = guard(plan, LIMITS, owning(default=100), restored=noted)
    assert guarded.plan.steps == plan.steps[1:]
    assert guarded.reason == "StoreRestored"
    assert "a cluster was restored from a backup" in guarded.held
    assert "tensile apply --force" in guarded.held
    assert guard(plan, LIMITS, owning(default=100), restored=noted, forced=True).plan == plan


def test_a_restored_store_holds_nothing_that_was_asked_for() -> None:
    """There is nothing to say then either."""
    plan = deletions(0, asked=3)
    assert guard(plan, LIMITS, owning(default=3), restored=True) == (plan, "", "", ())


def test_force_lets_everything_pass() -> None:
    """A person who says so is believed."""
    lower = owning(default=9)
    lower.pods.mark_stale()
    assert len(guard(deletions(9), LIMITS, lower, forced=True).plan.steps) == 9
