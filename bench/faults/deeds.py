"""User actions that the engine answers with writes: the workloads in which it is killed at each of these writes.

A new kind of object is added to `_things` and `_changed`; another sort of action is an entry of `DEEDS`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from bench.kit.endstates import Objects
from bench.kit.faultproxy.asked import Asked
from bench.kit.oracles import Manifest, is_ready
from bench.kit.rig import LOWERS
from bench.kit.scene import Scene
from tensile.names import CLUSTER_SELECTOR, DESCHEDULE_COUNT
from tensile.sandbox.state import UPPER

A, B = LOWERS
Act = Callable[[Scene], Awaitable[None]]
POD = "web"
STRATEGIC = "application/strategic-merge-patch+json"


async def _nothing(_scene: Scene) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Workload:
    """A workload.

    `prepare` creates the required objects, and returns when they are ready; `do` is the action to which the engine
    responds; `done` reports whether the response is complete, as far as that is visible from outside; `counts` selects
    the writes that belong to it. `restore` reverts the action if it changed the topology. Writes of the resources
    `late` may follow after everything else: the messages of the lower scheduler about a pod are copied up when there is
    time, and once more five seconds after a refusal.
    """

    name: str
    do: Act
    done: Callable[[Objects], bool]
    prepare: Act = _nothing
    restore: Act = _nothing
    counts: Callable[[Scene, Asked], bool] = Scene.is_here
    late: tuple[str, ...] = ()


def _things(scene: Scene) -> list[tuple[str, Manifest]]:
    """Return a pod and all its dependencies, in the order of their creation, with their collections."""
    volumes = [{"name": "c", "configMap": {"name": "settings"}}, {"name": "s", "secret": {"secretName": "password"}}]
    spec = {
        "nodeName": scene.rig.nodes[A],
        "containers": [{"name": "main", "image": "app:1"}],
        "volumes": volumes,
        "terminationGracePeriodSeconds": 1,
    }
    return [
        ("configmaps", {"metadata": {"name": "settings"}, "data": {"mode": "slow"}}),
        ("secrets", {"metadata": {"name": "password"}, "data": {"word": "c2VjcmV0"}}),
        ("pods", {"metadata": {"name": POD, "labels": {"app": POD}}, "spec": spec}),
    ]


def _changed() -> dict[str, Manifest]:
    """Return the changes to these objects, a strategic merge patch for each collection."""
    return {
        "configmaps": {"data": {"mode": "fast", "more": "1"}},
        "secrets": {"data": {"word": "bmV3"}},
        "pods": {"metadata": {"labels": {"app": POD, "tier": "x"}}, "spec": {"containers": _image()}},
    }


def _image() -> list[Manifest]:
    return [{"name": "main", "image": "app:2"}]


async def _make(scene: Scene) -> None:
    for plural, manifest in _things(scene):
        await scene.rig.upper.call("POST", scene.path(plural), manifest)


async def _made(scene: Scene) -> None:
    await _make(scene)
    await scene.has_come(_runs, "the pod runs")
    await scene.place_canaries()


async def _change(scene: Scene) -> None:
    for plural, manifest in _things(scene):
        path = scene.path(plural, manifest["metadata"]["name"])
        await scene.rig.upper.call("PATCH", path, _changed()[plural], STRATEGIC)


async def _remove(scene: Scene) -> None:
    for plural, manifest in reversed(_things(scene)):
        await scene.rig.upper.delete(scene.path(plural, manifest["metadata"]["name"]))


async def _with_one(scene: Scene) -> None:
    scene.rig.save(A)
    await scene.has_come(lambda objects: _nodes(objects) == 1, "one node is left")


async def _save_one(scene: Scene) -> None:
    scene.rig.save(A)


async def _save_both(scene: Scene) -> None:
    scene.rig.save()


async def _with_both(scene: Scene) -> None:
    scene.rig.save()
    await scene.rig.usable()


async def _descheduling(scene: Scene) -> None:
    """Make the descheduler run often."""
    policy = {"enabled": True, "interval": "2s", "pendingLongerThan": "1s", "recreateBarePods": True}
    scene.rig.more = {"descheduler": policy}
    scene.rig.save()
    await scene.rig.usable()


async def _strand(scene: Scene) -> None:
    """Create a pod without a controller in one lower cluster that requires a node of the other."""
    nodes = [one["metadata"]["name"] for one in await scene.rig.sites[B].items("/api/v1/nodes")]
    asked = {"nodeSelector": {"kubernetes.io/hostname": min(nodes)}}
    either = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(scene.rig.nodes.values())}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [either]}]}
    spec = {
        "nodeName": scene.rig.nodes[A],
        "containers": [{"name": "main", "image": "app:1"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
    }
    meta = {"name": POD, "annotations": {CLUSTER_SELECTOR: orjson.dumps(asked).decode(), "note": "kept"}}
    await scene.rig.upper.call("POST", scene.path("pods"), {"metadata": meta, "spec": spec})


async def _free(scene: Scene) -> None:
    """Delete the pod, and disable the descheduler."""
    await scene.rig.upper.delete(scene.path("pods", POD))
    scene.rig.more = {}
    scene.rig.save()


def _has_moved(objects: Objects) -> bool:
    """Report whether the pod runs in the other lower cluster, was recreated once, and left no Secret."""
    counts = [(one["metadata"].get("annotations") or {}).get(DESCHEDULE_COUNT) for one in objects[UPPER]["pods"]]
    there = [len(objects[lower]["pods"]) for lower in LOWERS]
    is_running = all(map(is_ready, objects[UPPER]["pods"]))
    return is_running and (counts, there, objects[UPPER]["secrets"]) == (["1"], [0, 1], [])


def _of_the_move(scene: Scene, asked: Asked) -> bool:
    """Report whether a write is in the namespace, or patches the node that the pod leaves."""
    is_note = (asked.kind, asked.verb, asked.name) == ("nodes", "patch", scene.rig.nodes[A])
    return is_note or scene.is_here(asked)


def _runs(objects: Objects) -> bool:
    return all(map(is_ready, objects[UPPER]["pods"])) and len(objects[A]["pods"]) == 1


def _has_changed(objects: Objects) -> bool:
    pods, maps = objects[A]["pods"], objects[A]["configmaps"]
    secrets = objects[A]["secrets"]
    tiers = [one["metadata"]["labels"].get("tier") for one in pods]
    images = [one["spec"]["containers"][0]["image"] for one in pods]
    values = [one["data"].get("more") for one in maps] + [one["data"].get("word") for one in secrets]
    return (tiers, images, values) == (["x"], ["app:2"], ["1", "bmV3"])


def _is_gone(objects: Objects) -> bool:
    return not any(objects[cluster][plural] for cluster in objects for plural in ("pods", "configmaps", "secrets"))


def _nodes(objects: Objects) -> int:
    return len(objects[UPPER]["nodes"])


def _both_ready(objects: Objects) -> bool:
    leases = len(objects[UPPER]["leases"])
    return _nodes(objects) == leases == len(LOWERS) and all(map(is_ready, objects[UPPER]["nodes"]))


def _one_left(objects: Objects) -> bool:
    return _nodes(objects) == len(objects[UPPER]["leases"]) == 1


def _of_the_node(scene: Scene, asked: Asked) -> bool:
    """Report whether a write is about the node, or creates its lease: renewals of the lease do not count."""
    is_it = asked.name == scene.rig.nodes[B] and asked.resource in ("nodes", "leases")
    return is_it and (asked.resource != "leases" or asked.verb == "create")


DEEDS = (
    Workload("create", _make, _runs, restore=_remove),
    Workload("update", _change, _has_changed, prepare=_made, restore=_remove),
    Workload("delete", _remove, _is_gone, prepare=_made),
    Workload(
        "bare pod moved",
        _strand,
        _has_moved,
        prepare=_descheduling,
        restore=_free,
        counts=_of_the_move,
        late=("events",),
    ),
    Workload("lower added", _save_both, _both_ready, prepare=_with_one, counts=_of_the_node),
    Workload("lower removed", _save_one, _one_left, prepare=_with_both, restore=_with_both, counts=_of_the_node),
)
