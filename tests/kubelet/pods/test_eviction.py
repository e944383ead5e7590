"""Tests of the eviction of pods from an unreachable lower; the scenario tests cover which pods, and how they end."""

from typing import Any

import pytest
from worldkit import (
    A,
    add_namespace,
    add_virtual_node,
    apply_topology,
    decision_and_plan,
    make_lower_pod,
    make_upper_pod,
    make_world,
    put,
    relist_without,
)

from tensile.kubelet.pods.rule import PodRule, key_of
from tensile.objects import POD, UPPER, Ref
from tensile.reconcile.desired import Absent, EmitEvent
from tensile.reconcile.plan import Step
from tensile.reconcile.world import World

KEY = key_of(A, "default", "web")
ABOVE = Ref(UPPER, POD, "default", "web")
PATIENT = "name: lower-a, unreachable: {evictAfter: 10m}"
OTHER = "name: lower-b"
LONG = 601.0
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T11:00:00Z"}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main"}], "conditions": [READY]}


def away(silent: float = LONG, lower: str = PATIENT, more: str = "", **pod: Any) -> World:
    """Return a world in which a pod runs in lower-a, which has been unreachable for so long."""
    world = make_world(lower, OTHER, more=more)
    add_namespace(world)
    add_virtual_node(world)
    upper = make_upper_pod(status=RUNNING, **pod)
    put(world.lowers[A].upper_pods, upper)
    put(world.lowers[A].pods, make_lower_pod(upper, RUNNING))
    world.lowers[A].unreachable_seconds = silent
    return world


def steps(world: World) -> list[Step]:
    """Return the steps for the pod."""
    return list(decision_and_plan(PodRule(), KEY, world)[1].steps)


def is_evicted(world: World) -> bool:
    """Report whether the upper pod is deleted."""
    return any(step.verb == "delete" and step.ref == ABOVE for step in steps(world))


def test_an_eviction_has_the_cause_unreachable() -> None:
    """Evictions are counted by their cause; the removal of a pod that ended has none."""
    assert [step.cause for step in steps(away()) if step.verb == "delete"] == ["unreachable"]
    ended = away(0.0, deletionTimestamp="2026-03-01T11:59:00Z")
    relist_without(ended.lowers[A].pods, "web")
    assert {step.cause for step in steps(ended)} == {None}


@pytest.mark.parametrize(
    ("silent", "lower"),
    [(1e9, "name: lower-a"), (1e9, "name: lower-a, unreachable: {evictAfter: null}"), (600.0 - 1, PATIENT)],
    ids=["by default", "never", "not yet"],
)
def test_no_pod_is_evicted_without_evict_after_or_before_that_time(silent: float, lower: str) -> None:
    """Without the setting the pod is only marked, however long the cluster is unreachable."""
    world = away(silent, lower)
    assert [step.subresource for step in steps(world)] == ["status"]


def test_a_pod_is_checked_again_when_its_eviction_is_due() -> None:
    """No other change may occur until then; without a limit there is no requeue."""
    assert decision_and_plan(PodRule(), KEY, away(200.0))[0].requeue_after == 400.0
    assert decision_and_plan(PodRule(), KEY, away(599.9))[0].requeue_after == 1.0
    assert decision_and_plan(PodRule(), KEY, away(200.0, "name: lower-a"))[0].requeue_after is None


def test_no_pod_is_evicted_before_it_is_marked_unready() -> None:
    """A shorter limit counts as forty seconds, because a restarting apiserver is unreachable for some of them."""
    lower = "name: lower-a, unreachable: {evictAfter: 1s}"
    assert not is_evicted(away(40.0, lower))
    assert is_evicted(away(40.1, lower))


def test_no_pod_is_evicted_while_another_cluster_answers() -> None:
    """A wrong kubeconfig is no reason to end running pods."""
    world = away()
    world.lowers[A].is_wrong = True
    assert not is_evicted(world)


def test_no_pod_is_evicted_before_a_connection_was_attempted() -> None:
    """The way to the cluster is unknown or has just changed, so its pods are marked unready and kept."""
    world = away()
    world.lowers[A].silence_is_evidence = False
    assert [step.subresource for step in steps(world)] == ["status"]
    world.lowers[A].silence_is_evidence = True
    assert is_evicted(world)


def test_no_pod_is_evicted_while_the_credential_is_refused() -> None:
    """An unreadable or rejected credential does not mean that the pods have ended."""
    world = away()
    world.lowers[A].access_error = "upper: list Secret: denied"
    assert not is_evicted(world)
    world.lowers[A].access_error = ""
    assert is_evicted(world)


def test_no_pod_of_a_removed_lower_is_evicted() -> None:
    """The settings of a lower apply only while it is in the topology."""
    world = away()
    apply_topology(world, OTHER)
    assert not is_evicted(world)


def test_an_eviction_that_failed_is_repeated_without_another_mark() -> None:
    """The deletion is requested, by UID, and with the pod's own grace period."""
    world = away()
    upper = world.lowers[A].upper_pods.get("default", "web")
    assert upper is not None
    (mark,) = (step.patch for step in steps(world) if step.subresource == "status")
    assert mark is not None
    status = {**RUNNING, "conditions": mark.body["status"]["conditions"]}
    put(world.lowers[A].upper_pods, {**upper.manifest(), "status": status})
    decision, _ = decision_and_plan(PodRule(), KEY, world)
    event, deletion = decision.wanted
    assert isinstance(event, EmitEvent)
    assert isinstance(deletion, Absent)
    assert (deletion.uid, deletion.grace, deletion.requested) == ("Pod-web", None, True)
