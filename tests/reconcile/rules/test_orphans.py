"""Services and slices below whose upper half is merely missing: read at quorum first, and under the guard."""

import pytest
from servicekit import ALIAS_KEY, ALIAS_SLICE_KEY, SERVER, done, exposed, running, service, sliced
from worldkit import STRANGER, A, B, drop, lose, marked, put, reload

from tensile.kube.store import Delta
from tensile.objects import ENDPOINT_SLICE, SERVICE, UPPER, Kind, Ref
from tensile.reconcile.desired import Absent, Decision, VerifyAbsent
from tensile.reconcile.rules import orphans
from tensile.reconcile.world import World

RULE = orphans.SERVICES
KEY = orphans.key_of(RULE.name, A)
NAMES = {SERVICE: "web", ENDPOINT_SLICE: "web-1"}


def found(here: World) -> Decision:
    """Ask about lower-a."""
    (key,) = RULE.keys(here, A)
    assert key == KEY
    return RULE.decide(key, here)


def test_what_has_its_other_half_is_no_stray() -> None:
    """Nor is the alias, which has none."""
    here = done(exposed(server=SERVER))
    done(here, ALIAS_KEY, ALIAS_SLICE_KEY)
    assert found(here) == Decision()


@pytest.mark.parametrize("kind", [SERVICE, ENDPOINT_SLICE], ids=lambda kind: kind.name)
def test_what_is_missing_above_is_confirmed_and_goes_unasked(kind: Kind) -> None:
    """The guard counts it: an upper cluster restored from a backup lacks much that nobody deleted."""
    here = done(exposed())
    name = NAMES[kind]
    lose(here.upper.more[kind], name)
    (wanted,) = found(here).wanted
    assert wanted == VerifyAbsent(
        Ref(UPPER, kind, "default", name),
        f"{kind.name}-{name}",
        f"the {kind.name} made for it still stands",
        requested=False,
    )
    here.upper.more[kind].confirm_absent("default", name, sought=f"{kind.name}-{name}")
    (gone,) = found(here).wanted
    assert isinstance(gone, Absent)
    assert (gone.ref, gone.uid, gone.requested) == (Ref(A, kind, "default", name), f"below-{kind.name}-{name}", False)


@pytest.mark.parametrize("kind", [SERVICE, ENDPOINT_SLICE], ids=lambda kind: kind.name)
def test_what_was_seen_deleted_is_left_to_its_own_rule(kind: Kind) -> None:
    """Somebody asked for it; the deletion of another object of that name is no word about this one."""
    here = done(exposed())
    drop(here.upper.more[kind], NAMES[kind])
    assert found(here) == Decision()
    here = done(exposed())
    lose(here.upper.more[kind], NAMES[kind])
    other = service() if kind == SERVICE else sliced()
    put(here.upper.more[kind], {**other, "metadata": other["metadata"] | {"uid": "another"}})
    drop(here.upper.more[kind], NAMES[kind])
    assert isinstance(found(here).wanted[0], VerifyAbsent)
    here.upper.more[kind].mark_deleted("default", NAMES[kind], f"{kind.name}-{NAMES[kind]}")
    (gone,) = found(here).wanted
    assert isinstance(gone, Absent)
    assert not gone.requested


def test_a_slice_goes_with_its_service_and_is_not_counted_again() -> None:
    """Nor is what no namespace with pods has any more."""
    here = done(exposed())
    lose(here.upper.more[SERVICE], "web")
    lose(here.upper.more[ENDPOINT_SLICE], "web-1")
    drop(here.lowers[A].more[SERVICE], "web")
    assert found(here) == Decision()
    here = done(exposed())
    lose(here.upper.more[SERVICE], "web")
    drop(here.lowers[A].upper_pods, "web")
    assert found(here) == Decision()


def test_what_is_not_ours_is_no_stray() -> None:
    """Whatever it is called."""
    here = exposed()
    put(here.lowers[A].more[SERVICE], service("a"), marked(service("b"), "x", STRANGER))
    assert found(here) == Decision()


@pytest.mark.parametrize("trouble", ["silent", "unlisted", "switched off"])
def test_nothing_is_decided_on_half_a_picture(trouble: str) -> None:
    """Nor of a cluster that does not answer, nor without the controller: then its own rule takes all back."""
    here = running(done(exposed()))
    lose(here.upper.more[SERVICE], "web")
    assert found(here).wanted
    match trouble:
        case "silent":
            here.lowers[A].unreachable_seconds = 3
        case "unlisted":
            here.upper.more[ENDPOINT_SLICE].mark_stale()
        case "switched off":
            reload(here, f"name: {A}, controllers: []")
    assert found(here) == Decision()


def test_what_goes_above_and_what_comes_alone_below_is_heard() -> None:
    """And nothing else: endpoints change all the time."""
    here = done(exposed())
    for kind in (SERVICE, ENDPOINT_SLICE):
        above, below = here.upper.more[kind].get("default", NAMES[kind]), here.lowers[A].more[kind]
        copy = below.get("default", NAMES[kind])
        routes = {route.cache: route.keys for route in RULE.watches()}
        assert list(routes[f"upper.{kind.name}"](here, A, Delta(above, above))) == []
        assert list(routes[f"upper.{kind.name}"](here, A, Delta(above, None))) == [KEY]
        assert list(routes[f"upper.{kind.name}"](here, A, Delta(None, above))) == [KEY]
        assert list(routes[f"upper.{kind.name}"](here, B, Delta(above, None))) == []
        assert list(routes[kind.name](here, A, Delta(None, copy))) == []
        lose(here.upper.more[kind], NAMES[kind])
        assert list(routes[kind.name](here, A, Delta(None, copy))) == [KEY]
        assert list(routes[kind.name](here, A, Delta(copy, None))) == []
