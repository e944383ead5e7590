"""Plays one case, from its scene to its end, and compares the prediction with what happens."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bench.conformance.predictions.cases import Case
from bench.conformance.predictions.comparison import (
    ObservedPod,
    PredictedMove,
    deadlocks,
    differences,
    of_drain,
    of_plan,
)
from bench.conformance.predictions.setup import LIMIT, PredictionClusters
from bench.kit.sites import NotInTime, until

CALM = 4.0
"""Seconds without a change that count as the end: passes are a minute apart, and one is compared."""
LOOK = 0.5


async def run_case(clusters: PredictionClusters, name: str, case: Case) -> dict[str, Any]:
    """Play a case; "differences" in its result lists what is different."""
    await clusters.begin(name, dict(case.policy))
    try:
        await case.scene(clusters)
        return await _compared(clusters, case)
    except NotInTime as error:
        return {"differences": [str(error)]}
    finally:
        await clusters.end()


async def _compared(clusters: PredictionClusters, case: Case) -> dict[str, Any]:
    before = await clusters.seen()
    owners = {name.partition("/")[0]: one for name, one in before.items()}
    stuck: set[str] = set()
    if case.drained:
        predicted = of_drain(
            await clusters.run_json("plan", "--drain", case.drained, "-f", str(clusters.write())), owners
        )
        await clusters.maintain(case.drained, "drain")
    else:
        document = await clusters.run_json("plan", "-f", str(clusters.write("plan.yaml", enabled=True)))
        predicted, stuck = of_plan(document, owners), deadlocks(document, clusters.namespace)
        clusters.write(enabled=True)
    after, seen = await _settled(clusters, before, len(predicted), len(stuck))
    found = differences(predicted, before, after, loose=case.loose)
    if seen != stuck:
        found.append(f"{sorted(stuck)} were said to fit nowhere else, and {sorted(seen)} did not")
    if (len(predicted), len(stuck)) != (case.moves, case.on_blocked):
        found.append(
            f"{len(predicted)} moves and {len(stuck)} blocked pods predicted, expected {case.moves}, {case.on_blocked}"
        )
    happened = {**_went(before, after), "fits_nowhere": sorted(seen)}
    return {
        "said": {"moves": _as_document(predicted), "fits_nowhere": sorted(stuck)},
        "happened": happened,
        "differences": found,
    }


async def _settled(
    clusters: PredictionClusters, before: Mapping[str, ObservedPod], moves: int, stuck: int
) -> tuple[dict[str, ObservedPod], set[str]]:
    """Return the pods and those that fit no other lower, after the predicted numbers are reached and nothing changes.

    If they are not reached in time, the last state is returned. A Job waits ten seconds before it creates a pod again.
    """
    calm, last, deadlocked = 0.0, dict(before), set[str]()

    async def is_over() -> bool:
        """Read the state, and report whether nothing more is expected."""
        nonlocal calm, last, deadlocked
        found, deadlocked = await clusters.seen(), await clusters.deadlocked()
        calm = calm + LOOK if found == last and not await clusters.is_ending() else 0.0
        last = found
        moved = min(len(before.keys() - found.keys()), len(found.keys() - before.keys()))
        return calm >= CALM and moved >= moves and len(deadlocked) >= stuck

    with suppress(NotInTime):
        await until(is_over, "as many moved as were said to", LIMIT, LOOK)
    return last, deadlocked


def _as_document(predicted: Mapping[str, PredictedMove]) -> dict[str, Any]:
    return {
        name: {"from": one.source, "to": sorted(one.targets), "room": one.is_placed} for name, one in predicted.items()
    }


def _went(before: Mapping[str, ObservedPod], after: Mapping[str, ObservedPod]) -> dict[str, Any]:
    left = {name: one.node for name, one in before.items() if name not in after}
    come = {name: one.node for name, one in after.items() if name not in before}
    return {"left": _by_name(left), "came": _by_name(come)}


def _by_name(nodes: Mapping[str, str]) -> dict[str, str]:
    return {name.partition("/")[0]: node for name, node in nodes.items()}
