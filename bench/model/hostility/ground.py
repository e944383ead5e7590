"""The namespaces of one play on real clusters: the interface for tenants' actions there, and the checks.

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
from bench.model.hostility.forging import FINALIZER
from bench.model.hostility.honest import OWN
from bench.model.hostility.lateness import Sight
from bench.model.hostility.lookout import Lookout
from bench.model.hostility.marks import ABOVE, BELOW
from bench.model.hostility.setting import Setting
from bench.model.hostility.storms import Storms
from bench.model.hostility.watchman import KINDS, Watchman
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


class RealArena:
    """The interface for tenants' actions in the namespaces of one play, with a watchman; used with `async with`."""

    def __init__(self, rig: Rig, lookout: Lookout, storms: Storms, setting: Setting) -> None:
        tag = uuid4().hex[:6]
        own = setting._replace(is_cut=False, topology=rig.name, tag=f"-{tag}", has_driver=False)
        self.watchman = Watchman(own, rig.mark, _STALE)
        self.ledger = self.watchman.ledger
        self._rig = rig
        self._lookout = lookout
        self._storms = storms
        self._setting = own
        self._start = len(rig.journal)
        self._logs = len(storms.logs)
        self._users = {ABOVE: f"mallory-above-{tag}", BELOW: f"mallory-below-{tag}"}
        self._is_granted = False
        self._seen: dict[str, tuple[Ref, Manifest]] = {}
        self._ending: set[str] = set()
        self._wanted: set[tuple[str, str]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Self":
        for space in self._everywhere():
            self._lookout.listeners[space] = self._hear
        for space in self._setting.spaces:
            await self._make_namespace(UPPER, space)
        await self._grant(UPPER, self._setting.hostile, ABOVE)
        for lower in LOWERS:
            await self._furnish(lower)
        await until(self._is_furnished, "namespaces have what Kubernetes puts there", _LIMIT)
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
            self._lookout.listeners.pop(space, None)

    # The interface for tenants.

    def find(self, ref: Ref) -> Manifest | None:
        """Return an object in its last observed state."""
        return self._lookout.find(ref)

    def every(self, cluster: str, kind: Kind) -> list[Manifest]:
        """Return all objects of a kind in the namespaces of this play."""
        spaces = self._everywhere()
        return [one for (space, _), one in list(self._lookout.held[cluster, kind].items()) if space in spaces]

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
                said = {"status": {"message": self.ledger.marks.new(BELOW)}}
                await self._call(ref, "PATCH", f"{ref.path('status')}", said, media=MERGE)

    async def patch(self, ref: Ref, change: Manifest, who: str, manager: str = "") -> None:
        """Change an object by a merge patch, as a field manager."""
        if who != BELOW or await self._may_act():
            with suppress(Refused):
                await self._call(ref, "PATCH", _path(ref, manager), change, who=who, media=MERGE)

    async def delete(self, ref: Ref, found: Manifest, who: str, grace: int | None = None) -> None:
        """Delete exactly the object that was found, by its UID."""
        asked: Manifest = {"preconditions": {"uid": uid(found)}}
        asked |= {} if grace is None else {"gracePeriodSeconds": grace}
        self._ending.add(uid(found))
        with suppress(Refused):
            await self._call(ref, "DELETE", ref.path(), asked, who=who)

    async def read(self, ref: Ref) -> None:
        """Read the log of an upper pod through the kubelet API of its virtual node.

        The director of the proxies records which lower pod's log is read.
        """
        with suppress(Exception):
            async with asyncio.timeout(5):
                path = f"{ref.path('log')}?container=c&tailLines=1"
                await (await self._site(UPPER).session.get(path)).read()

    async def befall(self, what: str, number: int) -> None:
        """Apply a fault to the engine or its watches, which all plays share."""
        await self._storms.befall(what, number)

    async def rest(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(min(seconds, 2.0))

    # Checks.

    def written(self, start: int) -> list[Write]:
        """Return the engine's completed writes in these namespaces, after the first `start` writes."""
        spaces = self._everywhere()
        return [one for one in self._rig.journal.since(start) if one.is_done and one.asked.namespace in spaces]

    def inspect_at_the_end(self) -> None:
        """Check the final objects, and the writes and log reads of the whole play, once there is nothing left to do."""
        now = asyncio.get_running_loop().time()
        below = {name: {kind: self.every(name, kind) for kind in KINDS} for name in LOWERS}
        self.watchman.look_at_the_end(below, self.find, now)
        self.watchman.say(self._misdeeds())
        self.watchman.say(self._read_elsewhere())

    def _misdeeds(self) -> Iterator[str]:
        for write in self.written(self._start):
            asked, kind = write.asked, _BY_PLURAL.get(write.asked.resource)
            if asked.verb not in _CHANGES or kind is None:
                continue
            if asked.cluster == UPPER_SITE and kind == POD and asked.verb == "delete" and asked.uid not in self._ending:
                yield f"{asked}: nobody deleted it"
            if asked.cluster != UPPER_SITE and asked.uid in self._seen:
                ref, seen = self._seen[asked.uid]
                yield oracles.touched(asked.verb, ref, seen, self.ledger, is_wanted=self._was_wanted(ref))

    def _was_wanted(self, ref: Ref) -> bool:
        return bool(self.ledger.places.above(ref.cluster, ref.namespace)) and (ref.kind.name, ref.name) in self._wanted

    def _read_elsewhere(self) -> Iterator[str]:
        """Return which logs were read that belong to no honest pod."""
        for lower, namespace, name in self._storms.logs[self._logs :]:
            places = {self.ledger.places.of(one, lower) for one in self._setting.honest}
            if namespace in self._everywhere() and namespace not in places:
                yield f"the log of {namespace}/{name} in {lower} was read for an honest pod"

    def _hear(self, ref: Ref, manifest: Manifest, at: float, gone: bool) -> None:  # noqa: FBT001 - a listener
        if "deletionTimestamp" in meta_of(manifest):
            self._ending.add(uid(manifest))
        if ref.cluster == UPPER:
            self._wanted.add((ref.kind.name, ref.name))
        else:
            self._seen[uid(manifest)] = (ref, manifest)
        self.watchman.stored(ref, manifest, at, gone=gone)

    async def _watch(self) -> None:
        """Inspect twice a second; what was due while no inspection was possible does not count."""
        kinds, last = {kind.name: kind for kind in KINDS}, asyncio.get_running_loop().time()
        while True:
            last, before = asyncio.get_running_loop().time(), last
            if last - before > _BLIND:
                self.watchman.lateness.excuse()
            sight = Sight(
                {uid(pod): pod for pod in self.every(UPPER, POD)},
                {name: self.every(name, POD) for name in LOWERS},
                lambda kind, namespace, name: self.find(Ref(UPPER, kinds[kind], namespace, name)) is not None,
            )
            self.watchman.look(sight, last, blurred=self._storms.blurred)
            await asyncio.sleep(_LOOK)

    # Objects that exist from the beginning, and are deleted in the end.

    def _everywhere(self) -> set[str]:
        """Return the names of all namespaces of this play, in all clusters."""
        setting, places = self._setting, self.ledger.places
        below = {places.of(space, lower) for space in setting.spaces for lower in LOWERS}
        return {*setting.spaces, *below, places.ground()} - {""}

    async def _furnish(self, lower: str) -> None:
        setting, ground = self._setting, self.ledger.places.ground()
        there = {setting.hostile} if setting.mapping == "same" else set()
        is_his = setting.lower == lower and (not setting.mapped or setting.mapping == "same")
        for space in sorted(there | ({ground} if is_his else set())):
            await self._make_namespace(lower, space)
        for space in there:
            ref = Ref(lower, SECRET, space, OWN)
            meta = {"name": OWN, "namespace": space}
            made = await self._call(
                ref, "POST", _path(ref._replace(name="")), {"metadata": meta, "data": {"k": "eA=="}}
            )
            self.ledger.strangers[ref] = made

    async def _is_furnished(self) -> bool:
        """Report whether every upper namespace has its default ServiceAccount and the ConfigMap of the cluster's CA."""
        found = [
            self.find(Ref(UPPER, kind, space, name)) is not None
            for space in self._setting.spaces
            for kind, name in ((SERVICE_ACCOUNT, "default"), (CONFIG_MAP, "kube-root-ca.crt"))
        ]
        return all(found)

    async def _may_act(self) -> bool:
        """Let the hostile lower tenant write in his namespace, as soon as it exists; report whether he may."""
        if not self._is_granted:
            ground, lower = self.ledger.places.ground(), self._setting.lower
            if self.find(Ref(lower, NAMESPACE, "", ground)) is None:
                return False
            await self._grant(lower, ground, BELOW)
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
        """Delete everything in the namespaces of this play; finalizers of hostile tenants are removed."""
        for kind in KINDS[1:]:
            for one in self.every(cluster, kind):
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
