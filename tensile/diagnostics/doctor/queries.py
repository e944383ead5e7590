"""Queries of one cluster, and tests of the connection to its apiserver. They run concurrently and write nothing.

Each query has its own answer or error, so that one that is denied or slow costs no other. Rights are queried by access
reviews, which the apiserver does not store.

A connection is tested step by step (DNS, TCP, TLS, response, login), so that the error names the step; each step has
its own timeout. Names are resolved in a daemon thread: a resolver may block for half a minute, and a process does not
exit before the threads of its executor do.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import orjson

from tensile import __version__
from tensile.diagnostics.doctor.facts import (
    CLASSES,
    NO_ANSWER,
    NODES,
    RANGES,
    ClusterFacts,
    ContactResult,
    QueryAnswer,
    ServerEndpoint,
    Stage,
    TokenInfo,
)
from tensile.engine.permissions import Permission
from tensile.errors import ClusterError, TensileError
from tensile.kube.aio import aiohttp, beginning
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Cluster, Selection
from tensile.kube.credentials import Access, claims_of, expiry_of, token_in
from tensile.kube.dial import connected
from tensile.kube.pools import StreamPool
from tensile.kube.transport import cause_of
from tensile.kubelet.stats.usage import NODE_METRICS
from tensile.names import OWNER
from tensile.objects import (
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    POD,
    SELF_ACCESS_REVIEW,
    SELF_REVIEW,
    SERVICE_CIDR,
    STORAGE_CLASS,
    Kind,
    Manifest,
    Ref,
    labels,
    metadata,
)

STEP_SECONDS = 3.0
"""The timeout in seconds of each step of a connection."""
NODE_PROXY = Permission(NODE, ("get",), "calls of virtual nodes by the apiserver", "proxy")
_CONNECTIONS = 6
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
_TEXT = "application/json, */*"
_NODE_STATUS = ("addresses", "conditions", "daemonEndpoints")
_MOST = 1 << 20

Now = Callable[[], datetime]


class ClusterQueries:
    """The queries of one cluster; create it inside a running event loop, and close it. The results are in `facts`."""

    def __init__(self, facts: ClusterFacts, access: Access) -> None:
        self.facts = facts
        self.access = access
        self.cluster: Cluster = (http := HttpCluster(facts.name, access, connections=_CONNECTIONS))
        self._http = http

    async def close(self) -> None:
        """Close every connection."""
        await self._http.close()

    async def record(self, query: str, result: Awaitable[Any]) -> None:
        """Record the answer to a query, or its error."""
        self.facts.unanswered.add(query)
        try:
            self.facts.answers[query] = QueryAnswer(await result)
        except ClusterError as error:
            self.facts.answers[query] = QueryAnswer(error=error.message, status=error.status)
        except TensileError as error:
            self.facts.answers[query] = QueryAnswer(error=str(error))
        self.facts.unanswered.discard(query)

    async def run_all(self, rights: Iterable[Permission], *further_queries: Awaitable[None]) -> None:
        """Run the queries for every kind of cluster, and `further_queries` at the same time."""
        await asyncio.gather(
            self.record("identity", self._query_identity()),
            self.record("user", self._query_user()),
            self.record("rights", self._query_rights(rights)),
            self.record(NODES, self.list_all(NODE, _node)),
            self.record(CLASSES, self.list_all(STORAGE_CLASS)),
            self.record(RANGES, self.list_all(SERVICE_CIDR)),
            *further_queries,
        )

    async def list_all(self, kind: Kind, read: Callable[[bytes], Manifest] = orjson.loads) -> list[Manifest]:
        """Return all objects of a kind."""
        return (await self.cluster.list(kind, Selection(), read)).items

    async def read(self, ref: Ref) -> Manifest:
        """Return one object."""
        found: Manifest = orjson.loads(await self.cluster.read(ref))
        return found

    async def fetch(self, path: str) -> QueryAnswer:
        """Request a path with a response in any format.

        The answer holds whether the status was 200, the text as the error, and the status.
        """
        try:
            status, body, _ = await request_path(self.access, path)
        except _FAILURES as error:
            return QueryAnswer(error=error_text(error))
        return QueryAnswer(status == HTTPStatus.OK, _error_message(body), status)

    async def pods_without_node(self) -> list[Manifest]:
        """Return the pods without a node, with the scheduler's message."""
        return (
            await self.cluster.list(POD, Selection(fields="spec.nodeName=,status.phase=Pending"), _pod_without_node)
        ).items

    async def namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return (await self.cluster.list(NAMESPACE, Selection(), _name)).items

    async def policies(self) -> list[str]:
        """Return the namespace of every NetworkPolicy."""
        return (await self.cluster.list(NETWORK_POLICY, Selection(), _namespace)).items

    async def pod_owners(self, namespaces: Iterable[str]) -> list[tuple[str, str]]:
        """Return the namespace and the owner mark ("" for none) of every pod in some namespaces."""
        lists = (self.cluster.list(POD, Selection(namespace), _pod_owner) for namespace in namespaces)
        return [one for found in await asyncio.gather(*lists) for one in found.items]

    async def check_metrics_api(self) -> None:
        """Query the node metrics; raises ClusterError if the metrics API does not respond."""
        await self.cluster.list(NODE_METRICS, Selection())

    async def is_permitted(self, right: Permission) -> bool:
        """Report whether a right is granted; False if that cannot be queried."""
        try:
            return not await self._denied_verbs(right)
        except ClusterError:
            return False

    async def _query_identity(self) -> None:
        self.facts.identity = await self._http.identify()

    async def _query_user(self) -> None:
        raw = await self.cluster.create(_review_ref(self.facts.name, SELF_REVIEW), _body(SELF_REVIEW))
        user = str(orjson.loads(raw)["status"]["userInfo"].get("username", ""))
        self.facts.user = user if user.isprintable() else ""

    async def _query_rights(self, rights: Iterable[Permission]) -> None:
        wanted = list(rights)
        denied = await asyncio.gather(*map(self._denied_verbs, wanted))
        pairs = zip(wanted, denied, strict=True)
        self.facts.missing = [right._replace(verbs=verbs) for right, verbs in pairs if verbs]

    async def _denied_verbs(self, right: Permission) -> tuple[str, ...]:
        """Return the verbs of a right that are not granted."""
        allowed = await asyncio.gather(*(self._is_allowed(right, verb) for verb in right.verbs))
        return tuple(verb for verb, is_allowed in zip(right.verbs, allowed, strict=True) if not is_allowed)

    async def _is_allowed(self, right: Permission, verb: str) -> bool:
        attributes = {
            "verb": verb,
            "group": right.group,
            "resource": right.kind.plural,
            "subresource": right.subresource,
            "namespace": right.namespace,
            "name": right.name,
        }
        body = _body(SELF_ACCESS_REVIEW, {"resourceAttributes": attributes})
        raw = await self.cluster.create(_review_ref(self.facts.name, SELF_ACCESS_REVIEW), body)
        return bool(orjson.loads(raw)["status"].get("allowed"))


async def open_queries(cluster: ClusterFacts, access: Access, now: Any) -> ClusterQueries | None:
    """Connect to a cluster and return its queries; None if a step of the connection failed."""
    cluster.contact = await probe_apiserver(access, now)
    return ClusterQueries(cluster, access) if cluster.contact.stage == Stage.DONE else None


def _review_ref(cluster: str, kind: Kind) -> Ref:
    return Ref(cluster, kind, "", "")


def _body(kind: Kind, spec: Manifest | None = None) -> Manifest:
    return {"apiVersion": kind.api, "kind": kind.name, **({"spec": spec} if spec else {})}


def _node(raw: bytes) -> Manifest:
    """Return a Node without the fields that no check reads: its list of images alone may be 50 KB."""
    node: Manifest = orjson.loads(raw)
    status = node.get("status") or {}
    return {**node, "status": {key: status[key] for key in _NODE_STATUS if key in status}}


def _name(raw: bytes) -> str:
    return str(metadata(orjson.loads(raw))["name"])


def _namespace(raw: bytes) -> str:
    return str(metadata(orjson.loads(raw))["namespace"])


def _pod_owner(raw: bytes) -> tuple[str, str]:
    pod: Manifest = orjson.loads(raw)
    return metadata(pod)["namespace"], labels(pod).get(OWNER, "")


def _pod_without_node(raw: bytes) -> Manifest:
    """Return a pod's name, and the scheduler's message about it."""
    pod: Manifest = orjson.loads(raw)
    meta, conditions = pod["metadata"], (pod.get("status") or {}).get("conditions") or ()
    message = next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
    return {"name": f"{meta['namespace']}/{meta['name']}", "message": message}


def _error_message(body: bytes) -> str:
    """Return the message of a Status, or the beginning of any other body."""
    try:
        return str(orjson.loads(body)["message"])
    except (KeyError, TypeError, ValueError):
        return body[:500].decode(errors="replace").strip()


async def probe_apiserver(access: Access, now: Now) -> ContactResult:
    """Connect to an apiserver with its credentials, and return how far that went."""
    found = await probe_server(server_endpoint(access), access.tls)
    if found.stage != Stage.DONE:
        return found
    try:
        started = now()
        status, body, date = await request_path(access, "/version")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return found._replace(stage=Stage.ANSWER, error=error_text(error))
    found = found._replace(ahead=_clock_difference(date, started, now()))
    if status == HTTPStatus.UNAUTHORIZED:
        return found._replace(stage=Stage.LOGIN, error="HTTP 401")
    version = _version(body) if status == HTTPStatus.OK else ""
    if not version and status != HTTPStatus.FORBIDDEN:
        return found._replace(stage=Stage.ANSWER, error=f"HTTP {status}, without a version")
    return found._replace(version=version)


async def probe_server(endpoint: ServerEndpoint, tls: ssl.SSLContext) -> ContactResult:
    """Connect to a server up to the TLS handshake, and return how far that went."""
    try:
        await _resolve(endpoint.host, endpoint.port)
    except (OSError, TimeoutError, ValueError) as error:
        return ContactResult(endpoint, Stage.NAME, error_text(error))
    try:
        await _connected(endpoint, None)
    except (OSError, TimeoutError) as error:
        return ContactResult(endpoint, Stage.CONNECTION, error_text(error))
    try:
        return ContactResult(endpoint, Stage.DONE, shown=await _connected(endpoint, tls))
    except TimeoutError as error:
        return ContactResult(endpoint, Stage.TLS, error_text(error))
    except (OSError, ValueError) as error:
        return ContactResult(endpoint, Stage.TLS, error_text(error), await _certificate(endpoint))


async def request_path(access: Access, path: str) -> tuple[int, bytes, str]:
    """Return the HTTP status, the beginning of the body and the Date header of the response for a path.

    Raises aiohttp.ClientError, OSError, TimeoutError or ValueError.
    """
    headers = {"User-Agent": f"tensile/{__version__}", "Accept": _TEXT, **access.headers}
    streams = StreamPool()
    try:
        async with streams.opened(access, path, headers, seconds=STEP_SECONDS) as reply:
            return reply.status, await beginning(reply.content, _MOST), reply.headers.get("Date", "")
    finally:
        await streams.close()


def error_text(error: Exception) -> str:
    """Return an error in a few words."""
    return f"{NO_ANSWER} {STEP_SECONDS:g} s" if isinstance(error, TimeoutError) else cause_of(error, str(error))


async def _resolve(host: str, port: int) -> None:
    """Resolve a host name; raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    resolved: asyncio.Future[None] = loop.create_future()

    def finish(error: Exception | None) -> None:
        """End the wait with the result, unless it has been cancelled."""
        if not resolved.done():
            resolved.set_result(None) if error is None else resolved.set_exception(error)

    def resolve() -> None:
        """Resolve the name with the system's resolver."""
        failure: Exception | None = None
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed, so no task waits for this
            loop.call_soon_threadsafe(finish, failure)

    threading.Thread(target=resolve, daemon=True).start()
    async with asyncio.timeout(STEP_SECONDS):
        await resolved


async def _connected(endpoint: ServerEndpoint, tls: ssl.SSLContext | None) -> bytes:
    """Connect, with TLS if given, and close the connection; return the server's certificate (DER, b"" without TLS)."""
    name = endpoint.name if tls else None
    async with asyncio.timeout(STEP_SECONDS):
        sock = await connected(endpoint.host, endpoint.port)
        try:
            _, writer = await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise
    try:
        tls_object = writer.get_extra_info("ssl_object")
        return (tls_object.getpeercert(binary_form=True) or b"") if tls_object else b""
    finally:
        writer.transport.abort()


async def _certificate(endpoint: ServerEndpoint) -> bytes:
    """Return the certificate of a server that is not trusted, b"" for none; sends no data."""
    try:
        return await _connected(endpoint, unverified_tls())
    except (OSError, TimeoutError, ValueError):
        return b""


def _clock_difference(date: str, started: datetime, ended: datetime) -> float | None:
    """Return how many seconds a server's clock is ahead, None without a valid Date.

    A Date header is rounded down to whole seconds.
    """
    try:
        server_time = parsedate_to_datetime(date).astimezone(UTC) + timedelta(seconds=0.5)
    except (ValueError, OverflowError):
        return None
    return (server_time - (started + (ended - started) / 2)).total_seconds()


def _version(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["gitVersion"])
    except (KeyError, TypeError, ValueError):
        return ""


def server_endpoint(access: Access) -> ServerEndpoint:
    """Return the part of an access that is not secret."""
    return ServerEndpoint(
        origin=access.origin,
        url=access.url,
        host=access.address,
        port=access.port,
        name=access.server_name,
        authority=access.papers.authority,
        certificate=access.papers.certificate,
        token=token_info(token_in(access)),
        flags=access.flags,
    )


def token_info(token: str) -> TokenInfo:
    """Return the claims of a token; without values if it is not a JWT."""
    claims = claims_of(token)
    until = expiry_of(claims)
    if until is None and "exp" in claims:
        return TokenInfo()
    return TokenInfo(str(claims.get("sub", "")), until)


def unverified_tls() -> ssl.SSLContext:
    """Return TLS settings that accept any certificate; no credentials and no other data may be sent over them."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls
