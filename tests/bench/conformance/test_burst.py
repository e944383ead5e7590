"""What the burst counts, and when it says that the extender failed."""

from typing import Any

import pytest
from faultkit import above

from bench.conformance.burst import EACH, burst, is_refused, judged, places, state_of, stranger
from tensile.resources import parse
from tensile.sandbox.apiserver import RESOURCES

Manifest = dict[str, Any]


def told(status: str, **spec: str) -> Manifest:
    """Make a pod of which the scheduler has said something."""
    return {"spec": spec, "status": {"conditions": [{"type": "PodScheduled", "status": status}]}}


def test_a_pod_is_refused_while_it_has_no_node() -> None:
    """Once the scheduler has said so, and not after it found one."""
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
def test_a_pod_is_in_one_place(pod: Manifest, state: str) -> None:
    """By where it has a node."""
    assert state_of(pod) == state


def cpu_of(spec: Manifest) -> int:
    """Return what the one container asks for, in thousandths."""
    return parse(spec["containers"][0]["resources"]["requests"]["cpu"])


def test_the_sum_that_is_left_is_more_than_the_nodes_hold() -> None:
    """That is what the burst is about: nine tenths of each node are taken, and the rest does not come out even."""
    taken, each = cpu_of(stranger("n")["spec"]), cpu_of(burst(1)["spec"]["template"]["spec"])
    left = parse(RESOURCES["cpu"]) - taken
    assert taken / parse(RESOURCES["cpu"]) == 0.9
    assert left // each == EACH
    assert 2 * left // each > 2 * EACH
    assert places(2, 3) == 6 * EACH


def test_what_is_not_as_it_has_to_be_is_named() -> None:
    """Every figure has its bar."""
    good = {"running": 4, "pending_above": 6, "had_no_node_below": 0}
    assert judged(good, 4, 10) == []
    assert judged({**good, "had_no_node_below": 1}, 4, 10) == ["had_no_node_below: 1, not 0"]
    assert judged({"running": 3, "pending_below": 1, "pending_above": 6}, 4, 10) == [
        "running: 3, not 4",
        "pending_below: 1, not 0",
    ]
