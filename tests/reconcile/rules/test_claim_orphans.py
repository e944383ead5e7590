"""Claims below without a volume whose claim above is missing: confirmed first, counted for the guard, and gone."""

from typing import Any

import pytest
from storagekit import above, below, claim, copy, ground, volume, volumes
from worldkit import STRANGER, A, B, decided, drop, lose, marked, names

from tensile.kube.store import Delta
from tensile.objects import CLAIM, UPPER, Manifest, Ref
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import orphans
from tensile.reconcile.world import World

RULE = orphans.CLAIMS
KEY = orphans.key_of(RULE.name, A)
ENDING = {"deletionTimestamp": "2026-03-01T12:00:00Z"}


def planned(here: World) -> Plan:
    """Plan the lower's one key."""
    return decided(RULE, KEY, here)[1]


def orphaned(*names_of: str) -> World:
    """Make a world with claims below that have none above."""
    here = ground()
    for name in names_of or ("data",):
        below(here, copy(claim(name)))
    return here


def test_absence_is_confirmed_and_then_followed_within_the_guard() -> None:
    """All of one lower in one plan, and nobody asked for it."""
    here = orphaned("b", "a")
    steps = planned(here).steps
    assert [(step.verb, step.ref, step.uid, step.requested) for step in steps] == [
        ("confirm", Ref(UPPER, CLAIM, "default", name), f"claim-{name}", False) for name in ("a", "b")
    ]
    for name in ("a", "b"):
        here.upper.more[CLAIM].confirm_absent("default", name, sought=f"claim-{name}")
    assert [(step.verb, step.ref, step.uid, step.requested) for step in planned(here).steps] == [
        ("delete", Ref(A, CLAIM, "default", name), f"below-claim-{name}", False) for name in ("a", "b")
    ]
    assert all(step.version for step in planned(here).steps), "it stays if it gets a volume meanwhile"


def test_the_going_of_an_older_claim_is_no_word_about_this_ones() -> None:
    """Another engine has heard of the newer one first, and made the claim below."""
    here = orphaned()
    above(here, claim(uid="older"))
    drop(here.upper.more[CLAIM], "data")
    (step,) = planned(here).steps
    assert (step.verb, step.uid) == ("confirm", "claim-data")


def test_one_that_a_restored_store_forgot_is_marked_so() -> None:
    """The guard lets none of it pass."""
    here = orphaned()
    above(here, claim())
    here.upper.more[CLAIM].take_over((), 1, rewound=True)
    here.upper.more[CLAIM].confirm_absent("default", "data", sought="claim-data")
    (step,) = planned(here).steps
    assert (step.verb, step.requested, step.after_rollback) == ("delete", False, True)


def test_one_that_was_seen_deleted_is_another_rules() -> None:
    """Somebody asked for that."""
    here = orphaned()
    above(here, claim())
    assert planned(here) == Plan(())
    drop(here.upper.more[CLAIM], "data")
    assert planned(here) == Plan(())


@pytest.mark.parametrize(
    "spared",
    [
        copy(claim(), "1Gi"),
        copy(claim(), phase="Lost"),
        copy(claim(), **ENDING),
        marked(copy(claim()), "claim-data", STRANGER),
    ],
    ids=["bound", "lost its volume", "going", "another owner's"],
)
def test_what_may_hold_data_or_is_not_ours_is_spared(spared: Manifest) -> None:
    """Whatever is missing above."""
    here = ground()
    below(here, spared)
    here.upper.more[CLAIM].confirm_absent("default", "data")
    assert planned(here) == Plan(())


def test_one_that_a_placeholder_names_is_spared() -> None:
    """The placeholder's policy decides."""
    here = orphaned()
    volumes(here, volume(claim()))
    assert planned(here) == Plan(())


@pytest.mark.parametrize("doubt", ["silent", "caches", "controller"])
def test_nothing_is_decided_in_doubt(doubt: str) -> None:
    """While the lower does not answer, or not all is known."""
    here = orphaned()
    lower = here.lowers[A]
    if doubt == "silent":
        lower.unreachable_seconds = 5.0
    elif doubt == "caches":
        lower.pods.mark_stale()
    else:
        lower.spec = lower.spec.model_copy(update={"controllers": ()})
    assert planned(here) == Plan(())


def heard(here: World, cache: str, delta: Any, lower: str = A) -> list[str]:
    """Report whether a change in a cache concerns a lower."""
    found = [key for route in RULE.watches() if route.cache == cache for key in route.keys(here, lower, delta)]
    return list(names(found))


def test_a_lower_hears_of_claims_that_lose_their_other_half() -> None:
    """Those that have both concern nothing."""
    here = orphaned()
    entry = here.lowers[A].more[CLAIM].get("default", "data")
    assert heard(here, "PersistentVolumeClaim", Delta(None, entry)) == [""]
    assert heard(here, "PersistentVolumeClaim", Delta(entry, None)) == []
    upper = above(here, claim())
    assert heard(here, "PersistentVolumeClaim", Delta(None, entry)) == []
    assert heard(here, "upper.PersistentVolumeClaim", Delta(None, upper)) == [""], "what was held is decided again"
    lose(here.upper.more[CLAIM], "data")
    assert heard(here, "upper.PersistentVolumeClaim", Delta(upper, None)) == [""]
    assert heard(here, "upper.PersistentVolumeClaim", Delta(upper, None), B) == []


def test_there_is_one_key_for_a_lower() -> None:
    """However many claims it has."""
    assert list(RULE.keys(orphaned("a", "b"), A)) == [KEY]
