"""The clusters of a sequence with hostile tenants in memory: an upper and two lower ones, their kubelets, an engine.

The checker checks every object when it is stored and every write of the engine just before it is carried out; all
objects are checked twice a second.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import orjson

from bench.kit.oracles import upper_uid_of
from bench.model.hostility import oracles
from bench.model.hostility.checker import KINDS, IsolationChecker
from bench.model.hostility.choices import Choices
from bench.model.hostility.forging import NOBODY
from bench.model.hostility.honest import OWN
from bench.model.hostility.lateness import ObservedState
from bench.model.hostility.markers import BELOW, HOSTILE_NETWORK, Markers, token_for
from bench.model.hostility.setting import Setting
from bench.model.sequences.controllers import Controllers, Record
from bench.model.sequences.model import LOWERS, is_about
from bench.model.sequences.simulation import BEGIN, OWNER, Simulation
from tensile.errors import ClusterError
from tensile.kube.cluster import Patch, WatchEvent
from tensile.kubelet.api.requests import MirroredPods
from tensile.kubelet.pods.event_mirror import EventMirror
from tensile.names import FIELD_MANAGER
from tensile.objects import (
    CONFIG_MAP,
    EVENT,
    NAMESPACE,
    POD,
    SECRET,
    UPPER,
    Kind,
    Manifest,
    Ref,
    metadata,
    moment_of,
    uid,
)
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.dryrun.patch import patched

TEAM = "team"
"""A lower namespace whose objects have nothing to do with the upper cluster."""
_CLUSTERS = (UPPER, *LOWERS)
_LOOK = 0.5


class PodTokenCluster(DryRunCluster):
    """A cluster in memory whose tokens name their pod, so that they are recognized in any object."""

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Return a token for the pod that the request is bound to."""
        answer = orjson.loads(await super().issue(account, request))
        bound = request["spec"].get("boundObjectRef") or {}
        answer["status"]["token"] = token_for(account.namespace, account.name, bound.get("uid", ""))
        return orjson.dumps(answer)


class Kubelets(Controllers):
    """Kubernetes in one cluster, with kubelets: pods run as soon as they are scheduled, and their status is written.

    `tenant` returns whose marker the status of a pod gets, "" for no marker. Pods of the hostile lower tenant use all
    of their grace period to end.
    """

    markers: Markers | None = None
    tenant: Callable[[Manifest], str] | None = None

    def _run(self, pod: Manifest) -> None:
        """Schedule a pod, run it, and remove it once it is deleted and has no finalizers."""
        if "deletionTimestamp" in metadata(pod):
            if not metadata(pod).get("finalizers") and self._may_go(pod):
                super()._run(pod)
        elif not pod["spec"].get("nodeName"):
            if pod["spec"].get("schedulerName") != NOBODY:
                super()._run(pod)
        elif (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            self._cluster.alter(self._ref(POD, pod), lambda found: found.update(status=self._running(pod)))

    def _may_go(self, pod: Manifest) -> bool:
        """Report whether a deleted pod has ended; otherwise check it again when its grace period is over."""
        assert self.tenant is not None
        if self.tenant(pod) != BELOW:
            return True
        left = _seconds_to(metadata(pod)["deletionTimestamp"])
        if left > 0:
            asyncio.get_running_loop().call_later(left, self.enqueue_all)
        return left <= 0

    def _running(self, pod: Manifest) -> Manifest:
        """Return the status of a running pod; its message and its address identify its tenant."""
        assert self.markers is not None
        assert self.tenant is not None
        whose = self.tenant(pod)
        network = HOSTILE_NETWORK if whose == BELOW else "10.9"
        address = f"{network}.{int(uid(pod)[:2], 16)}.{int(uid(pod)[2:4], 16)}"
        state = {"running": {"startedAt": "2026-03-01T12:00:00Z"}}
        container = {"name": "c", "ready": True, "restartCount": 0, "image": "i", "imageID": "", "state": state}
        ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "PodScheduled")]
        message = {"message": self.markers.new(whose)} if whose else {}
        shown = {"podIP": address, "podIPs": [{"ip": address}], "containerStatuses": [container]}
        return {"phase": "Running", "conditions": ready, **shown, **message}


class DelayedEvents:
    """A watch of the events of a lower cluster that passes them on while an engine runs."""

    def __init__(self, on_event: Callable[[WatchEvent], None]) -> None:
        self.on_event: Callable[[WatchEvent], None] | None = on_event

    def get(self, _namespace: str, _name: str) -> bool:
        """Report that every object is known, so that every change is delivered."""
        return True

    def put(self, raw: bytes) -> None:
        """Pass on an event that is new or changed."""
        if self.on_event is not None:
            self.on_event(WatchEvent("MODIFIED", raw))

    def remove(self, _raw: bytes) -> None:
        """Ignore the deletion of an event."""


class TenantSimulation(Simulation):
    """A simulation with an isolation checker, and the API for tenants' actions; `is_up` is whether an engine runs."""

    def __init__(self, setting: Setting) -> None:
        self.checker = IsolationChecker(setting, OWNER.mark)
        self.ledger = self.checker.ledger
        self.is_up = False
        self._is_hostile = False
        self._mirrors: list[asyncio.Task[None]] = []
        self._event_watches: list[DelayedEvents] = []
        super().__init__(
            self._on_write,
            topologies=(setting.read(),),
            namespaces=setting.namespaces,
            cluster=PodTokenCluster,
            controllers=Kubelets,
        )
        self._held: dict[str, dict[Kind, Record]] = {name: {} for name in _CLUSTERS}
        for name, cluster in self.clusters.items():
            controllers = self.controllers[name]
            assert isinstance(controllers, Kubelets)
            controllers.markers, controllers.tenant = self.ledger.markers, self._tenant
            for kind in KINDS:
                record = self._held[name][kind] = Record(kind, partial(self._stored, name))
                cluster.follow(kind, record, lambda _: True)  # type: ignore[arg-type]
        self._create_tenant_objects()

    # The engine and its connections.

    async def start(self) -> None:
        """Start an engine, with its event mirrors."""
        await super().start()
        assert self._world is not None
        for name in LOWERS:
            mirror = EventMirror(
                self._world.lowers[name], self._world, self.connections[UPPER], partial(self._is_busy, name)
            )
            self._event_watches.append(DelayedEvents(mirror.on_event))
            self.clusters[name].follow(EVENT, self._event_watches[-1], lambda _: True)  # type: ignore[arg-type]
            self._mirrors.append(asyncio.get_running_loop().create_task(mirror.run()))
        self.is_up = True

    async def crash(self) -> None:
        """End the engine without a clean shutdown."""
        for event_watch in self._event_watches:
            event_watch.on_event = None
        for task in self._mirrors:
            task.cancel()
        await asyncio.gather(*self._mirrors, return_exceptions=True)
        self._mirrors.clear()
        self._event_watches.clear()
        self.is_up = False
        self.checker.lateness.reset()
        await super().crash()

    # The interface for tenants.

    def list_objects(self, cluster: str, kind: Kind) -> list[Manifest]:
        """Return all objects of a kind that a cluster holds."""
        return list(self._held[cluster][kind].held.values())

    async def create(self, ref: Ref, body: Manifest, who: str, manager: str = "") -> None:
        """Create an object, as a field manager."""
        whole = {**body, "metadata": {**body.get("metadata", {}), "name": ref.name, "namespace": ref.namespace}}
        with self._acting(who), suppress(ClusterError):
            if manager == FIELD_MANAGER:
                await self.clusters[ref.cluster].create(ref, whole)
            else:
                self.clusters[ref.cluster].place(ref.kind, whole)

    async def patch(self, ref: Ref, change: Manifest, who: str, manager: str = "") -> None:
        """Change an object by a merge patch, as a field manager."""

        def lay_over(found: Manifest) -> None:
            """Merge the patch into the object."""
            after = patched(found, patch)
            found.clear()
            found.update(after)

        patch = Patch("merge-patch", change)
        with self._acting(who), suppress(ClusterError):
            if manager == FIELD_MANAGER:
                await self.clusters[ref.cluster].patch(ref, patch)
            else:
                self.clusters[ref.cluster].alter(ref, lay_over)

    async def delete(self, ref: Ref, found: Manifest, who: str, grace: int | None = None) -> None:
        """Delete exactly the object that was found, by its UID."""
        with self._acting(who), suppress(ClusterError):
            await self.clusters[ref.cluster].delete(ref, uid=uid(found), grace=grace)

    async def read(self, _ref: Ref) -> None:
        """Do nothing, because `inspect` checks all the time where the kubelet API leads."""

    async def inject_fault(self, what: str, number: int) -> None:
        """Apply a fault to the engine or its watches."""
        if what in ("crash", "down") and self.is_up:
            await self.crash()
        if what in ("crash", "up") and not self.is_up:
            await self.start()
        cluster = Choices(number).pick(_CLUSTERS)
        for watch in self.watch_connections if what in ("hold", "release") else ():
            if what == "release" or watch.feed.cluster == cluster:
                watch.is_held = what == "hold"
                watch.deliver()

    async def let_time_pass(self, seconds: float) -> None:
        """Let time pass; then wait until the engine has nothing to do, if there is one."""
        if self.is_up:
            await super().let_time_pass(seconds)
        else:
            await asyncio.sleep(seconds)

    # Checks.

    async def watch(self) -> None:
        """Inspect twice a second, until it is cancelled."""
        while True:
            self.inspect()
            await asyncio.sleep(_LOOK)

    def inspect(self) -> None:
        """Check what can be seen at any moment: what is due, which pods are lost, and where the kubelet API leads."""
        blurred = not self.is_up or any(watch.is_held or watch.drops_events for watch in self.watch_connections)
        self.checker.check_state(self._observed_state(), asyncio.get_running_loop().time(), blurred=blurred)
        self.checker.report(self.defects)
        if self.is_up:
            self.checker.report(self._reached())

    def check_final_state(self) -> None:
        """Check the lower clusters once the engine has nothing to do any more."""
        below = {name: {kind: self.list_objects(name, kind) for kind in KINDS} for name in LOWERS}
        self.checker.check_final_state(below, self.find, asyncio.get_running_loop().time())

    def _observed_state(self) -> ObservedState:
        kinds = {kind.name: kind for kind in KINDS}
        return ObservedState(
            {uid(pod): pod for pod in self.list_objects(UPPER, POD)},
            {name: self.list_objects(name, POD) for name in LOWERS},
            lambda kind, namespace, name: self.find(Ref(UPPER, kinds[kind], namespace, name)) is not None,
        )

    def _reached(self) -> Iterator[str]:
        """Check, for each upper pod on a virtual node, to which lower pod the kubelet API leads."""
        assert self._world is not None
        for name in LOWERS:
            reach = MirroredPods(self._world.lowers[name], OWNER, partial(self.connections.get, name))
            for pod in self.list_objects(UPPER, POD):
                meta = metadata(pod)
                known = self._world.lowers[name].upper_pods.get(meta["namespace"], meta["name"])
                target = reach.locate(meta["namespace"], meta["name"])
                if target is not None and known is not None and known.uid == uid(pod):
                    found = self._held[name][POD].held.get((target.namespace, target.name))
                    yield oracles.reached(pod, (target.namespace, target.name), found, self.ledger)

    def _stored(self, cluster: str, kind: Kind, what: str, manifest: Manifest) -> None:
        ref = Ref(cluster, kind, metadata(manifest).get("namespace", ""), metadata(manifest)["name"])
        if self._is_hostile and cluster != UPPER:
            self.ledger.hostile.add(uid(manifest))
        self.checker.check_stored(ref, manifest, _now(), gone=what == "DELETED")

    def _on_write(self, verb: str, ref: Ref, content: Any) -> None:
        """Check a write of the engine just before it is carried out."""
        seen = self.find(ref)
        if ref.cluster != UPPER and seen is not None and verb != "create" and is_about(seen, content):
            self.checker.check_write(verb, ref, seen, self.find)
        if ref.cluster == UPPER and ref.kind == POD and verb == "delete" and seen is not None:
            is_asked = content != uid(seen) or "deletionTimestamp" in metadata(seen)
            self.checker.report([] if is_asked else [f"{verb} {ref}: no user deleted it"])

    def _tenant(self, pod: Manifest) -> str:
        """Return whose marker the status of a lower pod gets: the upper namespace of its upper pod."""
        if uid(pod) in self.ledger.hostile:
            return BELOW
        return self.ledger.uppers.get(upper_uid_of(pod), ("", "", ""))[1]

    @contextmanager
    def _acting(self, who: str) -> Iterator[None]:
        """Attribute everything that is stored during the block to a tenant."""
        self._is_hostile = who == BELOW
        try:
            yield
        finally:
            self._is_hostile = False

    def _is_busy(self, lower: str) -> bool:
        return self._loop is not None and bool(self._loop.depth.get(lower))

    # Objects that exist from the beginning.

    def _create_tenant_objects(self) -> None:
        upper, setting = self.clusters[UPPER], self.ledger.setting
        for space in setting.namespaces:
            found = upper.find(NAMESPACE, "", space)
            assert found is not None
            self.ledger.note(Ref(UPPER, NAMESPACE, "", space), found, 0.0)
            meta = {"name": "kube-root-ca.crt", "namespace": space}
            upper.place(CONFIG_MAP, {"metadata": meta, "data": {"ca.crt": "authority"}})
        for lower in LOWERS:
            there = [TEAM] if setting.mapping == "prefix" else [TEAM, setting.hostile]
            for space in dict.fromkeys([*there, *self._granted(lower)]):
                self.clusters[lower].place(NAMESPACE, {"metadata": {"name": space}})
            for space in there:
                self._place_stranger(lower, SECRET, {"name": OWN, "namespace": space})
            self._place_stranger(lower, CONFIG_MAP, {"name": "config", "namespace": TEAM})

    def _granted(self, lower: str) -> Iterator[str]:
        """Return the namespace of the hostile lower tenant, unless the engine creates it."""
        setting = self.ledger.setting
        if setting.lower == lower and (not setting.mapped or setting.mapping == "same"):
            yield self.ledger.lower_namespaces.hostile_namespace()

    def _place_stranger(self, lower: str, kind: Kind, meta: Manifest) -> None:
        stored = self.clusters[lower].place(kind, {"metadata": meta, "data": {"k": "c2VjcmV0"}})
        self.ledger.strangers[Ref(lower, kind, meta["namespace"], meta["name"])] = stored


def _seconds_to(moment: str) -> float:
    return (moment_of(moment) - BEGIN).total_seconds() - asyncio.get_running_loop().time()


def _now() -> float:
    """Return the seconds since the sequence began, 0 before it begins."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop().time()
    return 0.0
