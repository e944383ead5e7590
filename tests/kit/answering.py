"""A cluster that answers what a test lays out, and remembers what it was asked.

For what a cluster in its right mind does not do on demand: refusals, lost races, answers that keep waiting. What is not
laid out is answered as by an empty cluster: creates and deletes succeed, patches too, and nothing is found.
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


class Asked(NamedTuple):
    """One request: its verb, the object, and what it carried."""

    verb: str
    ref: Ref
    carried: Any = None


class Held:
    """An answer that waits until the test says `go`; `began` is set once it is asked for."""

    def __init__(self, then: "Answer" = STATUS) -> None:
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.then = then


Answer = bytes | Exception | Held


class Answering:
    """Honours tensile.kube.cluster.Cluster for reads and writes of single objects."""

    def __init__(self, name: str = "lower-a") -> None:
        self.name = name
        self.asked: list[Asked] = []
        self.version_now = 100
        self._script: dict[str, deque[Answer]] = defaultdict(deque)

    def answer(self, verb: str, *answers: Answer | Manifest) -> None:
        """Lay out the next answers to a verb: objects, bytes, errors to raise, or `Held`."""
        self._script[verb] += [orjson.dumps(one) if isinstance(one, dict) else one for one in answers]

    def verbs(self) -> list[str]:
        """Return what was asked, in order: "create ConfigMap settings"."""
        return [f"{one.verb} {one.ref.kind.name} {one.ref.name}" for one in self.asked]

    async def read(self, ref: Ref) -> bytes:
        """Find nothing, unless laid out."""
        return await self._answer(Asked("read", ref), NotFound("no such object", status=404))

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Store the object under a UID made of its name."""
        return await self._answer(Asked("create", ref, body), self._store(ref, body, f"made-{ref.name}"))

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Issue a token that holds for an hour."""
        answered = {"spec": {"expirationSeconds": 3600}, "status": {"token": "token"}}
        return await self._answer(Asked("issue", account, request), orjson.dumps(answered))

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Describe that something changed."""
        return await self._answer(Asked("patch", ref, (patch, subresource)), self._store(ref, {}, f"made-{ref.name}"))

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
        """Describe that the object is gone."""
        return await self._answer(Asked("delete", ref, (uid, grace, version) if version else (uid, grace)), STATUS)

    async def evict(self, ref: Ref, *, uid: str) -> None:
        """Mark the pod as ending."""
        await self._answer(Asked("evict", ref, uid), STATUS)

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Nobody that is tested with this lists."""
        self._refuse(kind, selection, read)

    def watch(
        self, kind: Kind, selection: Selection, version: str, seconds: int, opened: Callable[[], object] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """Nobody that is tested with this watches."""
        self._refuse(kind, selection, version, seconds, opened)

    async def version(self) -> str:
        """Return a version."""
        return "v1.36.3"

    def endpoint(self) -> Endpoint:
        """Nobody that is tested with this streams."""
        self._refuse()

    def _store(self, ref: Ref, body: Manifest, uid: str) -> bytes:
        where = {"namespace": ref.namespace} if ref.namespace else {}
        self.version_now += 1
        given = {"name": ref.name, **where, "uid": uid, "resourceVersion": str(self.version_now)}
        return orjson.dumps({**body, "metadata": {**metadata(body), **given}})

    async def _answer(self, asked: Asked, otherwise: Answer) -> bytes:
        self.asked.append(asked)
        script = self._script[asked.verb]
        answer = script.popleft() if script else otherwise
        if isinstance(answer, Held):
            answer.began.set()
            await answer.go.wait()
            answer = answer.then
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, bytes)
        return answer

    def _refuse(self, *given: object) -> NoReturn:
        raise AssertionError(given)
