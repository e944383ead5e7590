"""The namespaces of one sequence on real clusters: the API for tenants' actions there, and the checks.

Hostile tenants act as users of their own, who may do anything in their one namespace and nothing elsewhere; every other
client is an administrator.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from bench.kit.faultproxy.journal import Write
from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import MERGE, Refused, Site, until
from bench.model.hostility import oracles
from bench.model.hostility.checker import KINDS, IsolationChecker
from bench.model.hostility.forging import FINALIZER
from bench.model.hostility.honest import OWN
from bench.model.hostility.lateness import ObservedState
from bench.model.hostility.markers import ABOVE, BELOW
from bench.model.hostility.object_watches import ObjectWatches
from bench.model.hostility.setting import Setting
from bench.model.hostility.shared_faults import SharedFaults
from tensile.objects import (
    CONFIG_MAP,
    NAMESPACE,
    POD,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Manifest,
    Ref,
    uid,
)
from tensile.objects import metadata as meta_of
from tensile.sandbox.state import UPPER as UPPER_SITE

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_LIMIT = 30.0
_STALE = 10.0
"""Seconds for which a real engine may act on an older state."""
_LOOK, _BLIND = 0.5, 1.5
_BY_PLURAL = {kind.plural: kind for kind in KINDS}
_CHANGES = ("patch", "update", "delete")


class RealTenantClusters:
    """The API for tenants' actions in the namespaces of one sequence, with its checker; used with `async with`."""

    def __init__(self, rig: Rig, object_watches: ObjectWatches, shared_faults: SharedFaults, setting: Setting) -> None:
        tag = uuid4().hex[:6]
        own = setting._replace(is_cut=False, topology=rig.name, tag=f"-{tag}", has_driver=False)
        self.checker = IsolationChecker(own, rig.mark, _STALE)
        self.ledger = self.checker.ledger
        self._rig = rig
        self._object_watches = object_watches
        self._shared_faults = shared_faults
        self._setting = own
        self._start = len(rig.journal)
        self._logs = len(shared_faults.logs)
        self._users = {ABOVE: f"mallory-above-{tag}", BELOW: f"mallory-below-{tag}"}
        self._is_granted = False
        self._seen: dict[str, tuple[Ref, Manifest]] = {}
        self._ending: set[str] = set()
        self._wanted: set[tuple[str, str]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Self":
        for space in self._everywhere():
            self._object_watches.listeners[space] = self._hear
        for space in self._setting.namespaces:
            await self._make_namespace(UPPER, space)
        await self._grant(UPPER, self._setting.hostile, ABOVE)
        for lower in LOWERS:
            await self._create_initial_objects(lower)
        await until(self._has_initial_objects, "namespaces have what Kubernetes puts there", _LIMIT)
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        assert self._watching is not None
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        for cluster in (UPPER, *LOWERS):
            await self._clear(cluster)
        for space in self._everywhere():
            self._object_watches.listeners.pop(space, None)

    # The interface for tenants.

    def find(self, ref: Ref) -> Manifest | None:
        """Return an object in its last observed state."""
        return self._object_watches.find(ref)

    def list_objects(self, cluster: str, kind: Kind) -> list[Manifest]:
        """Return all objects of a kind in the namespaces of this sequence."""
        spaces = self._everywhere()
        return [one for (space, _), one in list(self._object_watches.held[cluster, kind].items()) if space in spaces]

    async def create(self, ref: Ref, body: Manifest, who: str, manager: str = "") -> None:
        """Create an object, as a field manager; pods of the hostile lower tenant get a status message."""
        whole = {**body, "metadata": {**body.get("metadata", {}), "name": ref.name, "namespace": ref.namespace}}
        if who == BELOW and not await self._may_act():
            return
        with suppress(Refused):
            made = await self._call(ref, "POST", _path(ref._replace(name=""), manager), whole, who=who)
            if who == BELOW:
                self.ledger.hostile.add(uid(made))
            if who == BELOW and ref.kind == POD:
                status_patch = {"status": {"message": self.ledger.markers.new(BELOW)}}
                await self._call(ref, "PATCH", f"{ref.path('status')}", status_patch, media=MERGE)

    async def patch(self, ref: Ref, change: Manifest, who: str, manager: str = "") -> None:
        """Change an object by a merge patch, as a field manager."""
        if who != BELOW or await self._may_act():
            with suppress(Refused):
                await self._call(ref, "PATCH", _path(ref, manager), change, who=who, media=MERGE)

    async def delete(self, ref: Ref, found: Manifest, who: str, grace: int | None = None) -> None:
        """Delete exactly the object that was found, by its UID."""
        options: Manifest = {"preconditions": {"uid": uid(found)}}
        options |= {} if grace is None else {"gracePeriodSeconds": grace}
        self._ending.add(uid(found))
        with suppress(Refused):
            await self._call(ref, "DELETE", ref.path(), options, who=who)

    async def read(self, ref: Ref) -> None:
        """Read the log of an upper pod through the kubelet API of its virtual node.

        The director of the proxies records which lower pod's log is read.
        """
        with suppress(Exception):
            async with asyncio.timeout(5):
                path = f"{ref.path('log')}?container=c&tailLines=1"
                await (await self._site(UPPER).session.get(path)).read()

    async def inject_fault(self, what: str, number: int) -> None:
        """Apply a fault to the engine or its watches, which all sequences share."""
        await self._shared_faults.inject_fault(what, number)

    async def let_time_pass(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(min(seconds, 2.0))

    # Checks.

    def writes_since(self, start: int) -> list[Write]:
        """Return the engine's completed writes in these namespaces, after the first `start` writes."""
        spaces = self._everywhere()
        return [one for one in self._rig.journal.since(start) if one.is_done and one.request.namespace in spaces]

    def check_final_state(self) -> None:
        """Check the final objects, writes and log reads of the whole sequence, once nothing is left to do."""
        now = asyncio.get_running_loop().time()
        below = {name: {kind: self.list_objects(name, kind) for kind in KINDS} for name in LOWERS}
        self.checker.check_final_state(below, self.find, now)
        self.checker.report(self._violations())
        self.checker.report(self._read_elsewhere())

    def _violations(self) -> Iterator[str]:
        for write in self.writes_since(self._start):
            request, kind = write.request, _BY_PLURAL.get(write.request.resource)
            if request.verb not in _CHANGES or kind is None:
                continue
            if (
                request.cluster == UPPER_SITE
                and kind == POD
                and request.verb == "delete"
                and request.uid not in self._ending
            ):
                yield f"{request}: no user deleted it"
            if request.cluster != UPPER_SITE and request.uid in self._seen:
                ref, seen = self._seen[request.uid]
                yield oracles.touched(request.verb, ref, seen, self.ledger, is_wanted=self._was_wanted(ref))

    def _was_wanted(self, ref: Ref) -> bool:
        return (
            bool(self.ledger.lower_namespaces.above(ref.cluster, ref.namespace))
            and (ref.kind.name, ref.name) in self._wanted
        )

    def _read_elsewhere(self) -> Iterator[str]:
        """Return which logs were read that belong to no honest pod."""
        for lower, namespace, name in self._shared_faults.logs[self._logs :]:
            places = {self.ledger.lower_namespaces.of(one, lower) for one in self._setting.honest}
            if namespace in self._everywhere() and namespace not in places:
                yield f"the log of {namespace}/{name} in {lower} was read for an honest pod"

    def _hear(self, ref: Ref, manifest: Manifest, at: float, gone: bool) -> None:  # noqa: FBT001 - a listener
        if "deletionTimestamp" in meta_of(manifest):
            self._ending.add(uid(manifest))
        if ref.cluster == UPPER:
            self._wanted.add((ref.kind.name, ref.name))
        else:
            self._seen[uid(manifest)] = (ref, manifest)
        self.checker.check_stored(ref, manifest, at, gone=gone)

    async def _watch(self) -> None:
        """Inspect twice a second; what was due while no inspection was possible does not count."""
        kinds, last = {kind.name: kind for kind in KINDS}, asyncio.get_running_loop().time()
        while True:
            last, before = asyncio.get_running_loop().time(), last
            if last - before > _BLIND:
                self.checker.lateness.reset()
            state = ObservedState(
                {uid(pod): pod for pod in self.list_objects(UPPER, POD)},
                {name: self.list_objects(name, POD) for name in LOWERS},
                lambda kind, namespace, name: self.find(Ref(UPPER, kinds[kind], namespace, name)) is not None,
            )
            self.checker.check_state(state, last, blurred=self._shared_faults.is_state_uncertain)
            await asyncio.sleep(_LOOK)

    # Objects that exist from the beginning, and are deleted in the end.

    def _everywhere(self) -> set[str]:
        """Return the names of all namespaces of this sequence, in all clusters."""
        setting, places = self._setting, self.ledger.lower_namespaces
        below = {places.of(space, lower) for space in setting.namespaces for lower in LOWERS}
        return {*setting.namespaces, *below, places.hostile_namespace()} - {""}

    async def _create_initial_objects(self, lower: str) -> None:
        setting, clusters = self._setting, self.ledger.lower_namespaces.hostile_namespace()
        there = {setting.hostile} if setting.mapping == "same" else set()
        is_his = setting.lower == lower and (not setting.mapped or setting.mapping == "same")
        for space in sorted(there | ({clusters} if is_his else set())):
            await self._make_namespace(lower, space)
        for space in there:
            ref = Ref(lower, SECRET, space, OWN)
            meta = {"name": OWN, "namespace": space}
            made = await self._call(
                ref, "POST", _path(ref._replace(name="")), {"metadata": meta, "data": {"k": "eA=="}}
            )
            self.ledger.strangers[ref] = made

    async def _has_initial_objects(self) -> bool:
        """Report whether every upper namespace has its default ServiceAccount and the ConfigMap of the cluster's CA."""
        found = [
            self.find(Ref(UPPER, kind, space, name)) is not None
            for space in self._setting.namespaces
            for kind, name in ((SERVICE_ACCOUNT, "default"), (CONFIG_MAP, "kube-root-ca.crt"))
        ]
        return all(found)

    async def _may_act(self) -> bool:
        """Let the hostile lower tenant write in his namespace, as soon as it exists; report whether he may."""
        if not self._is_granted:
            clusters, lower = self.ledger.lower_namespaces.hostile_namespace(), self._setting.lower
            if self.find(Ref(lower, NAMESPACE, "", clusters)) is None:
                return False
            await self._grant(lower, clusters, BELOW)
            self._is_granted = True
        return True

    async def _grant(self, cluster: str, namespace: str, who: str) -> None:
        subject = {"kind": "User", "name": self._users[who], "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"}
        body = {"metadata": {"name": self._users[who]}, "roleRef": role, "subjects": [subject]}
        with suppress(Refused):
            ref = Ref(cluster, ROLE_BINDING, namespace, "")
            made = await self._call(ref, "POST", ref.path().rstrip("/"), body)
            self.ledger.strangers[ref._replace(name=self._users[who])] = made

    async def _make_namespace(self, cluster: str, name: str) -> None:
        with suppress(Refused):
            await self._call(Ref(cluster, NAMESPACE, "", name), "POST", NAMESPACE.path(), {"metadata": {"name": name}})

    async def _clear(self, cluster: str) -> None:
        """Delete everything in the namespaces of this sequence; finalizers of hostile tenants are removed."""
        for kind in KINDS[1:]:
            for one in self.list_objects(cluster, kind):
                meta = meta_of(one)
                ref = Ref(cluster, kind, meta["namespace"], meta["name"])
                if FINALIZER in (meta.get("finalizers") or ()):
                    await self.patch(ref, {"metadata": {"finalizers": None}}, "")
                if kind == POD:
                    await self.delete(ref, one, "", 0)
        for space in self._everywhere():
            await self._site(cluster).delete(NAMESPACE.path("", space))

    async def _call(
        self, ref: Ref, method: str, path: str, body: Manifest, *, who: str = "", media: str = "application/json"
    ) -> Manifest:
        return await self._site(ref.cluster).call(method, path, body, media, self._users.get(who, ""))

    def _site(self, cluster: str) -> Site:
        return self._rig.sites[cluster or UPPER_SITE]


def _path(ref: Ref, manager: str = "") -> str:
    """Return the path of an object, or of a collection if the name is empty, with the field manager."""
    return ref.kind.path(ref.namespace, ref.name) + (f"?fieldManager={manager}" if manager else "")
