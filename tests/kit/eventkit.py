"""Events to test with: a world with one mirrored pod, and events of its lower pod."""

from typing import Any

import orjson
from worldkit import A, make_lower_pod, make_upper_pod, make_world, put

from tensile.reconcile.world import LowerWorld, World

MOMENT = "2026-03-01T12:00:00Z"


def mirrored_world(*names: str) -> World:
    """Make a world in which these pods are mirrored, each with the UID that `lower_event` refers to.

    A name may be "NAMESPACE/NAME"; otherwise it is in the namespace default.
    """
    world = make_world()
    for one in names or ("web",):
        namespace, _, name = one.rpartition("/")
        upper_object = make_upper_pod(name, namespace=namespace or "default")
        put(world.lowers[A].upper_pods, upper_object)
        put(world.lowers[A].pods, make_lower_pod(upper_object))
    return world


def lower_of(world: World) -> LowerWorld:
    """Return the lower whose events are received."""
    return world.lowers[A]


def lower_event(name: str = "web", uid: str = "e-1", **fields: Any) -> bytes:
    """Make the bytes of an event of a lower pod, as a kubelet writes it, with `fields` merged over it."""
    namespace, _, name = name.rpartition("/")
    namespace = namespace or "default"
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": f"below-Pod-{name}"}
    made: dict[str, Any] = {
        "metadata": {"name": f"{name}.17", "namespace": namespace, "uid": uid, **fields.pop("metadata", {})},
        "involvedObject": involved | {"resourceVersion": "7", "fieldPath": "spec.containers{main}"},
        "reason": "BackOff",
        "message": "Back-off pulling image",
        "type": "Warning",
        "source": {"component": "kubelet", "host": "n1"},
        "firstTimestamp": MOMENT,
        "lastTimestamp": MOMENT,
        "count": 1,
        "eventTime": None,
        "reportingComponent": "kubelet",
        "reportingInstance": "n1",
    }
    involved_now = made["involvedObject"] | fields.pop("involvedObject", {})
    return orjson.dumps({**made, **fields, "involvedObject": involved_now})
