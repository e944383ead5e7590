"""Which cluster is which, whose its Node is, and whether the upper's apiserver reaches that Node."""

from typing import Any

import pytest
from doctorkit import LOWER, LOWER_ID, UPPER_ID, at, contact, facts, lease, only, real_node, side, topology, way
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
from tensile.diagnostics.doctor.lowers import called, identified, noded
from tensile.diagnostics.doctor.run import diagnosed
from tensile.names import ENGINE, LOWER_UID, OTHER_ENGINE, OWNER, OWNER_NAME, owner_of
from tensile.objects import UPPER, Manifest

TWO = [{"name": LOWER, "kubeconfig": "a"}, {"name": "lower-b", "kubeconfig": "b"}]


def above(*nodes: Manifest, ago: float = 1.0, **answers: QueryAnswer) -> ClusterFacts:
    """Make an upper cluster with these Nodes, all of whose leases were renewed so many seconds ago."""
    leases = {lease_of(one["metadata"]["name"]): lease(ago) for one in nodes}
    return side(UPPER, answers={NODES: QueryAnswer(list(nodes)), **leases, **answers})


# Identity.


def test_clusters_that_differ() -> None:
    """Each is told by the UID of its kube-system."""
    known = facts()
    assert only(identified(known.upper, known)).what == f"kube-system {UPPER_ID}"
    assert only(identified(known.lowers[LOWER], known)).level == Level.OK


def test_a_lower_that_is_the_upper() -> None:
    """Its pods would come back as pods to mirror."""
    one = side(identity=UPPER_ID)
    finding = only(identified(one, facts(None, one)))
    assert (finding.level, "it is the same cluster as upper" in finding.what) == (Level.FAIL, True)


def test_two_lowers_that_are_one() -> None:
    """It is told of the second: two nodes would run the same pods."""
    first, second = side(), side("lower-b")
    known = facts(None, first, second, topology=topology(lowers=TWO))
    assert only(identified(first, known)).level == Level.OK
    finding = only(identified(second, known))
    assert (finding.level, "it is the same cluster as lower-a" in finding.what) == (Level.FAIL, True)
    assert finding.advice.endswith("or remove a lower cluster of the two")
    own = node_of("lower-b")
    own["metadata"]["annotations"][LOWER_UID] = "uid-of-b"
    known = facts(above(own), first, second, topology=topology(lowers=TWO))
    assert only(identified(second, known)).advice == "use the kubeconfig of another cluster than kubeconfigs/it"


def test_another_cluster_than_the_node_was_made_for() -> None:
    """The Node tells which one it was; one that is not ours tells nothing."""
    found = {}
    for ours in (True, False):
        node = node_of(LOWER, ours=ours)
        node["metadata"]["annotations"][LOWER_UID] = "uid-of-another"
        one = side()
        found[ours] = only(identified(one, facts(above(node), one)))
    assert found[True].level == Level.FAIL
    assert f"(kube-system {LOWER_ID}, not uid-of-another)" in found[True].what
    assert found[False].level == Level.OK


def test_two_lowers_whose_kubeconfigs_were_swapped() -> None:
    """The Node of the other one tells which cluster it is."""
    nodes = {name: node_of(name) for name in (LOWER, "lower-b")}
    for name, node in nodes.items():
        node["metadata"]["annotations"][LOWER_UID] = f"uid-of-{name}"
    first, second = side(identity="uid-of-lower-b"), side("lower-b", identity="uid-of-lower-a")
    finding = only(identified(first, facts(above(*nodes.values()), first, second, topology=topology(lowers=TWO))))
    assert finding.what.endswith("(kube-system uid-of-lower-b, not uid-of-lower-a): that of lower lower-b")
    assert finding.advice == "use the kubeconfig of the cluster of lower-a"


def test_a_lower_whose_kubeconfig_another_lower_has_too() -> None:
    """Only the one whose Node was made for another cluster is wrong, whichever comes first in the topology."""
    nodes = {name: node_of(name) for name in (LOWER, "lower-b")}
    for name, node in nodes.items():
        node["metadata"]["annotations"][LOWER_UID] = f"uid-of-{name}"
    no_metrics = {METRICS: QueryAnswer(error="not found", status=404)}
    sides = [side(name, identity="uid-of-lower-b", answers=no_metrics) for name in nodes]
    known = facts(above(*nodes.values()), *sides, topology=topology(lowers=TWO))
    wrong, right = (only(identified(one, known)) for one in sides)
    assert wrong.advice == "use the kubeconfig of the cluster of lower-a"
    assert right.level == Level.OK
    warned = [(one.cluster, one.check) for one in diagnosed(known) if one.level == Level.WARN]
    assert ("lower-b", "metrics") in warned
    assert (LOWER, "metrics") not in warned


def test_a_lower_that_was_renamed_while_it_had_pods() -> None:
    """They are bound to the Node of its former name, which the new one can keep."""
    left = node_of("lower-old")
    left["metadata"]["annotations"][LOWER_UID] = LOWER_ID
    left["status"]["conditions"] = [{"type": "InTopology", "status": "False"}]
    one = side()
    finding = only(identified(one, facts(above(left), one)))
    assert finding.level == Level.FAIL
    assert finding.what == "it is the cluster of removed node lower-old, which still has pods"
    assert finding.advice.startswith("to keep them, write node: {name: lower-old} for lower lower-a")


def test_a_lower_that_the_file_renames_before_an_engine_reads_it() -> None:
    """Its Node is in use, with or without pods."""
    kept = node_of("lower-old")
    kept["metadata"]["annotations"][LOWER_UID] = LOWER_ID
    one = side()
    finding = only(identified(one, facts(above(kept), one)))
    assert finding == Finding(
        LOWER,
        "identity",
        Level.WARN,
        "it is the cluster of Node lower-old, which is no lower of this file",
        "to keep the pods of that node, write node: {name: lower-old} for lower lower-a",
    )


def test_a_cluster_that_did_not_tell_who_it_is() -> None:
    """Nothing is said, and nothing is taken for its twin."""
    first, second = side(identity=""), side("lower-b", identity="")
    assert not list(identified(second, facts(None, first, second, topology=topology(lowers=TWO))))


# Nodes.


def noded_lower(*nodes: Manifest, ago: float = 1.0) -> Finding:
    """Look at the lower's Node."""
    known = facts(above(*nodes, ago=ago))
    return only(noded(known.lowers[LOWER], known))


def test_a_node_that_is_kept() -> None:
    """It is ours, and its lease is renewed."""
    assert noded_lower(node_of(LOWER)).level == Level.OK


def test_a_node_that_nobody_keeps() -> None:
    """A warning says since when no engine renews the Lease, and how to start one."""
    finding = noded_lower(node_of(LOWER), ago=41.0)
    assert finding.level == Level.WARN
    assert "no engine has renewed its lease since 20" in finding.what
    assert finding.advice.startswith("start the engine")


def test_a_node_that_two_engines_keep() -> None:
    """A warning names both engines, with the remedy."""
    told = lease().value | {"metadata": {"annotations": {ENGINE: "host_1_a", OTHER_ENGINE: "host_2_b"}}}
    known = facts(above(node_of(LOWER), **{lease_of(LOWER): QueryAnswer(told)}))
    finding = only(noded(known.lowers[LOWER], known))
    assert finding.level == Level.WARN
    assert "engines host_1_a and host_2_b both renew the lease" in finding.what
    assert finding.advice == "stop one of them, or run both with --leader-elect"


def test_a_node_whose_deletions_are_blocked() -> None:
    """The Node tells what the guard blocks; doctor repeats it with the way to more."""
    node = node_of(LOWER)
    node["status"]["conditions"] = [{"type": "DeletionsBlocked", "status": "True", "message": "40 pods are gone"}]
    known = facts(above(node))
    kept, blocked = noded(known.lowers[LOWER], known)
    assert (kept.level, blocked.level) == (Level.OK, Level.WARN)
    assert blocked.what == "the guard blocks changes: 40 pods are gone"
    assert "docs/howto/held-deletions.md" in blocked.advice
    node["status"]["conditions"][0]["status"] = "False"
    assert only(noded(known.lowers[LOWER], known)).level == Level.OK


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([real_node(unschedulable=True), real_node("False")], "none of its 2 nodes is Ready and schedulable"),
        ([], "it has no nodes"),
    ],
)
def test_a_lower_in_which_no_pod_can_start(nodes: list[Manifest], words: str) -> None:
    """Its virtual node takes none then."""
    known = facts(above(node_of(LOWER)), side(answers={NODES: QueryAnswer(nodes)}))
    kept, finding = noded(known.lowers[LOWER], known)
    assert (kept.level, finding.level) == (Level.OK, Level.WARN)
    assert finding.what == f"{words}, so Node {LOWER} takes no new pods"
    assert finding.advice.endswith(" a node there")


def test_a_node_that_is_not_there_yet() -> None:
    """The engine makes it."""
    assert noded_lower().level == Level.SKIP


def test_a_name_that_somebody_has_taken() -> None:
    """The name of whoever is said where it can be seen."""
    finding = noded_lower(node_of(LOWER, ours=False))
    assert (finding.level, "is not created by tensile" in finding.what) == (Level.FAIL, True)
    assert "kubectl delete node lower-a" in finding.advice
    foreign = node_of(LOWER, ours=False)
    foreign["metadata"] |= {"labels": {OWNER: "0123456789abcdef"}, "annotations": {OWNER_NAME: "staging"}}
    assert "is topology staging's (tensile-kube.io/owner=0123456789abcdef)" in noded_lower(foreign).what


def test_a_node_of_another_topology_of_this_upper_cluster() -> None:
    """Its mark follows from the name that it notes; the usual cause is that the topology was renamed."""
    renamed = node_of(LOWER, ours=False)
    renamed["metadata"] |= {"labels": {OWNER: owner_of(UPPER_ID, "former").mark}, "annotations": {OWNER_NAME: "former"}}
    finding = noded_lower(renamed)
    assert finding.what == "Node lower-a belongs to topology former, and the engine does not change it"
    assert finding.advice == (
        "if this topology was renamed, set `name: former` again; otherwise give the lower another node.name"
    )


def test_a_node_that_another_engine_keeps_for_this_topology() -> None:
    """Two engines with two files of one name would undo each other's work."""
    known = facts(above(node_of("elsewhere")))
    finding = only(noded(known.upper, known))
    assert (finding.level, "an engine keeps Node elsewhere for topology demo" in finding.what) == (Level.WARN, True)
    known = facts(above(node_of("elsewhere"), ago=3600.0))
    assert "no longer has such a lower cluster" in only(noded(known.upper, known)).what


def test_a_node_whose_lower_has_another_node_name_now() -> None:
    """No second engine is involved: the pods of the Node hold its name."""
    former = node_of("elsewhere")
    former["metadata"]["labels"]["clusterID"] = LOWER
    known = facts(above(former))
    finding = only(noded(known.upper, known))
    assert finding.what.startswith("Node elsewhere is the former one of lower lower-a: its `node.name` was changed")
    assert finding.advice.startswith("write node: {name: elsewhere} for lower lower-a again")


def test_a_node_of_a_removed_lower() -> None:
    """Its engine says so on the Node: there is no second engine."""
    node = node_of("elsewhere")
    node["status"]["conditions"] = [{"type": "InTopology", "status": "False"}]
    known = facts(above(node))
    finding = only(noded(known.upper, known))
    assert "is of a lower cluster that was removed from the topology while pods are bound to it" in finding.what
    assert finding.advice.startswith("put the lower cluster back with `maintenance: drain`")


def test_what_the_engine_uses_only_after_a_restart() -> None:
    """The engine on this machine reports it; what does not answer at a changed port has this cause."""
    upper, needed = above(), {"restartNeeded": ["webhook.port: 1 -> 2"]}
    known = facts(upper)
    upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "another", "accepted": needed})
    assert not list(noded(upper, known))
    upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "demo", "accepted": needed})
    finding = only(noded(upper, known))
    assert (finding.level, finding.what) == (Level.WARN, "not in force: webhook.port: 1 -> 2")
    assert finding.advice == "restart the engine, or undo the change"


def test_an_extender_that_no_scheduler_calls() -> None:
    """The engine reports it with the remedy; what the webhook waits for is that check's own."""
    waits = [
        "webhook: set webhook.service",
        "the upper scheduler has not called the extender for pod a/b: configure it",
    ]
    upper = above()
    upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "demo", "accepted": {"pending": waits}})
    finding = only(noded(upper, facts(upper)))
    assert finding.what == "the upper scheduler has not called the extender for pod a/b"
    assert (finding.level, finding.advice) == (Level.WARN, "configure it")


def test_nodes_of_others_are_not_looked_at() -> None:
    """They are none of this topology's."""
    known = facts(above(node_of("real-node", ours=False)))
    assert not list(noded(known.upper, known))


def test_nodes_that_may_not_be_listed() -> None:
    """Nothing is said of them: the right to is told of."""
    known = facts(side(UPPER, answers={NODES: QueryAnswer(error="forbidden", status=403)}))
    assert not list(noded(known.upper, known))
    assert not list(noded(known.lowers[LOWER], known))


# The kubelet API.


def reached(answer: QueryAnswer | None, node: Manifest | None = None, **fields: Any) -> Finding:
    """Look at whether the lower's Node is called."""
    node = node or node_of(LOWER)
    upper = above(node)
    if answer is not None:
        upper.answers[port_of(LOWER)] = answer
    known: Facts = facts(upper, **fields)
    return only(called(known.lowers[LOWER], known))


def test_a_node_that_the_apiserver_reaches() -> None:
    """It has said so itself."""
    finding = reached(QueryAnswer(value=True, error="ok", status=200))
    assert (finding.level, finding.what) == (Level.OK, "the upper's apiserver reaches Node lower-a at 192.0.2.9:10350")


@pytest.mark.parametrize(
    ("status", "words", "advice"),
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
def test_a_node_that_it_does_not_reach(status: int, words: str, advice: str) -> None:
    """What the apiserver says decides what helps."""
    finding = reached(QueryAnswer(value=False, error=words, status=status))
    assert finding.level == Level.FAIL
    assert f"(HTTP {status or '-'}: {words})" in finding.what
    assert advice in finding.advice


def test_a_node_on_loopback_is_called_from_here() -> None:
    """An apiserver does not proxy to loopback, and is on this machine too then."""
    local = contact(way=way("127.0.0.1"))
    upper = above(node_of(LOWER, address="::1"))
    upper.contact = local
    for answered, level in ((local, Level.OK), (contact(Stage.CONNECTION, "Connection refused"), Level.FAIL)):
        upper.answers[port_of(LOWER)] = QueryAnswer(answered)
        known = facts(upper, address="127.0.0.1")
        finding = only(called(known.lowers[LOWER], known))
        assert (finding.level, "[::1]:10350" in finding.what) == (level, True)


@pytest.mark.parametrize(
    ("stage", "error", "what", "advice"),
    [
        (Stage.CONNECTION, "Connection refused", "is not reachable (Connection refused)", "start the engine (`tensile"),
        (Stage.TLS, "no answer in 3 s", "is not reachable (no answer in 3 s)", "start the engine (`tensile run`), or"),
        (Stage.TLS, "WRONG_VERSION_NUMBER", "another program than the engine listens at", "stop it, or set another"),
    ],
)
def test_a_node_on_loopback_that_does_not_answer(stage: Stage, error: str, what: str, advice: str) -> None:
    """No firewall is between two programs of one machine: the engine has stopped, or lost its port to another."""
    upper = above(node_of(LOWER, address="127.0.0.1"))
    upper.contact = contact(way=way("127.0.0.1"))
    upper.answers[port_of(LOWER)] = QueryAnswer(contact(stage, error))
    known = facts(upper, address="127.0.0.1")
    finding = only(called(known.lowers[LOWER], known))
    assert finding.level == Level.FAIL
    assert what in finding.what
    assert finding.advice.startswith(advice)
    upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "demo"})
    advised = only(called(known.lowers[LOWER], known)).advice
    assert advised.startswith(("stop it", "the engine runs, but not at 127.0.0.1: "))


def test_nodes_that_publish_loopback_to_another_machine() -> None:
    """The apiserver finds itself there; that can be told without an engine."""
    known = facts(above(), address="127.0.0.1")
    finding = only(called(known.lowers[LOWER], known))
    assert (finding.level, "set kubelet.nodeAddress" in finding.advice) == (Level.FAIL, True)


def test_a_node_that_no_engine_serves() -> None:
    """It is said that nothing was looked at."""
    known = facts(above(node_of(LOWER), ago=100.0))
    finding = only(called(known.lowers[LOWER], known))
    assert (finding.level, finding.what) == (Level.SKIP, "not checked: no engine serves it")


def test_a_node_that_the_engine_cannot_serve() -> None:
    """Its Node says port 0, at which nobody could be called."""
    finding = reached(None, node_of(LOWER, port=0))
    assert (finding.level, "has no kubelet port" in finding.what) == (Level.FAIL, True)
    assert "engine's log" in finding.advice
    told = (
        "kubelet API of node lower-a cannot listen on port 10350 of 127.0.0.1: another program uses the port: stop it"
    )
    known = facts(above(node_of(LOWER, port=0)))
    known.upper.answers[LOCAL_ENGINE] = QueryAnswer({"topology": "demo", "accepted": {"pending": [told]}})
    finding = only(called(known.lowers[LOWER], known))
    assert f"{finding.what}: {finding.advice}" == told


def test_a_node_that_we_may_not_have_called() -> None:
    """The engine needs no such right: an administrator can look."""
    finding = reached(None)
    assert (finding.level, "kubectl get --raw /api/v1/nodes/lower-a/proxy/healthz" in finding.what) == (
        Level.SKIP,
        True,
    )


def test_an_upper_cluster_that_is_not_reached() -> None:
    """Nothing is said of nodes in it."""
    known = facts(side(UPPER, contact=contact(Stage.CONNECTION, "refused")))
    assert not list(called(known.lowers[LOWER], known))
    assert not at(list(called(known.upper, known)), Level.FAIL)
