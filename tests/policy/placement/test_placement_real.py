"""Tests of placement against a real kube-scheduler on random clusters, and of the report of differences."""

from pathlib import Path

import pytest
from placekit import make_snapshot, node, pod, spec_requesting

from bench.conformance.placement.__main__ import outcomes, result
from bench.conformance.placement.scheduling import Answer
from bench.conformance.placement.trial import compared
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

WORLDS, PODS = 4, 12


@pytest.mark.real
async def test_placement_equals_a_real_scheduler_in_nodes_and_reasons(tmp_path: Path) -> None:
    """It is a short run of `python -m bench.conformance.placement`."""
    with Sandbox.start(tmp_path / "s", Options(nodes=1, lowers=0)) as sandbox:
        _, found = await outcomes(sandbox, range(101, 101 + WORLDS), PODS)
    verdict = result(found)
    assert verdict["differences"] == []
    assert verdict["rewordings"] == []
    assert verdict["same"] == verdict["cases"] == WORLDS * PODS
    assert 0 < verdict["placed"] < verdict["cases"]


def answered(found: set[str], message: str) -> dict:
    """Return the bench's result for a scheduler's answer about a pod that fits on "a" and not on "b"."""
    snapshot = make_snapshot([node("a"), node("b", cpu="1")])
    wanted = pod(spec=spec_requesting(cpu="2"), uid="u")
    return result([compared(7, [Answer(wanted, frozenset(found), message)], snapshot)])


SAID = "0/2 nodes are available: 1 Insufficient cpu, 1 recorded. preemption: whatever follows"


def test_an_equal_answer_is_counted_as_the_same() -> None:
    """Nodes and messages are equal; the scheduler's text about preemption is ignored."""
    comparison = answered({"a"}, SAID)
    assert (comparison["cases"], comparison["same"], comparison["placed"], comparison["same_words"]) == (1, 1, 1, 1)
    assert comparison["broken"] == comparison["differences"] == comparison["rewordings"] == []


@pytest.mark.parametrize("found", [set(), {"b"}, {"a", "b"}])
def test_different_nodes_are_reported_as_a_difference(found: set[str]) -> None:
    """The report has the seed that reproduces the cluster, and the bench fails."""
    comparison = answered(found, SAID)
    assert comparison["same"] == 0
    assert comparison["differences"][0].startswith("seed 7, pod web: scheduler only ")
    assert comparison["broken"] == comparison["differences"]


def test_a_different_message_is_reported_as_a_rewording() -> None:
    """The answer still counts as the same, because its nodes are equal."""
    comparison = answered({"a"}, "0/2 nodes are available: 1 Too many pods, 1 recorded.")
    assert comparison["same"] == 1
    assert comparison["same_words"] == 0
    assert "Too many pods" in comparison["rewordings"][0]
    assert comparison["broken"] == []
