"""Conditions above out of those below: who may say what, and since when."""

from typing import Any

import pytest
from podkit import EARLIER, NOW, below, pod, said
from podviewkit import condition, is_disrupted, reflected_conditions

GATE = {"conditionType": "example.com/gate"}
SCHEDULED = "tensile-kube.io/LowerScheduled"


def lower(*conditions: dict, phase: str = "Running", **meta: Any) -> dict:
    """Make a running lower pod with these conditions."""
    return below({"phase": phase, "conditions": list(conditions)}, **meta)


def reflected(upper: dict, lower_pod: dict, generation: int = 1) -> dict:
    """Return the wanted conditions that are not to be absent."""
    found = reflected_conditions(upper, lower_pod, generation)
    return {kind: one for kind, one in found.items() if one is not None}


def gated(*above: dict) -> dict:
    """Make an upper pod with a readiness gate, and these conditions."""
    return pod({"readinessGates": [GATE]}, {"conditions": list(above)})


READY_BELOW = (said("Ready", lastTransitionTime="2026-03-01T10:00:00Z"), said("ContainersReady"))


@pytest.mark.parametrize(
    "kind",
    [
        "Initialized",
        "ContainersReady",
        "PodReadyToStartContainers",
        "PodResizePending",
        "PodResizeInProgress",
        "AllContainersRestarting",
    ],
)
def test_a_kubelets_condition_is_mirrored_and_ends(kind: str) -> None:
    """What the lower kubelet says comes up, and goes when it says it no more."""
    one = said(kind, "False", reason="R", message="m")
    assert reflected(pod(), lower(one))[kind] == {key: value for key, value in one.items() if value is not None}
    assert reflected_conditions(pod(), lower(), 1)[kind] is None


def test_conditions_stand_in_a_kubelets_order() -> None:
    """`kubectl describe pod` shows them so: what is written first stands first, whatever order the lower has."""
    order = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"]
    found = reflected(pod({}, {"conditions": [said("PodScheduled")]}), lower(*map(said, reversed(order))))
    assert list(found) == order


def test_the_upper_schedulers_word_stays() -> None:
    """PodScheduled above is not named; the lower scheduler's goes under a name of its own, with its reason."""
    upper = pod(status={"conditions": [said("PodScheduled")]})
    found = reflected_conditions(upper, lower(said("PodScheduled", "False", reason="Unschedulable", message="0/3")), 1)
    assert "PodScheduled" not in found
    assert found[SCHEDULED]["type"] == SCHEDULED
    assert (found[SCHEDULED]["status"], found[SCHEDULED]["reason"], found[SCHEDULED]["message"]) == (
        "False",
        "Unschedulable",
        "0/3",
    )
    assert reflected_conditions(pod(), lower(), 1)[SCHEDULED] is None


def test_a_pod_that_came_bound_is_scheduled() -> None:
    """No scheduler said so above; a kubelet says it of every pod that it runs, and so do we, since its creation."""
    found = reflected(pod(creationTimestamp=EARLIER), lower(said("PodScheduled", "False")))
    assert found["PodScheduled"] == {"type": "PodScheduled", "status": "True", "lastTransitionTime": EARLIER}
    assert reflected(pod(), lower())["PodScheduled"] == {"type": "PodScheduled", "status": "True"}


def test_types_of_others_are_not_named() -> None:
    """A gate's condition, or anything an upper controller sets, is not ours to change, whoever sets it below."""
    found = reflected_conditions(gated(said("example.com/gate")), lower(said("example.com/gate", "False")), 1)
    assert "example.com/gate" not in found
    assert "DisruptionTarget" not in found


def test_mirrored_false_is_taken_away() -> None:
    """A lower pod speaks for itself: that there was none yet is over."""
    assert reflected_conditions(pod(), lower(), 1)["tensile-kube.io/Mirrored"] is None


CONTAINERS_NOT = said("ContainersReady", "False", reason="ContainersNotReady")
NODE_NOT = said("Ready", "False", reason="NodeNotReady")
CLOSED = {
    "status": "False",
    "reason": "ReadinessGatesNotReady",
    "message": 'readiness gate "example.com/gate" is not "True"',
}


@pytest.mark.parametrize(
    ("upper", "below", "found"),
    [
        (pod(), READY_BELOW, {"status": "True", "lastTransitionTime": "2026-03-01T10:00:00Z"}),
        (pod(), (NODE_NOT,), {"status": "False", "reason": "NodeNotReady"}),
        (pod(), (NODE_NOT, said("ContainersReady")), {"status": "False", "reason": "NodeNotReady"}),
        (pod(), (NODE_NOT, CONTAINERS_NOT), {"status": "False", "reason": "NodeNotReady"}),
        (pod(), (said("Ready"), CONTAINERS_NOT), {"status": "False", "reason": "ContainersNotReady"}),
        (pod(), (CONTAINERS_NOT,), {"status": "False", "reason": "ContainersNotReady"}),
        (pod(), (said("ContainersReady"),), {"status": "True"}),
        (gated(), READY_BELOW, CLOSED),
        (gated(said("example.com/gate", "False")), READY_BELOW, CLOSED),
        (gated(said("example.com/gate", "Unknown")), READY_BELOW, CLOSED),
        (gated(said("example.com/gate")), READY_BELOW, {"status": "True", "lastTransitionTime": EARLIER}),
        (gated(said("example.com/gate")), (CONTAINERS_NOT,), {"status": "False", "reason": "ContainersNotReady"}),
    ],
    ids=[
        "the lower kubelet's own",
        "its own no",
        "the node fails, which leaves the containers ready",
        "its own reason before that of its containers",
        "no more than its containers",
        "containers alone that are not",
        "containers alone that are",
        "a gate that nobody opened",
        "a closed gate",
        "a gate of which nothing is known",
        "an open gate, since the later of the two",
        "an open gate does not make it ready",
    ],
)
def test_whether_a_pod_is_ready(upper: dict, below: tuple[dict, ...], found: dict) -> None:
    """By the lower kubelet, no more than its containers are, and if every gate above is open."""
    ready = reflected(upper, lower(*below))["Ready"]
    assert ready.items() >= {"type": "Ready", **found}.items()
    assert ("reason" in ready) is (ready["status"] == "False")


def test_without_a_word_below_nothing_is_said_of_readiness() -> None:
    """The lower kubelet has not seen the pod yet."""
    assert "Ready" not in reflected(pod(), lower())


def test_every_closed_gate_is_named() -> None:
    """A pod may wait for several; one that is open is not named."""
    spec = {"readinessGates": [{"conditionType": kind} for kind in ("a/1", "a/2", "a/3")]}
    ready = reflected(pod(spec, {"conditions": [said("a/2")]}), lower(*READY_BELOW))["Ready"]
    assert ready["message"] == 'readiness gate "a/1" is not "True", readiness gate "a/3" is not "True"'


def test_a_gate_that_opened_before_the_containers_were_ready_does_not_count_later() -> None:
    """Ready since the later of the two; a gate without a time leaves the other one's."""
    late = said("Ready", lastTransitionTime="2026-03-01T11:45:00Z")
    timeless = {"type": "example.com/gate", "status": "True"}
    for gate in (said("example.com/gate"), timeless):
        ready = reflected(gated(gate), lower(late, said("ContainersReady")))["Ready"]
        assert (ready["status"], ready["lastTransitionTime"]) == ("True", "2026-03-01T11:45:00Z")


def test_times_that_nobody_gave_are_not_asked_for() -> None:
    """Neither the gate nor the lower condition has to have one."""
    ready = reflected(gated({"type": "example.com/gate", "status": "True"}), lower({"type": "Ready", "status": "True"}))
    assert ready["Ready"] == {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    ("known", "gate", "since"),
    [
        ("True", "True", "2026-01-01T00:00:00Z"),
        ("False", "False", "2026-01-01T00:00:00Z"),
        ("True", "False", EARLIER),
    ],
)
def test_the_time_of_a_gated_pod_moves_only_with_its_status(known: str, gate: str, since: str) -> None:
    """A pod that was ready and is not any more is unready since its gate closed; else lastTransitionTime stays."""
    before = said("Ready", known, lastTransitionTime="2026-01-01T00:00:00Z")
    ready = reflected(gated(said("example.com/gate", gate), before), lower(*READY_BELOW))["Ready"]
    assert (ready["status"], ready["lastTransitionTime"]) == (gate, since)


@pytest.mark.parametrize(("phase", "reason"), [("Succeeded", "PodCompleted"), ("Failed", "PodFailed")])
def test_a_pod_that_ended_is_not_ready(phase: str, reason: str) -> None:
    """A last Ready=True of a slow kubelet turns false; one that is false keeps its reason."""
    said_more = [{**one, "message": "all is well"} for one in READY_BELOW]
    found = reflected(pod(), lower(*said_more, phase=phase))
    for kind in ("Ready", "ContainersReady"):
        assert (found[kind]["type"], found[kind]["status"], found[kind]["reason"]) == (kind, "False", reason)
        assert "message" not in found[kind]
    for kind in ("Ready", "ContainersReady"):
        own = said(kind, "False", reason="Own")
        assert reflected(pod(), lower(own, phase=phase))[kind]["reason"] == "Own"


DELETED = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}


def test_a_pod_deleted_below_by_others_is_unready_and_disrupted() -> None:
    """From the moment of the deletion, which is the deletionTimestamp less the grace period."""
    found = reflected(pod(), lower(*READY_BELOW, **DELETED))
    for kind, status in (("Ready", "False"), ("DisruptionTarget", "True")):
        assert (found[kind]["status"], found[kind]["reason"]) == (status, "LowerPodDeleted")
        assert found[kind]["lastTransitionTime"] == "2026-03-01T12:00:00Z"
        assert (found[kind]["type"], "is deleting the pod" in found[kind]["message"]) == (kind, True)
    assert found["ContainersReady"]["status"] == "True"


def test_a_deletion_without_grace_is_since_its_time() -> None:
    """An absent grace period is none."""
    found = reflected(pod(), lower(*READY_BELOW, deletionTimestamp="2026-03-01T12:00:30Z"))
    assert found["Ready"]["lastTransitionTime"] == "2026-03-01T12:00:30Z"


def test_a_disrupted_pod_that_was_not_ready_keeps_its_reason() -> None:
    """It was unready for a reason of its own, since then."""
    no = said("Ready", "False", reason="ContainersNotReady")
    assert reflected(pod(), lower(no, **DELETED))["Ready"]["reason"] == "ContainersNotReady"


def test_a_disruption_that_is_said_below_is_copied() -> None:
    """An eviction's own reason is better than ours."""
    evicted = said("DisruptionTarget", reason="EvictionByEvictionAPI")
    assert reflected(pod(), lower(evicted, **DELETED))["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"


def test_a_disruption_that_is_said_above_stays() -> None:
    """Preemption above already said why; it is not written over."""
    upper = pod(status={"conditions": [said("DisruptionTarget", reason="PreemptionByScheduler")]})
    assert "DisruptionTarget" not in reflected(upper, lower(*READY_BELOW, **DELETED))
    denied = pod(status={"conditions": [said("DisruptionTarget", "False")]})
    assert reflected(denied, lower(*READY_BELOW, **DELETED))["DisruptionTarget"]["status"] == "True"


@pytest.mark.parametrize("meta", [{}, {"deletionTimestamp": NOW}])
def test_an_eviction_above_is_not_taken_back_by_what_is_said_below(meta: dict[str, Any]) -> None:
    """Below the pod was not evicted; above it was, and only so is it known that it has to be made again."""
    upper = pod(status={"conditions": [said("DisruptionTarget", reason="EvictionByEvictionAPI")]}, **meta)
    no = said("DisruptionTarget", "False", reason="PreemptionByScheduler")
    assert "DisruptionTarget" not in reflected(upper, lower(*READY_BELOW, no))
    yes = said("DisruptionTarget", reason="PreemptionByScheduler")
    assert reflected(upper, lower(*READY_BELOW, yes))["DisruptionTarget"]["reason"] == "PreemptionByScheduler"
    assert reflected(pod(**meta), lower(*READY_BELOW, no))["DisruptionTarget"]["status"] == "False"


def test_a_pod_that_the_upper_deleted_is_not_disrupted() -> None:
    """Its lower pod goes because it was asked to; it stays ready until its containers stop."""
    upper = pod(deletionTimestamp=NOW)
    assert not is_disrupted(upper, lower(*READY_BELOW, **DELETED))
    assert reflected(upper, lower(*READY_BELOW, **DELETED))["Ready"]["status"] == "True"


def test_a_pod_that_ended_is_not_disrupted_by_its_removal() -> None:
    """Somebody clears finished pods away below: that is no disruption."""
    assert not is_disrupted(pod(), lower(phase="Succeeded", **DELETED))
    assert is_disrupted(pod(), lower(**DELETED))
    assert not is_disrupted(pod(), lower())


def test_a_conditions_generation_is_translated() -> None:
    """The lower number never comes up: it is the upper's, or nothing where the kubelet is behind."""
    seen = said("Initialized", observedGeneration=5)
    assert reflected(pod(), lower(seen, generation=5), 9)["Initialized"]["observedGeneration"] == 9
    assert "observedGeneration" not in reflected(pod(), lower(seen, generation=6), 9)["Initialized"]
    assert "observedGeneration" not in reflected(pod(), lower(said("Initialized"), generation=5), 9)["Initialized"]


def test_a_gated_ready_carries_the_generation_too() -> None:
    """The computed condition is about the same generation as what it is computed from."""
    ready = said("Ready", observedGeneration=5)
    assert reflected(gated(), lower(ready, generation=5), 9)["Ready"]["observedGeneration"] == 9


def test_a_condition_of_ours_keeps_its_time_while_its_status_lasts() -> None:
    """A new reason is no transition; a new status is."""
    upper = pod(status={"conditions": [said("X", "False", reason="Old")]})
    made = condition(upper, "X", "False", reason="New", message="", now=NOW)
    assert made == {"type": "X", "status": "False", "reason": "New", "lastTransitionTime": EARLIER}
    assert condition(upper, "X", "True", reason="", message="m", now=NOW)["lastTransitionTime"] == NOW
    assert condition(pod(), "X", "True", reason="", message="m", now=NOW)["lastTransitionTime"] == NOW
