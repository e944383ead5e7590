"""The list of rights: what follows from a topology, and that it holds no more than the security model allows."""

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
    """Make a topology of one lower; `lower` holds fields of that."""
    lower = {"name": "a", "kubeconfig": "a", **fields.pop("lower", {})}
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "demo", "lowers": [lower], **fields}
    return parse(orjson.dumps(file).decode(), name="topology.yaml")


def verbs(rights: list[Permission], resource: str, group: str = "") -> set[str]:
    """Return the verbs that a resource is listed with."""
    return {verb for one in rights if (one.resource, one.group) == (resource, group) for verb in one.verbs}


def above(**fields: Any) -> list[Permission]:
    """Return the rights in the upper cluster."""
    return upper_rights(topology(**fields))


def below(**fields: Any) -> list[Permission]:
    """Return the rights in the lower cluster."""
    return lower_rights(topology(**fields).lowers[0])


BARE: dict[str, Any] = {"controllers": [], "kubelet": {"tlsCertFile": "c", "tlsKeyFile": "k"}}


def test_each_resource_stands_once() -> None:
    """So that a role made of the list has one rule for each."""
    for rights in (above(**EVERYTHING), below(**EVERYTHING)):
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
def test_what_a_feature_needs_above(fields: dict[str, Any], resource: str, group: str, wanted: set[str]) -> None:
    """It is in the list with the feature, and not without."""
    assert verbs(above(**{**BARE, **fields}), resource, group) == wanted
    assert not verbs(above(**BARE), resource, group)


def test_what_a_webhook_registered_can_always_be_taken_back() -> None:
    """Roles and topology are applied together: where the feature has gone, the right to see it off is left."""
    hook = ("mutatingwebhookconfigurations", "admissionregistration.k8s.io")
    assert verbs(above(**{**BARE, "webhook": {"enabled": True}}), *hook) == {"get", *WRITTEN}
    (left,) = (one for one in above(**BARE) if (one.resource, one.group) == hook)
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
def test_the_webhooks_certificate_is_in_one_secret(webhook: dict[str, Any], namespace: str) -> None:
    """In the namespace of its Service, else in that of the engine; with files, or outside a cluster, in none."""
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
def test_pods_may_always_be_evicted(moving: dict[str, Any]) -> None:
    """An edit alone drains a lower cluster; where none is asked for, lacking it costs just that."""
    (right,) = (one for one in above(**{**BARE, **moving}) if one.resource == "pods/eviction")
    assert (right.verbs, bool(right.lost)) == (("create",), not moving)


@pytest.mark.parametrize("enabled", [False, True])
def test_disruption_budgets_may_always_be_listed(enabled: bool) -> None:  # noqa: FBT001
    """Plans tell of those that an edit meets, and preemption respects them; the engine works without both."""
    rights = above(**{**BARE, "extender": {"enabled": enabled}})
    (right,) = (one for one in rights if one.resource == "poddisruptionbudgets")
    assert (right.verbs, right.namespace, "preemption" in right.lost) == (("list",), "", enabled)
    assert "plans" in right.lost
    assert right.lost == right.purpose


@pytest.mark.parametrize("moving", [{"descheduler": {"enabled": True}}, {"lower": {"maintenance": "drain"}}])
def test_pods_and_secrets_are_written_above_only_to_recreate_bare_pods(moving: dict[str, Any]) -> None:
    """Whoever may create pods in every namespace has any account of the cluster: it is asked for by name only."""
    asked = {"descheduler": {**moving.get("descheduler", {}), "recreateBarePods": True}}
    for fields, is_asked in ((moving, False), (asked, True)):
        rights = above(**{**BARE, **moving, **fields})
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
def test_what_a_controller_needs_below(controller: str, resource: str, group: str, wanted: set[str]) -> None:
    """Objects of our own are written, others only looked at."""
    controllers = ["ServiceAccount", controller] if controller == "RBAC" else [controller]
    assert verbs(below(controllers=controllers), resource, group) == wanted
    assert not verbs(below(controllers=[]), resource, group)


def test_accounts_below_are_written_only_with_their_controller() -> None:
    """The account `default` is looked at in any case, by `plan` one by one."""
    assert verbs(below(controllers=[]), "serviceaccounts") == set(READ)
    assert verbs(below(controllers=["ServiceAccount"]), "serviceaccounts") == {*READ, *WRITTEN}


def test_a_lower_needs_what_its_own_controllers_need() -> None:
    """Above, those of any lower count."""
    one = topology(controllers=["PV"], lower={"controllers": ["Service"]})
    assert verbs(lower_rights(one.lowers[0]), "services")
    assert not verbs(lower_rights(one.lowers[0]), "persistentvolumeclaims")
    assert not verbs(upper_rights(one), "persistentvolumeclaims")


def test_every_kind_that_a_controller_follows_is_in_the_list() -> None:
    """A kind that comes into FOLLOWS needs no word here."""
    rights = {True: above(**EVERYTHING), False: below(**EVERYTHING)}
    for follows in FOLLOWS.values():
        for follow in follows:
            found = {verb for one in rights[follow.above] if one.kind == follow.kind for verb in one.verbs}
            assert found >= {"list", "watch"}
            assert not follow.ours or found >= {*READ, *WRITTEN}


def test_nobody_may_do_everything() -> None:
    """No verb is a wildcard, and none of those by which one comes to other rights is there."""
    for rights in (above(**EVERYTHING), below(**EVERYTHING)):
        found = {verb for one in rights for verb in one.verbs}
        assert found <= {*READ, *WRITTEN}
        assert not any(one.resource in {"nodes/proxy", "users", "groups"} for one in rights)
        assert all(one.verbs == ("list",) and one.lost for one in rights if one.kind == ALL_KINDS)


def test_rights_in_one_namespace_are_no_rights_elsewhere() -> None:
    """Leases of nodes, and the status and a plan beside the topology's ConfigMap."""
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


def test_a_topology_file_is_told_of_in_kube_system() -> None:
    """By its name. The engine works without that, and says so."""
    rights = [one for one in upper_rights(topology()) if one.resource == "configmaps" and one.namespace]
    assert {(one.namespace, one.name): one.verbs for one in rights} == {
        ("kube-system", ""): ("create",),
        ("kube-system", "tensile-demo-status"): ("patch",),
        ("kube-system", "tensile-demo-history"): ("patch",),
    }
    assert all("tensile rollback" in one.lost for one in rights)


def test_what_is_for_one_object_is_for_no_other() -> None:
    """Neither another's webhook nor another's turn is the engine's to change; at `create` no role can tell names."""
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


def test_how_a_right_is_written_in_a_role() -> None:
    """By group and resource, with the subresource behind it."""
    assert (Permission(POD, ("get",), "", "log").group, Permission(POD, ("get",), "", "log").resource) == (
        "",
        "pods/log",
    )
    assert (Permission(STORAGE_CLASS, (), "").group, Permission(CLAIM, (), "").group) == ("storage.k8s.io", "")
    assert (Permission(ALL_KINDS, (), "").group, Permission(ALL_KINDS, (), "").resource) == ("*", "*")
    assert Permission(Kind("a.example/v1", "X", "xs", namespaced=True), (), "").group == "a.example"


def test_the_documentation_lists_just_these() -> None:
    """It is written from the list (tests/kit/rightstable.py), so a change of a right is a change there."""
    assert rewritten(DOCUMENT.read_text()) == DOCUMENT.read_text()
    above_all = upper_rights(whole(), place=ConfigMapKey("x", "y"), takes_turns=True, namespace="z")
    assert table().count("\n| `") == len(above_all) + len(lower_rights(whole().lowers[0]))
