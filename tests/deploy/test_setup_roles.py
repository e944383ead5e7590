"""Tests of the accounts and roles that an administrator applies: exactly the list of permissions, as recorded.

TENSILE_RECORD=1 in the environment records the files again; read what changed before you commit it.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from rightstable import topology as whole

from tensile.deploy.setup import ACCOUNT, candidate_roles, lower_roles, role_name, rules, upper_roles
from tensile.engine.permissions import Permission, lower_rights, upper_rights
from tensile.engine.topology_reader import ConfigMapKey
from tensile.objects import CONFIG_MAP, LEASE, POD, SECRET, Manifest
from tensile.topology import Topology, parse

RECORDING = bool(os.environ.get("TENSILE_RECORD"))
RECORDS = Path(__file__).parent / "recorded"
Granted = set[tuple[str, str, str, str, str]]
"""Namespace, group, resource, name and verb of each permission."""


def little() -> Topology:
    """Return a topology that needs as few permissions as possible."""
    file = {
        "apiVersion": "tensile-kube.io/v1alpha1",
        "kind": "Topology",
        "name": "edge",
        "lowers": [{"name": "a", "kubeconfig": "a"}],
        "controllers": [],
        "kubelet": {"tlsCertFile": "c", "tlsKeyFile": "k"},
    }
    return parse(orjson.dumps(file).decode(), name="topology.yaml")


def upper_objects(topology: Topology) -> list[Manifest]:
    """Return the objects for the upper cluster."""
    return upper_roles(topology, namespace="tensile")


def lower_objects(topology: Topology) -> list[Manifest]:
    """Return the objects for the lower cluster."""
    return lower_roles(topology.lowers[0], topology=topology.name, namespace="tensile")


SIDES = {"upper": upper_objects, "lower": lower_objects}
TOPOLOGIES = {"whole": whole, "little": little}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("extent", TOPOLOGIES)
def test_the_objects_are_as_recorded(side: str, extent: str) -> None:
    """Their order and format are readable and stable."""
    got = yaml.safe_dump_all(SIDES[side](TOPOLOGIES[extent]()), sort_keys=False)
    record = RECORDS / f"roles-{side}-{extent}.yaml"
    if RECORDING:
        record.write_text(got)
    assert got == record.read_text()


@pytest.mark.parametrize("extent", TOPOLOGIES)
def test_the_roles_grant_exactly_the_listed_permissions(extent: str) -> None:
    """Each verb on each resource is compared with its namespace and object name."""
    topology = TOPOLOGIES[extent]()
    configmap_key = ConfigMapKey("tensile", "topology")
    rights = upper_rights(topology, place=configmap_key, takes_turns=True, namespace="tensile")
    assert granted(upper_objects(topology)) == listed(rights)
    assert granted(lower_objects(topology)) == listed(lower_rights(topology.lowers[0]))


def granted(objects: Iterable[Manifest]) -> Granted:
    """Return the permissions that roles grant, as the apiserver reads them."""
    return {
        (one["metadata"].get("namespace", ""), group, resource, name, verb)
        for one in objects
        for rule in one.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def listed(rights: Iterable[Permission]) -> Granted:
    """Return the same for the list of permissions."""
    return {(one.namespace, one.group, one.resource, one.name, verb) for one in rights for verb in one.verbs}


@pytest.mark.parametrize("side", SIDES)
def test_each_role_is_bound_only_to_the_engines_account(side: str) -> None:
    """An unbound role grants nothing, and a binding to another subject would grant too much."""
    account, *others = SIDES[side](whole())
    subject = {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "tensile"}
    assert (account["kind"], account["metadata"]["namespace"]) == ("ServiceAccount", "tensile")
    roles = [one for one in others if "rules" in one]
    bindings = [one for one in others if "subjects" in one]
    assert len(roles) == len(bindings) > 0
    assert len(roles) + len(bindings) == len(others)
    for role, binding in zip(roles, bindings, strict=True):
        assert binding["kind"] == f"{role['kind']}Binding"
        assert binding["metadata"] == role["metadata"]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (role["kind"], role["metadata"]["name"])
        assert binding["subjects"] == [subject]


def test_topologies_that_share_a_cluster_share_no_role() -> None:
    """Role names contain topology and namespace, and different pairs give different names."""
    pairs = [
        ("demo", "tensile"),
        ("other", "tensile"),
        ("demo", "team"),
        ("tensile", "demo"),
        ("a-b", "c"),
        ("a", "b-c"),
    ]
    assert len({role_name(*pair) for pair in pairs}) == len(pairs)


def test_rules_combine_resources_of_one_group_with_the_same_verbs() -> None:
    """A permission for one named object has a separate rule."""
    rights = [
        Permission(POD, ("get", "list"), "x"),
        Permission(LEASE, ("get", "list"), "x"),
        Permission(SECRET, ("get", "list"), "x"),
        Permission(POD, ("get", "list"), "x", "log"),
        Permission(CONFIG_MAP, ("get", "list"), "x", name="one"),
    ]
    assert rules(rights) == [
        {"apiGroups": [""], "resources": ["pods", "secrets", "pods/log"], "verbs": ["get", "list"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["one"], "verbs": ["get", "list"]},
    ]


def test_the_engines_configmaps_follow_the_name_of_the_topologys_configmap() -> None:
    """The engine may not write the topology's own ConfigMap or a candidate."""
    roles = upper_roles(whole(), namespace="ops", configmap="mine")
    written = {one for one in granted(roles) if one[2] == "configmaps" and one[4] in {"create", "patch", "delete"}}
    assert written == {
        ("ops", "", "configmaps", "", "create"),
        ("ops", "", "configmaps", "mine-status", "patch"),
        ("ops", "", "configmaps", "mine-history", "patch"),
        ("ops", "", "configmaps", "mine-plan", "patch"),
        ("ops", "", "configmaps", "mine-plan", "delete"),
    }


def test_the_account_for_ci_writes_one_configmap_and_reads_another() -> None:
    """Both are named and in the topology's namespace, and the account is not the engine's."""
    account, role, binding = candidate_roles("demo", namespace="ops", configmap="mine")
    assert granted([role]) == {
        *(("ops", "", "configmaps", "mine-candidate", verb) for verb in ("create", "patch", "delete")),
        ("ops", "", "configmaps", "mine-plan", "get"),
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["kind"], subject["name"]) == (account["kind"], account["metadata"]["name"])
    assert subject["name"] != ACCOUNT


def test_the_lease_does_not_depend_on_the_engines_namespace() -> None:
    """It prevents two engines with the same owner labels from running at once in different namespaces."""
    places = {
        (one[0], one[3], one[4])
        for namespace in ("tensile", "ops")
        for one in granted(upper_roles(whole(), namespace=namespace))
        if one[2] == "leases" and one[0] != "kube-node-lease"
    }
    lease = {("kube-system", "tensile-demo", verb) for verb in ("get", "patch")}
    assert places == {*lease, ("kube-system", "", "create")}


def test_only_upper_pods_get_the_accounts_token_automatically() -> None:
    """No pod in a lower cluster uses the account; the engine's own pods in the upper cluster do."""
    accounts: list[Any] = [SIDES[side](little())[0].get("automountServiceAccountToken") for side in ("upper", "lower")]
    assert accounts == [None, False]
