"""Actions that an engine on real control planes must not have taken, found later in its writes and in observed states.

The clocks of three clusters cannot be stopped to check a write before it is carried out, as the model does in memory.
But some facts never change later: a deleted pod stays deleted, and a pod that exists at the end existed all along.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from bench.kit import histories
from bench.kit.faultproxy.journal import Write
from bench.kit.histories import Sight
from bench.kit.oracles import ENDED, Manifest, name_of, uid_of, upper_uid_of
from tensile.sandbox.state import UPPER


class Past(NamedTuple):
    """The history of a namespace.

    `sights` are the observed states of upper pods and of the engine's lower pods, `writes` those of the engine. The
    rest are UIDs: `deleted` of objects that users have deleted in the upper cluster, `killed` of upper pods whose lower
    pods other clients have ended, and those of other owners' lower objects. `phases` maps upper UIDs to the phases that
    kubelets reported.
    """

    sights: list[Sight]
    writes: list[Write]
    deleted: Collection[str]
    killed: Collection[str]
    strangers: Collection[str]
    phases: Mapping[str, Collection[str]]


def misdeeds(past: Past) -> list[str]:
    """Return the actions that must not have been taken."""
    below = [sight for sight in past.sights if sight.cluster != UPPER]
    above = [sight for sight in past.sights if sight.cluster == UPPER]
    said = [*histories.lived_twice(below), *histories.reverted(above), *histories.unfenced(past.writes)]
    said += [f"{one.asked}: a stranger's" for one in past.writes if one.is_done and one.asked.uid in past.strangers]
    said += _ended_unasked(past, above, below)
    said += _made_up(past, above)
    return list(dict.fromkeys(said))


def _ended_unasked(past: Past, above: list[Sight], below: list[Sight]) -> Iterator[str]:
    """Yield deletions of upper pods that no user deleted, and of lower pods whose upper pods exist to the end."""
    living = {uid_of(pod) for pod in _last(above) if _lives(pod)}
    owners = {uid_of(sight.pod): upper_uid_of(sight.pod) for sight in below}
    for asked in (one.asked for one in past.writes if one.is_done and one.asked.verb == "delete"):
        if asked.kind != "pods":
            continue
        if asked.cluster == UPPER and asked.uid not in past.deleted:
            yield f"{asked}: nobody deleted it"
        if asked.cluster != UPPER and owners.get(asked.uid) in living:
            yield f"{asked}: its upper pod lives"


def _made_up(past: Past, above: list[Sight]) -> Iterator[str]:
    """Yield phases of upper pods that no kubelet reported.

    Failed is allowed if other clients ended the lower pod, or if the upper pod was deleted.
    """
    for pod in (sight.pod for sight in above):
        uid, phase = uid_of(pod), (pod.get("status") or {}).get("phase", "Pending")
        may_fail = uid in past.killed or uid in past.deleted
        if phase not in {"Pending", *past.phases.get(uid, ())} and not (phase == "Failed" and may_fail):
            yield f"{name_of(pod)} is {phase}, which no kubelet said"


def _last(sights: Iterable[Sight]) -> list[Manifest]:
    """Return the last observed state of each pod that is not deleted."""
    found = {uid_of(sight.pod): sight for sight in sights}
    return [sight.pod for sight in found.values() if sight.type != "DELETED"]


def _lives(pod: Manifest) -> bool:
    """Report whether a pod has neither ended nor been deleted."""
    return "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in ENDED
