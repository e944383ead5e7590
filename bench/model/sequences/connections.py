"""The connections between an engine and clusters in memory, and their faults: watches, and the path of writes.

A watch can be late, deliver a change twice, or miss changes until the next list. A write can be dropped on its way, be
carried out without an answer, be slow, arrive after its client gave it up, or be refused for a time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import orjson

from tensile.errors import ClusterError, Conflict, Denied, Throttled, Unreachable
from tensile.kube.cluster import Patch, Selection
from tensile.kube.fleet import InformerSpec
from tensile.objects import Kind, Manifest, Ref
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.dryrun.patch import is_selected

Fault = Literal["dropped", "lost", "late", "slow", "conflict", "throttled", "denied"]
LATENCY = 0.01
"""Seconds of a request's way to the cluster, and of the answer's way back."""
_LATE = (0.3, 3.0)
_SLOW = 1.5
_REPEATED = 4


class WatchConnection:
    """One watch: passes the changes of a cluster on to a cache of the engine."""

    def __init__(self, feed: InformerSpec) -> None:
        self.feed = feed
        self.is_held = False
        self.drops_events = False
        self._is_stopped = False
        self._delivered: set[tuple[str, str]] = set()
        self._pending: deque[Callable[[], None]] = deque()
        self._recent: deque[Callable[[], None]] = deque(maxlen=_REPEATED)

    def selects(self, manifest: Manifest) -> bool:
        """Report whether this watch selects such objects."""
        return not self._is_stopped and is_selected(manifest, self.feed.selection)

    def get(self, namespace: str, name: str) -> bool | None:
        """Return True for an object that the watch has delivered, or will deliver; None for others."""
        return True if (namespace, name) in self._delivered else None

    def put(self, raw: bytes) -> None:
        """Deliver an object that is new or changed."""
        self._delivered.add(_place(raw))
        self._enqueue(partial(self.feed.cache.put, raw))

    def remove(self, raw: bytes) -> None:
        """Deliver the deletion of an object."""
        self._delivered.discard(_place(raw))
        self._enqueue(partial(self.feed.cache.remove, raw))

    def deliver(self) -> None:
        """Deliver waiting changes, unless the watch is held."""
        while self._pending and not self.is_held:
            delivery = self._pending.popleft()
            self._recent.append(delivery)
            delivery()

    def repeat(self) -> None:
        """Deliver the last few changes once more."""
        for delivery in () if self.is_held else tuple(self._recent):
            delivery()

    async def list(self, cluster: DryRunCluster) -> None:
        """Restart with a list: changes that were missed, or wait, are not delivered any more."""
        listing = await cluster.list(self.feed.kind, self.feed.selection)
        self.is_held = self.drops_events = False
        self._pending.clear()
        self._delivered = {_place(raw) for raw in listing.items}
        self.feed.cache.replace(listing.items, int(listing.version))

    def stop(self) -> None:
        """Stop delivering permanently."""
        self._is_stopped = True
        self._delivered.clear()
        self._pending.clear()
        self._recent.clear()

    def _enqueue(self, delivery: Callable[[], None]) -> None:
        if not self.drops_events:
            self._pending.append(delivery)
            self.deliver()


class ClusterConnection:
    """The path to a cluster in memory; its next writes get the faults in `faults`.

    While it `is_down`, no request gets through. `on_write` receives each write just before it is carried out; `done`
    holds the completed writes. `delayed` holds the bodies of creates that arrived, or will arrive, after the engine
    gave them up.
    """

    def __init__(self, real: DryRunCluster, on_write: Callable[[str, Ref, Any], None], done: list[str]) -> None:
        self.faults: deque[Fault] = deque()
        self.is_down = False
        self.done = done
        self.delayed: list[Manifest] = []
        self._real = real
        self._on_write = on_write
        self._delayed_writes: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        """Return the cluster's own attribute for everything that needs no request."""
        return getattr(self._real, name)

    async def read(self, ref: Ref) -> bytes:
        """Read an object, if the cluster answers."""
        await self._reach()
        return await self._real.read(ref)

    async def list(self, kind: Kind, selection: Selection, read: Any = bytes) -> Any:
        """List objects, if the cluster answers."""
        await self._reach()
        return await self._real.list(kind, selection, read)

    async def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds, if the cluster answers."""
        await self._reach()
        return await self._real.kinds()

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Issue a token, if the cluster answers."""
        await self._reach()
        return await self._real.issue(account, request)

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create an object, or fail with the next fault."""
        return await self._write(f"create {ref}", partial(self._create, ref, body), body)

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch an object, or fail with the next fault."""
        return await self._write(f"patch {ref} {subresource}".rstrip(), partial(self._patch, ref, patch, subresource))

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
        """Delete an object, or fail with the next fault."""
        return await self._write(f"delete {ref}", partial(self._delete, ref, uid, grace, version))

    async def evict(self, ref: Ref, *, uid: str) -> None:
        """Evict a pod, or fail with the next fault."""
        await self._write(f"evict {ref}", partial(self._delete, ref, uid, None, ""))

    async def _create(self, ref: Ref, body: Manifest) -> bytes:
        self._on_write("create", ref, body)
        return await self._real.create(ref, body)

    async def _patch(self, ref: Ref, patch: Patch, subresource: str) -> bytes:
        self._on_write(f"patch {subresource}".rstrip(), ref, patch.body)
        return await self._real.patch(ref, patch, subresource)

    async def _delete(self, ref: Ref, uid: str, grace: int | None, version: str) -> bytes:
        if version in ("", await self._version_of(ref)):
            self._on_write("delete", ref, uid)
        return await self._real.delete(ref, uid=uid, grace=grace, version=version)

    async def _version_of(self, ref: Ref) -> str:
        """Return an object's stored resourceVersion; a delete with another one as precondition changes nothing."""
        try:
            return str(orjson.loads(await self._real.read(ref))["metadata"]["resourceVersion"])
        except ClusterError:
            return ""

    async def _write(
        self, description: str, write: Callable[[], Awaitable[bytes]], body: Manifest | None = None
    ) -> bytes:
        """Carry a write out with the next fault.

        A patch is never late, because no precondition protects it from later ones.
        """
        fault = self.faults.popleft() if self.faults else ""
        await self._reach()
        if fault == "late" and not description.startswith("patch"):
            self.delayed += [body] if body is not None else []
            self._send_late(write, _LATE[len(self.done) % len(_LATE)])
        if fault == "slow":
            await asyncio.sleep(_SLOW)
            await self._reach()
        elif fault:
            _fail(fault)
        answer = await write()
        self.done.append(description)
        await asyncio.sleep(LATENCY)
        if fault == "lost" or self.is_down:
            raise Unreachable("lost")
        return answer

    async def _reach(self) -> None:
        await asyncio.sleep(LATENCY)
        if self.is_down:
            raise Unreachable("no answer")

    def _send_late(self, write: Callable[[], Awaitable[bytes]], seconds: float) -> None:
        task = asyncio.get_running_loop().create_task(_later(write, seconds))
        self._delayed_writes.add(task)
        task.add_done_callback(self._delayed_writes.discard)


async def _later(write: Callable[[], Awaitable[bytes]], seconds: float) -> None:
    await asyncio.sleep(seconds)
    with suppress(ClusterError):
        await write()


def _fail(fault: Fault) -> None:
    """Raise the error that a fault causes in the engine; a lost answer is lost later."""
    match fault:
        case "dropped" | "late":
            raise Unreachable("no answer in time")
        case "conflict":
            raise Conflict("somebody else wrote first", status=409, reason="Conflict")
        case "throttled":
            raise Throttled("later", status=429, reason="TooManyRequests", retry_after=1.0)
        case "denied":
            raise Denied("exceeded quota", status=403, reason="Forbidden")


def _place(raw: bytes) -> tuple[str, str]:
    meta = orjson.loads(raw)["metadata"]
    return meta.get("namespace", ""), meta["name"]
