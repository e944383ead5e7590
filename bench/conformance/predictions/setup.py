"""The clusters for one prediction after the other: three lowers, an engine with its webhook, and a resource per case.

The nodes of a case offer a resource that no other case requests, so that capacities are small numbers. All other
changes of a case are undone after it. While a case is prepared, the engine's descheduler is disabled.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
import yaml

from bench.conformance.predictions.comparison import ObservedPod
from bench.kit.child_processes import Child, engine
from bench.kit.oracles import is_ready
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.sites import DEPLOYMENTS, MERGE, NODES, PODS, Manifest, Site, until
from bench.kit.workload import PROVIDER
from tensile.names import TRIED, VIRTUAL_POD
from tensile.objects import moment_of
from tensile.policy.descheduler.moves import DEADLOCK
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

A, B, C = LOWERS = ("lower-a", "lower-b", "lower-c")
THREE = Options(lowers=len(LOWERS), nodes=3)
LIMIT = 30.0
PATIENCE = 1.0
INTERVAL = "60s"
"""Longer than a case, so that one pass is compared with one plan."""
WAITED = 2.0
COLLECTIONS = (DEPLOYMENTS, "/apis/apps/v1/namespaces/{}/statefulsets", "/apis/batch/v1/namespaces/{}/jobs", PODS)
BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
Undo = Callable[[], Awaitable[object]]


class PredictionClusters:
    """A sandbox with an engine, for one case after the other; used with `async with`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        sites = {name: Site(cluster) for name, cluster in sandbox.clusters.items()}
        self.upper = sites.pop(UPPER)
        self.lowers = sites
        self.namespace = self.resource = ""
        self.policy: Manifest = {}
        self._maintained: dict[str, str] = {}
        self._undo: list[Undo] = []
        self._engine: Child
        self._open = AsyncExitStack()
        with socket.create_server(("127.0.0.1", 0)) as hook:
            self._hook: int = hook.getsockname()[1]

    async def __aenter__(self) -> "Self":
        for site in (self.upper, *self.lowers.values()):
            await self._open.enter_async_context(site)
        self.write()
        self._engine = engine(self.sandbox, self.sandbox.directory / "engine.log")
        await wait_until_nodes_usable(self.upper, len(LOWERS))
        await until(self._is_called, "the apiserver calls the webhook", LIMIT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self._engine.stop()
        await self._open.aclose()

    # The topology.

    def write(self, name: str = "topology.yaml", **policy: Any) -> Path:
        """Write a topology file atomically; `policy` is the descheduler's, in addition to that of the case."""
        found = yaml.safe_load((self.sandbox.directory / "topology.yaml").read_text())
        url = f"https://127.0.0.1:{self._hook}/mutate"
        found["webhook"] = {"enabled": True, "bind": "127.0.0.1", "port": self._hook, "url": url}
        first = {
            "interval": INTERVAL,
            "pendingLongerThan": f"{PATIENCE:g}s",
            "cooldown": "10m",
            "recreateBarePods": True,
        }
        found["descheduler"] = {**first, "enabled": False, **self.policy, **policy}
        for lower in found["lowers"]:
            lower["maintenance"] = self._maintained.get(lower["name"], "none")
        path = self.sandbox.directory / name
        fresh = path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(found, sort_keys=False))
        fresh.rename(path)
        return path

    async def maintain(self, lower: str, mode: str) -> None:
        """Put a lower under maintenance, and wait until its node is unschedulable."""
        self._maintained[lower] = mode
        self.write()
        await until(lambda: self._is_closed(lower), f"the node of {lower} is closed", LIMIT)

    async def _is_closed(self, lower: str) -> bool:
        return bool((await self.upper.call("GET", f"{NODES}/{lower}"))["spec"].get("unschedulable"))

    async def _is_called(self) -> bool:
        pod = {"metadata": {"name": "asked", "labels": {VIRTUAL_POD: "true"}}, "spec": _spec({}, {"disk": "ssd"})}
        found = await self.upper.call("POST", f"{PODS.format('default')}?dryRun=All", pod)
        return "annotations" in found["metadata"]

    # Cases.

    async def begin(self, name: str, policy: Manifest) -> None:
        """Begin a case with its own namespace and resource, and with the topology as it was."""
        self.namespace = f"{name}-{uuid4().hex[:4]}"
        self.resource = f"example.com/{self.namespace}"
        self.policy = policy
        self.write()
        await self.upper.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        await until(lambda: self.upper.items(account), f"{self.namespace} has its account", LIMIT)

    async def end(self) -> None:
        """Remove all that the case created, and undo its changes."""
        self._maintained, self.policy = {}, {}
        self.write()
        for collection in COLLECTIONS:
            await self.upper.call("DELETE", f"{collection.format(self.namespace)}?propagationPolicy=Background")
        for undo in reversed(self._undo):
            await undo()
        self._undo = []
        await until(self._is_empty, f"nothing is left of {self.namespace}", LIMIT)
        await self.upper.delete(f"/api/v1/namespaces/{self.namespace}")
        for lower in LOWERS:
            await self.edit(self.upper, f"{NODES}/{lower}", {"metadata": {"annotations": {TRIED: None}}})
        await wait_until_nodes_usable(self.upper, len(LOWERS))

    async def deadlocked(self) -> set[str]:
        """Return the pods of the case for which the engine has created an event that they fit no other lower."""
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=reason%3D{DEADLOCK}"
        return {one["involvedObject"]["name"] for one in await self.upper.items(path)}

    async def is_ending(self) -> bool:
        """Report whether a pod of the case is terminating."""
        return any("deletionTimestamp" in pod["metadata"] for pod in await self.pods())

    async def _is_empty(self) -> bool:
        sites = (self.upper, *self.lowers.values())
        return not [pod for site in sites for pod in await site.items(PODS.format(self.namespace))]

    async def edit(self, site: Site, path: str, body: Manifest, back: Manifest | None = None) -> None:
        """Change an object by a merge patch; `back` is the patch that undoes the change when the case ends."""
        await site.call("PATCH", path, body, MERGE)
        if back is not None:
            self._undo.append(lambda: site.call("PATCH", path, back, MERGE))

    # Capacity.

    async def offer(self, lower: str, *slots: int) -> None:
        """Set how much of the case's resource the nodes of a lower offer, and wait until its virtual node shows it."""
        for place, count in enumerate(slots, 1):
            path = f"{NODES}/{lower}-node-{place}/status"
            await self.edit(self.lowers[lower], path, self._amounts(str(count)), self._amounts(None))
        await self.offers(lower, sum(slots))

    async def offers(self, lower: str, total: int) -> None:
        """Wait until a virtual node offers that amount in all."""

        async def reports_it() -> bool:
            """Report whether the virtual node's allocatable has the amount."""
            node = await self.upper.call("GET", f"{NODES}/{lower}")
            return node["status"]["allocatable"].get(self.resource, "0") == str(total)

        await until(reports_it, f"{lower} offers {total}", LIMIT)

    def _amounts(self, count: str | None) -> Manifest:
        return {"status": {"capacity": {self.resource: count}, "allocatable": {self.resource: count}}}

    async def label(self, lower: str, place: int, **labels: str) -> None:
        """Label a real node."""
        back = {"metadata": {"labels": dict.fromkeys(labels)}}
        path = f"{NODES}/{lower}-node-{place}"
        await self.edit(self.lowers[lower], path, {"metadata": {"labels": labels}}, back)

    async def taint(self, lower: str, place: int) -> None:
        """Taint a real node."""
        taint = {"key": "example.com/special", "value": "yes", "effect": "NoSchedule"}
        path = f"{NODES}/{lower}-node-{place}"
        await self.edit(self.lowers[lower], path, {"spec": {"taints": [taint]}}, {"spec": {"taints": None}})

    async def stop_node(self, lower: str, place: int) -> None:
        """Delete a real node, which is created again after the case."""
        site, path = self.lowers[lower], f"{NODES}/{lower}-node-{place}"
        node = await site.call("GET", path)
        meta = {field: node["metadata"].get(field) for field in ("name", "labels", "annotations")}
        await site.delete(path)
        self._undo.append(lambda: site.call("POST", NODES, {**node, "metadata": meta}))

    # Pods.

    def template(self, app: str, slots: int, spec: Manifest | None = None) -> Manifest:
        """Return the template of pods that request an amount of the resource."""
        amounts = {self.resource: str(slots)}
        selector = (spec or {}).get("nodeSelector") or {}
        return {
            "metadata": {"labels": {"app": app, VIRTUAL_POD: "true"}},
            "spec": {**_spec(amounts, selector), **(spec or {})},
        }

    async def deploy(self, app: str, replicas: int, slots: int, spec: Manifest | None = None) -> str:
        """Create a Deployment, and return the UID of its ReplicaSet after its pods were created."""
        fields = {"replicas": replicas, "selector": {"matchLabels": {"app": app}}}
        body = {"metadata": {"name": app}, "spec": {**fields, "template": self.template(app, slots, spec)}}
        await self.upper.call("POST", DEPLOYMENTS.format(self.namespace), body)
        pods = await self._found(app, replicas)
        return str(pods[0]["metadata"]["ownerReferences"][0]["uid"])

    async def make(self, collection: str, body: Manifest) -> None:
        """Create any other object of the namespace."""
        await self.upper.call("POST", collection.format(self.namespace), body)

    async def runs(self, app: str, count: int) -> None:
        """Wait until that many pods run."""

        async def are_ready() -> bool:
            """Report whether that many pods are Ready."""
            return sum(map(is_ready, await self.pods(app))) == count

        await until(are_ready, f"{count} of {app} run", LIMIT)

    async def waits(self, app: str, count: int, lower: str) -> None:
        """Wait until that many pods have been unschedulable in a lower for long enough."""
        path = f"{PODS.format(self.namespace)}?labelSelector=app%3D{app}"

        async def are_refused() -> bool:
            """Report whether that many pods have been unschedulable for long enough."""
            since = [_refused_at(pod) for pod in await self.lowers[lower].items(path)]
            return sum(at > 0 and time.time() - at > WAITED for at in since) == count

        await until(are_refused, f"{count} of {app} wait in {lower}", LIMIT)

    async def pods(self, app: str = "") -> list[Manifest]:
        """Return the upper pods of the case."""
        return await self.upper.items(PODS.format(self.namespace) + (f"?labelSelector=app%3D{app}" if app else ""))

    async def seen(self) -> dict[str, ObservedPod]:
        """Return the pods as they are now, by name/UID."""
        return {f"{pod['metadata']['name']}/{pod['metadata']['uid']}": _seen(pod) for pod in await self.pods()}

    async def _found(self, app: str, count: int) -> list[Manifest]:
        found: list[Manifest] = []

        async def are_there() -> bool:
            """Report whether all pods exist."""
            found[:] = await self.pods(app)
            return len(found) == count

        await until(are_there, f"{count} of {app} are made", LIMIT)
        return found

    # Output of tensile.

    async def run_json(self, *arguments: str) -> Manifest:
        """Run a command of tensile, and return the JSON that it prints."""
        command = (sys.executable, "-m", "tensile", *arguments, "-o", "json")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        if process.returncode not in (0, 2):
            raise RuntimeError(f"{' '.join(arguments)}: {err.decode()}")
        document: Manifest = orjson.loads(out)
        return document


def _spec(amounts: Manifest, selector: Manifest) -> Manifest:
    container = {"name": "main", "image": "app:1", "resources": {"requests": amounts, "limits": amounts}}
    spec = {"containers": [container], "tolerations": [PROVIDER], "terminationGracePeriodSeconds": 1}
    return {**spec, **({"nodeSelector": selector} if selector else {})}


def _refused_at(pod: Manifest) -> float:
    """Return when a scheduler found no node for a pod, 0 if it did not fail to."""
    for one in pod["status"].get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False" and one.get("reason") == "Unschedulable":
            return moment_of(one["lastTransitionTime"]).timestamp()
    return 0.0


def _seen(pod: Manifest) -> ObservedPod:
    owners = pod["metadata"].get("ownerReferences") or ()
    owner = f"{owners[0]['kind']} {owners[0]['name']}" if owners else f"Pod {pod['metadata']['name']}"
    return ObservedPod(owner, pod["spec"].get("nodeName", ""), is_ready(pod))
