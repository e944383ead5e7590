"""Tests of how the bench of bursts counts pods, and when it reports that the extender failed."""

from typing import Any

import pytest
from faultkit import above

from bench.conformance.burst import EACH, burst, is_refused, judged, places, state_of, stranger
from tensile.resources import parse
from tensile.sandbox.apiserver import RESOURCES

Manifest = dict[str, Any]


def told(status: str, **spec: str) -> Manifest:
    """Return a pod with a PodScheduled condition."""
    return {"spec": spec, "status": {"conditions": [{"type": "PodScheduled", "status": status}]}}


def test_a_pod_counts_as_refused_if_its_condition_is_false_and_it_has_no_node() -> None:
    """A pod without a condition, or with a node, does not count."""
    assert is_refused(told("False"))
    assert not is_refused(told("True"))
    assert not is_refused(told("False", nodeName="n"))
    assert not is_refused({"spec": {}})


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (above(ready=True), "running"),
        ({**above(ready=False), "spec": {"nodeName": "n"}}, "pending_below"),
        ({**above(ready=False), "spec": {}}, "pending_above"),
    ],
)
def test_the_state_of_a_pod_follows_from_its_node_and_readiness(pod: Manifest, state: str) -> None:
    """A pod that is not ready is pending in the lower cluster if it has a node, otherwise in the upper one."""
    assert state_of(pod) == state


def cpu_of(spec: Manifest) -> int:
    """Return the cpu request of the only container, in thousandths."""
    return parse(spec["containers"][0]["resources"]["requests"]["cpu"])


def test_the_free_cpu_of_two_nodes_in_sum_fits_more_pods_than_each_alone() -> None:
    """Nine tenths of each node are used, and the rest is not a multiple of a pod's request."""
    taken, each = cpu_of(stranger("n")["spec"]), cpu_of(burst(1)["spec"]["template"]["spec"])
    left = parse(RESOURCES["cpu"]) - taken
    assert taken / parse(RESOURCES["cpu"]) == 0.9
    assert left // each == EACH
    assert 2 * left // each > 2 * EACH
    assert places(2, 3) == 6 * EACH


def test_each_figure_that_differs_from_its_bound_is_named() -> None:
    """Expected are all places used, and no pod pending or without a node in the lower cluster."""
    good = {"running": 4, "pending_above": 6, "had_no_node_below": 0}
    assert judged(good, 4, 10) == []
    assert judged({**good, "had_no_node_below": 1}, 4, 10) == ["had_no_node_below: 1, not 0"]
    assert judged({"running": 3, "pending_below": 1, "pending_above": 6}, 4, 10) == [
        "running: 3, not 4",
        "pending_below: 1, not 0",
    ]
