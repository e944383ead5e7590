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
from tensile.kube.rest import StreamPool
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
    """The queries of one cluster; create it inside a running event loop, and close it. The results are in `side`."""

    def __init__(self, side: ClusterFacts, access: Access) -> None:
        self.side = side
        self.access = access
        self.cluster: Cluster = (http := HttpCluster(side.name, access, connections=_CONNECTIONS))
        self._http = http

    async def close(self) -> None:
        """Close every connection."""
        await self._http.close()

    async def note(self, question: str, answer: Awaitable[Any]) -> None:
        """Record the answer to a query, or its error."""
        self.side.unanswered.add(question)
        try:
            self.side.answers[question] = QueryAnswer(await answer)
        except ClusterError as error:
            self.side.answers[question] = QueryAnswer(error=error.message, status=error.status)
        except TensileError as error:
            self.side.answers[question] = QueryAnswer(error=str(error))
        self.side.unanswered.discard(question)

    async def everything(self, rights: Iterable[Permission], *more: Awaitable[None]) -> None:
        """Run the queries for every kind of cluster, and `more` at the same time."""
        await asyncio.gather(
            self.note("identity", self._identity()),
            self.note("user", self._user()),
            self.note("rights", self._rights(rights)),
            self.note(NODES, self.listed(NODE, _node)),
            self.note(CLASSES, self.listed(STORAGE_CLASS)),
            self.note(RANGES, self.listed(SERVICE_CIDR)),
            *more,
        )

    async def listed(self, kind: Kind, read: Callable[[bytes], Manifest] = orjson.loads) -> list[Manifest]:
        """Return all objects of a kind."""
        return (await self.cluster.list(kind, Selection(), read)).items

    async def read(self, ref: Ref) -> Manifest:
        """Return one object."""
        found: Manifest = orjson.loads(await self.cluster.read(ref))
        return found

    async def fetched(self, path: str) -> QueryAnswer:
        """Request a path with a response in any format.

        The answer holds whether the status was 200, the text as the error, and the status.
        """
        try:
            status, body, _ = await asked(self.access, path)
        except _FAILURES as error:
            return QueryAnswer(error=why(error))
        return QueryAnswer(status == HTTPStatus.OK, _words(body), status)

    async def waiting(self) -> list[Manifest]:
        """Return the pods without a node, with the scheduler's message."""
        return (await self.cluster.list(POD, Selection(fields="spec.nodeName=,status.phase=Pending"), _waiting)).items

    async def spaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return (await self.cluster.list(NAMESPACE, Selection(), _name)).items

    async def policies(self) -> list[str]:
        """Return the namespace of every NetworkPolicy."""
        return (await self.cluster.list(NETWORK_POLICY, Selection(), _namespace)).items

    async def inhabitants(self, namespaces: Iterable[str]) -> list[tuple[str, str]]:
        """Return the namespace and the owner mark ("" for none) of every pod in some namespaces."""
        lists = (self.cluster.list(POD, Selection(namespace), _inhabitant) for namespace in namespaces)
        return [one for found in await asyncio.gather(*lists) for one in found.items]

    async def measured(self) -> None:
        """Query the node metrics; raises ClusterError if the metrics API does not respond."""
        await self.cluster.list(NODE_METRICS, Selection())

    async def may(self, right: Permission) -> bool:
        """Report whether a right is granted; False if that cannot be queried."""
        try:
            return not await self._denied(right)
        except ClusterError:
            return False

    async def _identity(self) -> None:
        self.side.identity = await self._http.identify()

    async def _user(self) -> None:
        raw = await self.cluster.create(_question(self.side.name, SELF_REVIEW), _body(SELF_REVIEW))
        user = str(orjson.loads(raw)["status"]["userInfo"].get("username", ""))
        self.side.user = user if user.isprintable() else ""

    async def _rights(self, rights: Iterable[Permission]) -> None:
        wanted = list(rights)
        denied = await asyncio.gather(*map(self._denied, wanted))
        pairs = zip(wanted, denied, strict=True)
        self.side.missing = [right._replace(verbs=verbs) for right, verbs in pairs if verbs]

    async def _denied(self, right: Permission) -> tuple[str, ...]:
        """Return the verbs of a right that are not granted."""
        allowed = await asyncio.gather(*(self._allowed(right, verb) for verb in right.verbs))
        return tuple(verb for verb, is_allowed in zip(right.verbs, allowed, strict=True) if not is_allowed)

    async def _allowed(self, right: Permission, verb: str) -> bool:
        attributes = {
            "verb": verb,
            "group": right.group,
            "resource": right.kind.plural,
            "subresource": right.subresource,
            "namespace": right.namespace,
            "name": right.name,
        }
        body = _body(SELF_ACCESS_REVIEW, {"resourceAttributes": attributes})
        raw = await self.cluster.create(_question(self.side.name, SELF_ACCESS_REVIEW), body)
        return bool(orjson.loads(raw)["status"].get("allowed"))


async def opened(side: ClusterFacts, access: Access, now: Any) -> ClusterQueries | None:
    """Connect to a cluster and return its queries; None if a step of the connection failed."""
    side.contact = await contacted(access, now)
    return ClusterQueries(side, access) if side.contact.stage == Stage.DONE else None


def _question(cluster: str, kind: Kind) -> Ref:
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


def _inhabitant(raw: bytes) -> tuple[str, str]:
    pod: Manifest = orjson.loads(raw)
    return metadata(pod)["namespace"], labels(pod).get(OWNER, "")


def _waiting(raw: bytes) -> Manifest:
    """Return a pod's name, and the scheduler's message about it."""
    pod: Manifest = orjson.loads(raw)
    meta, conditions = pod["metadata"], (pod.get("status") or {}).get("conditions") or ()
    said = next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
    return {"name": f"{meta['namespace']}/{meta['name']}", "message": said}


def _words(body: bytes) -> str:
    """Return the message of a Status, or the beginning of any other body."""
    try:
        return str(orjson.loads(body)["message"])
    except (KeyError, TypeError, ValueError):
        return body[:500].decode(errors="replace").strip()


async def contacted(access: Access, now: Now) -> ContactResult:
    """Connect to an apiserver with its credentials, and return how far that went."""
    found = await dialled(way_of(access), access.tls)
    if found.stage != Stage.DONE:
        return found
    try:
        begun = now()
        status, body, date = await asked(access, "/version")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return found._replace(stage=Stage.ANSWER, error=why(error))
    found = found._replace(ahead=_ahead(date, begun, now()))
    if status == HTTPStatus.UNAUTHORIZED:
        return found._replace(stage=Stage.LOGIN, error="HTTP 401")
    version = _version(body) if status == HTTPStatus.OK else ""
    if not version and status != HTTPStatus.FORBIDDEN:
        return found._replace(stage=Stage.ANSWER, error=f"HTTP {status}, without a version")
    return found._replace(version=version)


async def dialled(way: ServerEndpoint, tls: ssl.SSLContext) -> ContactResult:
    """Connect to a server up to the TLS handshake, and return how far that went."""
    try:
        await _looked_up(way.host, way.port)
    except (OSError, TimeoutError, ValueError) as error:
        return ContactResult(way, Stage.NAME, why(error))
    try:
        await _connected(way, None)
    except (OSError, TimeoutError) as error:
        return ContactResult(way, Stage.CONNECTION, why(error))
    try:
        return ContactResult(way, Stage.DONE, shown=await _connected(way, tls))
    except TimeoutError as error:
        return ContactResult(way, Stage.TLS, why(error))
    except (OSError, ValueError) as error:
        return ContactResult(way, Stage.TLS, why(error), await _certificate(way))


async def asked(access: Access, path: str) -> tuple[int, bytes, str]:
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


def why(error: Exception) -> str:
    """Return an error in a few words."""
    return f"{NO_ANSWER} {STEP_SECONDS:g} s" if isinstance(error, TimeoutError) else cause_of(error, str(error))


async def _looked_up(host: str, port: int) -> None:
    """Resolve a host name; raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        """End the wait with the result, unless it has been cancelled."""
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def look() -> None:
        """Resolve the name with the system's resolver."""
        problem: Exception | None = None
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            problem = error
        with suppress(RuntimeError):  # the loop is closed, so no task waits for this
            loop.call_soon_threadsafe(tell, problem)

    threading.Thread(target=look, daemon=True).start()
    async with asyncio.timeout(STEP_SECONDS):
        await done


async def _connected(way: ServerEndpoint, tls: ssl.SSLContext | None) -> bytes:
    """Connect, with TLS if given, and close the connection; return the server's certificate (DER, b"" without TLS)."""
    name = way.name if tls else None
    async with asyncio.timeout(STEP_SECONDS):
        plain = await connected(way.host, way.port)
        try:
            _, writer = await asyncio.open_connection(sock=plain, ssl=tls, server_hostname=name)
        except BaseException:
            plain.close()
            raise
    try:
        made = writer.get_extra_info("ssl_object")
        return (made.getpeercert(binary_form=True) or b"") if made else b""
    finally:
        writer.transport.abort()


async def _certificate(way: ServerEndpoint) -> bytes:
    """Return the certificate of a server that is not trusted, b"" for none; sends no data."""
    try:
        return await _connected(way, trusting_anybody())
    except (OSError, TimeoutError, ValueError):
        return b""


def _ahead(date: str, begun: datetime, ended: datetime) -> float | None:
    """Return how many seconds a server's clock is ahead, None without a valid Date.

    A Date header is rounded down to whole seconds.
    """
    try:
        told = parsedate_to_datetime(date).astimezone(UTC) + timedelta(seconds=0.5)
    except (ValueError, OverflowError):
        return None
    return (told - (begun + (ended - begun) / 2)).total_seconds()


def _version(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["gitVersion"])
    except (KeyError, TypeError, ValueError):
        return ""


def way_of(access: Access) -> ServerEndpoint:
    """Return the part of an access that is not secret."""
    return ServerEndpoint(
        origin=access.origin,
        url=access.url,
        host=access.address,
        port=access.port,
        name=access.server_name,
        authority=access.papers.authority,
        certificate=access.papers.certificate,
        token=token_of(token_in(access)),
        flags=access.flags,
    )


def token_of(token: str) -> TokenInfo:
    """Return the claims of a token; without values if it is not a JWT."""
    said = claims_of(token)
    until = expiry_of(said)
    if until is None and "exp" in said:
        return TokenInfo()
    return TokenInfo(str(said.get("sub", "")), until)


def trusting_anybody() -> ssl.SSLContext:
    """Return TLS settings that accept any certificate; no credentials and no other data may be sent over them."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls
