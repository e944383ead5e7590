"""The real engine, in a test's own event loop, on real clusters that other tests use at the same time.

Every name is unique to the test: the topology, so that its marks are on no other object; the nodes, ports and the
namespace; and the user that the engine acts as, so that the audit logs show which writes were the engine's. That user
has exactly the rights of the roles that an administrator applies; the tests themselves act as administrators.
"""

import asyncio
import os
import random
import shutil
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import orjson
from forkserver import FORKS
from sitekit import LIMIT, Manifest, Refused, Site, is_ready, is_true
from synckit import has_seen_all, positions

from bench.kit import audit, topologies
from bench.kit.audited_rights import RequestsByRight
from bench.kit.rbac import enable_all_features, grant, parse_right, path_of, roles_of, without
from bench.kit.spareports import spare_ports
from tensile.engine.engine import Engine
from tensile.engine.leader_election import lease_ref
from tensile.engine.lower import ClusterAccess
from tensile.errors import ClusterError
from tensile.kube.fleet import Fleet
from tensile.names import OWNER, owner_of
from tensile.policy.webhook.admission_policy import binding_ref, policy_ref
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, LowerWorld, Problem
from tensile.sandbox.credentials import ADMINISTRATORS
from tensile.sandbox.sandbox import Sandbox
from tensile.topology import Topology, parse

A, B = "lower-a", "lower-b"
LOWERS = (A, B)
UPPER = "upper"
QUIET = frozenset(
    {
        "leases",
        "tokenreviews",
        "subjectaccessreviews",
        "events",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
    }
)
"""Resources whose writes are no steps of a plan that a user approves."""
TOLERATION = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}
_WORKLOADS = ("apps/v1/%s/deployments", "apps/v1/%s/daemonsets", "apps/v1/%s/replicasets", "batch/v1/%s/jobs")
_SOON = 1.0
_AGAIN = 0.05
_RECHECK = 0.5
"""Seconds between checks of what an engine has not observed, if none of its watches makes progress."""
_SEEING = 20.0
"""Seconds after which an engine is assumed to observe no more, because its cache cannot read the rest."""
_STARTS = ([sys.executable, "-m", "tensile"], [str(Path(sys.executable).with_name("tensile"))])
"""The first words of commands of the program."""
WITHOUT, USES = "TENSILE_WITHOUT", "TENSILE_USES"
"""Environment variables: the one right that engines lack, for a trial; and the file that records their use."""
Edit = Callable[[Manifest], object]


class CommandResult(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Write(NamedTuple):
    """One write as recorded in an audit log; `namespace` is "" if the kind has none."""

    cluster: str
    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str = ""


class LoopRecorder:
    """A recorder of what the loop reports: problems as they occur, and defects, of which there must be none."""

    def __init__(self) -> None:
        self.problems: list[tuple[Key, Problem]] = []
        self.defects: list[str] = []

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Ignore a step, because the clusters show its outcome."""

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Record a problem."""
        self.problems.append((key, problem))

    def on_unexpected_error(self, key: Key, error: Exception) -> None:
        """Record a defect."""
        self.defects.append(f"{key}: {''.join(traceback.format_exception(error))}")


class EngineHarness:
    """A sandbox's clusters, a topology of its lowers with unique names, and an engine to start and stop.

    `directory` holds the topology's files: kubeconfigs of its own user and the kubelet's certificate.
    """

    lowers: tuple[str, ...] = LOWERS
    """The sandbox's lowers that the topology has."""
    engine: Engine
    upper: Site
    configmap = "topology"
    """The ConfigMap of the topology; its status may be written to one beside it."""
    clock_offset = 0.0
    """Seconds by which the engine's clock for unreachable clusters is ahead of the real one."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self.mark = uuid4().hex[:8]
        self.namespace = self.user = self.started_as = f"e2e-{self.mark}"
        self.sandbox = sandbox
        self.directory = directory
        self.nodes = {name: f"e2e-{self.mark}-{name[-1]}" for name in self.lowers}
        self.loop_recorder = LoopRecorder()
        self.is_started = False
        self.sites: dict[str, Site] = {}
        self.roles: dict[str, list[Manifest]] = {}
        self._ports = spare_ports(len(self.lowers) + 2)
        self._starts: dict[str, int] = {}

    async def open(self) -> None:
        """Connect, write the topology's files, create the upper namespace, and grant the engine its rights."""
        clusters = self.sandbox.clusters
        for name in (UPPER, *self.lowers):
            self.sites[name] = Site(clusters[name])
            (self.directory / f"{name}.kubeconfig").write_text(self.kubeconfig(name, self.user, ()))
        for name in ("kubelet.crt", "kubelet.key"):
            shutil.copy(self.sandbox.directory / name, self.directory)
        self.upper = self.sites[UPPER]
        await self.make_namespace(UPPER, self.namespace)
        self.owner = owner_of(
            (await self.upper.read("/api/v1/namespaces/kube-system"))["metadata"]["uid"], self.namespace
        )
        self._uses = RequestsByRight({name: site.audit_log for name, site in self.sites.items()})
        await self.grant_roles()

    @property
    def engine_namespace(self) -> str:
        """The upper namespace of the engine's account and of its status."""
        return self.namespace

    @property
    def cluster_access(self) -> ClusterAccess:
        """The engine's access to its clusters, from outside of them."""
        return ClusterAccess(self.directory)

    @property
    def lease(self) -> str:
        """The path of the Lease for leader election among engines of this topology."""
        return lease_ref(self.namespace).path()

    def rendered(self) -> dict[str, list[Manifest]]:
        """Return by cluster the roles of a topology of these lowers that enables every feature."""
        return roles_of(self.topology(enable_all_features), self.engine_namespace, self.configmap)

    async def grant_roles(self) -> None:
        """Apply the roles, for the engine's user."""
        self.roles = self.rendered()
        if missing := os.environ.get(WITHOUT):
            for name, found in self.roles.items():
                self.roles[name] = without(name, found, parse_right(missing), self.engine_namespace)
        await asyncio.gather(*(grant(self.sites[name], found, self.user) for name, found in self.roles.items()))

    def kubeconfig(self, name: str, user: str, groups: Sequence[str] = (ADMINISTRATORS,)) -> str:
        """Make a kubeconfig of a cluster for a user of that name: an administrator, unless in other groups."""
        return topologies.kubeconfig(self.sandbox.clusters[name], user, groups)

    async def make_namespace(self, cluster: str, name: str, **meta: Any) -> None:
        """Create a namespace and wait until pods can be created in it."""
        await self.sites[cluster].create("/api/v1/namespaces", {"metadata": {"name": name, **meta}})
        await self.sites[cluster].until(f"/api/v1/namespaces/{name}/serviceaccounts/default", bool)

    # The topology and the engine.

    def file(self, *edits: Edit) -> Manifest:
        """Return the topology as the file has it, after edits that each change it in place."""
        found = topologies.topology_of(self.namespace, self.nodes, self._ports, capacity={"basis": "allocatable"})
        for lower in found["lowers"]:
            lower["node"]["labels"] = {"e2e": self.mark}
        for edit in edits:
            edit(found)
        return found

    def save(self, *edits: Edit) -> Path:
        """Write the topology file in one piece, as editors do, and return its path."""
        return topologies.save(self.file(*edits), self.directory)

    def topology(self, *edits: Edit) -> Topology:
        """Return the topology as the engine reads it."""
        return parse(orjson.dumps(self.file(*edits)).decode(), name="topology.yaml")

    async def start(self, *edits: Edit, await_nodes: bool = True) -> None:
        """Start an engine and wait until its nodes are ready."""
        fleet = Fleet(chance=random.random, clock=lambda: time.monotonic() + self.clock_offset)
        topology = self.topology(*edits)
        self.started_as = topology.name
        self.engine = Engine(topology, self.cluster_access, self.loop_recorder, fleet)
        self.is_started = True
        async with asyncio.timeout(3 * LIMIT):
            await self.engine.start()
        for lower in self.engine.topology.lowers if await_nodes else ():
            await self.wait_for_node(lower.node.name)
        if await_nodes and WITHOUT not in os.environ:
            await self._admitting()

    async def _admitting(self) -> None:
        """Wait until the apiserver applies the engine's MutatingAdmissionPolicy, after a short delay."""
        topology = self.engine.topology
        if not topology.lowers or self.namespace in topology.exclude_namespaces or not await self._has_policies():
            return
        pod = self.pod("tried", {"nodeName": topology.lowers[0].node.name})
        async with asyncio.timeout(LIMIT):
            while any("tolerationSeconds" in one for one in await self._tolerations(pod)):  # noqa: ASYNC110 - not watchable
                await asyncio.sleep(_AGAIN)

    async def _has_policies(self) -> bool:
        """Report whether the upper apiserver has MutatingAdmissionPolicies: before 1.36 engines patch pods instead."""
        served = await self.upper.read("/apis/admissionregistration.k8s.io/v1")
        return any(one["name"] == "mutatingadmissionpolicies" for one in served["resources"])

    async def _tolerations(self, pod: Manifest) -> list[Manifest]:
        """Return the tolerations that a pod would be created with, by a dry run."""
        made = await self.upper.create(f"{self.path('pods')}?dryRun=All", pod)
        return list(made["spec"]["tolerations"])

    async def stop(self) -> None:
        """Stop the engine."""
        await self.engine.stop()

    async def wait_for_node(self, node: str) -> Manifest:
        """Wait until a virtual node accepts pods, and return it."""
        return await self.upper.until(f"/api/v1/nodes/{node}", lambda found: is_true(found, "LowerSchedulable"))

    async def reload(self, *edits: Edit) -> None:
        """Apply the topology with these edits to the running engine."""
        await self.engine.reload(self.topology(*edits))

    async def wait_idle(self) -> None:
        """Wait until the engine has received all changes and has nothing to do, now or within a second.

        Raises TimeoutError if that never happens, for example because the engine lacks a right.
        """
        fleet, loop = self.engine.clusters.fleet, self.engine.loop
        async with asyncio.timeout(3 * LIMIT):
            await fleet.synced()
            await wait_until(lambda: all(_is_known(one.lower) for one in self.engine.clusters.joined.values()))
            end, known = time.monotonic() + _SEEING, [-1]
            while known != (known := positions(fleet)):
                await loop.wait_idle()
                while loop.expedite(_SOON):
                    await loop.wait_idle()
                if not await has_seen_all(fleet, self.upper, self.sites) and time.monotonic() < end:
                    with suppress(TimeoutError):
                        await wait_until(lambda: positions(fleet) != known, _RECHECK)  # noqa: B023 - ends here
                    known = [-1]

    # Commands.

    async def kubectl(self, *arguments: str, cluster: str = UPPER, stdin: str = "") -> CommandResult:
        """Run kubectl in the namespace until it ends."""
        return await run_command(
            self.sandbox.kubectl_command("-n", self.namespace, *arguments, cluster=cluster), stdin=stdin
        )

    # Objects.

    def path(self, plural: str, name: str = "", api: str = "api/v1", namespace: str = "") -> str:
        """Return the path of a collection in the namespace (or another), or of one object of it."""
        return f"/{api}/namespaces/{namespace or self.namespace}/{plural}" + (f"/{name}" if name else "")

    def pod_path(self, name: str) -> str:
        """Return the path of a pod of the namespace, which is the same in every cluster."""
        return self.path("pods", name)

    def pod(self, name: str, spec: Manifest | None = None, lower: str = A, **meta: Any) -> Manifest:
        """Make a pod bound to a lower's virtual node, with one container "main"; `spec` is merged over that."""
        basis = {"nodeName": self.nodes[lower], "containers": [{"name": "main", "image": "app:1"}]}
        return {"metadata": {"name": name, **meta}, "spec": {**basis, **(spec or {})}}

    def template(self, labels: dict[str, str], spec: Manifest | None = None, **meta: Any) -> Manifest:
        """Make the template of a workload whose pods may be scheduled to any virtual node of this topology."""
        basis = {
            "nodeSelector": {"e2e": self.mark},
            "tolerations": [TOLERATION],
            "containers": [{"name": "main", "image": "app:1"}],
        }
        return {"metadata": {"labels": labels, **meta}, "spec": {**basis, **(spec or {})}}

    async def bind(self, name: str, spec: Manifest | None = None, lower: str = A, **meta: Any) -> Manifest:
        """Create such a pod in the upper cluster."""
        return await self.upper.create(self.path("pods"), self.pod(name, spec, lower, **meta))

    async def run_pod(self, name: str, spec: Manifest | None = None, lower: str = A, **meta: Any) -> Manifest:
        """Create such a pod in the upper cluster, wait until it is ready there, and return it."""
        await self.bind(name, spec, lower, **meta)
        return await self.upper.until(self.pod_path(name), is_ready)

    async def end_pods(self, *names: str) -> None:
        """Delete upper pods, and wait until they no longer exist, which is after their lower pods are deleted."""
        for name in names:
            await self.upper.delete(self.pod_path(name))
        await self.upper.gone(*(self.pod_path(name) for name in names))

    async def wait_for_event(self, about: Manifest, reason: str) -> str:
        """Wait for the event with this reason about an object of the upper cluster, and return its message."""
        fields = f"involvedObject.uid={about['metadata']['uid']},reason={reason}"
        found = await self.upper.until_all(f"{self.path('events')}?fieldSelector={fields}", bool)
        (event,) = found.values()
        assert event["source"]["component"] == "tensile-kube"
        return str(event["message"])

    # Writes of the engine.

    async def mark_audit_logs(self) -> None:
        """Make `writes` count from now on."""
        await self._fence()
        self._starts = {name: audit.position(site.audit_log) for name, site in self.sites.items()}

    async def attempts(self, *, without: Collection[str] = ()) -> list[tuple[Write, int]]:
        """Return the writes that the engine's user has tried since `mark_audit_logs`, and each answer's status code."""
        await self._fence()
        found: list[tuple[Write, int]] = []
        for name, site in self.sites.items():
            records = audit.writes(audit.read(site.audit_log, self._starts[name]), "tensile/", without=tuple(without))
            ours = (one for one in records if one["user"]["username"] == self.user)
            found += [(_write(name, one), one["responseStatus"]["code"]) for one in ours]
        return sorted(found)

    async def unexpected_attempts(self, *, without: Collection[str] = ("leases",)) -> list[tuple[Write, int]]:
        """Return the writes tried since `mark_audit_logs`, in a state that requires no more writes.

        The status of nodes is left out, because their capacity follows the pods that other tests run in the same
        clusters.
        """
        tried = await self.attempts(without=without)
        return [(one, code) for one, code in tried if (one.resource, one.subresource) != ("nodes", "status")]

    async def writes(self) -> list[Write]:
        """Return the user's successful writes since `mark_audit_logs`, without status and the `QUIET` resources."""
        tried = await self.attempts(without=QUIET)
        return [one for one, code in tried if code < 300 and one.subresource != "status"]

    async def _fence(self) -> None:
        """Wait until each audit log contains a request that is sent now."""
        for site in self.sites.values():
            mark = uuid4().hex
            start = audit.position(site.audit_log)
            await site.call("GET", f"/version?fence={mark}")
            await wait_until(lambda site=site, mark=mark, start=start: _is_noted(site.audit_log, mark, start))

    # Cleanup.

    async def clear(self) -> None:
        """Delete everything that tests created, and wait until the engine has removed its objects."""
        if self.is_started:
            await self._clear_workloads()
            await self.reload(_empty)
            await self.upper.gone(*(f"/api/v1/nodes/{node}" for node in self.nodes.values()))
            await self.upper.gone(*(policies_of(self.started_as) if await self._has_policies() else ()))
            for name in self.lowers:
                for plural in ("pods", "configmaps", "secrets", "serviceaccounts"):
                    await self.sites[name].until_all(f"/api/v1/{plural}?labelSelector={OWNER}={self.owner.mark}", _none)

    async def _clear_workloads(self) -> None:
        for collection in _WORKLOADS:
            group, plural = collection.split("/%s/")
            await self.upper.delete(self.path(plural, api=f"apis/{group}") + "?propagationPolicy=Background")
        await self.upper.delete(self.path("pods"), 0)
        await self.upper.until_all(self.path("pods"), _none)

    async def close(self) -> None:
        """Stop the engine, remove what a failed one would leave, and close every connection.

        Kubernetes needs five seconds to delete a namespace; this does not wait for that.
        """
        if self.is_started:
            await self.stop()
        for name, site in self.sites.items():
            if name != UPPER:
                await self._remove_namespaces(site)
            await site.delete(f"/api/v1/namespaces/{self.namespace}")
        for node in self.nodes.values():
            await self.upper.delete(f"/api/v1/nodes/{node}")
        for path in (self.lease, *policies_of(self.namespace)):
            await self.upper.delete(path)
        await self._disallow()
        for site in self.sites.values():
            await site.close()

    async def _disallow(self) -> None:
        """Remove the roles, and write how the engine used them to the file in `USES`, if one is set."""
        if path := os.environ.get(USES):
            await self._fence()
            self._uses.keep(Path(path), self.user, self.engine_namespace)
        for name, found in self.roles.items():
            for one in found:
                await self.sites[name].delete(path_of(one))

    async def _remove_namespaces(self, site: Site) -> None:
        """Remove the namespaces that the engine created in a lower cluster."""
        await site.delete(self.path("pods"), 0)
        found = await site.read(f"/api/v1/namespaces?labelSelector={OWNER}={self.owner.mark}")
        for one in found["items"]:
            with suppress(Refused):
                await site.delete(f"/api/v1/namespaces/{one['metadata']['name']}")


@asynccontextmanager
async def running_engine(
    sandbox: Sandbox, directory: Path, *edits: Edit, before_start: AbstractAsyncContextManager[object] | None = None
) -> AsyncIterator[EngineHarness]:
    """Yield a harness on which the engine runs; at the end, no object of it may be left, and no rule may have failed.

    `before_start` is entered when the topology's files exist, before the engine reads them.
    """
    harness = EngineHarness(sandbox, directory)
    try:
        await harness.open()
        async with before_start or nullcontext():
            await harness.start(*edits)
            yield harness
            await harness.clear()
    finally:
        await harness.close()
    assert harness.loop_recorder.defects == [], "\n".join(harness.loop_recorder.defects)


@asynccontextmanager
async def unstarted_engine(harness: EngineHarness) -> AsyncIterator[EngineHarness]:
    """Yield a harness without an engine, which the test may start; at the end, no object or failed rule may be left."""
    try:
        await harness.open()
        yield harness
        await harness.clear()
    finally:
        await harness.close()
    assert not harness.loop_recorder.defects, "\n".join(harness.loop_recorder.defects)


def policies_of(topology: str) -> tuple[str, str]:
    """Return the paths of the MutatingAdmissionPolicy of a topology with this name, and of its binding."""
    return policy_ref(topology).path(), binding_ref(topology).path()


async def run_command(command: list[str], *, stdin: str = "", limit: float = 60.0) -> CommandResult:
    """Run a program until it ends; tensile itself is forked, which saves the start of Python each time."""
    for start in _STARTS:
        if command[: len(start)] == start:
            arguments = command[len(start) :]
            code, out, err = await asyncio.to_thread(FORKS.run, arguments, stdin.encode(), None, os.environ, limit)
            return CommandResult(code, out.decode(), err.decode())
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(limit):
        out, err = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return CommandResult(process.returncode, out.decode(), err.decode())


async def wait_until(holds: Callable[[], object], limit: float = LIMIT) -> None:
    """Poll a condition that no watch or event announces, until it holds."""
    async with asyncio.timeout(limit):
        while not holds():  # noqa: ASYNC110 - a file, or another object's state: no event announces it
            await asyncio.sleep(0.02)


def edit_lower(name: str, **fields: Any) -> Edit:
    """Make an edit that sets fields of one lower; mappings are merged."""

    def edit(file: Manifest) -> None:
        lower = next(one for one in file["lowers"] if one["name"] == name)
        for field, value in fields.items():
            lower[field] = {**lower.get(field, {}), **value} if isinstance(value, dict) else value

    return edit


def without_lower(name: str) -> Edit:
    """Make an edit that removes a lower."""

    def edit(file: Manifest) -> None:
        file["lowers"] = [one for one in file["lowers"] if one["name"] != name]

    return edit


def with_fields(**fields: Any) -> Edit:
    """Make an edit that sets fields of the topology itself."""
    return lambda file: file.update(fields)


def _is_known(lower: LowerWorld) -> bool:
    """Report whether the engine regards a lower as reachable; until then, it deletes nothing in that lower."""
    return bool(lower.version) and not lower.unreachable_seconds


def _empty(file: Manifest) -> None:
    file["lowers"] = []


def _none(objects: dict[str, Manifest]) -> bool:
    return not objects


def _write(cluster: str, record: audit.Record) -> Write:
    ref = record["objectRef"]
    namespace = "" if ref["resource"] == "namespaces" else ref.get("namespace", "")
    return Write(cluster, record["verb"], ref["resource"], namespace, ref.get("name", ""), ref.get("subresource", ""))


def _is_noted(log: Path, mark: str, start: int) -> bool:
    return any(mark in record["requestURI"] for record in audit.read(log, start))


def advertised(sandbox: Sandbox) -> str:
    """Return another address of the upper apiserver than the one in the engine's kubeconfig."""
    return sandbox.clusters[UPPER].server.replace("127.0.0.1", "localhost")
