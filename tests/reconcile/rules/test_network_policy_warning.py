"""Tests of the warning that upper NetworkPolicies do not apply to pods in a lower cluster."""

import pytest
from answering import FakeCluster
from loopkit import RecordingLoopObserver
from virtualtime import in_virtual_time
from worldkit import (
    NOW,
    A,
    B,
    add_virtual_node,
    decision_and_plan,
    delete_observed,
    make_object,
    make_upper_pod,
    make_world,
    only_desired,
    put,
    synced_cache,
)

from tensile.kube.store import Delta
from tensile.objects import NETWORK_POLICY, UPPER, Ref
from tensile.reconcile.desired import Decision, EmitEvent
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.rules.network_policy_warning import REASON, NetworkPolicyRule, key_of
from tensile.reconcile.world import Key, World

RULE = NetworkPolicyRule()
SHOP = key_of(A, "shop", "deny-all")


def guarded(*pods: str) -> World:
    """Create a world with a policy in namespace shop, and pods of these namespaces on lower-a's node."""
    world = make_world()
    world.upper.policies = synced_cache()
    put(world.upper.policies, make_object("NetworkPolicy", "deny-all", "shop", api=NETWORK_POLICY.api))
    for namespace in pods:
        put(world.lowers[A].upper_pods, make_upper_pod(f"web-{namespace}", namespace=namespace))
    return world


def enqueued_keys(of: World, cache: str, *entries: object) -> list[Key]:
    """Return the keys that a change of a cache enqueues."""
    (route,) = (one for one in RULE.watches() if one.cache == cache)
    return [key for entry in entries for key in route.keys(of, A, Delta(None, entry))]  # type: ignore[arg-type]


def test_a_policy_gets_a_warning_if_pods_of_its_namespace_run_in_a_lower() -> None:
    """Each lower has its own Event, with the remedy."""
    world = guarded("shop")
    event = only_desired(decision_and_plan(RULE, SHOP, world)[0])
    assert isinstance(event, EmitEvent)
    assert (event.about.kind, event.about.namespace, event.about.name) == (NETWORK_POLICY, "shop", "deny-all")
    assert event.reason == REASON
    assert event.message == (
        "NetworkPolicies are not mirrored, so this one does not apply to pods of namespace shop in lower cluster "
        "lower-a: create an equivalent policy there"
    )
    assert list(RULE.keys(world, A)) == [SHOP]
    assert list(RULE.keys(world, B)) == []


def test_a_policy_whose_pods_run_in_two_lowers_gets_a_warning_for_each() -> None:
    """Each Event names its own lower cluster, since both need an equivalent policy."""
    world = guarded("shop")
    put(world.lowers[B].upper_pods, make_upper_pod("web-b", namespace="shop"))
    assert [key for lower in (A, B) for key in RULE.keys(world, lower)] == [SHOP, SHOP._replace(lower=B)]
    events = {
        lower: only_desired(decision_and_plan(RULE, key_of(lower, "shop", "deny-all"), world)[0]) for lower in (A, B)
    }
    for lower, one in events.items():
        assert isinstance(one, EmitEvent)
        assert one.about == Ref(UPPER, NETWORK_POLICY, "shop", "deny-all")
        assert one.reason == REASON
        assert f"pods of namespace shop in lower cluster {lower}: create" in one.message


@pytest.mark.parametrize("pods", [(), ("bank",), ("kube-system",)], ids=["none", "others", "excluded"])
def test_a_policy_without_mirrored_pods_gets_no_warning(pods: tuple[str, ...]) -> None:
    """It applies to all pods of its namespace."""
    world = guarded(*pods)
    assert decision_and_plan(RULE, SHOP, world)[0] == Decision()
    assert list(RULE.keys(world, A)) == []


def test_a_deleted_policy_gets_no_warning() -> None:
    """The Event would be about an object that does not exist."""
    world = guarded("shop")
    delete_observed(world.upper.policies, "deny-all", "shop")
    assert decision_and_plan(RULE, SHOP, world)[0] == Decision()


def test_a_new_policy_and_the_first_pod_of_its_namespace_enqueue_its_key() -> None:
    """A second pod does not."""
    world = guarded("shop")
    (policy,) = world.upper.policies
    (pod,) = world.lowers[A].upper_pods
    assert enqueued_keys(world, "upper.policies", policy) == [SHOP]
    assert enqueued_keys(world, "upper_pods", pod) == [SHOP]
    second = put(world.lowers[A].upper_pods, make_upper_pod("second", namespace="shop"))
    assert enqueued_keys(world, "upper_pods", second) == []


@in_virtual_time
async def test_a_policy_that_is_created_while_pods_run_gets_a_warning() -> None:
    """Its creation enqueues its key once the policies are listed."""
    world, noted = make_world(), RecordingLoopObserver()
    add_virtual_node(world)
    put(world.lowers[A].upper_pods, make_upper_pod(namespace="shop"))
    clusters = {name: FakeCluster(name) for name in (UPPER, A, B)}
    loop = Loop(world, (RULE,), clusters, noted, Timing(lambda: NOW, lambda: 0.5))
    loop.open(A)
    world.upper.policies.replace((), 1)
    put(world.upper.policies, make_object("NetworkPolicy", "deny-all", "shop", api=NETWORK_POLICY.api))
    await loop.wait_idle()
    assert [step.reason for step in noted.steps] == [REASON]
    await loop.close(A)
