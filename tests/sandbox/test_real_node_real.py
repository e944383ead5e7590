"""Tests of a real node on this machine: what containers do on it, and what is left when it ends or is killed."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox_waiting import open_directory, until, until_unlocked

from tensile.sandbox import commands, processes, real_node, state, stop
from tensile.sandbox.binaries import cache_directory
from tensile.sandbox.real_node import IMAGE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options
from tensile.sandbox.stop import PACKAGE_ROOT

pytestmark = pytest.mark.real

LOWER = "lower-a"
OPTIONS = Options(lowers=1, real_node=True)
SERVE = "echo begun >&2; mkdir /srv; echo page > /srv/index.html; httpd -f -p 80 -h /srv"
TUNABLES = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
UP = """
import sys
from pathlib import Path
from tensile.sandbox.commands import up
sys.exit(up(1, None, Path(sys.argv[1]), real_node=True))
"""


@pytest.fixture(scope="module")
def possible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for a sandbox with a real node, or skip the test with the reason why there can be none."""
    folder = tmp_path_factory.mktemp("real")
    why = real_node.obstacle((folder, cache_directory(os.environ)), os.environ)
    if why:
        pytest.skip(f"this machine cannot run a real node: {why}")
    return folder


@pytest.fixture(scope="module")
def tunables(possible: Path) -> dict[str, str]:
    """The kernel's settings before the node starts."""
    return settings()


@pytest.fixture(scope="module")
def real(possible: Path, tunables: dict[str, str]) -> Iterator[Sandbox]:
    """A sandbox of one lower with a real node, and a pod on it that serves a page."""
    with Sandbox.start(possible / "sandbox", OPTIONS) as sandbox:
        account = ("get", "serviceaccount", "default")
        until(lambda: sandbox.kubectl(*account, cluster=LOWER).returncode == 0, "the account")
        run(sandbox, "web", SERVE)
        yield sandbox


def settings() -> dict[str, str]:
    """Read the kernel's settings that kubelets usually change."""
    return {name: Path(f"/proc/sys/{name}").read_text() for name in TUNABLES}


def run(sandbox: Sandbox, name: str, script: str) -> None:
    """Run a shell script in a container, and wait until its port answers the kubelet's readiness probe."""
    main: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
    }
    main["readinessProbe"] = {"httpGet": {"port": 80}, "periodSeconds": 1}
    main["resources"] = {"limits": {"memory": "512Mi"}}
    spec = {"containers": [main], "terminationGracePeriodSeconds": 0}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    made = sandbox.kubectl("create", "-f", "-", cluster=LOWER, stdin=json.dumps(manifest))
    assert made.returncode == 0, made.stderr
    waited = sandbox.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s", cluster=LOWER)
    assert waited.returncode == 0, waited.stderr


def inside(sandbox: Sandbox, *command: str, pod: str = "web") -> str:
    """Run a command in the container, which must succeed, and return its output."""
    done = sandbox.kubectl("exec", pod, "--", *command, cluster=LOWER)
    assert done.returncode == 0, done.stderr
    return done.stdout


def left(identity: str) -> list[str]:
    """Return the remains of a node: processes, cgroups, and the network device."""
    found = [f"process {pid}" for pid in processes.marked(identity)]
    found += map(str, Path("/sys/fs/cgroup").glob(f"**/{stop.cgroup(identity)}"))
    device = stop.DEVICES / stop.device(identity)
    return found + ([str(device)] if device.exists() else [])


def test_the_node_is_a_real_one(real: Sandbox) -> None:
    """It reports containerd as its runtime, is the lower's only node, and runs without kwok and endpoint."""
    fields = "jsonpath={range .items[*]}{.metadata.name} {.status.nodeInfo.containerRuntimeVersion}{end}"
    shown = real.kubectl("get", "nodes", "-o", fields, cluster=LOWER).stdout
    assert shown.startswith("lower-a-node-1 containerd://")
    assert {"kwok", "endpoint"}.isdisjoint(real.clusters[LOWER].pids)


def test_a_container_is_isolated(real: Sandbox) -> None:
    """Its file system is the image's, its first process is its command, and its host name is the pod's."""
    assert inside(real, "cat", "/srv/index.html") == "page\n"
    assert inside(real, "cat", "/proc/1/comm") == "httpd\n"
    assert inside(real, "hostname") == "web\n"
    assert "home" not in inside(real, "ls", "/").split()


def test_a_pod_is_resized_in_place(real: Sandbox) -> None:
    """The limit of its container changes without a restart, and the node continues to run."""
    wanted = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "768Mi"}}}]}}
    patched = real.kubectl("patch", "pod", "web", "--subresource=resize", f"-p={json.dumps(wanted)}", cluster=LOWER)
    assert patched.returncode == 0, patched.stderr
    fields = (
        "jsonpath={.status.containerStatuses[0].resources.limits.memory} {.status.containerStatuses[0].restartCount}"
    )
    until(lambda: real.kubectl("get", "pod", "web", "-o", fields, cluster=LOWER).stdout == "768Mi 0", "the resize")


def test_the_log_of_a_container_is_kept(real: Sandbox) -> None:
    """Kubectl logs shows the container's output."""
    assert real.kubectl("logs", "web", cluster=LOWER).stdout == "begun\n"


def test_a_pod_is_reachable_by_its_address(real: Sandbox) -> None:
    """The address works from this machine and from the pod itself."""
    address = real.kubectl("get", "pod", "web", "-o", "jsonpath={.status.podIP}", cluster=LOWER).stdout
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"page\n"
    connection.close()
    assert inside(real, "wget", "-q", "-O", "-", f"http://{address}/") == "page\n"


def test_a_pod_cannot_reach_other_networks(real: Sandbox) -> None:
    """It has no default route."""
    assert "default" not in inside(real, "ip", "route")


def test_kubectl_debug_works_in_the_pod(real: Sandbox) -> None:
    """An ephemeral container shares the pod's network, and its exit code is visible."""
    debug = ("debug", "-i", "web", f"--image={IMAGE}", "--image-pull-policy=IfNotPresent", "--quiet", "-c", "probe")
    command = real.kubectl_command(*debug, "--", "sh", cluster=LOWER)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write("wget -q -O - http://127.0.0.1/\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == "page\n"
        shell.communicate("exit 6\n", timeout=60)
    code = "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}"
    until(lambda: real.kubectl("get", "pod", "web", "-o", code, cluster=LOWER).stdout == "6", "the end of the probe")


def test_settings_of_the_machine_are_not_changed(real: Sandbox, tunables: dict[str, str]) -> None:
    """Kubelets set kernel parameters of the whole machine; this one finds them as it needs them."""
    assert settings() == tunables
    assert not any(Path(path).exists() for path in ("/run/containerd/containerd.sock", "/var/lib/cni", "/run/kubelet"))


def test_a_killed_node_can_be_restarted(real: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel ends all its processes with the first one; `up` restarts it, and its pods run again."""
    run(real, "again", SERVE)
    first = real.clusters[LOWER].pids["node"]
    family = {pid: processes.start_time(pid) for pid in descendants(first)}
    assert len(family) > 4
    real.kill(LOWER, "node")
    until(lambda: not alive(family), "the end of all of the node's processes")
    assert commands.status(real.directory) == 1
    assert commands.up(1, None, real.directory, real_node=True) == 0
    assert "the first with one real node" in capsys.readouterr().out
    count = "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}"
    until(
        lambda: real.kubectl("get", "pod", "again", "-o", count, cluster=LOWER).stdout == "1 true", "the pod runs again"
    )
    assert inside(real, "hostname", pod="again") == "again\n"


def alive(family: dict[int, int | None]) -> list[int]:
    """Return the processes that still run; a zombie does not count, because it belongs to no node any more."""
    return [pid for pid, started in family.items() if started is not None and processes.start_time(pid) == started]


def descendants(pid: int) -> list[int]:
    """Return the IDs of a process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += descendants(int(child))
    return found


def test_down_leaves_nothing(real: Sandbox) -> None:
    """No process, cgroup, network device, mount or file is left."""
    identity = real.state().identity
    mounts = Path("/proc/self/mounts").read_text()
    assert left(identity)
    assert commands.down(real.directory) == 0
    assert left(identity) == []
    assert Path("/proc/self/mounts").read_text() == mounts
    assert not real.directory.exists()


def test_a_killed_up_leaves_nothing_of_a_starting_node(possible: Path) -> None:
    """Everything that the node had started ends with `up`, even after a SIGKILL."""
    place = possible / "killed"
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    with subprocess.Popen([sys.executable, "-c", UP, str(place)], env=variables) as process:
        until(lambda: node_of(place), "the node's start")
        found = state.load(place)
        assert found is not None
        device = stop.DEVICES / stop.device(found.identity)
        until(device.exists, "the node's network device")
        held = open_directory(place)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    until_unlocked(held)
    assert left(found.identity) == []
    assert not place.exists()


def node_of(place: Path) -> bool:
    """Report whether the node of a sandbox has been started."""
    found = state.load(place)
    return found is not None and any("node" in cluster.processes for cluster in found.clusters.values())
