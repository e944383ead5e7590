"""Tests of unneeded lower namespaces: ours are deleted once it is certain that no object of others is lost."""

import pytest
from rulekit import RuleUnderTest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    change_as_other_client,
    config_map,
    decision_and_plan,
    delete_observed,
    make_lower_pod,
    make_namespace,
    make_upper_pod,
    make_world,
    put,
    relist_without,
    with_owner_marks,
)

from tensile.names import UPPER_NAMESPACE, Owner
from tensile.objects import NAMESPACE, UPPER, Manifest, Ref
from tensile.reconcile.plan import Step
from tensile.reconcile.rules import orphans
from tensile.reconcile.world import World

RULE = orphans.NAMESPACES
KEY = orphans.key_of(RULE.name, A)
heard = RuleUnderTest(RULE, KEY).affected_keys
PREFIXED = "name: lower-a, namespaces: {mapping: prefix}"


def own_namespace(name: str = "team", owner: Owner = OWNER_HERE, **meta: str) -> Manifest:
    """Return a lower namespace as the engine made it for the upper one."""
    made = make_namespace(name, annotations={UPPER_NAMESPACE: name.removeprefix("demo-")}, **meta)
    return with_owner_marks(made, "above", owner, uid=f"below-{name}")


def vacated(*lowers: str) -> World:
    """Create a world in which the deletion of the upper namespace was observed and our lower one still exists."""
    world = make_world(*lowers)
    put(world.upper.namespaces, make_namespace("team", uid="above"))
    put(world.lowers[A].namespaces, own_namespace("demo-team" if lowers else "team"))
    delete_observed(world.upper.namespaces, "team", "")
    return world


def steps(world: World) -> tuple[Step, ...]:
    """Return the steps of the lower's key."""
    return decision_and_plan(RULE, KEY, world)[1].steps


def test_a_lower_namespace_is_deleted_after_its_upper_namespace() -> None:
    """The deletion has its UID, counts as requested, and only happens if the namespace is empty."""
    (step,) = steps(vacated())
    assert (step.verb, step.ref, step.uid) == ("delete", Ref(A, NAMESPACE, "", "team"), "below-team")
    assert (step.requested, step.only_if_empty, step.independent, step.in_plan) == (True, True, True, True)
    assert step.reason == "upper namespace team is gone"


def test_with_a_prefix_a_lower_namespace_is_recognized_by_its_annotation() -> None:
    """Its name differs from that of the upper namespace."""
    (step,) = steps(vacated(PREFIXED))
    assert (step.ref.name, step.requested) == ("demo-team", True)


def test_a_lower_namespace_with_an_existing_upper_namespace_is_kept() -> None:
    """It is also kept if the upper one was created again, and without any pod."""
    world = vacated()
    put(world.upper.namespaces, make_namespace("team", uid="anew"))
    assert steps(world) == ()


@pytest.mark.parametrize(
    "theirs",
    [
        make_namespace("team", uid="below-team"),
        own_namespace(owner=STRANGER),
        own_namespace(deletionTimestamp="2026-03-01T12:00:00Z"),
    ],
    ids=["without marks", "of another owner", "terminating"],
)
def test_a_lower_namespace_of_another_owner_or_a_terminating_one_is_kept(theirs: Manifest) -> None:
    """The state of the upper namespace does not matter."""
    world = vacated()
    put(world.lowers[A].namespaces, theirs)
    assert steps(world) == ()


def test_marks_that_another_client_wrote_do_not_make_a_namespace_ours() -> None:
    """ManagedFields must name this engine as the writer of the marks."""
    world = vacated()
    change_as_other_client(
        world.lowers[A].namespaces, "team", lambda one: one["metadata"]["managedFields"][0].update(manager="helm"), ""
    )
    assert steps(world) == ()


def test_a_missing_upper_namespace_is_confirmed_before_the_lower_one_is_deleted() -> None:
    """That deletion was not requested, so the guard counts it."""
    world = vacated()
    put(world.upper.namespaces, make_namespace("team", uid="above"))
    relist_without(world.upper.namespaces, "team", "")
    (step,) = steps(world)
    assert (step.verb, step.ref, step.uid, step.requested) == ("confirm", Ref(UPPER, NAMESPACE, "", "team"), "", False)
    world.upper.namespaces.confirm_absent("", "team")
    (step,) = steps(world)
    assert (step.verb, step.requested) == ("delete", False)


def test_the_deletion_of_a_namespace_because_of_a_restored_store_is_marked() -> None:
    """The guard blocks every such deletion, but not that of a namespace that a list merely lacks."""
    for rewound in (True, False):
        world = vacated()
        put(world.upper.namespaces, make_namespace("team", uid="above"))
        world.upper.namespaces.take_over((), 1, rewound=rewound)
        world.upper.namespaces.confirm_absent("", "team")
        (step,) = steps(world)
        assert (step.requested, step.after_restore) == (False, rewound)


def test_the_deletion_of_a_newer_upper_namespace_does_not_request_that_of_an_older_ones() -> None:
    """The lower namespace was made for an older upper namespace of that name."""
    world = vacated()
    put(world.upper.namespaces, make_namespace("team", uid="another"))
    delete_observed(world.upper.namespaces, "team", "")
    (step,) = steps(world)
    assert (step.verb, step.requested) == ("delete", False)


@pytest.mark.parametrize("cache", ["pods", "config_maps"])
def test_a_namespace_with_our_objects_is_kept(cache: str) -> None:
    """A pod whose deletion the guard blocks keeps its namespace."""
    world = vacated()
    lower = world.lowers[A]
    made = {"pods": make_lower_pod(make_upper_pod(namespace="team")), "config_maps": config_map(namespace="team")}[
        cache
    ]
    put(getattr(lower, cache), made)
    assert steps(world) == ()
    delete_observed(getattr(lower, cache), made["metadata"]["name"], "team")
    assert len(steps(world)) == 1


@pytest.mark.parametrize("blind", ["namespaces", "pods", "secrets"])
def test_no_namespace_is_deleted_while_the_state_is_uncertain(blind: str) -> None:
    """A cache of either cluster is not synced, or the lower does not respond."""
    world = vacated()
    getattr(world.lowers[A], blind).mark_stale()
    assert steps(world) == ()
    world = vacated()
    world.lowers[A].unreachable_seconds = 1.0
    assert steps(world) == ()
    world = vacated()
    world.upper.namespaces.mark_stale()
    assert steps(world) == ()


def test_a_namespace_of_an_earlier_mapping_is_deleted_though_its_upper_one_exists() -> None:
    """No object is created in it any more, and its deletion was not requested."""
    moved = make_world(PREFIXED)
    put(moved.upper.namespaces, make_namespace("team", uid="above"))
    put(moved.lowers[A].namespaces, own_namespace("team"), own_namespace("demo-team"))
    (step,) = steps(moved)
    assert (step.verb, step.ref.name, step.requested) == ("delete", "team", False)


def test_several_namespaces_are_in_one_plan_sorted_by_name() -> None:
    """The guard can then count them together."""
    world = vacated()
    put(world.lowers[A].namespaces, own_namespace("zoo"), own_namespace("art"))
    for name in ("zoo", "art"):
        world.upper.namespaces.confirm_absent("", name)
    assert [step.ref.name for step in steps(world)] == ["art", "team", "zoo"]


def test_the_creation_or_deletion_of_a_namespace_enqueues_the_key() -> None:
    """This applies to both clusters, but not to a change that keeps the marks."""
    world = vacated()
    entry = world.lowers[A].namespaces.get("", "team")
    assert entry is not None
    for cache in ("upper.namespaces", "namespaces"):
        assert heard(world, cache, entry, None) == [""]
        assert heard(world, cache, None, entry, B) == [""]
        assert heard(world, cache, entry, entry) == []


def test_the_deletion_of_an_object_in_a_namespace_enqueues_the_key() -> None:
    """It may have been the last one, and a creation does not matter."""
    world = vacated()
    pod = put(world.lowers[A].pods, make_lower_pod(make_upper_pod(namespace="team")))
    assert heard(world, "pods", pod, None) == [""]
    assert heard(world, "pods", None, pod) == []
    delete_observed(world.lowers[A].namespaces, "team", "")
    assert heard(world, "pods", pod, None) == []


def test_each_lower_has_one_key() -> None:
    """It does not depend on the content of the lower."""
    assert list(RULE.keys(make_world(), B)) == [orphans.key_of(RULE.name, B)]
