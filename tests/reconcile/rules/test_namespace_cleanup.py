"""Namespaces below that nobody needs: what we made goes when it is certain that nothing is lost with it."""

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
    reload,
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
    """Make a namespace below as we made it for the one of that name above."""
    made = space(name, annotations={UPPER_NAMESPACE: name.removeprefix("demo-")}, **meta)
    return marked(made, "above", owner, uid=f"below-{name}")


def vacated(*lowers: str) -> World:
    """Make a world where the namespace above was seen deleted and ours below is left."""
    here = world(*lowers)
    put(here.upper.namespaces, space("team", uid="above"))
    put(here.lowers[A].namespaces, ours("demo-team" if lowers else "team"))
    drop(here.upper.namespaces, "team", "")
    return here


def steps(here: World) -> tuple[Step, ...]:
    """Plan the lower's key."""
    return decided(RULE, KEY, here)[1].steps


def test_a_namespace_of_ours_goes_after_the_one_above() -> None:
    """By its UID, asked for by who deleted that one, and only where nothing is in it."""
    (step,) = steps(vacated())
    assert (step.verb, step.ref, step.uid) == ("delete", Ref(A, NAMESPACE, "", "team"), "below-team")
    assert (step.requested, step.only_if_empty, step.independent, step.in_plan) == (True, True, True, True)
    assert step.reason == "upper namespace team is gone"


def test_with_a_prefix_it_is_known_by_its_note() -> None:
    """Its name is another than that above."""
    (step,) = steps(vacated(PREFIXED))
    assert (step.ref.name, step.requested) == ("demo-team", True)


def test_a_namespace_that_is_there_above_stays() -> None:
    """Also one that was made anew, and without any pod."""
    here = vacated()
    put(here.upper.namespaces, space("team", uid="anew"))
    assert steps(here) == ()


@pytest.mark.parametrize(
    "theirs",
    [space("team", uid="below-team"), ours(owner=STRANGER), ours(deletionTimestamp="2026-03-01T12:00:00Z")],
    ids=["somebody's", "another owner's", "ending already"],
)
def test_a_namespace_that_is_not_ours_or_is_ending_is_left_alone(theirs: Manifest) -> None:
    """Whatever became of the one above."""
    here = vacated()
    put(here.lowers[A].namespaces, theirs)
    assert steps(here) == ()


def test_marks_that_somebody_copied_make_no_namespace_ours() -> None:
    """They have to be of our own hand."""
    here = vacated()
    changed(
        here.lowers[A].namespaces, "team", lambda one: one["metadata"]["managedFields"][0].update(manager="helm"), ""
    )
    assert steps(here) == ()


def test_a_namespace_that_is_merely_missing_above_is_looked_up_first() -> None:
    """Then its deletion is one that nobody asked for, which the guard counts."""
    here = vacated()
    put(here.upper.namespaces, space("team", uid="above"))
    lose(here.upper.namespaces, "team", "")
    (step,) = steps(here)
    assert (step.verb, step.ref, step.uid, step.requested) == ("confirm", Ref(UPPER, NAMESPACE, "", "team"), "", False)
    here.upper.namespaces.confirm_absent("", "team")
    (step,) = steps(here)
    assert (step.verb, step.requested) == ("delete", False)


def test_a_namespace_that_a_restored_store_forgot_is_marked_so() -> None:
    """The guard lets none of it pass; the last of one that is merely missing is not."""
    for rewound in (True, False):
        here = vacated()
        put(here.upper.namespaces, space("team", uid="above"))
        here.upper.namespaces.take_over((), 1, rewound=rewound)
        here.upper.namespaces.confirm_absent("", "team")
        (step,) = steps(here)
        assert (step.requested, step.after_rollback) == (False, rewound)


def test_a_namespace_made_for_an_older_one_of_that_name_is_not_asked_for() -> None:
    """Who deleted the newer one said nothing of this."""
    here = vacated()
    put(here.upper.namespaces, space("team", uid="another"))
    drop(here.upper.namespaces, "team", "")
    (step,) = steps(here)
    assert (step.verb, step.requested) == ("delete", False)


@pytest.mark.parametrize("cache", ["pods", "config_maps"])
def test_what_is_ours_in_it_goes_first(cache: str) -> None:
    """A pod that the guard keeps running keeps its namespace."""
    here = vacated()
    lower = here.lowers[A]
    made = {"pods": twin(upper_pod(namespace="team")), "config_maps": config_map(namespace="team")}[cache]
    put(getattr(lower, cache), made)
    assert steps(here) == ()
    drop(getattr(lower, cache), made["metadata"]["name"], "team")
    assert len(steps(here)) == 1


@pytest.mark.parametrize("blind", ["namespaces", "pods", "secrets"])
def test_nothing_goes_while_not_all_is_known(blind: str) -> None:
    """Neither from an incomplete cache, nor while the cluster is silent, nor while the upper's is incomplete."""
    here = vacated()
    getattr(here.lowers[A], blind).mark_stale()
    assert steps(here) == ()
    here = vacated()
    here.lowers[A].unreachable_seconds = 1.0
    assert steps(here) == ()
    here = vacated()
    here.upper.namespaces.mark_stale()
    assert steps(here) == ()


def test_a_namespace_of_an_older_mapping_goes_though_the_one_above_is_there() -> None:
    """Nothing is made in it any more; nobody asked for it."""
    here = vacated()
    put(here.upper.namespaces, space("team", uid="above"))
    reload(here, PREFIXED)
    moved = world(PREFIXED)
    put(moved.upper.namespaces, space("team", uid="above"))
    put(moved.lowers[A].namespaces, ours("team"), ours("demo-team"))
    (step,) = steps(moved)
    assert (step.verb, step.ref.name, step.requested) == ("delete", "team", False)


def test_several_are_in_one_plan_in_the_order_of_their_names() -> None:
    """So that the guard can count them."""
    here = vacated()
    put(here.lowers[A].namespaces, ours("zoo"), ours("art"))
    for name in ("zoo", "art"):
        here.upper.namespaces.confirm_absent("", name)
    assert [step.ref.name for step in steps(here)] == ["art", "team", "zoo"]


def test_a_namespace_that_comes_or_goes_is_heard_of() -> None:
    """On either side; one whose marks stay is not looked at again."""
    here = vacated()
    entry = here.lowers[A].namespaces.get("", "team")
    assert entry is not None
    for cache in ("upper.namespaces", "namespaces"):
        assert heard(here, cache, entry, None) == [""]
        assert heard(here, cache, None, entry, B) == [""]
        assert heard(here, cache, entry, entry) == []


def test_what_leaves_a_namespace_is_heard_of() -> None:
    """It may have been the last; what comes is not."""
    here = vacated()
    pod = put(here.lowers[A].pods, twin(upper_pod(namespace="team")))
    assert heard(here, "pods", pod, None) == [""]
    assert heard(here, "pods", None, pod) == []
    drop(here.lowers[A].namespaces, "team", "")
    assert heard(here, "pods", pod, None) == []


def test_there_is_one_key_for_each_lower() -> None:
    """Whatever it has."""
    assert list(RULE.keys(world(), B)) == [orphans.key_of(RULE.name, B)]
