"""Tests of the upper pod's conditions that are computed from the lower pod: which types, and since when."""

from typing import Any

import pytest
from podkit import EARLIER, NOW, make_lower_pod, pod, stored_condition
from podviewkit import condition, is_disrupted, reflected_conditions

GATE = {"conditionType": "example.com/gate"}
SCHEDULED = "tensile-kube.io/LowerScheduled"


def lower(*conditions: dict, phase: str = "Running", **meta: Any) -> dict:
    """Return a running lower pod with these conditions."""
    return make_lower_pod({"phase": phase, "conditions": list(conditions)}, **meta)


def reflected(upper: dict, lower_pod: dict, generation: int = 1) -> dict:
    """Return the desired conditions, without those that must be absent."""
    found = reflected_conditions(upper, lower_pod, generation)
    return {kind: one for kind, one in found.items() if one is not None}


def gated(*above: dict) -> dict:
    """Return an upper pod with a readiness gate, and these conditions."""
    return pod({"readinessGates": [GATE]}, {"conditions": list(above)})


READY_BELOW = (
    stored_condition("Ready", lastTransitionTime="2026-03-01T10:00:00Z"),
    stored_condition("ContainersReady"),
)


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
def test_a_lower_kubelets_condition_is_mirrored_and_removed_when_it_ends(kind: str) -> None:
    """A condition that the lower pod no longer has must be absent from the upper pod."""
    one = stored_condition(kind, "False", reason="R", message="m")
    assert reflected(pod(), lower(one))[kind] == {key: value for key, value in one.items() if value is not None}
    assert reflected_conditions(pod(), lower(), 1)[kind] is None


def test_conditions_are_in_the_order_of_a_kubelet() -> None:
    """`kubectl describe pod` shows them in the order of the first write, whatever the lower pod's order is."""
    order = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"]
    found = reflected(
        pod({}, {"conditions": [stored_condition("PodScheduled")]}), lower(*map(stored_condition, reversed(order)))
    )
    assert list(found) == order


def test_the_upper_schedulers_pod_scheduled_condition_is_kept() -> None:
    """The lower scheduler's condition has its own type in the upper pod, with its reason and message."""
    upper = pod(status={"conditions": [stored_condition("PodScheduled")]})
    found = reflected_conditions(
        upper, lower(stored_condition("PodScheduled", "False", reason="Unschedulable", message="0/3")), 1
    )
    assert "PodScheduled" not in found
    assert found[SCHEDULED]["type"] == SCHEDULED
    assert (found[SCHEDULED]["status"], found[SCHEDULED]["reason"], found[SCHEDULED]["message"]) == (
        "False",
        "Unschedulable",
        "0/3",
    )
    assert reflected_conditions(pod(), lower(), 1)[SCHEDULED] is None


def test_a_pod_created_with_a_node_name_is_scheduled_since_its_creation() -> None:
    """No upper scheduler set the condition, but a kubelet sets it for every pod that it runs."""
    found = reflected(pod(creationTimestamp=EARLIER), lower(stored_condition("PodScheduled", "False")))
    assert found["PodScheduled"] == {"type": "PodScheduled", "status": "True", "lastTransitionTime": EARLIER}
    assert reflected(pod(), lower())["PodScheduled"] == {"type": "PodScheduled", "status": "True"}


def test_condition_types_of_other_writers_are_not_changed() -> None:
    """The condition of a readiness gate belongs to an upper controller, even if the lower pod has one of that type."""
    found = reflected_conditions(
        gated(stored_condition("example.com/gate")), lower(stored_condition("example.com/gate", "False")), 1
    )
    assert "example.com/gate" not in found
    assert "DisruptionTarget" not in found


def test_the_condition_mirrored_false_is_removed_when_a_lower_pod_exists() -> None:
    """A lower pod has conditions of its own, so the earlier problem is over."""
    assert reflected_conditions(pod(), lower(), 1)["tensile-kube.io/Mirrored"] is None


CONTAINERS_NOT = stored_condition("ContainersReady", "False", reason="ContainersNotReady")
NODE_NOT = stored_condition("Ready", "False", reason="NodeNotReady")
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
        (pod(), (NODE_NOT, stored_condition("ContainersReady")), {"status": "False", "reason": "NodeNotReady"}),
        (pod(), (NODE_NOT, CONTAINERS_NOT), {"status": "False", "reason": "NodeNotReady"}),
        (pod(), (stored_condition("Ready"), CONTAINERS_NOT), {"status": "False", "reason": "ContainersNotReady"}),
        (pod(), (CONTAINERS_NOT,), {"status": "False", "reason": "ContainersNotReady"}),
        (pod(), (stored_condition("ContainersReady"),), {"status": "True"}),
        (gated(), READY_BELOW, CLOSED),
        (gated(stored_condition("example.com/gate", "False")), READY_BELOW, CLOSED),
        (gated(stored_condition("example.com/gate", "Unknown")), READY_BELOW, CLOSED),
        (gated(stored_condition("example.com/gate")), READY_BELOW, {"status": "True", "lastTransitionTime": EARLIER}),
        (
            gated(stored_condition("example.com/gate")),
            (CONTAINERS_NOT,),
            {"status": "False", "reason": "ContainersNotReady"},
        ),
    ],
    ids=[
        "the lower kubelet's True",
        "the lower kubelet's False",
        "the node fails and the containers are ready",
        "the pod's reason before that of its containers",
        "not ready because its containers are not",
        "only ContainersReady, False",
        "only ContainersReady, True",
        "a gate without a condition",
        "a closed gate",
        "an Unknown gate",
        "an open gate, with the later of the two times",
        "an open gate of an unready pod",
    ],
)
def test_a_pod_is_ready_if_its_lower_pod_is_and_every_gate_is_open(
    upper: dict, below: tuple[dict, ...], found: dict
) -> None:
    """It is also not ready if its containers are not; an unready pod has a reason."""
    ready = reflected(upper, lower(*below))["Ready"]
    assert ready.items() >= {"type": "Ready", **found}.items()
    assert ("reason" in ready) is (ready["status"] == "False")


def test_the_ready_condition_is_not_set_without_lower_conditions() -> None:
    """The lower kubelet has not observed the pod yet."""
    assert "Ready" not in reflected(pod(), lower())


def test_every_closed_readiness_gate_is_named_in_the_message() -> None:
    """An open gate is not named."""
    spec = {"readinessGates": [{"conditionType": kind} for kind in ("a/1", "a/2", "a/3")]}
    ready = reflected(pod(spec, {"conditions": [stored_condition("a/2")]}), lower(*READY_BELOW))["Ready"]
    assert ready["message"] == 'readiness gate "a/1" is not "True", readiness gate "a/3" is not "True"'


def test_a_gated_pod_is_ready_since_the_later_of_both_times() -> None:
    """If the gate has no time, the time of the lower condition is used."""
    late = stored_condition("Ready", lastTransitionTime="2026-03-01T11:45:00Z")
    timeless = {"type": "example.com/gate", "status": "True"}
    for gate in (stored_condition("example.com/gate"), timeless):
        ready = reflected(gated(gate), lower(late, stored_condition("ContainersReady")))["Ready"]
        assert (ready["status"], ready["lastTransitionTime"]) == ("True", "2026-03-01T11:45:00Z")


def test_conditions_without_times_are_accepted() -> None:
    """Neither the gate nor the lower condition needs a transition time."""
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
def test_the_transition_time_of_a_gated_pod_changes_only_with_its_status(known: str, gate: str, since: str) -> None:
    """A pod that was ready is unready since its gate closed; otherwise its time is kept."""
    before = stored_condition("Ready", known, lastTransitionTime="2026-01-01T00:00:00Z")
    ready = reflected(gated(stored_condition("example.com/gate", gate), before), lower(*READY_BELOW))["Ready"]
    assert (ready["status"], ready["lastTransitionTime"]) == (gate, since)


@pytest.mark.parametrize(("phase", "reason"), [("Succeeded", "PodCompleted"), ("Failed", "PodFailed")])
def test_a_pod_that_ended_is_not_ready(phase: str, reason: str) -> None:
    """Ready=True of a slow kubelet becomes False; a condition that is False already keeps its reason."""
    said_more = [{**one, "message": "all is well"} for one in READY_BELOW]
    found = reflected(pod(), lower(*said_more, phase=phase))
    for kind in ("Ready", "ContainersReady"):
        assert (found[kind]["type"], found[kind]["status"], found[kind]["reason"]) == (kind, "False", reason)
        assert "message" not in found[kind]
    for kind in ("Ready", "ContainersReady"):
        own = stored_condition(kind, "False", reason="Own")
        assert reflected(pod(), lower(own, phase=phase))[kind]["reason"] == "Own"


DELETED = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}


def test_a_pod_deleted_in_the_lower_by_another_client_is_unready_and_disrupted() -> None:
    """The time is that of the deletion: the deletionTimestamp less the grace period."""
    found = reflected(pod(), lower(*READY_BELOW, **DELETED))
    for kind, status in (("Ready", "False"), ("DisruptionTarget", "True")):
        assert (found[kind]["status"], found[kind]["reason"]) == (status, "LowerPodDeleted")
        assert found[kind]["lastTransitionTime"] == "2026-03-01T12:00:00Z"
        assert (found[kind]["type"], "is deleting the pod" in found[kind]["message"]) == (kind, True)
    assert found["ContainersReady"]["status"] == "True"


def test_a_deletion_without_a_grace_period_has_the_time_of_its_timestamp() -> None:
    """Without a grace period nothing is subtracted from the deletionTimestamp."""
    found = reflected(pod(), lower(*READY_BELOW, deletionTimestamp="2026-03-01T12:00:30Z"))
    assert found["Ready"]["lastTransitionTime"] == "2026-03-01T12:00:30Z"


def test_a_disrupted_pod_that_was_not_ready_keeps_its_reason() -> None:
    """It was unready for another reason before the deletion."""
    no = stored_condition("Ready", "False", reason="ContainersNotReady")
    assert reflected(pod(), lower(no, **DELETED))["Ready"]["reason"] == "ContainersNotReady"


def test_a_disruption_target_of_the_lower_pod_is_copied() -> None:
    """The reason of an eviction is more exact than that of the deletion."""
    evicted = stored_condition("DisruptionTarget", reason="EvictionByEvictionAPI")
    assert reflected(pod(), lower(evicted, **DELETED))["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"


def test_a_disruption_target_of_the_upper_pod_is_kept() -> None:
    """Preemption in the upper cluster has set its reason; only a condition that is False is replaced."""
    upper = pod(status={"conditions": [stored_condition("DisruptionTarget", reason="PreemptionByScheduler")]})
    assert "DisruptionTarget" not in reflected(upper, lower(*READY_BELOW, **DELETED))
    denied = pod(status={"conditions": [stored_condition("DisruptionTarget", "False")]})
    assert reflected(denied, lower(*READY_BELOW, **DELETED))["DisruptionTarget"]["status"] == "True"


@pytest.mark.parametrize("meta", [{}, {"deletionTimestamp": NOW}])
def test_an_upper_eviction_is_not_reset_by_the_lower_pod(meta: dict[str, Any]) -> None:
    """Only that condition shows that the pod has to be recreated, though its lower pod was not evicted."""
    upper = pod(status={"conditions": [stored_condition("DisruptionTarget", reason="EvictionByEvictionAPI")]}, **meta)
    no = stored_condition("DisruptionTarget", "False", reason="PreemptionByScheduler")
    assert "DisruptionTarget" not in reflected(upper, lower(*READY_BELOW, no))
    yes = stored_condition("DisruptionTarget", reason="PreemptionByScheduler")
    assert reflected(upper, lower(*READY_BELOW, yes))["DisruptionTarget"]["reason"] == "PreemptionByScheduler"
    assert reflected(pod(**meta), lower(*READY_BELOW, no))["DisruptionTarget"]["status"] == "False"


def test_a_pod_deleted_in_the_upper_cluster_is_not_disrupted() -> None:
    """Its lower pod is deleted on request, and stays ready until its containers stop."""
    upper = pod(deletionTimestamp=NOW)
    assert not is_disrupted(upper, lower(*READY_BELOW, **DELETED))
    assert reflected(upper, lower(*READY_BELOW, **DELETED))["Ready"]["status"] == "True"


def test_the_removal_of_a_pod_that_ended_is_no_disruption() -> None:
    """Another client may clean up finished lower pods."""
    assert not is_disrupted(pod(), lower(phase="Succeeded", **DELETED))
    assert is_disrupted(pod(), lower(**DELETED))
    assert not is_disrupted(pod(), lower())


def test_the_observed_generation_of_a_condition_is_translated() -> None:
    """It becomes the upper generation, or is absent if the lower kubelet has not observed the current one."""
    seen = stored_condition("Initialized", observedGeneration=5)
    assert reflected(pod(), lower(seen, generation=5), 9)["Initialized"]["observedGeneration"] == 9
    assert "observedGeneration" not in reflected(pod(), lower(seen, generation=6), 9)["Initialized"]
    assert (
        "observedGeneration"
        not in reflected(pod(), lower(stored_condition("Initialized"), generation=5), 9)["Initialized"]
    )


def test_a_gated_ready_condition_has_the_upper_generation() -> None:
    """The computed condition describes the same generation as the lower condition."""
    ready = stored_condition("Ready", observedGeneration=5)
    assert reflected(gated(), lower(ready, generation=5), 9)["Ready"]["observedGeneration"] == 9


def test_a_condition_of_the_engine_keeps_its_time_until_its_status_changes() -> None:
    """A new reason is no transition."""
    upper = pod(status={"conditions": [stored_condition("X", "False", reason="Old")]})
    made = condition(upper, "X", "False", reason="New", message="", now=NOW)
    assert made == {"type": "X", "status": "False", "reason": "New", "lastTransitionTime": EARLIER}
    assert condition(upper, "X", "True", reason="", message="m", now=NOW)["lastTransitionTime"] == NOW
    assert condition(pod(), "X", "True", reason="", message="m", now=NOW)["lastTransitionTime"] == NOW
