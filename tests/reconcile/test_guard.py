"""Tests that the guard blocks unrequested deletions if there are many, separately for each namespace."""

import pytest
from msgspec.structs import replace
from worldkit import A, make_upper_pod, make_world, put

from tensile.objects import NAMESPACE, POD, UPPER, Ref
from tensile.reconcile.guard import GuardedPlan, guard, namespace_of
from tensile.reconcile.plan import Plan, Step, Verb
from tensile.reconcile.world import LowerWorld
from tensile.topology import Guard

LIMITS = Guard(max_deletes=2, max_delete_percent=50)


def owning(**owned: int) -> LowerWorld:
    """Create a lower with so many upper pods that have run, by namespace."""
    world = make_world()
    for namespace, count in owned.items():
        for number in range(count):
            running = make_upper_pod(f"pod-{number}", status={"phase": "Running"}, namespace=namespace, uid=f"{number}")
            put(world.lowers[A].upper_pods, running)
    return world.lowers[A]


def deletions(unasked: int, count: int = 0, namespace: str = "default", first: int = 0) -> Plan:
    """Return a plan with so many unrequested and requested deletions, of pods numbered from `first`."""
    numbers = range(first, first + unasked + count)
    steps = (
        Step("delete", Ref(A, POD, namespace, f"pod-{number}"), "because", uid="u", requested=number - first >= unasked)
        for number in numbers
    )
    return Plan(tuple(steps))


def together(*plans: Plan) -> Plan:
    """Combine several plans into one."""
    return Plan(tuple(step for plan in plans for step in plan.steps))


def namespaces(guarded: GuardedPlan) -> list[str]:
    """Return the namespaces of the steps that the guard permits."""
    return sorted({step.ref.namespace for step in guarded.plan.steps})


@pytest.mark.parametrize(("unasked", "owned"), [(0, 0), (2, 2), (3, 6), (50, 100)])
def test_deletions_pass_if_their_number_or_percentage_is_within_the_limit(unasked: int, owned: int) -> None:
    """The guard only blocks deletions that exceed both limits."""
    plan = deletions(unasked)
    assert guard(plan, LIMITS, owning(default=owned)) == (plan, "", "", ())


@pytest.mark.parametrize(("unasked", "owned"), [(3, 5), (3, 0), (100, 100)])
def test_deletions_beyond_both_limits_are_blocked_with_a_message_about_the_limits(unasked: int, owned: int) -> None:
    """The message names the fields, and the command to run if the deletions are correct."""
    guarded = guard(deletions(unasked), LIMITS, owning(default=owned))
    assert guarded.plan.steps == ()
    assert guarded.reason == "DeletionLimitExceeded"
    assert "guard.maxDeletes: 2" in guarded.message
    assert "tensile apply --force" in guarded.message


@pytest.mark.parametrize(("percent", "unasked", "owned"), [(0, 1, 500), (30, 301, 1000)])
def test_a_percentage_slightly_above_the_limit_is_blocked(percent: int, unasked: int, owned: int) -> None:
    """With a limit of 0 %, not even one deletion passes, however many objects exist."""
    limits = Guard(maxDeletes=0, maxDeletePercent=percent)
    guarded = guard(deletions(unasked), limits, owning(default=owned))
    assert guarded.plan.steps == ()
    assert f"{unasked} deletions in namespace default ({percent + 1} % of the owned objects there)" in guarded.message


def lost(count: int, verb: Verb = "confirm") -> Plan:
    """Return a plan with the steps for so many upper pods whose lower pods are missing."""
    cluster = UPPER if verb == "patch" else A
    refs = (Ref(cluster, POD, "default", f"pod-{number}") for number in range(count))
    return Plan(tuple(Step(verb, ref, "because", uid="u", requested=False) for ref in refs))


@pytest.mark.parametrize("verb", ["confirm", "patch"])
def test_pods_that_were_deleted_only_in_the_lower_cluster_get_their_own_message(verb: Verb) -> None:
    """Nothing would be deleted: the command sets the pods to Failed, so that their controllers replace them."""
    guarded = guard(lost(5, verb), LIMITS, owning(default=5))
    assert guarded.plan.steps == ()
    assert guarded.message == (
        "5 pods in namespace default (100 % of the owned objects there) were deleted in the lower cluster, but not in "
        "the upper one, where guard.maxDeletes: 2 and guard.maxDeletePercent: 50 keep them unchanged; "
        "to set them to Failed, so that their controllers replace them, run: tensile apply --force"
    )


def test_deletions_and_missing_lower_pods_are_counted_separately_in_the_message() -> None:
    """Some objects exist only in the lower cluster, and some pods only in the upper one."""
    message = guard(together(deletions(3, first=100), lost(4)), LIMITS, owning(default=5)).message
    assert message.startswith("7 changes in namespace default (88 % of the owned objects there) that no user requested")
    assert ": 3 deletions there, and 4 pods that were deleted only there; if they are correct, run: " in message


def test_requested_deletions_pass_beside_blocked_ones() -> None:
    """The guard never blocks a deletion that a user requested."""
    guarded = guard(deletions(3, count=4), LIMITS, owning(default=5))
    assert len(guarded.plan.steps) == 4
    assert all(step.requested for step in guarded.plan.steps)


def test_a_blocked_namespace_blocks_no_other_namespace() -> None:
    """Sixty forged orphans of one tenant must not delay a single deletion of another."""
    plan = together(deletions(60, namespace="shop", first=1000), deletions(1, namespace="quiet"))
    guarded = guard(plan, LIMITS, owning(shop=3, quiet=1))
    assert namespaces(guarded) == ["quiet"]
    assert guarded.reason == "DeletionLimitExceeded"
    assert "60 deletions in namespace shop (96 % of the owned objects there)" in guarded.message


def test_few_deletions_in_each_of_many_namespaces_are_blocked_together() -> None:
    """With a wrong kubeconfig, each namespace loses only as many pods as its limit permits."""
    plan = together(*(deletions(2, namespace=f"n{number}") for number in range(10)))
    guarded = guard(plan, LIMITS, owning(**{f"n{number}": 2 for number in range(10)}))
    assert guarded.plan.steps == ()
    assert "20 deletions (100 % of the owned objects there)" in guarded.message


def test_the_message_counts_all_blocked_deletions() -> None:
    """It includes the namespace that exceeds the limit, as `tensile apply --force` would make all these deletions."""
    plan = together(deletions(100, namespace="shop"), *(deletions(2, namespace=f"n{number}") for number in range(10)))
    guarded = guard(plan, LIMITS, owning(shop=100, **{f"n{number}": 2 for number in range(10)}))
    assert guarded.plan.steps == ()
    assert "120 deletions (100 % of the owned objects there)" in guarded.message


def test_the_percentage_is_that_of_the_namespace() -> None:
    """The pods of one tenant do not hide the deletions of another's."""
    guarded = guard(deletions(3, namespace="small"), LIMITS, owning(large=500, small=3))
    assert guarded.plan.steps == ()


def test_forged_lower_pods_do_not_reduce_the_percentage() -> None:
    """Only upper pods count as owned.

    Otherwise a client that may create lower pods could weaken the guard.
    """
    lower = owning(shop=4)
    for number in range(500):
        put(lower.pods, make_upper_pod(f"forged-{number}", namespace="shop", uid=f"f{number}"))
    assert guard(deletions(3, namespace="shop"), LIMITS, lower).plan.steps == ()


def test_the_message_names_only_the_first_three_blocked_namespaces() -> None:
    """The others are given as a number."""
    names = [f"n{number}" for number in range(5)]
    guarded = guard(together(*(deletions(3, namespace=name) for name in names)), LIMITS, owning(other=100))
    assert "in namespaces n0, n1, n2 and 2 more" in guarded.message


def test_an_object_counts_for_the_upper_namespace_that_maps_to_its_place() -> None:
    """A namespace counts for itself, and an object at no place counts for no namespace."""
    prefixed = make_world(f"name: {A}, namespaces: {{mapping: prefix}}").lowers[A]
    assert prefixed.namespace("shop") == "demo-shop"
    assert namespace_of(Ref(A, POD, "demo-shop", "web"), prefixed) == "shop"
    assert namespace_of(Ref(A, NAMESPACE, "", "demo-shop"), prefixed) == "shop"
    assert namespace_of(Ref(UPPER, POD, "shop", "web"), prefixed) == "shop"
    assert namespace_of(Ref(A, POD, "elsewhere", "web"), prefixed) == ""


def test_a_single_deletion_is_blocked_if_caches_are_not_synced() -> None:
    """A missing object proves nothing while a cache is not synced."""
    lower = owning(default=100)
    lower.config_maps.mark_stale()
    assert guard(deletions(1), LIMITS, lower).plan.steps == ()


@pytest.mark.parametrize("noted", [True, False], ids=["condition on the node", "detected by this engine"])
def test_after_a_restore_not_even_one_unrequested_deletion_passes(noted: bool) -> None:  # noqa: FBT001 - a parameter
    """The engine cannot know which of them are correct, so all wait, and requested deletions pass."""
    plan = deletions(1, count=1)
    if not noted:
        plan = Plan((replace(plan.steps[0], after_restore=True), *plan.steps[1:]))
    guarded = guard(plan, LIMITS, owning(default=100), restored=noted)
    assert guarded.plan.steps == plan.steps[1:]
    assert guarded.reason == "StoreRestored"
    assert "a cluster was restored from a backup" in guarded.message
    assert "tensile apply --force" in guarded.message
    assert guard(plan, LIMITS, owning(default=100), restored=noted, forced=True).plan == plan


def test_after_a_restore_requested_deletions_alone_cause_no_message() -> None:
    """The whole plan passes unchanged."""
    plan = deletions(0, count=3)
    assert guard(plan, LIMITS, owning(default=3), restored=True) == (plan, "", "", ())


def test_force_permits_all_deletions() -> None:
    """A user who runs with --force has checked that the deletions are correct."""
    lower = owning(default=9)
    lower.pods.mark_stale()
    assert len(guard(deletions(9), LIMITS, lower, forced=True).plan.steps) == 9
