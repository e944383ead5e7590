"""Plays one case, from its workload to its end, and compares what the plan predicts with what happens."""

from contextlib import suppress
from typing import Any

from bench.conformance.costs.cases import Case
from bench.conformance.costs.comparison import LEAVING, State, differences, effects
from bench.conformance.costs.setup import CostClusters
from bench.kit.sites import NotInTime, until

CALM, AFTER_LAST = 3.0, 6.0
"""Seconds without a change that count as the end. Copies stay for 5 s after their last pod has left."""
LOOK = 0.5
SETTLED_IN = 30.0


async def run_case(clusters: CostClusters, case: Case) -> dict[str, Any]:
    """Play a case; "differences" in its result lists what is different."""
    try:
        await clusters.begin(*case.before)
        for load in case.loads:
            await load(clusters)
        return await _compared(clusters, case)
    except NotInTime as error:
        return {"differences": [str(error)]}
    finally:
        await clusters.end()


async def _compared(clusters: CostClusters, case: Case) -> dict[str, Any]:
    edited = clusters.with_edits(*case.edits)
    await clusters.note()
    before = await clusters.state()
    document = await clusters.planned(edited)
    cost = document["cost"]
    await clusters.apply(edited)
    after = await _settled(
        clusters,
        before,
        sum(len(cost[word]) for word in (*LEAVING, "ended", "restarted")),
        sum(len(cost[word]) for word in LEAVING),
    )
    evicted = clusters.evicted()
    found = differences(cost, before, after, evicted, clusters.budgets)
    counts = {word: len(value) for word, value in cost.items() if value}
    if counts != dict(case.says):
        found.append(f"the plan says {counts or 'nothing'}, and should say {dict(case.says) or 'nothing'}")
    happened = {word: sorted(names) for word, names in effects(before, after, evicted)._asdict().items() if names}
    return {
        "kind": case.kind,
        "said": {word: cost[word] for word in counts},
        "happened": happened,
        "differences": found,
    }


async def _settled(clusters: CostClusters, before: State, pods: int, successors: int) -> State:
    """Return the state after as many pods are affected as predicted, and nothing has changed for a while.

    That many `successors` have to exist: a Job waits ten seconds before it creates a pod again.
    """
    calm, last = 0.0, before
    old = {pod.uid for pod in before.pods.values()}

    async def is_over() -> bool:
        """Read the state, and report whether nothing more is expected."""
        nonlocal calm, last
        found = await clusters.state()
        is_ending = any(pod.is_ending for pod in found.pods.values())
        calm = calm + LOOK if found == last and not is_ending else 0.0
        last = found
        hit = sum(name not in found.pods or found.pods[name][:5] != pod[:5] for name, pod in before.pods.items())
        come = sum(pod.uid not in old for pod in found.pods.values())
        return calm >= (AFTER_LAST if hit else CALM) and hit >= pods and come >= successors

    with suppress(NotInTime):
        await until(is_over, "nothing changes", SETTLED_IN, LOOK)
    return last
