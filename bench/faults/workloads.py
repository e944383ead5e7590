"""User actions that the engine answers with writes: the workloads in which it is killed at each of these writes.

Add a new kind of object to `_objects` and `_changed`, and another sort of action to `WORKLOADS`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.final_states import Objects
from bench.kit.oracles import Manifest, is_ready
from bench.kit.rig import LOWERS
from bench.kit.trial_namespace import TrialNamespace
from tensile.names import CLUSTER_SELECTOR, DESCHEDULE_COUNT
from tensile.sandbox.state import UPPER

A, B = LOWERS
Act = Callable[[TrialNamespace], Awaitable[None]]
POD = "web"
STRATEGIC = "application/strategic-merge-patch+json"


async def _nothing(_scene: TrialNamespace) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Workload:
    """A workload.

    `prepare` creates the required objects, and returns when they are ready; `run` is the action to which the engine
    responds; `is_complete` reports whether the response is complete, as far as that is visible from outside;
    `is_counted` selects the writes that belong to it. `restore` reverts the action if it changed the topology. Writes
    of the resources `late` may follow after everything else: the messages of the lower scheduler about a pod are copied
    up when there is time, and once more five seconds after a refusal.
    """

    name: str
    run: Act
    is_complete: Callable[[Objects], bool]
    prepare: Act = _nothing
    restore: Act = _nothing
    is_counted: Callable[[TrialNamespace, ProxiedRequest], bool] = TrialNamespace.contains
    late: tuple[str, ...] = ()


def _objects(ns: TrialNamespace) -> list[tuple[str, Manifest]]:
    """Return a pod and all its dependencies, in the order of their creation, with their collections."""
    volumes = [{"name": "c", "configMap": {"name": "settings"}}, {"name": "s", "secret": {"secretName": "password"}}]
    spec = {
        "nodeName": ns.rig.nodes[A],
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


async def _create(ns: TrialNamespace) -> None:
    for plural, manifest in _objects(ns):
        await ns.rig.upper.call("POST", ns.path(plural), manifest)


async def _create_and_wait(ns: TrialNamespace) -> None:
    await _create(ns)
    await ns.wait_until(_runs, "the pod runs")
    await ns.create_canaries()


async def _change(ns: TrialNamespace) -> None:
    for plural, manifest in _objects(ns):
        path = ns.path(plural, manifest["metadata"]["name"])
        await ns.rig.upper.call("PATCH", path, _changed()[plural], STRATEGIC)


async def _remove(ns: TrialNamespace) -> None:
    for plural, manifest in reversed(_objects(ns)):
        await ns.rig.upper.delete(ns.path(plural, manifest["metadata"]["name"]))


async def _remove_lower_and_wait(ns: TrialNamespace) -> None:
    ns.rig.save(A)
    await ns.wait_until(lambda objects: _nodes(objects) == 1, "one node is left")


async def _remove_lower(ns: TrialNamespace) -> None:
    ns.rig.save(A)


async def _add_lower(ns: TrialNamespace) -> None:
    ns.rig.save()


async def _add_lower_and_wait(ns: TrialNamespace) -> None:
    ns.rig.save()
    await ns.rig.wait_until_usable()


async def _enable_descheduler(ns: TrialNamespace) -> None:
    """Make the descheduler run often."""
    policy = {"enabled": True, "interval": "2s", "pendingLongerThan": "1s", "recreateBarePods": True}
    ns.rig.extra_fields = {"descheduler": policy}
    ns.rig.save()
    await ns.rig.wait_until_usable()


async def _create_misplaced_pod(ns: TrialNamespace) -> None:
    """Create a pod without a controller in one lower cluster that requires a node of the other."""
    nodes = [one["metadata"]["name"] for one in await ns.rig.sites[B].items("/api/v1/nodes")]
    selector = {"nodeSelector": {"kubernetes.io/hostname": min(nodes)}}
    either = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(ns.rig.nodes.values())}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [either]}]}
    spec = {
        "nodeName": ns.rig.nodes[A],
        "containers": [{"name": "main", "image": "app:1"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
    }
    meta = {"name": POD, "annotations": {CLUSTER_SELECTOR: orjson.dumps(selector).decode(), "note": "kept"}}
    await ns.rig.upper.call("POST", ns.path("pods"), {"metadata": meta, "spec": spec})


async def _delete_pod_and_disable_descheduler(ns: TrialNamespace) -> None:
    """Delete the pod, and disable the descheduler."""
    await ns.rig.upper.delete(ns.path("pods", POD))
    ns.rig.extra_fields = {}
    ns.rig.save()


def _has_moved(objects: Objects) -> bool:
    """Report whether the pod runs in the other lower cluster, was recreated once, and left no Secret."""
    counts = [(one["metadata"].get("annotations") or {}).get(DESCHEDULE_COUNT) for one in objects[UPPER]["pods"]]
    there = [len(objects[lower]["pods"]) for lower in LOWERS]
    is_running = all(map(is_ready, objects[UPPER]["pods"]))
    return is_running and (counts, there, objects[UPPER]["secrets"]) == (["1"], [0, 1], [])


def _belongs_to_move(ns: TrialNamespace, request: ProxiedRequest) -> bool:
    """Report whether a write is in the namespace, or patches the node that the pod leaves."""
    is_note = (request.kind, request.verb, request.name) == ("nodes", "patch", ns.rig.nodes[A])
    return is_note or ns.contains(request)


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


def _belongs_to_node(ns: TrialNamespace, request: ProxiedRequest) -> bool:
    """Report whether a write is about the node, or creates its lease: renewals of the lease do not count."""
    is_it = request.name == ns.rig.nodes[B] and request.resource in ("nodes", "leases")
    return is_it and (request.resource != "leases" or request.verb == "create")


WORKLOADS = (
    Workload("create", _create, _runs, restore=_remove),
    Workload("update", _change, _has_changed, prepare=_create_and_wait, restore=_remove),
    Workload("delete", _remove, _is_gone, prepare=_create_and_wait),
    Workload(
        "bare pod moved",
        _create_misplaced_pod,
        _has_moved,
        prepare=_enable_descheduler,
        restore=_delete_pod_and_disable_descheduler,
        is_counted=_belongs_to_move,
        late=("events",),
    ),
    Workload("lower added", _add_lower, _both_ready, prepare=_remove_lower_and_wait, is_counted=_belongs_to_node),
    Workload(
        "lower removed",
        _remove_lower,
        _one_left,
        prepare=_add_lower_and_wait,
        restore=_add_lower_and_wait,
        is_counted=_belongs_to_node,
    ),
)
