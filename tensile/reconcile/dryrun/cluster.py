"""An in-memory cluster, which processes the engine's requests without sending them.

`plan` runs the loop of `run` on such clusters until nothing is left to do, and prints their requests. The tests of
rules and loop use them too. So they answer as an apiserver does: with the same errors, preconditions and managedFields.
They have no defaults and no validation, and only the controllers that the engine waits for: a namespace gets its
default ServiceAccount, and deleted pods and claims disappear.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid5

import msgspec
import orjson

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, Unreachable
from tensile.kube.cluster import Cluster, Endpoint, Listing, Patch, Read, Selection, WatchEvent
from tensile.kube.store import Cache, Meta
from tensile.names import FIELD_MANAGER
from tensile.objects import NAMESPACE, POD, SERVICE_ACCOUNT, Kind, Manifest, Ref, metadata, timestamp, uid
from tensile.reconcile.dryrun.patch import is_selected, patched
from tensile.reconcile.dryrun.semantics import (
    FieldManager,
    check_subresource,
    created,
    disrupted,
    fence,
    is_removed_at_once,
    marked_for_deletion,
    released,
    revised,
    tidied,
    unprotected,
    with_managed_fields,
)

SOMEBODY = "somebody-else"
"""The field manager of writes by `place` and `alter`."""
_FIRST_VERSION = 1 << 62
"""Greater than any real resourceVersion, so that caches treat each object of a dry run as newer than theirs."""
_TOKEN_SECONDS = 3600
_UIDS = UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
MADE_UP = "00000000-0000-5000-"
"""What each UID that a dry run makes up begins with: no apiserver and no other program makes such UIDs."""
_KEPT_FIELDS = ("uid", "creationTimestamp", "generation")
_Name = tuple[str, str]


class _Envelope(msgspec.Struct, frozen=True):
    """The part of an object that is needed to store it."""

    metadata: Meta


_ENVELOPES = msgspec.json.Decoder(_Envelope)


class _Follower(NamedTuple):
    """A cache that receives the events of one kind, and its selection."""

    cache: Cache
    selects: Callable[[Manifest], bool]

    def stored(self, raw: bytes, manifest: Manifest) -> None:
        """Apply the present state of an object. One that is not selected any more is removed."""
        if self.selects(manifest):
            self.cache.put(raw)
        else:
            self.gone(raw, manifest)

    def gone(self, raw: bytes, manifest: Manifest) -> None:
        """Apply the deletion of an object if the cache has it."""
        meta = metadata(manifest)
        if self.cache.get(meta.get("namespace", ""), meta["name"]) is not None:
            self.cache.remove(raw)


class DryRunCluster:
    """An in-memory cluster. `name` as in `Cluster`.

    `behind` is the real cluster that it stands for. That is read for what is not held here, and never written. With
    `ends_pods` a deleted pod disappears at once, as if its kubelet took no time, and a claim as if it were not in use.
    Otherwise a pod stays until a grace period of 0, and claims and volumes are protected. `version` is its Kubernetes
    version, `now` returns UTC.
    """

    def __init__(
        self,
        name: str,
        *,
        behind: Cluster | None = None,
        ends_pods: bool = True,
        version: str = "v0.0.0",
        now: Callable[[], datetime],
    ) -> None:
        self._name = name
        self._behind = behind
        self._ends_pods = ends_pods
        self._release = version
        self._now = now
        self._count = _FIRST_VERSION
        self._held: defaultdict[Kind, dict[_Name, bytes]] = defaultdict(dict)
        self._gone: set[tuple[Kind, _Name]] = set()
        self._followers: defaultdict[Kind, list[_Follower]] = defaultdict(list)

    @property
    def name(self) -> str:
        """The lower's name, or `objects.UPPER`."""
        return self._name

    def follow(self, kind: Kind, cache: Cache, selects: Callable[[Manifest], bool]) -> None:
        """Send every later change of selected objects of a kind to a cache, before the response to the write."""
        self._followers[kind].append(_Follower(cache, selects))

    def hold(self, kind: Kind, raw: bytes) -> None:
        """Add an initial object unchanged, without events to caches."""
        meta = _ENVELOPES.decode(raw).metadata
        self._held[kind][(meta.namespace, meta.name)] = raw

    def find(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object that is held, None if it is not."""
        raw = self._held[kind].get((namespace, name))
        return None if raw is None else _decoded(raw)

    def place(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Create or replace an object as another client would, and return it as stored.

        Its own UID, times and managedFields are kept, else generated. An existing object keeps its UID.
        """
        given = metadata(manifest)
        ref = Ref(self._name, kind, given.get("namespace", ""), given["name"])
        before = self.find(kind, ref.namespace, ref.name) or {}
        if given.get("uid", uid(before)) != uid(before):
            before = {}
        fabricated = created(ref, {}, self._fabricated(), self._author(SOMEBODY))
        kept = {
            field: metadata(before or fabricated)[field]
            for field in _KEPT_FIELDS
            if field in metadata(before or fabricated)
        }
        wanted = {**fabricated, **deepcopy(manifest), "metadata": {**kept, **given}}
        stored = with_managed_fields(before, tidied(kind, wanted), self._author(SOMEBODY))
        if "managedFields" in given:
            stored["metadata"]["managedFields"] = given["managedFields"]
        return _decoded(self._keep(ref, stored))

    def alter(self, ref: Ref, change: Callable[[Manifest], None]) -> Manifest:
        """Change an object as another client would, and return it as stored. Raises NotFound."""
        with self._error_context("alter", ref):
            before = self._object(ref)
            after = deepcopy(before)
            change(after)
            return _decoded(self._revise(ref, before, tidied(ref.kind, after), SOMEBODY))

    def vanish(self, ref: Ref) -> None:
        """Remove an object, whatever its finalizers. Raises NotFound."""
        with self._error_context("vanish", ref):
            self._drop(ref, self._object(ref))

    async def read(self, ref: Ref) -> bytes:
        """Return the object as held, else as in the real cluster."""
        with self._error_context("read", ref):
            return await self._fetched(ref)

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Return the objects of a selection: equality and existence of labels, and some fields."""
        with self._error_context("list", Ref(self._name, kind, selection.namespace, "")):
            held = {**await self._list_real(kind, selection), **self._held[kind]}
            chosen = [raw for _, raw in sorted(held.items()) if is_selected(_decoded(raw), selection)]
        return Listing([read(raw) for raw in chosen], str(self._count))

    async def kinds(self) -> tuple[Kind, ...]:
        """Return the namespaced kinds of held objects, and those of the real cluster."""
        held = [kind for kind, found in self._held.items() if kind.namespaced and found]
        real = () if self._behind is None else await self._behind.kinds()
        return tuple(dict.fromkeys((*real, *held)))

    def watch(
        self,
        kind: Kind,
        selection: Selection,
        version: str,  # noqa: ARG002
        seconds: int,  # noqa: ARG002
        opened: Callable[[], object] | None = None,  # noqa: ARG002
    ) -> AsyncIterator[WatchEvent]:
        """Raise Denied: caches receive events by `follow`, at once, so that no watch is needed."""
        with self._error_context("watch", Ref(self._name, kind, selection.namespace, "")):
            raise _refused("a dry run does not serve watches: let a cache follow it", HTTPStatus.METHOD_NOT_ALLOWED)

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Store a new object and return it."""
        with self._error_context("create", ref):
            _check_name(ref, metadata(body))
            await self._admit(ref, body)
            _check_form(metadata(body))
            if await self._lookup(ref) is not None:
                message = f'{_resource(ref.kind)} "{ref.name}" already exists'
                raise AlreadyExists(message, status=HTTPStatus.CONFLICT, reason="AlreadyExists")
            return self._keep(ref, created(ref, body, self._fabricated(), self._author(FIELD_MANAGER)))

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Return an answered TokenRequest with an empty token and the right times."""
        with self._error_context("create", account, "token"):
            await self._fetched(account)
            spec = {"expirationSeconds": _TOKEN_SECONDS, **(request.get("spec") or {})}
            end = timestamp(self._now() + timedelta(seconds=spec["expirationSeconds"]))
            status = {"token": "", "expirationTimestamp": end}
            return orjson.dumps({**request, "spec": spec, "status": status})

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch an object, or a subresource of it, and return it as stored. Without a change nothing is written."""
        with self._error_context("patch", ref, subresource):
            check_subresource(ref.kind, subresource)
            before = _decoded(await self._fetched(ref))
            updated = patched(before, patch)
            fence(before, updated)
            after = revised(ref.kind, before, updated, subresource)
            return self._revise(ref, before, after, FIELD_MANAGER, subresource)

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
        """Delete the object of that UID, and return the response of a real cluster: the object, or a v1 Status.

        A pod that disappears at once is reported as terminating first.
        """
        with self._error_context("delete", ref):
            before = _decoded(await self._fetched(ref))
            if metadata(before)["uid"] != uid:
                message = f"the UID in the precondition ({uid}) is not that of {_resource(ref.kind)} {ref.name}"
                raise Conflict(message, status=HTTPStatus.CONFLICT, reason="Conflict")
            if version not in ("", metadata(before)["resourceVersion"]):
                message = f"{_resource(ref.kind)} {ref.name} has changed since resourceVersion {version}"
                raise Conflict(message, status=HTTPStatus.CONFLICT, reason="Conflict")
            at_once = self._ends_pods and ref.kind == POD
            freed = unprotected(ref.kind, before) if self._ends_pods else before
            after = marked_for_deletion(ref.kind, freed, 0 if at_once else grace, self._now())
            if not is_removed_at_once(ref.kind, after):
                return orjson.dumps(before) if after is freed else self._keep(ref, after)
            if ref.kind == POD:
                self._keep(ref, after)
            last = self._drop(ref, after)
            return last if ref.kind in (POD, SERVICE_ACCOUNT) else _success(ref, uid)

    async def evict(self, ref: Ref, *, uid: str) -> None:
        """Set the condition of an eviction on a pod and delete it. Only a real eviction checks disruption budgets."""
        with self._error_context("evict", ref):
            before = _decoded(await self._fetched(ref))
            if metadata(before)["uid"] == uid:
                self._revise(ref, before, disrupted(before, self._now()), FIELD_MANAGER, "status")
        await DryRunCluster.delete(self, ref, uid=uid)

    async def version(self) -> str:
        """Return the version that it was created with."""
        return self._release

    def endpoint(self) -> Endpoint:
        """Raise Denied: there is nothing to connect to."""
        raise Denied("a dry run does not serve streams", cluster=self._name, doing="connect", reason="Forbidden")

    @contextmanager
    def _error_context(self, verb: str, ref: Ref, subresource: str = "") -> Iterator[None]:
        """Add cluster and request to an error."""
        try:
            yield
        except ClusterError as error:
            path = "/".join(part for part in (ref.namespace, ref.name) if part)
            error.cluster, error.doing = self._name, f"{verb} {ref.kind.name} {path} {subresource}".rstrip()
            raise

    def _object(self, ref: Ref) -> Manifest:
        """Return an object that is held. Raises NotFound."""
        found = self.find(ref.kind, ref.namespace, ref.name)
        if found is None:
            raise _missing(ref.kind, ref.name)
        return found

    async def _list_real(self, kind: Kind, selection: Selection) -> dict[_Name, bytes]:
        """Return the selected objects of the real cluster, without those deleted here."""
        listed = [] if self._behind is None else (await self._behind.list(kind, selection)).items
        metas = [(_ENVELOPES.decode(raw).metadata, raw) for raw in listed]
        found = {(meta.namespace, meta.name): raw for meta, raw in metas}
        return {name: raw for name, raw in found.items() if (kind, name) not in self._gone}

    async def _lookup(self, ref: Ref) -> bytes | None:
        """Return an object that is held, or that the real cluster has and that was not deleted here, else None."""
        name = (ref.namespace, ref.name)
        if self._behind is not None and name not in self._held[ref.kind] and (ref.kind, name) not in self._gone:
            try:
                found = await self._behind.read(ref)
            except NotFound:
                return self._held[ref.kind].get(name)
            if (ref.kind, name) not in self._gone:
                self._held[ref.kind].setdefault(name, found)
        return self._held[ref.kind].get(name)

    async def _fetched(self, ref: Ref) -> bytes:
        """Return an object as `_lookup` does. Raises NotFound."""
        raw = await self._lookup(ref)
        if raw is None:
            raise _missing(ref.kind, ref.name)
        return raw

    async def _admit(self, ref: Ref, body: Manifest) -> None:
        """Refuse objects in a missing or terminating namespace, and pods without their ServiceAccount."""
        if not ref.namespace:
            return
        namespace = _decoded(await self._fetched(Ref(self._name, NAMESPACE, "", ref.namespace)))
        if "deletionTimestamp" in metadata(namespace):
            message = f"{_resource(ref.kind)} {ref.name} is forbidden: namespace {ref.namespace} is being terminated"
            raise _refused(message, HTTPStatus.FORBIDDEN, "NamespaceTerminating")
        account = (body.get("spec") or {}).get("serviceAccountName") or "default"
        if ref.kind == POD and not await self._lookup(Ref(self._name, SERVICE_ACCOUNT, ref.namespace, account)):
            message = f"pods {ref.name} is forbidden: serviceaccount {ref.namespace}/{account} not found"
            raise _refused(message, HTTPStatus.FORBIDDEN)

    def _revise(self, ref: Ref, before: Manifest, after: Manifest, manager: str, subresource: str = "") -> bytes:
        """Store a change, if there is one. An object that only waited for it is removed."""
        if after == tidied(ref.kind, before):
            return self._held[ref.kind][(ref.namespace, ref.name)]
        stored = with_managed_fields(before, after, self._author(manager), subresource)
        if released(stored):
            self._drop(ref, before)
            return orjson.dumps(stored)
        return self._keep(ref, stored)

    def _keep(self, ref: Ref, manifest: Manifest) -> bytes:
        """Store an object with a new resourceVersion, send its event, and create a namespace's ServiceAccount."""
        stored = self._numbered(manifest)
        raw = orjson.dumps(stored)
        self._held[ref.kind][(ref.namespace, ref.name)] = raw
        for follower in self._followers[ref.kind]:
            follower.stored(raw, stored)
        if ref.kind == NAMESPACE and self.find(SERVICE_ACCOUNT, ref.name, "default") is None:
            self.place(SERVICE_ACCOUNT, {"metadata": {"name": "default", "namespace": ref.name}})
        return raw

    def _drop(self, ref: Ref, manifest: Manifest) -> bytes:
        """Remove an object, send its event, and return its last state with a new resourceVersion."""
        last = self._numbered(manifest)
        raw = orjson.dumps(last)
        name = (ref.namespace, ref.name)
        self._held[ref.kind].pop(name, None)
        self._gone.add((ref.kind, name))
        for follower in self._followers[ref.kind]:
            follower.gone(raw, last)
        return raw

    def _numbered(self, manifest: Manifest) -> Manifest:
        """Return the object with the next resourceVersion."""
        self._count += 1
        return {**manifest, "metadata": {**metadata(manifest), "resourceVersion": str(self._count)}}

    def _fabricated(self) -> str:
        """Return a UID that is unique over all clusters."""
        return MADE_UP + str(uuid5(_UIDS, f"{self._name}/{self._count}"))[len(MADE_UP) :]

    def _author(self, manager: str) -> FieldManager:
        """Return the author of a write now."""
        return FieldManager(manager, timestamp(self._now()))


def _decoded(raw: bytes) -> Manifest:
    """Decode an object, a new one at each call."""
    found: Manifest = orjson.loads(raw)
    return found


def _resource(kind: Kind) -> str:
    """Format a kind as in the API's messages."""
    group, slash, _ = kind.api.partition("/")
    return f"{kind.plural}.{group}" if slash else kind.plural


def _check_name(ref: Ref, meta: Manifest) -> None:
    """Raise Denied if a new object has another name or namespace than the request."""
    name = (meta.get("name") or ref.name, meta.get("namespace") or ref.namespace)
    if name != (ref.name, ref.namespace) and ref.kind.namespaced:
        raise Denied("the object does not have the name and namespace of the request", status=400, reason="BadRequest")


def _check_form(meta: Manifest) -> None:
    """Refuse a new object without a name or with a resourceVersion. A real cluster checks that last."""
    if not meta.get("name"):
        raise Denied("metadata.name: Required value", status=422, reason="Invalid", causes=("FieldValueRequired",))
    if meta.get("resourceVersion"):
        raise Unreachable("resourceVersion should not be set on objects to be created", status=500)


def _missing(kind: Kind, name: str) -> NotFound:
    """Return the error for an object that does not exist."""
    return NotFound(f'{_resource(kind)} "{name}" not found', status=HTTPStatus.NOT_FOUND, reason="NotFound")


def _refused(message: str, status: HTTPStatus, *causes: str) -> Denied:
    """Return the error for a refused request."""
    reason = "Forbidden" if status == HTTPStatus.FORBIDDEN else "MethodNotAllowed"
    return Denied(message, status=status, reason=reason, causes=causes)


def _success(ref: Ref, uid: str) -> bytes:
    """Return the Status that most kinds answer when they are deleted at once."""
    details = {"name": ref.name, "kind": ref.kind.plural, "uid": uid}
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    return orjson.dumps(status)


if TYPE_CHECKING:
    _: type[Cluster] = DryRunCluster
