"""Events to test with: a world with one mirrored pod, and events of its lower pod."""

from typing import Any

import orjson
from worldkit import A, put, twin, upper_pod, world

from tensile.reconcile.world import LowerWorld, World

MOMENT = "2026-03-01T12:00:00Z"


def mirrored(*names: str) -> World:
    """Make a world in which these pods are mirrored, each with the UID that `lower_event` refers to.

    A name may be "NAMESPACE/NAME"; otherwise it is in the namespace default.
    """
    here = world()
    for one in names or ("web",):
        namespace, _, name = one.rpartition("/")
        above = upper_pod(name, namespace=namespace or "default")
        put(here.lowers[A].upper_pods, above)
        put(here.lowers[A].pods, twin(above))
    return here


def lower_of(here: World) -> LowerWorld:
    """Return the lower whose events are received."""
    return here.lowers[A]


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
