"""The clusters for saved plans: two lowers, no engine, a topology file, and the program in this process.

A team that applies saved plans runs no engine between the review and `apply` (docs/plans.md). So only a case changes
what the plan depends on, and every write of the program is one of `apply`.
"""

import asyncio
import io
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from bench.kit import audit
from bench.kit.sites import MERGE, NODES, Manifest, Refused, Site, until
from tensile.cli.main import main
from tensile.names import FIELD_MANAGER, OWNER, owner_of
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

A, B = LOWERS = ("lower-a", "lower-b")
GROUND = Options(lowers=len(LOWERS), nodes=2)
AGENT = "tensile/"
LIMIT = 60.0
UNWRITTEN = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews", "tokenreviews")
"""Resources whose creation is a query: none of them is stored."""
ALL = ["PV", "Service", "ServiceAccount", "RBAC"]
EVERYWHERE = [{"operator": "Exists"}]
"""Tolerations that keep pods from being evicted from nodes whose engine is down."""
Document = dict[str, Any]


class Done(NamedTuple):
    """The exit code and output of a run of the program."""

    code: int
    out: str
    err: str


class PlanClusters:
    """A sandbox and a topology file for one case after the other; used with `async with`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        sites = {name: Site(cluster) for name, cluster in sandbox.clusters.items()}
        self.sites = dict(sites)
        self.upper = sites.pop(UPPER)
        self.lowers = sites
        self.directory = sandbox.directory
        self.file = self.directory / "stale.yaml"
        self.plan = self.directory / "saved.plan"
        self.mark = ""
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "Self":
        for site in self.sites.values():
            await self._open.enter_async_context(site)
        found = yaml.safe_load((self.directory / "topology.yaml").read_text())
        # The guard is not tested here: it would count objects that are deleted while no engine runs.
        self.write({**found, "controllers": ALL, "guard": {"maxDeletes": 1000, "maxDeletePercent": 100}})
        system = await self.upper.call("GET", "/api/v1/namespaces/kube-system")
        self.mark = owner_of(system["metadata"]["uid"], found["name"]).mark
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        await self._open.aclose()

    # The topology and the program.

    def read(self) -> Document:
        """Return the topology."""
        found: Document = yaml.safe_load(self.file.read_text())
        return found

    def write(self, topology: Document) -> None:
        """Write the topology file."""
        self.file.write_text(yaml.safe_dump(topology, sort_keys=False))

    async def tensile(self, *arguments: str) -> Done:
        """Run the program in a thread of this process, outside of this event loop."""
        return await asyncio.to_thread(_ran, arguments)

    async def save(self, *arguments: str) -> None:
        """Save the plan of the topology file."""
        done = await self.tensile("plan", "-f", str(self.file), "--out", str(self.plan), *arguments)
        if done.code not in (0, 1, 2) or not self.plan.exists():
            raise RuntimeError(f"plan: {done.err}")

    async def apply(self, *arguments: str) -> tuple[Done, list[str]]:
        """Apply the saved plan, and return the result and a description of each write."""
        begun = self.position()
        done = await self.tensile("apply", str(self.plan), "--log-level", "error", *arguments)
        return done, self.written(begun)

    def position(self) -> dict[str, int]:
        """Return the end of each cluster's audit log."""
        return {name: audit.position(site.audit_log) for name, site in self.sites.items()}

    def written(self, begun: Mapping[str, int]) -> list[str]:
        """Return a description of each write of the program since then."""
        return [
            f"{one['verb']} {name}: {one['requestURI']}"
            for name, site in self.sites.items()
            for one in audit.writes(audit.read(site.audit_log, begun[name]), AGENT, without=UNWRITTEN)
        ]

    async def converge(self) -> None:
        """Bring all clusters to the state of the topology file."""
        done = await self.tensile("apply", "-f", str(self.file), "--yes")
        if "Applied" not in done.out + done.err:
            raise RuntimeError(f"apply: {done.err}")

    # Objects.

    async def create(self, cluster: str, collection: str, name: str, body: Manifest) -> None:
        """Create an object in a collection of a cluster."""
        meta = {"name": name, **body.get("metadata", {})}
        await self.sites[cluster].call("POST", collection, {**body, "metadata": meta})

    async def patch(self, cluster: str, path: str, body: Manifest) -> None:
        """Change an object by a merge patch."""
        await self.sites[cluster].call("PATCH", path, body, MERGE)

    async def delete(self, cluster: str, path: str) -> None:
        """Delete an object without a grace period, and wait until it no longer exists."""
        site = self.sites[cluster]
        await site.delete(path, 0)
        await until(lambda: _is_gone(site, path), f"{cluster}: {path} is gone", LIMIT)

    async def recreate(self, cluster: str, path: str, *, marked: bool = True) -> None:
        """Delete an object, and create it again as it was; without labels and annotations unless `marked`."""
        found = await self.sites[cluster].call("GET", path)
        await self.delete(cluster, path)
        kept = ("name", "labels", "annotations", "ownerReferences") if marked else ("name",)
        meta = {field: found["metadata"][field] for field in kept if field in found["metadata"]}
        body = {name: value for name, value in found.items() if name not in ("status", "metadata")}
        for field in ("clusterIP", "clusterIPs"):
            body.get("spec", {}).pop(field, None)
        # Marks count only if the engine's field manager has set them, as on a copy that the engine itself created.
        is_ours = marked and (cluster != UPPER or path.startswith(NODES))
        manager = f"?fieldManager={FIELD_MANAGER}" if is_ours else ""
        await self.sites[cluster].call("POST", path.rpartition("/")[0] + manager, {**body, "metadata": meta})

    async def namespace(self, name: str, **labels: str) -> None:
        """Create an upper namespace."""
        await self.create(UPPER, "/api/v1/namespaces", name, {"metadata": {"labels": labels}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts"
        await until(lambda: self.upper.items(account), f"{name} has its account", LIMIT)

    async def run_in(self, namespace: str, name: str, lower: str, **spec: Any) -> None:
        """Bind a pod to the node of a lower."""
        container = {"name": "main", "image": "app:1", **spec.pop("container", {})}
        body = {"spec": {"nodeName": lower, "tolerations": EVERYWHERE, "containers": [container], **spec}}
        await self.create(UPPER, f"/api/v1/namespaces/{namespace}/pods", name, body)

    async def below(self, lower: str, namespace: str) -> None:
        """Create a namespace in a lower as another client, unless it exists, and wait until it accepts pods."""
        with suppress(Refused):
            await self.create(lower, "/api/v1/namespaces", namespace, {})
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        await until(lambda: self.lowers[lower].items(account), f"{namespace} has its account in {lower}", LIMIT)

    async def unmark(self, cluster: str, path: str) -> None:
        """Remove the owner label from a copy."""
        await self.patch(cluster, path, {"metadata": {"labels": {OWNER: None}}})

    async def scale(self, lower: str, share: float) -> None:
        """Set the cpu of a lower's nodes to a share of the sandbox's amount."""
        for node in await self.lowers[lower].items(NODES):
            amounts = {"cpu": f"{round(32_000 * share)}m"}
            body = {"status": {"capacity": amounts, "allocatable": amounts}}
            await self.patch(lower, f"{NODES}/{node['metadata']['name']}/status", body)

    def kubeconfig(self, cluster: str) -> Path:
        """Return the kubeconfig of a cluster."""
        return self.directory / f"{cluster}.kubeconfig"


async def _is_gone(site: Site, path: str) -> bool:
    with suppress(Refused):
        await site.call("GET", path)
        return False
    return True


def _ran(arguments: Sequence[str]) -> Done:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    sys.stdout.flush()
    return Done(code, out.getvalue(), err.getvalue())
