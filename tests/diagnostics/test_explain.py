"""Tests of `tensile explain pod`: its sentence must name the real obstacle in the snapshot."""

from typing import Any

import pytest
from placekit import (
    claim,
    make_namespace,
    make_storage_class,
    node,
    on_hosts,
    spec_requesting,
    spec_with_claims,
    volume,
)
from snapshotkit import (
    NOW,
    TAINT,
    cluster_snapshot,
    fleet_snapshot,
    make_lower_pod,
    make_upper_pod,
    two_nodes,
    virtual_node,
)

from tensile.diagnostics.cluster_snapshot import UpperObject
from tensile.diagnostics.explain import _for_check, _for_unplaced, explained, explanation_text
from tensile.names import (
    CLUSTER_ID,
    LOWER_UID,
    MIRRORED,
    NAMESPACE_MAPPING,
    OWNER,
    OWNER_NAME,
    UNREACHABLE_TAINT,
    owner_of,
)
from tensile.objects import CLAIM, NAMESPACE, NODE, POD, QUOTA, STORAGE_CLASS, VOLUME, Kind
from tensile.policy.placement.placement import CHECKS

Manifest = dict[str, Any]
LOWERS = (two_nodes("lower-a"), two_nodes("lower-b"))


def why(pod: Manifest, *lowers: Any, upper: Any = (), **fields: Any) -> str:
    """Return the sentence that explains the state of a pod."""
    return str(explained(fleet_snapshot(list(upper), *(lowers or LOWERS), **fields), UpperObject(pod, []))["why"])


def on(node_name: str = "lower-a") -> Manifest:
    """Make the spec that binds a pod to a node."""
    return {"nodeName": node_name}


def unscheduled(message: str) -> Manifest:
    """Make the status of a pod for which a scheduler found no node."""
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}


def unmirrored(reason: str, message: str) -> Manifest:
    """Make the status of a pod that cannot be created in its lower."""
    return {"conditions": [{"type": MIRRORED, "status": "False", "reason": reason, "message": message}]}


def test_one_reason_of_all_virtual_nodes_is_reported_once() -> None:
    """All virtual nodes refuse a pod without the toleration for the same reason."""
    found = why(make_upper_pod(spec={"tolerations": []}))
    assert found == (
        f"no virtual node accepts it: node(s) had untolerated taint(s) (taint {TAINT['key']}=k8s:NoSchedule)"
    )


def test_different_reasons_are_reported_by_virtual_node() -> None:
    """Each virtual node is named with the reason why it refuses the pod."""
    cordoned = (NODE, virtual_node("lower-b", unschedulable=True))
    assert why(make_upper_pod(spec={"nodeSelector": {"clusterID": "x"}}), upper=[cordoned]) == (
        "no virtual node accepts it: lower-a: node(s) didn't match Pod's node affinity/selector "
        "(missing label clusterID=x); "
        "lower-b: node(s) were unschedulable"
    )


def test_an_unbound_pod_that_fits_waits_for_the_upper_scheduler() -> None:
    """The sentence names the virtual nodes that fit, and the scheduler's message if there is one."""
    assert why(make_upper_pod()) == (
        "the upper scheduler has not bound it, although it fits on lower-a, lower-b; it has reported no reason"
    )
    assert why(make_upper_pod(status=unscheduled("busy"))).endswith("; it reports: busy")


def test_an_unbound_pod_with_its_own_scheduler_waits_for_that_scheduler() -> None:
    """The advice is to check that the scheduler runs, because one that does not run reports nothing."""
    pod = make_upper_pod(spec={"schedulerName": "batch"})
    assert why(pod).startswith("its scheduler batch has not bound it, although it fits on lower-a")
    assert advised(pod) == [
        "check that a scheduler batch runs in the upper cluster, or remove `schedulerName` from the pod"
    ]


def test_a_pod_that_fits_a_virtual_node_but_no_single_lower_node_is_explained() -> None:
    """The extender refuses such a virtual node, and the advice is about the capacity of each lower."""
    large = make_upper_pod(spec=spec_requesting(cpu="5"), status=unscheduled("no node fits"))
    assert why(large) == (
        "it fits on lower-a, lower-b in sum, but on no single node there; the upper scheduler reports: no node fits"
    )
    assert [line.partition(";")[0] for line in advised(large)] == [
        f"reduce the requests of the pod, or free capacity or add nodes in {name}" for name in ("lower-a", "lower-b")
    ]
    assert advised(make_upper_pod(spec=spec_requesting(cpu="3"))) == [
        "wait; if the pod stays Pending, check that the scheduler of the upper cluster runs"
    ]


def test_scheduling_gates_are_the_first_obstacle() -> None:
    """The sentence names the gates before any reason of a node."""
    assert (
        why(make_upper_pod(spec={"schedulingGates": [{"name": "quota.io/wait"}]}))
        == "it has scheduling gates: quota.io/wait"
    )


def test_a_topology_without_lowers_is_the_obstacle() -> None:
    """No virtual node exists for the pod."""
    found = explained(fleet_snapshot([], lowers=[]), UpperObject(make_upper_pod(), []))
    assert found["why"] == "the topology has no lower clusters"
    assert found["lowers"] == []


def test_a_bound_pod_that_fits_no_single_lower_node_waits_for_a_node() -> None:
    """The virtual node shows the sum of its nodes, which suffices although no single node does."""
    pod = make_upper_pod(spec=on() | spec_requesting(cpu="5"))
    lower = two_nodes("lower-a", (POD, make_lower_pod(pod, phase="Pending")))
    assert why(pod, lower, LOWERS[1]) == "in lower-a it waits for a node: 0/2 nodes are available: 2 Insufficient cpu."


def test_a_lower_pod_with_the_marks_but_another_name_is_not_shown() -> None:
    """Any client of the lower can write the marks, but the real lower pod has a known name."""
    pod = make_upper_pod(spec=on())
    made = make_lower_pod(pod, on="lower-a-1")
    forged = {**made, "metadata": {**made["metadata"], "name": "forged"}}
    honest = explained(fleet_snapshot([], two_nodes("lower-a", (POD, made)), LOWERS[1]), UpperObject(pod, []))
    fooled = explained(fleet_snapshot([], two_nodes("lower-a", (POD, forged)), LOWERS[1]), UpperObject(pod, []))
    assert [bool(row["pod"]) for row in honest["lowers"]] == [True, False]
    assert [bool(row["pod"]) for row in fooled["lowers"]] == [False, False]


def test_a_lower_pod_that_fits_nodes_waits_for_the_lower_scheduler() -> None:
    """The sentence names the lower nodes on which the pod fits."""
    pod = make_upper_pod(spec=on())
    lower = two_nodes("lower-a", (POD, make_lower_pod(pod, phase="Pending")))
    assert why(pod, lower) == (
        "in lower-a it waits for a node: it fits on 2 of them (lower-a-1, lower-a-2), but the scheduler has not chosen "
        "one yet"
    )


def test_a_running_pod_is_explained_by_its_lower_node() -> None:
    """The nodes are checked without the requests of the pod itself."""
    pod = make_upper_pod(spec=on() | spec_requesting(cpu="3"))
    lower = two_nodes("lower-a", (POD, make_lower_pod(pod, "lower-a-1")))
    found = explained(fleet_snapshot([], lower, LOWERS[1]), UpperObject(pod, []))
    assert found["why"] == "in lower-a it is on node lower-a-1"
    assert [one["fits"] for one in found["lowers"][0]["below"]["nodes"]] == [True, True]
    assert found["lowers"][0]["pod"] == {"namespace": "default", "name": "web", "node": "lower-a-1", "phase": "Running"}


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("ImagePullBackOff", ["correct the name of the image in the pod; if it is right, give the pod an"]),
        ("InvalidImageName", ["correct the name of the image in the pod"]),
        ("CreateContainerConfigError", ["create what the message names, or correct what the pod refers to"]),
        ("RunContainerError", []),
    ],
)
def test_a_waiting_container_is_explained_by_its_reason_and_advice(reason: str, advice: list[str]) -> None:
    """The reason ContainerCreating is left out, because it is not an obstacle."""
    waiting = {"name": "main", "state": {"waiting": {"reason": reason, "message": "no such image"}}}
    pod = make_upper_pod(spec=on(), status={"containerStatuses": [waiting]})
    lower = two_nodes("lower-a", (POD, make_lower_pod(pod, "lower-a-1", "Pending")))
    assert why(pod, lower) == (
        f"in lower-a it is on node lower-a-1, and waits: container main: {reason}: no such image"
    )
    *found, last = advised(pod, lower)
    assert [one[: len(start)] for one, start in zip(found, advice, strict=True)] == advice
    assert last == "see its containers and events: `kubectl describe pod web -n default`"
    making = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    pod["status"]["containerStatuses"] = [making]
    assert why(pod, lower) == "in lower-a it is on node lower-a-1"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("OOMKilled", "raise the memory limit of the container, or make it use less"),
        ("Error", "read why its container ended: `kubectl logs web -n default --previous`"),
    ],
)
def test_a_crashing_container_is_explained_by_its_last_termination(reason: str, advice: str) -> None:
    """The advice is to read the previous log, except after OOMKilled, which the log does not mention."""
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    ended = {"terminated": {"reason": reason, "exitCode": 137}}
    pod = make_upper_pod(
        spec=on(), status={"containerStatuses": [{"name": "main", "state": waiting, "lastState": ended}]}
    )
    lower = two_nodes("lower-a", (POD, make_lower_pod(pod, "lower-a-1")))
    assert why(pod, lower).endswith(
        f"container main: CrashLoopBackOff: back-off 10s; it ended before with {reason}, exit code 137"
    )
    assert advised(pod, lower)[0] == advice


@pytest.mark.parametrize(
    ("reason", "message", "advice"),
    [
        ("ReadinessGatesNotReady", 'readiness gate "x/y" is not "True"', "look at the controller that has to set"),
        ("ContainersNotReady", "containers with unready status: [main]", "see its containers and events"),
        ("", "", "see its containers and events"),
    ],
)
def test_a_running_pod_that_is_not_ready_is_explained_by_its_condition(reason: str, message: str, advice: str) -> None:
    """Such a pod is the reason for a Service without endpoints."""
    ready = {"type": "Ready", "status": "False", "reason": reason, "message": message}
    pod = make_upper_pod(spec=on(), status={"phase": "Running", "conditions": [ready]})
    lower = two_nodes("lower-a", (POD, make_lower_pod(pod, "lower-a-1")))
    detail = f": {reason}: {message}" if reason else ""
    assert why(pod, lower) == f"in lower-a it is on node lower-a-1, and is not Ready{detail}"
    (line,) = advised(pod, lower)
    assert line.startswith(advice)


@pytest.mark.parametrize(
    ("reason", "message"),
    [("Forbidden", "exceeded quota: q"), ("ConfigMapNotFound", "ConfigMap a/b does not exist in the upper cluster")],
)
def test_a_pod_that_the_lower_refuses_is_explained_by_the_engines_condition(reason: str, message: str) -> None:
    """The sentence has the reason and the message of the condition that the engine set."""
    found = why(make_upper_pod(spec=on(), status=unmirrored(reason, message)))
    assert found == f"it is not created in lower-a: {reason}: {message}"


def quota(hard: str, used: str, **spec: Any) -> Manifest:
    """Make a quota of a lower namespace."""
    status = {"hard": {"requests.cpu": hard, "pods": "5"}, "used": {"requests.cpu": used, "pods": "1"}}
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": spec, "status": status}


def test_a_lower_quota_that_is_too_small_is_the_obstacle() -> None:
    """If the pod does not exist in the lower yet, the sentence shows what the quota leaves."""
    pod = make_upper_pod(spec=on() | spec_requesting(cpu="2"))
    found = explained(fleet_snapshot([], two_nodes("lower-a", (QUOTA, quota("4", "3")))), UpperObject(pod, []))
    assert found["why"] == ("it is not created in lower-a: quota q is too small: requests.cpu: 2 asked, 1 of 4 left")
    assert found["lowers"][0]["quota"] == [{"name": "q", "message": "requests.cpu: 2 asked, 1 of 4 left"}]
    assert found["advice"] == ["raise the quota in lower-a, or reduce the requests of the pod"]
    assert "lower-a   -           no     quota   q: requests.cpu: 2 asked, 1 of 4 left" in explanation_text(found)


def test_advice_about_a_quota_requires_that_the_quota_is_the_reported_obstacle() -> None:
    """A quota would be the next obstacle; the advice is about the one that the sentence names."""
    lower = two_nodes("lower-a", (QUOTA, quota("4", "3")))
    missing = unmirrored("ConfigMapNotFound", "ConfigMap a/b does not exist in the upper cluster")
    pod = make_upper_pod(spec=on() | spec_requesting(cpu="2"), status=missing)
    assert advised(pod, lower) == ["create the ConfigMap in the upper cluster"]
    pod["status"] = unmirrored("Forbidden", "exceeded quota: q, requested: requests.cpu=2")
    assert advised(pod, lower) == ["raise the quota in lower-a, or reduce the requests of the pod"]


def test_advice_about_an_excluded_namespace_needs_no_condition_of_the_engine() -> None:
    """The topology excludes the namespace, also before the engine has set the condition."""
    (advice,) = advised(make_upper_pod(spec=on(), namespace="kube-system"))
    assert advice.startswith("create the pod in another namespace, or change `excludeNamespaces`")


@pytest.mark.parametrize("spec", [{"scopes": ["BestEffort"]}, {"scopeSelector": {"matchExpressions": []}}])
def test_scoped_quotas_and_quotas_that_leave_enough_are_not_reported(spec: Manifest) -> None:
    """A quota with scopes is for some pods only."""
    pod = make_upper_pod(spec=on() | spec_requesting(cpu="2"))
    for one in (quota("4", "4", **spec), quota("4", "2")):
        found = explained(fleet_snapshot([], two_nodes("lower-a", (QUOTA, one))), UpperObject(pod, []))
        assert found["lowers"][0]["quota"] == []


def test_a_pod_that_is_not_created_without_a_condition_may_lack_an_engine() -> None:
    """The sentence suggests to check whether the engine runs."""
    assert (
        why(make_upper_pod(spec=on()))
        == "it is not created in lower-a, and the engine has not reported why: does it run?"
    )


def test_a_lower_pod_deleted_only_in_its_lower_is_explained() -> None:
    """The engine sets the upper pod to Failed, unless the guard keeps it, as the Node's condition shows."""
    ran = make_upper_pod(spec=on(), status={"phase": "Running", "containerStatuses": [{"name": "main"}]})
    gone = "its lower pod in lower-a is gone, but no user deleted the upper pod; "
    assert (why(ran), advised(ran)) == (f"{gone}the engine sets it to Failed", [])
    held = {"type": "DeletionsBlocked", "status": "True", "message": "40 pods are gone"}
    guarded = virtual_node("lower-a")
    guarded["status"]["conditions"] = [held]
    assert why(ran, upper=[(NODE, guarded)]) == f"{gone}the guard keeps it unchanged: 40 pods are gone"
    repair, effect = advised(ran, upper=[(NODE, guarded)])
    assert repair.startswith("run `tensile apply --force`")
    assert effect == "it sets such pods to Failed, and their controllers create new ones"


def running() -> Manifest:
    """Make a pod that runs on node lower-a."""
    return make_upper_pod(spec=on(), status={"phase": "Running", "containerStatuses": [{"name": "main"}]})


def owned(name: str, topology: str = "demo", **notes: str) -> tuple[Kind, Manifest]:
    """Make a virtual node with the marks of a topology; `notes` are further annotations."""
    node = virtual_node(name)
    node["metadata"] |= {
        "labels": {OWNER: owner_of("upper-uid", topology).mark},
        "annotations": {OWNER_NAME: topology, **notes},
    }
    return NODE, node


def system(identity: str) -> tuple[Kind, Manifest]:
    """Make the namespace that identifies a cluster."""
    return NAMESPACE, {"metadata": {"name": "kube-system", "uid": identity}}


def test_the_state_of_a_pod_is_unknown_if_another_cluster_responds() -> None:
    """The pod runs in its own cluster, so its absence from another cluster does not show that it is deleted."""
    upper, (a, b) = [owned("lower-a", **{LOWER_UID: "uid-of-a"})], (system("uid-of-a"), system("uid-of-b"))
    assert "is gone" in why(running(), two_nodes("lower-a", a), two_nodes("lower-b"), upper=upper)
    assert why(running(), two_nodes("lower-a", b), two_nodes("lower-b", b), upper=upper) == (
        "its state in lower-a is unknown: a different cluster responds, the same cluster as lower lower-b "
        "(kube-system UID uid-of-b, expected uid-of-a)"
    )


def test_swapped_kubeconfigs_of_two_lowers_are_recognized() -> None:
    """The Node of each lower records its cluster, so the error names the lower whose cluster responds."""
    upper = [owned(f"lower-{one}", **{LOWER_UID: f"uid-of-{one}"}) for one in "ab"]
    swapped = two_nodes("lower-a", system("uid-of-b")), two_nodes("lower-b", system("uid-of-a"))
    assert ", the same cluster as lower lower-b (" in why(running(), *swapped, upper=upper)


def test_a_pod_on_a_node_of_another_topology_is_explained() -> None:
    """Its lower pod has the marks of that topology, which may be a former name of this one."""
    upper = [owned("lower-a", topology="former")]
    assert why(running(), upper=upper) == "its node lower-a belongs to topology former"
    assert advised(running(), upper=upper)[0].startswith("if this topology was renamed, set `name: former` again")


def test_a_pod_of_a_removed_lower_is_explained_by_the_owner_label_of_its_node() -> None:
    """The Node still has this topology's owner label; a Node without it is no virtual node of the topology."""
    pod, upper = make_upper_pod(spec=on("lower-x"), status={"phase": "Running"}), [owned("lower-x")]
    assert why(pod) == "its node lower-x is not a virtual node of this topology"
    assert why(pod, upper=upper) == (
        "its node lower-x is of a lower cluster that was removed from the topology; it runs on"
    )
    assert advised(pod, upper=upper)[0].startswith("put the lower cluster back")


def test_a_node_lease_that_is_not_renewed_is_reported() -> None:
    """The advice is to start the engine; a pod that has ended needs none."""
    lease = {"spec": {"renewTime": "2026-03-01T11:00:00.000000Z"}}
    seen = fleet_snapshot([], *LOWERS)
    found = explained(seen, UpperObject(make_upper_pod(spec=on()), [], lease))
    assert found["why"].endswith(
        "; no engine has renewed the lease of its node since 2026-03-01T11:00:00Z, so its status may be old"
    )
    assert found["advice"][0].startswith("start the engine")
    over = explained(seen, UpperObject(make_upper_pod(spec=on(), status={"phase": "Succeeded"}), [], lease))
    assert (over["why"], over["advice"]) == ("it has ended", [])
    fresh = {"spec": {"renewTime": f"{NOW:%Y-%m-%dT%H:%M:%S.%fZ}"}}
    assert "lease" not in explained(seen, UpperObject(make_upper_pod(spec=on()), [], fresh))["why"]


def test_the_state_of_a_pod_in_an_unreachable_lower_is_unknown() -> None:
    """The sentence and the table contain the error, and the other lower is explained as usual."""
    error = "lower-a: no answer in 20 s"
    found = explained(
        fleet_snapshot([], cluster_snapshot("lower-a", error=error), LOWERS[1]),
        UpperObject(make_upper_pod(spec=on()), []),
    )
    assert found["why"] == f"its state in lower-a is unknown: {error}"
    assert found["lowers"][0]["below"] is None
    assert found["lowers"][1]["below"]["fits"] == 2
    assert f"lower-a   -           ?      reach   {error}" in explanation_text(found)


def test_a_pod_that_is_not_mirrored_is_explained() -> None:
    """Pods of excluded namespaces and of DaemonSets are not mirrored."""
    assert why(make_upper_pod(spec=on(), namespace="kube-system")) == (
        "it is not mirrored: pods of namespace kube-system are not mirrored (excludeNamespaces)"
    )
    owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}]
    assert "pods of DaemonSets" in why(make_upper_pod(spec=on(), ownerReferences=owner))


def test_a_pod_on_a_node_that_is_no_virtual_node_is_explained() -> None:
    """The pod is bound to a real node of the upper cluster."""
    assert why(make_upper_pod(spec=on("worker"))) == "its node worker is not a virtual node of this topology"


def test_an_ended_pod_is_explained_by_its_reason() -> None:
    """The advice is to create the pod again, unless it has a controller."""
    lost = make_upper_pod(spec=on(), status={"phase": "Failed", "reason": "LowerPodLost"})
    assert why(lost) == "it has ended (LowerPodLost)"
    assert advised(lost) == ["create it again: it has no controller that does"]
    lost["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "controller": True}]
    assert advised(lost) == []
    disruption = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByPodGC",
        "message": "PodGC: node no longer exists",
    }
    collected = make_upper_pod(spec=on(), status={"phase": "Failed", "conditions": [disruption]})
    assert why(collected) == "it has ended (DeletionByPodGC: PodGC: node no longer exists)"
    assert advised(collected) == ["create it again: it has no controller that does"]


def test_a_terminating_pod_waits_for_its_lower_an_unreachable_lower_or_finalizers() -> None:
    """The sentence contains the time of the deletion and what it waits for."""
    ending = make_upper_pod(spec=on(), deletionTimestamp="2026-03-01T11:00:00Z", finalizers=["x/y"])
    since = "its deletion was requested at 2026-03-01T11:00:00Z"
    there = two_nodes("lower-a", (POD, make_lower_pod(ending, "lower-a-1")))
    assert why(ending, there) == f"{since}, and it still exists in lower-a"
    away = cluster_snapshot("lower-a", error="no answer")
    assert why(ending, away) == f"{since}; whether it still runs in lower-a is unknown: no answer"
    assert why(ending) == f"{since}; it waits for its finalizers: x/y"
    del ending["metadata"]["finalizers"]
    assert why(ending) == since


def test_a_lower_volume_restricts_a_pod_to_the_node_of_the_volume() -> None:
    """The lower claim is bound to a volume with the affinity of one node."""
    pod = make_upper_pod(spec=on() | spec_with_claims("data"))
    storage = [(CLAIM, claim(volumeName="pv")), (VOLUME, volume(nodeAffinity=on_hosts("lower-a-2")))]
    found = explained(fleet_snapshot([(CLAIM, claim())], two_nodes("lower-a", *storage)), UpperObject(pod, []))
    nodes = found["lowers"][0]["below"]["nodes"]
    assert [(one["name"], one["fits"]) for one in nodes] == [("lower-a-1", False), ("lower-a-2", True)]
    assert nodes[0]["check"] == "volumes"


def test_advice_about_a_pod_with_a_volume_is_about_the_node_of_the_volume() -> None:
    """That node is full or absent; the reasons of the other nodes are no obstacle."""
    pod = make_upper_pod(spec=on() | spec_with_claims("data") | spec_requesting(cpu="5"))
    storage = [(CLAIM, claim(volumeName="pv")), (VOLUME, volume(nodeAffinity=on_hosts("lower-a-2")))]
    waits = (POD, make_lower_pod(pod, phase="Pending"))
    (room, _) = advised(pod, two_nodes("lower-a", *storage, waits), LOWERS[1], upper=[(CLAIM, claim())])
    assert room.startswith("reduce the requests of the pod")
    small = make_upper_pod(spec=on() | spec_with_claims("data"))
    gone = [(CLAIM, claim(volumeName="pv")), (VOLUME, volume(nodeAffinity=on_hosts("lower-a-9")))]
    lower = two_nodes("lower-a", *gone, (POD, make_lower_pod(small, phase="Pending")))
    (back,) = advised(small, lower, LOWERS[1], upper=[(CLAIM, claim())])
    assert back.startswith("bring the node in lower-a back that has the volume of its claims")


def test_a_pod_that_selects_another_lower_than_that_of_its_data_gets_advice() -> None:
    """The virtual node that the pod selects refuses it because of the volume."""
    storage = [(CLAIM, claim(volumeName="pv")), (VOLUME, volume(nodeAffinity=on_hosts("lower-a")))]
    pod = make_upper_pod(spec=spec_with_claims("data") | {"nodeSelector": {"clusterID": "lower-b"}})
    (line,) = advised(pod, upper=storage)
    assert line == (
        "let the pod select the lower cluster that has the data of its claims, or use another claim: "
        "`tensile explain claim data -n default`"
    )


def test_advice_mentions_the_capacity_limit_of_the_topology_if_it_is_too_small() -> None:
    """More nodes in the limited lower would not help."""
    lowers = [
        {"name": "lower-a", "kubeconfig": "a", "capacity": {"limit": {"cpu": "1"}}},
        {"name": "lower-b", "kubeconfig": "b"},
    ]
    (line,) = advised(make_upper_pod(spec=spec_requesting(cpu="50")), lowers=lowers)
    bounds = (
        "change `capacity` of lower-a in the topology: its limit and reserve bound what the virtual node advertises"
    )
    assert line == f"reduce the requests of the pod, free capacity or add nodes there, or {bounds}"
    assert advised(make_upper_pod(spec=spec_requesting(cpu="50")), lowers=lowers[:1]) == [
        f"reduce the requests of the pod, or {bounds}"
    ]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("", "uncordon or repair a node in lower-b: none is Ready and schedulable"),
        ("lower-b: no answer in 20 s", "find the cause with `tensile doctor`"),
    ],
)
def test_advice_about_the_taint_of_an_unschedulable_lower_is_about_the_lower(error: str, advice: str) -> None:
    """The engine removes its taint once a pod can run there; a toleration would not make it run."""
    taints = [TAINT, {"key": UNREACHABLE_TAINT, "effect": "NoSchedule"}]
    nodes = [(NODE, virtual_node("lower-a")), (NODE, virtual_node("lower-b", taints=taints))]
    lowers = (LOWERS[0], cluster_snapshot("lower-b", error=error))
    pod = make_upper_pod(spec={"nodeSelector": {CLUSTER_ID: "lower-b"}})
    (line,) = explained(fleet_snapshot(nodes, *lowers), UpperObject(pod, []))["advice"]
    assert line.startswith(advice)


def test_advice_about_cordoned_nodes_depends_on_the_topology() -> None:
    """The engine restores a cordon of the topology, so only an edit of the topology removes it."""
    nodes = [virtual_node("lower-a", unschedulable=True), virtual_node("lower-b", unschedulable=True)]
    lowers = [
        {"name": "lower-a", "kubeconfig": "a", "maintenance": "cordon"},
        {"name": "lower-b", "kubeconfig": "b"},
    ]
    seen = fleet_snapshot([(NODE, one) for one in nodes], *LOWERS, lowers=lowers)
    assert explained(seen, UpperObject(make_upper_pod(), []))["advice"] == [
        "remove `maintenance` of lower-a from the topology",
        "run `kubectl uncordon lower-b`",
    ]


def test_a_pod_that_stays_in_a_drained_lower_is_explained() -> None:
    """An annotation, no controller, no capacity elsewhere, its volumes or a budget can prevent its eviction."""
    lowers = [
        {"name": "lower-a", "kubeconfig": "a", "maintenance": "drain"},
        {"name": "lower-b", "kubeconfig": "b"},
    ]
    bare = make_upper_pod(spec=on(), status={"phase": "Running"})
    budget = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": {}}, "status": {}}

    def told(pod: Manifest, *budgets: Manifest, **fields: Any) -> tuple[str, str]:
        """Return the end of the sentence, and the first advice."""
        seen = fleet_snapshot(
            [], two_nodes("lower-a", (POD, make_lower_pod(pod, "lower-a-1"))), LOWERS[1], lowers=lowers, **fields
        )
        found = explained(seen, UpperObject(pod, [], budgets=budgets))
        return found["why"].partition("is being drained")[2], found["advice"][0]

    assert told(bare) == (
        ", and it stays, as it has no controller",
        "delete it, or set `descheduler.recreateBarePods`",
    )
    recreated = {"descheduler": {"recreateBarePods": True}}
    assert told(bare, **recreated)[0] == ", and it is evicted in its turn"
    elsewhere = ", and it stays, as it has no controller, and fits in no other lower cluster"
    large = make_upper_pod(spec=on() | {"nodeSelector": {"disk": "ssd"}}, status={"phase": "Running"})
    move = "delete it, or make it fit in another lower cluster"
    assert told(large) == (elsewhere, f"{move} and set `descheduler.recreateBarePods`")
    assert told(large, **recreated) == (elsewhere, move)
    claimed = make_upper_pod(spec=on() | spec_with_claims("data"), status={"phase": "Running"})
    assert told(claimed, **recreated) == (
        ", and it stays, as it has no controller, and its volumes are there",
        "delete it",
    )
    pinned = make_upper_pod(spec=on(), annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"})
    assert told(pinned)[0] == ", but an annotation forbids its eviction"
    owned_pod = make_upper_pod(spec=on(), ownerReferences=[{"kind": "ReplicaSet", "uid": "r", "controller": True}])
    why, advice = told(owned_pod, budget)
    assert why == ", and PodDisruptionBudget web allows no disruption"
    assert advice.endswith("`kubectl describe pdb web -n default` shows")
    assert told(owned_pod, {**budget, "status": {"disruptionsAllowed": 1}})[0] == ", and it is evicted in its turn"


def test_a_pod_is_found_by_the_namespace_mapping_that_its_node_records() -> None:
    """The recorded mapping stays in force while pods are mirrored."""
    lowers = [{"name": "lower-a", "kubeconfig": "a", "namespaces": {"mapping": "prefix"}}]
    node = virtual_node("lower-a")
    mark = owner_of("upper-uid", "demo").mark
    node["metadata"] |= {"labels": {OWNER: mark}, "annotations": {NAMESPACE_MAPPING: "same"}}
    pod = running()
    snapshot = two_nodes("lower-a", (POD, make_lower_pod(pod, "lower-a-1")))
    assert why(pod, snapshot, upper=[(NODE, node)], lowers=lowers) == "in lower-a it is on node lower-a-1"


def test_a_claim_that_would_be_mirrored_with_the_pod_counts_as_existing() -> None:
    """The engine creates the lower claim before the pod, with the storage class of the topology's mapping."""
    above_claim = claim(storageClassName="fast")
    lower = two_nodes("lower-a", (STORAGE_CLASS, make_storage_class("local-fast")))
    lowers = [{"name": "lower-a", "kubeconfig": "a", "storageClasses": {"fast": "local-fast"}}]
    upper = [(CLAIM, above_claim), (STORAGE_CLASS, make_storage_class("fast"))]
    pod = make_upper_pod(spec=spec_with_claims("data"))
    found = explained(fleet_snapshot(upper, lower, lowers=lowers), UpperObject(pod, []))
    assert found["lowers"][0]["below"]["fits"] == 2
    without = explained(fleet_snapshot(upper, lower, lowers=lowers, controllers=[]), UpperObject(pod, []))
    assert without["lowers"][0]["below"]["nowhere"]["reasons"] == ['persistentvolumeclaim "data" not found']


def test_upper_only_selectors_are_not_checked_against_lower_nodes() -> None:
    """A pod that selects a lower by its virtual node's label fits on the nodes behind it."""
    found = explained(
        fleet_snapshot([], *LOWERS), UpperObject(make_upper_pod(spec={"nodeSelector": {"clusterID": "lower-b"}}), [])
    )
    assert [one["above"]["fits"] for one in found["lowers"]] == [False, True]
    assert found["lowers"][1]["below"]["fits"] == 2


def test_a_missing_virtual_node_is_the_obstacle() -> None:
    """No pod can be bound to a virtual node that the engine has not created."""
    lowers = [{"name": "lower-x", "kubeconfig": "x"}]
    found = explained(fleet_snapshot([], two_nodes("lower-x"), lowers=lowers), UpperObject(make_upper_pod(), []))
    assert found["why"] == "no virtual node accepts it: there is no node lower-x (does the engine run?)"


def test_quotas_are_read_from_the_mapped_lower_namespace() -> None:
    """The namespace mapping of the lower adds a prefix."""
    lowers = [{"name": "lower-a", "kubeconfig": "a", "namespaces": {"mapping": "prefix"}}]
    limit = quota("1", "1")
    limit["metadata"]["namespace"] = "demo-default"
    lower = two_nodes("lower-a", (NAMESPACE, make_namespace("demo-default")), (QUOTA, limit))
    found = explained(
        fleet_snapshot([], lower, lowers=lowers), UpperObject(make_upper_pod(spec=spec_requesting(cpu="1")), [])
    )
    assert found["lowers"][0]["quota"] == [{"name": "q", "message": "requests.cpu: 1 asked, 0 of 1 left"}]


def event(reason: str, time: str, **fields: Any) -> Manifest:
    """Make an event."""
    return {"reason": reason, "type": "Warning", "message": f"about {reason}", "lastTimestamp": time, **fields}


def advised(pod: Manifest, *lowers: Any, upper: Any = (), **fields: Any) -> list[str]:
    """Return the advice."""
    found = explained(fleet_snapshot(list(upper), *(lowers or LOWERS), **fields), UpperObject(pod, []))
    steps = [line.removeprefix("-> ") for line in explanation_text(found).splitlines() if line.startswith("-> ")]
    assert steps == found["advice"]
    return steps


OPTED_IN = {"virtual-pod": "true"}
NOWHERE = {"nodeSelector": {"disk": "ssd"}}


LABELS = (
    "select labels that a virtual node has (`kubectl get nodes --show-labels`), or give it those that the pod selects "
    "(`node.labels` in the topology); for labels of lower nodes, serve"
)


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (
            make_upper_pod(spec={"tolerations": []}),
            'add a toleration of the taint to the pod, or label it virtual-pod: "true"',
        ),
        (make_upper_pod(spec={"tolerations": []}, labels=OPTED_IN), "add a toleration of the taint to the pod"),
        (make_upper_pod(spec=NOWHERE), LABELS),
        (
            make_upper_pod(spec=NOWHERE, labels=OPTED_IN),
            f"{LABELS} the webhook (`webhook.enabled`) and create the pod again; without the extender",
        ),
        (
            make_upper_pod(spec=spec_requesting(cpu="50")),
            "reduce the requests of the pod, or free capacity or add nodes there",
        ),
        (
            make_upper_pod(spec=spec_with_claims("data")),
            "create those of its claims that do not exist; see why others are not bound: `tensile explain claim data",
        ),
        (make_upper_pod(spec={"schedulingGates": [{"name": "x"}]}), "wait until the owner of the gates removes them"),
        (make_upper_pod(spec=on()), "start the engine"),
        (
            make_upper_pod(spec=on(), status=unmirrored("NameConflict", "")),
            "rename or delete one of the two; `onConflict: adopt`",
        ),
        (
            make_upper_pod(spec=on(), status=unmirrored("Forbidden", 'violates PodSecurity "restricted:latest"')),
            "change the pod as the message says, or the policy of the lower cluster",
        ),
        (
            make_upper_pod(spec=on(), status=unmirrored("Forbidden", 'pod rejected: RuntimeClass "gvisor" not found')),
            "create in lower-a what the message says is not found",
        ),
        (
            make_upper_pod(spec=on(), status=unmirrored("Invalid", "must be less than or equal to cpu limit of 50m")),
            "change the pod as the message says, or the LimitRange or webhook of the lower cluster",
        ),
        (
            make_upper_pod(spec=on(), status=unmirrored("Forbidden", 'User "engine" cannot create resource "pods"')),
            "grant the engine this right: `tensile doctor` lists",
        ),
        (
            make_upper_pod(spec=on(), status=unmirrored("NamespaceExcluded", "")),
            "create the pod in another namespace, or give the engine's account a namespace of its own",
        ),
        (make_upper_pod(spec=on(), status=unmirrored("Odd", "")), "see the reason Odd in docs/reference/conditions.md"),
    ],
)
def test_the_last_line_is_the_advice_about_the_obstacle(pod: Manifest, message: str) -> None:
    """The advice is about the obstacle that the first line names."""
    (line,) = advised(pod)
    assert line.startswith(message)


@pytest.mark.parametrize("check", dict.fromkeys(one.name for one in CHECKS if one.name != "unschedulable"))
def test_every_check_of_a_node_has_advice(check: str) -> None:
    """There is advice for a virtual node and for lower nodes that fail the check."""
    pod = make_upper_pod(spec=spec_with_claims("data"))
    assert _for_check(check, pod)
    assert "`webhook.enabled`" not in _for_check(check, pod, serves_webhook=True)
    row = {"name": "lower-a", "below": {"nowhere": {"check": check}, "nodes": []}}
    (line,) = _for_unplaced(pod, row)
    assert check == "resources" or "reduce the requests" not in line


def test_advice_depends_on_the_state_of_the_lower() -> None:
    """The lower is unreachable, lacks capacity, has a small quota, or its pod waits for a claim or an image."""
    large = make_upper_pod(spec=on() | spec_requesting(cpu="5"))
    waiting = two_nodes("lower-a", (POD, make_lower_pod(large, phase="Pending")))
    assert advised(make_upper_pod(spec=on()), cluster_snapshot("lower-a", error="no answer"), LOWERS[1]) == [
        "find the cause with `tensile doctor`: it checks connection, credential and permissions of lower-a"
    ]
    roomy = two_nodes("lower-b", cpu="8")
    room, choose, move = advised(large, waiting, roomy)
    assert advised(large, waiting, LOWERS[1]) == [room, choose]
    assert room.startswith("reduce the requests of the pod, or free capacity or add nodes in lower-a; ")
    assert choose.startswith("with the extender (`extender.enabled`) the upper scheduler chooses only")
    _, enabled, _ = advised(large, waiting, roomy, extender={"enabled": True})
    assert enabled.startswith("check that the upper scheduler calls the extender")
    wanted = "with `descheduler.enabled` and `descheduler.recreateBarePods` the engine moves such pods to another"
    assert move == f"{wanted} lower cluster"
    of_set = {
        **large,
        "metadata": large["metadata"] | {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]},
    }
    assert advised(of_set, waiting, roomy)[-1].startswith("with `descheduler.enabled` the engine moves")
    assert advised(of_set, waiting, roomy, descheduler={"enabled": True})[-1].startswith("`tensile plan` shows where")
    storing = make_upper_pod(spec=on() | spec_with_claims("data"))
    unbound = two_nodes("lower-a", (POD, make_lower_pod(storing, phase="Pending")))
    assert advised(storing, unbound) == [
        "see why its claims are not bound there: `tensile explain claim data -n default`"
    ]
    few = quota("4", "3")
    few["status"] = {"hard": {"pods": "5"}, "used": {"pods": "5"}}
    assert advised(make_upper_pod(spec=on()), two_nodes("lower-a", (QUOTA, few))) == [
        "raise the quota in lower-a, or delete pods there"
    ]
    choosy = make_upper_pod(spec=on() | NOWHERE)
    astray = two_nodes("lower-a", (POD, make_lower_pod(choosy, phase="Pending")))
    assert advised(choosy, astray)[0].startswith("give a node in lower-a the labels that the pod selects, or ")
    assert advised(
        make_upper_pod(spec=on() | spec_requesting(cpu="2")), two_nodes("lower-a", (QUOTA, quota("4", "3")))
    ) == ["raise the quota in lower-a, or reduce the requests of the pod"]
    pulling = make_upper_pod(spec=on())
    assert advised(pulling, two_nodes("lower-a", (POD, make_lower_pod(pulling, "lower-a-1", "Pending")))) == [
        "see its containers and events: `kubectl describe pod web -n default`"
    ]


def test_a_pod_that_runs_or_has_ended_or_needs_only_time_gets_no_advice() -> None:
    """No action of the user is required."""
    pod = make_upper_pod(spec=on())
    assert advised(pod, two_nodes("lower-a", (POD, make_lower_pod(pod, "lower-a-1")))) == []
    assert advised(pod, two_nodes("lower-a", (POD, make_lower_pod(pod, phase="Pending")))) == []
    assert advised(make_upper_pod(spec=on(), status={"phase": "Failed"})) == []
    assert advised(make_upper_pod(status=unscheduled("busy"))) == []
    assert advised(make_upper_pod(spec=on(), deletionTimestamp="2026-03-01T11:00:00Z")) == []


def test_the_newest_five_events_are_shown() -> None:
    """The time of an event is read from each field in which a client may write it."""
    events = [event(f"R{number}", f"2026-03-01T11:00:0{number}Z") for number in range(7)]
    events.append(
        {
            "reason": "Series",
            "eventTime": "2026-03-01T10:00:00Z",
            "series": {"lastObservedTime": "2026-03-01T12:00:00Z"},
        }
    )
    events.append(event("Made", "", eventTime="2026-03-01T11:30:00Z", reportingComponent="tensile-kube"))
    found = explained(fleet_snapshot([], *LOWERS), UpperObject(make_upper_pod(), events))["events"]
    assert [one["reason"] for one in found] == ["Series", "Made", "R6", "R5", "R4"]
    assert found[1]["source"] == "tensile-kube"
    assert found[2] == {
        "time": "2026-03-01T11:00:06Z",
        "type": "Warning",
        "reason": "R6",
        "message": "about R6",
        "source": "",
    }


def test_resources_that_cannot_be_read_are_reported() -> None:
    """The checks of placement are less complete without these resources."""
    lower = two_nodes("lower-a")
    lower.unread.append("persistentvolumes: forbidden")
    found = explained(fleet_snapshot([], lower, LOWERS[1]), UpperObject(make_upper_pod(), []))
    assert "lower-a: cannot be read: persistentvolumes: forbidden" in explanation_text(found)


def test_the_text_of_an_explanation_has_a_table_and_the_last_events() -> None:
    """The whole text is compared."""
    tight = cluster_snapshot("lower-b", (NODE, node("b-1", cpu="1")), (NODE, node("b-2", spec={"unschedulable": True})))
    pod = make_upper_pod(spec=spec_requesting(cpu="2"), status=unscheduled("later"))
    text = explanation_text(
        explained(
            fleet_snapshot([], LOWERS[0], tight), UpperObject(pod, [event("FailedScheduling", "2026-03-01T11:00:00Z")])
        )
    )
    assert text == (
        "Pod default/web is Pending: the upper scheduler has not bound it, although it fits on lower-a, lower-b; it "
        "reports: later.\n"
        "\n"
        "CLUSTER   NODE        FITS   CHECK           WHY\n"
        "upper     lower-a     yes\n"
        "lower-a   lower-a-1   yes\n"
        "lower-a   lower-a-2   yes\n"
        "upper     lower-b     yes\n"
        "lower-b   b-1         no     resources       Insufficient cpu (cpu: requested 2, free 1 of 1)\n"
        "lower-b   b-2         no     unschedulable   node(s) were unschedulable\n"
        "\n"
        "Last events:\n"
        " 2026-03-01T11:00:00Z Warning FailedScheduling: about FailedScheduling"
    )


def test_nodes_with_the_same_reason_share_a_line() -> None:
    """The free capacity of each node is in the JSON output only."""
    nodes = [(NODE, node(f"n{number:02}", cpu="1" if number else "4")) for number in range(25)]
    text = explanation_text(
        explained(
            fleet_snapshot([], cluster_snapshot("lower-a", *nodes), LOWERS[1]),
            UpperObject(make_upper_pod(spec=spec_requesting(cpu="2")), []),
        )
    )
    lines = [line for line in text.splitlines() if line.startswith("lower-a")]
    assert lines == [
        "lower-a   n01, n02, n03 and 21 more   no     resources   Insufficient cpu",
        "lower-a   n00                         yes",
    ]


def test_a_reason_of_all_nodes_and_a_lower_without_nodes_are_single_lines() -> None:
    """The node column is "any" for a reason that concerns no single node, and "-" without nodes."""
    empty = cluster_snapshot("lower-b")
    pod = make_upper_pod(spec=spec_with_claims("gone"))
    text = explanation_text(explained(fleet_snapshot([], LOWERS[0], empty), UpperObject(pod, [])))
    assert 'lower-a   any       no     volumes   persistentvolumeclaim "gone" not found' in text
    assert "lower-b   any       no     volumes" in text
    plain = explanation_text(explained(fleet_snapshot([], LOWERS[0], empty), UpperObject(make_upper_pod(), [])))
    assert "lower-b   -           no     node    the cluster has no nodes" in plain


def test_control_characters_in_events_and_conditions_are_escaped() -> None:
    """Other clients write these messages, which must not create a line or control the terminal."""
    pod = make_upper_pod(status=unscheduled("no\x1b[2Jway\nPod fine"))
    event = {"type": "Warning", "reason": "Odd", "message": "see\x07\nthis", "lastTimestamp": "2026-06-01T12:00:00Z"}
    text = explanation_text(
        explained(fleet_snapshot([(NODE, virtual_node("lower-a"))], *LOWERS), UpperObject(pod, [event]))
    )
    assert "\x1b" not in text
    assert text.splitlines()[-1] == " 2026-06-01T12:00:00Z Warning Odd: see\\u0007\\nthis"
