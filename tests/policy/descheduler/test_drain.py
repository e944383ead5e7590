"""Tests of draining a lower cluster: which pods are evicted, when, and what is reported of those that stay."""

from typing import Any

import pytest
from stagekit import EngineSimulation
from virtualtime import in_virtual_time
from worldkit import (
    A,
    B,
    add_namespace,
    add_virtual_node,
    apply_topology,
    decision_and_plan,
    make_lower_node,
    make_lower_pod,
    make_namespace,
    make_upper_pod,
    make_world,
    put,
    sorted_names,
)

from tensile.objects import NAMESPACE, NODE, POD, UPPER, Manifest, Ref
from tensile.policy.descheduler.rule import DrainRule, drain_key
from tensile.reconcile.desired import Decision
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import Problem, World

DRAINED, OTHER = f"name: {A}, maintenance: drain", f"name: {B}"
KEY = drain_key(A, "default", "web")
ABOVE = Ref(UPPER, POD, "default", "web")
MADE = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}]
DAEMON = [{**MADE[0], "kind": "DaemonSet"}]


def drained(lower: str = DRAINED, *, closed: bool = True, status: Manifest | None = None, **pod: Any) -> World:
    """Return a world with a pod in lower-a, whose node is unschedulable if `closed`."""
    world = make_world(lower, OTHER)
    add_namespace(world)
    node = add_virtual_node(world).manifest()
    put(world.upper.nodes, {**node, "spec": {**node["spec"], "unschedulable": closed}})
    upper = make_upper_pod(status=status or {"phase": "Running"}, **{"ownerReferences": MADE, **pod})
    put(world.lowers[A].upper_pods, upper)
    put(world.lowers[A].pods, make_lower_pod(upper))
    return world


def steps(world: World) -> list[Step]:
    """Return the steps for the pod."""
    return list(decision_and_plan(DrainRule(), KEY, world)[1].steps)


def problem(world: World) -> Problem:
    """Return the problem that keeps the pod."""
    found = decision_and_plan(DrainRule(), KEY, world)[1].problem
    assert found is not None
    return found


def test_a_drain_evicts_an_upper_pod_with_its_own_grace_period() -> None:
    """The eviction has the pod's UID, is requested by the topology, and respects disruption budgets."""
    (step,) = steps(drained())
    assert (step.verb, step.ref, step.subresource, step.uid) == ("delete", ABOVE, "eviction", "Pod-web")
    assert step.cause == "drained"
    assert (step.grace, step.requested, step.in_plan) == (None, True, True)
    assert step.reason == "lower cluster lower-a is being drained"


@pytest.mark.parametrize("mode", ["none", "cordon"])
def test_no_pod_is_evicted_without_maintenance_drain(mode: str) -> None:
    """A cordon only keeps new pods off the node."""
    world = drained(f"name: {A}, maintenance: {mode}")
    assert not steps(world)
    assert not list(DrainRule().keys(world, A))


def test_no_pod_is_evicted_before_the_node_is_unschedulable() -> None:
    """Otherwise its replacement could be bound to the same node."""
    assert not steps(drained(closed=False))


def test_no_pod_is_evicted_from_a_node_of_another_owner() -> None:
    """The pods of such a node do not belong to this topology."""
    world = drained()
    node = add_virtual_node(world).manifest()
    labels = {**node["metadata"]["labels"], "tensile-kube.io/owner": "somebody"}
    put(world.upper.nodes, {**node, "metadata": {**node["metadata"], "labels": labels}})
    assert not steps(world)


def test_a_terminating_pod_is_not_evicted_again() -> None:
    """It is Terminating until its lower pod is deleted."""
    assert not steps(drained(deletionTimestamp="2026-03-01T12:00:00Z"))


@pytest.mark.parametrize("owners", [[], [{**MADE[0], "controller": False}]])
def test_a_bare_pod_is_not_handled_by_the_drain_rule(owners: list[Manifest]) -> None:
    """No controller would create it again: an owner that is no controller does not count."""
    world = drained(ownerReferences=owners)
    assert decision_and_plan(DrainRule(), KEY, world) == (Decision(), Plan((), None))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminated_pod_is_evicted_with_or_without_a_controller(phase: str) -> None:
    """It keeps the drain from finishing, and does not run any more."""
    assert steps(drained(ownerReferences=[], status={"phase": phase}))


def test_a_pod_of_a_daemonset_is_not_evicted() -> None:
    """Its DaemonSet ignores that a node is unschedulable, so the drain reports it."""
    world = drained(ownerReferences=DAEMON, labels={"virtual-pod": "true"})
    assert not steps(world)
    assert problem(world).reason == "ManagedByDaemonSet"


def test_a_daemonset_pod_that_is_not_mirrored_is_not_reported() -> None:
    """It has no lower pod, so it does not keep the drain from finishing."""
    assert decision_and_plan(DrainRule(), KEY, drained(ownerReferences=DAEMON, status={"phase": "Pending"})) == (
        Decision(),
        Plan((), None),
    )


def test_the_drain_rule_has_keys_only_for_pods_of_a_drained_lower() -> None:
    """Pods of the other lower cluster have no key."""
    world = drained()
    put(world.lowers[B].upper_pods, make_upper_pod("other", {"nodeName": B}, ownerReferences=MADE))
    assert [*sorted_names(DrainRule().keys(world, A)), *sorted_names(DrainRule().keys(world, B))] == ["default/web"]


def test_a_reported_problem_is_cleared_after_the_drain_ends() -> None:
    """Its key is decided again, so that the problem is not reported indefinitely."""
    world = drained(ownerReferences=DAEMON, labels={"virtual-pod": "true"})
    world.problems[KEY] = problem(world)
    apply_topology(world, f"name: {A}", OTHER)
    assert list(DrainRule().keys(world, A)) == [KEY]
    assert decision_and_plan(DrainRule(), KEY, world)[1].problem is None


def laid_out(*pods: Manifest) -> EngineSimulation:
    """Start a simulation in which lower-a is drained and its virtual node has these upper pods."""
    simulation = EngineSimulation(DRAINED, OTHER)
    simulation.create_nodes()
    simulation.clusters[UPPER].place(NAMESPACE, make_namespace("default"))
    for name in (A, B):
        simulation.clusters[name].place(NODE, make_lower_node())
    for pod in pods:
        simulation.clusters[UPPER].place(POD, pod)
    simulation.start()
    return simulation


@in_virtual_time
async def test_a_drained_lower_becomes_empty_except_for_daemonset_pods() -> None:
    """The lower pods terminate first, then the upper pods are removed; the pod of a DaemonSet keeps its lower pod."""
    pods = [make_upper_pod(name, ownerReferences=MADE) for name in ("one", "two")]
    simulation = laid_out(*pods, make_upper_pod("agent", ownerReferences=DAEMON, labels={"virtual-pod": "true"}))
    await simulation.advance()
    left = {name: [pod["metadata"]["name"] for pod in await simulation.listed(name)] for name in (UPPER, A)}
    assert left == {UPPER: ["agent"], A: ["agent"]}
    assert simulation.world.problems[drain_key(A, "default", "agent")].reason == "ManagedByDaemonSet"
    await simulation.stop()
