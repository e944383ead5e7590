"""Tests of placement against a real kube-scheduler on random clusters, and of the report of differences."""

from pathlib import Path

import pytest
from placekit import asking, node, pod, seen

from bench.conformance.placement.__main__ import outcomes, result
from bench.conformance.placement.stage import Answer
from bench.conformance.placement.trial import compared
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

WORLDS, PODS = 4, 12


@pytest.mark.real
async def test_placement_equals_a_real_scheduler_in_nodes_and_reasons(tmp_path: Path) -> None:
    """It is a short run of `python -m bench.conformance.placement`."""
    with Sandbox.start(tmp_path / "s", Options(nodes=1, lowers=0)) as sandbox:
        _, found = await outcomes(sandbox, range(101, 101 + WORLDS), PODS)
    told = result(found)
    assert told["differences"] == []
    assert told["rewordings"] == []
    assert told["same"] == told["cases"] == WORLDS * PODS
    assert 0 < told["placed"] < told["cases"]


def answered(found: set[str], message: str) -> dict:
    """Return the bench's result for a scheduler's answer about a pod that fits on "a" and not on "b"."""
    snapshot = seen([node("a"), node("b", cpu="1")])
    wanted = pod(spec=asking(cpu="2"), uid="u")
    return result([compared(7, [Answer(wanted, frozenset(found), message)], snapshot)])


SAID = "0/2 nodes are available: 1 Insufficient cpu, 1 recorded. preemption: whatever follows"


def test_an_equal_answer_is_counted_as_the_same() -> None:
    """Nodes and messages are equal; the scheduler's text about preemption is ignored."""
    told = answered({"a"}, SAID)
    assert (told["cases"], told["same"], told["placed"], told["same_words"]) == (1, 1, 1, 1)
    assert told["broken"] == told["differences"] == told["rewordings"] == []


@pytest.mark.parametrize("found", [set(), {"b"}, {"a", "b"}])
def test_different_nodes_are_reported_as_a_difference(found: set[str]) -> None:
    """The report has the seed that reproduces the cluster, and the bench fails."""
    told = answered(found, SAID)
    assert told["same"] == 0
    assert told["differences"][0].startswith("seed 7, pod web: scheduler only ")
    assert told["broken"] == told["differences"]


def test_a_different_message_is_reported_as_a_rewording() -> None:
    """The answer still counts as the same, because its nodes are equal."""
    told = answered({"a"}, "0/2 nodes are available: 1 Too many pods, 1 recorded.")
    assert told["same"] == 1
    assert told["same_words"] == 0
    assert "Too many pods" in told["rewordings"][0]
    assert told["broken"] == []
