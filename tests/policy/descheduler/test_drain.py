"""Which pods leave a lower cluster that is drained, when, and what is said of those that stay."""

from typing import Any

import pytest
from stagekit import Stage
from virtualtime import in_virtual_time
from worldkit import A, B, decided, home, lower_node, names, put, raised, reload, space, twin, upper_pod, world

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
    """Make a world where a pod runs in lower-a; its node takes no new ones where it is closed."""
    here = world(lower, OTHER)
    home(here)
    node = raised(here).manifest()
    put(here.upper.nodes, {**node, "spec": {**node["spec"], "unschedulable": closed}})
    upper = upper_pod(status=status or {"phase": "Running"}, **{"ownerReferences": MADE, **pod})
    put(here.lowers[A].upper_pods, upper)
    put(here.lowers[A].pods, twin(upper))
    return here


def steps(here: World) -> list[Step]:
    """Return what is to be done about the pod."""
    return list(decided(DrainRule(), KEY, here)[1].steps)


def problem(here: World) -> Problem:
    """Return what keeps the pod."""
    found = decided(DrainRule(), KEY, here)[1].problem
    assert found is not None
    return found


def test_a_pod_is_evicted_above_with_its_own_time() -> None:
    """By its UID, asked for by the topology, through the subresource that heeds disruption budgets."""
    (step,) = steps(drained())
    assert (step.verb, step.ref, step.subresource, step.uid) == ("delete", ABOVE, "eviction", "Pod-web")
    assert step.cause == "drained"
    assert (step.grace, step.requested, step.in_plan) == (None, True, True)
    assert step.reason == "lower cluster lower-a is being drained"


@pytest.mark.parametrize("mode", ["none", "cordon"])
def test_nobody_leaves_without_being_asked_to(mode: str) -> None:
    """A cordon keeps new pods off and lets the others be."""
    here = drained(f"name: {A}, maintenance: {mode}")
    assert not steps(here)
    assert not list(DrainRule().keys(here, A))


def test_nobody_leaves_before_the_node_takes_no_new_pods() -> None:
    """What is made in its place would come back to it."""
    assert not steps(drained(closed=False))


def test_nobody_leaves_a_node_that_is_not_ours() -> None:
    """Its pods are no concern of ours."""
    here = drained()
    node = raised(here).manifest()
    labels = {**node["metadata"]["labels"], "tensile-kube.io/owner": "somebody"}
    put(here.upper.nodes, {**node, "metadata": {**node["metadata"], "labels": labels}})
    assert not steps(here)


def test_who_is_leaving_is_not_asked_again() -> None:
    """It is Terminating until its lower pod is gone."""
    assert not steps(drained(deletionTimestamp="2026-03-01T12:00:00Z"))


@pytest.mark.parametrize("owners", [[], [{**MADE[0], "controller": False}]])
def test_a_pod_that_nobody_would_make_again_is_not_for_this_rule(owners: list[Manifest]) -> None:
    """Its object is all that there is of it: an owner that is no controller makes nothing."""
    here = drained(ownerReferences=owners)
    assert decided(DrainRule(), KEY, here) == (Decision(), Plan((), None))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_leaves_whoever_made_it(phase: str) -> None:
    """It holds the node open, and runs nowhere any more."""
    assert steps(drained(ownerReferences=[], status={"phase": phase}))


def test_a_pod_of_a_daemon_set_stays() -> None:
    """Its DaemonSet takes no notice of a closed node."""
    here = drained(ownerReferences=DAEMON, labels={"virtual-pod": "true"})
    assert not steps(here)
    assert problem(here).reason == "ManagedByDaemonSet"


def test_a_pod_of_a_daemon_set_that_is_not_mirrored_is_no_trouble() -> None:
    """It keeps nothing open, so nobody has to hear of it."""
    assert decided(DrainRule(), KEY, drained(ownerReferences=DAEMON, status={"phase": "Pending"})) == (
        Decision(),
        Plan((), None),
    )


def test_the_keys_are_the_pods_of_the_node_that_is_drained() -> None:
    """Those of the other lower are not asked about."""
    here = drained()
    put(here.lowers[B].upper_pods, upper_pod("other", {"nodeName": B}, ownerReferences=MADE))
    assert [*names(DrainRule().keys(here, A)), *names(DrainRule().keys(here, B))] == ["default/web"]


def test_what_was_said_is_looked_at_again_when_nothing_is_drained_any_more() -> None:
    """So that it is not said for ever."""
    here = drained(ownerReferences=DAEMON, labels={"virtual-pod": "true"})
    here.problems[KEY] = problem(here)
    reload(here, f"name: {A}", OTHER)
    assert list(DrainRule().keys(here, A)) == [KEY]
    assert decided(DrainRule(), KEY, here)[1].problem is None


def laid_out(*pods: Manifest) -> Stage:
    """Set a stage where lower-a is drained, with pods above on its node."""
    stage = Stage(DRAINED, OTHER)
    stage.raise_nodes()
    stage.clusters[UPPER].place(NAMESPACE, space("default"))
    for name in (A, B):
        stage.clusters[name].place(NODE, lower_node())
    for pod in pods:
        stage.clusters[UPPER].place(POD, pod)
    stage.start()
    return stage


@in_virtual_time
async def test_a_lower_that_is_drained_comes_to_be_empty() -> None:
    """The pods below end first, then the objects above go; what may not leave is left, with its lower pod."""
    pods = [upper_pod(name, ownerReferences=MADE) for name in ("one", "two")]
    stage = laid_out(*pods, upper_pod("agent", ownerReferences=DAEMON, labels={"virtual-pod": "true"}))
    await stage.calm()
    left = {name: [pod["metadata"]["name"] for pod in await stage.listed(name)] for name in (UPPER, A)}
    assert left == {UPPER: ["agent"], A: ["agent"]}
    assert stage.world.problems[drain_key(A, "default", "agent")].reason == "ManagedByDaemonSet"
    await stage.stop()
