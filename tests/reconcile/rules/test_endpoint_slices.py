"""Tests of lower EndpointSlices: one for each upper slice of a mirrored Service, decoded only if something differs."""

from typing import Any

import pytest
from rulekit import RuleUnderTest
from servicekit import (
    ALIAS_KEY,
    ALIAS_SLICE_KEY,
    KEY,
    SERVER,
    SLICE_KEY,
    SLICE_REF,
    apply_desired,
    endpoint,
    endpoint_slice,
    lower_object,
    put_lower_pod,
    service,
    service_world,
)
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    apply_topology,
    change_as_other_client,
    decision_and_plan,
    delete_observed,
    make_upper_pod,
    put,
    sorted_names,
    with_owner_marks,
)

from tensile.kube import store
from tensile.names import OWNER, OWNER_NAME, UPPER_UID
from tensile.objects import ENDPOINT_SLICE, SERVICE, UPPER, Manifest, Ref
from tensile.reconcile.desired import EmitEvent, Patched, Present
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import endpoint_slices
from tensile.reconcile.rules.endpoint_slices import slice_key
from tensile.reconcile.rules.services import service_key
from tensile.reconcile.world import Problem

RULE = endpoint_slices.RULE
ASKED = RuleUnderTest(RULE, SLICE_KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.affected_keys
EVERY = ["default/kubernetes-upper", "default/web-1"]


def test_a_slice_is_created_after_its_service() -> None:
    """It has the upper endpoints, whose addresses are valid in all clusters, without nodes, zones and pods."""
    world = service_world()
    decision, found = decision_and_plan(RULE, SLICE_KEY, world)
    assert (decision.depends_on, found) == ((KEY,), Plan(()))
    step = the_step(apply_desired(world, KEY))
    assert (step.verb, step.ref, step.reason) == ("create", SLICE_REF, "endpoints of Service web")
    conditions = {"ready": True, "serving": True, "terminating": False}
    assert step.body == {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "web-1",
            "namespace": "default",
            "labels": {
                "kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "tensile-kube.io",
                OWNER: OWNER_HERE.mark,
            },
            "annotations": {OWNER_NAME: "demo", UPPER_UID: "EndpointSlice-web-1"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "below-Service-web"},
            ],
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [f"10.1.0.{one}"], "conditions": conditions} for one in (1, 2)],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def test_an_unchanged_slice_is_not_decoded() -> None:
    """Most decisions are about slices without a change."""
    world = apply_desired(service_world())
    store._recent.clear()
    decision = RULE.decide(SLICE_KEY, world)
    assert decision.wanted == ()
    assert store._recent == {}


def test_a_change_of_fields_that_are_not_copied_causes_no_patch() -> None:
    """One of them is the node of an endpoint, and the cached form of the slice stays the same."""
    world = apply_desired(service_world())
    change_as_other_client(world.upper.more[ENDPOINT_SLICE], "web-1", lambda one: one["metadata"].update(generation=7))
    moved = endpoint_slice(
        "web-1", endpoint("10.1.0.1", nodeName="other"), endpoint("10.1.0.2", hints={"forZones": []})
    )
    put(world.upper.more[ENDPOINT_SLICE], moved)
    assert planned(world) == Plan(())


@pytest.mark.parametrize(
    ("above", "path"),
    [
        (endpoint_slice("web-1", endpoint("10.1.0.1", ready=False), endpoint("10.1.0.2")), "/endpoints"),
        (endpoint_slice("web-1", endpoint("10.1.0.2")), "/endpoints"),
        ({**endpoint_slice(), "endpoints": None}, "/endpoints"),
        ({**endpoint_slice(), "ports": [{"name": "http", "port": 81, "protocol": "TCP"}]}, "/ports"),
    ],
    ids=["not ready", "gone", "none", "port"],
)
def test_a_change_of_the_upper_slice_is_patched(above: Manifest, path: str) -> None:
    """The patch requires the UID of the slice, and is not part of the visible plan."""
    world = apply_desired(service_world())
    put(world.upper.more[ENDPOINT_SLICE], above)
    step = the_step(world)
    assert (step.verb, step.ref, step.uid, step.in_plan) == ("patch", SLICE_REF, "below-EndpointSlice-web-1", False)
    assert [(one["op"], one["path"]) for one in step.operations] == [("replace", path)]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"endpoints": []}, "/endpoints"),
        ({"ports": []}, "/ports"),
    ],
)
def test_a_change_of_the_lower_slice_by_another_client_is_reverted(change: Manifest, path: str) -> None:
    """The upper cluster determines the endpoints."""
    world = apply_desired(service_world())
    change_as_other_client(world.lowers[A].more[ENDPOINT_SLICE], "web-1", lambda one: one.update(change))
    assert [one["path"] for one in the_step(world).operations] == [path]


def test_our_labels_are_restored_and_those_of_other_clients_stay() -> None:
    """Without the label of the manager, Kubernetes' own controller would manage the slice."""
    world = apply_desired(service_world())
    managed = "endpointslice.kubernetes.io/managed-by"
    below_slices = world.lowers[A].more[ENDPOINT_SLICE]
    change_as_other_client(
        below_slices, "web-1", lambda one: one["metadata"]["labels"].update({managed: "me", "theirs": "1"})
    )
    (operation,) = the_step(world).operations
    assert (operation["op"], operation["path"]) == (
        "replace",
        "/metadata/labels/endpointslice.kubernetes.io~1managed-by",
    )
    change_as_other_client(
        below_slices, "web-1", lambda one: one["metadata"]["labels"].update({managed: "tensile-kube.io"})
    )
    assert planned(world) == Plan(())


def test_the_owner_reference_of_a_slice_follows_a_replaced_service() -> None:
    """Otherwise Kubernetes would delete the slice with the old Service."""
    world = apply_desired(service_world())
    change_as_other_client(world.lowers[A].more[SERVICE], "web", lambda one: one["metadata"].update(uid="another"))
    (operation,) = the_step(world).operations
    assert (operation["path"], operation["value"][0]["uid"]) == ("/metadata/ownerReferences", "another")


def test_a_slice_is_deleted_if_its_lower_service_is_missing() -> None:
    """Otherwise a Service that another client creates under the name would send its traffic to our pods."""
    world = apply_desired(service_world())
    delete_observed(world.lowers[A].more[SERVICE], "web")
    step = the_step(world)
    assert (step.verb, step.uid, step.requested) == ("delete", "below-EndpointSlice-web-1", True)


@pytest.mark.parametrize(
    "taken",
    [service(), with_owner_marks(service(), "Service-web", STRANGER)],
    ids=["without marks", "of another owner"],
)
def test_a_service_of_another_owner_has_none_of_our_slices(taken: Manifest) -> None:
    """No slice is created for it, and an existing one is deleted."""
    world = service_world()
    put(world.lowers[A].more[SERVICE], taken)
    assert decision_and_plan(RULE, SLICE_KEY, world)[0].depends_on == (KEY,)
    world = apply_desired(service_world())
    put(world.lowers[A].more[SERVICE], taken)
    assert the_step(world).verb == "delete"


def test_a_slice_waits_if_the_lower_service_is_that_of_an_older_upper_service() -> None:
    """That Service is about to be replaced."""
    world = apply_desired(service_world(), KEY)
    put(world.upper.more[SERVICE], {**service(), "metadata": service()["metadata"] | {"uid": "another"}})
    decision, found = decision_and_plan(RULE, SLICE_KEY, world)
    assert (decision.depends_on, found) == ((KEY,), Plan(()))


@pytest.mark.parametrize("is_enabled", [True, False], ids=["no upper pod is left", "the controller is disabled"])
def test_endpoints_of_a_kept_service_are_updated(is_enabled: bool) -> None:  # noqa: FBT001 - a parameter
    """A pod that only runs in the lower cluster must not call an old address.

    New slices are not created without upper pods.
    """
    world = put_lower_pod(apply_desired(service_world()))
    if is_enabled:
        delete_observed(world.lowers[A].upper_pods, "web")
    else:
        apply_topology(world, f"name: {A}, controllers: []")
    put(world.upper.more[ENDPOINT_SLICE], endpoint_slice("web-1", endpoint("10.1.0.9")))
    put(world.upper.more[ENDPOINT_SLICE], endpoint_slice("web-2"))
    assert [one["path"] for one in the_step(world).operations] == ["/endpoints"]
    if is_enabled:
        assert planned(world, slice_key(A, "default", "web-2")) == Plan(())
    else:
        assert the_step(world, slice_key(A, "default", "web-2")).verb == "create"
    assert slice_key(A, "default", "web-2") in RULE.keys(world, A)
    delete_observed(world.upper.more[ENDPOINT_SLICE], "web-1")
    assert the_step(world).verb == "delete"
    put(
        world.upper.more[ENDPOINT_SLICE],
        {**endpoint_slice(), "metadata": endpoint_slice()["metadata"] | {"uid": "another"}},
    )
    assert the_step(world).verb == "delete"


def test_a_slice_without_a_service_is_not_mirrored() -> None:
    """It names a Service that does not exist."""
    world = apply_desired(service_world(), KEY)
    put(world.upper.more[ENDPOINT_SLICE], endpoint_slice("odd", of="nothing"))
    assert planned(world, slice_key(A, "default", "odd")) == Plan(())


def test_a_slice_whose_label_names_another_service_follows_it() -> None:
    """If that Service is not mirrored, the slice is deleted."""
    world = apply_desired(service_world())
    put(world.upper.more[SERVICE], service("api"))
    apply_desired(world, service_key(A, "default", "api"))
    put(world.upper.more[ENDPOINT_SLICE], endpoint_slice(of="api"))
    paths = {one["path"] for one in the_step(world).operations}
    assert paths == {"/metadata/labels/kubernetes.io~1service-name", "/metadata/ownerReferences"}
    put(world.upper.more[ENDPOINT_SLICE], endpoint_slice(of="nothing"))
    assert the_step(world).verb == "delete"


def test_a_slice_that_was_created_again_in_the_upper_cluster_is_replaced() -> None:
    """It may have another address type, which is immutable."""
    world = apply_desired(service_world())
    put(
        world.upper.more[ENDPOINT_SLICE],
        {**endpoint_slice(), "metadata": endpoint_slice()["metadata"] | {"uid": "another"}},
    )
    assert the_step(world).verb == "delete"


def test_a_slice_of_another_owner_with_the_name_is_a_conflict() -> None:
    """An Event of the upper Service, which lacks those endpoints in the lower cluster, reports it.

    Other keys have no problem.
    """
    world = apply_desired(service_world(), KEY)
    put(world.lowers[A].more[ENDPOINT_SLICE], endpoint_slice())
    found = planned(world)
    assert (found.steps, found.problem and found.problem.reason) == ((), "NameConflict")
    world.problems[SLICE_KEY] = Problem("NameConflict", "is not ours")
    event, _ = decision_and_plan(RULE, SLICE_KEY, world)[0].wanted
    assert event == EmitEvent(Ref(UPPER, SERVICE, "default", "web"), "Service-web", "NameConflict", "is not ours")
    delete_observed(world.lowers[A].more[SERVICE], "web")
    assert planned(world) == Plan(())


def test_a_denied_change_of_a_slice_is_reported_by_an_event_of_the_upper_service() -> None:
    """Until it succeeds, the lower endpoints are outdated.

    Without a difference there is no Event.
    """
    world = apply_desired(service_world())
    world.problems[SLICE_KEY] = Problem("Denied", "a policy")
    assert decision_and_plan(RULE, SLICE_KEY, world)[0].wanted == ()
    put(world.upper.more[ENDPOINT_SLICE], endpoint_slice("web-1", endpoint("10.1.0.9")))
    event, changed_one = decision_and_plan(RULE, SLICE_KEY, world)[0].wanted
    assert event == EmitEvent(Ref(UPPER, SERVICE, "default", "web"), "Service-web", "Denied", "a policy")
    assert isinstance(changed_one, Patched)


def test_a_problem_of_the_alias_slice_causes_no_event() -> None:
    """The alias has no upper Service."""
    world = apply_desired(service_world(server=SERVER), ALIAS_KEY)
    world.problems[ALIAS_SLICE_KEY] = Problem("NameConflict", "is not ours")
    (wanted,) = decision_and_plan(RULE, ALIAS_SLICE_KEY, world)[0].wanted
    assert isinstance(wanted, Present)


def test_the_alias_service_has_a_slice_with_the_upper_clusters_address() -> None:
    """Pods in the lower cluster reach the upper cluster at that address."""
    world = apply_desired(service_world(server=SERVER), ALIAS_KEY)
    body = the_step(world, ALIAS_SLICE_KEY).body
    assert body is not None
    assert body["endpoints"] == [{"addresses": ["10.200.0.1"], "conditions": {"ready": True}}]
    assert body["ports"] == [{"name": "https", "protocol": "TCP", "port": 6443}]
    apply_desired(world, ALIAS_SLICE_KEY)
    assert planned(world, ALIAS_SLICE_KEY) == Plan(())
    assert (
        lower_object(world, ENDPOINT_SLICE, "kubernetes-upper")["metadata"]["annotations"][UPPER_UID]
        == OWNER_HERE.upper
    )


def test_the_slice_of_a_former_alias_is_deleted() -> None:
    """The name of the alias was changed, and the Service of the old name still exists."""
    world = apply_desired(service_world(server=SERVER), ALIAS_KEY, ALIAS_SLICE_KEY)
    apply_topology(world, more="services: {upperAlias: top}")
    assert the_step(world, ALIAS_SLICE_KEY).verb == "delete"


def test_every_slice_of_a_needed_service_and_every_copy_has_a_key() -> None:
    """Slices of a namespace with pods are needed, and copies may be in any namespace."""
    world = service_world()
    put(world.upper.more[ENDPOINT_SLICE], endpoint_slice("far", namespace="shop"))
    put(world.lowers[A].more[ENDPOINT_SLICE], with_owner_marks(endpoint_slice("left", namespace="gone"), "x"))
    assert list(sorted_names(RULE.keys(world, A))) == [*EVERY, "gone/left"]
    assert list(RULE.keys(world, B)) == []


def test_a_change_of_an_upper_or_lower_slice_enqueues_its_key() -> None:
    """An upper slice matters only if its namespace is needed in this lower."""
    world = apply_desired(service_world())
    far = put(world.upper.more[ENDPOINT_SLICE], endpoint_slice("far", namespace="shop"))
    assert heard(world, "upper.EndpointSlice", None, far) == []
    near = put(world.upper.more[ENDPOINT_SLICE], endpoint_slice())
    assert heard(world, "upper.EndpointSlice", near, near) == ["default/web-1"]
    copy = world.lowers[A].more[ENDPOINT_SLICE].get("default", "web-1")
    assert heard(world, "EndpointSlice", copy, None) == ["default/web-1"]


def test_the_creation_or_deletion_of_a_lower_service_enqueues_its_slices() -> None:
    """This includes lower slices that may belong to another Service now, but a change of ports does not matter."""
    world = apply_desired(service_world())
    put(world.lowers[A].more[ENDPOINT_SLICE], with_owner_marks(endpoint_slice("web-old"), "x"))
    (held,) = world.lowers[A].more[SERVICE]
    assert heard(world, "Service", None, held) == ["default/web-1", "default/web-old"]
    assert heard(world, "Service", held, None) == ["default/web-1", "default/web-old"]
    after = change_as_other_client(world.lowers[A].more[SERVICE], "web", _renamed_port)
    assert heard(world, "Service", held, after) == []
    another = change_as_other_client(
        world.lowers[A].more[SERVICE], "web", lambda one: one["metadata"].update(uid="another")
    )
    assert heard(world, "Service", after, another) == ["default/web-1", "default/web-old"]
    alias = put(world.lowers[A].more[SERVICE], service("kubernetes-upper"))
    assert heard(world, "Service", None, alias) == ["default/kubernetes-upper"]


def _renamed_port(found: dict[str, Any]) -> None:
    found["spec"]["ports"][0]["name"] = "other"


def test_the_first_pod_of_a_namespace_enqueues_its_slices() -> None:
    """Slices that were created while all its pods had ended are not mirrored yet.

    Further pods do not matter.
    """
    world = service_world()
    first = world.lowers[A].upper_pods.get("default", "web")
    assert heard(world, "upper_pods", None, first) == ["default/web-1"]
    second = put(world.lowers[A].upper_pods, make_upper_pod("second"))
    assert heard(world, "upper_pods", None, second) == []
