"""Tests of the webhook while its replicas are replaced; `bench.faults.webhook_rollout` does it with 500 pods."""

from argparse import Namespace

import pytest

from bench.faults.webhook_rollout import NOTICED, OVER, Creation, judged, scenario
from tensile.sandbox.sandbox import Sandbox


@pytest.mark.real
async def test_every_pod_is_created_and_mutated_while_a_webhook_replica_is_replaced(fragile: Sandbox) -> None:
    """A new replica is ready before the old one ends, and every pod that opted in is mutated.

    On a machine that is too busy to respond within three seconds, the apiserver continues without the webhook.
    """
    found = await scenario(fragile, Namespace(pods=150, rate=10.0, pause=1.0))
    assert (found["created"], found["opted_in"], found["unprepared_in_time"]) == (150, 75, 0), found["broken"]
    assert found["replaced"] >= 1


FINE = Creation(10.0, 10.1, opted=True, prepared=True)
PLAIN = Creation(10.0, 10.1, opted=False, prepared=False)
MISSED = Creation(10.0, 10.1, opted=True, prepared=False)
FAILED = Creation(10.0, 10.1, opted=True, prepared=False, failure="no")


@pytest.mark.parametrize(
    ("creations", "killed", "counts", "broken"),
    [
        ([FINE, PLAIN], [], (2, 0, 0, 0), []),
        ([FINE, FAILED], [], (1, 1, 0, 0), ["1 creations failed: no"]),
        ([FINE, MISSED], [], (2, 0, 1, 0), ["1 pods were not mutated although no replica had been killed"]),
        ([FINE, MISSED], [10.05], (2, 0, 0, 1), []),
        ([FINE, MISSED], [10.0 - NOTICED - OVER + 0.01], (2, 0, 0, 1), []),
        ([FINE, MISSED], [10.0 - NOTICED - OVER - 0.01], (2, 0, 1, 0), ["1 pods were not mutated"]),
        ([FINE, MISSED], [10.2], (2, 0, 1, 0), ["1 pods were not mutated"]),
        ([FINE, PLAIN._replace(prepared=True)], [], (2, 0, 0, 0), ["1 pods were prepared that had not opted in"]),
    ],
    ids=["healthy", "failed", "missed", "killed", "just killed", "long killed", "killed later", "not opted in"],
)
def test_violations_of_a_replacement_trial_are_reported(
    creations: list[Creation], killed: list[float], counts: tuple[int, ...], broken: list[str]
) -> None:
    """A pod that was not mutated is a violation, unless a replica was killed around the time of its creation."""
    found = judged(creations, killed)
    names = ("created", "failed", "unprepared", "unprepared_after_a_kill")
    assert tuple(found[name] for name in names) == counts
    assert len(found["broken"]) == len(broken)
    assert all(message.startswith(begin) for message, begin in zip(found["broken"], broken, strict=True))


def test_pods_that_were_not_mutated_in_time_are_counted_separately() -> None:
    """They are a violation like the others, but indicate a machine that is too slow."""
    late = MISSED._replace(end=MISSED.begin + 3.0)
    found = judged([FINE, MISSED, late, late], [])
    assert (found["unprepared"], found["unprepared_in_time"]) == (3, 1)
    assert found["broken"] == ["3 pods were not mutated although no replica had been killed"]
