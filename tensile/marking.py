"""Marks the pod of the engine that drives by a label, so that a Service can lead to that one of several.

The upper scheduler has to ask the engine that drives, since what was promised is in its memory. The label is looked at
again and again: a container that was killed is started again in a pod that still has it, and a pod of a dead machine
keeps it for minutes, so the engine that takes over takes it off all others.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

import orjson
import structlog

from tensile.cluster import Cluster, Patch, Selection
from tensile.errors import ClusterError, Conflict, Denied, NotFound
from tensile.names import LEADS
from tensile.objects import POD, UPPER, Manifest, Ref, as_read, metadata, uid
from tensile.supervision import supervised

_LOOK = 30.0
"""Seconds between two looks, in case somebody else has changed a label."""
_RETRY = 1.0
_PARTING = 1.0
"""Seconds in which the mark has to be taken off at the end: what comes after it must not wait for long."""
_log = structlog.get_logger("tensile.marking")


def own_pod(environment: Mapping[str, str]) -> Ref | None:
    """Name the pod that this program runs in, by POD_NAMESPACE and POD_NAME; None where they are not given."""
    namespace, name = environment.get("POD_NAMESPACE", ""), environment.get("POD_NAME", "")
    return Ref(UPPER, POD, namespace, name) if namespace and name else None


def wrong(pods: Iterable[Manifest], own: str, *, leads: bool) -> list[Manifest]:
    """Give those of the pods with the mark that should not have it: another's only where this engine leads."""
    return [pod for pod in pods if (metadata(pod)["name"] == own) != leads]


def marked(pod: Manifest, topology: str) -> Patch:
    """Give the write by which a pod has the mark of a topology: that very pod, whatever else it has."""
    return Patch("merge-patch", {"metadata": {"uid": uid(pod), "labels": {LEADS: topology}}})


def unmarked(pod: Manifest) -> Patch:
    """Give the write by which a pod has no mark, unless it was written since: its engine may lead by now."""
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
            async with asyncio.timeout(_PARTING):
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
