"""Preempts for pods that the kube-scheduler finds no victims for: where the sum has room, and no real node has.

It is done as the scheduler does it: the pod is nominated, its victims get the condition DisruptionTarget and are
deleted, and the scheduler sends the pod once they have gone. First the scheduler has its turn: where it preempts by
itself, on whatever node, it asks the extender within the same moment.
"""

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

import orjson
import structlog

from tensile.cluster import Cluster, Patch, Selection
from tensile.errors import ClusterError, Conflict, NotFound
from tensile.names import COMPONENT
from tensile.objects import DISRUPTION_BUDGET, POD, UPPER, Manifest, Ref, as_read, metadata, timestamp, uid
from tensile.policy.extender import Extender, Want
from tensile.policy.preempting import Best, Preempting
from tensile.policy.residents import Resident, may_preempt, priority_of
from tensile.policy.victims import Budget, budget_of
from tensile.reconcile.desired import Told
from tensile.reconcile.plan import event
from tensile.telemetry import Seldom

PATIENCE = 0.5
"""Seconds in which a scheduler that has found victims by itself asks about them."""
_AGAIN = 5.0
"""Seconds after which what a cluster refused is tried again."""
_MEDIA = "strategic-merge-patch"
_log = structlog.get_logger("tensile.extender")


class Preemptor:
    """Sees to the wants of the extender that `extender` gives (None: there is none); `run` does so until it is ended.

    `clock` gives monotonic seconds, as the extender is given them; `now` the time of day.
    """

    def __init__(
        self,
        upper: Cluster,
        extender: Callable[[], Extender | None],
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._upper = upper
        self._extender = extender
        self._clock = clock
        self._now = now
        self._wanted = asyncio.Event()
        self._seldom = Seldom(clock)

    def heed(self) -> None:
        """Look for wants: the extender has answered."""
        extender = self._extender()
        if extender is not None and extender.wants:
            self._wanted.set()

    async def budgets(self) -> Collection[Budget] | None:
        """Return the upper cluster's disruption budgets, None where they cannot be read."""
        try:
            found = await self._upper.list(DISRUPTION_BUDGET, Selection(), lambda raw: budget_of(orjson.loads(raw)))
        except ClusterError as error:
            self._tell("nobody is preempted: disruption budgets cannot be read", error)
            return None
        return found.items

    async def run(self) -> None:
        """See to wants, each when it is due."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while (extender := self._extender()) is not None and extender.wants:
                first = min(extender.wants.values(), key=lambda one: one.since)
                await asyncio.sleep(max(0.0, first.since + PATIENCE - self._clock()))
                await self.look()

    async def look(self) -> None:
        """See to the wants that are due now."""
        extender = self._extender()
        for key, want in tuple(extender.wants.items()) if extender is not None else ():
            if extender is not None and extender.wants.get(key) is want and want.since + PATIENCE <= self._clock():
                del extender.wants[key]
                await self._see_to(want, extender)

    async def _see_to(self, want: Want, extender: Extender) -> None:
        """Preempt for a pod, if that helps; what a cluster refuses is tried again, unless the pod is asked about."""
        try:
            await self._preempt(want, Preempting(extender))
        except (NotFound, Conflict) as error:
            _log.debug("a pod is not preempted for: it has changed", error=str(error))
        except ClusterError as error:
            self._tell("a pod could not be preempted for", error)
            extender.wants.setdefault(uid(want.pod), want._replace(since=self._clock() + _AGAIN - PATIENCE))

    async def _preempt(self, want: Want, preempting: Preempting) -> None:
        meta = metadata(want.pod)
        ref = Ref(UPPER, POD, meta["namespace"], meta["name"])
        pod: Manifest = orjson.loads(await self._upper.read(ref))
        budgets = await self.budgets() if uid(pod) == uid(want.pod) and self._may(pod) else None
        if budgets is None:
            return
        best = None
        for best in preempting.best(pod, dict.fromkeys(want.names, ()), budgets):  # noqa: B007 - the last one counts
            await asyncio.sleep(0)
        if best is None or not preempting.nominate(pod, best, self._clock()):
            return
        try:
            await self._nominate(ref, pod, best)
        except ClusterError:
            preempting.release(pod, best)
            raise
        going = best.choice.fresh
        where = {"node": best.name, "behind": best.choice.node}
        _log.info("preempting", pod=f"{ref.namespace}/{ref.name}", **where, victims=len(going))
        for victim in going:
            await self._end(victim, pod, best)

    def _may(self, pod: Manifest) -> bool:
        """Report whether a pod still waits, and nobody goes on its behalf yet."""
        extender, status = self._extender(), pod.get("status") or {}
        if extender is None or pod["spec"].get("nodeName") or "deletionTimestamp" in metadata(pod):
            return False
        nominated = status.get("nominatedNodeName")
        site = extender.sites.get(nominated) if nominated else None
        if not nominated or site is None:
            return not nominated and may_preempt(pod)
        return may_preempt(pod) and not site.residents.is_awaited(priority_of(pod))

    async def _nominate(self, ref: Ref, pod: Manifest, best: Best) -> None:
        """Say which node the pod waits for, unless anybody has written to it since it was read."""
        if (pod.get("status") or {}).get("nominatedNodeName") != best.name:
            body = {"metadata": as_read(pod), "status": {"nominatedNodeName": best.name}}
            await self._upper.patch(ref, Patch(_MEDIA, body), "status")

    async def _end(self, victim: Resident, pod: Manifest, best: Best) -> None:
        """Say why a pod goes, and delete it, unless it has gone already."""
        ref = Ref(UPPER, POD, victim.pod.namespace, victim.pod.name)
        try:
            await self._upper.patch(ref, Patch(_MEDIA, _disrupted(victim, timestamp(self._now()))), "status")
            await self._upper.delete(ref, uid=victim.pod.uid)
        except (NotFound, Conflict):
            return
        words = f"Preempted by pod {uid(pod)} on node {best.name}"
        step = event(Told(ref, victim.pod.uid, "Preempted", words, warning=False), self._now())
        try:
            await self._upper.create(step.ref, step.body or {})
        except ClusterError as error:
            _log.debug("a preemption is not told of", error=str(error))

    def _tell(self, words: str, error: ClusterError) -> None:
        """Warn, once in a while of the same."""
        self._seldom.tell((words, type(error)), lambda more: _log.warning(words, error=str(error), **more))


def _disrupted(victim: Resident, now: str) -> dict[str, Any]:
    """Return the patch by which a pod is told that it ends, in the words of the kube-scheduler."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"{COMPONENT}: preempting to accommodate a higher priority pod",
        "lastTransitionTime": now,
    }
    return {"metadata": {"uid": victim.pod.uid}, "status": {"conditions": [condition]}}
