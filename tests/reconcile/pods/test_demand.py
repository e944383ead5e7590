"""What a pod requests, counted as the kube-scheduler does; the numbers were worked out by hand from its rules."""

from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import pod

from tensile.kube.store import Transformed
from tensile.reconcile.pods.demand import PodDemand, pod_demand, pod_requests

GI = 1024**3 * 1000


def asks(name: str = "c", restart: str = "", **requests: str) -> dict:
    """Make a container that requests these."""
    policy = {"restartPolicy": restart} if restart else {}
    return {"name": name, "resources": {"requests": requests}, **policy}


def total(spec: dict, status: dict | None = None) -> dict[str, int]:
    """Count a pod without the "pods" that each one has."""
    found = pod_requests(pod(spec, status))
    assert found.pop("pods") == 1000
    return found


def resized(*, infeasible: bool = False, **status: Any) -> dict:
    """Make the status of a pod whose container "c" is being resized."""
    pending = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible" if infeasible else "Deferred"}]
    return {"containerStatuses": [{"name": "c", **status}], "conditions": pending}


def test_containers_add_up() -> None:
    """Everything that runs at once is summed, extended resources too."""
    spec = {
        "containers": [asks(cpu="100m", memory="1Gi"), asks("d", cpu="1", **{"nvidia.com/gpu": "2"}), {"name": "e"}]
    }
    assert total(spec) == {"cpu": 1100, "memory": GI, "nvidia.com/gpu": 2000}


def test_a_pod_that_requests_nothing_is_one_pod() -> None:
    """Its place counts against the node's number of pods."""
    assert pod_requests(pod()) == {"pods": 1000}


def test_limits_do_not_count() -> None:
    """The apiserver has already made requests of limits where it does."""
    assert total({"containers": [{"name": "c", "resources": {"limits": {"cpu": "4"}}}]}) == {}


def test_the_largest_init_container_counts_where_it_needs_more() -> None:
    """They run one after another, before the others: by resource, the larger of the two."""
    spec = {
        "containers": [asks(cpu="1", memory="1Gi")],
        "initContainers": [asks("i", cpu="3"), asks("j", cpu="2", memory="512Mi")],
    }
    assert total(spec) == {"cpu": 3000, "memory": GI}


def test_sidecars_run_beside_everything_after_them() -> None:
    """A restartable init container adds to the init containers that follow it and to the containers."""
    spec = {
        "containers": [asks(cpu="1")],
        "initContainers": [asks("i", cpu="5"), asks("s", "Always", cpu="2"), asks("j", cpu="4")],
    }
    assert total(spec) == {"cpu": 6000}
    assert total({**spec, "initContainers": spec["initContainers"][1:2]}) == {"cpu": 3000}


def test_overhead_is_added() -> None:
    """What the runtime itself takes, on top of the worst moment."""
    spec = {
        "containers": [asks(cpu="1")],
        "initContainers": [asks("i", cpu="2")],
        "overhead": {"cpu": "250m", "memory": "1Gi"},
    }
    assert total(spec) == {"cpu": 2250, "memory": GI}


def test_pod_level_requests_stand_in_for_the_sum() -> None:
    """For cpu, memory and huge pages; what cannot be given for a pod is summed as ever."""
    spec = {
        "containers": [asks(cpu="1", memory="1Gi", **{"example.com/x": "1"})],
        "resources": {"requests": {"cpu": "4", "hugepages-2Mi": "4Mi", "example.com/x": "9"}},
        "overhead": {"cpu": "1"},
    }
    assert total(spec) == {"cpu": 5000, "memory": GI, "hugepages-2Mi": 4 * 1024**2 * 1000, "example.com/x": 1000}


def test_pod_level_limits_alone_change_nothing() -> None:
    """Only requests count."""
    assert total({"containers": [asks(cpu="1")], "resources": {"limits": {"cpu": "4"}}}) == {"cpu": 1000}


@pytest.mark.parametrize(
    ("spec", "actual", "allocated", "counted"),
    [("1", "2", "2", 2000), ("3", "2", "2", 3000), ("1", "2", "4", 4000), ("1", "1", None, 1000)],
    ids=["shrinks", "grows", "granted", "older kubelet"],
)
def test_a_resize_counts_the_larger(spec: str, actual: str, allocated: str | None, counted: int) -> None:
    """Until it is done, the larger of what is asked for, what is granted and what is used."""
    status = resized(resources={"requests": {"cpu": actual}}, allocatedResources=allocated and {"cpu": allocated})
    assert total({"containers": [asks(cpu=spec)]}, status) == {"cpu": counted}


def test_a_resize_that_cannot_be_is_not_counted() -> None:
    """The node refused it for good, so the pod stays as it is."""
    status = resized(infeasible=True, resources={"requests": {"cpu": "1"}}, allocatedResources={"cpu": "1"})
    assert total({"containers": [asks(cpu="9")]}, status) == {"cpu": 1000}


def test_a_reason_of_another_condition_refuses_no_resize() -> None:
    """Only the condition about the resize says that it is infeasible."""
    status = resized(resources={"requests": {"cpu": "1"}})
    status["conditions"] = [{"type": "Other", "reason": "Infeasible"}]
    assert total({"containers": [asks(cpu="9")]}, status) == {"cpu": 9000}


def test_a_status_without_resources_is_no_resize() -> None:
    """Allocated resources alone say nothing, as in the scheduler."""
    status = {"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "5"}}]}
    assert total({"containers": [asks(cpu="1")]}, status) == {"cpu": 1000}


def test_sidecars_are_resized_and_init_containers_are_not() -> None:
    """An init container that has run has nothing to resize."""
    spec = {"containers": [{"name": "c"}], "initContainers": [asks("s", "Always", cpu="1"), asks("i", cpu="1")]}
    status = {"initContainerStatuses": [{"name": name, "resources": {"requests": {"cpu": "3"}}} for name in "si"]}
    assert total(spec, status) == {"cpu": 4000}


def test_a_pod_level_resize_counts_the_larger() -> None:
    """The pod's own allocation, where its status has one."""
    spec = {"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    status = {"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}}
    assert total(spec, status) == {"cpu": 3000, "memory": GI}
    refused = {**status, "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}]}
    assert total({**spec, "resources": {"requests": {"cpu": "9", "memory": "9Gi"}}}, refused) == {
        "cpu": 3000,
        "memory": 0,
    }


def test_a_digest_is_the_facts_without_the_bytes() -> None:
    """Ten thousand foreign pods are kept as four small values each."""
    upper = pod({"nodeName": "n1", "containers": [asks(cpu="1")]}, {"phase": "Running"}, labels={"app": "x"})
    assert pod_demand(orjson.dumps(upper)) == Transformed(b"", PodDemand("n1", False, {"cpu": 1000, "pods": 1000}))


def test_a_digest_carries_the_owners_mark() -> None:
    """So that pods of another topology can be told from pods of nobody."""
    upper = pod(labels={"tensile-kube.io/owner": "abc"})
    assert pod_demand(orjson.dumps(upper)).facts.mark == "abc"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_takes_nothing(phase: str) -> None:
    """The scheduler gives its room away."""
    facts = pod_demand(orjson.dumps(pod({"containers": [asks(cpu="1")]}, {"phase": phase}))).facts
    assert (facts.ended, facts.requests) == (True, {})


def test_a_pod_that_was_not_scheduled_has_no_node() -> None:
    """Absent and null fields are read alike."""
    raw = b'{"metadata":{"name":"a","labels":null},"spec":{"containers":[],"initContainers":null},"status":{}}'
    assert pod_demand(raw).facts == PodDemand("", False, {"pods": 1000})


def test_a_pod_without_a_spec_is_no_pod() -> None:
    """A digest of something else is an error, and not a pod that asks for nothing."""
    with pytest.raises(msgspec.ValidationError):
        pod_demand(b'{"metadata":{}}')


CPU = st.integers(0, 9)
INIT = st.tuples(CPU, st.booleans())


@given(st.lists(CPU, max_size=3), st.lists(INIT, max_size=4), CPU)
def test_the_count_is_the_worst_moment(mains: list[int], inits: list[tuple[int, bool]], overhead: int) -> None:
    """Played through step by step: each init container with the sidecars before it, then everything together."""
    moments = [0]
    beside = 0
    for cpu, sidecar in inits:
        moments.append(beside + cpu)
        beside += cpu if sidecar else 0
    moments.append(beside + sum(mains))
    spec = {
        "containers": [asks(f"c{place}", cpu=str(cpu)) for place, cpu in enumerate(mains)],
        "initContainers": [
            asks(f"i{place}", "Always" if sidecar else "", cpu=str(cpu)) for place, (cpu, sidecar) in enumerate(inits)
        ],
        "overhead": {"cpu": str(overhead)},
    }
    assert total(spec)["cpu"] == (max(moments) + overhead) * 1000
