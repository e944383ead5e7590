"""The clusters for one edit after the other: two lowers with storage, an engine, and workloads in lower-a.

The topology of a case is that of the sandbox with the case's edits. To start pods in one lower, the nodes of the others
are unschedulable while the pods are scheduled, so that later nothing keeps the pods from moving.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aiohttp
import orjson
import yaml

from bench.conformance.costs.comparison import SeenPod, State
from bench.kit import audit
from bench.kit.child_processes import Child, engine
from bench.kit.oracles import is_ready
from bench.kit.participants import is_usable
from bench.kit.sites import AWAY, DEPLOYMENTS, MERGE, NODES, PODS, Manifest, NotInTime, Site, until
from bench.kit.workload import PROVIDER
from tensile.names import OWNER, UPPER_UID, owner_of
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

A, B = LOWERS = ("lower-a", "lower-b")
GROUND = Options(lowers=len(LOWERS), nodes=2, addons=True)
LIMIT = 60.0
STATEFUL_SETS = "/apis/apps/v1/namespaces/{}/statefulsets"
DAEMON_SETS = "/apis/apps/v1/namespaces/{}/daemonsets"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
CLAIMS = "/api/v1/namespaces/{}/persistentvolumeclaims"
SERVICES = "/api/v1/namespaces/{}/services"
ACCOUNTS = "/api/v1/namespaces/{}/serviceaccounts"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
COLLECTIONS = (DAEMON_SETS, DEPLOYMENTS, STATEFUL_SETS, JOBS, PODS, SERVICES, CLAIMS, BUDGETS)
KEPT = {
    "claims": CLAIMS,
    "services": SERVICES,
    "ServiceAccounts": ACCOUNTS,
    "ConfigMaps": "/api/v1/namespaces/{}/configmaps",
    "Secrets": "/api/v1/namespaces/{}/secrets",
}
"""The collections of copies that pods need in a lower cluster."""
Document = dict[str, Any]
Holds = Callable[[Manifest], object]
Edit = Callable[[Document, list[str]], None]
"""Changes a topology in place; its second argument is the namespaces of the case."""


class CostClusters:
    """A sandbox with an engine, for one case after the other; used with `async with`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        sites = {name: Site(cluster) for name, cluster in sandbox.clusters.items()}
        self.upper = sites.pop(UPPER)
        self.lowers = sites
        self.namespaces: list[str] = []
        self.topology: Document = yaml.safe_load(self.path.read_text())
        self.budgets: list[Manifest] = []
        self._basis = deepcopy(self.topology)
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._since = 0
        self._mark = ""
        self._engine: Child
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "Self":
        for site in (self.upper, *self.lowers.values()):
            await self._open.enter_async_context(site)
        self._http = await self._open.enter_async_context(aiohttp.ClientSession())
        system = await self.upper.call("GET", "/api/v1/namespaces/kube-system")
        self._mark = owner_of(system["metadata"]["uid"], self.topology["name"]).mark
        self._engine = engine(self.sandbox, self.sandbox.directory / "engine.log")
        await self.apply()
        await self._until_nodes(list(LOWERS))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self._engine.stop()
        await self._open.aclose()

    # The topology.

    @property
    def path(self) -> Path:
        """The topology file of the engine."""
        return self.sandbox.directory / "topology.yaml"

    def with_edits(self, *edits: Edit) -> Document:
        """Return the topology in force with edits."""
        found = deepcopy(self.topology)
        for edit in edits:
            edit(found, self.namespaces)
        return found

    async def apply(self, topology: Document | None = None) -> None:
        """Put a topology in force (None: that of the sandbox), and return when the engine has accepted it."""
        self.topology = topology or deepcopy(self._basis)
        data = _written(self.topology)
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.rename(self.path)
        digest = sha256(data).hexdigest()

        async def is_in_force() -> bool:
            """Report whether the engine's status names this topology as the accepted one."""
            with suppress(*AWAY):
                async with self._http.get(f"http://127.0.0.1:{self.topology['telemetry']['port']}/status") as answer:
                    document = orjson.loads(await answer.read())
                    return bool((document.get("accepted") or {}).get("sha256") == digest)
            return False

        await until(is_in_force, "the topology is in force", LIMIT)

    async def planned(self, topology: Document) -> Document:
        """Return the output of `tensile plan` for a topology, as JSON, also if it refuses a part of it."""
        path = self.path.with_name("plan.yaml")
        path.write_bytes(_written(topology))
        command = (sys.executable, "-m", "tensile", "plan", "-f", str(path), "-o", "json")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        if process.returncode not in (0, 1, 2) or not out:
            raise NotInTime(f"no plan: {err.decode()}")
        document: Document = orjson.loads(out)
        return document

    # Cases.

    async def begin(self, *edits: Edit) -> None:
        """Begin a case on the topology of the sandbox with edits, and with a namespace of its own."""
        if edits:
            await self.apply(self.with_edits(*edits))
            await self._until_nodes([one.get("node", {}).get("name", one["name"]) for one in self.topology["lowers"]])
        self.namespaces = []
        await self.add_namespace()

    async def add_namespace(self) -> None:
        """Add a namespace to the case, in which all later objects are created."""
        name = f"cost-{uuid4().hex[:6]}"
        await self.upper.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.namespaces.append(name)
        await until(lambda: self.upper.items(ACCOUNTS.format(name)), f"{name} has its account", LIMIT)

    @property
    def namespace(self) -> str:
        """The latest namespace of the case."""
        return self.namespaces[-1]

    async def end(self) -> None:
        """Remove all that the case created, and restore the topology."""
        for task in self._streams.values():
            task.cancel()
        self._streams = {}
        await self.apply()
        for namespace in self.namespaces:
            for collection in COLLECTIONS:
                await self.upper.call("DELETE", f"{collection.format(namespace)}?propagationPolicy=Background")
            await until(lambda namespace=namespace: self._is_empty(namespace), f"{namespace} is empty", LIMIT)
            await self.upper.delete(f"/api/v1/namespaces/{namespace}")
        await self._until_nodes(list(LOWERS))

    async def _is_empty(self, namespace: str) -> bool:
        sites = (self.upper, *self.lowers.values())
        found = [one for site in sites for kind in (PODS, CLAIMS) for one in await site.items(kind.format(namespace))]
        return not found

    async def _until_nodes(self, names: list[str]) -> None:
        """Wait until exactly these nodes exist and accept pods."""

        async def are_there() -> bool:
            """Report whether exactly these nodes exist, and all are usable."""
            nodes = await self.upper.items(NODES)
            usable = {one["metadata"]["name"] for one in nodes if is_usable(one) and _is_open(one)}
            return usable == set(names) and len(nodes) == len(names)

        await until(are_there, f"nodes {', '.join(names)}", LIMIT)

    # Workloads.

    async def make(self, collection: str, name: str, body: Manifest) -> None:
        """Create an object in the namespace."""
        whole = {**body, "metadata": {"name": name, **body.get("metadata", {})}}
        await self.upper.call("POST", collection.format(self.namespace), whole)

    async def run_in(self, lower: str, app: str, count: int, made: Awaitable[None], holds: Holds = is_ready) -> None:
        """Create a workload, and wait until that many of its pods run in one lower, or reach another state."""
        others = [one["metadata"]["name"] for one in await self.upper.items(NODES)]
        node = next(one for one in self.topology["lowers"] if one["name"] == lower).get("node", {}).get("name", lower)
        others.remove(node)
        for other in others:
            await self.upper.call("PATCH", f"{NODES}/{other}", {"spec": {"unschedulable": True}}, MERGE)
        await made

        async def all_run() -> bool:
            """Report whether all pods of the workload have reached the state."""
            found = await self.upper.items(f"{PODS.format(self.namespace)}?labelSelector=app%3D{app}")
            return len(found) == count and all(map(holds, found))

        await until(all_run, f"{count} of {app} run in {lower}", LIMIT)
        for other in others:
            await self.upper.call("PATCH", f"{NODES}/{other}", {"spec": {"unschedulable": None}}, MERGE)

    async def until_counted(self, budget: str, allowed: int) -> None:
        """Wait until a budget allows that many disruptions."""
        path = f"{BUDGETS.format(self.namespace)}/{budget}"

        async def is_counted() -> bool:
            """Report whether the budget's status allows that many disruptions."""
            status = (await self.upper.call("GET", path)).get("status") or {}
            return bool(status.get("expectedPods")) and status.get("disruptionsAllowed") == allowed

        await until(is_counted, f"budget {budget} allows {allowed}", LIMIT)

    # Observations.

    async def note(self) -> None:
        """Begin to observe: store the audit log's end and the budgets, and follow the log of every ready pod."""
        self._since = audit.position(self.upper.audit_log)
        self.budgets = [one for name in self.namespaces for one in await self.upper.items(BUDGETS.format(name))]
        for namespace in self.namespaces:
            for pod in await self.upper.items(PODS.format(namespace)):
                if is_ready(pod):
                    await self._follow(namespace, pod["metadata"]["name"])

    def evicted(self) -> set[str]:
        """Return the pods (namespace/name) that were evicted since then."""
        records = audit.read(self.upper.audit_log, self._since)
        evictions = [one for one in records if (one.get("objectRef") or {}).get("subresource") == "eviction"]
        return {
            f"{one['objectRef']['namespace']}/{one['objectRef']['name']}"
            for one in evictions
            if one["stage"] == "ResponseComplete" and one["responseStatus"]["code"] == 201  # noqa: PLR2004 - Created
        }

    async def state(self) -> State:
        """Return the state of all clusters."""
        pods: dict[str, SeenPod] = {}
        endpoints: dict[str, frozenset[str]] = {}
        ours: dict[str, set[tuple[str, str, str]]] = {kind: set() for kind in KEPT}
        for namespace in self.namespaces:
            below = {name: await self._below(site, namespace) for name, site in self.lowers.items()}
            for pod in await self.upper.items(PODS.format(namespace)):
                name = f"{namespace}/{pod['metadata']['name']}"
                pods[name] = _seen(
                    pod, [one[pod["metadata"]["uid"]] for one in below.values() if pod["metadata"]["uid"] in one]
                )
            endpoints |= {f"{namespace}/{name}": found for name, found in (await self._endpoints(namespace)).items()}
            for kind, collection in KEPT.items():
                for lower, site in self.lowers.items():
                    found = await self._ours(site, collection, namespace)
                    ours[kind] |= {(lower, namespace, one["metadata"]["name"]) for one in found}
        cut = frozenset(name for name, task in self._streams.items() if task.done())
        kept = {kind: frozenset(names) for kind, names in ours.items()}
        return State(pods, endpoints, cut, kept)

    async def _below(self, site: Site, namespace: str) -> dict[str, Manifest]:
        """Return this topology's pods of a namespace in a lower, by the UID of their upper pod."""
        return {one["metadata"]["annotations"][UPPER_UID]: one for one in await self._ours(site, PODS, namespace)}

    async def _ours(self, site: Site, collection: str, namespace: str) -> list[Manifest]:
        """Return this topology's objects of an upper namespace in a lower, with either mapping of namespaces."""
        query = f"?labelSelector={OWNER}%3D{self._mark}"
        return [one for name in self._mapped(namespace) for one in await site.items(collection.format(name) + query)]

    async def _endpoints(self, namespace: str) -> dict[str, frozenset[str]]:
        """Return the ready endpoints by Service, with the pod's UID, because a new pod may reuse an address."""
        found: dict[str, set[str]] = {}
        for one in await self.upper.items(SLICES.format(namespace)):
            service = found.setdefault(one["metadata"]["labels"]["kubernetes.io/service-name"], set())
            for endpoint in one.get("endpoints") or ():
                if endpoint["conditions"].get("ready"):
                    service |= {f"{address} {endpoint['targetRef']['uid']}" for address in endpoint["addresses"]}
        return {name: frozenset(endpoints) for name, endpoints in found.items()}

    async def _follow(self, namespace: str, pod: str) -> None:
        """Follow the log of a pod through the upper cluster, until it ends."""
        for name in self._mapped(namespace):
            for site in self.lowers.values():
                log = site.logs / name / pod / "main.log"
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text("2026-01-01T00:00:00.000000000Z stdout F begun\n")
        begun = asyncio.Event()

        async def read() -> None:
            """Read the log to its end."""
            with suppress(*AWAY):
                async with self.upper.session.get(f"{PODS.format(namespace)}/{pod}/log?follow=true") as answer:
                    while answer.ok and await answer.content.readline():
                        begun.set()

        async def has_begun() -> bool:
            """Report whether the first line was received."""
            return begun.is_set()

        self._streams[f"{namespace}/{pod}"] = asyncio.create_task(read())
        await until(has_begun, f"the log of {namespace}/{pod}", LIMIT)

    def _mapped(self, namespace: str) -> tuple[str, str]:
        """Return the names that an upper namespace may have in a lower."""
        return namespace, f"{self.topology['name']}-{namespace}"


def template(app: str, **spec: Any) -> Manifest:
    """Return the template of pods of an app."""
    container = {"name": "main", "image": "app:1", **spec.pop("container", {})}
    basis = {"containers": [container], "tolerations": [PROVIDER], "terminationGracePeriodSeconds": 1}
    meta = {"labels": {"app": app, "team": "red"}, **spec.pop("metadata", {})}
    return {"metadata": meta, "spec": {**basis, **spec, "tolerations": [PROVIDER, *spec.get("tolerations", ())]}}


def of(app: str) -> Manifest:
    """Return the selector of an app's pods."""
    return {"matchLabels": {"app": app}}


def _written(topology: Document) -> bytes:
    return yaml.safe_dump(topology, sort_keys=False).encode()


def _is_open(node: Manifest) -> bool:
    return not node["spec"].get("unschedulable")


def _seen(pod: Manifest, copies: list[Manifest]) -> SeenPod:
    owners = pod["metadata"].get("ownerReferences") or ()
    owner = f"{owners[0]['kind']} {owners[0]['name']}" if owners else f"Pod {pod['metadata']['name']}"
    runs = tuple(sorted((one["metadata"]["uid"], one["spec"]["containers"][0]["image"]) for one in copies))
    return SeenPod(
        uid=pod["metadata"]["uid"],
        owner=f"{pod['metadata']['namespace']}/{owner}",
        labels=pod["metadata"].get("labels") or {},
        node=pod["spec"].get("nodeName", ""),
        runs=runs,
        is_ready=is_ready(pod),
        is_ending="deletionTimestamp" in pod["metadata"],
    )
