"""Prepares a topology to be broken, on a sandbox that may have other users, and runs `tensile doctor` on it."""

import asyncio
import os
import shutil
import sys
from base64 import b64encode
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import orjson
import yaml

from bench.kit import topologies
from bench.kit.child_processes import Child
from bench.kit.faultproxy.tls import signer_of
from bench.kit.sites import Manifest, Site
from tensile.names import owner_of
from tensile.sandbox.credentials import ADMINISTRATORS, Authority
from tensile.sandbox.processes import choose
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

A, B = "lower-a", "lower-b"
LOWERS = (A, B)
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_YEAR = timedelta(days=365)


class Diagnosis(NamedTuple):
    """The exit code of doctor, its findings as JSON, and how many seconds it took."""

    code: int
    document: dict[str, Any]
    seconds: float

    def findings(self, level: str) -> list[tuple[str, str, str, str]]:
        """Return all findings of a level: cluster, check, what was found, and the advice."""
        return [
            (cluster["name"] or UPPER, one["check"], one["what"], "\n".join(one["advice"]))
            for cluster in self.document["clusters"]
            for one in cluster["findings"]
            if one["level"] == level
        ]


class TopologyUnderTest:
    """Used with `async with`; everything that it created is removed at the end.

    `topology` is the content of the file to be written. A setup adds to `open` what has to be closed with it.
    """

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self.sandbox = sandbox
        self.directory = directory
        self.mark = uuid4().hex[:8]
        self.user = f"doctor-{self.mark}"
        self.nodes = {name: f"doctor-{self.mark}-{name[-1]}" for name in LOWERS}
        self.sites: dict[str, Site] = {}
        self.open = AsyncExitStack()
        self.topology: Manifest = {}
        self.uid = ""

    async def __aenter__(self) -> "Self":
        for name in (UPPER, *LOWERS):
            self.sites[name] = await self.open.enter_async_context(Site(self.sandbox.clusters[name]))
            self.credential(name)
        for name in ("kubelet.crt", "kubelet.key"):
            shutil.copy(self.sandbox.directory / name, self.directory)
        self.uid = (await self.upper.call("GET", "/api/v1/namespaces/kube-system"))["metadata"]["uid"]
        self.topology = topologies.topology_of(self.user, self.nodes, choose([4])[0])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        await self.open.aclose()

    @property
    def upper(self) -> Site:
        """The upper cluster."""
        return self.sites[UPPER]

    @property
    def owner(self) -> str:
        """The mark of this topology's objects."""
        return owner_of(self.uid, self.topology["name"]).mark

    # Files.

    def pki(self, name: str) -> Path:
        """Return the folder of a cluster's keys."""
        return self.sandbox.clusters[name].audit_log.parent / "pki"

    def signer(self, name: str, *, ago: timedelta = timedelta()) -> Authority:
        """Return a cluster's authority, with its clock set back by `ago`."""
        return replace(signer_of(self.pki(name)), now=datetime.now(UTC) - ago)

    def credential(
        self, name: str, *, groups: tuple[str, ...] = (ADMINISTRATORS,), ago: timedelta | None = None
    ) -> None:
        """Write the kubeconfig of a cluster for the user of this topology, signed `ago` in the past."""
        text = topologies.kubeconfig(self.sandbox.clusters[name], self.user, groups, ago=ago)
        (self.directory / f"{name}.kubeconfig").write_text(text)

    def expire(self, name: str) -> None:
        """Issue an expired certificate to the user."""
        self.credential(name, ago=2 * _YEAR)

    def edit(self, name: str, *, user: Manifest | None = None, **cluster: str) -> None:
        """Change a kubeconfig: its user, or fields of its cluster."""
        path = self.directory / f"{name}.kubeconfig"
        found = yaml.safe_load(path.read_text())
        found["clusters"][0]["cluster"].update({key.replace("_", "-"): value for key, value in cluster.items()})
        if user is not None:
            found["users"][0]["user"] = user
        path.write_text(yaml.safe_dump(found))

    def authority(self, name: str) -> str:
        """Return a cluster's CA in the form that kubeconfigs contain."""
        return b64encode((self.pki(name) / "ca.crt").read_bytes()).decode()

    def put(self, name: str, content: bytes) -> str:
        """Write a file beside the topology, and return its name."""
        (self.directory / name).write_bytes(content)
        return name

    def lower(self, name: str) -> Manifest:
        """Return a lower's entry of the topology."""
        found: Manifest = next(one for one in self.topology["lowers"] if one["name"] == name)
        return found

    # Clusters.

    async def make(self, cluster: str, path: str, body: Manifest) -> Manifest:
        """Create an object, which is deleted in the end."""
        made = await self.sites[cluster].call("POST", path, body)
        self.open.push_async_callback(self.sites[cluster].delete, f"{path}/{body['metadata']['name']}")
        return made

    async def grant(self, cluster: str, rules: list[Manifest]) -> None:
        """Grant the user these rights only."""
        self.credential(cluster, groups=())
        await self.make(cluster, ROLES, {"metadata": {"name": self.user}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.user}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.user}
        await self.make(cluster, BINDINGS, {"metadata": {"name": self.user}, "roleRef": role, "subjects": [subject]})

    def start_engine(self) -> Child:
        """Run the topology as it is now; the engine ends with the `async with` block."""
        self.save()
        arguments = ["tensile", "run", "-f", str(self.directory / "topology.yaml"), "--log-format", "json"]
        child = Child(arguments, self.sandbox, self.directory / "engine.log")
        self.open.push_async_callback(self._clear)
        self.open.callback(child.stop)
        return child

    async def _clear(self) -> None:
        """Remove the nodes that an engine created."""
        for node in self.nodes.values():
            await self.upper.delete(f"/api/v1/nodes/{node}")

    # Doctor.

    def save(self) -> Path:
        """Write the topology file."""
        return topologies.save(self.topology, self.directory)

    async def diagnosed(self) -> Diagnosis:
        """Run doctor, and return its diagnosis."""
        loop = asyncio.get_running_loop()
        begin, pipe = loop.time(), asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "tensile", "doctor", "-o", "json", "-f", str(self.save()))
        variables = {key: value for key, value in os.environ.items() if key not in ("POD_IP", "VKUBELET_POD_IP")}
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=variables)
        out, err = await process.communicate()
        assert process.returncode is not None
        assert out, err.decode()
        return Diagnosis(process.returncode, orjson.loads(out), loop.time() - begin)
