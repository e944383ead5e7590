"""An upper pod and its lower pod on real control planes, and kubectl between them."""

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from streamkit import KubectlResult, kubectl_environment

from bench.kit.spareports import spare_ports

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tensile.sandbox.sandbox import Sandbox

LOWER = "lower-a"
POD = "web"
CONTAINER = "main"
WEBSOCKET, SPDY = "websocket", "spdy"
EXTENDS = {"declaredFeatures": ["ExtendWebSocketsToKubelet"]}


class TwinPods:
    """A namespace with two upper pods on two virtual nodes, one of which supports WebSockets, and one lower pod."""

    def __init__(self, sandbox: "Sandbox") -> None:
        self.sandbox = sandbox
        self.directory: Path = sandbox.directory
        self.namespace = f"kubelet-{uuid4().hex[:8]}"
        self.nodes = {kind: f"{self.namespace}-{kind}" for kind in (WEBSOCKET, SPDY)}
        self.ports = dict(zip(self.nodes, spare_ports(2), strict=True))
        self.logs: Path = sandbox.clusters[LOWER].logs / self.namespace / POD / f"{CONTAINER}.log"

    def create(self) -> None:
        """Create namespaces, nodes and pods, and wait until the lower pod runs."""
        for cluster in ("upper", LOWER):
            self.apply(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
            self.check_output(cluster, "-n", self.namespace, "wait", "--for=create", "serviceaccount/default")
        for kind in self.nodes:
            self._create_node(kind)
            self.apply("upper", self._pod(kind, {"nodeName": self.nodes[kind]}))
            running = ("--subresource=status", "-p", '{"status": {"phase": "Running"}}')
            self.check_output("upper", "-n", self.namespace, "patch", "pod", kind, *running)
        self.apply(LOWER, self._pod(POD, {}))
        self.check_output(LOWER, "-n", self.namespace, "wait", "--for=jsonpath={.status.phase}=Running", f"pod/{POD}")

    def delete(self) -> None:
        """Delete everything that `create` created."""
        for kind, node in self.nodes.items():
            self.check_output("upper", "-n", self.namespace, "delete", "pod", kind, "--force", "--wait=false")
            self.check_output("upper", "delete", "node", node)
        for cluster in ("upper", LOWER):
            self.check_output(cluster, "delete", "namespace", self.namespace, "--wait=false")

    def apply(self, cluster: str, manifest: dict[str, Any]) -> None:
        """Create an object."""
        self.check_output(cluster, "create", "-f", "-", stdin=json.dumps(manifest))

    def check_output(self, cluster: str, *arguments: str, stdin: str = "") -> str:
        """Run kubectl, require that it succeeds, and return its output."""
        done: subprocess.CompletedProcess[str] = self.sandbox.kubectl(*arguments, cluster=cluster, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def count_lower_requests(self, since: str) -> int:
        """Count the requests for pod subresources that the lower's apiserver has received since a moment in UTC.

        A stream is recorded when it ends, so the time of its start shows to which test it belongs.
        """
        lines = self.sandbox.clusters[LOWER].audit_log.read_text().splitlines()
        records = (json.loads(line) for line in lines)
        found = (each.get("objectRef", {}) for each in records if each["requestReceivedTimestamp"] >= since)
        return sum(each.get("namespace") == self.namespace and "subresource" in each for each in found)

    def _create_node(self, kind: str) -> None:
        name = self.nodes[kind]
        self.apply("upper", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.ports[kind]}},
            **(EXTENDS if kind == WEBSOCKET else {}),
        }
        patch = json.dumps({"status": status})
        self.check_output("upper", "patch", "node", name, "--subresource=status", "--type=merge", "-p", patch)

    def _pod(self, name: str, more: dict[str, Any]) -> dict[str, Any]:
        spec = {
            "containers": [{"name": CONTAINER, "image": "none"}],
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            **more,
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        }

    async def start(
        self, *arguments: str, cluster: str = "upper", speaks: str = WEBSOCKET
    ) -> asyncio.subprocess.Process:
        """Start kubectl in the namespace, with pipes, over WebSocket or SPDY."""
        command = self.sandbox.kubectl_command("-n", self.namespace, *arguments, cluster=cluster)
        pipe, variables = asyncio.subprocess.PIPE, kubectl_environment(websocket=speaks == WEBSOCKET)
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=variables)

    async def run(
        self, *arguments: str, cluster: str = "upper", speaks: str = WEBSOCKET, stdin: bytes = b""
    ) -> KubectlResult:
        """Run kubectl until it ends."""
        process = await self.start(*arguments, cluster=cluster, speaks=speaks)
        async with asyncio.timeout(120):
            out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return KubectlResult(process.returncode, out, err.decode())


async def digest(stream: asyncio.StreamReader, length: int) -> str:
    """Read so many bytes of a stream; return their SHA-256."""
    sums = hashlib.sha256()
    while length and (piece := await stream.read(min(length, 1 << 20))):
        length -= len(piece)
        sums.update(piece)
    return sums.hexdigest()
