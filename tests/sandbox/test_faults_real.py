"""Tests of faults in a sandbox: components are killed, suspended and restarted, and nodes fail quickly.

These tests need a separate sandbox, because they break it.
"""

import json
import time
from collections.abc import Iterator

import pytest
from sandbox_waiting import until

from tensile.sandbox import processes
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options, SandboxError

pytestmark = pytest.mark.real

LOWER = "lower-a"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox of one lower with compressed eviction, for these tests only."""
    options = Options(lowers=1, nodes=1, compressed_eviction=True)
    with Sandbox.start(tmp_path_factory.mktemp("faults") / "s", options) as sandbox:
        yield sandbox


def answers(sandbox: Sandbox, cluster: str) -> bool:
    """Report whether the apiserver answers within a second."""
    return sandbox.kubectl("get", "--raw", "/readyz", "--request-timeout=1s", cluster=cluster).returncode == 0


def pid(sandbox: Sandbox, cluster: str, component: str) -> int:
    """Return the process ID of a component."""
    return sandbox.clusters[cluster].pids[component]


def taints(sandbox: Sandbox, name: str) -> list[str]:
    """Return the effects of the taints of a node of the upper cluster."""
    completed = sandbox.kubectl("get", "node", name, "-o", "json")
    return [one["effect"] for one in json.loads(completed.stdout)["spec"].get("taints", [])]


@pytest.mark.parametrize("cluster", ["upper", LOWER])
def test_a_restarted_apiserver_has_its_address_and_data(broken: Sandbox, cluster: str) -> None:
    """It does not answer after the kill; after the restart it serves the same data at the same address."""
    server, before = broken.clusters[cluster].server, pid(broken, cluster, "kube-apiserver")
    broken.kubectl("create", "configmap", "kept", cluster=cluster)
    broken.kill(cluster, "kube-apiserver")
    assert not answers(broken, cluster)
    broken.restart(cluster, "kube-apiserver")
    assert answers(broken, cluster)
    assert broken.clusters[cluster].server == server
    assert pid(broken, cluster, "kube-apiserver") != before
    assert broken.kubectl("delete", "configmap", "kept", cluster=cluster).returncode == 0


def test_the_other_cluster_is_not_affected(broken: Sandbox) -> None:
    """The upper apiserver answers while the lower one is down."""
    broken.kill(LOWER, "kube-apiserver")
    assert answers(broken, "upper")
    broken.restart(LOWER, "kube-apiserver")
    assert answers(broken, LOWER)


def test_a_suspended_apiserver_does_not_answer(broken: Sandbox) -> None:
    """It answers again after it is resumed."""
    broken.suspend(LOWER, "kube-apiserver")
    assert not answers(broken, LOWER)
    broken.resume(LOWER, "kube-apiserver")
    until(lambda: answers(broken, LOWER), "the resumed apiserver")


@pytest.mark.parametrize("component", ["etcd", "kube-controller-manager", "kube-scheduler", "kwok", "endpoint"])
def test_every_component_can_be_restarted(broken: Sandbox, component: str) -> None:
    """A running component is stopped first, and only its process ID changes."""
    before = broken.clusters[LOWER].pids
    broken.restart(LOWER, component)
    after = broken.clusters[LOWER].pids
    assert {name for name in after if after[name] != before[name]} == {component}
    assert broken.kubectl("get", "nodes", cluster=LOWER).returncode == 0


def test_killed_components_can_be_restarted_one_by_one(broken: Sandbox) -> None:
    """A component can be restarted while another killed one is still absent."""
    for component in ("kube-controller-manager", "kube-apiserver"):
        broken.kill(LOWER, component)
    broken.restart(LOWER, "kube-apiserver")
    assert answers(broken, LOWER)
    broken.restart(LOWER, "kube-controller-manager")
    assert set(broken.clusters[LOWER].pids) == set(broken.clusters["upper"].pids) | {"kwok", "endpoint"}


def test_a_restart_can_add_arguments(broken: Sandbox) -> None:
    """Added arguments are kept for later restarts, like a component's configuration."""
    broken.restart("upper", "kube-scheduler", extra=["--v=3"])
    broken.restart("upper", "kube-scheduler")
    arguments = broken.state().clusters["upper"].processes["kube-scheduler"].arguments
    assert arguments.count("--v=3") == 1


def test_a_failed_restart_is_reported_with_its_reason(broken: Sandbox) -> None:
    """The error has the component's last output, and the next restart does not use the invalid argument."""
    with pytest.raises(SandboxError, match=r"(?s)upper: kube-scheduler exited; .*unknown flag: --no-such-flag"):
        broken.restart("upper", "kube-scheduler", extra=["--no-such-flag=1"])
    broken.restart("upper", "kube-scheduler")
    arguments = broken.state().clusters["upper"].processes["kube-scheduler"].arguments
    assert "--no-such-flag=1" not in arguments


def test_a_restart_can_return_before_the_component_is_ready(broken: Sandbox) -> None:
    """A test can act while a component is still starting."""
    broken.restart(LOWER, "kube-apiserver", wait=False)
    assert processes.running(broken.state().clusters[LOWER].processes["kube-apiserver"])
    until(lambda: answers(broken, LOWER), "the restarted apiserver")


def test_pods_of_a_silent_node_are_evicted_quickly(broken: Sandbox) -> None:
    """Their eviction takes tens of seconds, while Kubernetes would take almost six minutes."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    silent = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "silent"}, "status": {"conditions": [ready]}}
    created = broken.kubectl("create", "-f", "-", stdin=json.dumps(silent))
    assert created.returncode == 0, created.stderr
    lonely = {"spec": {"nodeName": "silent"}}
    begun = time.monotonic()
    broken.kubectl("run", "lonely", "--image=none", f"--overrides={json.dumps(lonely)}")
    until(lambda: "NoExecute" in taints(broken, "silent"), "the verdict on the node", 90)
    gone = ["get", "pod", "lonely", "-o", "jsonpath={.metadata.deletionTimestamp}"]
    until(lambda: broken.kubectl(*gone).stdout, "the eviction", 90)
    assert 5 < time.monotonic() - begun < 180


def test_the_upper_clusters_own_node_is_ready_and_cordoned(broken: Sandbox) -> None:
    """The upper cluster therefore runs no pods itself."""
    assert taints(broken, "upper-node-1") == ["NoSchedule"]
    ready = broken.kubectl("wait", "--for=condition=Ready", "node/upper-node-1", "--timeout=1s")
    assert ready.returncode == 0, ready.stderr
