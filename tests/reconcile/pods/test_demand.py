"""Tests that requests of pods are counted as the kube-scheduler does, with numbers computed by hand from its rules."""

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
    """Return a container with these requests."""
    policy = {"restartPolicy": restart} if restart else {}
    return {"name": name, "resources": {"requests": requests}, **policy}


def total(spec: dict, status: dict | None = None) -> dict[str, int]:
    """Return the requests of a pod without the one of "pods"."""
    found = pod_requests(pod(spec, status))
    assert found.pop("pods") == 1000
    return found


def resized(*, infeasible: bool = False, **status: Any) -> dict:
    """Return the status of a pod whose container "c" has a pending resize."""
    pending = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible" if infeasible else "Deferred"}]
    return {"containerStatuses": [{"name": "c", **status}], "conditions": pending}


def test_requests_of_containers_are_summed() -> None:
    """This includes extended resources, because all containers run at the same time."""
    spec = {
        "containers": [asks(cpu="100m", memory="1Gi"), asks("d", cpu="1", **{"nvidia.com/gpu": "2"}), {"name": "e"}]
    }
    assert total(spec) == {"cpu": 1100, "memory": GI, "nvidia.com/gpu": 2000}


def test_a_pod_without_requests_requests_one_pod() -> None:
    """It counts against the node's number of pods."""
    assert pod_requests(pod()) == {"pods": 1000}


def test_limits_do_not_count() -> None:
    """The apiserver has already defaulted requests from limits."""
    assert total({"containers": [{"name": "c", "resources": {"limits": {"cpu": "4"}}}]}) == {}


def test_the_largest_init_container_counts_if_it_requests_more() -> None:
    """Init containers run one after another before the others, so each resource has the larger of the two values."""
    spec = {
        "containers": [asks(cpu="1", memory="1Gi")],
        "initContainers": [asks("i", cpu="3"), asks("j", cpu="2", memory="512Mi")],
    }
    assert total(spec) == {"cpu": 3000, "memory": GI}


def test_a_sidecar_is_added_to_all_containers_that_start_after_it() -> None:
    """Restartable init containers keep running beside later init containers and the main containers."""
    spec = {
        "containers": [asks(cpu="1")],
        "initContainers": [asks("i", cpu="5"), asks("s", "Always", cpu="2"), asks("j", cpu="4")],
    }
    assert total(spec) == {"cpu": 6000}
    assert total({**spec, "initContainers": spec["initContainers"][1:2]}) == {"cpu": 3000}


def test_overhead_is_added() -> None:
    """The runtime's own overhead is added to the peak of the containers."""
    spec = {
        "containers": [asks(cpu="1")],
        "initContainers": [asks("i", cpu="2")],
        "overhead": {"cpu": "250m", "memory": "1Gi"},
    }
    assert total(spec) == {"cpu": 2250, "memory": GI}


def test_pod_level_requests_replace_the_sum_of_the_containers() -> None:
    """They exist for cpu, memory and huge pages, and other resources are summed."""
    spec = {
        "containers": [asks(cpu="1", memory="1Gi", **{"example.com/x": "1"})],
        "resources": {"requests": {"cpu": "4", "hugepages-2Mi": "4Mi", "example.com/x": "9"}},
        "overhead": {"cpu": "1"},
    }
    assert total(spec) == {"cpu": 5000, "memory": GI, "hugepages-2Mi": 4 * 1024**2 * 1000, "example.com/x": 1000}


def test_pod_level_limits_without_requests_change_nothing() -> None:
    """Only requests count."""
    assert total({"containers": [asks(cpu="1")], "resources": {"limits": {"cpu": "4"}}}) == {"cpu": 1000}


@pytest.mark.parametrize(
    ("spec", "actual", "allocated", "counted"),
    [("1", "2", "2", 2000), ("3", "2", "2", 3000), ("1", "2", "4", 4000), ("1", "1", None, 1000)],
    ids=["shrinks", "grows", "granted", "older kubelet"],
)
def test_the_larger_amount_counts_during_a_resize(spec: str, actual: str, allocated: str | None, counted: int) -> None:
    """Until the resize is complete, the largest of desired, allocated and used amounts counts."""
    status = resized(resources={"requests": {"cpu": actual}}, allocatedResources=allocated and {"cpu": allocated})
    assert total({"containers": [asks(cpu=spec)]}, status) == {"cpu": counted}


def test_an_infeasible_resize_is_not_counted() -> None:
    """The node has refused it, so the pod keeps its resources."""
    status = resized(infeasible=True, resources={"requests": {"cpu": "1"}}, allocatedResources={"cpu": "1"})
    assert total({"containers": [asks(cpu="9")]}, status) == {"cpu": 1000}


def test_an_infeasible_reason_of_another_condition_does_not_matter() -> None:
    """Only the condition PodResizePending shows that a resize is infeasible."""
    status = resized(resources={"requests": {"cpu": "1"}})
    status["conditions"] = [{"type": "Other", "reason": "Infeasible"}]
    assert total({"containers": [asks(cpu="9")]}, status) == {"cpu": 9000}


def test_a_status_without_resources_is_no_resize() -> None:
    """As in the scheduler, allocated resources alone do not count."""
    status = {"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "5"}}]}
    assert total({"containers": [asks(cpu="1")]}, status) == {"cpu": 1000}


def test_a_resize_of_a_sidecar_counts_but_not_of_an_init_container() -> None:
    """An init container that has run cannot be resized."""
    spec = {"containers": [{"name": "c"}], "initContainers": [asks("s", "Always", cpu="1"), asks("i", cpu="1")]}
    status = {"initContainerStatuses": [{"name": name, "resources": {"requests": {"cpu": "3"}}} for name in "si"]}
    assert total(spec, status) == {"cpu": 4000}


def test_the_larger_amount_counts_during_a_pod_level_resize() -> None:
    """The pod's own allocated resources count if its status has them."""
    spec = {"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    status = {"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}}
    assert total(spec, status) == {"cpu": 3000, "memory": GI}
    refused = {**status, "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}]}
    assert total({**spec, "resources": {"requests": {"cpu": "9", "memory": "9Gi"}}}, refused) == {
        "cpu": 3000,
        "memory": 0,
    }


def test_a_digest_of_a_foreign_pod_has_the_demand_without_the_bytes() -> None:
    """Ten thousand such pods are cached as a few small values each."""
    upper = pod({"nodeName": "n1", "containers": [asks(cpu="1")]}, {"phase": "Running"}, labels={"app": "x"})
    assert pod_demand(orjson.dumps(upper)) == Transformed(b"", PodDemand("n1", False, {"cpu": 1000, "pods": 1000}))


def test_a_digest_has_the_mark_of_the_owner() -> None:
    """It distinguishes pods of another topology from pods without an owner."""
    upper = pod(labels={"tensile-kube.io/owner": "abc"})
    assert pod_demand(orjson.dumps(upper)).facts.mark == "abc"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_pod_has_no_requests(phase: str) -> None:
    """The scheduler reuses its capacity."""
    facts = pod_demand(orjson.dumps(pod({"containers": [asks(cpu="1")]}, {"phase": phase}))).facts
    assert (facts.ended, facts.requests) == (True, {})


def test_an_unscheduled_pod_has_no_node() -> None:
    """Absent and null fields are decoded in the same way."""
    raw = b'{"metadata":{"name":"a","labels":null},"spec":{"containers":[],"initContainers":null},"status":{}}'
    assert pod_demand(raw).facts == PodDemand("", False, {"pods": 1000})


def test_a_pod_without_a_spec_raises_an_error() -> None:
    """An object of another form must not count as a pod without requests."""
    with pytest.raises(msgspec.ValidationError):
        pod_demand(b'{"metadata":{}}')


CPU = st.integers(0, 9)
INIT = st.tuples(CPU, st.booleans())


@given(st.lists(CPU, max_size=3), st.lists(INIT, max_size=4), CPU)
def test_requests_are_the_peak_of_a_simulation(mains: list[int], inits: list[tuple[int, bool]], overhead: int) -> None:
    """The simulation has each init container beside the earlier sidecars, and then all containers together."""
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
