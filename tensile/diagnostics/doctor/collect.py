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
    POLICIES,
    REQUESTS,
    SPACES,
    STRANGERS,
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
    port_of,
    strays,
)
from tensile.diagnostics.doctor.lowers import MOST, places
from tensile.diagnostics.doctor.queries import (
    NODE_PROXY,
    ClusterQueries,
    Now,
    dialled,
    opened,
    trusting_anybody,
    way_of,
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
_UNREAD = "let the account that asks list that Secret; the engine has to, and may by what `tensile manifests` prints"


async def topology_at(place: ConfigMapKey, ways: ClusterAccess) -> Topology:
    """Return the topology in a ConfigMap of the upper cluster; raises TensileError if it is unreadable or invalid."""
    return read_configmap(await text_at(place, ways), place)


async def gathered(topology: Topology, ways: ClusterAccess, now: Now, place: ConfigMapKey | None = None) -> Facts:
    """Return the facts about every cluster of a topology, and about its files; `place` is the topology's ConfigMap."""
    work = _Gathering(topology, ways, now, needed_above(topology, place, own_namespace()))
    await work.run()
    files = _files(topology, ways.directory)
    most = net.hard_limit()
    return Facts(
        topology, work.upper, work.lowers, files, work.address, now(), in_map=place is not None, descriptors=most
    )


def needed_above(topology: Topology, place: ConfigMapKey | None, own: str) -> list[Permission]:
    """Return the rights that the engine needs in the upper cluster, running in namespace `own` ("": outside a cluster).

    By default an engine uses leader election only in a cluster.
    """
    return upper_rights(topology, place=place, takes_turns=bool(own), namespace=own)


class _Gathering:
    """The facts collected so far; `_above` is the upper cluster once it is known whether it can be queried."""

    def __init__(self, topology: Topology, ways: ClusterAccess, now: Now, rights: list[Permission]) -> None:
        self.upper = ClusterFacts(UPPER)
        self.lowers = {spec.name: ClusterFacts(spec.name) for spec in topology.lowers}
        self.address = ""
        self._topology = topology
        self._ways = ways
        self._now = now
        self._rights = rights
        self._above: asyncio.Future[ClusterQueries | None] = asyncio.get_running_loop().create_future()
        self._spaces: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._open = AsyncExitStack()

    async def run(self) -> None:
        """Query all clusters, and stop at the timeout."""
        async with self._open:
            works = {self.upper.name: self._ask_upper()}
            works |= {spec.name: self._ask_lower(spec) for spec in self._topology.lowers}
            tasks = {asyncio.create_task(work): name for name, work in works.items()}
            done, late = await asyncio.wait(tasks, timeout=LIMIT)
            await cancel_and_wait(*late)
            for task in done:
                error = task.exception()
                if error is not None:
                    side = self._side(tasks[task])
                    side.trouble = f"the check did not complete ({described(error)})"
                    side.remedy = "report this, with the other lines of the output"

    def _side(self, name: str) -> ClusterFacts:
        return self.upper if name == UPPER else self.lowers[name]

    async def _ask_upper(self) -> None:
        try:
            access = await self._ways.upper_access(self._topology.upper)
            asking = await self._begun(self.upper, access)
        except AccessError as error:
            self.upper.trouble, self.upper.remedy = error.what.removeprefix("upper: "), error.advice
            asking = None
        finally:
            if not self._above.done():
                self._above.set_result(None)
        try:
            if asking is not None:
                await self._look_around(asking)
        finally:
            if not self._spaces.done():
                self._spaces.set_result([])

    async def _look_around(self, asking: ClusterQueries) -> None:
        topology = self._topology
        self.address = node_address(topology, (asking.access.address, asking.access.port))
        nodes = [lower.node.name for lower in topology.lowers]
        more = [asking.note(lease_of(node), asking.read(Ref(UPPER, LEASE, LEASE_NAMESPACE, node))) for node in nodes]
        more.append(asking.note(AUTHORITY, asking.read(CALLERS)))
        more += [self._name_spaces(asking), asking.note(POLICIES, asking.policies())]
        if "PV" in topology.enabled:
            more.append(asking.note(WAITING, asking.waiting()))
        if topology.kubelet.tls_cert_file is None:
            more.append(asking.note(REQUESTS, asking.listed(SIGNING_REQUEST)))
        if topology.webhook.enabled:
            more.append(asking.note(HOOK, asking.read(ref_of(topology))))
        if any(lower.service_accounts.identity == "upper" for lower in topology.lowers):
            more.append(asking.note(ADVERTISED, _advertised(topology.upper, asking.access)))
        await asking.everything(self._rights, *more)
        others = strays(self.upper, topology)
        leases = (asking.note(lease_of(node), asking.read(Ref(UPPER, LEASE, LEASE_NAMESPACE, node))) for node in others)
        await asyncio.gather(self._call_hook(asking, topology.webhook), *leases, self._call_nodes(asking, nodes))

    async def _name_spaces(self, asking: ClusterQueries) -> None:
        """List the upper namespaces, for the queries that look into the lower namespaces of these."""
        try:
            await asking.note(SPACES, asking.spaces())
        finally:
            self._spaces.set_result(self.upper.items(SPACES))

    async def _look_for_tenants(self, asking: ClusterQueries, spec: Lower) -> None:
        """List the pods in a lower's namespaces that mirrored pods run in."""
        await asking.note(SPACES, asking.spaces())
        above = await asyncio.shield(self._spaces)
        found = places(spec, self._topology, above, asking.side.items(SPACES)).values()
        await asking.note(STRANGERS, asking.inhabitants(sorted(found)[:MOST]))

    async def _call_nodes(self, asking: ClusterQueries, names: list[str]) -> None:
        """Call the nodes' kubelet APIs: a loopback address directly, others via the upper apiserver if permitted."""
        ports = {name: port for name in names if (port := self._port(name)) is not None}
        near = {name for name, (address, _) in ports.items() if is_loopback(address)}
        far = ports.keys() - near
        may_proxy = bool(far) and await asking.may(NODE_PROXY)
        calls = [asking.note(port_of(name), _dialled_blindly(*ports[name])) for name in near]
        calls += [asking.note(LOCAL_ENGINE, report_at(self._topology.telemetry))] if near else []
        await asyncio.gather(*calls, *(self._have_called(asking, name) for name in far if may_proxy))

    def _port(self, name: str) -> tuple[str, int] | None:
        """Return the IP address and port of a node whose lease an engine renews, None for any other node."""
        node = node_named(self.upper, name)
        if node is None or not is_renewed(self.upper, name, self._now()):
            return None
        address, port = endpoint_of(node)
        return (address, port) if address and port else None

    async def _have_called(self, asking: ClusterQueries, name: str) -> None:
        self.upper.answers[port_of(name)] = await asking.fetched(f"/api/v1/nodes/{name}/proxy/healthz")

    async def _call_hook(self, asking: ClusterQueries, webhook: Webhook) -> None:
        """Call the webhook at its URL, or via the upper apiserver at its Service, whose endpoints are read first."""
        if not webhook.enabled or not webhook.is_reachable:
            return
        if webhook.service is not None:
            ref = Ref(UPPER, SERVICE, webhook.service.namespace, webhook.service.name)
            await asking.note(HOOK_ADDRESS, asking.read(ref))
            await asking.note(HOOK_SLICES, _endpoints(asking, ref))
            await self._have_hook_called(asking, webhook.service)
            return
        url = urlsplit(address_of(webhook))
        await asking.note(HOOK_ADDRESS, _dialled_blindly(url.hostname or "", url.port or 443))
        known: Manifest | None = self.upper.value(HOOK)
        if known:
            await asking.note(HOOK_CALL, call(address_of(webhook), bundle_in(known)))

    async def _have_hook_called(self, asking: ClusterQueries, service: ServiceRef) -> None:
        """Call the webhook's Service through the upper apiserver, if permitted."""
        space, name = service.namespace, proxied(service)
        right = Permission(SERVICE, ("get",), "calls of the webhook by the apiserver", "proxy", space, name=name)
        if await asking.may(right):
            path = f"/api/v1/namespaces/{space}/services/{name}/proxy/healthz"
            self.upper.answers[HOOK_CALL] = await asking.fetched(path)

    async def _ask_lower(self, spec: Lower) -> None:
        side = self.lowers[spec.name]
        try:
            asking = await self._begun(side, await self._ways.lower_access(spec, await self._secrets(spec)))
        except AccessError as error:
            side.trouble, side.remedy = error.what, error.advice
            return
        except ClusterError as error:
            side.trouble, side.remedy = str(error), _UNREAD
            return
        if asking is not None:
            more = (asking.note(METRICS, asking.measured()), self._look_for_tenants(asking, spec))
            await asking.everything(lower_rights(spec), *more)

    async def _secrets(self, spec: Lower) -> Cache:
        """Return a cache with the Secret of a lower's kubeconfig, empty if the kubeconfig is in a file."""
        found, ref = Cache(), spec.kubeconfig_secret
        if ref is None:
            return found
        above = await asyncio.shield(self._above)
        if above is None:
            raise AccessError(
                f"its kubeconfig is in Secret {ref.namespace}/{ref.name} of the upper cluster, which does not answer",
                "fix the upper cluster first",
            )
        await keep_secret(above.cluster, ref, found)
        return found

    async def _begun(self, side: ClusterFacts, access: Access) -> ClusterQueries | None:
        """Connect to a cluster and return its queries, None if it is unreachable; `run` closes it at the end."""
        asking = await opened(side, access, self._now)
        if asking is not None:
            self._open.push_async_callback(asking.close)
        if side is self.upper:
            self._above.set_result(asking)
        return asking


async def _dialled_blindly(host: str, port: int) -> ContactResult:
    """Connect up to the TLS handshake, accepting any certificate, since no data is sent."""
    return await dialled(ServerEndpoint("", f"https://{host}:{port}", host, port, host), trusting_anybody())


async def _advertised(upper: Upper, access: Access) -> ContactResult | None:
    """Connect up to the TLS handshake to the address of the upper apiserver that pods in lower clusters use.

    Return None if there is no such address.
    """
    server = server_of(upper.advertise_url, (access.address, access.port))
    if server is None:
        return None
    way = way_of(access)._replace(host=server.host, port=server.port, name=server.host)
    return await dialled(way, access.tls)


async def _endpoints(asking: ClusterQueries, service: Ref) -> list[Manifest]:
    """Return the EndpointSlices of a Service."""
    chosen = Selection(service.namespace, labels=f"{SERVICE_NAME}={service.name}")
    return (await asking.cluster.list(ENDPOINT_SLICE, chosen, orjson.loads)).items


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
