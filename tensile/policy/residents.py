"""The pods that are bound to a virtual node, as far as it matters who of them goes when another one needs the room.

A pod is read once: of what is told of it later, only its start and its end change who is chosen.
"""

from collections import Counter
from math import inf
from typing import NamedTuple

from tensile.objects import Manifest, labels, metadata, uid
from tensile.policy.ground import PodName
from tensile.policy.placing.reading import pod_of
from tensile.policy.placing.snapshot import Pod

PODS, _WHOLE = "pods", 1000
_PREEMPTED = ("DisruptionTarget", "True", "PreemptionByScheduler")


class Resident(NamedTuple):
    """An upper pod that is bound to the virtual node; `pod` is as it is there, `started` a timestamp or "".

    `preempted` is whether a scheduler has it end for another pod, `generation` that of the spec that was read.
    """

    pod: Pod
    priority: int
    started: str = ""
    preempted: bool = False
    generation: int = 0


class Residents:
    """The residents of one virtual node by their names below; `changed` counts what may change who could go."""

    def __init__(self) -> None:
        self.pods: dict[PodName, Resident] = {}
        self.changed = 0
        self.used: Counter[str] = Counter()
        """What they ask for together, in milli-units, their places included."""
        self._priorities: Counter[int] = Counter()

    @property
    def lowest(self) -> float:
        """The lowest priority that there is."""
        return min(self._priorities, default=inf)

    def put(self, name: PodName, manifest: Manifest) -> None:
        """Take a pod as it is now."""
        known, found = self.pods.get(name), resident_of(manifest, self.pods.get(name))
        if known == found:
            return
        self.remove(name)
        self.pods[name] = found
        self._priorities[found.priority] += 1
        self.used.update(taken_by(found.pod))
        self.changed += 1

    def remove(self, name: PodName) -> None:
        """Forget a pod."""
        known = self.pods.pop(name, None)
        if known is not None:
            self._priorities[known.priority] -= 1
            self.used.subtract(taken_by(known.pod))
            self._priorities += Counter()
            self.changed += 1

    def is_awaited(self, priority: int) -> bool:
        """Report whether a pod of lower priority is ending for another one."""
        return any(one.preempted and one.pod.ending and one.priority < priority for one in self.pods.values())


def taken_by(pod: Pod) -> dict[str, int]:
    """Return what a pod takes of a node, its place included."""
    return {**pod.requests, PODS: _WHOLE}


def resident_of(manifest: Manifest, known: Resident | None = None) -> Resident:
    """Read a pod; what is `known` of it already stands where it cannot have changed."""
    meta, status = metadata(manifest), manifest.get("status") or {}
    said = ((one["type"], one["status"], one.get("reason")) for one in status.get("conditions") or ())
    generation = meta.get("generation") or 0
    read = known.pod if known and _is_same(known, manifest, generation) else pod_of(manifest, settled=True)
    return Resident(read, priority_of(manifest), status.get("startTime") or "", _PREEMPTED in said, generation)


def _is_same(known: Resident, manifest: Manifest, generation: int) -> bool:
    """Report whether what was read of a pod is what would be read now; pods without a generation are read anew."""
    ending = bool(metadata(manifest).get("deletionTimestamp"))
    seen = (known.pod.uid, known.generation, known.pod.ending, known.pod.labels)
    return bool(generation) and seen == (uid(manifest), generation, ending, labels(manifest))


def may_preempt(pod: Manifest) -> bool:
    """Report whether a pod lets others go at all."""
    return bool(pod["spec"].get("preemptionPolicy") != "Never")


def priority_of(pod: Manifest) -> int:
    """Return a pod's priority."""
    return int(pod["spec"].get("priority") or 0)
