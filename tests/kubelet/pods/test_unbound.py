"""Tests of the rule for unbound pods that request a virtual node: it adds or reports what the webhook missed."""

from typing import Any

import pytest
from worldkit import (
    A,
    B,
    Manifest,
    add_virtual_node,
    apply_topology,
    decision_and_plan,
    delete_observed,
    make_lower_node,
    make_object,
    make_world,
    put,
    sorted_names,
    stored_bytes,
)

from tensile.kubelet.pods.unbound import UnboundPodRule, key_of
from tensile.objects import metadata
from tensile.reconcile.desired import Patched
from tensile.reconcile.world import World

RULE = UnboundPodRule()
PROVIDER = {"key": "virtual-kubelet.io/provider", "operator": "Equal", "value": "k8s", "effect": "NoSchedule"}
LAPSES = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
    for name in ("not-ready", "unreachable")
]
STUCK = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
PREPARED = {"tolerations": [*LAPSES, PROVIDER]}


def waiting(spec: Manifest | None = None, name: str = "web", **meta: Any) -> Manifest:
    """Return a pod that requests a virtual node, and for which the scheduler has found none."""
    made = make_object("Pod", name, meta.pop("namespace", "default"), labels={"virtual-pod": "true"}, **meta)
    spec = {"containers": [{"name": "main", "image": "app:1"}], **(spec or {})}
    return {**made, "spec": spec, "status": {"phase": "Pending", "conditions": [STUCK]}}


def ready(*lowers: str, more: str = "") -> World:
    """Return a world whose virtual nodes exist."""
    made = make_world(*lowers, more=more)
    for name, lower in made.lowers.items():
        put(lower.nodes, make_lower_node())
        add_virtual_node(made, name)
    return made


def wanted(of: World, pod: Manifest) -> list[Any]:
    """Add a waiting pod to the cache, and return what the rule desires for it."""
    entry = put(of.upper.waiting, pod)
    decision, _ = decision_and_plan(RULE, key_of(A, entry), of)
    return list(decision.wanted)


def test_missing_tolerations_are_added() -> None:
    """Those for the nodes' taints and for a stopped engine are added, and admission's time limits are removed."""
    own = {"key": "gpu", "operator": "Exists"}
    given = waiting({"tolerations": [own, {**LAPSES[0], "tolerationSeconds": 300}]})
    (found,) = wanted(ready(), given)
    assert isinstance(found, Patched)
    assert found.patch.body["spec"] == {"tolerations": [own, LAPSES[0], LAPSES[1], PROVIDER]}
    assert found.in_plan


def test_the_patch_has_uid_and_resource_version_as_preconditions() -> None:
    """The pod may be bound or changed by another client in the meantime."""
    world = ready()
    (found,) = wanted(world, waiting())
    (entry,) = world.upper.waiting
    assert found.patch.body["metadata"] == {"uid": entry.uid, "resourceVersion": str(entry.version)}


def test_nothing_is_reported_before_a_virtual_node_exists() -> None:
    """After the engine's start the first virtual node may still match the pod."""
    world = make_world()
    assert wanted(world, waiting({**PREPARED, "nodeSelector": {"tier": "gold"}})) == []


def test_a_pod_that_no_longer_waits_needs_nothing() -> None:
    """It was bound or deleted."""
    world = ready()
    key = key_of(A, put(world.upper.waiting, waiting()))
    delete_observed(world.upper.waiting, "web")
    assert RULE.decide(key, world).wanted == ()


def test_each_waiting_pod_has_one_key() -> None:
    """It belongs to the first lower of the topology, which may be a different one after a reload."""
    world = ready()
    put(world.upper.waiting, waiting(), waiting(name="other"))
    assert [*sorted_names(RULE.keys(world, A))] == ["default/other", "default/web"]
    assert [*RULE.keys(world, B)] == []
    apply_topology(world, f"name: {B}")
    assert [*sorted_names(RULE.keys(world, B))] == ["default/other", "default/web"]
    assert [*RULE.keys(world, A)] == []


def test_a_waiting_pod_is_enqueued_by_its_changes_and_by_new_nodes() -> None:
    """A new virtual node may match it; a heartbeat of an existing one enqueues nothing."""
    world = ready()
    enqueued: list[tuple[str, str]] = []
    for route in RULE.watches():
        cache = getattr(world.upper, route.cache.removeprefix("upper."))
        cache.subscribe(
            lambda delta, route=route: enqueued.extend((route.cache, k.name) for k in route.keys(world, A, delta))
        )
    put(world.upper.waiting, waiting())
    node = put(world.upper.nodes, world.upper.nodes.get("", A).manifest())  # type: ignore[union-attr]
    assert enqueued == [("upper.waiting", "web")]
    put(world.upper.nodes, {**node.manifest(), "metadata": {**metadata(node.manifest()), "name": "new"}})
    assert enqueued[1:] == [("upper.nodes", "web")]
    delete_observed(world.upper.waiting, "web")
    assert len(enqueued) == 2


def test_the_response_of_the_patch_is_stored_in_the_cache_of_waiting_pods() -> None:
    """In the cache of the first lower's bound pods, it would cause a lower pod there."""
    world = ready()
    key = key_of(A, put(world.upper.waiting, waiting()))
    cache = world.cache("", UnboundPodRule().decide(key, world).wanted[0].ref.kind, key.lower, key.rule)  # type: ignore[union-attr]
    assert cache is world.upper.waiting
    cache.apply_response(stored_bytes(waiting(PREPARED), cache.version + 1))
    assert RULE.decide(key, world).wanted == ()
    assert len(world.lowers[A].upper_pods) == 0


@pytest.mark.parametrize(("enabled", "advice"), [("true", "run `tensile doctor`, which "), ("false", "set webhook.")])
def test_an_event_for_a_pod_missed_by_the_webhook_contains_advice(enabled: str, advice: str) -> None:
    """The advice depends on whether the topology enables the webhook."""
    world = ready(more=f"webhook: {{enabled: {enabled}}}\n")
    (event,) = wanted(world, waiting(PREPARED | {"nodeSelector": {"gpu": "a100"}}))
    assert event.message.partition("clusterSelector: ")[2].startswith(advice)
