"""Which honest pods are not in the state that is due, and for how long: hostile tenants must not delay them.

A lower pod should exist once all objects that the upper pod refers to exist; the upper pod should have its status, be
deleted once that is requested, and be reported as lost once a client of its own tenant has ended the lower pod. The
time of schedulers and kubelets does not count. Nothing is required of a pod whose lower namespace the hostile lower
tenant can write in.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from bench.kit.oracles import ENDED, upper_uid_of
from bench.model.hostility.ledger import Ledger, is_marked, needs
from bench.model.sequences.model import LOWERS
from tensile.names import UPPER_UID
from tensile.objects import CLAIM, CONFIG_MAP, SECRET, SERVICE_ACCOUNT, Manifest, annotations, metadata, uid

BOUND = 5.0
"""Seconds by which an honest pod may be late."""
LONG = 60
"""A grace period in seconds that is longer than that of any honest pod."""
_NEEDED = {kind.name: kind for kind in (CONFIG_MAP, SECRET, SERVICE_ACCOUNT, CLAIM)}


class Due(NamedTuple):
    """A state that is due for a pod, by its upper UID, and not reached; `ends` is whether the pod is to be deleted."""

    upper_uid: str
    ends: bool
    problem: str


class ObservedState(NamedTuple):
    """A snapshot of the clusters: upper pods by UID, the pods of each lower cluster, and which upper objects exist."""

    above: Mapping[str, Manifest]
    below: Mapping[str, Iterable[Manifest]]
    has: Callable[[str, str, str], bool]
    """Takes kind, namespace and name of an upper object."""


def due(state: ObservedState, ledger: Ledger) -> Iterator[Due]:
    """Return the states that are due and not reached, for the pods of honest tenants."""
    copies = _copies(state, ledger)
    for upper_uid, pod in state.above.items():
        meta, lower = metadata(pod), pod["spec"].get("nodeName", "")
        if meta["namespace"] in ledger.setting.honest and not ledger.setting.is_controlled(meta["namespace"], lower):
            problem = _wrong(pod, copies.get((lower, upper_uid)), state, ledger)
            if problem:
                yield Due(
                    upper_uid, "deletionTimestamp" in meta, f"{meta['namespace']}/{meta['name']} in {lower}: {problem}"
                )
    for (lower, upper_uid), copy in copies.items():
        namespace = ledger.lower_namespaces.above(lower, metadata(copy)["namespace"])
        is_honest = namespace in ledger.setting.honest and not ledger.setting.is_controlled(namespace, lower)
        is_ending = "deletionTimestamp" in metadata(copy)
        if is_honest and upper_uid not in state.above and not is_ending:
            yield Due(upper_uid, True, f"{namespace}/{metadata(copy)['name']} runs on in {lower}")


def lost(state: ObservedState, ledger: Ledger) -> Iterator[str]:
    """Return which pods of honest tenants were reported as failed although no client of their tenant ended them."""
    for upper_uid, pod in state.above.items():
        meta, status = metadata(pod), pod.get("status") or {}
        is_honest = meta["namespace"] in ledger.setting.honest
        is_controlled = ledger.setting.is_controlled(meta["namespace"], pod["spec"].get("nodeName", ""))
        if is_honest and not is_controlled and status.get("phase") == "Failed" and upper_uid not in ledger.killed:
            yield f"{meta['namespace']}/{meta['name']} is Failed ({status.get('reason')}), and no client ended it"


class Lateness:
    """Since when each state has been due."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, bool], float] = {}
        self.worst = 0.0

    def update(self, found: Iterable[Due], now: float) -> list[str]:
        """Record what is due at this moment; return what has been due for too long."""
        problem = {one[:2]: one.problem for one in found}
        self._since = {one: self._since.get(one, now) for one in problem}
        self.worst = max([self.worst, *(now - since for since in self._since.values())])
        return [f"{problem[one]} for {BOUND:g} s" for one, since in self._since.items() if now - since > BOUND]

    def reset(self) -> None:
        """Restart all measurements: the engine was restarted, or could not know the state."""
        self._since.clear()


def _copies(state: ObservedState, ledger: Ledger) -> dict[tuple[str, str], Manifest]:
    """Return the lower pods that the engine created, by lower cluster and upper UID."""
    return {
        (lower, upper_uid_of(pod)): pod
        for lower, pods in state.below.items()
        for pod in pods
        if uid(pod) not in ledger.hostile and UPPER_UID in annotations(pod)
    }


def _wrong(pod: Manifest, copy: Manifest | None, state: ObservedState, ledger: Ledger) -> str:
    """Return which due state an upper pod has not reached, "" for none."""
    phase, meta = (pod.get("status") or {}).get("phase"), metadata(pod)
    if copy is not None and "deletionTimestamp" in metadata(copy):
        return ""
    if "deletionTimestamp" in meta:
        return "is deleted and not gone"
    if phase in ENDED:
        return ""
    if copy is None and meta["uid"] in ledger.killed and phase == "Running":
        return f"was ended below, and is {phase} above"
    if _is_kept_back(pod, state, ledger):
        return ""
    below = (copy.get("status") or {}).get("phase") if copy is not None else None
    return "" if below in (phase, "Pending") else f"is {phase} above and {below or 'not'} below"


def _is_kept_back(pod: Manifest, state: ObservedState, ledger: Ledger) -> bool:
    """Report whether a pod waits for a missing object, or for an older pod of its name elsewhere."""
    namespace = metadata(pod)["namespace"]
    wanted = [need for need in needs(pod) if need[0] in _NEEDED and need[1] not in ("default", "kube-root-ca.crt")]
    if not all(state.has(kind, namespace, name) for kind, name in wanted):
        return True
    return any(_has_predecessor(pod, lower, state, ledger) for lower in LOWERS if lower != pod["spec"]["nodeName"])


def _has_predecessor(pod: Manifest, lower: str, state: ObservedState, ledger: Ledger) -> bool:
    """Report whether a pod with that name is kept in another lower cluster in which the hostile tenant can write.

    The engine cannot know that he created it. A pod that never ran, or has ended, does not count. A pod that nothing
    keeps has to be deleted within the time that the new pod would get.
    """
    namespace, name = metadata(pod)["namespace"], metadata(pod)["name"]
    if not ledger.setting.is_controlled(namespace, lower):
        return False
    place = ledger.lower_namespaces.of(namespace, lower)
    found = (one for one in state.below[lower] if (metadata(one)["namespace"], metadata(one)["name"]) == (place, name))
    return any(
        is_marked(one, ledger.mark)
        and one["spec"].get("nodeName")
        and one["status"].get("phase") not in ENDED
        and (metadata(one).get("finalizers") or metadata(one).get("deletionGracePeriodSeconds", LONG) < LONG)
        for one in found
    )
