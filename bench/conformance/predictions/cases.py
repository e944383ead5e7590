"""Twenty-one scenes in which pods have to move, or cannot: sixteen for the descheduler, five for a drain.

A scene first creates the pods in the lower that they should leave, while no other has capacity for them, and then adds
capacity to others. In the descheduler's scenes, the pods that leave are bound to a virtual node, but no real node
behind it accepts them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.conformance.predictions.stage import BUDGETS, A, B, C, Stage
from bench.kit.sites import NODES, PODS
from tensile.names import TRIED
from tensile.policy.descheduler.limits import EvictionRecord, encode_records

SSD = {"disk": "ssd"}
Scene = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """A scene, with the expected numbers of pods that move and that fit no other lower, to exclude chance agreement."""

    scene: Scene
    moves: int
    on_blocked: int = 0
    policy: Mapping[str, Any] = field(default_factory=dict)
    drained: str = ""
    """The lower that is drained; "" if the descheduler moves the pods."""
    loose: bool = False
    """Whether pods may also move to a lower in which they were predicted to wait."""


async def fragments(stage: Stage) -> None:
    """The lower has capacity for the pod in sum, but on no single node; another lower has it on one."""
    await _stuck(stage)
    await stage.offer(B, 4)


async def choice(stage: Stage) -> None:
    """Two other lowers have capacity."""
    await _stuck(stage)
    await stage.offer(B, 4)
    await stage.offer(C, 4)


async def one_each(stage: Stage) -> None:
    """There are two replicas, and two other lowers with capacity for one each."""
    await stage.offer(A, 2, 2, 2)
    await stage.deploy("web", 2, 3)
    await stage.waits("web", 2, A)
    await stage.offer(B, 3)
    await stage.offer(C, 3)


async def two_owners(stage: Stage) -> None:
    """The same with pods of two owners: the lower predicted for one owner's pod is not denied to the other's."""
    await stage.offer(A, 2, 2, 2)
    for app in ("one", "other"):
        await stage.deploy(app, 1, 3)
        await stage.waits(app, 1, A)
    await stage.offer(B, 3)
    await stage.offer(C, 3)


async def partial_fit(stage: Stage) -> None:
    """There is capacity for one of two pods: the other stays, before and after the first has moved."""
    await stage.offer(A, 2, 2, 2)
    await stage.deploy("web", 2, 3)
    await stage.waits("web", 2, A)
    await stage.offer(B, 4)


async def limit(stage: Stage) -> None:
    """Five pods require a node label that their lower does not have, and two may leave at a time."""
    await stage.offer(A, 9)
    await stage.deploy("web", 5, 1, {"nodeSelector": SSD})
    await stage.waits("web", 5, A)
    await _ssd(stage, B, 9)


async def two_sources(stage: Stage) -> None:
    """Three pods each in two lowers, of which two may leave each at a time, fit the third lower."""
    await stage.offer(A, 3)
    await stage.deploy("one", 3, 1, {"nodeSelector": SSD})
    await stage.waits("one", 3, A)
    await stage.offer(B, 3)
    await stage.deploy("other", 3, 1, {"nodeSelector": SSD})
    await stage.waits("other", 3, B)
    await _ssd(stage, C, 9)


async def contended(stage: Stage) -> None:
    """There is one pod each in two lowers, and capacity for one in the third: the one that waits longer gets it."""
    await stage.offer(A, 2, 2)
    await stage.deploy("older", 1, 3)
    await stage.waits("older", 1, A)
    await stage.offer(B, 2, 2)
    await stage.deploy("younger", 1, 3)
    await stage.waits("younger", 1, B)
    await stage.offer(C, 4)


async def cooldown(stage: Stage) -> None:
    """A pod of the same owner has left the second lower recently, so the pod moves to the third."""
    await _left(stage, await _stuck(stage), B)
    await stage.offer(B, 4)
    await stage.offer(C, 4)


async def cooldown_deadlock(stage: Stage) -> None:
    """A pod of the owner has left the second lower recently, and the third lacks capacity: the pod stays."""
    await _left(stage, await _stuck(stage), B)
    await stage.offer(B, 4)
    await stage.offer(C, 2, 2)


async def deadlock(stage: Stage) -> None:
    """Each lower has capacity in sum, but not on a single node."""
    await _stuck(stage)
    await stage.offer(B, 2, 2)
    await stage.offer(C, 2, 2, 2)


async def tainted(stage: Stage) -> None:
    """The node with capacity in the second lower has a taint."""
    await _stuck(stage)
    await stage.taint(B, 1)
    await stage.offer(B, 4)
    await stage.offer(C, 4)


async def selected(stage: Stage) -> None:
    """The pod requires one of two lowers by name, so the third is excluded, and a label of real nodes."""
    await stage.offer(A, 4)
    affinity = {"key": "clusterID", "operator": "In", "values": [A, B]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [affinity]}]}
    spec = {
        "nodeSelector": SSD,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
    }
    await stage.deploy("web", 1, 3, spec)
    await stage.waits("web", 1, A)
    await _ssd(stage, B, 4)
    await _ssd(stage, C, 4)


async def closed(stage: Stage) -> None:
    """The topology file cordons the second lower."""
    await _stuck(stage)
    await stage.offer(B, 4)
    await stage.offer(C, 4)
    await stage.maintain(B, "cordon")


async def node_lost(stage: Stage) -> None:
    """The node that had capacity in the second lower is deleted."""
    await _stuck(stage)
    await stage.offer(B, 4, 2)
    await stage.offer(C, 4)
    await stage.lose(B, 1)
    await stage.offers(B, 2)


async def mixed_owners(stage: Stage) -> None:
    """The pods belong to a Deployment whose budget allows no disruption, a StatefulSet, a Job, and no owner."""
    await stage.offer(A, 9)
    spec = {"nodeSelector": SSD}
    await stage.deploy("web", 1, 1, spec)
    await stage.make(BUDGETS, {"metadata": {"name": "web"}, "spec": {"maxUnavailable": 0, "selector": _of("web")}})
    body = {"serviceName": "db", "replicas": 1, "selector": _of("db"), "template": stage.template("db", 1, spec)}
    await stage.make("/apis/apps/v1/namespaces/{}/statefulsets", {"metadata": {"name": "db"}, "spec": body})
    once = stage.template("once", 1, {**spec, "restartPolicy": "Never"})
    once["metadata"]["annotations"] = {"sandbox.tensile-kube.io/outcome": "run"}  # otherwise the sandbox completes it
    ignored = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
    job = {"template": once, "podFailurePolicy": ignored}
    await stage.make("/apis/batch/v1/namespaces/{}/jobs", {"metadata": {"name": "once"}, "spec": job})
    alone = stage.template("alone", 1, spec)
    await stage.make(PODS, {"metadata": {"name": "alone", **alone["metadata"]}, "spec": alone["spec"]})
    for app in ("web", "db", "once", "alone"):
        await stage.waits(app, 1, A)
    await _ssd(stage, B, 9)


async def drained(stage: Stage) -> None:
    """Three running pods leave for two other lowers that have capacity for all."""
    await _running(stage, 3, 1)
    await stage.offer(B, 4)
    await stage.offer(C, 4)


async def drained_slowly(stage: Stage) -> None:
    """A budget allows one pod at a time to be unavailable."""
    await _running(stage, 3, 1)
    await stage.make(BUDGETS, {"metadata": {"name": "web"}, "spec": {"maxUnavailable": 1, "selector": _of("web")}})
    await stage.offer(B, 3)


async def drained_in_part(stage: Stage) -> None:
    """There is capacity for one of two pods: the other has no node afterwards."""
    await _running(stage, 2, 3)
    await stage.offer(B, 4)


async def drained_blindly(stage: Stage) -> None:
    """One lower has capacity on one node, another in sum: the upper scheduler cannot distinguish them."""
    await _running(stage, 1, 3)
    await stage.offer(B, 4)
    await stage.offer(C, 2, 2)


async def drained_with_one_alone(stage: Stage) -> None:
    """One of the pods has no controller, so the engine creates it again."""
    await _running(stage, 2, 1)
    alone = stage.template("alone", 1)
    await stage.make(PODS, {"metadata": {"name": "alone", **alone["metadata"]}, "spec": alone["spec"]})
    await stage.runs("alone", 1)
    await stage.offer(B, 4)


TWO = {"maxEvictionsPerNode": 2}
CASES: Mapping[str, Case] = {
    "fragments": Case(fragments, 1),
    "choice": Case(choice, 1),
    "one-each": Case(one_each, 2),
    "two-owners": Case(two_owners, 2),
    "partial-fit": Case(partial_fit, 1, 1),
    "limit": Case(limit, 2, policy=TWO),
    "two-sources": Case(two_sources, 4, policy=TWO),
    "contended": Case(contended, 1, 1),
    "cooldown": Case(cooldown, 1),
    "cooldown-deadlock": Case(cooldown_deadlock, 0, 1),
    "deadlock": Case(deadlock, 0, 1),
    "tainted": Case(tainted, 1),
    "selected": Case(selected, 1),
    "closed": Case(closed, 1),
    "node-lost": Case(node_lost, 1),
    "mixed-owners": Case(mixed_owners, 4),
    "drained": Case(drained, 3, drained=A),
    "drained-slowly": Case(drained_slowly, 3, drained=A),
    "drained-in-part": Case(drained_in_part, 2, drained=A),
    "drained-blindly": Case(drained_blindly, 1, drained=A, loose=True),
    "drained-with-one-alone": Case(drained_with_one_alone, 3, drained=A),
}


async def _stuck(stage: Stage) -> str:
    """Leave a pod pending in the first lower, whose capacity is on no single node; return its owner's UID."""
    await stage.offer(A, 2, 2)
    owner = await stage.deploy("web", 1, 3)
    await stage.waits("web", 1, A)
    return owner


async def _running(stage: Stage, replicas: int, slots: int) -> None:
    """Run pods in the first lower."""
    await stage.offer(A, 9)
    await stage.deploy("web", replicas, slots)
    await stage.runs("web", replicas)


async def _ssd(stage: Stage, lower: str, slots: int) -> None:
    """Add that label and an amount of capacity to a node of a lower cluster."""
    await stage.label(lower, 1, **SSD)
    await stage.offer(lower, slots)


async def _left(stage: Stage, owner: str, lower: str) -> None:
    """Record that a pod of an owner left a lower two minutes ago, as the engine does."""
    node = f"{NODES}/{lower}"
    note = EvictionRecord(owner, "long-gone", datetime.now(UTC) - timedelta(minutes=2), (lower,))
    await stage.edit(stage.upper, node, {"metadata": {"annotations": {TRIED: encode_records([note])}}})


def _of(app: str) -> dict[str, Any]:
    return {"matchLabels": {"app": app}}
