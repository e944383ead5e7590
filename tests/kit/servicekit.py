"""Services and slices for tests of their rules, and a world with a Service and two endpoints to mirror."""

from typing import Any

from worldkit import (
    A,
    add_namespace,
    add_virtual_node,
    change_as_other_client,
    make_lower_pod,
    make_object,
    make_upper_pod,
    make_world,
    put,
    with_managed_fields,
)

from tensile.kube.store import Cache, Entry
from tensile.objects import ENDPOINT_SLICE, SERVICE, Manifest, Ref
from tensile.reconcile.plan import plan
from tensile.reconcile.rules import endpoint_slices, services
from tensile.reconcile.rules.endpoint_slices import slice_key
from tensile.reconcile.rules.services import service_key
from tensile.reconcile.world import Key, UpperServer, World

KEY = service_key(A, "default", "web")
SLICE_KEY = slice_key(A, "default", "web-1")
ALIAS_KEY = service_key(A, "default", "kubernetes-upper")
ALIAS_SLICE_KEY = slice_key(A, "default", "kubernetes-upper")
REF = Ref(A, SERVICE, "default", "web")
SLICE_REF = Ref(A, ENDPOINT_SLICE, "default", "web-1")
PORTS = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]
SERVER = UpperServer("10.200.0.1", 6443)


def service(name: str = "web", namespace: str = "default", **spec: Any) -> Manifest:
    """Make a Service as the API stores it; fields that are None are left out."""
    basis = {
        "type": "ClusterIP",
        "clusterIP": "10.0.0.7",
        "clusterIPs": ["10.0.0.7"],
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
        "sessionAffinity": "None",
        "selector": {"app": "web"},
        "ports": PORTS,
    }
    fields = {key: value for key, value in {**basis, **spec}.items() if value is not None}
    return {**make_object("Service", name, namespace, labels={"team": "blue"}), "spec": fields}


def endpoint(address: str, *, ready: bool = True, **fields: Any) -> Manifest:
    """Make an endpoint as Kubernetes does for a pod."""
    conditions = {"ready": ready, "serving": ready, "terminating": False}
    pod = {"kind": "Pod", "name": f"pod-{address}", "namespace": "default"}
    return {"addresses": [address], "conditions": conditions, "nodeName": A, "zone": "z", "targetRef": pod, **fields}


def endpoint_slice(name: str = "web-1", *endpoints: Manifest, of: str = "web", **meta: Any) -> Manifest:
    """Make a slice of a Service as Kubernetes does; with two endpoints if none are given."""
    given = {
        "kubernetes.io/service-name": of,
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    made = make_object(
        "EndpointSlice", name, meta.pop("namespace", "default"), "discovery.k8s.io/v1", labels=given, **meta
    )
    found = endpoints or (endpoint("10.1.0.1"), endpoint("10.1.0.2"))
    ports = [{"name": "http", "port": 8080, "protocol": "TCP"}]
    return {**made, "addressType": "IPv4", "endpoints": list(found), "ports": ports}


def service_world(*, server: UpperServer | None = None, more: str = "") -> World:
    """Make a world with a pod bound to lower-a, and an upper Service with a slice."""
    world = make_world(more=more)
    world.upper_server = server
    add_virtual_node(world)
    add_namespace(world)
    put(world.lowers[A].upper_pods, make_upper_pod())
    put(world.upper.more[SERVICE], service())
    put(world.upper.more[ENDPOINT_SLICE], endpoint_slice())
    return world


def apply_desired(world: World, *keys: Key) -> World:
    """Put the desired objects of keys into the lower, as the API would store them.

    Without keys, these are the Service and its slice.
    """
    for key in keys or (KEY, SLICE_KEY):
        rule = services.RULE if key.rule == services.RULE.name else endpoint_slices.RULE
        for step in plan(key, rule.decide(key, world), world).steps:
            assert step.verb == "create"
            assert step.body is not None
            kind = step.ref.kind
            meta = step.body["metadata"] | {"uid": f"below-{kind.name}-{step.ref.name}"}
            put(world.lowers[A].more[kind], with_managed_fields({**step.body, "metadata": meta}))
    return world


def lower_object(world: World, kind: Any, name: str) -> Manifest:
    """Return a lower object of namespace default."""
    entry = world.lowers[A].more[kind].get("default", name)
    assert entry is not None
    return entry.manifest()


def put_lower_pod(world: World) -> World:
    """Put the lower pod into lower-a too."""
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod()))
    return world


def edited(cache: Cache, name: str, **spec: Any) -> Entry:
    """Change fields of a Service's spec, as another client does."""
    return change_as_other_client(cache, name, lambda one: one["spec"].update(spec))
