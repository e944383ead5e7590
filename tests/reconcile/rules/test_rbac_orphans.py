"""Roles and bindings below whose upper half is merely missing: read at quorum first, and under the guard."""

import pytest
from rbackit import binding, granted, role, with_binding, with_role
from worldkit import STRANGER, A, B, drop, lose, marked, put

from tensile.kube.store import Delta
from tensile.objects import ROLE, ROLE_BINDING, SERVICE_ACCOUNT, UPPER, Kind, Ref
from tensile.reconcile.desired import Absent, Decision, VerifyAbsent
from tensile.reconcile.rules import orphans
from tensile.reconcile.world import World

RULE = orphans.RIGHTS
KEY = orphans.key_of(RULE.name, A)
NAMES = {ROLE: "reader", ROLE_BINDING: "reads"}
KINDS = pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.name)


def below() -> World:
    """Make a world where a role and its binding are below."""
    return with_binding(with_role(granted()))


def found(here: World) -> Decision:
    """Ask about lower-a."""
    (key,) = RULE.keys(here, A)
    assert key == KEY
    return RULE.decide(key, here)


def test_what_has_its_other_half_is_left_alone() -> None:
    """So is what is not ours."""
    here = below()
    assert found(here) == Decision()
    for kind, name in NAMES.items():
        lose(here.upper.more[kind], name)
    put(here.lowers[A].more[ROLE], marked(role(), "Role-reader", STRANGER))
    put(here.lowers[A].more[ROLE_BINDING], marked(binding(), "RoleBinding-reads", STRANGER))
    assert found(here) == Decision()


@KINDS
def test_what_is_missing_above_is_confirmed_and_goes_unasked(kind: Kind) -> None:
    """A revocation that nobody saw is not lost, and the guard counts it."""
    here, name = below(), NAMES[kind]
    lose(here.upper.more[kind], name)
    assert found(here).wanted == (
        VerifyAbsent(
            Ref(UPPER, kind, "default", name),
            f"{kind.name}-{name}",
            f"the {kind.name} made for it still stands",
            requested=False,
        ),
    )
    here.upper.more[kind].confirm_absent("default", name, sought=f"{kind.name}-{name}")
    (gone,) = found(here).wanted
    assert isinstance(gone, Absent)
    assert (gone.ref, gone.requested, gone.after_rollback) == (Ref(A, kind, "default", name), False, False)
    assert gone.uid == here.lowers[A].more[kind].get("default", name).uid  # type: ignore[union-attr]


@KINDS
def test_what_was_seen_deleted_is_left_to_its_own_rule(kind: Kind) -> None:
    """The deletion of another object of that name is no word about this one."""
    here, name = below(), NAMES[kind]
    drop(here.upper.more[kind], name)
    assert found(here) == Decision()
    other = role() if kind == ROLE else binding()
    put(here.upper.more[kind], {**other, "metadata": {**other["metadata"], "uid": "another"}})
    drop(here.upper.more[kind], name)
    (gone,) = found(here).wanted
    assert isinstance(gone, Absent)
    assert not gone.requested


@KINDS
def test_the_going_of_an_older_one_is_no_word_about_this_ones(kind: Kind) -> None:
    """Another engine has heard of the newer one first, and made the copy."""
    here, name = below(), NAMES[kind]
    other = role() if kind == ROLE else binding()
    lose(here.upper.more[kind], name)
    put(here.upper.more[kind], {**other, "metadata": {**other["metadata"], "uid": "older"}})
    drop(here.upper.more[kind], name)
    (wanted,) = found(here).wanted
    assert isinstance(wanted, VerifyAbsent)


@KINDS
def test_what_a_restored_store_forgot_is_marked_so(kind: Kind) -> None:
    """The guard lets none of it pass."""
    here, name = below(), NAMES[kind]
    cache = here.upper.more[kind]
    cache.take_over((), 1, rewound=True)
    cache.confirm_absent("default", name, sought=f"{kind.name}-{name}")
    (gone,) = found(here).wanted
    assert isinstance(gone, Absent)
    assert gone.after_rollback


@pytest.mark.parametrize("which", ["originals", "copies", "accounts", "pods", "silent"])
def test_nothing_is_concluded_from_what_is_not_known(which: str) -> None:
    """Neither from incomplete caches nor of a lower that does not answer."""
    here = below()
    lose(here.upper.more[ROLE], "reader")
    lower = here.lowers[A]
    caches = {
        "originals": here.upper.more[ROLE_BINDING],
        "copies": lower.more[ROLE],
        "accounts": lower.more[SERVICE_ACCOUNT],
        "pods": lower.pods,
    }
    if which == "silent":
        lower.unreachable_seconds = 1.0
    else:
        caches[which].mark_stale()
    assert found(here) == Decision()


@KINDS
def test_what_goes_or_comes_without_its_other_half_is_heard(kind: Kind) -> None:
    """In the lower where it is; what is there on both sides concerns nobody."""
    here, name = below(), NAMES[kind]
    routes = {route.cache: route for route in RULE.watches()}
    above, copy = here.upper.more[kind].get("default", name), here.lowers[A].more[kind].get("default", name)
    up, down = routes[f"upper.{kind.name}"], routes[kind.name]
    assert list(up.keys(here, A, Delta(above, None))) == [KEY]
    assert list(up.keys(here, A, Delta(above, above))) == list(up.keys(here, B, Delta(above, None))) == []
    assert list(down.keys(here, A, Delta(None, copy))) == []
    lose(here.upper.more[kind], name)
    assert list(down.keys(here, A, Delta(None, copy))) == [KEY]
    assert list(down.keys(here, A, Delta(copy, None))) == []
