"""Asks one cluster everything that is looked at, side by side; nothing is written: a review of access is a question.

Each question has an answer or an error of its own, so that one which is refused, or takes too long, costs no other.

Goes the way to a server step by step, so that what fails on it has a name: DNS, connection, TLS, answer, login.

Each step has a time of its own. Names are looked up in a thread that nobody waits for: a resolver may take half a
minute, and a process does not end before the threads of its pool.
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
from tensile.diagnostics.doctor.facts import CLASSES, NODES, RANGES, Answer, Contact, Side, Stage, Token, Way
from tensile.engine.permissions import Right
from tensile.errors import ClusterError, TensileError
from tensile.kube.aio import aiohttp, beginning
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Cluster, Selection
from tensile.kube.credentials import Access, claims_of, token_in
from tensile.kube.dial import connected
from tensile.kube.rest import Streams
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
"""For one step."""
_TEXT = "application/json, */*"
_MOST = 1 << 20

Now = Callable[[], datetime]


def way_of(access: Access) -> Way:
    """Return what may be told of an access."""
    return Way(
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


def token_of(token: str) -> Token:
    """Read what a token says of itself; one that is no JWT says nothing."""
    said = claims_of(token)
    try:
        until = datetime.fromtimestamp(said["exp"], UTC) if "exp" in said else None
    except (OverflowError, OSError, TypeError, ValueError):
        return Token()
    return Token(str(said.get("sub", "")), until)


def trusting_anybody() -> ssl.SSLContext:
    """Return the TLS for seeing who answers: no credential, and nothing else, may be sent by it."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls


async def contacted(access: Access, now: Now) -> Contact:
    """Go the whole way to an apiserver, as who the access says."""
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
        return found._replace(stage=Stage.ANSWER, error=f"HTTP {status}, and nothing that tells a version")
    return found._replace(version=version)


async def dialled(way: Way, tls: ssl.SSLContext) -> Contact:
    """Go as far as TLS."""
    try:
        await _looked_up(way.host, way.port)
    except (OSError, TimeoutError, ValueError) as error:
        return Contact(way, Stage.NAME, why(error))
    try:
        await _connected(way, None)
    except (OSError, TimeoutError) as error:
        return Contact(way, Stage.CONNECTION, why(error))
    try:
        return Contact(way, Stage.DONE, shown=await _connected(way, tls))
    except TimeoutError as error:
        return Contact(way, Stage.TLS, why(error))
    except (OSError, ValueError) as error:
        return Contact(way, Stage.TLS, why(error), await _certificate(way))


async def asked(access: Access, path: str) -> tuple[int, bytes, str]:
    """Ask for a path; returns HTTP's status, the beginning of the body, and the Date of the answer.

    Raises aiohttp.ClientError, OSError, TimeoutError or ValueError.
    """
    headers = {"User-Agent": f"tensile/{__version__}", "Accept": _TEXT, **access.headers}
    streams = Streams()
    try:
        async with streams.opened(access, path, headers, seconds=STEP_SECONDS) as reply:
            return reply.status, await beginning(reply.content, _MOST), reply.headers.get("Date", "")
    finally:
        await streams.close()


def why(error: Exception) -> str:
    """Return in a few words what went wrong."""
    return f"no answer in {STEP_SECONDS:g} s" if isinstance(error, TimeoutError) else cause_of(error, str(error))


async def _looked_up(host: str, port: int) -> None:
    """Look a name up; raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        """End the wait, should anybody still wait."""
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def look() -> None:
        """Ask the system's resolver."""
        problem: Exception | None = None
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            problem = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, problem)

    threading.Thread(target=look, daemon=True).start()
    async with asyncio.timeout(STEP_SECONDS):
        await done


async def _connected(way: Way, tls: ssl.SSLContext | None) -> bytes:
    """Connect, by TLS where there is one, and hang up; returns the certificate that was shown (DER)."""
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


async def _certificate(way: Way) -> bytes:
    """See which certificate a server shows that is not trusted; nothing is sent to it."""
    try:
        return await _connected(way, trusting_anybody())
    except (OSError, TimeoutError, ValueError):
        return b""


def _ahead(date: str, begun: datetime, ended: datetime) -> float | None:
    """Return by how many seconds a server's clock is ahead; it tells whole seconds, those that have begun."""
    try:
        told = parsedate_to_datetime(date).astimezone(UTC) + timedelta(seconds=0.5)
    except ValueError:
        return None
    return (told - (begun + (ended - begun) / 2)).total_seconds()


def _version(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["gitVersion"])
    except (KeyError, TypeError, ValueError):
        return ""


NODE_PROXY = Right(NODE, ("get",), "calls of virtual nodes by the apiserver", "proxy")
_CONNECTIONS = 6
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class Asking:
    """One cluster that is asked; made inside a running event loop, closed with `close`. What it says is in `side`."""

    def __init__(self, side: Side, access: Access) -> None:
        self.side = side
        self.access = access
        self.cluster: Cluster = (http := HttpCluster(side.name, access, connections=_CONNECTIONS))
        self._http = http

    async def close(self) -> None:
        """Close every connection."""
        await self._http.close()

    async def note(self, question: str, answer: Awaitable[Any]) -> None:
        """Keep the answer to a question, or why there is none."""
        self.side.unanswered.add(question)
        try:
            self.side.answers[question] = Answer(await answer)
        except ClusterError as error:
            self.side.answers[question] = Answer(error=error.message, status=error.status)
        except TensileError as error:
            self.side.answers[question] = Answer(error=str(error))
        self.side.unanswered.discard(question)

    async def everything(self, rights: Iterable[Right], *more: Awaitable[None]) -> None:
        """Ask what every cluster is asked, and more at the same time."""
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
        """List all objects of a kind."""
        return (await self.cluster.list(kind, Selection(), read)).items

    async def read(self, ref: Ref) -> Manifest:
        """Read one object."""
        found: Manifest = orjson.loads(await self.cluster.read(ref))
        return found

    async def fetched(self, path: str) -> Answer:
        """Ask for a path that answers in any form: whether it said 200, its words as the error, and the status."""
        try:
            status, body, _ = await asked(self.access, path)
        except _FAILURES as error:
            return Answer(error=why(error))
        return Answer(status == HTTPStatus.OK, _words(body), status)

    async def waiting(self) -> list[Manifest]:
        """List the pods that have no node, with why the scheduler says so."""
        return (await self.cluster.list(POD, Selection(fields="spec.nodeName=,status.phase=Pending"), _waiting)).items

    async def spaces(self) -> list[str]:
        """List the names of all namespaces."""
        return (await self.cluster.list(NAMESPACE, Selection(), _name)).items

    async def policies(self) -> list[str]:
        """List the namespaces of all NetworkPolicies, one for each policy."""
        return (await self.cluster.list(NETWORK_POLICY, Selection(), _namespace)).items

    async def inhabitants(self, namespaces: Iterable[str]) -> list[tuple[str, str]]:
        """List the pods of some namespaces: in which one each is, and the mark of its owner, "" without."""
        lists = (self.cluster.list(POD, Selection(namespace), _inhabitant) for namespace in namespaces)
        return [one for found in await asyncio.gather(*lists) for one in found.items]

    async def measured(self) -> None:
        """Ask for the metrics of nodes."""
        await self.cluster.list(NODE_METRICS, Selection())

    async def may(self, right: Right) -> bool:
        """Ask whether there is a right; where that cannot be asked, there is not."""
        try:
            return not await self._denied(right)
        except ClusterError:
            return False

    async def _identity(self) -> None:
        self.side.identity = await self._http.identity()

    async def _user(self) -> None:
        raw = await self.cluster.create(_question(self.side.name, SELF_REVIEW), _body(SELF_REVIEW))
        user = str(orjson.loads(raw)["status"]["userInfo"].get("username", ""))
        self.side.user = user if user.isprintable() else ""

    async def _rights(self, rights: Iterable[Right]) -> None:
        wanted = list(rights)
        denied = await asyncio.gather(*map(self._denied, wanted))
        pairs = zip(wanted, denied, strict=True)
        self.side.missing = [right._replace(verbs=verbs) for right, verbs in pairs if verbs]

    async def _denied(self, right: Right) -> tuple[str, ...]:
        """Return those verbs of a right that are not granted."""
        allowed = await asyncio.gather(*(self._allowed(right, verb) for verb in right.verbs))
        return tuple(verb for verb, is_allowed in zip(right.verbs, allowed, strict=True) if not is_allowed)

    async def _allowed(self, right: Right, verb: str) -> bool:
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


async def opened(side: Side, access: Access, now: Any) -> Asking | None:
    """Go the way to a cluster; None where it does not come to its end."""
    side.contact = await contacted(access, now)
    return Asking(side, access) if side.contact.stage == Stage.DONE else None


def _question(cluster: str, kind: Kind) -> Ref:
    return Ref(cluster, kind, "", "")


def _body(kind: Kind, spec: Manifest | None = None) -> Manifest:
    return {"apiVersion": kind.api, "kind": kind.name, **({"spec": spec} if spec else {})}


def _node(raw: bytes) -> Manifest:
    """Keep of a Node what is looked at: its images alone may be 50 KB."""
    node: Manifest = orjson.loads(raw)
    status = node.get("status") or {}
    return {**node, "status": {key: status[key] for key in ("addresses", "daemonEndpoints") if key in status}}


def _name(raw: bytes) -> str:
    return str(metadata(orjson.loads(raw))["name"])


def _namespace(raw: bytes) -> str:
    return str(metadata(orjson.loads(raw))["namespace"])


def _inhabitant(raw: bytes) -> tuple[str, str]:
    pod: Manifest = orjson.loads(raw)
    return metadata(pod)["namespace"], labels(pod).get(OWNER, "")


def _waiting(raw: bytes) -> Manifest:
    """Keep of a pod its name, and what the scheduler says of it."""
    pod: Manifest = orjson.loads(raw)
    meta, conditions = pod["metadata"], (pod.get("status") or {}).get("conditions") or ()
    said = next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
    return {"name": f"{meta['namespace']}/{meta['name']}", "message": said}


def _words(body: bytes) -> str:
    """Return what a body says: the message of a Status, or its beginning."""
    try:
        return str(orjson.loads(body)["message"])
    except (KeyError, TypeError, ValueError):
        return body[:500].decode(errors="replace").strip()
