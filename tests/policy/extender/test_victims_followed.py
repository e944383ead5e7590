"""The pods of a virtual node: read once, and followed as far as it matters who goes."""

from math import inf
from typing import Any

from preemptkit import There, wants

from tensile.policy.extender.victims import Residents, may_preempt, priority_of

NAME = ("default", "web")
SAID = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


def upper(generation: int = 1, **more: Any) -> dict[str, Any]:
    """Make an upper pod of priority 7."""
    made = There("web", "n", priority=7, **more).above("v")
    return {**made, "metadata": {**made["metadata"], "generation": generation}}


def test_the_lowest_priority_is_known() -> None:
    """Of all that are there, and none where nobody is."""
    made = Residents()
    assert made.lowest == inf
    made.put(NAME, upper())
    made.put(("default", "other"), There("other", "n", priority=3).above("v"))
    assert made.lowest == 3
    made.remove(("default", "other"))
    made.remove(("default", "other"))
    assert made.lowest == 7


def test_a_pod_is_read_again_only_where_it_has_changed() -> None:
    """A status costs nothing; a new spec, another pod of the name, and the end do."""
    made = Residents()
    made.put(NAME, upper())
    first, changed = made.pods[NAME].pod, made.changed
    made.put(NAME, {**upper(), "status": {**upper()["status"], "phase": "Running"}})
    assert (made.pods[NAME].pod, made.changed) == (first, changed)
    made.put(NAME, upper(generation=2))
    assert made.pods[NAME].pod is not first
    made.put(NAME, upper(generation=2, ending=True))
    assert made.pods[NAME].pod.ending
    another = upper(generation=2)
    another["metadata"]["uid"] = "another"
    made.put(NAME, another)
    assert made.pods[NAME].pod.uid == "another"
    assert made.changed > changed


def test_a_pod_without_a_generation_is_read_each_time() -> None:
    """Nothing says then that it has not changed."""
    made = Residents()
    made.put(NAME, upper(generation=0))
    made.put(NAME, upper(generation=0, cpu="2"))
    assert made.pods[NAME].pod.requests["cpu"] == 2000


def test_who_is_awaited() -> None:
    """A pod of lower priority that ends because it was preempted; not one that ends for another reason."""
    made = Residents()
    made.put(NAME, upper(ending=True))
    assert not made.is_awaited(8)
    made.put(NAME, {**upper(), "status": {"conditions": [SAID]}})
    assert not made.is_awaited(8)
    made.put(NAME, {**upper(ending=True), "status": {"conditions": [SAID]}})
    assert [made.is_awaited(priority) for priority in (7, 8)] == [False, True]


def test_what_a_pod_may() -> None:
    """It has the priority of its class, or none, and lets others go unless it says otherwise."""
    assert [priority_of(one) for one in (wants(priority=5), {"spec": {}}, {"spec": {"priority": None}})] == [5, 0, 0]
    assert may_preempt(wants())
    assert may_preempt(wants(preemptionPolicy="PreemptLowerPriority"))
    assert not may_preempt(wants(preemptionPolicy="Never"))


def test_a_resized_pod_takes_what_it_has_left() -> None:
    """Its status follows after its spec, without another generation."""
    made = Residents()

    def sized(spec: str, actual: str, generation: int) -> dict[str, Any]:
        """Make the pod with what it requests and what it still has."""
        pod = upper(generation)
        (container,) = pod["spec"]["containers"]
        smaller = {**container, "resources": {"requests": {"cpu": spec}}}
        has = {"name": container["name"], "resources": {"requests": {"cpu": actual}}}
        status = {"phase": "Running", "containerStatuses": [has]}
        return {**pod, "spec": {**pod["spec"], "containers": [smaller]}, "status": status}

    for spec, actual, generation, taken in (("4", "4", 1, 4000), ("1", "4", 2, 4000), ("1", "1", 2, 1000)):
        made.put(NAME, sized(spec, actual, generation))
        assert made.used["cpu"] == taken
