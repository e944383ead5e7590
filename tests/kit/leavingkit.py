"""A stage on which pods leave a lower cluster, with the schedulers of all clusters, and what was seen of it."""

from datetime import datetime, timedelta

from deschedulingkit import NOW, ON, A, B, refused
from stagekit import Stage
from worldkit import lower_node, space

from tensile.objects import NAMESPACE, NODE, POD, UPPER, Manifest, Ref, labels, metadata, uid
from tensile.reconcile.pods.scheduling import meets


class Leaving(Stage):
    """A stage on which it is written down when pods are evicted above.

    `room` is how many cpus the one node of lower-b has; that of lower-a has two.
    """

    def __init__(self, *pods: Manifest, more: str = ON, room: str = "64") -> None:
        super().__init__(f"name: {A}", f"name: {B}", more=more)
        self.left: list[tuple[str, datetime]] = []
        self._seen: set[str] = set()
        self.raise_nodes()
        self.clusters[UPPER].place(NAMESPACE, space("default"))
        for name, cpu in ((A, "2"), (B, room)):
            self.clusters[name].place(NODE, lower_node(f"{name}-n1", cpu))
        for pod in pods:
            self.clusters[UPPER].place(POD, pod)
        self.clusters[UPPER].watched = self._note
        self.start()

    def _note(self, verb: str, ref: Ref, body: Manifest) -> None:
        if verb == "delete" and ref.kind == POD and uid(body) not in self._seen:
            self._seen.add(uid(body))
            self.left.append((ref.name, self.now()))

    async def passing(self, minutes: int) -> None:
        """Let minutes go by."""
        for _ in range(minutes):
            await self.calm(1.0)
            await self.bind()
            await self._schedule()
            await self.calm(59.0)

    async def bind(self) -> None:
        """Be the upper scheduler, which takes the first virtual node that a pod asks for, however full it is below."""
        nodes = [node for node in await self.listed(UPPER, NODE) if not node["spec"].get("unschedulable")]
        for pod in await self.listed(UPPER):
            found = [
                metadata(node)["name"] for node in nodes if meets(pod["spec"], metadata(node)["name"], labels(node))
            ]
            if found and not pod["spec"].get("nodeName"):
                self.clusters[UPPER].place(POD, {**pod, "spec": {**pod["spec"], "nodeName": min(found)}})
        await self.settle()

    async def _schedule(self) -> None:
        """Be lower-a's scheduler, which finds no node for anything."""
        since = (NOW - self.now()).total_seconds()
        for pod in await self.listed(A):
            if not (pod.get("status") or {}).get("conditions"):
                self.clusters[A].place(POD, {**pod, "status": {"phase": "Pending", **refused(since)}})

    async def above(self) -> list[str]:
        """Return the names of the pods above."""
        return sorted(pod["metadata"]["name"] for pod in await self.listed(UPPER))


def within_limit(left: list[tuple[str, datetime]]) -> bool:
    """Report whether no three left within one interval."""
    times = [when for _, when in left]
    return all(third - first >= timedelta(seconds=60) for first, third in zip(times, times[2:], strict=False))
