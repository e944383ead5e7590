"""A site where the commands of the documentation run as a reader runs them: a folder, a shell, three clusters.

The folder has the files that the pages assume: `topology.yaml`, `kubeconfigs/upper`, `kubeconfigs/lower-a` and
`kubeconfigs/lower-b`, `manifests/`, and `.venv/bin/tensile`; `tensile` and `kubectl` are on the PATH, and `kubectl`
without options uses the upper cluster.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from fences import ROOT, Fence
from sandbox_waiting import until

from tensile.sandbox import processes
from tensile.sandbox.sandbox import Sandbox

LIMIT = 90.0
LOOPBACK = "127.0.0.1"
CLUSTERS = ("upper", "lower-a", "lower-b")
KEPT = {"kube-system", "kube-public", "kube-node-lease"}
TOPOLOGY = """\
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
upper:
  kubeconfig: kubeconfigs/upper
lowers:
- name: lower-a
  kubeconfig: kubeconfigs/lower-a
- name: lower-b
  kubeconfig: kubeconfigs/lower-b
"""
WORKLOAD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: "web:1"}]
      tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]
"""
"""The workload that runs already if a page is about a reader's own pods."""
VOLUMES = """\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  storageClassName: standard
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  hostPath: {path: /disk}
"""
"""Storage of a lower cluster: the sandbox has no provisioner, so a volume exists already."""


class DocumentationShell:
    """The site; one for all pages, cleared after each page."""

    def __init__(self, root: Path, sandbox: Sandbox) -> None:
        self.root = root
        self.sandbox = sandbox
        self.state = root.parent / "state"
        self.background: list[subprocess.Popen[bytes]] = []
        self.is_used = False
        self.files = root.parent / "printed"
        kubelet, single = processes.choose([2, 1])
        self.kubelet, self.telemetry = kubelet.start, single.start
        self.files.mkdir()
        self._furnish()

    def _furnish(self) -> None:
        """Create the files that the pages assume."""
        programs = self.root.parent / "bin"
        programs.mkdir()
        kubectl = self.sandbox.kubectl_command()[0]
        for name, target in {"kubectl": kubectl, "tensile": f"{sys.executable} -m tensile"}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {target} "$@"\n')
            (programs / name).chmod(0o755)
        (self.root / ".venv").mkdir()
        (self.root / ".venv" / "bin").symlink_to(programs)
        (self.root / "manifests").symlink_to(ROOT / "manifests")
        (self.root / "kubeconfigs").mkdir()
        self.variables = {
            **{key: value for key, value in os.environ.items() if key != "KUBECONFIG"},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": str(self.root / "kubeconfigs" / "upper"),
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
        }

    def start_page(self) -> None:
        """Start a page: write the topology of the two clusters, and reset the state of the shell."""
        self.state.write_text("")
        for name, text in {"topology.yaml": TOPOLOGY, "workload.yaml": WORKLOAD, "volumes.yaml": VOLUMES}.items():
            self.write(name, text)
        for name in CLUSTERS:
            shutil.copy(f"{self.sandbox.directory / name}.kubeconfig", self.root / "kubeconfigs" / name)

    def write(self, name: str, text: str) -> None:
        """Write a file as a page shows it; a topology's ports and addresses become free ones of this machine.

        A topology in a subfolder is rendered for pods, and is written unchanged.
        """
        documents = list(yaml.safe_load_all(text)) if name.endswith(".yaml") else []
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        if path.parent == self.root and len(documents) == 1 and documents[0].get("kind") == "Topology":
            text = yaml.safe_dump(self._with_local_ports(documents[0]), sort_keys=False)
        path.write_text(text)

    def _with_local_ports(self, topology: dict[str, Any]) -> dict[str, Any]:
        here = {"bind": LOOPBACK, "port": self.kubelet, "nodeAddress": LOOPBACK}
        return {
            **topology,
            "kubelet": {**topology.get("kubelet", {}), **here},
            "telemetry": {**topology.get("telemetry", {}), "bind": LOOPBACK, "port": self.telemetry},
        }

    def run(self, fence: Fence) -> str:
        """Run a block until it ends and return its output; fail if its exit code differs from the page's."""
        text, code = self.run_script(fence.text)
        wanted = int(fence.directives.get("ends with", 0))
        assert code == wanted, f"{fence.place} ended with {code}, not with {wanted}:\n{fence.text}\n{text}"
        return text

    def run_script(self, text: str) -> tuple[str, int]:
        """Run a shell text with the exports and the working directory that the earlier ones left."""
        self.is_used = self.is_used or "kubectl" in text
        end = f'code=$?; {{ export -p; printf "cd %q\\n" "$PWD"; }} > {self.state}; exit $code'
        script = f"set -eu -o pipefail\n. {self.state}\ntrap '{end}' EXIT\n{text}"
        output = self.files / "block"
        with output.open("wb") as written:
            done = subprocess.run(timeout=LIMIT, check=False, **self._shell(script, written))
        return output.read_text(), done.returncode

    def start_in_background(self, text: str, ready: str) -> None:
        """Run a block in the background, and wait until a command succeeds."""
        script = f"set -eu\n. {self.state}\n{text}"
        log = self.files / f"background-{len(self.background)}"
        with log.open("wb") as written:
            process = subprocess.Popen(start_new_session=True, **self._shell(script, written))
        self.background.append(process)
        until(
            lambda: process.poll() is not None or self.run_script(ready)[1] == 0,
            lambda: f"{text}\n{log.read_text()}",
            LIMIT,
        )
        assert process.poll() is None, f"ended by itself:\n{text}\n{log.read_text()}"

    def _shell(self, script: str, written: BinaryIO) -> dict[str, Any]:
        """Return the arguments of a process that runs a script in a shell there, with its output in a file."""
        place = {"cwd": self.root, "env": self.variables}
        return {
            "args": ["bash", "-c", script],
            **place,
            "stdin": subprocess.DEVNULL,
            "stdout": written,
            "stderr": written,
        }

    def start_engine(self) -> None:
        """Run the engine for a page that requires it."""
        nodes = "node/lower-a node/lower-b"
        self.start_in_background(
            "tensile run -f topology.yaml", f"kubectl wait --for=condition=Ready {nodes} --timeout=1s"
        )

    def clear(self) -> None:
        """Remove a page's objects from the upper while its engine runs, then end its background processes."""
        if not self.is_used:
            return
        self.is_used = False
        try:
            self._clear_workload()
        finally:
            self.end()
        self._kubectl("delete", "nodes", "-l", "type=virtual-kubelet", "--ignore-not-found")
        self._kubectl("delete", "mutatingwebhookconfigurations,storageclasses", "--all")
        configmaps = [f"tensile-demo-{what}" for what in ("status", "history")]
        self._kubectl("-n", "kube-system", "delete", "configmaps", *configmaps, "--ignore-not-found")

    def _clear_workload(self) -> None:
        kinds = "deployments,statefulsets,jobs,pods,persistentvolumeclaims,poddisruptionbudgets"
        for name in self._names("namespaces"):
            if name not in KEPT:
                self._kubectl("-n", name, "delete", kinds, "--all", "--wait=true" if self.background else "--force")
            if name not in {"default", *KEPT}:
                self._kubectl("delete", "namespace", name, "--wait=true", "--timeout=60s")

    def _names(self, kind: str) -> list[str]:
        return self._kubectl("get", kind, "-o", "jsonpath={.items[*].metadata.name}").split()

    def _kubectl(self, *arguments: str) -> str:
        return self.sandbox.kubectl(*arguments).stdout

    def end(self) -> None:
        """End the background processes as Ctrl-C does; each has to end by itself."""
        ended, self.background = self.background, []
        for process in ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        for process in ended:
            try:
                process.wait(20)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        logs = [(self.files / f"background-{place}").read_text() for place, _ in enumerate(ended)]
        assert [text for text in logs if "Traceback" in text] == []


def missing(shown: str, printed: str) -> list[str]:
    """Return the lines of a shown output that were not printed; spaces count as one, … matches any text."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    return [line for line in shown.splitlines() if line.strip() and not any(_alike(line, one) for one in lines)]


def _alike(shown: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in " ".join(shown.split()).split("…"))
    return re.fullmatch(pattern, printed) is not None


@contextlib.contextmanager
def documentation_shell(root: Path) -> Iterator[DocumentationShell]:
    """Yield a site with a sandbox in its `.tensile-sandbox`, where `tensile sandbox` looks for it."""
    place = root / "work"
    place.mkdir()
    with Sandbox.start(place / ".tensile-sandbox") as sandbox:
        shell = DocumentationShell(place, sandbox)
        try:
            yield shell
        finally:
            shell.end()
