"""Collects the facts about every cluster of a topology, all at the same time, for at most `LIMIT` seconds.

A cluster that does not respond delays no other, except lowers whose kubeconfig is in a Secret of the upper cluster.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from tensile.diagnostics.doctor.facts import (
    ADVERTISED,
    AUTHORITY,
    HOOK,
    HOOK_ADDRESS,
    HOOK_CALL,
    HOOK_SLICES,
    LOCAL_ENGINE,
    METRICS,
    NAMESPACES,
    PODS_BY_NAMESPACE,
    POLICIES,
    REQUESTS,
    WAITING,
    ClusterFacts,
    ContactResult,
    Facts,
    QueryAnswer,
    ServerEndpoint,
    endpoint_of,
    is_loopback,
    is_renewed,
    lease_of,
    node_named,
    orphaned_nodes,
    port_of,
)
from tensile.diagnostics.doctor.lowers import MOST, mirrored_namespaces
from tensile.diagnostics.doctor.queries import (
    NODE_PROXY,
    ClusterQueries,
    Now,
    open_queries,
    probe_server,
    server_endpoint,
    unverified_tls,
)
from tensile.engine.clusters import node_address, own_namespace
from tensile.engine.lower import ClusterAccess
from tensile.engine.permissions import Permission, lower_rights, upper_rights
from tensile.engine.sources import text_at
from tensile.engine.status.query import report_at
from tensile.engine.topology_reader import ConfigMapKey, read_configmap
from tensile.errors import AccessError, ClusterError, described
from tensile.kube import net
from tensile.kube.cluster import Selection
from tensile.kube.credentials import Access, keep_secret
from tensile.kube.files import read_regular
from tensile.kube.net import cancel_and_wait
from tensile.kube.store import Cache
from tensile.kubelet.api.certificates import CALLERS
from tensile.names import LEASE_NAMESPACE
from tensile.objects import ENDPOINT_SLICE, LEASE, SERVICE, SIGNING_REQUEST, UPPER, Manifest, Ref
from tensile.policy.webhook.registration import address_of, bundle_in, call, proxied, ref_of
from tensile.reconcile.rules.endpoint_slices import SERVICE_NAME
from tensile.reconcile.rules.services import server_of
from tensile.topology import Lower, ServiceRef, Topology, Upper, Webhook

LIMIT = 12.0
"""The timeout in seconds of all queries; facts that are missing then are reported as missing."""
_PATIENCE = 5.0
_UNREADABLE_ADVICE = (
    "let the account that asks list that Secret; the engine has to, and may by what `tensile manifests` prints"
)


async def topology_at(place: ConfigMapKey, cluster_access: ClusterAccess) -> Topology:
    """Return the topology in a ConfigMap of the upper cluster; raises TensileError if it is unreadable or invalid."""
    return read_configmap(await text_at(place, cluster_access), place)


async def gather_facts(
    topology: Topology, cluster_access: ClusterAccess, now: Now, place: ConfigMapKey | None = None
) -> Facts:
    """Return the facts about every cluster of a topology, and about its files; `place` is the topology's ConfigMap."""
    collector = _Collector(topology, cluster_access, now, required_upper_rights(topology, place, own_namespace()))
    await collector.run()
    files = _files(topology, cluster_access.directory)
    descriptor_limit = net.hard_limit()
    return Facts(
        topology,
        collector.upper,
        collector.lowers,
        files,
        collector.address,
        now(),
        in_configmap=place is not None,
        descriptors=descriptor_limit,
    )


def required_upper_rights(topology: Topology, place: ConfigMapKey | None, engine_namespace: str) -> list[Permission]:
    """Return the rights that the engine needs in the upper cluster.

    It runs in namespace `engine_namespace` ("": outside a cluster). By default an engine uses leader election only in a
    cluster.
    """
    return upper_rights(topology, place=place, takes_turns=bool(engine_namespace), namespace=engine_namespace)


class _Collector:
    """The facts collected so far; `_upper_queries` is the upper cluster once it is known whether it can be queried."""

    def __init__(self, topology: Topology, cluster_access: ClusterAccess, now: Now, rights: list[Permission]) -> None:
        self.upper = ClusterFacts(UPPER)
        self.lowers = {spec.name: ClusterFacts(spec.name) for spec in topology.lowers}
        self.address = ""
        self._topology = topology
        self._cluster_access = cluster_access
        self._now = now
        self._rights = rights
        self._upper_queries: asyncio.Future[ClusterQueries | None] = asyncio.get_running_loop().create_future()
        self._upper_namespaces: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._exit_stack = AsyncExitStack()

    async def run(self) -> None:
        """Query all clusters, and stop at the timeout."""
        async with self._exit_stack:
            jobs = {self.upper.name: self._query_upper()}
            jobs |= {spec.name: self._query_lower(spec) for spec in self._topology.lowers}
            tasks = {asyncio.create_task(job): name for name, job in jobs.items()}
            done, pending = await asyncio.wait(tasks, timeout=LIMIT)
            await cancel_and_wait(*pending)
            for task in done:
                error = task.exception()
                if error is not None:
                    cluster = self._facts_of(tasks[task])
                    cluster.access_error = f"the check did not complete ({described(error)})"
                    cluster.remedy = "report this, with the other lines of the output"

    def _facts_of(self, name: str) -> ClusterFacts:
        return self.upper if name == UPPER else self.lowers[name]

    async def _query_upper(self) -> None:
        try:
            access = await self._cluster_access.upper_access(self._topology.upper)
            queries = await self._connect(self.upper, access)
        except AccessError as error:
            self.upper.access_error, self.upper.remedy = error.what.removeprefix("upper: "), error.advice
            queries = None
        finally:
            if not self._upper_queries.done():
                self._upper_queries.set_result(None)
        try:
            if queries is not None:
                await self._query_upper_details(queries)
        finally:
            if not self._upper_namespaces.done():
                self._upper_namespaces.set_result([])

    async def _query_upper_details(self, queries: ClusterQueries) -> None:
        topology = self._topology
        self.address = node_address(topology, (queries.access.address, queries.access.port))
        nodes = [lower.node.name for lower in topology.lowers]
        further_queries = [
            queries.record(lease_of(node), queries.read(Ref(UPPER, LEASE, LEASE_NAMESPACE, node))) for node in nodes
        ]
        further_queries.append(queries.record(AUTHORITY, queries.read(CALLERS)))
        further_queries += [self._query_namespaces(queries), queries.record(POLICIES, queries.policies())]
        if "PV" in topology.enabled:
            further_queries.append(queries.record(WAITING, queries.pods_without_node()))
        if topology.kubelet.tls_cert_file is None:
            further_queries.append(queries.record(REQUESTS, queries.list_all(SIGNING_REQUEST)))
        if topology.webhook.enabled:
            further_queries.append(queries.record(HOOK, queries.read(ref_of(topology))))
        if any(lower.service_accounts.identity == "upper" for lower in topology.lowers):
            further_queries.append(
                queries.record(ADVERTISED, _probe_advertised_address(topology.upper, queries.access))
            )
        await queries.run_all(self._rights, *further_queries)
        orphans = orphaned_nodes(self.upper, topology)
        leases = (
            queries.record(lease_of(node), queries.read(Ref(UPPER, LEASE, LEASE_NAMESPACE, node))) for node in orphans
        )
        await asyncio.gather(self._call_webhook(queries, topology.webhook), *leases, self._call_nodes(queries, nodes))

    async def _query_namespaces(self, queries: ClusterQueries) -> None:
        """List the upper namespaces, for the queries that look into the lower namespaces of these."""
        try:
            await queries.record(NAMESPACES, queries.namespaces())
        finally:
            self._upper_namespaces.set_result(self.upper.items(NAMESPACES))

    async def _query_tenants(self, queries: ClusterQueries, spec: Lower) -> None:
        """List the pods in a lower's namespaces that mirrored pods run in."""
        await queries.record(NAMESPACES, queries.namespaces())
        upper_namespaces = await asyncio.shield(self._upper_namespaces)
        namespaces = mirrored_namespaces(
            spec, self._topology, upper_namespaces, queries.facts.items(NAMESPACES)
        ).values()
        await queries.record(PODS_BY_NAMESPACE, queries.pod_owners(sorted(namespaces)[:MOST]))

    async def _call_nodes(self, queries: ClusterQueries, names: list[str]) -> None:
        """Call the nodes' kubelet APIs: a loopback address directly, others via the upper apiserver if permitted."""
        ports = {name: port for name in names if (port := self._port(name)) is not None}
        local = {name for name, (address, _) in ports.items() if is_loopback(address)}
        remote = ports.keys() - local
        may_proxy = bool(remote) and await queries.is_permitted(NODE_PROXY)
        calls = [queries.record(port_of(name), _probe_unverified(*ports[name])) for name in local]
        calls += [queries.record(LOCAL_ENGINE, report_at(self._topology.telemetry))] if local else []
        await asyncio.gather(*calls, *(self._call_by_proxy(queries, name) for name in remote if may_proxy))

    def _port(self, name: str) -> tuple[str, int] | None:
        """Return the IP address and port of a node whose lease an engine renews, None for any other node."""
        node = node_named(self.upper, name)
        if node is None or not is_renewed(self.upper, name, self._now()):
            return None
        address, port = endpoint_of(node)
        return (address, port) if address and port else None

    async def _call_by_proxy(self, queries: ClusterQueries, name: str) -> None:
        self.upper.answers[port_of(name)] = await queries.fetch(f"/api/v1/nodes/{name}/proxy/healthz")

    async def _call_webhook(self, queries: ClusterQueries, webhook: Webhook) -> None:
        """Call the webhook at its URL, or via the upper apiserver at its Service, whose endpoints are read first."""
        if not webhook.enabled or not webhook.is_reachable:
            return
        if webhook.service is not None:
            ref = Ref(UPPER, SERVICE, webhook.service.namespace, webhook.service.name)
            await queries.record(HOOK_ADDRESS, queries.read(ref))
            await queries.record(HOOK_SLICES, _endpoints(queries, ref))
            await self._call_webhook_service(queries, webhook.service)
            return
        url = urlsplit(address_of(webhook))
        await queries.record(HOOK_ADDRESS, _probe_unverified(url.hostname or "", url.port or 443))
        configuration: Manifest | None = self.upper.value(HOOK)
        if configuration:
            await queries.record(HOOK_CALL, call(address_of(webhook), bundle_in(configuration)))

    async def _call_webhook_service(self, queries: ClusterQueries, service: ServiceRef) -> None:
        """Call the webhook's Service through the upper apiserver, if permitted."""
        namespace, name = service.namespace, proxied(service)
        right = Permission(SERVICE, ("get",), "calls of the webhook by the apiserver", "proxy", namespace, name=name)
        if await queries.is_permitted(right):
            path = f"/api/v1/namespaces/{namespace}/services/{name}/proxy/healthz"
            self.upper.answers[HOOK_CALL] = await queries.fetch(path)

    async def _query_lower(self, spec: Lower) -> None:
        cluster = self.lowers[spec.name]
        try:
            queries = await self._connect(
                cluster, await self._cluster_access.lower_access(spec, await self._secrets(spec))
            )
        except AccessError as error:
            cluster.access_error, cluster.remedy = error.what, error.advice
            return
        except ClusterError as error:
            cluster.access_error, cluster.remedy = str(error), _UNREADABLE_ADVICE
            return
        if queries is not None:
            further_queries = (queries.record(METRICS, queries.check_metrics_api()), self._query_tenants(queries, spec))
            await queries.run_all(lower_rights(spec), *further_queries)

    async def _secrets(self, spec: Lower) -> Cache:
        """Return a cache with the Secret of a lower's kubeconfig, empty if the kubeconfig is in a file."""
        cache, ref = Cache(), spec.kubeconfig_secret
        if ref is None:
            return cache
        upper_queries = await asyncio.shield(self._upper_queries)
        if upper_queries is None:
            raise AccessError(
                f"its kubeconfig is in Secret {ref.namespace}/{ref.name} of the upper cluster, which does not answer",
                "fix the upper cluster first",
            )
        await keep_secret(upper_queries.cluster, ref, cache)
        return cache

    async def _connect(self, cluster: ClusterFacts, access: Access) -> ClusterQueries | None:
        """Connect to a cluster and return its queries, None if it is unreachable; `run` closes it at the end."""
        queries = await open_queries(cluster, access, self._now)
        if queries is not None:
            self._exit_stack.push_async_callback(queries.close)
        if cluster is self.upper:
            self._upper_queries.set_result(queries)
        return queries


async def _probe_unverified(host: str, port: int) -> ContactResult:
    """Connect up to the TLS handshake, accepting any certificate, since no data is sent."""
    return await probe_server(ServerEndpoint("", f"https://{host}:{port}", host, port, host), unverified_tls())


async def _probe_advertised_address(upper: Upper, access: Access) -> ContactResult | None:
    """Connect up to the TLS handshake to the address of the upper apiserver that pods in lower clusters use.

    Return None if there is no such address.
    """
    server = server_of(upper.advertise_url, (access.address, access.port))
    if server is None:
        return None
    endpoint = server_endpoint(access)._replace(host=server.host, port=server.port, name=server.host)
    return await probe_server(endpoint, access.tls)


async def _endpoints(queries: ClusterQueries, service: Ref) -> list[Manifest]:
    """Return the EndpointSlices of a Service."""
    selection = Selection(service.namespace, labels=f"{SERVICE_NAME}={service.name}")
    return (await queries.cluster.list(ENDPOINT_SLICE, selection, orjson.loads)).items


def _files(topology: Topology, directory: Path) -> dict[str, QueryAnswer]:
    """Return the content of the files that the topology names, by field."""
    found = {}
    for section in ("kubelet", "webhook"):
        for field, info in type(getattr(topology, section)).model_fields.items():
            path = getattr(getattr(topology, section), field)
            if path is not None and str(info.alias).endswith("File"):
                found[f"{section}.{info.alias}"] = _content(directory / path)
    return found


def _content(path: Path) -> QueryAnswer:
    try:
        return QueryAnswer((str(path), read_regular(path)))
    except OSError as error:
        return QueryAnswer((str(path), error))
