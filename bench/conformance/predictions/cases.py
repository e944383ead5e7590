"""Twenty-one scenes in which pods have to move, or cannot: sixteen for the descheduler, five for a drain.

A scene first creates the pods in the lower that they should leave, while no other has capacity for them, and then adds
capacity to others. In the descheduler's scenes, the pods that leave are bound to a virtual node, but no real node
behind it accepts them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.conformance.predictions.setup import BUDGETS, A, B, C, PredictionClusters
from bench.kit.sites import NODES, PODS
from tensile.names import TRIED
from tensile.policy.descheduler.limits import EvictionRecord, encode_records

SSD = {"disk": "ssd"}
Scene = Callable[[PredictionClusters], Awaitable[None]]


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


async def fragments(clusters: PredictionClusters) -> None:
    """The lower has capacity for the pod in sum, but on no single node; another lower has it on one."""
    await _stuck(clusters)
    await clusters.offer(B, 4)


async def choice(clusters: PredictionClusters) -> None:
    """Two other lowers have capacity."""
    await _stuck(clusters)
    await clusters.offer(B, 4)
    await clusters.offer(C, 4)


async def one_each(clusters: PredictionClusters) -> None:
    """There are two replicas, and two other lowers with capacity for one each."""
    await clusters.offer(A, 2, 2, 2)
    await clusters.deploy("web", 2, 3)
    await clusters.waits("web", 2, A)
    await clusters.offer(B, 3)
    await clusters.offer(C, 3)


async def two_owners(clusters: PredictionClusters) -> None:
    """The same with pods of two owners: the lower predicted for one owner's pod is not denied to the other's."""
    await clusters.offer(A, 2, 2, 2)
    for app in ("one", "other"):
        await clusters.deploy(app, 1, 3)
        await clusters.waits(app, 1, A)
    await clusters.offer(B, 3)
    await clusters.offer(C, 3)


async def partial_fit(clusters: PredictionClusters) -> None:
    """There is capacity for one of two pods: the other stays, before and after the first has moved."""
    await clusters.offer(A, 2, 2, 2)
    await clusters.deploy("web", 2, 3)
    await clusters.waits("web", 2, A)
    await clusters.offer(B, 4)


async def limit(clusters: PredictionClusters) -> None:
    """Five pods require a node label that their lower does not have, and two may leave at a time."""
    await clusters.offer(A, 9)
    await clusters.deploy("web", 5, 1, {"nodeSelector": SSD})
    await clusters.waits("web", 5, A)
    await _ssd(clusters, B, 9)


async def two_sources(clusters: PredictionClusters) -> None:
    """Three pods each in two lowers, of which two may leave each at a time, fit the third lower."""
    await clusters.offer(A, 3)
    await clusters.deploy("one", 3, 1, {"nodeSelector": SSD})
    await clusters.waits("one", 3, A)
    await clusters.offer(B, 3)
    await clusters.deploy("other", 3, 1, {"nodeSelector": SSD})
    await clusters.waits("other", 3, B)
    await _ssd(clusters, C, 9)


async def contended(clusters: PredictionClusters) -> None:
    """There is one pod each in two lowers, and capacity for one in the third: the one that waits longer gets it."""
    await clusters.offer(A, 2, 2)
    await clusters.deploy("older", 1, 3)
    await clusters.waits("older", 1, A)
    await clusters.offer(B, 2, 2)
    await clusters.deploy("younger", 1, 3)
    await clusters.waits("younger", 1, B)
    await clusters.offer(C, 4)


async def cooldown(clusters: PredictionClusters) -> None:
    """A pod of the same owner has left the second lower recently, so the pod moves to the third."""
    await _left(clusters, await _stuck(clusters), B)
    await clusters.offer(B, 4)
    await clusters.offer(C, 4)


async def cooldown_deadlock(clusters: PredictionClusters) -> None:
    """A pod of the owner has left the second lower recently, and the third lacks capacity: the pod stays."""
    await _left(clusters, await _stuck(clusters), B)
    await clusters.offer(B, 4)
    await clusters.offer(C, 2, 2)


async def deadlock(clusters: PredictionClusters) -> None:
    """Each lower has capacity in sum, but not on a single node."""
    await _stuck(clusters)
    await clusters.offer(B, 2, 2)
    await clusters.offer(C, 2, 2, 2)


async def tainted(clusters: PredictionClusters) -> None:
    """The node with capacity in the second lower has a taint."""
    await _stuck(clusters)
    await clusters.taint(B, 1)
    await clusters.offer(B, 4)
    await clusters.offer(C, 4)


async def selected(clusters: PredictionClusters) -> None:
    """The pod requires one of two lowers by name, so the third is excluded, and a label of real nodes."""
    await clusters.offer(A, 4)
    affinity = {"key": "clusterID", "operator": "In", "values": [A, B]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [affinity]}]}
    spec = {
        "nodeSelector": SSD,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
    }
    await clusters.deploy("web", 1, 3, spec)
    await clusters.waits("web", 1, A)
    await _ssd(clusters, B, 4)
    await _ssd(clusters, C, 4)


async def closed(clusters: PredictionClusters) -> None:
    """The topology file cordons the second lower."""
    await _stuck(clusters)
    await clusters.offer(B, 4)
    await clusters.offer(C, 4)
    await clusters.maintain(B, "cordon")


async def node_lost(clusters: PredictionClusters) -> None:
    """The node that had capacity in the second lower is deleted."""
    await _stuck(clusters)
    await clusters.offer(B, 4, 2)
    await clusters.offer(C, 4)
    await clusters.stop_node(B, 1)
    await clusters.offers(B, 2)


async def mixed_owners(clusters: PredictionClusters) -> None:
    """The pods belong to a Deployment whose budget allows no disruption, a StatefulSet, a Job, and no owner."""
    await clusters.offer(A, 9)
    spec = {"nodeSelector": SSD}
    await clusters.deploy("web", 1, 1, spec)
    await clusters.make(BUDGETS, {"metadata": {"name": "web"}, "spec": {"maxUnavailable": 0, "selector": _of("web")}})
    body = {"serviceName": "db", "replicas": 1, "selector": _of("db"), "template": clusters.template("db", 1, spec)}
    await clusters.make("/apis/apps/v1/namespaces/{}/statefulsets", {"metadata": {"name": "db"}, "spec": body})
    once = clusters.template("once", 1, {**spec, "restartPolicy": "Never"})
    once["metadata"]["annotations"] = {"sandbox.tensile-kube.io/outcome": "run"}  # otherwise the sandbox completes it
    ignored = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
    job = {"template": once, "podFailurePolicy": ignored}
    await clusters.make("/apis/batch/v1/namespaces/{}/jobs", {"metadata": {"name": "once"}, "spec": job})
    alone = clusters.template("alone", 1, spec)
    await clusters.make(PODS, {"metadata": {"name": "alone", **alone["metadata"]}, "spec": alone["spec"]})
    for app in ("web", "db", "once", "alone"):
        await clusters.waits(app, 1, A)
    await _ssd(clusters, B, 9)


async def drained(clusters: PredictionClusters) -> None:
    """Three running pods leave for two other lowers that have capacity for all."""
    await _running(clusters, 3, 1)
    await clusters.offer(B, 4)
    await clusters.offer(C, 4)


async def drained_slowly(clusters: PredictionClusters) -> None:
    """A budget allows one pod at a time to be unavailable."""
    await _running(clusters, 3, 1)
    await clusters.make(BUDGETS, {"metadata": {"name": "web"}, "spec": {"maxUnavailable": 1, "selector": _of("web")}})
    await clusters.offer(B, 3)


async def drained_in_part(clusters: PredictionClusters) -> None:
    """There is capacity for one of two pods: the other has no node afterwards."""
    await _running(clusters, 2, 3)
    await clusters.offer(B, 4)


async def drained_blindly(clusters: PredictionClusters) -> None:
    """One lower has capacity on one node, another in sum: the upper scheduler cannot distinguish them."""
    await _running(clusters, 1, 3)
    await clusters.offer(B, 4)
    await clusters.offer(C, 2, 2)


async def drained_with_one_alone(clusters: PredictionClusters) -> None:
    """One of the pods has no controller, so the engine creates it again."""
    await _running(clusters, 2, 1)
    alone = clusters.template("alone", 1)
    await clusters.make(PODS, {"metadata": {"name": "alone", **alone["metadata"]}, "spec": alone["spec"]})
    await clusters.runs("alone", 1)
    await clusters.offer(B, 4)


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


async def _stuck(clusters: PredictionClusters) -> str:
    """Leave a pod pending in the first lower, whose capacity is on no single node; return its owner's UID."""
    await clusters.offer(A, 2, 2)
    owner = await clusters.deploy("web", 1, 3)
    await clusters.waits("web", 1, A)
    return owner


async def _running(clusters: PredictionClusters, replicas: int, slots: int) -> None:
    """Run pods in the first lower."""
    await clusters.offer(A, 9)
    await clusters.deploy("web", replicas, slots)
    await clusters.runs("web", replicas)


async def _ssd(clusters: PredictionClusters, lower: str, slots: int) -> None:
    """Add that label and an amount of capacity to a node of a lower cluster."""
    await clusters.label(lower, 1, **SSD)
    await clusters.offer(lower, slots)


async def _left(clusters: PredictionClusters, owner: str, lower: str) -> None:
    """Record that a pod of an owner left a lower two minutes ago, as the engine does."""
    node = f"{NODES}/{lower}"
    note = EvictionRecord(owner, "long-gone", datetime.now(UTC) - timedelta(minutes=2), (lower,))
    await clusters.edit(clusters.upper, node, {"metadata": {"annotations": {TRIED: encode_records([note])}}})


def _of(app: str) -> dict[str, Any]:
    return {"matchLabels": {"app": app}}
