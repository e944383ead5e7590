"""Has one of several engines of a topology lead, by a Lease in the upper cluster.

Ours, because the election that comes with the `kubernetes` package reckons by the time of day, writes local times as
UTC, lets a request that hangs outlive the lease, and does not give a lease back when its holder ends.

The Lease by which the engines of one topology agree on the one that drives: what it says, and what to write.

It rules out that two work against each other, not that two write: a leader that was paused may have writes on their
way when it is replaced. Those are harmless, as each of our writes says which object it means, in which state. How old
a lease is counts from when it was last seen to change, by one's own clock: what is written in it is another's time.

Marks the pod of the engine that drives by a label, so that a Service can lead to that one of several.

The upper scheduler has to ask the engine that drives, since what was promised is in its memory. The label is looked at
again and again: a container that was killed is started again in a pod that still has it, and a pod of a dead machine
keeps it for minutes, so the engine that takes over takes it off all others.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import orjson
import structlog

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound
from tensile.kube.cluster import Cluster, Patch, Selection
from tensile.kube.net import supervised
from tensile.names import LEADS, Owner
from tensile.objects import LEASE, POD, UPPER, Manifest, Ref, as_read, metadata, uid
from tensile.reconcile.ownership import is_ours

NAMESPACE = "kube-system"
"""Where the lease is in the upper cluster, wherever its engines run and whatever their topology comes from.

Objects are marked by the UID of this namespace and the topology's name alone, so all whose marks are alike have to meet
at one lease. It is in every cluster, Kubernetes' own controllers have theirs here, and a role can name this very lease.
Not kube-node-lease, though the engine has rights there anyway: a lease there is that of the Node of its name, whose
kubelet may write it, and some who look after clusters delete those without a Node (Gardener; Karpenter did).
"""
_MICRO = "%Y-%m-%dT%H:%M:%S.%fZ"
_LONGEST = 4.0
"""So many times as long as ours a lease is believed to hold: who writes ten years into one keeps nobody away by it."""
_MOST_TRANSITIONS = (1 << 31) - 1
"""What the API takes: with one more it would refuse every write that takes the lease."""


class Pace(NamedTuple):
    """Seconds: for how long a lease holds, after how long its holder gives up, and between two looks at it.

    A renewal waits so long for its `answer`: one that hangs shall not take the time in which others would be answered.
    What lies between giving up and the end of the lease is the time to stop in.
    """

    holds: float = 15.0
    gives_up: float = 10.0
    look: float = 2.0
    answer: float = 5.0


def lease_ref(topology: str) -> Ref:
    """Name the lease of a topology: the one of all engines whose objects have the same marks."""
    return Ref(UPPER, LEASE, NAMESPACE, f"tensile-{topology}")


def holder(lease: Manifest | None) -> str:
    """Return the engine that holds a lease, "" for none."""
    return str(_spec(lease).get("holderIdentity") or "")


def is_free(lease: Manifest | None, unchanged: float, pace: Pace) -> bool:
    """Report whether a lease may be taken that has been seen not to change for so many seconds."""
    return not holder(lease) or unchanged >= held_for(lease, pace)


def held_for(lease: Manifest | None, pace: Pace) -> float:
    """Return for how many seconds a lease holds: not shorter than ours do, whatever it says, and not much longer.

    Its holder renews it in time for what it wrote itself, and somebody else may have written something else since.
    """
    given = _spec(lease).get("leaseDurationSeconds")
    wanted = float(given) if isinstance(given, int | float) else pace.holds
    return min(max(wanted, pace.holds), _LONGEST * pace.holds)


def kept_by(lease: Manifest, now: datetime) -> str:
    """Return the engine that keeps a lease which was read once, "" for none; as right as its clock is: only to warn."""
    spec = _spec(lease)
    if not spec.get("renewTime"):
        return ""
    age = (now - datetime.fromisoformat(spec["renewTime"])).total_seconds()
    return "" if is_free(lease, age, Pace()) else holder(lease)


def new(ref: Ref, identity: str, owner: Owner, now: datetime, pace: Pace) -> Manifest:
    """Return the lease that an engine makes where there is none."""
    meta = {
        "name": ref.name,
        "namespace": ref.namespace,
        "labels": owner.label,
        "annotations": owner.signed(owner.upper),
    }
    spec = {**_terms(now, pace), "holderIdentity": identity, "acquireTime": now.strftime(_MICRO), "leaseTransitions": 0}
    return {"apiVersion": LEASE.api, "kind": LEASE.name, "metadata": meta, "spec": spec}


def taken(lease: Manifest, identity: str, now: datetime, pace: Pace) -> Patch:
    """Return the write by which an engine takes a lease; it fails where somebody else was quicker."""
    transitions = min(int(_spec(lease).get("leaseTransitions") or 0) + 1, _MOST_TRANSITIONS)
    times = {**_terms(now, pace), "acquireTime": now.strftime(_MICRO)}
    return _written(lease, {**times, "holderIdentity": identity, "leaseTransitions": transitions})


def renewed(lease: Manifest, now: datetime, pace: Pace) -> Patch:
    """Return the write by which its holder keeps a lease."""
    return _written(lease, _terms(now, pace))


def given_back(lease: Manifest) -> Patch:
    """Return the write by which its holder leaves a lease to others at once."""
    return _written(lease, {"holderIdentity": ""})


def _terms(now: datetime, pace: Pace) -> dict[str, Any]:
    return {"leaseDurationSeconds": int(pace.holds), "renewTime": now.strftime(_MICRO)}


def _written(lease: Manifest, spec: dict[str, Any]) -> Patch:
    return Patch("merge-patch", {"metadata": as_read(lease), "spec": spec})


def _spec(lease: Manifest | None) -> dict[str, Any]:
    return (lease or {}).get("spec") or {}


_PARTING = 2.0
"""Seconds in which a lease has to be given back; after them it runs out by itself."""
_GLANCE = 2.0
"""Seconds that an engine which takes no turns has for a look at the lease."""
_log = structlog.get_logger("tensile.engine.leader_election")


async def warn_of_leader(upper: Cluster, ref: Ref, now: datetime) -> None:
    """Tell, if it can be seen at once, that another engine leads by this lease while this one drives without it."""
    try:
        async with asyncio.timeout(_GLANCE):
            leader = kept_by(orjson.loads(await upper.read(ref)), now)
    except (ClusterError, TimeoutError):
        return
    if leader:
        words = "another engine of this topology drives too, and they undo each other's work: end one, or run with "
        _log.warning(f"{words}--leader-elect, to stand by", lease=str(ref), leader=leader)


class Election:
    """One engine's part in it: `identity` tells it from all others; `now` gives the time of day, in UTC.

    `owner` says whose the lease is, once that is known. Used in this order: `won`, `lost`, `resign`.
    """

    def __init__(
        self,
        upper: Cluster,
        ref: Ref,
        owner: Callable[[], Owner],
        identity: str,
        now: Callable[[], datetime],
        *,
        pace: Pace | None = None,
    ) -> None:
        self.leads = False
        self._asks = False
        """Whether the lease may have been taken by a write whose answer nobody has seen."""
        self._upper = upper
        self._ref = ref
        self._owner = owner
        self._identity = identity
        self._now = now
        self._pace = pace or Pace()
        self._lease: Manifest | None = None
        self._since = 0.0
        self._gone: float | None = None
        """Since when the lease is missing that somebody was seen to hold."""
        self._fresh = 0.0
        """When the write was sent by which the lease holds: nobody else can have seen it change earlier."""
        self._said = ""

    async def won(self) -> None:
        """Return when this engine leads; whom or what it waits for is told once."""
        while True:
            self.leads = await self._tried()
            if self.leads:
                break
            await asyncio.sleep(self._pace.look)
        _log.info("this engine leads", lease=str(self._ref), identity=self._identity)

    async def lost(self) -> str:
        """Renew the lease for as long as that goes; returns what ended it. From then on nothing may be driven."""
        why = await self._kept()
        self.leads = False
        return why

    async def resign(self) -> None:
        """Leave the lease to another engine, if this one still holds it; called when nothing is driven any more."""
        if not (self.leads or self._asks):
            return
        self.leads = self._asks = False
        try:
            async with asyncio.timeout(_PARTING):
                await self._give_back()
        except NotFound:
            return
        except (ClusterError, TimeoutError) as error:
            _log.warning("the lease could not be given back: it runs out", lease=str(self._ref), error=str(error))

    async def _give_back(self) -> None:
        """Look first: a renewal whose answer nobody waited for may have changed the lease."""
        lease = await self._read()
        if holder(lease) == self._identity:
            await self._upper.patch(self._ref, given_back(lease))

    async def _tried(self) -> bool:
        """Take the lease if it is free; says whether that came about."""
        try:
            async with asyncio.timeout(self._pace.gives_up):
                return await self._taken()
        except (Conflict, AlreadyExists):
            return False
        except TimeoutError:
            self._say("the upper cluster does not answer", _log.warning)
        except ClusterError as error:
            self._say(str(error), _log.warning)
        return False

    async def _taken(self) -> bool:
        self._fresh = self._clock()
        try:
            lease = await self._read()
        except NotFound:
            return await self._made()
        self._see(lease)
        if not is_ours(lease, self._owner()):
            words = f"{self._ref} is not ours, and stays as it is: delete it, or give the topology another name"
            self._say(words, _log.warning)
            return False
        if not self._is_mine(lease) and not is_free(lease, self._clock() - self._since, self._pace):
            self._say(f"{holder(lease)} leads", _log.info)
            return False
        self._asks = True
        self._see(await self._patched(taken(lease, self._identity, self._now(), self._pace)))
        return True

    async def _made(self) -> bool:
        """Make the lease, unless it was taken from under who held it: that one drives until it finds out."""
        leader = holder(self._lease)
        self._gone = self._clock() if self._gone is None else self._gone
        if leader not in ("", self._identity) and self._clock() - self._gone < self._pace.holds:
            self._say(f"{leader} led when the lease was deleted, and may not know yet", _log.warning)
            return False
        body = new(self._ref, self._identity, self._owner(), self._now(), self._pace)
        self._asks = True
        self._see(orjson.loads(await self._upper.create(self._ref, body)))
        return True

    def _is_mine(self, lease: Manifest) -> bool:
        """Report whether a lease is held by a write of this engine whose answer it has not seen."""
        return self._asks and holder(lease) == self._identity

    async def _kept(self) -> str:
        """Renew; a renewal that fails is tried again until the time to give up has come."""
        why = ""
        while (left := self._left()) > 0:
            try:
                async with asyncio.timeout(min(left, self._pace.answer)):
                    begun = self._clock()
                    if not await self._renewed():
                        return f"{holder(self._lease) or 'nobody'} holds it"
                    self._fresh = begun
            except TimeoutError:
                why = why or "the upper cluster does not answer"
            except ClusterError as error:
                why = str(error)
            await asyncio.sleep(max(0.0, min(self._pace.look, self._left())))
        return f"it could not be renewed for {self._pace.gives_up:g} s: {why or 'this engine was stopped meanwhile'}"

    def _left(self) -> float:
        """Return the seconds until it is time to give up."""
        return self._fresh + self._pace.gives_up - self._clock()

    async def _renewed(self) -> bool:
        """Renew once, whoever wrote what else to the lease; says whether this engine still holds it."""
        assert self._lease is not None, "it was won"
        try:
            self._lease = await self._patched(renewed(self._lease, self._now(), self._pace))
        except NotFound:
            self._lease = None
        except Conflict:
            self._lease = await self._read()
            if holder(self._lease) == self._identity:
                self._lease = await self._patched(renewed(self._lease, self._now(), self._pace))
        return holder(self._lease) == self._identity

    async def _read(self) -> Manifest:
        found: Manifest = orjson.loads(await self._upper.read(self._ref))
        return found

    async def _patched(self, patch: Patch) -> Manifest:
        found: Manifest = orjson.loads(await self._upper.patch(self._ref, patch))
        return found

    def _see(self, lease: Manifest) -> None:
        """Take a lease as it is now, and note since when it is so."""
        if self._lease is None or metadata(lease)["resourceVersion"] != metadata(self._lease)["resourceVersion"]:
            self._since = self._clock()
        self._lease, self._gone = lease, None

    def _say(self, why: str, tell: Callable[..., object]) -> None:
        if why != self._said:
            tell("waiting to lead", lease=str(self._ref), why=why)
        self._said = why

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()


_LOOK = 30.0
"""Seconds between two looks, in case somebody else has changed a label."""
_RETRY = 1.0
_LABEL_PARTING = 1.0
"""Seconds in which the mark has to be taken off at the end: what comes after it must not wait for long."""


def own_pod(environment: Mapping[str, str]) -> Ref | None:
    """Name the pod that this program runs in, by POD_NAMESPACE and POD_NAME; None where they are not given."""
    namespace, name = environment.get("POD_NAMESPACE", ""), environment.get("POD_NAME", "")
    return Ref(UPPER, POD, namespace, name) if namespace and name else None


def wrong(pods: Iterable[Manifest], own: str, *, leads: bool) -> list[Manifest]:
    """Return those of the pods with the mark that should not have it: another's only where this engine leads."""
    return [pod for pod in pods if (metadata(pod)["name"] == own) != leads]


def marked(pod: Manifest, topology: str) -> Patch:
    """Return the write by which a pod has the mark of a topology: that very pod, whatever else it has."""
    return Patch("merge-patch", {"metadata": {"uid": uid(pod), "labels": {LEADS: topology}}})


def unmarked(pod: Manifest) -> Patch:
    """Return the write by which a pod has no mark, unless it was written since: its engine may lead by now."""
    return Patch("merge-patch", {"metadata": {**as_read(pod), "labels": {LEADS: None}}})


class LeadMark:
    """The mark of one engine's pod (None: it has no pod, and nothing is done), from `open` to `close`.

    It says that the engine of this topology leads once `lead` was called.
    """

    def __init__(self, upper: Cluster, pod: Ref | None, topology: str) -> None:
        self.leads = False
        self._upper = upper
        self._pod = pod
        self._topology = topology
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._said = ""

    def open(self) -> None:
        """Begin, without the mark."""
        if self._pod is not None:
            self._task = supervised("the mark of the pod that leads", self._keep)

    def lead(self) -> None:
        """Have the mark from now on."""
        self.leads = True
        self._changed.set()

    def lose(self) -> None:
        """Lead no more, since another one does: it takes the mark off, and nothing is to wait for that here."""
        self.leads = False

    async def close(self) -> None:
        """Look no more; who leads takes the mark off, if that goes quickly."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self.leads:
            return
        self.leads = False
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(_LABEL_PARTING):
                await self.settle()

    async def settle(self) -> None:
        """Make it so, by as few writes as it takes; raises ClusterError."""
        if self._pod is None:
            return
        selection = Selection(self._pod.namespace, labels=f"{LEADS}={self._topology}")
        found: list[Manifest] = (await self._upper.list(POD, selection, orjson.loads)).items
        if self.leads and all(metadata(pod)["name"] != self._pod.name for pod in found):
            own = orjson.loads(await self._upper.read(self._pod))
            await self._upper.patch(self._pod, marked(own, self._topology))
        for pod in wrong(found, self._pod.name, leads=self.leads):
            with suppress(NotFound):
                await self._upper.patch(self._pod._replace(name=metadata(pod)["name"]), unmarked(pod))

    async def _keep(self) -> None:
        while True:
            self._changed.clear()
            rest = await self._tried()
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._changed.wait()

    async def _tried(self) -> float:
        """Make it so; says once why that does not go, and gives the seconds until the next look."""
        why, rest = "", _LOOK
        try:
            await self.settle()
        except Conflict:
            return _RETRY
        except (Denied, NotFound) as error:
            why = str(error)
        except ClusterError as error:
            why, rest = str(error), _RETRY
        if why and why != self._said:
            words = "the pod of this engine cannot be marked as the one that drives: no Service leads to it by that"
            _log.warning(words, pod=str(self._pod), error=why)
        self._said = why
        return rest
