"""Which honest pods are not what they should be, and for how long: hostile tenants must not hold them up.

A pod should be below once all that it refers to is there, be told as it is there, be gone once it is deleted, and be
told as lost once somebody of its own tenant has ended it below. What schedulers and kubelets take for that does not
count. Nothing is asked of one whose place the hostile lower tenant writes in.
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
"""Seconds that no honest pod is given to end."""
_NEEDED = {kind.name: kind for kind in (CONFIG_MAP, SECRET, SERVICE_ACCOUNT, CLAIM)}


class Due(NamedTuple):
    """Something that should be so by now and is not: of which pod, by its upper UID; `ends` is whether it is to go."""

    upper_uid: str
    ends: bool
    words: str


class Sight(NamedTuple):
    """The clusters at one moment: pods of each, above by UID, and whether an upper object of a kind is there."""

    above: Mapping[str, Manifest]
    below: Mapping[str, Iterable[Manifest]]
    has: Callable[[str, str, str], bool]
    """Takes kind, namespace and name."""


def due(sight: Sight, ledger: Ledger) -> Iterator[Due]:
    """Return what should be so by now and is not, for the pods of honest tenants."""
    copies = _copies(sight, ledger)
    for upper_uid, pod in sight.above.items():
        meta, lower = metadata(pod), pod["spec"].get("nodeName", "")
        if meta["namespace"] in ledger.setting.honest and not ledger.setting.in_hand(meta["namespace"], lower):
            words = _wrong(pod, copies.get((lower, upper_uid)), sight, ledger)
            if words:
                yield Due(
                    upper_uid, "deletionTimestamp" in meta, f"{meta['namespace']}/{meta['name']} in {lower}: {words}"
                )
    for (lower, upper_uid), copy in copies.items():
        namespace = ledger.places.above(lower, metadata(copy)["namespace"])
        is_honest = namespace in ledger.setting.honest and not ledger.setting.in_hand(namespace, lower)
        is_ending = "deletionTimestamp" in metadata(copy)
        if is_honest and upper_uid not in sight.above and not is_ending:
            yield Due(upper_uid, True, f"{namespace}/{metadata(copy)['name']} runs on in {lower}")


def lost(sight: Sight, ledger: Ledger) -> Iterator[str]:
    """Return which pods of honest tenants were told as failed though nobody of their own ended them."""
    for upper_uid, pod in sight.above.items():
        meta, status = metadata(pod), pod.get("status") or {}
        is_honest = meta["namespace"] in ledger.setting.honest
        in_hand = ledger.setting.in_hand(meta["namespace"], pod["spec"].get("nodeName", ""))
        if is_honest and not in_hand and status.get("phase") == "Failed" and upper_uid not in ledger.killed:
            yield f"{meta['namespace']}/{meta['name']} is Failed ({status.get('reason')}), and nobody ended it"


class Lateness:
    """What has been due since when."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, bool], float] = {}
        self.worst = 0.0

    def look(self, found: Iterable[Due], now: float) -> list[str]:
        """Take what is due at this moment; return what has been so for too long."""
        words = {one[:2]: one.words for one in found}
        self._since = {one: self._since.get(one, now) for one in words}
        self.worst = max([self.worst, *(now - since for since in self._since.values())])
        return [f"{words[one]} for {BOUND:g} s" for one, since in self._since.items() if now - since > BOUND]

    def excuse(self) -> None:
        """Count from now on: the engine was started again, or could not know."""
        self._since.clear()


def _copies(sight: Sight, ledger: Ledger) -> dict[tuple[str, str], Manifest]:
    """Return the lower pods that the engine made, by lower and the upper UID that they were made for."""
    return {
        (lower, upper_uid_of(pod)): pod
        for lower, pods in sight.below.items()
        for pod in pods
        if uid(pod) not in ledger.hostile and UPPER_UID in annotations(pod)
    }


def _wrong(pod: Manifest, copy: Manifest | None, sight: Sight, ledger: Ledger) -> str:
    """Return what an upper pod should be and is not, "" for nothing."""
    phase, meta = (pod.get("status") or {}).get("phase"), metadata(pod)
    if copy is not None and "deletionTimestamp" in metadata(copy):
        return ""
    if "deletionTimestamp" in meta:
        return "is deleted and not gone"
    if phase in ENDED:
        return ""
    if copy is None and meta["uid"] in ledger.killed and phase == "Running":
        return f"was ended below, and is {phase} above"
    if _is_kept_back(pod, sight, ledger):
        return ""
    below = (copy.get("status") or {}).get("phase") if copy is not None else None
    return "" if below in (phase, "Pending") else f"is {phase} above and {below or 'not'} below"


def _is_kept_back(pod: Manifest, sight: Sight, ledger: Ledger) -> bool:
    """Report whether a pod waits for something that is missing, or for an older one of its name that runs elsewhere."""
    namespace = metadata(pod)["namespace"]
    wanted = [need for need in needs(pod) if need[0] in _NEEDED and need[1] not in ("default", "kube-root-ca.crt")]
    if not all(sight.has(kind, namespace, name) for kind, name in wanted):
        return True
    return any(_has_predecessor(pod, lower, sight, ledger) for lower in LOWERS if lower != pod["spec"]["nodeName"])


def _has_predecessor(pod: Manifest, lower: str, sight: Sight, ledger: Ledger) -> bool:
    """Report whether what may be an older pod of that name is kept in another lower, where the hostile tenant writes.

    Nobody can tell that he made it. One that never ran, or has ended, is none; one that nothing keeps has to go within
    the time that the new pod would be given.
    """
    namespace, name = metadata(pod)["namespace"], metadata(pod)["name"]
    if not ledger.setting.in_hand(namespace, lower):
        return False
    place = ledger.places.of(namespace, lower)
    found = (one for one in sight.below[lower] if (metadata(one)["namespace"], metadata(one)["name"]) == (place, name))
    return any(
        is_marked(one, ledger.mark)
        and one["spec"].get("nodeName")
        and one["status"].get("phase") not in ENDED
        and (metadata(one).get("finalizers") or metadata(one).get("deletionGracePeriodSeconds", LONG) < LONG)
        for one in found
    )
