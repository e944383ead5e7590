"""Tests of the cost of the webhook; `make bench` measures the same at length on an otherwise idle machine."""

from pathlib import Path

import pytest

from bench.speed.webhook import BARS, cost, judged, measured, pod, worst
from tensile.sandbox.sandbox import Sandbox

BUSY = 4
"""The factor by which a busy machine may exceed a bar."""


def test_an_admission_review_takes_little_cpu_time() -> None:
    """It is measured from request bytes to response bytes, for a pod with a selector, alternatives and tolerations."""
    default = {
        "key": "node.kubernetes.io/not-ready",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    stored = pod("asked", opted=True)
    stored["spec"]["tolerations"] = [default, {**default, "key": "node.kubernetes.io/unreachable"}]
    assert cost(stored, 500) <= BARS["cpu_us"] * BUSY


def test_no_admission_review_blocks_the_engine_for_long() -> None:
    """The slowest one that an attacker could send within the size limit of the port stays within a bound."""
    most, which = worst()
    assert most <= BARS["worst_ms"] * BUSY, which


@pytest.mark.real
async def test_no_pod_creation_fails_because_of_the_webhook(fragile: Sandbox, tmp_path: Path) -> None:
    """This holds while it is served and after it was killed, for pods that opted in and for others."""
    found = judged(await measured(fragile, tmp_path, 100, 1))
    assert found["failed_creations"] == 0
    assert found["failed_while_down"] == {"plain": 0, "opted": 0}


RUN = {"plain": {"p50_ms": 5.0, "p99_ms": 20.0}, "opted": {"p50_ms": 7.0, "p99_ms": 30.0}, "failed": 0}


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, []),
        ({"cpu_us": 101.0}, ["cpu_us"]),
        ({"worst_ms": 20.1}, ["worst_ms"]),
        ({"runs": [{**RUN, "opted": {"p50_ms": 8.1, "p99_ms": 30.0}}]}, ["added_p50_ms"]),
        ({"runs": [{**RUN, "opted": {"p50_ms": 7.0, "p99_ms": 35.1}}]}, ["added_p99_ms"]),
        ({"runs": [{**RUN, "failed": 1}]}, ["failed_creations"]),
        ({"failed_while_down": {"plain": 1, "opted": 0}}, ["failed_creations"]),
    ],
)
def test_each_figure_above_its_bar_is_reported(change: dict, broken: list[str]) -> None:
    """The message starts with the name of the figure."""
    found = judged(
        {"cpu_us": 90.0, "worst_ms": 12.0, "runs": [RUN], "failed_while_down": {"plain": 0, "opted": 0}, **change}
    )
    assert [message.partition(" ")[0] for message in found["broken"]] == broken
