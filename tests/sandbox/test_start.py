"""What the sandbox creates and writes: nodes, the binding, the topology file, kwok's stages."""

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
    """Return what a stage asks of one key."""
    expressions = stage["spec"]["selector"]["matchExpressions"]
    return next((one for one in expressions if one["key"] == key), None)


def test_a_node_leads_to_the_endpoint(lower: Layout) -> None:
    """Logs and exec for the node's pods go to the endpoint of its cluster."""
    status = apiserver.node("n", lower, "v1.30.1")["status"]
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 21006}}
    assert {"type": "InternalIP", "address": "127.0.0.1"} in status["addresses"]


def test_a_node_is_large() -> None:
    """A node has room for 500 pods, and all that it has can be used."""
    assert apiserver.RESOURCES == {"cpu": "32", "memory": "256Gi", "pods": "500"}


def test_a_nodes_whole_capacity_is_allocatable(lower: Layout) -> None:
    """Nothing is held back on a node that runs nothing itself."""
    status = apiserver.node("n", lower, "v1.30.1")["status"]
    assert status["capacity"] == status["allocatable"] == apiserver.RESOURCES


def test_only_a_node_of_the_upper_cluster_is_cordoned(lower: Layout, upper: Layout) -> None:
    """Pods run below."""
    assert not apiserver.node("n", lower, "v1.30.1")["spec"]["unschedulable"]
    assert apiserver.node("n", upper, "v1.30.1")["spec"]["unschedulable"]


def test_a_cordoned_node_is_as_ready_as_it_gets() -> None:
    """The cordon is not waited away."""
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    assert apiserver.ready([USABLE | {"spec": {"taints": [cordoned]}}], 1)


def test_a_node_is_kwoks(lower: Layout) -> None:
    """The annotation is the one that kwok selects its nodes by."""
    metadata = apiserver.node("n", lower, "v1.30.1")["metadata"]
    assert metadata["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert metadata["labels"]["kubernetes.io/hostname"] == metadata["name"] == "n"


def test_the_apiserver_may_call_kubelets() -> None:
    """The binding gives the kubelet client exactly the role that Kubernetes has for it."""
    binding = apiserver.kubelet_binding()
    assert binding["roleRef"]["name"] == "system:kubelet-api-admin"
    assert [subject["name"] for subject in binding["subjects"]] == ["kube-apiserver-kubelet-client"]


def test_the_topology_lists_the_lowers_in_their_order() -> None:
    """Every lower is there, with a kubeconfig beside the file."""
    content = yaml.safe_load(apiserver.topology(["lower-a", "lower-b"], 1, 2))
    assert content["upper"] == {"kubeconfig": "upper.kubeconfig"}
    assert content["lowers"] == [
        {"name": "lower-a", "kubeconfig": "lower-a.kubeconfig"},
        {"name": "lower-b", "kubeconfig": "lower-b.kubeconfig"},
    ]


def test_the_topology_may_have_no_lower() -> None:
    """Without lowers the list is there and empty, as the format requires it."""
    assert yaml.safe_load(apiserver.topology([], 1, 2))["lowers"] == []


def test_the_topology_keeps_to_loopback_and_to_free_ports() -> None:
    """The engine listens where the sandbox found room, and shows the certificate that the upper cluster trusts."""
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
    """On loopback as well, and only where one is asked for."""
    content = yaml.safe_load(apiserver.topology([], 1, 2, 3))
    assert content["extender"] == {"enabled": True, "bind": "127.0.0.1", "port": 3}
    assert "extender" not in yaml.safe_load(apiserver.topology([], 1, 2))


def test_usable_nodes_are_ready() -> None:
    """As many usable nodes as wanted will do, more as well."""
    assert apiserver.ready([USABLE, USABLE], 2)
    assert apiserver.ready([USABLE, USABLE], 1)
    assert apiserver.ready([], 0)


def test_too_few_nodes_are_not_ready() -> None:
    """A node that is missing is waited for."""
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
def test_a_node_on_which_nothing_runs_is_not_ready(spoil: dict[str, Any]) -> None:
    """Ready counts only with the condition, and without a taint that keeps pods away."""
    assert not apiserver.ready([USABLE, copy.deepcopy(USABLE) | spoil], 2)


def test_there_is_a_stage_for_every_turn_of_a_life() -> None:
    """Nodes come up and stay, pods run, end as they are told, and go."""
    assert set(stages()) == {
        "node-ready",
        "node-heartbeat",
        "pod-ready",
        "pod-succeed",
        "pod-fail",
        "pod-gone",
    }


@pytest.mark.parametrize("path", STAGES, ids=[path.stem for path in STAGES])
def test_a_stage_is_called_as_its_file(path: object) -> None:
    """A person finds the file of a stage by the stage's name."""
    assert path in STAGES
    assert path.stem in stages()


@pytest.mark.parametrize(("stage", "operator", "outcome"), [("pod-fail", "In", "fail"), ("pod-ready", "NotIn", "wait")])
def test_a_pod_asks_to_fail_or_never_to_run(stage: str, operator: str, outcome: str) -> None:
    """By the annotation; without it no pod does."""
    wanted = requirement(stages()[stage], OUTCOME)
    assert wanted is not None
    assert (wanted["operator"], wanted["values"]) == (operator, [outcome])


def test_only_the_pod_of_a_job_ends_without_asking_to() -> None:
    """What the annotation says comes first; a pod that runs a real command ends with it."""
    key = stages()["pod-succeed"]["spec"]["selector"]["matchExpressions"][-1]["key"]
    asks, _, otherwise = key.partition(" // ")
    assert asks == OUTCOME
    condition, _, outcomes = otherwise.partition(" then ")
    assert '.metadata.labels["batch.kubernetes.io/job-name"] != null' in condition
    assert '.metadata.annotations["sandbox.tensile-kube.io/run"] != "command"' in condition
    assert outcomes == '"succeed" else "run" end'


@pytest.mark.parametrize("name", ["pod-succeed", "pod-fail"])
def test_a_pod_says_after_how_long_it_ends(name: str) -> None:
    """By an annotation."""
    expression = stages()[name]["spec"]["delay"]["durationFrom"]["expressionFrom"]
    assert expression.startswith('.metadata.annotations["sandbox.tensile-kube.io/duration"]')


def test_the_addons_know_the_cluster_and_its_port(lower: Layout) -> None:
    """The apiserver finds the metrics API by a Service of this name and port, with a CA to check it by."""
    lower.pki.mkdir(parents=True)
    (lower.pki / "ca.crt").write_bytes(b"authority")
    objects = {one["kind"]: one for _, one in apiserver.addons(lower)}
    service, registered = objects["Service"], objects["APIService"]["spec"]
    assert registered["service"] == {**service["metadata"], "port": lower.ports.addons}
    assert service["spec"]["ports"] == [{"port": lower.ports.addons}]
    assert base64.b64decode(registered["caBundle"]) == b"authority"


def test_the_default_class_above_leads_to_the_one_below(upper: Layout, lower: Layout) -> None:
    """Both have one name, so no topology has to map it; each waits until the scheduler has chosen a node."""
    above, below = apiserver.storage_class(upper), apiserver.storage_class(lower)
    assert above["metadata"] == below["metadata"]
    assert above["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}
    assert (above["provisioner"], below["provisioner"]) == ("tensile-kube.io/lower", apiserver.LOWER_PROVISIONER)
    assert above["volumeBindingMode"] == below["volumeBindingMode"] == "WaitForFirstConsumer"


@pytest.mark.parametrize("name", ["pod-ready", "pod-succeed", "pod-fail"])
def test_a_pod_that_is_being_deleted_does_not_change(name: str) -> None:
    """Only its going is left to it."""
    wanted = requirement(stages()[name], ".metadata.deletionTimestamp")
    assert wanted is not None
    assert wanted["operator"] == "DoesNotExist"
