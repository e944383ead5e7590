"""Leader election among the engines of one topology, by a Lease in the upper cluster and a label on the leader's pod.

The election of the `kubernetes` package is not usable: it relies on the wall clock, writes local times as UTC, and lets
a hanging request outlive the lease. It also does not release the lease when its holder ends.

The lease prevents two engines from working against each other. A paused leader may still have writes in flight when it
is replaced. These are harmless, because each write names the object's UID or resourceVersion. The age of a lease is
measured by the local clock since it was last seen to change, never by the times in it.

The label lets a Service select the leader, whose extender has the reservations in memory. It is checked repeatedly: a
killed container restarts in a pod that still has it, and a pod of a dead machine keeps it for minutes. So the new
leader removes it from all other pods.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from uuid import uuid4

import orjson
import structlog

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound
from tensile.kube.cluster import Cluster, Patch, Selection
from tensile.kube.net import cancel_and_wait, supervised
from tensile.names import LEADS, Owner
from tensile.objects import LEASE, POD, UPPER, Manifest, Ref, as_read, metadata, uid
from tensile.reconcile.ownership import is_ours

NAMESPACE = "kube-system"
"""The namespace of the lease in the upper cluster, wherever the engines run and whatever their topology's source is.

Objects are marked by the UID of this namespace and the topology's name alone, so all engines with equal marks must
compete for one lease. The namespace exists in every cluster, Kubernetes' own controllers keep their leases in it, and a
role can name this very lease. kube-node-lease is not used, though the engine has permissions there: a lease in it
belongs to the Node of its name, whose kubelet may write it, and some controllers delete leases without a Node
(Gardener; Karpenter did).
"""
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
BOTH_UNDO = "both undo each other's changes: stop one, or run both with --leader-elect"
"""What two engines of one topology do without leader election, and the remedy."""
_MAX_DURATION_FACTOR = 4.0
"""A lease is trusted for at most this multiple of our own duration, so that one of ten years locks no engine out."""
_MAX_TRANSITIONS = (1 << 31) - 1
"""Maximum that the API accepts; one more, and every write that acquires the lease would be refused."""
_RELEASE_TIMEOUT = 2.0
"""Seconds in which a lease must be released at the end; otherwise it expires."""
_READ_TIMEOUT = 2.0
"""Timeout in seconds for one read of the lease by an engine without leader election."""
_CHECK_INTERVAL = 30.0
"""Seconds between two checks of the labels, in case another client has changed one."""
_RETRY_DELAY = 1.0
_UNLABEL_TIMEOUT = 1.0
"""Timeout in seconds for removing the label at the end; what follows must not wait long."""
_log = structlog.get_logger("tensile.engine.leader_election")


class LeaseTimings(NamedTuple):
    """Seconds: a lease's duration, after how long without renewal its holder gives up, and between two attempts.

    A renewal waits `request_timeout` seconds for its response, so that one that hangs does not take the time of the
    next. The time between giving up and the end of the lease is for stopping.
    """

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    request_timeout: float = 5.0


def new_identity() -> str:
    """Return the identity of an engine that starts in this process: the host, the process, and what makes it unique."""
    return f"{socket.gethostname()}_{os.getpid()}_{uuid4().hex[:8]}"


def lease_ref(topology: str) -> Ref:
    """Return the ref of a topology's lease, which all engines whose objects have the same marks share."""
    return Ref(UPPER, LEASE, NAMESPACE, f"tensile-{topology}")


def holder(lease: Manifest | None) -> str:
    """Return the engine that holds a lease, "" for none."""
    return str(_spec(lease).get("holderIdentity") or "")


def is_free(lease: Manifest | None, unchanged: float, timings: LeaseTimings) -> bool:
    """Report whether a lease may be acquired that has been seen unchanged for so many seconds."""
    return not holder(lease) or unchanged >= held_for(lease, timings)


def held_for(lease: Manifest | None, timings: LeaseTimings) -> float:
    """Return for how many seconds a lease is valid: at least our own duration, and at most a few times that.

    Its holder renews it in time for what it wrote itself, and another client may have written something else since.
    """
    recorded = _spec(lease).get("leaseDurationSeconds")
    seconds = float(recorded) if isinstance(recorded, int | float) else timings.lease_duration
    return min(max(seconds, timings.lease_duration), _MAX_DURATION_FACTOR * timings.lease_duration)


def active_holder(lease: Manifest, now: datetime) -> str:
    """Return the engine that holds a lease that was read once, "" for none.

    It relies on that engine's clock, so use it for warnings only.
    """
    spec = _spec(lease)
    if not spec.get("renewTime"):
        return ""
    age = (now - datetime.fromisoformat(spec["renewTime"])).total_seconds()
    return "" if is_free(lease, age, LeaseTimings()) else holder(lease)


def new_lease(ref: Ref, identity: str, owner: Owner, now: datetime, timings: LeaseTimings) -> Manifest:
    """Return the lease that an engine creates if there is none."""
    meta = {
        "name": ref.name,
        "namespace": ref.namespace,
        "labels": owner.label,
        "annotations": owner.signed(owner.upper),
    }
    spec = {
        **_renewal_fields(now, timings),
        "holderIdentity": identity,
        "acquireTime": now.strftime(_TIME_FORMAT),
        "leaseTransitions": 0,
    }
    return {"apiVersion": LEASE.api, "kind": LEASE.name, "metadata": meta, "spec": spec}


def acquire_patch(lease: Manifest, identity: str, now: datetime, timings: LeaseTimings) -> Patch:
    """Return the patch by which an engine acquires a lease; it fails if another engine was faster."""
    transitions = min(int(_spec(lease).get("leaseTransitions") or 0) + 1, _MAX_TRANSITIONS)
    times = {**_renewal_fields(now, timings), "acquireTime": now.strftime(_TIME_FORMAT)}
    return _spec_patch(lease, {**times, "holderIdentity": identity, "leaseTransitions": transitions})


def renew_patch(lease: Manifest, now: datetime, timings: LeaseTimings) -> Patch:
    """Return the patch by which the holder renews a lease."""
    return _spec_patch(lease, _renewal_fields(now, timings))


def release_patch(lease: Manifest) -> Patch:
    """Return the patch by which the holder releases a lease."""
    return _spec_patch(lease, {"holderIdentity": ""})


def _renewal_fields(now: datetime, timings: LeaseTimings) -> dict[str, Any]:
    return {"leaseDurationSeconds": int(timings.lease_duration), "renewTime": now.strftime(_TIME_FORMAT)}


def _spec_patch(lease: Manifest, spec: dict[str, Any]) -> Patch:
    return Patch("merge-patch", {"metadata": as_read(lease), "spec": spec})


def _spec(lease: Manifest | None) -> dict[str, Any]:
    return (lease or {}).get("spec") or {}


async def warn_of_leader(upper: Cluster, ref: Ref, now: datetime) -> None:
    """Log if another engine leads by this lease while this one runs without leader election.

    The check is skipped if the upper cluster does not respond quickly.
    """
    try:
        async with asyncio.timeout(_READ_TIMEOUT):
            leader = active_holder(orjson.loads(await upper.read(ref)), now)
    except (ClusterError, TimeoutError):
        return
    if leader:
        _log.warning(f"another engine leads this topology, and {BOTH_UNDO}", lease=str(ref), leader=leader)


class Election:
    """The part of one engine in the election; call in this order: `acquire`, `renew_until_lost`, `release_lease`.

    `identity` distinguishes it from all others. `now` returns the time of day in UTC, and `owner` whose the lease is,
    once that is known.
    """

    def __init__(
        self,
        upper: Cluster,
        ref: Ref,
        owner: Callable[[], Owner],
        identity: str,
        now: Callable[[], datetime],
        *,
        timings: LeaseTimings | None = None,
    ) -> None:
        self.leads = False
        self._may_hold = False
        """Whether the lease may have been acquired by a write whose response was not received."""
        self._upper = upper
        self._ref = ref
        self._owner = owner
        self._identity = identity
        self._now = now
        self._timings = timings or LeaseTimings()
        self._lease: Manifest | None = None
        self._unchanged_since = 0.0
        self._missing_since: float | None = None
        """Since when a lease is missing that was seen with a holder."""
        self._renewed_at = 0.0
        """When the write was sent by which the lease is held: no other engine can have seen it change earlier."""
        self._last_reason = ""

    async def acquire(self) -> None:
        """Return when this engine leads; each reason to wait is logged once."""
        while True:
            self.leads = await self._try_acquire()
            if self.leads:
                break
            await asyncio.sleep(self._timings.retry_period)
        _log.info("became leader", lease=str(self._ref), identity=self._identity)

    async def renew_until_lost(self) -> str:
        """Renew the lease as long as possible; return why it was lost. The engine must not write from then on."""
        reason = await self._renew_while_possible()
        self.leads = False
        return reason

    async def release_lease(self) -> None:
        """Release the lease if this engine still holds it; called when the engine has stopped all writes."""
        if not (self.leads or self._may_hold):
            return
        self.leads = self._may_hold = False
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await self._release()
        except NotFound:
            return
        except (ClusterError, TimeoutError) as error:
            _log.warning("lease not released, it will expire", lease=str(self._ref), error=str(error))

    async def _release(self) -> None:
        """Release the lease after reading it: a renewal that timed out may have changed it."""
        lease = await self._read()
        if holder(lease) == self._identity:
            await self._upper.patch(self._ref, release_patch(lease))

    async def _try_acquire(self) -> bool:
        """Acquire the lease if it is free; report whether that succeeded."""
        try:
            async with asyncio.timeout(self._timings.renew_deadline):
                return await self._acquire()
        except (Conflict, AlreadyExists):
            return False
        except TimeoutError:
            self._log_waiting("the upper cluster does not respond", _log.warning)
        except ClusterError as error:
            self._log_waiting(str(error), _log.warning)
        return False

    async def _acquire(self) -> bool:
        self._renewed_at = self._clock()
        try:
            lease = await self._read()
        except NotFound:
            return await self._create()
        self._observe(lease)
        if not is_ours(lease, self._owner()):
            message = f"{self._ref} belongs to another owner and is left unchanged: delete it, or rename the topology"
            self._log_waiting(message, _log.warning)
            return False
        if not self._is_mine(lease) and not is_free(lease, self._clock() - self._unchanged_since, self._timings):
            self._log_waiting(f"{holder(lease)} is the leader", _log.info)
            return False
        self._may_hold = True
        self._observe(await self._patch(acquire_patch(lease, self._identity, self._now(), self._timings)))
        return True

    @property
    def leader(self) -> str:
        """The identity of the engine that held the lease when it was read last, "" for none."""
        return holder(self._lease)

    async def _create(self) -> bool:
        """Create the lease, unless it was deleted while another engine held it: that one leads until it finds out."""
        leader = holder(self._lease)
        self._missing_since = self._clock() if self._missing_since is None else self._missing_since
        if leader not in ("", self._identity) and self._clock() - self._missing_since < self._timings.lease_duration:
            self._log_waiting(f"the lease was deleted, but {leader} may still be the leader", _log.warning)
            return False
        body = new_lease(self._ref, self._identity, self._owner(), self._now(), self._timings)
        self._may_hold = True
        self._observe(orjson.loads(await self._upper.create(self._ref, body)))
        return True

    def _is_mine(self, lease: Manifest) -> bool:
        """Report whether this engine holds a lease by a write whose response it did not receive."""
        return self._may_hold and holder(lease) == self._identity

    async def _renew_while_possible(self) -> str:
        """Renew repeatedly; a failed renewal is retried until the time to give up."""
        reason = ""
        while (seconds_left := self._seconds_left()) > 0:
            try:
                async with asyncio.timeout(min(seconds_left, self._timings.request_timeout)):
                    sent_at = self._clock()
                    if not await self._renew():
                        return f"{holder(self._lease) or 'no engine'} holds the lease"
                    self._renewed_at = sent_at
            except TimeoutError:
                reason = reason or "the upper cluster does not respond"
            except ClusterError as error:
                reason = str(error)
            await asyncio.sleep(max(0.0, min(self._timings.retry_period, self._seconds_left())))
        return f"not renewed for {self._timings.renew_deadline:g} s: {reason or 'this process did not run meanwhile'}"

    def _seconds_left(self) -> float:
        """Return the seconds until it is time to give up."""
        return self._renewed_at + self._timings.renew_deadline - self._clock()

    async def _renew(self) -> bool:
        """Renew once, also if another client changed the lease; report whether this engine still holds it."""
        assert self._lease is not None, "it was won"
        try:
            self._lease = await self._patch(renew_patch(self._lease, self._now(), self._timings))
        except NotFound:
            self._lease = None
        except Conflict:
            self._lease = await self._read()
            if holder(self._lease) == self._identity:
                self._lease = await self._patch(renew_patch(self._lease, self._now(), self._timings))
        return holder(self._lease) == self._identity

    async def _read(self) -> Manifest:
        found: Manifest = orjson.loads(await self._upper.read(self._ref))
        return found

    async def _patch(self, patch: Patch) -> Manifest:
        found: Manifest = orjson.loads(await self._upper.patch(self._ref, patch))
        return found

    def _observe(self, lease: Manifest) -> None:
        """Store a lease, and since when it is unchanged."""
        if self._lease is None or metadata(lease)["resourceVersion"] != metadata(self._lease)["resourceVersion"]:
            self._unchanged_since = self._clock()
        self._lease, self._missing_since = lease, None

    def _log_waiting(self, reason: str, log: Callable[..., object]) -> None:
        if reason != self._last_reason:
            log("waiting to become leader", lease=str(self._ref), why=reason)
        self._last_reason = reason

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()


def own_pod(environment: Mapping[str, str]) -> Ref | None:
    """Return the ref of the pod this process runs in, from POD_NAMESPACE and POD_NAME; None if they are not set."""
    namespace, name = environment.get("POD_NAMESPACE", ""), environment.get("POD_NAME", "")
    return Ref(UPPER, POD, namespace, name) if namespace and name else None


def mislabelled(pods: Iterable[Manifest], own: str, *, leads: bool) -> list[Manifest]:
    """Return the labelled pods that should not have the label; those of other engines only if this engine leads."""
    return [pod for pod in pods if (metadata(pod)["name"] == own) != leads]


def label_patch(pod: Manifest, topology: str) -> Patch:
    """Return the patch that labels a pod as the topology's leader; its UID is the precondition."""
    return Patch("merge-patch", {"metadata": {"uid": uid(pod), "labels": {LEADS: topology}}})


def unlabel_patch(pod: Manifest) -> Patch:
    """Return the patch that removes the label; fails if the pod has changed, because its engine may lead by now."""
    return Patch("merge-patch", {"metadata": {**as_read(pod), "labels": {LEADS: None}}})


class LeaderLabel:
    """The label on one engine's pod, from `open` to `close`; does nothing without a pod (None).

    The pod is labelled as the leader of this topology once `lead` was called.
    """

    def __init__(self, upper: Cluster, pod: Ref | None, topology: str) -> None:
        self.leads = False
        self._upper = upper
        self._pod = pod
        self._topology = topology
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_reason = ""

    def open(self) -> None:
        """Start without the label."""
        if self._pod is not None:
            self._task = supervised("leader label", self._run)

    def lead(self) -> None:
        """Add the label from now on."""
        self.leads = True
        self._changed.set()

    def lose(self) -> None:
        """Stop leading because another engine does; that engine removes the label, so nothing here waits for it."""
        self.leads = False

    async def close(self) -> None:
        """Stop; a leader removes its label, if that is quick."""
        if self._task is None:
            return
        await cancel_and_wait(self._task)
        if not self.leads:
            return
        self.leads = False
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(_UNLABEL_TIMEOUT):
                await self.reconcile()

    async def reconcile(self) -> None:
        """Make the labels right with as few writes as possible; raises ClusterError."""
        if self._pod is None:
            return
        selection = Selection(self._pod.namespace, labels=f"{LEADS}={self._topology}")
        found: list[Manifest] = (await self._upper.list(POD, selection, orjson.loads)).items
        if self.leads and all(metadata(pod)["name"] != self._pod.name for pod in found):
            own = orjson.loads(await self._upper.read(self._pod))
            await self._upper.patch(self._pod, label_patch(own, self._topology))
        for pod in mislabelled(found, self._pod.name, leads=self.leads):
            with suppress(NotFound):
                await self._upper.patch(self._pod._replace(name=metadata(pod)["name"]), unlabel_patch(pod))

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            delay = await self._reconcile_once()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._changed.wait()

    async def _reconcile_once(self) -> float:
        """Make the labels right and return the seconds until the next check; each failure is logged once."""
        error_message, delay = "", _CHECK_INTERVAL
        try:
            await self.reconcile()
        except Conflict:
            return _RETRY_DELAY
        except (Denied, NotFound) as error:
            error_message = str(error)
        except ClusterError as error:
            error_message, delay = str(error), _RETRY_DELAY
        if error_message and error_message != self._last_reason:
            message = "cannot label the leader's pod: Services that select the leader do not reach it"
            _log.warning(message, pod=str(self._pod), error=error_message)
        self._last_reason = error_message
        return delay
