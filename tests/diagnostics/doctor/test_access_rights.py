"""Which rights are missing, for what, and the commands that grant them."""

import re
from typing import Any

from doctorkit import LOWER, at, facts, only, side

from tensile.diagnostics.doctor.access import permitted
from tensile.diagnostics.doctor.facts import Finding, Level, QueryAnswer, Stage
from tensile.engine.permissions import ALL_KINDS, Permission
from tensile.kubelet.stats.usage import NODE_METRICS, POD_METRICS
from tensile.names import LEASE_NAMESPACE
from tensile.objects import ENDPOINT_SLICE, LEASE, NAMESPACE, POD, SERVICE, UPPER

PODS = Permission(POD, ("create", "delete"), "mirrored pods")
LOGS = Permission(POD, ("get",), "kubectl logs", "log")
LEASES = Permission(LEASE, ("patch",), "heartbeats", namespace=LEASE_NAMESPACE)
EVERYTHING = Permission(ALL_KINDS, ("list",), "check that a namespace is empty", lost="tidiness")


def told(*missing: Permission, name: str = LOWER, **fields: Any) -> list[Finding]:
    """Look at a cluster that does not grant these."""
    one = side(name, missing=list(missing), **fields)
    return list(permitted(one, facts(one) if name == UPPER else facts(None, one)))


def test_all_that_is_needed() -> None:
    """One word is enough."""
    assert only(told()).level == Level.OK


def test_what_is_missing_is_told_with_what_it_is_for() -> None:
    """As kubectl names resources, so that one can be asked about: kubectl auth can-i."""
    finding = only(told(PODS, LOGS, Permission(SERVICE, ("create",), "controller Service")))
    assert finding.level == Level.FAIL
    assert finding.what == (
        "missing: create, delete pods (mirrored pods); get pods/log (kubectl logs); "
        "create services (controller Service)"
    )


def test_commands_grant_what_is_missing_and_nothing_else() -> None:
    """A role for each set of verbs: one of all verbs on all resources would be more than is missing."""
    slices = Permission(ENDPOINT_SLICE, ("create", "delete"), "controller Service")
    head, *commands = only(told(PODS, LOGS, slices)).advice.splitlines()
    assert head == "as an administrator of cluster lower-a:"
    first, second = roles(commands)
    assert commands == [
        f"kubectl create clusterrole {first} --verb=create,delete --resource=pods,endpointslices.discovery.k8s.io",
        f"kubectl create clusterrolebinding {first} --clusterrole={first} --user=engine",
        f"kubectl create clusterrole {second} --verb=get --resource=pods/log",
        f"kubectl create clusterrolebinding {second} --clusterrole={second} --user=engine",
    ]
    assert re.fullmatch("tensile-demo-lower-a-[0-9a-f]{8}", first)


def test_rights_to_metrics_are_granted_once_there_are_any() -> None:
    """Where nobody serves them kubectl knows no such resource, and makes no role; other rights wait for nothing."""
    metrics = [Permission(kind, ("list",), "kubectl top", lost="kubectl top") for kind in (NODE_METRICS, POD_METRICS)]
    heads = [one.advice.splitlines()[0] for one in told(*metrics, EVERYTHING)]
    assert heads == [
        "as an administrator of cluster lower-a, once metrics-server is installed:",
        "as an administrator of cluster lower-a:",
    ]


def test_what_is_for_one_object_is_granted_for_that_alone() -> None:
    """Beside the same on all objects of that kind, if that is missing too."""
    one = Permission(LEASE, ("get", "patch"), "replicas", namespace="ops", name="tensile-demo")
    finding = only(told(one, one._replace(name="", verbs=("create",))))
    assert "get, patch leases.coordination.k8s.io tensile-demo (replicas)" in finding.what
    rules = re.findall("--verb=.*(?= *$)", finding.advice, re.MULTILINE)
    assert rules == [
        "--verb=create --resource=leases.coordination.k8s.io",
        "--verb=get,patch --resource=leases.coordination.k8s.io --resource-name=tensile-demo",
    ]


def roles(commands: list[str]) -> list[str]:
    """Return the names of the roles that commands make."""
    return [found[1] for command in commands if (found := re.search(r" create (?:cluster)?role (\S+) ", command))]


def test_what_is_missing_later_gets_a_role_of_its_own() -> None:
    """One of the first day's name would exist already, and nothing would be granted; the same again has the same."""
    slices = Permission(ENDPOINT_SLICE, ("create", "delete"), "controller Service")
    made = [
        *roles(only(told(PODS)).advice.splitlines()),
        *roles(only(told(slices)).advice.splitlines()),
        *roles(only(told(PODS._replace(verbs=("create",)))).advice.splitlines()),
        *roles(only(told(PODS, user="another")).advice.splitlines()),
    ]
    assert len(set(made)) == 4
    assert roles(only(told(LOGS, PODS)).advice.splitlines())[0] == made[0]


def test_a_right_in_one_namespace_is_a_role_there() -> None:
    """And the account that gets it is named as kubectl wants it."""
    finding = only(told(LEASES, name=UPPER, user="system:serviceaccount:ops:engine"))
    head, *commands = finding.advice.splitlines()
    assert head == "as an administrator of the upper cluster:"
    (name,) = roles(commands)
    assert commands == [
        f"kubectl -n kube-node-lease create role {name} --verb=patch --resource=leases.coordination.k8s.io",
        f"kubectl -n kube-node-lease create rolebinding {name} --role={name} --serviceaccount=ops:engine",
    ]


def test_who_gets_it_may_not_be_known() -> None:
    """Older clusters do not say who one is."""
    assert only(told(PODS, user="")).advice.endswith("--user=USER")


def test_a_name_cannot_become_another_command() -> None:
    """It is quoted for a shell."""
    assert only(told(PODS, user="a; rm -rf /")).advice.endswith("--user='a; rm -rf /'")


def test_what_the_engine_can_do_without_is_a_warning() -> None:
    """With what is lost, and a command that a shell does not expand."""
    finding = only(told(EVERYTHING))
    assert finding.level == Level.WARN
    assert finding.what.endswith("without it there is none of this: tidiness")
    assert "--verb=list --resource='*.*'" in finding.advice


def test_needed_and_other_rights_are_told_apart() -> None:
    """Only what is needed fails."""
    found = told(PODS, EVERYTHING)
    assert "list" not in only(at(found, Level.FAIL)).what
    assert "create" not in only(at(found, Level.WARN)).what


def test_rights_that_cannot_be_asked_for() -> None:
    """It may be well all the same."""
    one = side(missing=None, answers={"rights": QueryAnswer(error="forbidden", status=403)})
    finding = only(permitted(one, facts(None, one)))
    assert (finding.level, "(forbidden)" in finding.what) == (Level.WARN, True)
    assert "system:basic-user" in finding.advice


def test_rights_that_were_not_told_in_time() -> None:
    """The same."""
    one = side(missing=None)
    assert "(no answer in time)" in only(permitted(one, facts(None, one))).what


def test_a_cluster_that_is_not_reached_is_not_looked_at() -> None:
    """That is told elsewhere."""
    one = side(missing=None)
    assert one.contact is not None
    one.contact = one.contact._replace(stage=Stage.LOGIN)
    assert not list(permitted(one, facts(None, one)))


def test_roles_of_other_kinds() -> None:
    """A kind without a group has none behind its name."""
    assert "--resource=namespaces" in only(told(Permission(NAMESPACE, ("get",), "x"))).advice
