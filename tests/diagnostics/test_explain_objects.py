"""Tests of `tensile explain node`, `claim` and `service`: the first obstacle, and the advice about it."""

from datetime import timedelta
from typing import Any

import orjson
import pytest
from placekit import make_namespace
from snapshotkit import NOW, cluster_snapshot, fleet_snapshot, make_upper_pod, two_nodes
from worldkit import with_managed_fields

from tensile.diagnostics.cluster_snapshot import FleetSnapshot, UpperObject
from tensile.diagnostics.explain_objects import (
    explained_claim,
    explained_node,
    explained_service,
    object_text,
)
from tensile.names import (
    CORDONED_BY,
    ENGINE,
    LOWER,
    MIRRORED,
    NOWHERE,
    OTHER_ENGINE,
    OWNER,
    OWNER_NAME,
    PROVISIONER,
    UPPER_UID,
    Owner,
    owner_of,
)
from tensile.objects import (
    CLAIM,
    ENDPOINT_SLICE,
    NAMESPACE,
    POD,
    SERVICE,
    STORAGE_CLASS,
    VOLUME,
    Kind,
    Manifest,
    timestamp,
)

OTHER = {"name": "lower-b", "kubeconfig": "b"}
MINE: Owner = owner_of("upper-uid", "demo")
SELECTED = "volume.kubernetes.io/selected-node"
Objects = tuple[tuple[Kind, Manifest], ...]


def seen(upper: Objects = (), a: Objects = (), error: str = "", **fields: Any) -> FleetSnapshot:
    """Make a snapshot with these objects in the upper cluster and in lower-a; lower-b has none."""
    first = cluster_snapshot("lower-a", error=error) if error else two_nodes("lower-a")
    for kind, manifest in a:
        first.objects.setdefault(kind.plural, []).append(manifest)
    found = fleet_snapshot([], first, two_nodes("lower-b"), **fields)
    for kind, manifest in upper:
        found.upper.objects.setdefault(kind.plural, []).append(manifest)
    return found


# Nodes.


def virtual_node(*conditions: tuple[str, str], **fields: Any) -> Manifest:
    """Make a Node of this topology with conditions, as (type, status)."""
    notes = {UPPER_UID: "upper-uid", OWNER_NAME: "demo", **fields.pop("annotations", {})}
    meta = {"name": "lower-a", "uid": "node", "labels": {OWNER: MINE.mark}, "annotations": notes}
    given = [
        {"type": kind, "status": status, "reason": "Because", "message": "it is so"} for kind, status in conditions
    ]
    return with_managed_fields({"metadata": meta, "spec": fields, "status": {"conditions": given}})


def lease(seconds: float = 5) -> Manifest:
    """Make a lease that was renewed so many seconds ago."""
    renewed = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"metadata": {"name": "lower-a"}, "spec": {"renewTime": renewed}}


def of_node(node: Manifest, leased: Manifest | None = None, **fields: Any) -> tuple[str, str]:
    """Return the sentence about a node, and the first advice."""
    upper_object = UpperObject(node, [], lease() if leased is None else leased)
    document = explained_node("lower-a", upper_object, seen(**fields))
    return document["why"], document["advice"][0]


def test_a_healthy_node_is_ready_with_its_number_of_pods() -> None:
    """The advice is that nothing has to be done."""
    bound = (POD, make_upper_pod(spec={"nodeName": "lower-a"}))
    why, advice = of_node(virtual_node(("Ready", "True"), ("LowerReachable", "True")), upper=(bound,))
    assert why == "it is Ready with 1 pod"
    assert advice.startswith("nothing has to be done: ")


def test_a_missing_node_gets_the_advice_to_start_the_engine() -> None:
    """The engine creates the Node of a lower."""
    why, advice = of_node({})
    assert why == "the Node of lower lower-a does not exist: no engine has created it"
    assert advice.startswith("start the engine")


def test_a_node_of_another_owner_is_recognized() -> None:
    """The label alone does not prove ownership: the engine must have written it, as managedFields record."""
    node = virtual_node()
    del node["metadata"]["managedFields"]
    assert of_node(node)[0] == "the Node belongs to another owner, so the engine does not touch it"


def test_a_node_of_another_topology_of_this_upper_cluster_is_explained() -> None:
    """An annotation of the Node has the name of that topology, which may be a former name of this one."""
    node = virtual_node()
    node["metadata"] |= {
        "labels": {OWNER: owner_of("upper-uid", "former").mark},
        "annotations": {OWNER_NAME: "former"},
    }
    why, advice = of_node(node)
    assert why == "the Node belongs to topology former"
    assert advice.startswith("if this topology was renamed, set `name: former` again")


@pytest.mark.parametrize(("seconds", "old"), [(39, False), (41, True)])
def test_a_node_whose_lease_is_not_renewed_for_40_seconds_has_no_engine(seconds: float, *, old: bool) -> None:
    """The conditions of such a Node are out of date, so the sentence does not mention them."""
    why, advice = of_node(virtual_node(("Ready", "False")), lease(seconds))
    assert why.startswith("no engine has renewed its lease since 2026-03-01T11:59:") is old
    assert advice.startswith("start the engine")
    assert of_node(virtual_node(), {})[0].startswith("no engine has renewed its lease as it has none")


@pytest.mark.parametrize(("seconds", "old"), [(39, False), (41, True)])
def test_a_node_without_a_lease_has_no_engine_after_40_seconds(seconds: float, *, old: bool) -> None:
    """A new Node exists for a moment before its first lease."""
    node = virtual_node(("Ready", "True"))
    node["metadata"]["creationTimestamp"] = timestamp(NOW - timedelta(seconds=seconds))
    assert of_node(node, {})[0].startswith("no engine has renewed its lease") is old


@pytest.mark.parametrize(
    ("condition", "status", "advice"),
    [
        ("Ready", "Unknown", "start the engine"),
        ("LowerReachable", "False", "run `tensile doctor`"),
        ("InTopology", "False", "put the lower cluster back with"),
        ("DeletionsBlocked", "True", "run `tensile apply --force`"),
        ("LowerSchedulable", "False", "look at the nodes of lower-a"),
    ],
)
def test_a_bad_condition_of_a_node_is_reported_with_advice(condition: str, status: str, advice: str) -> None:
    """The sentence has the status, the reason and the message of the condition."""
    well = [("Ready", "True"), ("DeletionsBlocked", "False"), ("LowerReachable", "True")]
    others = [one for one in well if one[0] != condition]
    why, shown_advice = of_node(virtual_node(*others, (condition, status)))
    assert why == f"condition {condition} is {status}: Because: it is so"
    assert shown_advice.startswith(advice)


def test_two_engines_that_renew_the_same_lease_are_reported() -> None:
    """Each engine records the other one on the Lease."""
    shared = lease()
    shared["metadata"]["annotations"] = {ENGINE: "host_1_a", OTHER_ENGINE: "host_2_b"}
    why, advice = of_node(virtual_node(("Ready", "True")), shared)
    assert why == "engines host_1_a and host_2_b both renew its lease, and undo each other's changes"
    assert advice == "stop one of them, or run both with --leader-elect"


def test_a_node_whose_lower_denies_a_right_gets_the_advice_to_run_doctor() -> None:
    """The lower's nodes are not the reason why no pod can be scheduled."""
    denied = virtual_node(("Ready", "True"), ("LowerSchedulable", "False"))
    denied["status"]["conditions"][-1]["reason"] = "Forbidden"
    assert of_node(denied)[1].startswith("run `tensile doctor`")


def test_a_cordoned_node_is_explained_by_who_cordoned_it() -> None:
    """The engine cordons it for maintenance, or a user does."""
    by_us = virtual_node(("Ready", "True"), unschedulable=True, annotations={CORDONED_BY: "maintenance-drain"})
    assert of_node(by_us) == (
        "it is cordoned by the engine (maintenance-drain)",
        "remove `maintenance` of lower-a from the topology",
    )
    by_user = virtual_node(("Ready", "True"), unschedulable=True)
    assert of_node(by_user) == ("it is cordoned by a user", "run `kubectl uncordon lower-a`")


def test_a_drained_node_with_pods_gets_the_advice_to_explain_the_pods() -> None:
    """Each of these pods may have another reason to stay."""
    node = virtual_node(("Ready", "True"), unschedulable=True, annotations={CORDONED_BY: "maintenance-drain"})
    why, advice = of_node(node, upper=((POD, make_upper_pod(spec={"nodeName": "lower-a"})),))
    assert why == "it is cordoned by the engine (maintenance-drain), with 1 pod"
    assert advice.startswith("`tensile explain pod` says of each pod why it stays; to end the maintenance, remove")


def test_a_node_whose_kubelet_api_is_not_served_is_explained() -> None:
    """The engine knows the reason, such as a port in use, and `tensile status` shows it."""
    node = virtual_node(("Ready", "True"))
    node["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": NOWHERE}}
    assert of_node(node) == (
        "it is Ready, but the engine does not serve its logs and exec",
        "`tensile status` says why",
    )
    node["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": 10350}}
    assert of_node(node)[0] == "it is Ready with 0 pods"


def test_a_node_that_advertises_no_cpu_is_explained() -> None:
    """The advice is about the topology if it bounds the capacity, and otherwise about the lower."""
    node = virtual_node(("Ready", "True"))
    node["status"]["allocatable"] = {"cpu": "0", "memory": "4Gi", "pods": "10"}
    assert of_node(node) == ("it is Ready, but advertises no cpu", "free capacity or add nodes in lower-a")
    reserve = [{"name": "lower-a", "kubeconfig": "a", "capacity": {"reserve": {"cpu": "100"}}}, OTHER]
    assert of_node(node, lowers=reserve)[1].startswith("change `capacity` of lower-a in the topology")


def test_a_lower_that_the_command_cannot_read_is_reported_for_a_ready_node() -> None:
    """The command reads the lower itself, so it may fail although the engine reaches the lower."""
    why, advice = of_node(virtual_node(("Ready", "True")), error="no answer")
    assert why == "this command cannot read its lower cluster: no answer"
    assert advice.startswith("run `tensile doctor`")


# Claims.


def claim(phase: str = "Pending", name: str = "data", status: Manifest | None = None, **fields: Any) -> Manifest:
    """Make a claim of the upper cluster."""
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", **fields.pop("meta", {})}
    return {
        "metadata": meta,
        "spec": {"storageClassName": "fast", **fields},
        "status": {"phase": phase, **(status or {})},
    }


def copy_of(upper: Manifest, kind: str = "", owner: str = MINE.mark, **fields: Any) -> Manifest:
    """Make the copy of an upper object in lower-a."""
    meta = upper["metadata"]
    marks = {"labels": {OWNER: owner}, "annotations": {UPPER_UID: meta["uid"]}}
    return {"kind": kind, "metadata": {"name": meta["name"], "namespace": "default", "uid": "below", **marks}, **fields}


FAST = (
    STORAGE_CLASS,
    {"metadata": {"name": "fast"}, "provisioner": PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer"},
)
USER = make_upper_pod(spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]})
BOUND_USER = {**USER, "spec": {**USER["spec"], "nodeName": "lower-a"}}


def of_claim(upper_claim: Manifest, *upper: tuple[Kind, Manifest], **fields: Any) -> tuple[str, str]:
    """Return the sentence about a claim, and the first advice."""
    document = explained_claim(UpperObject(upper_claim, [], {}), seen(upper=(FAST, *upper), **fields))
    return document["why"], document["advice"][0]


def test_a_bound_claim_is_explained_by_the_lower_that_has_its_data() -> None:
    """An annotation of the volume records the lower."""
    volume = (VOLUME, {"metadata": {"name": "pv", "annotations": {LOWER: "lower-a"}}, "spec": {}})
    bound = claim("Bound", volumeName="pv")
    assert of_claim(bound, volume)[0] == "it is bound to volume pv, whose data is in lower lower-a"
    why, advice = of_claim(bound, volume, error="no answer")
    assert why.endswith("which cannot be read: no answer")
    assert advice.startswith("run `tensile doctor`")
    assert of_claim(bound)[0] == "it is bound to volume pv of the upper cluster, which no lower cluster has"


def test_a_bound_claim_of_an_unbound_pod_is_explained() -> None:
    """The pod may select another lower than that of its data."""
    volume = (VOLUME, {"metadata": {"name": "pv", "annotations": {LOWER: "lower-a"}}, "spec": {}})
    assert of_claim(claim("Bound", volumeName="pv"), volume, (POD, USER)) == (
        "it is bound to volume pv, whose data is in lower lower-a; pod default/web uses it and has no node",
        "pods with this claim can run only in lower-a; see `tensile explain pod default/web`",
    )


def test_a_pending_claim_that_no_pod_uses_waits_for_a_pod() -> None:
    """The first pod determines the lower of its volume; a pod that has ended does not."""
    assert of_claim(claim()) == (
        "no pod uses it, and its lower cluster follows from its first pod",
        "create a pod that uses it",
    )
    ended = {**USER, "status": {"phase": "Succeeded"}}
    assert of_claim(claim(), (POD, ended))[0].startswith("no pod uses it")


def test_the_claim_of_an_ephemeral_volume_is_used_by_its_pod() -> None:
    """The claim's name consists of the names of the pod and of the volume."""
    scratch = {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]}
    why, _ = of_claim(claim(name="web-scratch"), (POD, make_upper_pod(spec=scratch)))
    assert why == "pod default/web uses it and has no virtual node yet"


def test_a_terminating_claim_waits_for_its_pods_or_finalizers() -> None:
    """Pods that use the claim prevent its deletion; without pods, only its finalizers do."""
    ending = claim(meta={"deletionTimestamp": "T", "finalizers": ["example.com/backup"]})
    since = "its deletion was requested at T; "
    assert of_claim(ending, (POD, USER)) == (f"{since}pods use it: default/web", "delete these pods")
    why, advice = of_claim(ending)
    assert why == f"{since}it has finalizers: example.com/backup"
    assert advice.startswith("wait; ")


def test_a_pending_claim_of_an_unbound_pod_refers_to_the_pod() -> None:
    """The explanation of the pod contains the obstacle."""
    assert of_claim(claim(), (POD, USER)) == (
        "pod default/web uses it and has no virtual node yet",
        "run `tensile explain pod default/web`",
    )


@pytest.mark.parametrize("chosen", [True, False])
def test_a_claim_whose_lower_copy_is_pending_is_explained(*, chosen: bool) -> None:
    """Its lower is that of the selected node, otherwise that of its pod."""
    upper_claim = claim(meta={"annotations": {SELECTED: "lower-a"}}) if chosen else claim()
    user = (POD, USER if chosen else BOUND_USER)
    copied = (CLAIM, copy_of(upper_claim, status={"phase": "Pending"}, spec={"storageClassName": "fast"}))
    why, advice = of_claim(upper_claim, user, a=(copied, FAST))
    assert why == "its copy in lower lower-a is Pending there"
    assert advice.startswith("look at it in lower-a: `kubectl describe pvc data`")
    assert of_claim(upper_claim, user, a=(copied,)) == (
        "its copy in lower lower-a waits for StorageClass fast, which does not exist there",
        "create it there, or set `storageClasses` of lower-a and create the claim again",
    )


def test_a_bound_claim_whose_lower_copy_is_pending_is_explained() -> None:
    """The upper claim is bound as soon as its lower is known, before the lower volume exists."""
    volume = (VOLUME, {"metadata": {"name": "pv", "annotations": {LOWER: "lower-a"}}, "spec": {}})
    bound = claim("Bound", volumeName="pv")
    copied = (CLAIM, copy_of(bound, status={"phase": "Pending"}, spec={"storageClassName": "fast"}))
    begin = "it is bound to volume pv, but its copy in lower lower-a"
    assert of_claim(bound, volume, a=(copied, FAST))[0] == f"{begin} is Pending there"
    why, advice = of_claim(bound, volume, a=(copied,))
    assert why == f"{begin} waits for StorageClass fast, which does not exist there"
    assert advice.startswith("create it there, or set `storageClasses` of lower-a")


def test_a_claim_without_a_lower_copy_is_explained() -> None:
    """Another claim has the name, claims are not mirrored, the lower cannot be read, or the copy is not created yet."""
    user = (POD, BOUND_USER)
    assert of_claim(claim(), user)[0].startswith("lower lower-a has no copy of it yet")
    strange = (CLAIM, copy_of(claim(), owner="another"))
    assert of_claim(claim(), user, a=(strange,))[0] == (
        "lower lower-a has a claim of that name that is not the engine's"
    )
    assert of_claim(claim(), user, controllers=["Service"])[0] == "lower lower-a does not mirror claims"
    assert of_claim(claim(), user, error="gone")[0].endswith("in lower lower-a, which cannot be read")


def test_other_problems_of_a_claim_are_explained() -> None:
    """It is deleted but used, lost or not mirrored, or its storage class is missing or has another provisioner."""
    ending = claim(meta={"deletionTimestamp": "2026-03-01T12:00:00Z", "finalizers": ["a/b"]})
    assert of_claim(ending, (POD, USER))[0].endswith("; pods use it: default/web")
    assert of_claim(ending)[0].endswith("; it has finalizers: a/b")
    assert of_claim(claim("Lost"))[0] == "its volume is lost"
    conditions = [{"type": MIRRORED, "status": "False", "reason": "ClaimRetained", "message": "old data"}]
    assert of_claim(claim(status={"conditions": conditions}))[0] == "it is not mirrored: ClaimRetained: old data"
    assert of_claim(claim(storageClassName="slow"))[0].startswith("StorageClass slow does not exist")
    nfs = (STORAGE_CLASS, {"metadata": {"name": "nfs"}, "provisioner": "example.com/nfs"})
    assert of_claim(claim(storageClassName="nfs"), nfs)[0].startswith("it waits for provisioner example.com/nfs")
    early = (STORAGE_CLASS, {"metadata": {"name": "early"}, "provisioner": PROVISIONER})
    assert of_claim(claim(storageClassName="early"), early) == (
        "StorageClass early binds before a node is chosen, but the volume is created where the pod runs",
        "recreate it with volumeBindingMode WaitForFirstConsumer: `kubectl delete storageclass early`",
    )
    late = (STORAGE_CLASS, {**nfs[1], "volumeBindingMode": "WaitForFirstConsumer"})
    why, advice = of_claim(claim(storageClassName="nfs"), late, (POD, BOUND_USER))
    assert why.endswith("of StorageClass nfs in the upper cluster, which makes no volumes in lower clusters")
    assert advice == (
        "for pods on virtual nodes, create the claim with a StorageClass of the provisioner tensile-kube.io/lower"
    )


# Services.

WEB: Manifest = {
    "metadata": {"name": "web", "namespace": "default", "uid": "service"},
    "spec": {"selector": {"app": "web"}},
}


def endpoints(ready: int, waiting: int = 0, namespace: str = "default") -> tuple[Kind, Manifest]:
    """Make an endpoint slice of the Service."""
    found = [{"conditions": {"ready": number < ready}} for number in range(ready + waiting)]
    labels = {"kubernetes.io/service-name": "web"}
    return ENDPOINT_SLICE, {"metadata": {"name": "web-1", "namespace": namespace, "labels": labels}, "endpoints": found}


def serving(*, ready: bool = True, node: str = "lower-a", **labels: str) -> tuple[Kind, Manifest]:
    """Make an upper pod that the Service selects."""
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    return POD, make_upper_pod(spec={"nodeName": node}, status=status, labels=labels or {"app": "web"})


def of_service(service: Manifest, *upper: tuple[Kind, Manifest], **fields: Any) -> tuple[str, str]:
    """Return the sentence about a Service, and the first advice."""
    document = explained_service(UpperObject(service, [], {}), seen(upper=upper, **fields))
    return document["why"], document["advice"][0]


def test_a_service_with_ready_endpoints_and_a_lower_copy_needs_no_action() -> None:
    """The sentence names the lower in which the copy serves pods."""
    a = ((SERVICE, copy_of(WEB)), endpoints(1))
    assert of_service(WEB, serving(), endpoints(1), a=a) == (
        "it has ready endpoints, and its copy serves pods in lower-a",
        "nothing has to be done",
    )


def test_a_service_whose_target_port_no_container_has_is_explained() -> None:
    """Kubernetes counts its endpoints as ready, and leaves the port out of the slice."""
    named = {**WEB, "spec": {**WEB["spec"], "ports": [{"port": 80, "targetPort": "http"}]}}
    why, advice = of_service(named, serving(), endpoints(1))
    assert why == "no ready endpoint serves its port 80: no container port is named http"
    assert advice.startswith("name that port in the pods")
    kind, part = endpoints(1)
    part["ports"] = [{"name": "", "port": 8080}]
    assert not of_service(named, serving(), (kind, part))[0].startswith("no ready endpoint serves")


def test_a_service_without_pods_in_lowers_has_no_copy() -> None:
    """A Service is mirrored to the lowers in which pods of its namespace run."""
    assert of_service(WEB, serving(node="real"), endpoints(1))[0].endswith(
        "no pod of namespace default runs in a lower cluster, so none has a copy"
    )


def test_the_kubernetes_service_is_never_mirrored() -> None:
    """Every cluster has its own, so the Service of that name in a lower is no conflict."""
    own = {**WEB, "metadata": {**WEB["metadata"], "name": "kubernetes"}}
    kind, part = endpoints(1)
    part["metadata"]["labels"] = {"kubernetes.io/service-name": "kubernetes"}
    why, advice = of_service(own, serving(), (kind, part), a=((SERVICE, copy_of(own, owner="another")),))
    assert why == "it is never mirrored: in a lower cluster, this name leads to its own apiserver"
    assert advice == "nothing has to be done"


def test_a_service_without_ready_endpoints_is_explained_from_selector_to_pods() -> None:
    """No pod matches, the pods are not Ready, no endpoints exist, or the Service has no selector."""
    assert of_service(WEB)[0] == "no pod of namespace default has the labels app=web"
    assert of_service(WEB, serving(app="other"))[0] == "no pod of namespace default has the labels app=web"
    assert of_service(WEB, serving(ready=False), endpoints(0, 1)) == (
        "its pods are not Ready: default/web",
        "run `tensile explain pod default/web`",
    )
    assert of_service(WEB, serving())[0] == "all pods that it selects are Ready, but it has no ready endpoints"
    assert of_service({**WEB, "spec": {}})[0].startswith("it has no selector")
    alias = {**WEB, "spec": {"type": "ExternalName", "externalName": "example.com"}}
    assert of_service(alias)[0] == "it is a DNS alias of example.com and has no endpoints"


def test_a_service_that_lower_pods_cannot_use_is_explained() -> None:
    """It is not copied, in conflict with another Service, without endpoints, or Services are not mirrored."""
    upper = (serving(), endpoints(1))
    assert of_service(WEB, *upper)[0] == "lower lower-a has no copy of it, though pods of its namespace run there"
    strange = (SERVICE, copy_of(WEB, owner="another"))
    assert of_service(WEB, *upper, a=(strange,))[0].endswith("a Service of that name that is not the engine's")
    copied = (SERVICE, copy_of(WEB))
    assert of_service(WEB, *upper, a=(copied, endpoints(0, 2)))[0].startswith("its copy in lower lower-a has no ready")
    assert of_service(WEB, *upper, controllers=["PV"])[0] == "lower lower-a does not mirror Services"
    assert of_service(WEB, *upper, error="gone")[0] == "lower lower-a cannot be read: gone"


def test_a_copy_of_a_service_counts_only_in_the_mapped_namespace() -> None:
    """With the mapping "prefix", a Service with the marks in another namespace is no copy."""
    lowers = [
        {"name": name, "kubeconfig": name, "namespaces": {"mapping": "prefix"}} for name in ("lower-a", "lower-b")
    ]
    copied = copy_of(WEB)
    placed = {**copied, "metadata": {**copied["metadata"], "namespace": "demo-default"}}
    upper = (serving(), endpoints(1))
    assert "no copy" in of_service(WEB, *upper, a=((SERVICE, copied), endpoints(1)), lowers=lowers)[0]
    below = ((SERVICE, placed), endpoints(1, namespace="demo-default"), (NAMESPACE, make_namespace("demo-default")))
    assert "serves pods in lower-a" in of_service(WEB, *upper, a=below, lowers=lowers)[0]


# The text.


def test_the_text_of_an_explanation_ends_with_the_advice() -> None:
    """It follows the sentence, a table and the events, whose control characters are escaped."""
    event = {"type": "Warning", "reason": "Odd", "message": "a\x1b[2Jb", "lastTimestamp": "2026-03-01T12:00:00Z"}
    upper_object = UpperObject(WEB, [event], {})
    document = explained_service(upper_object, seen(upper=(serving(ready=False), endpoints(0, 1))))
    assert object_text(document) == (
        "Service default/web: its pods are not Ready: default/web.\n"
        "\n"
        "CLUSTER   STATE      DETAIL\n"
        "upper     original   0 of 1 endpoint ready\n"
        "lower-a   none       -\n"
        "lower-b   none       -\n"
        "\n"
        "Last events:\n"
        " 2026-03-01T12:00:00Z Warning Odd: a\\u001b[2Jb\n"
        "\n"
        "-> run `tensile explain pod default/web`"
    )
    assert orjson.loads(orjson.dumps(document))["formatVersion"] == 1


def test_the_explanation_of_a_node_has_a_row_for_each_condition() -> None:
    """The row has the reason and the message that the engine wrote."""
    upper_object = UpperObject(virtual_node(("Ready", "True")), [], lease())
    lines = object_text(explained_node("lower-a", upper_object, seen())).splitlines()
    assert lines[2:4] == ["CONDITION   STATUS   DETAIL", "Ready       True     Because: it is so"]
    assert lines[0] == "Node lower-a: it is Ready with 0 pods."
