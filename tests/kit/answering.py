"""A cluster that answers as a test configures it, and records the requests that it receives.

It simulates what a real cluster does not do on demand: refusals, lost races, and answers that keep waiting. Without a
configured answer, it behaves like an empty cluster: creates, deletes and patches succeed, and reads return NotFound.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, NoReturn

import orjson

from tensile.errors import NotFound
from tensile.kube.cluster import Endpoint, Listing, Patch, Read, Selection, WatchEvent
from tensile.objects import Kind, Manifest, Ref, metadata

STATUS = orjson.dumps({"kind": "Status", "status": "Success"})


class RecordedCall(NamedTuple):
    """One request: its verb, the object, and what it carried."""

    verb: str
    ref: Ref
    payload: Any = None


class HeldResponse:
    """An answer that waits until the test sets `release`; `started` is set when the request arrives."""

    def __init__(self, then: "Response" = STATUS) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.response = then


Response = bytes | Exception | HeldResponse


class FakeCluster:
    """A cluster that implements tensile.kube.cluster.Cluster for reads and writes of single objects."""

    def __init__(self, name: str = "lower-a") -> None:
        self.name = name
        self.calls: list[RecordedCall] = []
        self.version_now = 100
        self._script: dict[str, deque[Response]] = defaultdict(deque)

    def queue_responses(self, verb: str, *answers: Response | Manifest) -> None:
        """Configure the next answers to a verb: objects, bytes, errors to raise, or `HeldResponse`."""
        self._script[verb] += [orjson.dumps(one) if isinstance(one, dict) else one for one in answers]

    def verbs(self) -> list[str]:
        """Return the requests in order, each as "create ConfigMap settings"."""
        return [f"{one.verb} {one.ref.kind.name} {one.ref.name}" for one in self.calls]

    async def read(self, ref: Ref) -> bytes:
        """Raise NotFound, unless an answer is configured."""
        return await self._answer(RecordedCall("read", ref), NotFound("no such object", status=404))

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Return the stored object, with a UID made from its name."""
        return await self._answer(RecordedCall("create", ref, body), self._store(ref, body, f"made-{ref.name}"))

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Return a token that is valid for an hour."""
        answered = {"spec": {"expirationSeconds": 3600}, "status": {"token": "token"}}
        return await self._answer(RecordedCall("issue", account, request), orjson.dumps(answered))

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Return the object as patched, with a new resourceVersion."""
        return await self._answer(
            RecordedCall("patch", ref, (patch, subresource)), self._store(ref, {}, f"made-{ref.name}")
        )

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
        """Return the Status of a successful delete."""
        return await self._answer(
            RecordedCall("delete", ref, (uid, grace, version) if version else (uid, grace)), STATUS
        )

    async def evict(self, ref: Ref, *, uid: str) -> None:
        """Accept the eviction of the pod."""
        await self._answer(RecordedCall("evict", ref, uid), STATUS)

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Fail, because code that is tested with this cluster must not list."""
        self._refuse(kind, selection, read)

    def watch(
        self, kind: Kind, selection: Selection, version: str, seconds: int, opened: Callable[[], object] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """Fail, because code that is tested with this cluster must not watch."""
        self._refuse(kind, selection, version, seconds, opened)

    async def version(self) -> str:
        """Return a version."""
        return "v1.36.3"

    def endpoint(self) -> Endpoint:
        """Fail, because code that is tested with this cluster must not stream."""
        self._refuse()

    def _store(self, ref: Ref, body: Manifest, uid: str) -> bytes:
        where = {"namespace": ref.namespace} if ref.namespace else {}
        self.version_now += 1
        given = {"name": ref.name, **where, "uid": uid, "resourceVersion": str(self.version_now)}
        return orjson.dumps({**body, "metadata": {**metadata(body), **given}})

    async def _answer(self, call: RecordedCall, otherwise: Response) -> bytes:
        self.calls.append(call)
        script = self._script[call.verb]
        answer = script.popleft() if script else otherwise
        if isinstance(answer, HeldResponse):
            answer.started.set()
            await answer.release.wait()
            answer = answer.response
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, bytes)
        return answer

    def _refuse(self, *given: object) -> NoReturn:
        raise AssertionError(given)
