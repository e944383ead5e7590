"""The accounts and roles that an administrator applies: exactly the list of rights, as recorded text.

TENSILE_RECORD=1 in the environment writes the texts beside this file anew; read what changed before it is committed.
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
"""Namespace, group, resource, name and verb of each thing that may be done."""


def little() -> Topology:
    """A topology that asks for as little as there is."""
    file = {
        "apiVersion": "tensile-kube.io/v1alpha1",
        "kind": "Topology",
        "name": "edge",
        "lowers": [{"name": "a", "kubeconfig": "a"}],
        "controllers": [],
        "kubelet": {"tlsCertFile": "c", "tlsKeyFile": "k"},
    }
    return parse(orjson.dumps(file).decode(), name="topology.yaml")


def above(topology: Topology) -> list[Manifest]:
    """Return the objects for the upper cluster."""
    return upper_roles(topology, namespace="tensile")


def below(topology: Topology) -> list[Manifest]:
    """Return the objects for the lower cluster."""
    return lower_roles(topology.lowers[0], topology=topology.name, namespace="tensile")


SIDES = {"upper": above, "lower": below}
TOPOLOGIES = {"whole": whole, "little": little}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("extent", TOPOLOGIES)
def test_the_objects_are_as_recorded(side: str, extent: str) -> None:
    """In an order and form that a person can read, and that stays."""
    got = yaml.safe_dump_all(SIDES[side](TOPOLOGIES[extent]()), sort_keys=False)
    record = RECORDS / f"roles-{side}-{extent}.yaml"
    if RECORDING:
        record.write_text(got)
    assert got == record.read_text()


@pytest.mark.parametrize("extent", TOPOLOGIES)
def test_they_grant_the_rights_and_nothing_else(extent: str) -> None:
    """Each verb on each resource, in its namespace and on its object: neither fewer nor more."""
    topology = TOPOLOGIES[extent]()
    place = ConfigMapKey("tensile", "topology")
    rights = upper_rights(topology, place=place, takes_turns=True, namespace="tensile")
    assert granted(above(topology)) == listed(rights)
    assert granted(below(topology)) == listed(lower_rights(topology.lowers[0]))


def granted(objects: Iterable[Manifest]) -> Granted:
    """Read from roles what they grant, as the apiserver does."""
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
    """Return the same of the list of rights."""
    return {(one.namespace, one.group, one.resource, one.name, verb) for one in rights for verb in one.verbs}


@pytest.mark.parametrize("side", SIDES)
def test_each_role_is_bound_to_the_one_account_where_it_is(side: str) -> None:
    """A role without a binding grants nothing, and one that is bound to somebody else too much."""
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
    """By their names, or else by the namespaces that they are in; no two of these make one name."""
    pairs = [("demo", "tensile"), ("other", "tensile"), ("demo", "team"), ("tensile", "demo")]
    assert len({role_name(*pair) for pair in pairs}) == len(pairs)


def test_rules_join_what_reads_alike() -> None:
    """Resources of one group with the same verbs are one rule; what is for one object only stands alone."""
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


def test_another_name_of_the_topologys_configmap_is_that_of_its_status_and_plan_too() -> None:
    """Its own text is never the engine's to write, nor a candidate."""
    roles = upper_roles(whole(), namespace="ops", configmap="mine")
    written = {one for one in granted(roles) if one[2] == "configmaps" and one[4] in {"create", "patch", "delete"}}
    assert written == {
        ("ops", "", "configmaps", "", "create"),
        ("ops", "", "configmaps", "mine-status", "patch"),
        ("ops", "", "configmaps", "mine-history", "patch"),
        ("ops", "", "configmaps", "mine-plan", "patch"),
        ("ops", "", "configmaps", "mine-plan", "delete"),
    }


def test_the_account_for_ci_writes_one_config_map_and_reads_another() -> None:
    """By name, in the namespace of the topology; its account is not the engine's."""
    account, role, binding = candidate_roles("demo", namespace="ops", configmap="mine")
    assert granted([role]) == {
        *(("ops", "", "configmaps", "mine-candidate", verb) for verb in ("create", "patch", "delete")),
        ("ops", "", "configmaps", "mine-plan", "get"),
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["kind"], subject["name"]) == (account["kind"], account["metadata"]["name"])
    assert subject["name"] != ACCOUNT


def test_the_lease_is_the_same_wherever_an_engine_runs() -> None:
    """It keeps engines whose objects have the same marks from driving together, in whatever namespaces they are."""
    places = {
        (one[0], one[3], one[4])
        for namespace in ("tensile", "ops")
        for one in granted(upper_roles(whole(), namespace=namespace))
        if one[2] == "leases" and one[0] != "kube-node-lease"
    }
    lease = {("kube-system", "tensile-demo", verb) for verb in ("get", "patch")}
    assert places == {*lease, ("kube-system", "", "create")}


def test_no_pod_below_gets_the_token_by_itself() -> None:
    """Nobody runs as that account there; above the engine's own pods do."""
    accounts: list[Any] = [SIDES[side](little())[0].get("automountServiceAccountToken") for side in ("upper", "lower")]
    assert accounts == [None, False]
