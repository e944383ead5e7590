"""Tests of copies without an upper object: it is read at quorum first, and the guard may block the deletion."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from rbackit import binding, put_lower_binding, put_lower_role, rbac_world, role
from servicekit import (
    ALIAS_KEY,
    ALIAS_SLICE_KEY,
    SERVER,
    apply_desired,
    endpoint_slice,
    put_lower_pod,
    service,
    service_world,
)
from storagekit import (
    make_claim,
    make_lower_claim,
    make_placeholder,
    put_lower_claims,
    put_upper_claims,
    put_upper_volumes,
    storage_world,
)
from worldkit import OWNER_HERE, STRANGER, A, B, apply_topology, delete_observed, put, relist_without, with_owner_marks

from tensile.kube.store import Delta, Entry
from tensile.names import UPPER_UID
from tensile.objects import CLAIM, ENDPOINT_SLICE, ROLE, ROLE_BINDING, SERVICE, UPPER, Kind, Manifest, Ref
from tensile.reconcile.desired import Absent, Decision, VerifyAbsent
from tensile.reconcile.rules import orphans
from tensile.reconcile.rules.orphans import OrphanRule, key_of
from tensile.reconcile.world import World

STRAYS, CLAIMS = key_of(orphans.SERVICES.name, A), key_of(orphans.CLAIMS.name, A)


def claimed() -> World:
    """Create a world in which a claim without a volume exists in both clusters."""
    world = storage_world()
    put_upper_claims(world, make_claim())
    put_lower_claims(world, make_lower_claim(make_claim()))
    return world


def granting() -> World:
    """Create a world in which a Role and its RoleBinding exist in both clusters."""
    return put_lower_binding(put_lower_role(rbac_world()))


class OrphanCase(NamedTuple):
    """A kind, with its rule, a world in which an object of it exists in both clusters, and the upper object."""

    rule: OrphanRule
    world: Callable[[], World]
    original: Manifest


CASES = {
    SERVICE: OrphanCase(orphans.SERVICES, lambda: apply_desired(service_world()), service()),
    ENDPOINT_SLICE: OrphanCase(orphans.SERVICES, lambda: apply_desired(service_world()), endpoint_slice()),
    ROLE: OrphanCase(orphans.RIGHTS, granting, role()),
    ROLE_BINDING: OrphanCase(orphans.RIGHTS, granting, binding()),
    CLAIM: OrphanCase(orphans.CLAIMS, claimed, make_claim()),
}
KINDS = pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.name)


def found(world: World, kind: Kind) -> Decision:
    """Return the decision about lower-a."""
    rule = CASES[kind].rule
    (key,) = rule.keys(world, A)
    assert key == key_of(rule.name, A)
    return rule.decide(key, world)


def named(kind: Kind) -> tuple[str, str]:
    """Return name and UID of a kind's upper object."""
    meta = CASES[kind].original["metadata"]
    return meta["name"], meta["uid"]


def copied(world: World, kind: Kind) -> Entry:
    """Return the copy of a kind."""
    entry = world.lowers[A].more[kind].get("default", named(kind)[0])
    assert entry is not None
    return entry


def another(world: World, kind: Kind) -> None:
    """Deliver the watch events of the creation and deletion of another upper object of that name."""
    name, _ = named(kind)
    original = CASES[kind].original
    put(world.upper.more[kind], {**original, "metadata": original["metadata"] | {"uid": "another"}})
    delete_observed(world.upper.more[kind], name)


@KINDS
def test_a_copy_with_an_upper_object_or_of_another_owner_is_kept(kind: Kind) -> None:
    """A copy of another owner is kept even if its upper object is missing."""
    world = CASES[kind].world()
    assert found(world, kind) == Decision()
    name, uid = named(kind)
    relist_without(world.upper.more[kind], name)
    put(world.lowers[A].more[kind], with_owner_marks(copied(world, kind).manifest(), uid, STRANGER))
    assert found(world, kind) == Decision()


@KINDS
def test_a_copy_with_a_missing_upper_object_is_deleted_after_a_confirm(kind: Kind) -> None:
    """The deletion was not requested, so the guard counts it.

    The delete of a claim requires its resourceVersion, so a claim that gets a volume before is kept.
    """
    world, (name, uid) = CASES[kind].world(), named(kind)
    relist_without(world.upper.more[kind], name)
    above_ref, reason = Ref(UPPER, kind, "default", name), f"its lower {kind.name} still exists"
    assert found(world, kind).wanted == (VerifyAbsent(above_ref, uid, reason, requested=False),)
    world.upper.more[kind].confirm_absent("default", name, uid=uid)
    (gone,) = found(world, kind).wanted
    assert isinstance(gone, Absent)
    assert (gone.ref, gone.uid) == (Ref(A, kind, "default", name), copied(world, kind).uid)
    assert (gone.requested, gone.after_restore) == (False, False)
    assert gone.version == (str(copied(world, kind).version) if kind == CLAIM else "")


@KINDS
def test_an_observed_deletion_is_left_to_the_rule_of_the_kind(kind: Kind) -> None:
    """If only the deletion of a successor was observed, the orphan rule deletes the copy, and it was not requested."""
    world = CASES[kind].world()
    delete_observed(world.upper.more[kind], named(kind)[0])
    assert found(world, kind) == Decision()
    world = CASES[kind].world()
    another(world, kind)
    (gone,) = found(world, kind).wanted
    assert isinstance(gone, Absent)
    assert not gone.requested


@KINDS
def test_the_deletion_of_another_upper_object_proves_nothing(kind: Kind) -> None:
    """It may be an older one, while another engine made the copy of a newer one."""
    world = CASES[kind].world()
    relist_without(world.upper.more[kind], named(kind)[0])
    another(world, kind)
    (wanted,) = found(world, kind).wanted
    assert isinstance(wanted, VerifyAbsent)


@KINDS
def test_a_deletion_because_of_a_restored_store_is_marked(kind: Kind) -> None:
    """The guard blocks every such deletion."""
    world, (name, uid) = CASES[kind].world(), named(kind)
    world.upper.more[kind].take_over((), 1, rewound=True)
    world.upper.more[kind].confirm_absent("default", name, uid=uid)
    gone = [one for one in found(world, kind).wanted if isinstance(one, Absent)]
    assert [one.after_restore for one in gone] == [True]


@KINDS
@pytest.mark.parametrize("doubt", ["silent", "unlisted", "unsettled"])
def test_nothing_is_decided_while_the_state_is_uncertain(kind: Kind, doubt: str) -> None:
    """The lower does not respond, or a cache is not synced."""
    world = CASES[kind].world()
    relist_without(world.upper.more[kind], named(kind)[0])
    assert found(world, kind).wanted
    lower = world.lowers[A]
    match doubt:
        case "silent":
            lower.unreachable_seconds = 1.0
        case "unlisted":
            world.upper.more[kind].mark_stale()
        case "unsettled":
            lower.pods.mark_stale()
    assert found(world, kind) == Decision()


@KINDS
def test_changes_of_an_upper_object_and_of_a_copy_without_one_enqueue_the_key(kind: Kind) -> None:
    """The lower with the copy gets the key for a created or deleted upper object, and for a new copy without one.

    An upper object that exists again ends a block of the guard.
    """
    world, rule = CASES[kind].world(), CASES[kind].rule
    name, key = named(kind)[0], key_of(rule.name, A)
    original, copy = world.upper.more[kind].get("default", name), copied(world, kind)
    routes = {route.cache: route.keys for route in rule.watches()}
    up, down = routes[f"upper.{kind.name}"], routes[kind.name]
    assert list(up(world, A, Delta(original, None))) == list(up(world, A, Delta(None, original))) == [key]
    assert list(up(world, A, Delta(original, original))) == list(up(world, B, Delta(original, None))) == []
    assert list(down(world, A, Delta(None, copy))) == []
    relist_without(world.upper.more[kind], name)
    assert list(down(world, A, Delta(None, copy))) == [key]
    assert list(down(world, A, Delta(copy, None))) == []


# Special cases of Services.


def test_the_alias_service_is_no_orphan() -> None:
    """It has no upper object, because it is made for the upper cluster itself."""
    world = apply_desired(service_world(server=SERVER), ALIAS_KEY, ALIAS_SLICE_KEY)
    assert {one.manifest()["metadata"]["annotations"][UPPER_UID] for one in world.lowers[A].more[SERVICE]} == {
        OWNER_HERE.upper
    }
    assert orphans.SERVICES.decide(STRAYS, world) == Decision()


def test_a_slice_is_not_counted_if_its_service_or_its_need_is_gone() -> None:
    """The rule of the kind deletes it if its Service is missing, no pod needs it, or the controller is disabled."""
    world = apply_desired(service_world())
    relist_without(world.upper.more[SERVICE], "web")
    relist_without(world.upper.more[ENDPOINT_SLICE], "web-1")
    delete_observed(world.lowers[A].more[SERVICE], "web")
    assert orphans.SERVICES.decide(STRAYS, world) == Decision()
    world = put_lower_pod(apply_desired(service_world()))
    relist_without(world.upper.more[SERVICE], "web")
    delete_observed(world.lowers[A].upper_pods, "web")
    assert orphans.SERVICES.decide(STRAYS, world).wanted, "a pod of ours still runs there"
    delete_observed(world.lowers[A].pods, "web")
    assert orphans.SERVICES.decide(STRAYS, world) == Decision()
    world = apply_desired(service_world())
    relist_without(world.upper.more[SERVICE], "web")
    apply_topology(world, f"name: {A}, controllers: []")
    assert orphans.SERVICES.decide(STRAYS, world) == Decision()


# Special cases of claims.


def test_all_orphaned_claims_of_a_lower_are_in_one_decision() -> None:
    """Their order is stable."""
    world = storage_world()
    for name in ("b", "a"):
        put_lower_claims(world, make_lower_claim(make_claim(name)))
    assert [one.ref.name for one in orphans.CLAIMS.decide(CLAIMS, world).wanted if isinstance(one, VerifyAbsent)] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    "spared",
    [
        make_lower_claim(make_claim(), "1Gi"),
        make_lower_claim(make_claim(), phase="Lost"),
        make_lower_claim(make_claim(), deletionTimestamp="2026-03-01T12:00:00Z"),
    ],
    ids=["bound", "lost its volume", "terminating"],
)
def test_a_claim_that_may_hold_data_is_not_deleted(spared: Manifest) -> None:
    """Neither is one with a placeholder, because its reclaim policy decides."""
    world = storage_world()
    put_lower_claims(world, spared)
    world.upper.more[CLAIM].confirm_absent("default", "data", uid="claim-data")
    assert orphans.CLAIMS.decide(CLAIMS, world) == Decision()
    put_lower_claims(world, make_lower_claim(make_claim()))
    assert orphans.CLAIMS.decide(CLAIMS, world).wanted
    put_upper_volumes(world, make_placeholder(make_claim()))
    assert orphans.CLAIMS.decide(CLAIMS, world) == Decision()
