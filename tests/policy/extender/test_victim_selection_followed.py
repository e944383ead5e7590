"""Tests of the pods of a virtual node: they are read once, and followed as far as the choice of victims needs."""

from math import inf
from typing import Any

from preemptkit import ExistingPod, pending_pod

from tensile.policy.extender.victim_selection import Residents, may_preempt, priority_of

NAME = ("default", "web")
SAID = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


def upper(generation: int = 1, **more: Any) -> dict[str, Any]:
    """Create an upper pod of priority 7."""
    made = ExistingPod("web", "n", priority=7, **more).upper_pod("v")
    return {**made, "metadata": {**made["metadata"], "generation": generation}}


def test_lowest_is_the_lowest_priority_of_all_residents() -> None:
    """Without residents it is infinite."""
    made = Residents()
    assert made.lowest == inf
    made.put(NAME, upper())
    made.put(("default", "other"), ExistingPod("other", "n", priority=3).upper_pod("v"))
    assert made.lowest == 3
    made.remove(("default", "other"))
    made.remove(("default", "other"))
    assert made.lowest == 7


def test_a_resident_is_read_again_only_if_it_has_changed() -> None:
    """A status update is no change; a new spec, another pod of that name, and a deletion are."""
    made = Residents()
    made.put(NAME, upper())
    first, changed = made.pods[NAME].pod, made.changed
    made.put(NAME, {**upper(), "status": {**upper()["status"], "phase": "Running"}})
    assert (made.pods[NAME].pod, made.changed) == (first, changed)
    made.put(NAME, upper(generation=2))
    assert made.pods[NAME].pod is not first
    made.put(NAME, upper(generation=2, is_terminating=True))
    assert made.pods[NAME].pod.ending
    another = upper(generation=2)
    another["metadata"]["uid"] = "another"
    made.put(NAME, another)
    assert made.pods[NAME].pod.uid == "another"
    assert made.changed > changed


def test_a_resident_without_a_generation_is_read_each_time() -> None:
    """Without it, a change cannot be excluded."""
    made = Residents()
    made.put(NAME, upper(generation=0))
    made.put(NAME, upper(generation=0, cpu="2"))
    assert made.pods[NAME].pod.requests["cpu"] == 2000


def test_a_preempted_terminating_pod_of_lower_priority_is_awaited() -> None:
    """A pod that terminates for another reason is not awaited."""
    made = Residents()
    made.put(NAME, upper(is_terminating=True))
    assert not made.is_awaited(8)
    made.put(NAME, {**upper(), "status": {"conditions": [SAID]}})
    assert not made.is_awaited(8)
    made.put(NAME, {**upper(is_terminating=True), "status": {"conditions": [SAID]}})
    assert [made.is_awaited(priority) for priority in (7, 8)] == [False, True]


def test_priority_and_preemption_policy_have_defaults() -> None:
    """The default priority is zero, and a pod may preempt others unless its policy is Never."""
    assert [priority_of(one) for one in (pending_pod(priority=5), {"spec": {}}, {"spec": {"priority": None}})] == [
        5,
        0,
        0,
    ]
    assert may_preempt(pending_pod())
    assert may_preempt(pending_pod(preemptionPolicy="PreemptLowerPriority"))
    assert not may_preempt(pending_pod(preemptionPolicy="Never"))


def test_a_resized_pod_uses_its_actual_resources() -> None:
    """The status follows the spec later, and has no new generation."""
    made = Residents()

    def sized(spec: str, actual: str, generation: int) -> dict[str, Any]:
        """Create the pod with its requests and its actual resources."""
        pod = upper(generation)
        (container,) = pod["spec"]["containers"]
        smaller = {**container, "resources": {"requests": {"cpu": spec}}}
        has = {"name": container["name"], "resources": {"requests": {"cpu": actual}}}
        status = {"phase": "Running", "containerStatuses": [has]}
        return {**pod, "spec": {**pod["spec"], "containers": [smaller]}, "status": status}

    for spec, actual, generation, taken in (("4", "4", 1, 4000), ("1", "4", 2, 4000), ("1", "1", 2, 1000)):
        made.put(NAME, sized(spec, actual, generation))
        assert made.used["cpu"] == taken
