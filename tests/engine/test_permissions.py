"""Tests of the permissions that follow from a topology, and that they do not exceed the security model."""

from typing import Any

import orjson
import pytest
from rightstable import DOCUMENT, rewritten, table
from rightstable import topology as whole

from tensile.engine.permissions import ALL_KINDS, READ, WRITTEN, Permission, lower_rights, upper_rights
from tensile.engine.topology_reader import ConfigMapKey
from tensile.objects import CLAIM, CONFIG_MAP, POD, STORAGE_CLASS, Kind
from tensile.reconcile.mirrored_kinds import FOLLOWS
from tensile.topology import Topology, parse

EVERYTHING = {
    "controllers": ["PV", "Service", "RBAC", "ServiceAccount"],
    "serviceAccounts": {"identity": "upper"},
    "webhook": {"enabled": True},
    "descheduler": {"enabled": True},
}


def topology(**fields: Any) -> Topology:
    """Return a topology of one lower; `lower` has fields of that lower."""
    lower = {"name": "a", "kubeconfig": "a", **fields.pop("lower", {})}
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "demo", "lowers": [lower], **fields}
    return parse(orjson.dumps(file).decode(), name="topology.yaml")


def verbs(rights: list[Permission], resource: str, group: str = "") -> set[str]:
    """Return the verbs that a resource is listed with."""
    return {verb for one in rights if (one.resource, one.group) == (resource, group) for verb in one.verbs}


def upper_permissions(**fields: Any) -> list[Permission]:
    """Return the permissions in the upper cluster."""
    return upper_rights(topology(**fields))


def lower_permissions(**fields: Any) -> list[Permission]:
    """Return the permissions in the lower cluster."""
    return lower_rights(topology(**fields).lowers[0])


BARE: dict[str, Any] = {"controllers": [], "kubelet": {"tlsCertFile": "c", "tlsKeyFile": "k"}}


def test_each_resource_is_listed_once() -> None:
    """A role that is generated from the list thus has one rule for each resource."""
    for rights in (upper_permissions(**EVERYTHING), lower_permissions(**EVERYTHING)):
        keys = [(one.group, one.resource, one.namespace, one.name) for one in rights]
        assert len(keys) == len(set(keys))
        assert all(len(one.verbs) == len(set(one.verbs)) > 0 for one in rights)
        assert all(one.purpose for one in rights)


@pytest.mark.parametrize(
    ("fields", "resource", "group", "wanted"),
    [
        ({"controllers": ["PV"]}, "persistentvolumeclaims/status", "", {"patch"}),
        ({"controllers": ["PV"]}, "persistentvolumes", "", {*READ, *WRITTEN}),
        ({"controllers": ["PV"]}, "storageclasses", "storage.k8s.io", {"list", "watch"}),
        ({"controllers": ["Service"]}, "endpointslices", "discovery.k8s.io", set(READ)),
        ({"controllers": ["RBAC", "ServiceAccount"]}, "roles", "rbac.authorization.k8s.io", set(READ)),
        (
            {"controllers": ["ServiceAccount"], "serviceAccounts": {"identity": "upper"}},
            "serviceaccounts/token",
            "",
            {"create"},
        ),
        ({"kubelet": {}}, "certificatesigningrequests", "certificates.k8s.io", {"create", "get"}),
        ({"webhook": {"enabled": True}}, "persistentvolumeclaims", "", {"list", "watch"}),
    ],
)
def test_a_feature_adds_its_permissions_in_the_upper_cluster(
    fields: dict[str, Any], resource: str, group: str, wanted: set[str]
) -> None:
    """They are only listed if the feature is enabled."""
    assert verbs(upper_permissions(**{**BARE, **fields}), resource, group) == wanted
    assert not verbs(upper_permissions(**BARE), resource, group)


def test_the_permissions_to_delete_the_webhook_are_always_listed() -> None:
    """Roles and topology are applied together, so a disabled webhook's objects must still be deletable."""
    hook = ("mutatingwebhookconfigurations", "admissionregistration.k8s.io")
    assert verbs(upper_permissions(**{**BARE, "webhook": {"enabled": True}}), *hook) == {"get", *WRITTEN}
    (left,) = (one for one in upper_permissions(**BARE) if (one.resource, one.group) == hook)
    assert (set(left.verbs), left.name) == ({"get", "delete"}, "tensile-demo")
    assert left.lost
    (secret,) = (one for one in upper_rights(topology(**BARE), namespace="ops") if one.name == "tensile-webhook-demo")
    assert (secret.namespace, set(secret.verbs), bool(secret.lost)) == ("ops", {"get", "delete"}, True)


@pytest.mark.parametrize(
    ("webhook", "namespace"),
    [
        ({}, "inside"),
        ({"url": "https://hook/"}, "inside"),
        ({"service": {"namespace": "ops", "name": "hook"}}, "ops"),
        ({"tlsCertFile": "c", "tlsKeyFile": "k"}, ""),
    ],
)
def test_the_webhook_certificate_needs_permissions_for_one_secret(webhook: dict[str, Any], namespace: str) -> None:
    """Its namespace is that of the Service, else of the engine; with files or outside a cluster, none is needed."""
    spec = topology(webhook={"enabled": True, **webhook})
    rights = [one for one in upper_rights(spec, namespace="inside") if one.purpose.startswith("CA and certificate")]
    assert [(one.namespace, one.name, one.verbs) for one in rights] == (
        [(namespace, "", ("create",)), (namespace, "tensile-webhook-demo", ("get", "patch", "delete"))]
        if namespace
        else []
    )
    outside = [one.namespace for one in upper_rights(spec) if one.purpose.startswith("CA and certificate")]
    assert outside == (["ops", "ops"] if "service" in webhook else [])


@pytest.mark.parametrize("moving", [{"descheduler": {"enabled": True}}, {"lower": {"maintenance": "drain"}}, {}])
def test_the_permission_to_evict_pods_is_always_listed(moving: dict[str, Any]) -> None:
    """An edit is enough to drain a lower; while nothing evicts pods, a missing permission has only that consequence."""
    (right,) = (one for one in upper_permissions(**{**BARE, **moving}) if one.resource == "pods/eviction")
    assert (right.verbs, bool(right.lost)) == (("create",), not moving)


@pytest.mark.parametrize("enabled", [False, True])
def test_the_permission_to_list_disruption_budgets_is_always_listed(enabled: bool) -> None:  # noqa: FBT001
    """Plans report budgets that an edit affects, and preemption respects them; the engine works without both."""
    rights = upper_permissions(**{**BARE, "extender": {"enabled": enabled}})
    (right,) = (one for one in rights if one.resource == "poddisruptionbudgets")
    assert (right.verbs, right.namespace, "preemption" in right.lost) == (("list",), "", enabled)
    assert "plans" in right.lost
    assert right.lost == right.purpose


@pytest.mark.parametrize("moving", [{"descheduler": {"enabled": True}}, {"lower": {"maintenance": "drain"}}])
def test_write_access_to_upper_pods_and_secrets_requires_recreate_bare_pods(moving: dict[str, Any]) -> None:
    """A client that may create pods in every namespace can use any ServiceAccount, so it has a separate setting."""
    settings = {"descheduler": {**moving.get("descheduler", {}), "recreateBarePods": True}}
    for fields, is_asked in ((moving, False), (settings, True)):
        rights = upper_permissions(**{**BARE, **moving, **fields})
        assert ("create" in verbs(rights, "pods")) == is_asked
        assert bool(verbs(rights, "secrets") & {"get", *WRITTEN}) == is_asked


@pytest.mark.parametrize(
    ("controller", "resource", "group", "wanted"),
    [
        ("PV", "persistentvolumeclaims", "", {*READ, *WRITTEN}),
        ("PV", "persistentvolumes", "", {"list", "watch"}),
        ("Service", "services", "", {*READ, *WRITTEN}),
        ("Service", "endpointslices", "discovery.k8s.io", {*READ, *WRITTEN}),
        ("RBAC", "rolebindings", "rbac.authorization.k8s.io", {*READ, *WRITTEN}),
        ("RBAC", "clusterroles", "rbac.authorization.k8s.io", {"list", "watch"}),
    ],
)
def test_a_controller_adds_its_permissions_in_the_lower_cluster(
    controller: str, resource: str, group: str, wanted: set[str]
) -> None:
    """The kinds that the engine creates are writable, and others are only readable."""
    controllers = ["ServiceAccount", controller] if controller == "RBAC" else [controller]
    assert verbs(lower_permissions(controllers=controllers), resource, group) == wanted
    assert not verbs(lower_permissions(controllers=[]), resource, group)


def test_lower_service_accounts_are_only_written_with_their_controller() -> None:
    """The ServiceAccount `default` is read in any case, by `plan` individually."""
    assert verbs(lower_permissions(controllers=[]), "serviceaccounts") == set(READ)
    assert verbs(lower_permissions(controllers=["ServiceAccount"]), "serviceaccounts") == {*READ, *WRITTEN}


def test_a_lower_only_needs_the_permissions_of_its_own_controllers() -> None:
    """In the upper cluster, only controllers that some lower uses add permissions."""
    one = topology(controllers=["PV"], lower={"controllers": ["Service"]})
    assert verbs(lower_rights(one.lowers[0]), "services")
    assert not verbs(lower_rights(one.lowers[0]), "persistentvolumeclaims")
    assert not verbs(upper_rights(one), "persistentvolumeclaims")


def test_every_kind_that_a_controller_watches_is_listed() -> None:
    """A kind that is added to FOLLOWS needs no change of the list."""
    rights = {True: upper_permissions(**EVERYTHING), False: lower_permissions(**EVERYTHING)}
    for follows in FOLLOWS.values():
        for follow in follows:
            found = {verb for one in rights[follow.is_upper] if one.kind == follow.kind for verb in one.verbs}
            assert found >= {"list", "watch"}
            assert not follow.ours or found >= {*READ, *WRITTEN}


def test_no_permission_has_a_wildcard_verb_or_permits_escalation() -> None:
    """Only the list of all kinds has a wildcard resource, and the engine works without it."""
    for rights in (upper_permissions(**EVERYTHING), lower_permissions(**EVERYTHING)):
        found = {verb for one in rights for verb in one.verbs}
        assert found <= {*READ, *WRITTEN}
        assert not any(one.resource in {"nodes/proxy", "users", "groups"} for one in rights)
        assert all(one.verbs == ("list",) and one.lost for one in rights if one.kind == ALL_KINDS)


def test_permissions_are_limited_to_the_namespaces_that_need_them() -> None:
    """This concerns leases, and the status, history and plan beside the topology's ConfigMap."""
    rights = upper_rights(topology(), place=ConfigMapKey("ops", "mine"))
    leases = [one for one in rights if one.resource == "leases"]
    assert [(one.namespace, one.verbs) for one in leases] == [("kube-node-lease", ("get", "create", "patch"))]
    taking_turns = upper_rights(topology(), place=ConfigMapKey("ops", "mine"), takes_turns=True)
    assert {one.namespace for one in taking_turns if one.resource == "leases"} == {"kube-node-lease", "kube-system"}
    maps = {(one.namespace, one.name): set(one.verbs) for one in rights if one.resource == "configmaps"}
    assert maps == {
        ("", ""): set(READ),
        ("ops", ""): {"create"},
        ("ops", "mine-status"): {"patch"},
        ("ops", "mine-history"): {"patch"},
        ("ops", "mine-plan"): {"patch", "delete"},
    }
    assert {one.name for one in rights if one.kind == CONFIG_MAP and one.lost} == {"mine-plan"}


def test_the_status_and_history_of_a_topology_file_are_in_kube_system() -> None:
    """Their names contain that of the topology, and the engine works without these permissions."""
    rights = [one for one in upper_rights(topology()) if one.resource == "configmaps" and one.namespace]
    assert {(one.namespace, one.name): one.verbs for one in rights} == {
        ("kube-system", ""): ("create",),
        ("kube-system", "tensile-demo-status"): ("patch",),
        ("kube-system", "tensile-demo-history"): ("patch",),
    }
    assert all("tensile rollback" in one.lost for one in rights)


def test_permissions_for_single_objects_have_their_name() -> None:
    """The engine must not change other webhooks and leases; a role cannot limit the verb `create` to a name."""
    rights = upper_rights(topology(webhook={"enabled": True}), takes_turns=True, namespace="tensile")
    named = {(one.resource, one.name): one.verbs for one in rights if one.name}
    assert named == {
        ("mutatingwebhookconfigurations", "tensile-demo"): ("get", "patch", "delete"),
        ("mutatingadmissionpolicies", "tensile-demo"): ("get", "patch", "delete"),
        ("mutatingadmissionpolicybindings", "tensile-demo"): ("get", "patch", "delete"),
        ("leases", "tensile-demo"): ("get", "patch"),
        ("configmaps", "tensile-demo-status"): ("patch",),
        ("configmaps", "tensile-demo-history"): ("patch",),
        ("secrets", "tensile-webhook-demo"): ("get", "patch", "delete"),
    }
    unnamed = {one.resource: one.verbs for one in rights if not one.name and one.namespace in ("", "kube-system")}
    assert unnamed["mutatingwebhookconfigurations"] == unnamed["leases"] == ("create",)


def test_a_permission_has_group_and_resource_as_in_a_role() -> None:
    """A subresource follows the resource."""
    assert (Permission(POD, ("get",), "", "log").group, Permission(POD, ("get",), "", "log").resource) == (
        "",
        "pods/log",
    )
    assert (Permission(STORAGE_CLASS, (), "").group, Permission(CLAIM, (), "").group) == ("storage.k8s.io", "")
    assert (Permission(ALL_KINDS, (), "").group, Permission(ALL_KINDS, (), "").resource) == ("*", "*")
    assert Permission(Kind("a.example/v1", "X", "xs", namespaced=True), (), "").group == "a.example"


def test_the_documentation_lists_exactly_these_permissions() -> None:
    """It is generated from the list (tests/kit/rightstable.py), so a changed permission changes it too."""
    assert rewritten(DOCUMENT.read_text()) == DOCUMENT.read_text()
    above_all = upper_rights(whole(), place=ConfigMapKey("x", "y"), takes_turns=True, namespace="z")
    assert table().count("\n| `") == len(above_all) + len(lower_rights(whole().lowers[0]))
