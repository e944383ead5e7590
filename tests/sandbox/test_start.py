"""Tests of what the sandbox creates and writes: nodes, the binding, the topology file, and kwok's stages."""

import base64
import copy
from typing import Any

import pytest
import yaml

from tensile.sandbox import apiserver, start
from tensile.sandbox.state import Layout

READY = {"type": "Ready", "status": "True"}
USABLE: dict[str, Any] = {"spec": {}, "status": {"conditions": [READY]}}
STAGES = sorted(start.STAGES.glob("*.yaml"))
OUTCOME = '.metadata.annotations["sandbox.tensile-kube.io/outcome"]'


def stages() -> dict[str, dict[str, Any]]:
    """Return kwok's stages by name."""
    loaded = [yaml.safe_load(path.read_text()) for path in STAGES]
    return {stage["metadata"]["name"]: stage for stage in loaded}


def requirement(stage: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Return a stage's requirement of one key."""
    expressions = stage["spec"]["selector"]["matchExpressions"]
    return next((one for one in expressions if one["key"] == key), None)


def test_a_node_has_the_address_of_the_endpoint(lower: Layout) -> None:
    """Logs and exec of the node's pods are requested from the endpoint of its cluster."""
    status = apiserver.node("n", lower, "v1.30.1")["status"]
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 21006}}
    assert {"type": "InternalIP", "address": "127.0.0.1"} in status["addresses"]


def test_a_node_has_capacity_for_500_pods() -> None:
    """The capacity is large enough for many pods."""
    assert apiserver.RESOURCES == {"cpu": "32", "memory": "256Gi", "pods": "500"}


def test_the_whole_capacity_of_a_node_is_allocatable(lower: Layout) -> None:
    """A simulated node runs no programs that need a reserve."""
    status = apiserver.node("n", lower, "v1.30.1")["status"]
    assert status["capacity"] == status["allocatable"] == apiserver.RESOURCES


def test_only_a_node_of_the_upper_cluster_is_cordoned(lower: Layout, upper: Layout) -> None:
    """Pods run in the lower clusters."""
    assert not apiserver.node("n", lower, "v1.30.1")["spec"]["unschedulable"]
    assert apiserver.node("n", upper, "v1.30.1")["spec"]["unschedulable"]


def test_a_cordoned_node_is_ready() -> None:
    """Readiness does not wait for the end of the cordon."""
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    assert apiserver.ready([USABLE | {"spec": {"taints": [cordoned]}}], 1)


def test_a_node_is_annotated_for_kwok(lower: Layout) -> None:
    """Kwok selects its nodes by the annotation."""
    metadata = apiserver.node("n", lower, "v1.30.1")["metadata"]
    assert metadata["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert metadata["labels"]["kubernetes.io/hostname"] == metadata["name"] == "n"


def test_the_apiserver_may_call_kubelets() -> None:
    """The binding has exactly the role that Kubernetes provides for the kubelet client."""
    binding = apiserver.kubelet_binding()
    assert binding["roleRef"]["name"] == "system:kubelet-api-admin"
    assert [subject["name"] for subject in binding["subjects"]] == ["kube-apiserver-kubelet-client"]


def test_the_topology_lists_the_lowers_in_order() -> None:
    """Every lower has a kubeconfig in the directory of the topology file."""
    content = yaml.safe_load(apiserver.topology(["lower-a", "lower-b"], 1, 2))
    assert content["upper"] == {"kubeconfig": "upper.kubeconfig"}
    assert content["lowers"] == [
        {"name": "lower-a", "kubeconfig": "lower-a.kubeconfig"},
        {"name": "lower-b", "kubeconfig": "lower-b.kubeconfig"},
    ]


def test_the_topology_may_have_no_lowers() -> None:
    """The list exists and is empty, because the format requires it."""
    assert yaml.safe_load(apiserver.topology([], 1, 2))["lowers"] == []


def test_the_topology_uses_loopback_and_the_chosen_ports() -> None:
    """The engine listens on free ports, with the certificate that the upper cluster trusts."""
    content = yaml.safe_load(apiserver.topology(["lower-a"], 18000, 18100))
    assert content["telemetry"] == {"bind": "127.0.0.1", "port": 18100}
    assert content["kubelet"] == {
        "bind": "127.0.0.1",
        "port": 18000,
        "nodeAddress": "127.0.0.1",
        "tlsCertFile": "kubelet.crt",
        "tlsKeyFile": "kubelet.key",
    }


def test_the_topology_may_have_an_extender() -> None:
    """It is on loopback too, and absent unless it is requested."""
    content = yaml.safe_load(apiserver.topology([], 1, 2, 3))
    assert content["extender"] == {"enabled": True, "bind": "127.0.0.1", "port": 3}
    assert "extender" not in yaml.safe_load(apiserver.topology([], 1, 2))


def test_enough_usable_nodes_are_ready() -> None:
    """More usable nodes than required are ready too."""
    assert apiserver.ready([USABLE, USABLE], 2)
    assert apiserver.ready([USABLE, USABLE], 1)
    assert apiserver.ready([], 0)


def test_too_few_nodes_are_not_ready() -> None:
    """The sandbox waits for a missing node."""
    assert not apiserver.ready([USABLE], 2)


@pytest.mark.parametrize(
    "spoil",
    [
        {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
        {"status": {"conditions": []}},
        {"status": {}},
        {"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}},
    ],
    ids=["unknown", "no condition", "no status", "tainted"],
)
def test_a_node_that_runs_no_pods_is_not_ready(spoil: dict[str, Any]) -> None:
    """A node needs the Ready condition and no taint that keeps pods away."""
    assert not apiserver.ready([USABLE, copy.deepcopy(USABLE) | spoil], 2)


def test_stages_cover_the_lifecycle_of_nodes_and_pods() -> None:
    """Nodes become ready and stay so; pods run, end as annotated, and are removed."""
    assert set(stages()) == {
        "node-ready",
        "node-heartbeat",
        "pod-ready",
        "pod-succeed",
        "pod-fail",
        "pod-gone",
    }


@pytest.mark.parametrize("path", STAGES, ids=[path.stem for path in STAGES])
def test_a_stage_has_the_name_of_its_file(path: object) -> None:
    """A reader finds the file of a stage by its name."""
    assert path in STAGES
    assert path.stem in stages()


@pytest.mark.parametrize(("stage", "operator", "outcome"), [("pod-fail", "In", "fail"), ("pod-ready", "NotIn", "wait")])
def test_an_annotation_makes_a_pod_fail_or_never_run(stage: str, operator: str, outcome: str) -> None:
    """Without the annotation a pod does neither."""
    wanted = requirement(stages()[stage], OUTCOME)
    assert wanted is not None
    assert (wanted["operator"], wanted["values"]) == (operator, [outcome])


def test_only_a_jobs_pod_succeeds_without_an_annotation() -> None:
    """The annotation wins; a pod that runs a real command ends with that command."""
    key = stages()["pod-succeed"]["spec"]["selector"]["matchExpressions"][-1]["key"]
    asks, _, otherwise = key.partition(" // ")
    assert asks == OUTCOME
    condition, _, outcomes = otherwise.partition(" then ")
    assert '.metadata.labels["batch.kubernetes.io/job-name"] != null' in condition
    assert '.metadata.annotations["sandbox.tensile-kube.io/run"] != "command"' in condition
    assert outcomes == '"succeed" else "run" end'


@pytest.mark.parametrize("name", ["pod-succeed", "pod-fail"])
def test_an_annotation_sets_the_duration_of_a_pod(name: str) -> None:
    """The delay of both final stages comes from the annotation."""
    expression = stages()[name]["spec"]["delay"]["durationFrom"]["expressionFrom"]
    assert expression.startswith('.metadata.annotations["sandbox.tensile-kube.io/duration"]')


def test_the_metrics_api_is_registered_with_its_port_and_ca(lower: Layout) -> None:
    """The apiserver finds it through a Service of this name and port, and verifies it by the CA."""
    lower.pki.mkdir(parents=True)
    (lower.pki / "ca.crt").write_bytes(b"authority")
    objects = {one["kind"]: one for _, one in apiserver.addons(lower)}
    service, registered = objects["Service"], objects["APIService"]["spec"]
    assert registered["service"] == {**service["metadata"], "port": lower.ports.addons}
    assert service["spec"]["ports"] == [{"port": lower.ports.addons}]
    assert base64.b64decode(registered["caBundle"]) == b"authority"


def test_the_default_storage_class_has_the_same_name_in_all_clusters(upper: Layout, lower: Layout) -> None:
    """No topology has to map it, and volumes wait until the scheduler has chosen a node."""
    upper_object, lower_object = apiserver.storage_class(upper), apiserver.storage_class(lower)
    assert upper_object["metadata"] == lower_object["metadata"]
    assert upper_object["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}
    assert (upper_object["provisioner"], lower_object["provisioner"]) == (
        "tensile-kube.io/lower",
        apiserver.LOWER_PROVISIONER,
    )
    assert upper_object["volumeBindingMode"] == lower_object["volumeBindingMode"] == "WaitForFirstConsumer"


@pytest.mark.parametrize("name", ["pod-ready", "pod-succeed", "pod-fail"])
def test_a_pod_that_is_being_deleted_does_not_change(name: str) -> None:
    """Only the stage that removes it applies."""
    wanted = requirement(stages()[name], ".metadata.deletionTimestamp")
    assert wanted is not None
    assert wanted["operator"] == "DoesNotExist"
