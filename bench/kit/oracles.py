"""What must be true after a fault, as plain functions over lists of objects and records of audit logs.

Each returns descriptions of the violations, an empty list if there are none, so that a run can print them and a test
can cause them deliberately. Pods are identified by UID and never by name, because a name does not identify one pod.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tensile.names import OWNER, UPPER_UID

Manifest = dict[str, Any]
Lowers = Mapping[str, Sequence[Manifest]]
Records = Iterable[Mapping[str, Any]]

ENDED = frozenset({"Succeeded", "Failed"})
SAME = ("phase", "podIP", "hostIP", "startTime")
LEASE_EVERY = 10.0
"""Seconds between two renewals of a virtual node's lease."""
NODE_WRITES = 2
"""Writes of one node's status that a short quiet time may contain: one heartbeat, and one change of capacity."""


def uid_of(pod: Manifest) -> str:
    """Return a pod's UID."""
    return str(pod["metadata"]["uid"])


def name_of(pod: Manifest) -> str:
    """Return NAMESPACE/NAME."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def upper_uid_of(pod: Manifest) -> str:
    """Return the UID of the upper pod that a lower pod belongs to, "" for none."""
    return str((pod["metadata"].get("annotations") or {}).get(UPPER_UID, ""))


def is_living(pod: Manifest) -> bool:
    """Report whether a pod has not ended and is not being deleted."""
    return "deletionTimestamp" not in pod["metadata"] and pod.get("status", {}).get("phase") not in ENDED


def is_ready(pod: Manifest) -> bool:
    """Report whether a pod's condition Ready is True."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def owned(pods: Iterable[Manifest], mark: str) -> list[Manifest]:
    """Return the lower pods that carry the owner's mark."""
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(OWNER) == mark]


def not_once_below(upper_pods: Iterable[Manifest], lowers: Lowers) -> list[str]:
    """Each living upper pod that is bound has exactly one lower pod of its UID, in its node's cluster.

    Args:
        upper_pods: of the upper cluster; the virtual nodes have the names of the lower clusters.
        lowers: the pods that carry our mark, by cluster.
    """
    places: dict[str, list[str]] = {}
    for cluster, pod in _each(lowers):
        places.setdefault(upper_uid_of(pod), []).append(cluster)
    return [
        f"{name_of(pod)} is bound to {pod['spec']['nodeName']} and runs in {places.get(uid_of(pod), [])}"
        for pod in upper_pods
        if is_living(pod) and pod["spec"].get("nodeName") in lowers
        if places.get(uid_of(pod), []) != [pod["spec"]["nodeName"]]
    ]


def orphans(upper_pods: Iterable[Manifest], lowers: Lowers) -> list[str]:
    """No lower pod of this topology is without its upper pod."""
    known = {uid_of(pod) for pod in upper_pods}
    return [
        f"{cluster}: {name_of(pod)} is for {upper_uid_of(pod) or 'no upper pod'}, which does not exist"
        for cluster, pod in _each(lowers)
        if upper_uid_of(pod) not in known
    ]


def living_twice(lowers: Lowers) -> list[str]:
    """At no time do two lower pods live for one upper pod, in any clusters."""
    count = Counter(upper_uid_of(pod) for _, pod in _each(lowers) if is_living(pod))
    return [f"{number} lower pods live for the upper pod {uid}" for uid, number in count.items() if number > 1]


def created_twice(logs: Mapping[str, Records]) -> list[str]:
    """No name was created successfully twice in the lower clusters.

    It is valid for workloads in which a name denotes one pod.

    Args:
        logs: the audit records of every lower cluster.
    """
    made = Counter(
        (one["objectRef"].get("namespace", ""), one["objectRef"].get("name", ""))
        for records in logs.values()
        for one in records
        if _succeeded(one, "create", "pods")
    )
    return [f"{'/'.join(pod)} was created {number} times below" for pod, number in made.items() if number > 1]


def failed(upper_pods: Iterable[Manifest]) -> list[str]:
    """No upper pod is Failed."""
    return [
        f"{name_of(pod)} Failed: {pod['status'].get('reason', '')} {pod['status'].get('message', '')}".rstrip()
        for pod in upper_pods
        if pod.get("status", {}).get("phase") == "Failed"
    ]


def unlike(upper_pods: Iterable[Manifest], lowers: Lowers) -> dict[str, str]:
    """Return the differences of living upper pods' statuses from those of their lower pods, by UID."""
    below = {upper_uid_of(pod): pod for _, pod in _each(lowers)}
    found = {}
    for pod in upper_pods:
        if is_living(pod) and pod["spec"].get("nodeName") in lowers:
            difference = _difference(pod, below.get(uid_of(pod)))
            if difference:
                found[uid_of(pod)] = f"{name_of(pod)}: {difference}"
    return found


def still_there(pods: Iterable[Manifest], deleted: Collection[str], where: str) -> list[str]:
    """No pod that was deleted still exists.

    Args:
        pods: of one cluster.
        deleted: the UIDs of the upper pods that were deleted.
        where: the cluster's name.
    """
    gone = set(deleted)
    return [f"{where}: {name_of(pod)} was deleted" for pod in pods if {uid_of(pod), upper_uid_of(pod)} & gone]


def replaced(before: Sequence[Manifest], after: Sequence[Manifest], where: str) -> list[str]:
    """Every pod is the same object as before, is not being deleted, and none of its containers was restarted."""
    now = {uid_of(pod): pod for pod in after}
    violations = []
    for pod in before:
        later = now.get(uid_of(pod))
        if later is None:
            violations.append(f"{where}: {name_of(pod)} is gone")
        elif "deletionTimestamp" in later["metadata"]:
            violations.append(f"{where}: {name_of(pod)} is being deleted")
        elif _lives(later) != _lives(pod):
            violations.append(f"{where}: {name_of(pod)} was restarted")
    extra = {uid_of(pod) for pod in after} - {uid_of(pod) for pod in before}
    return violations + [f"{where}: {name_of(now[uid])} is new" for uid in sorted(extra)]


def not_ready(pods: Iterable[Manifest], where: str) -> list[str]:
    """Every pod is Ready."""
    return [f"{where}: {name_of(pod)} is not Ready" for pod in pods if not is_ready(pod)]


def deletions(records: Records) -> list[str]:
    """No client deleted a pod.

    Args:
        records: of one cluster's audit log.
    """
    return [
        f"{one['userAgent'].split('/')[0]} deleted {one['objectRef'].get('name', 'many')}"
        for one in records
        if _succeeded(one, "delete", "pods") or _succeeded(one, "deletecollection", "pods")
    ]


def not_quiet(writes: Records, seconds: float, cluster: str) -> list[str]:
    """Nothing is written except leases and heartbeats, and these no more often than necessary.

    Args:
        writes: the engine's writing requests in a quiet time, from one cluster's audit log.
        seconds: the length of that time.
        cluster: its name, for the messages.
    """
    beats: Counter[tuple[str, str]] = Counter()
    violations = []
    for one in writes:
        kind, name = _written(one), one.get("objectRef", {}).get("name", "")
        beats[kind, name] += 1
        if kind not in ("leases", "nodes/status"):
            violations.append(f"{cluster}: {one['verb']} {kind} {name} in a quiet time")
    most = {"leases": seconds / LEASE_EVERY + 2, "nodes/status": NODE_WRITES}
    too_many = [(*beat, number) for beat, number in beats.items() if number > most.get(beat[0], number)]
    return violations + [f"{cluster}: {kind} {name} was written {number} times" for kind, name, number in too_many]


def swept(records: Records, agent: str) -> list[str]:
    """The engine never deleted a whole collection.

    Args:
        records: of one cluster's audit log.
        agent: the beginning of the engine's User-Agent.
    """
    return [
        f"deletecollection {_written(one)}"
        for one in records
        if one["verb"] == "deletecollection" and one.get("userAgent", "").startswith(agent)
    ]


def _each(lowers: Lowers) -> Iterator[tuple[str, Manifest]]:
    for cluster, pods in lowers.items():
        for pod in pods:
            yield cluster, pod


def _succeeded(record: Mapping[str, Any], verb: str, resource: str) -> bool:
    about = record.get("objectRef", {})
    is_it = record["verb"] == verb and about.get("resource") == resource and not about.get("subresource")
    return is_it and record.get("responseStatus", {}).get("code", 0) // 100 == 2  # noqa: PLR2004 - HTTP's successes


def _written(record: Mapping[str, Any]) -> str:
    about = record.get("objectRef", {})
    return "/".join(part for part in (about.get("resource", ""), about.get("subresource", "")) if part)


def _difference(upper_pod: Manifest, lower_pod: Manifest | None) -> str:
    """Return the first difference of an upper pod's status from its lower pod's, "" for none."""
    if lower_pod is None:
        return "it has no lower pod"
    above, below = upper_pod.get("status", {}), lower_pod.get("status", {})
    for field in SAME:
        if above.get(field) != below.get(field):
            return f"{field} is {above.get(field)} above and {below.get(field)} below"
    if is_ready(upper_pod) != is_ready(lower_pod):
        return f"Ready is {is_ready(upper_pod)} above and {is_ready(lower_pod)} below"
    return "" if _lives(upper_pod) == _lives(lower_pod) else "its containers are not those below"


def _lives(pod: Manifest) -> list[tuple[str, str, int]]:
    """Return name, ID and number of restarts of each container, which change with a restart."""
    found = pod.get("status", {}).get("containerStatuses") or ()
    return sorted((one["name"], one.get("containerID", ""), one.get("restartCount", 0)) for one in found)
