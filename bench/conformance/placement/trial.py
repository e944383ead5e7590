"""Runs one random cluster with pods to schedule, and compares placement's answers with the kube-scheduler's."""

from random import Random
from typing import Any, NamedTuple

from bench.conformance.placement.nodes import random_cluster
from bench.conformance.placement.pods import random_pod
from bench.conformance.placement.recorder import REASON
from bench.conformance.placement.scheduling import Answer, SchedulingCluster
from tensile.policy.placement.placement import FitResult, examine
from tensile.policy.placement.snapshot import Snapshot, pod_of


class Outcome(NamedTuple):
    """How many answers were compared, how many were the same, and descriptions of the others.

    `placed` counts the cases in which the scheduler found a node, `worded` the same answers whose messages were also
    equal.
    """

    cases: int
    same: int
    placed: int
    worded: int
    differences: list[str]
    rewordings: list[str]


async def trial(cluster: SchedulingCluster, seed: int, pods: int) -> Outcome:
    """Compare the answers for a number of pods in one random cluster."""
    chance = Random(seed)
    place = random_cluster(chance, f"w{seed}")
    try:
        snapshot = await cluster.build(place)
        answers = await cluster.schedule(random_pod(chance, place, f"p{number}") for number in range(pods))
    finally:
        await cluster.clear(place)
    return compared(seed, answers, snapshot)


def compared(seed: int, answers: list[Answer], snapshot: Snapshot) -> Outcome:
    """Compare the scheduler's answers with placement's."""
    ours = [examine(pod_of(answer.pod), snapshot) for answer in answers]
    differences = [_difference(seed, *pair) for pair in zip(answers, ours, strict=True) if not _same(*pair)]
    counts = [
        f"seed {seed}: {answer.message!r} / {expected_message(one)!r}"
        for answer, one in zip(answers, ours, strict=True)
        if _same(answer, one) and not has_expected_message(answer.message, one)
    ]
    same = len(answers) - len(differences)
    return Outcome(len(answers), same, sum(bool(one.found) for one in answers), same - len(counts), differences, counts)


def has_expected_message(message: str, ours: FitResult) -> bool:
    """Report whether the scheduler's message begins with placement's; it may add a part about preemption."""
    return message.startswith(expected_message(ours))


def expected_message(ours: FitResult) -> str:
    """Return the message that the scheduler has to set if the extender rejected the nodes that fit."""
    if ours.nowhere:
        return ours.message
    total = len(ours.fitting) + len(ours.refused)
    recorded = [f"{len(ours.fitting)} {REASON}"] if ours.fitting else []
    counted: dict[str, int] = {}
    for refusal in ours.refused.values():
        for reason in refusal.reasons:
            counted[reason] = counted.get(reason, 0) + 1
    reasons = sorted([*recorded, *(f"{count} {reason}" for reason, count in counted.items())])
    return f"0/{total} nodes are available: {', '.join(reasons)}."


def _same(answer: Answer, ours: FitResult) -> bool:
    return answer.found == frozenset(ours.fitting)


def _difference(seed: int, answer: Answer, ours: FitResult) -> str:
    spec: dict[str, Any] = {key: value for key, value in answer.pod["spec"].items() if key in _TOLD and value}
    fitting = set(ours.fitting)
    only = f"scheduler only {sorted(answer.found - fitting)}, ours only {sorted(fitting - answer.found)}"
    messages = f"{answer.message!r} / {expected_message(ours)!r}"
    return f"seed {seed}, pod {answer.pod['metadata']['name']}: {only}: {messages}: {spec}"


_TOLD = ("affinity", "nodeSelector", "tolerations", "topologySpreadConstraints", "volumes", "resources")
