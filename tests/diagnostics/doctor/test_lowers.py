"""Tests of the checks of lower clusters: their identity, the owner of their Node, and whether it is reachable."""

from typing import Any

import pytest
from doctorkit import (
    LOWER,
    LOWER_ID,
    UPPER_ID,
    cluster_facts,
    contact,
    facts,
    findings_at,
    lease,
    only_finding,
    real_node,
    server_endpoint,
    topology,
)
from doctorkit import node as node_of

from tensile.diagnostics.doctor.facts import (
    LOCAL_ENGINE,
    METRICS,
    NODES,
    ClusterFacts,
    Facts,
    Finding,
    Level,
    QueryAnswer,
    Stage,
    lease_of,
    port_of,
)
from tensile.diagnostics.doctor.lowers import check_identity, check_kubelet, check_node
from tensile.diagnostics.doctor.run import run_checks
from tensile.names import ENGINE, LOWER_UID, OTHER_ENGINE, OWNER, OWNER_NAME, owner_of
from tensile.objects import UPPER, Manifest

TWO = [{"name": LOWER, "kubeconfig": "a"}, {"name": "lower-b", "kubeconfig": "b"}]


def upper_with_nodes(*nodes: Manifest, ago: float = 1.0, **answers: QueryAnswer) -> ClusterFacts:
    """Return an upper cluster with these Nodes, all of whose leases were renewed so many seconds ago."""
    leases = {lease_of(one["metadata"]["name"]): lease(ago) for one in nodes}
    return cluster_facts(UPPER, answers={NODES: QueryAnswer(list(nodes)), **leases, **answers})


# Identity.


def test_different_clusters_have_different_identities() -> None:
    """The UID of namespace kube-system identifies a cluster."""
    known = facts()
    assert only_finding(check_identity(known.upper, known)).what == f"kube-system {UPPER_ID}"
    assert only_finding(check_identity(known.lowers[LOWER], known)).level == Level.OK


def test_a_lower_that_is_the_upper_cluster_fails() -> None:
    """Otherwise its own mirrored pods would be mirrored again."""
    one = cluster_facts(identity=UPPER_ID)
    finding = only_finding(check_identity(one, facts(None, one)))
    assert (finding.level, "it is the same cluster as upper" in finding.what) == (Level.FAIL, True)


def test_two_lowers_with_one_cluster_fail_at_the_second() -> None:
    """Otherwise two nodes would run the same pods."""
    first, second = cluster_facts(), cluster_facts("lower-b")
    known = facts(None, first, second, topology=topology(lowers=TWO))
    assert only_finding(check_identity(first, known)).level == Level.OK
    finding = only_finding(check_identity(second, known))
    assert (finding.level, "it is the same cluster as lower-a" in finding.what) == (Level.FAIL, True)
    assert finding.advice.endswith("or remove a lower cluster of the two")
    own = node_of("lower-b")
    own["metadata"]["annotations"][LOWER_UID] = "uid-of-b"
    known = facts(upper_with_nodes(own), first, second, topology=topology(lowers=TWO))
    assert (
        only_finding(check_identity(second, known)).advice
        == "use the kubeconfig of another cluster than kubeconfigs/it"
    )


def test_a_lower_fails_if_its_node_was_created_for_another_cluster() -> None:
    """The Node records the cluster's UID; a Node of another owner is ignored."""
    found = {}
    for ours in (True, False):
        node = node_of(LOWER, ours=ours)
        node["metadata"]["annotations"][LOWER_UID] = "uid-of-another"
        one = cluster_facts()
        found[ours] = only_finding(check_identity(one, facts(upper_with_nodes(node), one)))
    assert found[True].level == Level.FAIL
    assert f"(kube-system {LOWER_ID}, not uid-of-another)" in found[True].what
    assert found[False].level == Level.OK


def test_swapped_kubeconfigs_are_reported_with_the_right_lower() -> None:
    """The other Node records the same cluster UID, so the finding can name its lower."""
    nodes = {name: node_of(name) for name in (LOWER, "lower-b")}
    for name, node in nodes.items():
        node["metadata"]["annotations"][LOWER_UID] = f"uid-of-{name}"
    first, second = cluster_facts(identity="uid-of-lower-b"), cluster_facts("lower-b", identity="uid-of-lower-a")
    finding = only_finding(
        check_identity(first, facts(upper_with_nodes(*nodes.values()), first, second, topology=topology(lowers=TWO)))
    )
    assert finding.what.endswith("(kube-system uid-of-lower-b, not uid-of-lower-a): that of lower lower-b")
    assert finding.advice == "use the kubeconfig of the cluster of lower-a"


def test_a_shared_kubeconfig_fails_only_the_lower_that_it_is_wrong_for() -> None:
    """Only the lower whose Node has another cluster UID fails, regardless of the topology's order."""
    nodes = {name: node_of(name) for name in (LOWER, "lower-b")}
    for name, node in nodes.items():
        node["metadata"]["annotations"][LOWER_UID] = f"uid-of-{name}"
    no_metrics = {METRICS: QueryAnswer(error="not found", status=404)}
    sides = [cluster_facts(name, identity="uid-of-lower-b", answers=no_metrics) for name in nodes]
    known = facts(upper_with_nodes(*nodes.values()), *sides, topology=topology(lowers=TWO))
    wrong, right = (only_finding(check_identity(one, known)) for one in sides)
    assert wrong.advice == "use the kubeconfig of the cluster of lower-a"
    assert right.level == Level.OK
    warned = [(one.cluster, one.check) for one in run_checks(known) if one.level == Level.WARN]
    assert ("lower-b", "metrics") in warned
    assert (LOWER, "metrics") not in warned


def test_a_renamed_lower_whose_former_node_has_pods_fails() -> None:
    """The pods are bound to the former Node, so the advice is to keep its name with node.name."""
    left = node_of("lower-old")
    left["metadata"]["annotations"][LOWER_UID] = LOWER_ID
    left["status"]["conditions"] = [{"type": "InTopology", "status": "False"}]
    one = cluster_facts()
    finding = only_finding(check_identity(one, facts(upper_with_nodes(left), one)))
    assert finding.level == Level.FAIL
    assert finding.what == "it is the cluster of removed node lower-old, which still has pods"
    assert finding.advice.startswith("to keep them, write node: {name: lower-old} for lower lower-a")


def test_a_lower_that_is_renamed_in_the_file_only_is_a_warning() -> None:
    """Its Node is still in use, with or without pods."""
    kept = node_of("lower-old")
    kept["metadata"]["annotations"][LOWER_UID] = LOWER_ID
    one = cluster_facts()
    finding = only_finding(check_identity(one, facts(upper_with_nodes(kept), one)))
    assert finding == Finding(
        LOWER,
        "identity",
        Level.WARN,
        "it is the cluster of Node lower-old, which is no lower of this file",
        "to keep the pods of that node, write node: {name: lower-old} for lower lower-a",
    )


def test_lowers_without_an_identity_have_no_identity_finding() -> None:
    """Two clusters with unknown UIDs are not reported as the same cluster."""
    first, second = cluster_facts(identity=""), cluster_facts("lower-b", identity="")
    assert not list(check_identity(second, facts(None, first, second, topology=topology(lowers=TWO))))


# Nodes.


def noded_lower(*nodes: Manifest, ago: float = 1.0) -> Finding:
    """Return the finding on the lower's Node."""
    known = facts(upper_with_nodes(*nodes, ago=ago))
    return only_finding(check_node(known.lowers[LOWER], known))


def test_an_owned_node_with_a_renewed_lease_is_ok() -> None:
    """The Node has this topology's owner mark, and its lease was renewed a second ago."""
    assert noded_lower(node_of(LOWER)).level == Level.OK


def test_a_node_whose_lease_is_not_renewed_is_a_warning() -> None:
    """The warning has the last renewal, and the advice is to start the engine."""
    finding = noded_lower(node_of(LOWER), ago=41.0)
    assert finding.level == Level.WARN
    assert "no engine has renewed its lease since 20" in finding.what
    assert finding.advice.startswith("start the engine")


def test_a_lease_that_two_engines_renew_is_a_warning() -> None:
    """The warning names both engines, and the advice is to stop one or to use leader election."""
    renewed = lease().value | {"metadata": {"annotations": {ENGINE: "host_1_a", OTHER_ENGINE: "host_2_b"}}}
    known = facts(upper_with_nodes(node_of(LOWER), **{lease_of(LOWER): QueryAnswer(renewed)}))
    finding = only_finding(check_node(known.lowers[LOWER], known))
    assert finding.level == Level.WARN
    assert "engines host_1_a and host_2_b both renew the lease" in finding.what
    assert finding.advice == "stop one of them, or run both with --leader-elect"


def test_blocked_deletions_are_reported_from_the_nodes_condition() -> None:
    """The finding repeats the condition's message, and refers to the documentation."""
    node = node_of(LOWER)
    node["status"]["conditions"] = [{"type": "DeletionsBlocked", "status": "True", "message": "40 pods are gone"}]
    known = facts(upper_with_nodes(node))
    kept, blocked = check_node(known.lowers[LOWER], known)
    assert (kept.level, blocked.level) == (Level.OK, Level.WARN)
    assert blocked.what == "the guard blocks changes: 40 pods are gone"
    assert "docs/howto/held-deletions.md" in blocked.advice
    node["status"]["conditions"][0]["status"] = "False"
    assert only_finding(check_node(known.lowers[LOWER], known)).level == Level.OK


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([real_node(unschedulable=True), real_node("False")], "none of its 2 nodes is Ready and schedulable"),
        ([], "it has no nodes"),
    ],
)
def test_a_lower_without_schedulable_ready_nodes_is_a_warning(nodes: list[Manifest], message: str) -> None:
    """Its virtual node accepts no new pods in that case."""
    known = facts(upper_with_nodes(node_of(LOWER)), cluster_facts(answers={NODES: QueryAnswer(nodes)}))
    kept, finding = check_node(known.lowers[LOWER], known)
    assert (kept.level, finding.level) == (Level.OK, Level.WARN)
    assert finding.what == f"{message}, so Node {LOWER} takes no new pods"
    assert finding.advice.endswith(" a node there")


def test_a_missing_node_is_skipped() -> None:
    """The engine creates the Node when it starts."""
    assert noded_lower().level == Level.SKIP


def test_a_node_of_another_owner_fails_with_the_owners_name() -> None:
    """The advice is to delete the Node; its topology is named if its annotations have one."""
    finding = noded_lower(node_of(LOWER, ours=False))
    assert (finding.level, "is not created by tensile" in finding.what) == (Level.FAIL, True)
    assert "kubectl delete node lower-a" in finding.advice
    foreign = node_of(LOWER, ours=False)
    foreign["metadata"] |= {"labels": {OWNER: "0123456789abcdef"}, "annotations": {OWNER_NAME: "staging"}}
    assert "is topology staging's (tensile-kube.io/owner=0123456789abcdef)" in noded_lower(foreign).what


def test_a_node_of_another_topology_fails_with_the_advice_to_rename() -> None:
    """The owner mark matches the annotated topology name; usually the topology was renamed."""
    renamed = node_of(LOWER, ours=False)
    renamed["metadata"] |= {"labels": {OWNER: owner_of(UPPER_ID, "former").mark}, "annotations": {OWNER_NAME: "former"}}
    finding = noded_lower(renamed)
    assert finding.what == "Node lower-a belongs to topology former, and the engine does not change it"
    assert finding.advice == (
        "if this topology was renamed, set `name: former` again; otherwise give the lower another node.name"
    )


def test_a_node_that_is_not_in_the_topology_but_renewed_is_a_warning() -> None:
    """Two engines with different files of one topology name would revert each other's changes."""
    known = facts(upper_with_nodes(node_of("elsewhere")))
    finding = only_finding(check_node(known.upper, known))
    assert (finding.level, "an engine keeps Node elsewhere for topology demo" in finding.what) == (Level.WARN, True)
    known = facts(upper_with_nodes(node_of("elsewhere"), ago=3600.0))
    assert "no longer has such a lower cluster" in only_finding(check_node(known.upper, known)).what


def test_the_former_node_of_a_lower_with_a_changed_node_name_is_reported() -> None:
    """The advice is to restore node.name, because the pods are bound to the former Node."""
    former = node_of("elsewhere")
    former["metadata"]["labels"]["clusterID"] = LOWER
    known = facts(upper_with_nodes(former))
    finding = only_finding(check_node(known.upper, known))
    assert finding.what.startswith("Node elsewhere is the former one of lower lower-a: its `node.name` was changed")
    assert finding.advice.startswith("write node: {name: elsewhere} for lower lower-a again")


def test_the_node_of_a_removed_lower_is_reported_as_such() -> None:
    """Its condition InTopology is False, so no second engine is suspected."""
    node = node_of("elsewhere")
    node["status"]["conditions"] = [{"type": "InTopology", "status": "False"}]
    known = facts(upper_with_nodes(node))
    finding = only_finding(check_node(known.upper, known))
    assert "is of a lower cluster that was removed from the topology while pods are bound to it" in finding.what
    assert finding.advice.startswith("put the lower cluster back with `maintenance: drain`")


def test_fields_that_need_a_restart_are_a_warning() -> None:
    """The local engine of this topology reports them, because a changed port is not in force before."""
    upper, needed = upper_with_nodes(), {"restartNeeded": ["webhook.port: 1 -> 2"]}
    known = facts(upper)
    upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "another", "accepted": needed})
    assert not list(check_node(upper, known))
    upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "demo", "accepted": needed})
    finding = only_finding(check_node(upper, known))
    assert (finding.level, finding.what) == (Level.WARN, "not in force: webhook.port: 1 -> 2")
    assert finding.advice == "restart the engine, or undo the change"


def test_an_extender_that_the_scheduler_does_not_call_is_a_warning() -> None:
    """The engine reports it with the remedy; pending entries of the webhook belong to the webhook check."""
    waits = [
        "webhook: set webhook.service",
        "the upper scheduler has not called the extender for pod a/b: configure it",
    ]
    upper = upper_with_nodes()
    upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "demo", "accepted": {"pending": waits}})
    finding = only_finding(check_node(upper, facts(upper)))
    assert finding.what == "the upper scheduler has not called the extender for pod a/b"
    assert (finding.level, finding.advice) == (Level.WARN, "configure it")


def test_nodes_of_other_owners_have_no_finding() -> None:
    """A Node without this topology's owner mark is ignored."""
    known = facts(upper_with_nodes(node_of("real-node", ours=False)))
    assert not list(check_node(known.upper, known))


def test_nodes_that_may_not_be_listed_have_no_finding() -> None:
    """The rights check already reports the missing right."""
    known = facts(cluster_facts(UPPER, answers={NODES: QueryAnswer(error="forbidden", status=403)}))
    assert not list(check_node(known.upper, known))
    assert not list(check_node(known.lowers[LOWER], known))


# The kubelet API.


def reached(answer: QueryAnswer | None, node: Manifest | None = None, **fields: Any) -> Finding:
    """Return the finding on whether the upper apiserver reaches the lower's Node."""
    node = node or node_of(LOWER)
    upper = upper_with_nodes(node)
    if answer is not None:
        upper.answers[port_of(LOWER)] = answer
    known: Facts = facts(upper, **fields)
    return only_finding(check_kubelet(known.lowers[LOWER], known))


def test_a_node_that_the_apiserver_reaches_is_ok() -> None:
    """The apiserver's own proxy call succeeded."""
    finding = reached(QueryAnswer(value=True, error="ok", status=200))
    assert (finding.level, finding.what) == (Level.OK, "the upper's apiserver reaches Node lower-a at 192.0.2.9:10350")


@pytest.mark.parametrize(
    ("status", "message", "advice"),
    [
        (
            503,
            "error trying to reach service: dial tcp 192.0.2.9:10350: connect: connection refused",
            "check that the engine runs, by its log or with `tensile status`; if it does, let the upper's apiserver",
        ),
        (0, "no answer in 3 s", "firewall, NetworkPolicy, kubelet.bind"),
        (503, "tls: failed to verify certificate: x509: unknown authority", "--kubelet-certificate-authority"),
        (403, "Forbidden", "--clusterrole=system:kubelet-api-admin"),
        (401, "Unauthorized", "kubelet.clientCAFile is the CA that signed that"),
    ],
)
def test_a_node_that_the_apiserver_does_not_reach_fails_with_matching_advice(
    status: int, message: str, advice: str
) -> None:
    """The advice depends on the apiserver's error."""
    finding = reached(QueryAnswer(value=False, error=message, status=status))
    assert finding.level == Level.FAIL
    assert f"(HTTP {status or '-'}: {message})" in finding.what
    assert advice in finding.advice


def test_a_node_on_loopback_is_checked_by_a_direct_call() -> None:
    """An apiserver does not proxy to loopback, and runs on this machine in that case."""
    local = contact(endpoint=server_endpoint("127.0.0.1"))
    upper = upper_with_nodes(node_of(LOWER, address="::1"))
    upper.contact = local
    for answered, level in ((local, Level.OK), (contact(Stage.CONNECTION, "Connection refused"), Level.FAIL)):
        upper.answers[port_of(LOWER)] = QueryAnswer(answered)
        known = facts(upper, address="127.0.0.1")
        finding = only_finding(check_kubelet(known.lowers[LOWER], known))
        assert (finding.level, "[::1]:10350" in finding.what) == (level, True)


@pytest.mark.parametrize(
    ("stage", "error", "what", "advice"),
    [
        (Stage.CONNECTION, "Connection refused", "is not reachable (Connection refused)", "start the engine (`tensile"),
        (Stage.TLS, "no answer in 3 s", "is not reachable (no answer in 3 s)", "start the engine (`tensile run`), or"),
        (Stage.TLS, "WRONG_VERSION_NUMBER", "another program than the engine listens at", "stop it, or set another"),
    ],
)
def test_an_unreachable_node_on_loopback_fails_with_the_likely_cause(
    stage: Stage, error: str, what: str, advice: str
) -> None:
    """No firewall is involved on one machine, so the engine stopped, or another program has its port."""
    upper = upper_with_nodes(node_of(LOWER, address="127.0.0.1"))
    upper.contact = contact(endpoint=server_endpoint("127.0.0.1"))
    upper.answers[port_of(LOWER)] = QueryAnswer(contact(stage, error))
    known = facts(upper, address="127.0.0.1")
    finding = only_finding(check_kubelet(known.lowers[LOWER], known))
    assert finding.level == Level.FAIL
    assert what in finding.what
    assert finding.advice.startswith(advice)
    upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "demo"})
    advised = only_finding(check_kubelet(known.lowers[LOWER], known)).advice
    assert advised.startswith(("stop it", "the engine runs, but not at 127.0.0.1: "))


def test_a_loopback_node_address_fails_if_the_apiserver_is_elsewhere() -> None:
    """A remote apiserver would call itself at that address; the check needs no running engine."""
    known = facts(upper_with_nodes(), address="127.0.0.1")
    finding = only_finding(check_kubelet(known.lowers[LOWER], known))
    assert (finding.level, "set kubelet.nodeAddress" in finding.advice) == (Level.FAIL, True)


def test_a_node_with_an_expired_lease_is_not_called() -> None:
    """The finding is skipped, because no engine serves the node."""
    known = facts(upper_with_nodes(node_of(LOWER), ago=100.0))
    finding = only_finding(check_kubelet(known.lowers[LOWER], known))
    assert (finding.level, finding.what) == (Level.SKIP, "not checked: no engine serves it")


def test_a_node_with_kubelet_port_zero_fails() -> None:
    """The port is not open; if the local engine reports the cause, the finding repeats it."""
    finding = reached(None, node_of(LOWER, port=0))
    assert (finding.level, "has no kubelet port" in finding.what) == (Level.FAIL, True)
    assert "engine's log" in finding.advice
    message = (
        "kubelet API of node lower-a cannot listen on port 10350 of 127.0.0.1: another program uses the port: stop it"
    )
    known = facts(upper_with_nodes(node_of(LOWER, port=0)))
    known.upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "demo", "accepted": {"pending": [message]}})
    finding = only_finding(check_kubelet(known.lowers[LOWER], known))
    assert f"{finding.what}: {finding.advice}" == message


def test_a_node_that_may_not_be_called_is_skipped_with_a_command() -> None:
    """The engine itself needs no such right, so the command is for an administrator."""
    finding = reached(None)
    assert (finding.level, "kubectl get --raw /api/v1/nodes/lower-a/proxy/healthz" in finding.what) == (
        Level.SKIP,
        True,
    )


def test_an_unreachable_upper_cluster_has_no_node_call_finding() -> None:
    """No Node of an unreachable cluster can be checked."""
    known = facts(cluster_facts(UPPER, contact=contact(Stage.CONNECTION, "refused")))
    assert not list(check_kubelet(known.lowers[LOWER], known))
    assert not findings_at(list(check_kubelet(known.upper, known)), Level.FAIL)
