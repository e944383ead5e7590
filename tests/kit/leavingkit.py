"""A simulation in which pods are evicted from a lower cluster, with the schedulers of all clusters."""

from datetime import datetime, timedelta

from deschedulingkit import NOW, ON, A, B, unschedulable_status
from stagekit import EngineSimulation
from worldkit import make_lower_node, make_namespace

from tensile.objects import NAMESPACE, NODE, POD, UPPER, Manifest, Ref, labels, metadata, uid
from tensile.reconcile.pods.scheduling import meets


class EvictionSimulation(EngineSimulation):
    """A simulation that records when upper pods are deleted.

    `b_cpus` is the number of cpus of the one node of lower-b; that of lower-a has two.
    """

    def __init__(self, *pods: Manifest, more: str = ON, b_cpus: str = "64") -> None:
        super().__init__(f"name: {A}", f"name: {B}", more=more)
        self.evictions: list[tuple[str, datetime]] = []
        self._seen: set[str] = set()
        self.create_nodes()
        self.clusters[UPPER].place(NAMESPACE, make_namespace("default"))
        for name, cpu in ((A, "2"), (B, b_cpus)):
            self.clusters[name].place(NODE, make_lower_node(f"{name}-n1", cpu))
        for pod in pods:
            self.clusters[UPPER].place(POD, pod)
        self.clusters[UPPER].on_write = self._record
        self.start()

    def _record(self, verb: str, ref: Ref, body: Manifest) -> None:
        if verb == "delete" and ref.kind == POD and uid(body) not in self._seen:
            self._seen.add(uid(body))
            self.evictions.append((ref.name, self.now()))

    async def advance_minutes(self, minutes: int) -> None:
        """Advance the time by minutes."""
        for _ in range(minutes):
            await self.advance(1.0)
            await self.bind()
            await self._schedule()
            await self.advance(59.0)

    async def bind(self) -> None:
        """Act as the upper scheduler: bind a pod to the first matching virtual node, however full its lower is."""
        nodes = [node for node in await self.listed(UPPER, NODE) if not node["spec"].get("unschedulable")]
        for pod in await self.listed(UPPER):
            found = [
                metadata(node)["name"] for node in nodes if meets(pod["spec"], metadata(node)["name"], labels(node))
            ]
            if found and not pod["spec"].get("nodeName"):
                self.clusters[UPPER].place(POD, {**pod, "spec": {**pod["spec"], "nodeName": min(found)}})
        await self.wait_idle()

    async def _schedule(self) -> None:
        """Act as lower-a's scheduler, which finds no node for any pod."""
        since = (NOW - self.now()).total_seconds()
        for pod in await self.listed(A):
            if not (pod.get("status") or {}).get("conditions"):
                self.clusters[A].place(POD, {**pod, "status": {"phase": "Pending", **unschedulable_status(since)}})

    async def upper_pod_names(self) -> list[str]:
        """Return the names of the upper pods."""
        return sorted(pod["metadata"]["name"] for pod in await self.listed(UPPER))


def within_limit(left: list[tuple[str, datetime]]) -> bool:
    """Report whether no three evictions happened within 60 seconds."""
    times = [when for _, when in left]
    return all(third - first >= timedelta(seconds=60) for first, third in zip(times, times[2:], strict=False))
