"""Tests of lower Services: which namespaces have them, how they follow the upper ones, and the alias Service."""

from typing import Any

import pytest
from rulekit import RuleUnderTest
from servicekit import (
    ALIAS_KEY,
    KEY,
    PORTS,
    REF,
    SERVER,
    SLICE_KEY,
    apply_desired,
    edited,
    put_lower_pod,
    service,
    service_world,
)
from worldkit import (
    OWNER_HERE,
    A,
    B,
    add_namespace,
    apply_topology,
    change_as_other_client,
    delete_observed,
    make_upper_pod,
    put,
    sorted_names,
    with_owner_marks,
)

from tensile.names import OWNER, OWNER_NAME, UPPER_UID
from tensile.objects import ENDPOINT_SLICE, SERVICE
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import services
from tensile.reconcile.rules.services import service_key
from tensile.reconcile.world import UpperServer, World

RULE = services.RULE
ASKED = RuleUnderTest(RULE, KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.affected_keys
DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}]


def operations(world: World) -> list[tuple[str, str]]:
    """Return the operations that update the lower Service."""
    step = the_step(world)
    assert step.verb == "patch"
    return sorted((one["op"], one["path"]) for one in step.operations)


def test_a_service_is_created_if_its_namespace_has_pods() -> None:
    """It has its labels and our marks, but no value that the upper cluster assigned."""
    step = the_step(service_world())
    assert (step.verb, step.ref, step.reason) == (
        "create",
        REF,
        "pods of namespace default are in lower cluster lower-a",
    )
    assert step.body == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "web",
            "namespace": "default",
            "labels": {"team": "blue", OWNER: OWNER_HERE.mark},
            "annotations": {OWNER_NAME: "demo", UPPER_UID: "Service-web"},
        },
        "spec": {
            "type": "ClusterIP",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ipFamilyPolicy": "SingleStack",
            "ports": PORTS,
        },
    }


def test_an_up_to_date_service_is_not_patched() -> None:
    """Values that the lower cluster assigned are no difference."""
    world = apply_desired(service_world())
    given = {"clusterIP": "10.7.0.1", "clusterIPs": ["10.7.0.1"], "ipFamilies": ["IPv4"]}
    edited(world.lowers[A].more[SERVICE], "web", **given)
    assert planned(world) == Plan(())


def test_an_excluded_namespace_has_no_lower_services() -> None:
    """No pod of it is mirrored, but a lower pod that still runs keeps its Services."""
    world = put_lower_pod(apply_desired(service_world()))
    apply_topology(world, more="excludeNamespaces: [default]")
    assert planned(world) == Plan(())
    delete_observed(world.lowers[A].pods, "web")
    assert the_step(world).verb == "delete"


def disabled() -> World:
    """Create a world in which a lower pod runs with its Services after `Service` was removed from `controllers`."""
    world = put_lower_pod(apply_desired(service_world(server=SERVER), KEY, SLICE_KEY, ALIAS_KEY))
    apply_topology(world, f"name: {A}, controllers: []")
    return world


def test_without_the_controller_services_of_running_pods_are_kept_up_to_date() -> None:
    """This includes the alias, but no Service is created, not even again."""
    world = disabled()
    assert planned(world) == planned(world, ALIAS_KEY) == Plan(())
    edited(world.upper.more[SERVICE], "web", ports=[*PORTS, {"name": "b", "port": 81, "protocol": "TCP"}])
    assert operations(world) == [("replace", "/spec/ports")]
    delete_observed(world.lowers[A].more[SERVICE], "web")
    assert planned(world) == Plan(())
    delete_observed(world.lowers[A].pods, "web")
    assert the_step(world, ALIAS_KEY).verb == "delete"


def test_without_the_controller_a_service_is_deleted_with_its_upper_service() -> None:
    """Another upper Service of that name does not replace it."""
    world = disabled()
    put(world.upper.more[SERVICE], {**service(), "metadata": service()["metadata"] | {"uid": "another"}})
    assert the_step(world).verb == "delete"
    world = disabled()
    delete_observed(world.upper.more[SERVICE], "web")
    assert the_step(world).verb == "delete"


def test_without_the_controller_no_service_is_replaced() -> None:
    """One to which another client added a selector stays, because it would not be created again."""
    world = disabled()
    edited(world.lowers[A].more[SERVICE], "web", selector={"app": "theirs"})
    assert planned(world) == Plan(())


@pytest.mark.parametrize("missing", ["upper services", "upper slices", "services", "slices", "pods"])
def test_nothing_is_decided_from_caches_that_are_not_synced(missing: str) -> None:
    """A list that has not arrived yet proves no absence."""
    world = apply_desired(service_world())
    delete_observed(world.upper.more[SERVICE], "web")
    caches = {
        "upper services": world.upper.more[SERVICE],
        "upper slices": world.upper.more[ENDPOINT_SLICE],
        "services": world.lowers[A].more[SERVICE],
        "slices": world.lowers[A].more[ENDPOINT_SLICE],
        "pods": world.lowers[A].upper_pods,
    }
    assert the_step(world).verb == "delete"
    caches[missing].mark_stale()
    assert planned(world) == Plan(())


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"ports": [*PORTS, {"name": "b", "port": 81, "protocol": "TCP"}]}, [("replace", "/spec/ports")]),
        ({"sessionAffinity": "ClientIP"}, [("replace", "/spec/sessionAffinity")]),
        ({"publishNotReadyAddresses": True}, [("add", "/spec/publishNotReadyAddresses")]),
        ({"ipFamilyPolicy": "RequireDualStack"}, [("replace", "/spec/ipFamilyPolicy")]),
    ],
)
def test_a_change_of_the_upper_service_is_patched(spec: dict[str, Any], found: list[tuple[str, str]]) -> None:
    """This applies to fields that are valid in the lower cluster (test_services_spec.py)."""
    world = apply_desired(service_world())
    edited(world.upper.more[SERVICE], "web", **spec)
    assert operations(world) == found


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"externalIPs": ["1.2.3.4"]}, [("remove", "/spec/externalIPs")]),
        ({"type": "NodePort"}, [("replace", "/spec/type")]),
        ({"ports": [{**PORTS[0], "nodePort": 30_000}]}, [("replace", "/spec/ports")]),
        ({"internalTrafficPolicy": "Local"}, [("replace", "/spec/internalTrafficPolicy")]),
    ],
)
def test_a_change_by_another_client_is_reverted(spec: dict[str, Any], found: list[tuple[str, str]]) -> None:
    """It could open the lower Service to other clients, or misdirect its traffic."""
    world = apply_desired(service_world())
    edited(world.lowers[A].more[SERVICE], "web", **spec)
    assert operations(world) == found


def test_our_labels_are_updated_and_those_of_other_clients_stay() -> None:
    """A label that is removed from the upper Service is removed from the lower one."""
    world = apply_desired(service_world())
    change_as_other_client(
        world.upper.more[SERVICE], "web", lambda one: one["metadata"].update(labels={"tier": "gold"})
    )
    change_as_other_client(
        world.lowers[A].more[SERVICE], "web", lambda one: one["metadata"]["labels"].update(theirs="1")
    )
    assert operations(world) == [("add", "/metadata/labels/tier"), ("remove", "/metadata/labels/team")]


def test_a_service_that_cannot_become_as_desired_is_replaced() -> None:
    """For a selector, Kubernetes creates slices of its own.

    Other immutable fields are in test_services_spec.py.
    """
    world = apply_desired(service_world())
    edited(world.lowers[A].more[SERVICE], "web", selector={"app": "web"})
    step = the_step(world)
    assert (step.verb, step.uid, step.requested) == ("delete", "below-Service-web", True)
    delete_observed(world.lowers[A].more[SERVICE], "web")
    assert the_step(world).verb == "create"


def test_the_apiservers_own_service_is_not_mirrored() -> None:
    """Every cluster has one in namespace default."""
    world = service_world()
    put(world.upper.more[SERVICE], service("kubernetes"), service("kubernetes", "shop"))
    add_namespace(world, namespace="shop")
    put(world.lowers[A].upper_pods, make_upper_pod(namespace="shop"))
    assert planned(world, service_key(A, "default", "kubernetes")) == Plan(())
    assert the_step(world, service_key(A, "shop", "kubernetes")).verb == "create"


@pytest.mark.parametrize("pods", [True, False])
def test_services_of_kube_system_are_mirrored_only_if_configured(pods: bool) -> None:  # noqa: FBT001
    """It does not matter whether pods of the namespace are mirrored."""
    world = service_world(more="excludeNamespaces: []")
    key = service_key(A, "kube-system", "dns")
    add_namespace(world, namespace="kube-system")
    put(world.upper.more[SERVICE], service("dns", "kube-system"))
    if pods:
        put(world.lowers[A].upper_pods, make_upper_pod(namespace="kube-system"))
    assert planned(world, key) == Plan(())
    apply_topology(world, more="excludeNamespaces: []\nservices: {kubeSystem: true}")
    assert the_step(world, key).verb == "create"
    assert key in set(RULE.keys(world, A))
    world.lowers[A].in_topology = False
    assert key not in set(RULE.keys(world, A))


# The alias.


def test_the_alias_service_exists_in_each_namespace_with_pods() -> None:
    """It has the usual port of the apiserver, and is marked as made for the upper cluster."""
    step = the_step(service_world(server=SERVER), ALIAS_KEY)
    assert step.body is not None
    assert step.body["metadata"]["annotations"][UPPER_UID] == OWNER_HERE.upper
    assert step.body["spec"]["ports"] == [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}]


@pytest.mark.parametrize("server", [None, UpperServer("127.0.0.1", 6443)], ids=["unknown", "loopback"])
def test_an_unknown_or_loopback_address_has_no_alias(server: UpperServer | None) -> None:
    """With a loopback address, it would direct every pod to itself."""
    assert planned(service_world(server=server), ALIAS_KEY) == Plan(())


def test_an_upper_service_with_the_name_of_the_alias_has_precedence() -> None:
    """The alias is deleted for it, and is wanted again after its deletion."""
    world = apply_desired(service_world(server=SERVER), ALIAS_KEY)
    put(world.upper.more[SERVICE], service("kubernetes-upper"))
    assert the_step(world, ALIAS_KEY).verb == "delete"
    delete_observed(world.upper.more[SERVICE], "kubernetes-upper")
    assert planned(world, ALIAS_KEY) == Plan(())


def test_a_former_alias_is_deleted() -> None:
    """The name of the alias was changed."""
    world = apply_desired(service_world(server=SERVER), ALIAS_KEY)
    apply_topology(world, more="services: {upperAlias: top}")
    assert the_step(world, ALIAS_KEY).verb == "delete"
    assert the_step(world, service_key(A, "default", "top")).verb == "create"


def test_kube_system_has_no_alias() -> None:
    """No configuration requests it there."""
    world = service_world(server=SERVER, more="services: {kubeSystem: true}")
    assert planned(world, service_key(A, "kube-system", "kubernetes-upper")) == Plan(())


# Keys that changes enqueue.


EVERY = ["default/kubernetes-upper", "default/web"]


def test_every_service_of_a_namespace_with_pods_and_every_copy_has_a_key() -> None:
    """Copies may be in any namespace."""
    world = service_world()
    put(world.upper.more[SERVICE], service("far", "shop"))
    put(world.lowers[A].more[SERVICE], with_owner_marks(service("left", "gone"), "x"))
    assert list(sorted_names(RULE.keys(world, A))) == [*EVERY, "gone/left"]
    assert list(RULE.keys(world, B)) == []


def test_a_change_of_an_upper_or_lower_service_enqueues_its_key() -> None:
    """An upper Service matters only if it is needed in this lower or has a copy there."""
    world = apply_desired(service_world())
    far = put(world.upper.more[SERVICE], service("far", "shop"))
    assert heard(world, "upper.Service", None, far) == []
    near = world.upper.more[SERVICE].get("default", "web")
    assert heard(world, "upper.Service", near, near) == ["default/web"]
    (copy,) = world.lowers[A].more[SERVICE]
    assert heard(world, "Service", copy, None) == ["default/web"]
    delete_observed(world.lowers[A].upper_pods, "web")
    assert heard(world, "upper.Service", near, None) == ["default/web"]


def test_a_lower_with_our_services_or_slices_is_not_empty() -> None:
    """A lower that left the topology stays connected until it contains none of our objects."""
    world = apply_desired(service_world())
    lower = world.lowers[A]
    delete_observed(lower.upper_pods, "web")
    assert not lower.is_empty
    delete_observed(lower.more[SERVICE], "web")
    assert not lower.is_empty
    delete_observed(lower.more[ENDPOINT_SLICE], "web-1")
    assert lower.is_empty
