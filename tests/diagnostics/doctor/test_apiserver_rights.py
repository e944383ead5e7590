"""Tests of the permission check: the missing rights, their purposes, and the commands that grant them."""

import re
from typing import Any

from doctorkit import LOWER, cluster_facts, facts, findings_at, only_finding

from tensile.diagnostics.doctor.apiserver import check_rights
from tensile.diagnostics.doctor.facts import Finding, Level, QueryAnswer, Stage
from tensile.engine.permissions import ALL_KINDS, Permission
from tensile.kubelet.stats.usage import NODE_METRICS, POD_METRICS
from tensile.names import LEASE_NAMESPACE
from tensile.objects import ENDPOINT_SLICE, LEASE, NAMESPACE, POD, SERVICE, UPPER

PODS = Permission(POD, ("create", "delete"), "mirrored pods")
LOGS = Permission(POD, ("get",), "kubectl logs", "log")
LEASES = Permission(LEASE, ("patch",), "heartbeats", namespace=LEASE_NAMESPACE)
EVERYTHING = Permission(ALL_KINDS, ("list",), "check that a namespace is empty", lost="tidiness")


def rights_findings(*missing: Permission, name: str = LOWER, **fields: Any) -> list[Finding]:
    """Return the findings on a cluster that does not grant these rights."""
    one = cluster_facts(name, missing=list(missing), **fields)
    return list(check_rights(one, facts(one) if name == UPPER else facts(None, one)))


def test_no_missing_right_is_one_ok_finding() -> None:
    """One finding covers all rights."""
    assert only_finding(rights_findings()).level == Level.OK


def test_missing_rights_are_listed_with_their_purposes() -> None:
    """Resources have the names that `kubectl auth can-i` accepts."""
    finding = only_finding(rights_findings(PODS, LOGS, Permission(SERVICE, ("create",), "controller Service")))
    assert finding.level == Level.FAIL
    assert finding.what == (
        "missing: create, delete pods (mirrored pods); get pods/log (kubectl logs); "
        "create services (controller Service)"
    )


def test_the_commands_grant_exactly_the_missing_rights() -> None:
    """Each set of verbs has its own role, because one role with all verbs on all resources would grant too much."""
    slices = Permission(ENDPOINT_SLICE, ("create", "delete"), "controller Service")
    head, *commands = only_finding(rights_findings(PODS, LOGS, slices)).advice.splitlines()
    assert head == "as an administrator of cluster lower-a:"
    first, second = roles(commands)
    assert commands == [
        f"kubectl create clusterrole {first} --verb=create,delete --resource=pods,endpointslices.discovery.k8s.io",
        f"kubectl create clusterrolebinding {first} --clusterrole={first} --user=engine",
        f"kubectl create clusterrole {second} --verb=get --resource=pods/log",
        f"kubectl create clusterrolebinding {second} --clusterrole={second} --user=engine",
    ]
    assert re.fullmatch("tensile-demo-lower-a-[0-9a-f]{8}", first)


def test_metrics_rights_are_granted_after_metrics_server_is_installed() -> None:
    """Without a metrics API kubectl cannot create a role for it; other rights have no such condition."""
    metrics = [Permission(kind, ("list",), "kubectl top", lost="kubectl top") for kind in (NODE_METRICS, POD_METRICS)]
    heads = [one.advice.splitlines()[0] for one in rights_findings(*metrics, EVERYTHING)]
    assert heads == [
        "as an administrator of cluster lower-a, once metrics-server is installed:",
        "as an administrator of cluster lower-a:",
    ]


def test_a_right_for_one_object_is_granted_with_its_resource_name() -> None:
    """The same kind's right for all objects is granted by a separate rule if it is missing too."""
    one = Permission(LEASE, ("get", "patch"), "replicas", namespace="ops", name="tensile-demo")
    finding = only_finding(rights_findings(one, one._replace(name="", verbs=("create",))))
    assert "get, patch leases.coordination.k8s.io tensile-demo (replicas)" in finding.what
    rules = re.findall("--verb=.*(?= *$)", finding.advice, re.MULTILINE)
    assert rules == [
        "--verb=create --resource=leases.coordination.k8s.io",
        "--verb=get,patch --resource=leases.coordination.k8s.io --resource-name=tensile-demo",
    ]


def roles(commands: list[str]) -> list[str]:
    """Return the names of the roles that the commands create."""
    return [found[1] for command in commands if (found := re.search(r" create (?:cluster)?role (\S+) ", command))]


def test_role_names_differ_by_rights_and_user() -> None:
    """A role of the same name would already exist and grant nothing new; equal rights have equal names."""
    slices = Permission(ENDPOINT_SLICE, ("create", "delete"), "controller Service")
    made = [
        *roles(only_finding(rights_findings(PODS)).advice.splitlines()),
        *roles(only_finding(rights_findings(slices)).advice.splitlines()),
        *roles(only_finding(rights_findings(PODS._replace(verbs=("create",)))).advice.splitlines()),
        *roles(only_finding(rights_findings(PODS, user="another")).advice.splitlines()),
    ]
    assert len(set(made)) == 4
    assert roles(only_finding(rights_findings(LOGS, PODS)).advice.splitlines())[0] == made[0]


def test_a_namespaced_right_is_granted_by_a_role_in_its_namespace() -> None:
    """The RoleBinding names the ServiceAccount in kubectl's notation."""
    finding = only_finding(rights_findings(LEASES, name=UPPER, user="system:serviceaccount:ops:engine"))
    head, *commands = finding.advice.splitlines()
    assert head == "as an administrator of the upper cluster:"
    (name,) = roles(commands)
    assert commands == [
        f"kubectl -n kube-node-lease create role {name} --verb=patch --resource=leases.coordination.k8s.io",
        f"kubectl -n kube-node-lease create rolebinding {name} --role={name} --serviceaccount=ops:engine",
    ]


def test_an_unknown_user_is_a_placeholder_in_the_command() -> None:
    """Older clusters do not report the current user."""
    assert only_finding(rights_findings(PODS, user="")).advice.endswith("--user=USER")


def test_user_names_are_quoted_for_the_shell() -> None:
    """A user name with shell syntax cannot run another command."""
    assert only_finding(rights_findings(PODS, user="a; rm -rf /")).advice.endswith("--user='a; rm -rf /'")


def test_a_missing_optional_right_is_a_warning_with_the_lost_feature() -> None:
    """The wildcard resource in its command is quoted, so that a shell does not expand it."""
    finding = only_finding(rights_findings(EVERYTHING))
    assert finding.level == Level.WARN
    assert finding.what.endswith("without it there is none of this: tidiness")
    assert "--verb=list --resource='*.*'" in finding.advice


def test_required_and_optional_rights_are_separate_findings() -> None:
    """Only a missing required right fails the check."""
    found = rights_findings(PODS, EVERYTHING)
    assert "list" not in only_finding(findings_at(found, Level.FAIL)).what
    assert "create" not in only_finding(findings_at(found, Level.WARN)).what


def test_rights_that_may_not_be_queried_are_a_warning() -> None:
    """The rights may be granted, so this is no failure; the advice names ClusterRole system:basic-user."""
    one = cluster_facts(missing=None, answers={"rights": QueryAnswer(error="forbidden", status=403)})
    finding = only_finding(check_rights(one, facts(None, one)))
    assert (finding.level, "(forbidden)" in finding.what) == (Level.WARN, True)
    assert "system:basic-user" in finding.advice


def test_a_timeout_of_the_rights_query_is_reported() -> None:
    """The finding gives the timeout as the reason."""
    one = cluster_facts(missing=None)
    assert "(no answer in time)" in only_finding(check_rights(one, facts(None, one))).what


def test_a_cluster_that_refuses_the_login_has_no_rights_finding() -> None:
    """The login finding already reports that cluster."""
    one = cluster_facts(missing=None)
    assert one.contact is not None
    one.contact = one.contact._replace(stage=Stage.LOGIN)
    assert not list(check_rights(one, facts(None, one)))


def test_a_resource_of_the_core_group_is_named_in_the_command() -> None:
    """A resource of the core group is written without a group."""
    assert "--resource=namespaces" in only_finding(rights_findings(Permission(NAMESPACE, ("get",), "x"))).advice
