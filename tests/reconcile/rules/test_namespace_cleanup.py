"""Tests of unneeded lower namespaces: ours are deleted once it is certain that no object of others is lost."""

import pytest
from rulekit import Asked
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    changed,
    config_map,
    decided,
    drop,
    lose,
    marked,
    put,
    space,
    twin,
    upper_pod,
    world,
)

from tensile.names import UPPER_NAMESPACE, Owner
from tensile.objects import NAMESPACE, UPPER, Manifest, Ref
from tensile.reconcile.plan import Step
from tensile.reconcile.rules import orphans
from tensile.reconcile.world import World

RULE = orphans.NAMESPACES
KEY = orphans.key_of(RULE.name, A)
heard = Asked(RULE, KEY).heard
PREFIXED = "name: lower-a, namespaces: {mapping: prefix}"


def ours(name: str = "team", owner: Owner = OWNER_HERE, **meta: str) -> Manifest:
    """Return a lower namespace as the engine made it for the upper one."""
    made = space(name, annotations={UPPER_NAMESPACE: name.removeprefix("demo-")}, **meta)
    return marked(made, "above", owner, uid=f"below-{name}")


def vacated(*lowers: str) -> World:
    """Create a world in which the deletion of the upper namespace was observed and our lower one still exists."""
    here = world(*lowers)
    put(here.upper.namespaces, space("team", uid="above"))
    put(here.lowers[A].namespaces, ours("demo-team" if lowers else "team"))
    drop(here.upper.namespaces, "team", "")
    return here


def steps(here: World) -> tuple[Step, ...]:
    """Return the steps of the lower's key."""
    return decided(RULE, KEY, here)[1].steps


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
    here = vacated()
    put(here.upper.namespaces, space("team", uid="anew"))
    assert steps(here) == ()


@pytest.mark.parametrize(
    "theirs",
    [space("team", uid="below-team"), ours(owner=STRANGER), ours(deletionTimestamp="2026-03-01T12:00:00Z")],
    ids=["without marks", "of another owner", "terminating"],
)
def test_a_lower_namespace_of_another_owner_or_a_terminating_one_is_kept(theirs: Manifest) -> None:
    """The state of the upper namespace does not matter."""
    here = vacated()
    put(here.lowers[A].namespaces, theirs)
    assert steps(here) == ()


def test_marks_that_another_client_wrote_do_not_make_a_namespace_ours() -> None:
    """ManagedFields must name this engine as the writer of the marks."""
    here = vacated()
    changed(
        here.lowers[A].namespaces, "team", lambda one: one["metadata"]["managedFields"][0].update(manager="helm"), ""
    )
    assert steps(here) == ()


def test_a_missing_upper_namespace_is_confirmed_before_the_lower_one_is_deleted() -> None:
    """That deletion was not requested, so the guard counts it."""
    here = vacated()
    put(here.upper.namespaces, space("team", uid="above"))
    lose(here.upper.namespaces, "team", "")
    (step,) = steps(here)
    assert (step.verb, step.ref, step.uid, step.requested) == ("confirm", Ref(UPPER, NAMESPACE, "", "team"), "", False)
    here.upper.namespaces.confirm_absent("", "team")
    (step,) = steps(here)
    assert (step.verb, step.requested) == ("delete", False)


def test_the_deletion_of_a_namespace_because_of_a_restored_store_is_marked() -> None:
    """The guard blocks every such deletion, but not that of a namespace that a list merely lacks."""
    for rewound in (True, False):
        here = vacated()
        put(here.upper.namespaces, space("team", uid="above"))
        here.upper.namespaces.take_over((), 1, rewound=rewound)
        here.upper.namespaces.confirm_absent("", "team")
        (step,) = steps(here)
        assert (step.requested, step.after_rollback) == (False, rewound)


def test_the_deletion_of_a_newer_upper_namespace_does_not_request_that_of_an_older_ones() -> None:
    """The lower namespace was made for an older upper namespace of that name."""
    here = vacated()
    put(here.upper.namespaces, space("team", uid="another"))
    drop(here.upper.namespaces, "team", "")
    (step,) = steps(here)
    assert (step.verb, step.requested) == ("delete", False)


@pytest.mark.parametrize("cache", ["pods", "config_maps"])
def test_a_namespace_with_our_objects_is_kept(cache: str) -> None:
    """A pod whose deletion the guard blocks keeps its namespace."""
    here = vacated()
    lower = here.lowers[A]
    made = {"pods": twin(upper_pod(namespace="team")), "config_maps": config_map(namespace="team")}[cache]
    put(getattr(lower, cache), made)
    assert steps(here) == ()
    drop(getattr(lower, cache), made["metadata"]["name"], "team")
    assert len(steps(here)) == 1


@pytest.mark.parametrize("blind", ["namespaces", "pods", "secrets"])
def test_no_namespace_is_deleted_while_the_state_is_uncertain(blind: str) -> None:
    """A cache of either cluster is not synced, or the lower does not respond."""
    here = vacated()
    getattr(here.lowers[A], blind).mark_stale()
    assert steps(here) == ()
    here = vacated()
    here.lowers[A].unreachable_seconds = 1.0
    assert steps(here) == ()
    here = vacated()
    here.upper.namespaces.mark_stale()
    assert steps(here) == ()


def test_a_namespace_of_an_earlier_mapping_is_deleted_though_its_upper_one_exists() -> None:
    """No object is created in it any more, and its deletion was not requested."""
    moved = world(PREFIXED)
    put(moved.upper.namespaces, space("team", uid="above"))
    put(moved.lowers[A].namespaces, ours("team"), ours("demo-team"))
    (step,) = steps(moved)
    assert (step.verb, step.ref.name, step.requested) == ("delete", "team", False)


def test_several_namespaces_are_in_one_plan_sorted_by_name() -> None:
    """The guard can then count them together."""
    here = vacated()
    put(here.lowers[A].namespaces, ours("zoo"), ours("art"))
    for name in ("zoo", "art"):
        here.upper.namespaces.confirm_absent("", name)
    assert [step.ref.name for step in steps(here)] == ["art", "team", "zoo"]


def test_the_creation_or_deletion_of_a_namespace_enqueues_the_key() -> None:
    """This applies to both clusters, but not to a change that keeps the marks."""
    here = vacated()
    entry = here.lowers[A].namespaces.get("", "team")
    assert entry is not None
    for cache in ("upper.namespaces", "namespaces"):
        assert heard(here, cache, entry, None) == [""]
        assert heard(here, cache, None, entry, B) == [""]
        assert heard(here, cache, entry, entry) == []


def test_the_deletion_of_an_object_in_a_namespace_enqueues_the_key() -> None:
    """It may have been the last one, and a creation does not matter."""
    here = vacated()
    pod = put(here.lowers[A].pods, twin(upper_pod(namespace="team")))
    assert heard(here, "pods", pod, None) == [""]
    assert heard(here, "pods", None, pod) == []
    drop(here.lowers[A].namespaces, "team", "")
    assert heard(here, "pods", pod, None) == []


def test_each_lower_has_one_key() -> None:
    """It does not depend on the content of the lower."""
    assert list(RULE.keys(world(), B)) == [orphans.key_of(RULE.name, B)]
