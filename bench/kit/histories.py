"""What must never have been true, as plain functions over the events of watches and the records of proxies.

A check at the end does not detect a pod that ran twice for a second. The events of watches of several clusters have no
common order; that does no harm here, because an upper pod never moves, so two lower pods for it are always a fault. A
pod that is being deleted still runs until it has ended or is removed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bench.kit.faultproxy.journal import Write
from bench.kit.oracles import ENDED, Manifest, name_of, uid_of, upper_uid_of

STATEFUL = "statefulset.kubernetes.io/pod-name"
FENCED = frozenset({"update", "patch", "delete"})
SPARE = 1
SPARE_STATUSES = 6
"""The number of extra writes of one object's status that an engine may need after it was killed once."""
Place = tuple[str, str, str, str]


class PodEvent(NamedTuple):
    """One event of a watch of pods: the cluster, ADDED, MODIFIED or DELETED, and the pod."""

    cluster: str
    type: str
    pod: Manifest


def lived_twice(pod_events: Iterable[PodEvent]) -> list[str]:
    """At no time did two lower pods live for one upper pod, or for one identity of a StatefulSet.

    Args:
        pod_events: of all lower clusters, only pods of this topology.
    """
    living: dict[str, tuple[str, str]] = {}
    violations: dict[str, None] = {}
    for pod_event in pod_events:
        uid = uid_of(pod_event.pod)
        if pod_event.type == "DELETED" or pod_event.pod.get("status", {}).get("phase") in ENDED:
            living.pop(uid, None)
            continue
        living[uid] = (upper_uid_of(pod_event.pod), _identity(pod_event.pod))
        for key, what in zip(living[uid], ("upper pod", "StatefulSet's pod"), strict=True):
            if key and sum(key in two for two in living.values()) > 1:
                violations[f"two lower pods lived for the {what} {key}"] = None
    return list(violations)


def reverted(pod_events: Iterable[PodEvent]) -> list[str]:
    """No pod changed back from a terminal phase.

    Args:
        pod_events: of the upper cluster.
    """
    ended: dict[str, str] = {}
    violations: dict[str, None] = {}
    for pod_event in pod_events:
        uid, phase = uid_of(pod_event.pod), pod_event.pod.get("status", {}).get("phase")
        if uid in ended and phase != ended[uid] and pod_event.type != "DELETED":
            violations[f"{name_of(pod_event.pod)} was {ended[uid]} and then {phase}"] = None
        if phase in ENDED:
            ended.setdefault(uid, str(phase))
    return list(violations)


def unfenced(writes: Iterable[Write]) -> list[str]:
    """Every delete, patch and update carried a UID or a resourceVersion, and no collection was deleted."""
    violations = []
    for write in writes:
        about = write.request
        if about.verb == "deletecollection":
            violations.append(f"{about}: a whole collection")
        if about.verb in FENCED and not (about.uid or about.version):
            violations.append(f"{about}: neither UID nor resourceVersion")
    return violations


def made_twice(writes: Iterable[Write]) -> list[str]:
    """Nothing was created successfully twice; valid for workloads in which a name denotes one object."""
    return [f"{_describe(place)}: {number} times" for place, number in _done(writes, ("create",)).items() if number > 1]


def written_too_often(reference: Mapping[Place, int], writes: Iterable[Write]) -> list[str]:
    """No object was written much more often than in the reference run.

    An object whose status is followed may be written a few times more.

    Args:
        reference: from `counted`, of an undisturbed run with the same names.
        writes: of the run that was disturbed once.
    """
    violations = []
    for place, number in counted(writes).items():
        most = reference.get(place, 0) + (SPARE_STATUSES if place[2].endswith("/status") else SPARE)
        if number > most:
            violations.append(f"{_describe(place)}: {number} times, at most {most}")
    return violations


def counted(writes: Iterable[Write]) -> Counter[Place]:
    """Count the successful writes, by cluster, verb, kind and name."""
    return _done(writes, ("create", *FENCED))


def _done(writes: Iterable[Write], verbs: Iterable[str]) -> Counter[Place]:
    wanted = frozenset(verbs)
    return Counter(
        (one.request.cluster, one.request.verb, one.request.kind, one.request.name)
        for one in writes
        if one.is_done and one.request.verb in wanted
    )


def _describe(place: Place) -> str:
    cluster, verb, kind, name = place
    return f"{cluster}: {verb} {kind} {name}"


def _identity(pod: Manifest) -> str:
    name = (pod["metadata"].get("labels") or {}).get(STATEFUL)
    return f"{pod['metadata']['namespace']}/{name}" if name else ""
