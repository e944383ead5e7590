"""Reads the status of a running engine: from its telemetry server, or from the ConfigMap beside the topology's.

A ConfigMap keeps its content after the engine has stopped, so the leases of its nodes show whether it still runs. To
follow a status, the ConfigMap is watched; the telemetry server, which is on this machine, is polled.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from tensile.engine.lower import ClusterAccess
from tensile.engine.status.configmap import status_owner, status_ref
from tensile.engine.status.report import REJECTED, amounts, read_data
from tensile.engine.topology_reader import ConfigMapKey
from tensile.errors import TensileError
from tensile.kube.aio import aiohttp
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Cluster, Selection, read_or_none
from tensile.kube.informer import Informer
from tensile.kube.net import cancel_and_wait
from tensile.kube.store import Cache
from tensile.kube.transport import cause_of
from tensile.names import ENGINE, LEASE_NAMESPACE, OTHER_ENGINE
from tensile.objects import LEASE, NODE, UPPER, Kind, Manifest, Ref, annotations, metadata, timestamp
from tensile.reconcile.ownership import is_ours
from tensile.topology import Telemetry, TopologyErrors, Upper, decode, parse, salvaged

LEASE_SECONDS = 40.0
"""Seconds for which a lease is valid without renewal."""

_TIMEOUT = 5.0
_POLL_INTERVAL = 2.0
"""Seconds between two requests to a telemetry server."""
_REREAD_INTERVAL = 10.0
"""Seconds between two readings of nodes and leases, which follow a status ConfigMap that does not change."""
_WILDCARD_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what servers listen on, and how to call them


class StatusAnswer(NamedTuple):
    """The status in the form of the engine's own report, and what is wrong with it ("" for nothing)."""

    document: dict[str, Any]
    problem: str = ""


StatusUpdates = AsyncGenerator[StatusAnswer | TensileError]
"""One status after the other, or why there is none at the moment; never ends by itself."""


def read_engine_status(data: bytes, file: str) -> StatusAnswer:
    """Return the status from the telemetry server of a topology file; raises TensileError if none responds."""
    return asyncio.run(_read_engine_status(data, file))


def read_configmap_status(place: ConfigMapKey, access: ClusterAccess) -> StatusAnswer:
    """Return the status from a ConfigMap and the nodes; raises TensileError if there is none."""
    return asyncio.run(_read_configmap_status(place, access))


async def _wait_before_poll() -> None:
    await asyncio.sleep(_POLL_INTERVAL)


async def follow_engine(
    source: Callable[[], tuple[str, bytes]], pause: Callable[[], Awaitable[None]] = _wait_before_poll
) -> StatusUpdates:
    """Yield the status from the telemetry server of a topology file, after each `pause`.

    `source` returns the file's display name and content, and is called each time, as the file may be edited.
    """

    async def request() -> StatusAnswer:
        """Read the file, and request the status."""
        name, data = source()
        return await _read_engine_status(data, name)

    async with aclosing(_followed(request, pause)) as updates:
        async for update in updates:
            yield update


async def follow_map(place: ConfigMapKey, access: ClusterAccess) -> StatusUpdates:
    """Yield the status from a ConfigMap and the nodes when the ConfigMap changes, and every ten seconds.

    Raises TensileError if the credentials of the upper cluster cannot be used.
    """
    cluster = HttpCluster(UPPER, await access.upper_access(Upper()))
    ref, cache, changed = status_ref(place), Cache(), asyncio.Event()
    cache.subscribe(lambda _delta: changed.set())
    selection = Selection(ref.namespace, fields=f"metadata.name={ref.name}")
    watch = asyncio.ensure_future(Informer(cluster, ref.kind, selection, cache, chance=random.random).run())

    async def pause() -> None:
        """Wait for a change, or until nodes and leases are read again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REREAD_INTERVAL):
                await changed.wait()
        changed.clear()

    try:
        async with aclosing(_followed(lambda: _read_cluster_status(cluster, place), pause)) as updates:
            async for update in updates:
                yield update
    finally:
        await cancel_and_wait(watch)
        await cluster.close()


async def _followed(
    request: Callable[[], Awaitable[StatusAnswer]], pause: Callable[[], Awaitable[None]]
) -> StatusUpdates:
    """Yield what `request` returns or raises, with a pause after each."""
    while True:
        update: StatusAnswer | TensileError
        try:
            update = await request()
        except TensileError as error:
            update = error
        yield update
        await pause()


async def _read_engine_status(data: bytes, file: str) -> StatusAnswer:
    """Return the status of the engine of a file.

    A rejected file still has the address to call: the engine continues with the last good one, and reports the
    rejection. If it does not, the file's errors are the answer's `problem`.
    """
    try:
        topology = parse(decode(data, name=file), name=file)
    except TopologyErrors as refused:
        name, telemetry = salvaged(data.decode(errors="replace"))
        try:
            answer = await _status_at(telemetry, name)
        except TensileError:
            url = _url(telemetry, "/status")
            raise TensileError(
                f"{refused}\nno status from {url}, the address that is left of this file: correct the errors first"
            ) from None
        return answer if answer.document.get(REJECTED) else StatusAnswer(answer.document, str(refused))
    return await _status_at(topology.telemetry, topology.name)


def read_metrics(telemetry: Telemetry) -> str:
    """Return the metrics of the engine that serves telemetry there; raises TensileError if none responds."""
    return asyncio.run(_fetch(_url(telemetry, "/metrics"))).decode(errors="replace")


async def engine_at(telemetry: Telemetry) -> str:
    """Return the topology name of the engine that serves telemetry there, "" if none responds."""
    return str((await report_at(telemetry)).get("topology", ""))


async def report_at(telemetry: Telemetry) -> dict[str, Any]:
    """Return the report of the engine that serves telemetry there, {} if none responds."""
    try:
        return (await _status_at(telemetry, "")).document
    except TensileError:
        return {}


NO_START = "it would not start"
"""In what needs a restart, if the engine could not start with it."""


def restart_needed(document: Mapping[str, Any]) -> Sequence[str]:
    """Return what an engine uses only after a restart, from its report."""
    return (document.get("accepted") or {}).get("restartNeeded") or ()


def not_active(document: Mapping[str, Any]) -> Sequence[str]:
    """Return which parts of the topology are not active yet, from an engine's report."""
    return (document.get("accepted") or {}).get("pending") or ()


async def _status_at(telemetry: Telemetry, topology: str) -> StatusAnswer:
    """Return the status from a telemetry server; `topology` is the expected topology name, "" for any."""
    url = _url(telemetry, "/status")
    text = await _fetch(url)
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or "formatVersion" not in found:
        raise TensileError(f"the server at {url} is not an engine: correct telemetry in the topology file")
    if topology and found["topology"] != topology and not _is_renamed(found, topology):
        raise TensileError(
            f"the engine at {url} runs topology {found['topology']}, not {topology}: use its file, "
            "or set another telemetry.port for one of them"
        )
    return StatusAnswer(found)


def _is_renamed(document: dict[str, Any], topology: str) -> bool:
    """Report whether an engine waits for its restart to use that name, which its own file has now."""
    return any(message.startswith("name: ") and f" -> {topology}:" in message for message in restart_needed(document))


async def _fetch(url: str) -> bytes:
    """Return what a telemetry server responds; raises TensileError if there is none."""
    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            return await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        is_late = isinstance(error, TimeoutError)
        reason = cause_of(error, f"no response in {_TIMEOUT:g} s" if is_late else "the connection was closed")
        raise TensileError(
            f"no engine responds at {url} ({reason}): start or restart `tensile run` on this "
            "machine, or correct telemetry in the topology file"
        ) from None


def _url(telemetry: Telemetry, path: str) -> str:
    bind = str(telemetry.bind)
    host = _WILDCARD_ADDRESSES.get(bind, bind)
    return f"http://{f'[{host}]' if ':' in host else host}:{telemetry.port}{path}"


async def _read_configmap_status(place: ConfigMapKey, access: ClusterAccess) -> StatusAnswer:
    cluster = HttpCluster(UPPER, await access.upper_access(Upper()))
    try:
        return await _read_cluster_status(cluster, place)
    finally:
        await cluster.close()


async def _read_cluster_status(cluster: HttpCluster, place: ConfigMapKey) -> StatusAnswer:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await _status_of(cluster, place, await cluster.identify(), lambda: datetime.now(UTC))
    except TimeoutError:
        raise TensileError(f"upper: no response within {_TIMEOUT:g} s: check that its apiserver runs") from None


async def _status_of(
    cluster: Cluster, place: ConfigMapKey, upper_uid: str, now: Callable[[], datetime]
) -> StatusAnswer:
    """Return the status with what the nodes advertise."""
    ref = status_ref(place)
    name = f"ConfigMap {ref.namespace}/{ref.name}"
    configmap = await _read(cluster, ref.kind, ref.namespace, ref.name)
    if not configmap or not is_ours(configmap, status_owner(upper_uid, place)):
        problem = "belongs to another owner" if configmap else "does not exist"
        raise TensileError(f"{name} {problem}: no engine reports a status: start `tensile run --configmap {place}`")
    document = read_data(configmap.get("data") or {}, name)
    renewed = []
    for row in document["lowers"]:
        row["advertised"] = dict(amounts(await _read(cluster, NODE, "", row["node"])))
        renewed.append(renewed_at(await _read(cluster, LEASE, LEASE_NAMESPACE, row["node"])))
    return StatusAnswer(document, _stale_message(max(renewed, default=now()), now()))


async def _read(cluster: Cluster, kind: Kind, namespace: str, name: str) -> Manifest:
    """Return an object; {} for none."""
    return await read_or_none(cluster, Ref(UPPER, kind, namespace, name)) or {}


def renewed_at(lease: Manifest) -> datetime:
    """Return when a lease was renewed; 1970 if it never was."""
    renew_time = (lease.get("spec") or {}).get("renewTime")
    return datetime.fromisoformat(renew_time) if renew_time else datetime.fromtimestamp(0, UTC)


def _created_at(node: Manifest) -> datetime:
    """Return when a Node was created; 1970 if that is not known."""
    return datetime.fromisoformat(metadata(node).get("creationTimestamp") or "1970-01-01T00:00:00Z")


def holds(renewed: datetime, now: datetime) -> bool:
    """Report whether a lease renewed at that time is still valid."""
    return (now - renewed).total_seconds() <= LEASE_SECONDS


def unrenewed(lease: Manifest | None, node: Manifest, now: datetime) -> str:
    """Return since when no engine renews a node's Lease ({}: it has none), "" if one does, or if it is not known.

    A new Node may still get its first Lease.
    """
    renewed = renewed_at(lease) if lease else _created_at(node)
    if lease is None or holds(renewed, now):
        return ""
    return f"since {timestamp(renewed)}" if lease else "as it has none"


def sharing(lease: Manifest, lease_name: str) -> str:
    """Return that two engines renew a Lease, "" if none does beside the other; `lease_name` names the Lease."""
    engine, other = annotations(lease).get(ENGINE), annotations(lease).get(OTHER_ENGINE)
    return f"engines {engine} and {other} both renew {lease_name}, and undo each other's changes" if other else ""


def _stale_message(renewed: datetime, now: datetime) -> str:
    """Return a message if no engine has renewed the nodes' leases lately, else ""."""
    if holds(renewed, now):
        return ""
    return (
        "no engine renews the leases of its nodes, so this status is old: start `tensile run`, or check why it stopped"
    )
