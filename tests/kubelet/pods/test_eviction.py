"""When pods are evicted from a lower cluster that is out of reach, and when not; scenarios have which, and the end."""

from typing import Any

import pytest
from worldkit import A, decided, home, lose, put, raised, reload, twin, upper_pod, world

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
    """Make a world where a pod runs in lower-a, which has not answered for so long."""
    here = world(lower, OTHER, more=more)
    home(here)
    raised(here)
    upper = upper_pod(status=RUNNING, **pod)
    put(here.lowers[A].upper_pods, upper)
    put(here.lowers[A].pods, twin(upper, RUNNING))
    here.lowers[A].unreachable_seconds = silent
    return here


def steps(here: World) -> list[Step]:
    """Return what is to be done about the pod."""
    return list(decided(PodRule(), KEY, here)[1].steps)


def is_evicted(here: World) -> bool:
    """Report whether the pod is deleted above."""
    return any(step.verb == "delete" and step.ref == ABOVE for step in steps(here))


def test_an_eviction_has_its_cause() -> None:
    """It is counted by that; the removal of a pod that ended has none."""
    assert [step.cause for step in steps(away()) if step.verb == "delete"] == ["unreachable"]
    ended = away(0.0, deletionTimestamp="2026-03-01T11:59:00Z")
    lose(ended.lowers[A].pods, "web")
    assert {step.cause for step in steps(ended)} == {None}


@pytest.mark.parametrize(
    ("silent", "lower"),
    [(1e9, "name: lower-a"), (1e9, "name: lower-a, unreachable: {evictAfter: null}"), (600.0 - 1, PATIENT)],
    ids=["by default", "never", "not yet"],
)
def test_nothing_is_evicted_unless_the_topology_says_so(silent: float, lower: str) -> None:
    """However long the cluster is away."""
    here = away(silent, lower)
    assert [step.subresource for step in steps(here)] == ["status"]


def test_what_is_not_due_yet_is_looked_at_again_when_it_is() -> None:
    """Nothing else may happen until then; without a limit there is no other look."""
    assert decided(PodRule(), KEY, away(200.0))[0].requeue_after == 400.0
    assert decided(PodRule(), KEY, away(599.9))[0].requeue_after == 1.0
    assert decided(PodRule(), KEY, away(200.0, "name: lower-a"))[0].requeue_after is None


def test_nobody_is_evicted_who_is_not_called_unready_yet() -> None:
    """A limit below forty seconds is forty seconds: an apiserver that starts anew is away for some of them."""
    lower = "name: lower-a, unreachable: {evictAfter: 1s}"
    assert not is_evicted(away(40.0, lower))
    assert is_evicted(away(40.1, lower))


def test_another_cluster_in_its_place_evicts_nobody() -> None:
    """A wrong kubeconfig is no reason to end what runs."""
    here = away()
    here.lowers[A].is_wrong = True
    assert not is_evicted(here)


def test_a_cluster_that_was_hardly_asked_evicts_nobody() -> None:
    """Nobody knows how to reach it yet, or that has just become another way: its pods are unready, and stay."""
    here = away()
    here.lowers[A].was_attempted = False
    assert [step.subresource for step in steps(here)] == ["status"]
    here.lowers[A].was_attempted = True
    assert is_evicted(here)


def test_a_way_there_that_somebody_has_to_put_right_evicts_nobody() -> None:
    """Credentials that cannot be read, or are not accepted, are no sign that pods have ended."""
    here = away()
    here.lowers[A].refusal = "upper: list Secret: denied"
    assert not is_evicted(here)
    here.lowers[A].refusal = ""
    assert is_evicted(here)


def test_a_lower_that_left_the_topology_evicts_nobody() -> None:
    """What was written there does not hold any more."""
    here = away()
    reload(here, OTHER)
    assert not is_evicted(here)


def test_what_is_marked_already_is_not_marked_again() -> None:
    """A deletion that did not come through is tried again: by its UID, in its own time, as the topology asks for."""
    here = away()
    upper = here.lowers[A].upper_pods.get("default", "web")
    assert upper is not None
    (mark,) = (step.patch for step in steps(here) if step.subresource == "status")
    assert mark is not None
    status = {**RUNNING, "conditions": mark.body["status"]["conditions"]}
    put(here.lowers[A].upper_pods, {**upper.manifest(), "status": status})
    decision, _ = decided(PodRule(), KEY, here)
    told, deletion = decision.wanted
    assert isinstance(told, EmitEvent)
    assert isinstance(deletion, Absent)
    assert (deletion.uid, deletion.grace, deletion.requested) == ("Pod-web", None, True)
