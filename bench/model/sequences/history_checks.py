"""Actions that an engine on real control planes must not have taken, found later in its writes and in observed states.

The clocks of three clusters cannot be stopped to check a write before it is carried out, as the model does in memory.
But some facts never change later: a deleted pod stays deleted, and a pod that exists at the end existed all along.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from bench.kit import histories
from bench.kit.faultproxy.journal import Write
from bench.kit.histories import PodEvent
from bench.kit.oracles import ENDED, Manifest, name_of, uid_of, upper_uid_of
from tensile.sandbox.state import UPPER


class NamespaceHistory(NamedTuple):
    """The history of a namespace.

    `pod_events` are the observed states of upper pods and of the engine's lower pods, `writes` the engine's writes. The
    rest are UIDs: `deleted` of objects that users have deleted in the upper cluster, `killed` of upper pods whose lower
    pods other clients have ended, and those of other owners' lower objects. `phases` maps upper UIDs to the phases that
    kubelets reported.
    """

    pod_events: list[PodEvent]
    writes: list[Write]
    deleted: Collection[str]
    killed: Collection[str]
    strangers: Collection[str]
    phases: Mapping[str, Collection[str]]


def violations(history: NamespaceHistory) -> list[str]:
    """Return the actions that must not have been taken."""
    below = [pod_event for pod_event in history.pod_events if pod_event.cluster != UPPER]
    above = [pod_event for pod_event in history.pod_events if pod_event.cluster == UPPER]
    found = [*histories.lived_twice(below), *histories.reverted(above), *histories.unfenced(history.writes)]
    found += [
        f"{one.request}: a stranger's" for one in history.writes if one.is_done and one.request.uid in history.strangers
    ]
    found += _ended_unasked(history, above, below)
    found += _made_up(history, above)
    return list(dict.fromkeys(found))


def _ended_unasked(history: NamespaceHistory, above: list[PodEvent], below: list[PodEvent]) -> Iterator[str]:
    """Yield deletions of upper pods that no user deleted, and of lower pods whose upper pods exist to the end."""
    living = {uid_of(pod) for pod in _last(above) if _lives(pod)}
    owners = {uid_of(pod_event.pod): upper_uid_of(pod_event.pod) for pod_event in below}
    for request in (one.request for one in history.writes if one.is_done and one.request.verb == "delete"):
        if request.kind != "pods":
            continue
        if request.cluster == UPPER and request.uid not in history.deleted:
            yield f"{request}: no user deleted it"
        if request.cluster != UPPER and owners.get(request.uid) in living:
            yield f"{request}: its upper pod lives"


def _made_up(history: NamespaceHistory, above: list[PodEvent]) -> Iterator[str]:
    """Yield phases of upper pods that no kubelet reported.

    Failed is allowed if other clients ended the lower pod, or if the upper pod was deleted.
    """
    for pod in (pod_event.pod for pod_event in above):
        uid, phase = uid_of(pod), (pod.get("status") or {}).get("phase", "Pending")
        may_fail = uid in history.killed or uid in history.deleted
        if phase not in {"Pending", *history.phases.get(uid, ())} and not (phase == "Failed" and may_fail):
            yield f"{name_of(pod)} is {phase}, which no kubelet said"


def _last(pod_events: Iterable[PodEvent]) -> list[Manifest]:
    """Return the last observed state of each pod that is not deleted."""
    found = {uid_of(pod_event.pod): pod_event for pod_event in pod_events}
    return [pod_event.pod for pod_event in found.values() if pod_event.type != "DELETED"]


def _lives(pod: Manifest) -> bool:
    """Report whether a pod has neither ended nor been deleted."""
    return "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in ENDED
