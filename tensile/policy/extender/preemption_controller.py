"""Preemption for pods that only lower nodes refuse: at the kube-scheduler's request, and on the extender's own account.

A kube-scheduler that preempts sends virtual nodes with the victims that the sum requires. The answer replaces these
with the victims after whose end a lower node has room, and omits virtual nodes that have none. Only the best of several
is returned, and its room is reserved at once; otherwise the next pod, perhaps a victim's successor, would take it.

If the sum has room but no lower node has, the kube-scheduler finds no victims, and `PreemptionController` preempts
instead. It does so as the scheduler does: it nominates the pod, sets condition DisruptionTarget on the victims and
deletes them, and the scheduler binds the pod once they are gone. The scheduler has its turn first: if it preempts by
itself, on whatever node, it calls the extender within `SCHEDULER_SECONDS`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import orjson
import structlog

from tensile.errors import ClusterError, Conflict, Denied, NotFound
from tensile.kube.cluster import Cluster, Patch, Selection
from tensile.kube.limits import LogThrottle
from tensile.kubelet.pods.conditions import DISRUPTION
from tensile.names import COMPONENT, ConditionReason, EventReason
from tensile.objects import DISRUPTION_BUDGET, POD, UPPER, Manifest, Ref, as_read, metadata, timestamp, uid
from tensile.policy.extender.extender import LowerCandidate, SchedulerExtender, UnschedulablePod, unbound_pod
from tensile.policy.extender.node_cache import Nominee
from tensile.policy.extender.victim_selection import (
    Budget,
    NodeVictims,
    Preemptor,
    Resident,
    VirtualNodeView,
    budget_of,
    choices,
    counted,
    may_preempt,
    priority_of,
)
from tensile.policy.placement.placement import is_too_complex
from tensile.policy.placement.snapshot import Pod
from tensile.reconcile.desired import EmitEvent
from tensile.reconcile.plan import event

PREEMPTED: EventReason = "Preempted"
"""On a pod: it is deleted to make room for a pod of a higher priority, as kube-scheduler does. Remedy: nothing."""
BY_SCHEDULER: ConditionReason = "PreemptionByScheduler"
"""`DisruptionTarget`: the pod is deleted to make room for a pod of a higher priority, as kube-scheduler does.
Remedy: nothing."""
_FIELD = "NodeNameToMetaVictims"
SCHEDULER_SECONDS = 0.5
"""Seconds within which a scheduler that has found victims by itself calls the extender."""
_RETRY_SECONDS = 5.0
"""Seconds after which a write that a cluster refused is retried."""
_MEDIA = "strategic-merge-patch"
_WITHOUT_BUDGETS = "preemption is disabled: PodDisruptionBudgets cannot be read"
_log = structlog.get_logger("tensile.extender")


class BestVictims(NamedTuple):
    """The virtual node with the least costly preemption and its victims; `pod` is the preemptor, as in the lower."""

    name: str
    pod: Pod
    choice: NodeVictims


class PreemptResponder:
    """Chooses victims for the pods in requests to an extender."""

    def __init__(self, extender: SchedulerExtender) -> None:
        self._extender = extender

    def answer(
        self, args: Mapping[str, Any], budgets: Collection[Budget] | None, now: float
    ) -> Iterator[dict[str, Any]]:
        """Yield the ExtenderPreemptionResult for an ExtenderPreemptionArgs; the last one is complete.

        Nodes that are not virtual are passed through. Without `budgets` (None: not readable) no virtual node is
        returned. Nor is one if preemption costs less behind a virtual node that is not offered, because its sum has
        room: the `PreemptionController` does that.
        """
        pod, offered = args["Pod"], args[_FIELD]
        nodes = {name: one for name, one in offered.items() if name not in self._extender.sites}
        answer = {_FIELD: nodes}
        if self._is_under_way(pod, offered):
            yield {_FIELD: {}}
            return
        best = None
        if budgets is not None:
            uids = {name: {one["UID"] for one in victims.get("Pods") or ()} for name, victims in offered.items()}
            unschedulable = None if nodes else self._extender.wants.get(uid(pod))
            uids = {**{name: set[str]() for name in (unschedulable.names if unschedulable is not None else ())}, **uids}
            for best in self.best(pod, uids, budgets):  # noqa: B007 - the last one counts
                yield answer
        if best is not None and best.name in offered and self.nominate(pod, best, now):
            victim_uids = [{"UID": one.pod.uid} for one in best.choice.victims]
            nodes[best.name] = {"Pods": victim_uids, "NumPDBViolations": best.choice.violations}
        if nodes:
            self._extender.wants.pop(uid(pod), None)
        yield answer

    def best(
        self, pod: Manifest, offered: Mapping[str, Collection[str]], budgets: Collection[Budget]
    ) -> Iterator[BestVictims | None]:
        """Yield the best of some virtual nodes, as far as it is known after each lower node; the last one counts.

        `offered` maps each virtual node to the UIDs of the victims that the sum requires.
        """
        best = None
        for name, uids in offered.items():
            candidate = self._extender.sites.get(name)
            preemptor = preemptor_of(pod, candidate) if candidate is not None else None
            virtual_node = candidate.virtual_node() if candidate is not None else None
            if candidate is None or preemptor is None or virtual_node is None or not may_preempt(pod):
                continue
            for choice in choices(
                preemptor, candidate.cache, virtual_node, budgets, counted(preemptor, virtual_node, uids)
            ):
                if choice is not None and (best is None or choice.cost < best.choice.cost):
                    best = BestVictims(name, preemptor.lower, choice)
                yield best

    def nominate(self, pod: Manifest, best: BestVictims, now: float) -> bool:
        """Reserve the room that the victims free for a pod; report whether all victims still exist.

        Nominees of lower priority on that node lose their reservation.
        """
        candidate = self._extender.sites.get(best.name)
        virtual_node = candidate.virtual_node() if candidate is not None else None
        if candidate is None or virtual_node is None or not _are_all_present(best.choice, virtual_node):
            return False
        priority = priority_of(pod)
        for name, one in candidate.cache.nominees(priority).items():
            if one.node == best.choice.node:
                candidate.cache.forget(name)
        nominee = Nominee(uid(pod), priority, best.choice.names)
        candidate.cache.assume(best.pod, best.choice.node, now, nominee)
        return True

    def release(self, pod: Manifest, best: BestVictims) -> None:
        """Release that reservation."""
        candidate = self._extender.sites.get(best.name)
        if candidate is not None:
            candidate.cache.forget(candidate.name_of(pod))

    def _is_under_way(self, pod: Manifest, offered: Collection[str]) -> bool:
        """Report whether pods are already preempted for this pod on a virtual node that is not offered."""
        sites = self._extender.sites
        return any(self._extender.nomination(name, pod) is not None for name in sites if name not in offered)


def preemptor_of(pod: Manifest, candidate: LowerCandidate) -> Preemptor | None:
    """Return the pod as it is in the upper and in a lower cluster; None if a preemption cannot be judged there."""
    manifest = candidate.project(pod) if candidate.is_known() and metadata(pod).get("name") else None
    lower = unbound_pod(manifest) if manifest is not None else None
    if lower is None or is_too_complex(lower, candidate.cache.snapshot):
        return None
    return Preemptor(unbound_pod(pod), lower, priority_of(pod))


def _are_all_present(choice: NodeVictims, virtual_node: VirtualNodeView) -> bool:
    """Report whether all victims are still bound to the virtual node; a scheduler accepts no others."""
    residents = (virtual_node.residents.get(name) for name in choice.names)
    uids = {one.pod.uid for one in residents if one is not None}
    return uids == {one.pod.uid for one in choice.victims}


class PreemptionController:
    """Preempts for the `wants` of the current extender (`extender` returns None without one), while `run` runs.

    `clock` returns monotonic seconds, the same clock as the extender's; `now` returns the time of day. `evicted` counts
    the pods that were deleted to make room, by virtual node.
    """

    def __init__(
        self,
        upper: Cluster,
        extender: Callable[[], SchedulerExtender | None],
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._upper = upper
        self._extender = extender
        self._clock = clock
        self._now = now
        self.evicted: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._throttle = LogThrottle(clock)

    def wake(self) -> None:
        """Wake `run` if there are wants; called after each answer of the extender."""
        extender = self._extender()
        if extender is not None and extender.wants:
            self._wake.set()

    async def budgets(self) -> Collection[Budget] | None:
        """Return the upper cluster's PodDisruptionBudgets, None if they cannot be read."""
        try:
            return await self._list_budgets()
        except ClusterError as error:
            self._warn(_WITHOUT_BUDGETS, error)
            return None

    async def _list_budgets(self) -> Collection[Budget]:
        """Return the PodDisruptionBudgets; raises ClusterError."""
        found = await self._upper.list(DISRUPTION_BUDGET, Selection(), lambda raw: budget_of(orjson.loads(raw)))
        return found.items

    async def run(self) -> None:
        """Handle wants indefinitely, each when it is due."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (extender := self._extender()) is not None and extender.wants:
                first = min(extender.wants.values(), key=lambda one: one.since)
                await asyncio.sleep(max(0.0, first.since + SCHEDULER_SECONDS - self._clock()))
                await self.handle_due()

    async def handle_due(self) -> None:
        """Handle the wants that are due now."""
        extender = self._extender()
        for key, unschedulable in tuple(extender.wants.items()) if extender is not None else ():
            if (
                extender is not None
                and extender.wants.get(key) is unschedulable
                and unschedulable.since + SCHEDULER_SECONDS <= self._clock()
            ):
                del extender.wants[key]
                await self._process(unschedulable, extender)

    async def _process(self, unschedulable: UnschedulablePod, extender: SchedulerExtender) -> None:
        """Preempt for a pod, if that helps; retry after an error, unless the scheduler calls again meanwhile."""
        try:
            await self._preempt(unschedulable, PreemptResponder(extender))
        except (NotFound, Conflict) as error:
            _log.debug("preemption skipped: the pod has changed", error=str(error))
        except ClusterError as error:
            self._warn("preemption failed", error)
            extender.wants.setdefault(
                uid(unschedulable.pod), unschedulable._replace(since=self._clock() + _RETRY_SECONDS - SCHEDULER_SECONDS)
            )

    async def _preempt(self, unschedulable: UnschedulablePod, selector: PreemptResponder) -> None:
        meta = metadata(unschedulable.pod)
        ref = Ref(UPPER, POD, meta["namespace"], meta["name"])
        pod: Manifest = orjson.loads(await self._upper.read(ref))
        if uid(pod) != uid(unschedulable.pod) or not self._may_preempt_now(pod):
            return
        try:
            budgets = await self._list_budgets()
        except Denied as error:
            self._warn(_WITHOUT_BUDGETS, error)
            return
        best = None
        for best in selector.best(pod, dict.fromkeys(unschedulable.names, ()), budgets):  # noqa: B007 - the last one counts
            await asyncio.sleep(0)
        if best is None or not selector.nominate(pod, best, self._clock()):
            return
        try:
            await self._nominate(ref, pod, best)
        except ClusterError:
            selector.release(pod, best)
            raise
        victims = best.choice.fresh
        location = {"node": best.name, "behind": best.choice.node}
        _log.info("preempting", pod=f"{ref.namespace}/{ref.name}", **location, victims=len(victims))
        await self._end_victims(victims, pod, best)

    def _may_preempt_now(self, pod: Manifest) -> bool:
        """Report whether a pod still waits, and not all of its victims are terminating yet.

        A victim of its own that is not, was left by an error.
        """
        extender, status = self._extender(), pod.get("status") or {}
        if extender is None or pod["spec"].get("nodeName") or "deletionTimestamp" in metadata(pod):
            return False
        nominated = status.get("nominatedNodeName")
        candidate = extender.sites.get(nominated) if nominated else None
        if not nominated or candidate is None:
            return not nominated and may_preempt(pod)
        reservation = extender.nomination(nominated, pod)
        victims = reservation.nominee.victims if reservation is not None and reservation.nominee is not None else ()
        residents = (candidate.residents.pods.get(name) for name in victims)
        is_unfinished = any(one is not None and not one.pod.ending for one in residents)
        return may_preempt(pod) and (is_unfinished or not candidate.residents.is_awaited(priority_of(pod)))

    async def _nominate(self, ref: Ref, pod: Manifest, best: BestVictims) -> None:
        """Set the pod's nominatedNodeName, unless the pod was changed since it was read."""
        if (pod.get("status") or {}).get("nominatedNodeName") != best.name:
            body = {"metadata": as_read(pod), "status": {"nominatedNodeName": best.name}}
            await self._upper.patch(ref, Patch(_MEDIA, body), "status")

    async def _end_victims(self, victims: Iterable[Resident], pod: Manifest, best: BestVictims) -> None:
        """End all victims that can be; raises the first error of the others."""
        failed: ClusterError | None = None
        for victim in victims:
            try:
                await self._end_victim(victim, pod, best)
            except ClusterError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def _end_victim(self, victim: Resident, pod: Manifest, best: BestVictims) -> None:
        """Set a victim's condition and delete it, unless it is gone already; then emit an event."""
        ref = Ref(UPPER, POD, victim.pod.namespace, victim.pod.name)
        try:
            await self._upper.patch(ref, Patch(_MEDIA, _disruption_patch(victim, timestamp(self._now()))), "status")
            await self._upper.delete(ref, uid=victim.pod.uid)
        except (NotFound, Conflict):
            return
        self.evicted[best.name] += 1
        message = f"Preempted by pod {uid(pod)} on node {best.name}"
        step = event(EmitEvent(ref, victim.pod.uid, PREEMPTED, message, warning=False), self._now())
        try:
            await self._upper.create(step.ref, step.body or {})
        except ClusterError as error:
            _log.debug("Event for a preempted pod could not be created", error=str(error))

    def _warn(self, message: str, error: ClusterError) -> None:
        """Log a warning; the same one is rate-limited."""
        self._throttle.log((message, type(error)), lambda more: _log.warning(message, error=str(error), **more))


def _disruption_patch(victim: Resident, now: str) -> dict[str, Any]:
    """Return the patch that sets a victim's DisruptionTarget condition, with kube-scheduler's reason and message."""
    condition = {
        "type": DISRUPTION,
        "status": "True",
        "reason": BY_SCHEDULER,
        "message": f"{COMPONENT}: preempting to accommodate a higher priority pod",
        "lastTransitionTime": now,
    }
    return {"metadata": {"uid": victim.pod.uid}, "status": {"conditions": [condition]}}
