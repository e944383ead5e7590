"""Tests of requests that a lower cluster refuses; `python -m bench.faults.denials` tries every kind for longer."""

from pathlib import Path
from typing import Any

import pytest

from bench.faults.denials import (
    KINDS,
    PodStatusAt,
    RefusalTarget,
    RefusalTrial,
    RefusalTrials,
    busiest,
    denied,
    judged,
    laid_out,
    most,
    reported_at,
)
from bench.kit.faultproxy.faults import Passed, Refused
from bench.kit.faultproxy.journal import Journal
from bench.kit.faultproxy.requests import ProxiedRequest
from tensile.names import MIRRORED
from tensile.sandbox.sandbox import Sandbox

SHORT = ("quota", "webhook-fails", "busy", "config-map")
HOLD = 6.5
WORDS = "exceeded quota: full"


@pytest.mark.real
async def test_a_refused_pod_is_reported_on_the_upper_pod_and_retried_with_back_off(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The message is on the upper pod in time, and the pod runs soon after it is no longer refused."""
    async with laid_out(sandbox, tmp_path) as field:
        found = await denied(field, [kind for kind in KINDS if kind.name in SHORT], pods=2, hold=HOLD)
    assert [one["kind"] for one in found] == list(SHORT)
    assert [message for one in found for message in one["broken"]] == []
    assert all(one["tries_a_minute"] > 1 for one in found)


def test_each_kind_of_refusal_has_another_name() -> None:
    """Each kind has a namespace of that name."""
    assert len({kind.name for kind in KINDS}) == len(KINDS) == 14


def observation(at: float, phase: str = "Pending", message: str = WORDS, reason: str = "Forbidden") -> PodStatusAt:
    """Return an observation of a pod whose status has the reason why it waits."""
    conditions = [{"type": MIRRORED, "status": "False", "reason": "Forbidden", "message": message}]
    return PodStatusAt(at, {"status": {"phase": phase, "reason": reason, "message": message, "conditions": conditions}})


def test_the_reason_is_reported_once_status_and_condition_have_it() -> None:
    """The pod must be Pending too; any other observation does not count."""
    bare = PodStatusAt(1.0, {"status": {"phase": "Pending"}})
    assert reported_at([bare, observation(3.0), observation(4.0)], WORDS) == 3.0
    for other in (bare, observation(2.0, "Failed"), observation(2.0, message="else"), observation(2.0, reason="Other")):
        assert reported_at([other], WORDS) == float("inf")


def test_attempts_are_counted_in_the_busiest_minute() -> None:
    """The minute can begin at any time."""
    assert busiest([]) == 0
    assert busiest([0.0, 59.0, 60.0, 61.0]) == 3
    assert busiest([0.0, 10.0, 20.0], window=15.0) == 2


@pytest.mark.parametrize(("seconds", "number"), [(0.0, 2), (6.5, 3), (30.0, 8), (65.0, 12)])
def test_a_shorter_trial_permits_fewer_attempts(seconds: float, number: int) -> None:
    """A short trial thus also detects attempts without back-off."""
    assert most(seconds) == number


class FakeRig:
    """A rig with only the parts that the judgement of a trial uses."""

    name = "rig"

    def __init__(self) -> None:
        self.journal = Journal()


def trial(*moments: float, sights: list[PodStatusAt] | None = None) -> RefusalTrial:
    """Return a trial of one pod that was created at 0, with attempts at these moments."""
    field = RefusalTrials(FakeRig(), None, "")  # type: ignore[arg-type]
    found = RefusalTrial(RefusalTarget(field, KINDS[0]), 1)
    found.created_at["pod-0"] = 0.0
    found.pod_statuses["pod-0"] = [observation(0.2)] if sights is None else sights
    write = ProxiedRequest("lower-a", "create", "pods", "", "rig-quota", "pod-0")
    for at in moments:
        field.rig.journal.add(write, Passed(), at)
        field.rig.journal.add(write._replace(namespace="rig-other"), Passed(), at)
    field.rig.journal.add(write, Passed(), 70.0).status = 201
    return found


GOOD: dict[str, Any] = {"hold": 65.0, "lifted": 65.0, "back": 3.0, "events": {"pod-0": 1}}


def test_a_correct_trial_has_no_violations() -> None:
    """The figures are those of the slowest pod, and attempts after the end do not count."""
    found = judged(trial(0.1, 6.0, 66.0), **GOOD)
    expected = {"kind": "quota", "pods": 1, "said_s": 0.2, "tries_a_minute": 2}
    expected |= {"made_s": 5.0, "back_s": 3.0, "broken": []}
    assert found == expected


@pytest.mark.parametrize(
    ("found", "given", "message"),
    [
        (trial(0.1, 6.0, sights=[observation(5.2)]), {}, "quota: pod-0: reported only after 5.2 s"),
        (trial(*(float(at) for at in range(13))), {}, "quota: pod-0: 13 tries in a minute"),
        (trial(0.1), {}, "quota: pod-0: tried once, and not again"),
        (trial(0.1, 6.0, sights=[observation(0.2), observation(1.0, "Failed")]), {}, "quota: pod-0 Failed"),
        (trial(0.1, 6.0), {"events": {"pod-0": 3}}, "quota: pod-0: 3 events"),
        (trial(0.1, 6.0), {"lifted": 62.0}, "quota: made only 8.0 s after nothing refused it"),
        (trial(0.1, 6.0), {"back": 31.0}, "quota: runs only 31.0 s after nothing refused it"),
    ],
)
def test_each_violation_of_a_trial_is_reported(found: RefusalTrial, given: dict[str, Any], message: str) -> None:
    """A trial with one violation has exactly one message."""
    assert judged(found, **{**GOOD, **given})["broken"] == [message]


async def test_a_field_refuses_only_new_lower_pods_of_its_namespaces() -> None:
    """All other requests pass."""
    field = RefusalTrials(FakeRig(), None, "")  # type: ignore[arg-type]
    fault = field.faults["n"] = Refused(413)
    pod = ProxiedRequest("lower-a", "create", "pods", "", "n", "web")
    assert await field.fault_for(pod) == fault
    for other in (
        pod._replace(cluster="upper"),
        pod._replace(verb="patch"),
        pod._replace(subresource="status"),
        pod._replace(namespace="m"),
    ):
        assert await field.fault_for(other) == Passed()
