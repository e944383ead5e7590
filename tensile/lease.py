"""The Lease by which the engines of one topology agree on the one that drives: what it says, and what to write.

It rules out that two work against each other, not that two write: a leader that was paused may have writes on their
way when it is replaced. Those are harmless, as each of our writes says which object it means, in which state. How old
a lease is counts from when it was last seen to change, by one's own clock: what is written in it is another's time.
"""

from datetime import datetime
from typing import Any, NamedTuple

from tensile.cluster import Patch
from tensile.names import Owner
from tensile.objects import LEASE, UPPER, Manifest, Ref, as_read

NAMESPACE = "kube-system"
"""Where the lease is in the upper cluster, wherever its engines run and whatever their topology comes from.

Objects are marked by the UID of this namespace and the topology's name alone, so all whose marks are alike have to meet
at one lease. It is in every cluster, Kubernetes' own controllers have theirs here, and a role can name this very lease.
Not kube-node-lease, though the engine has rights there anyway: a lease there is that of the Node of its name, whose
kubelet may write it, and some who look after clusters delete those without a Node (Gardener; Karpenter did).
"""
_MICRO = "%Y-%m-%dT%H:%M:%S.%fZ"
_LONGEST = 4.0
"""So many times as long as ours a lease is believed to hold: who writes ten years into one keeps nobody away by it."""
_MOST_TRANSITIONS = (1 << 31) - 1
"""What the API takes: with one more it would refuse every write that takes the lease."""


class Pace(NamedTuple):
    """Seconds: for how long a lease holds, after how long its holder gives up, and between two looks at it.

    A renewal waits so long for its `answer`: one that hangs shall not take the time in which others would be answered.
    What lies between giving up and the end of the lease is the time to stop in.
    """

    holds: float = 15.0
    gives_up: float = 10.0
    look: float = 2.0
    answer: float = 5.0


def lease_ref(topology: str) -> Ref:
    """Name the lease of a topology: the one of all engines whose objects have the same marks."""
    return Ref(UPPER, LEASE, NAMESPACE, f"tensile-{topology}")


def holder(lease: Manifest | None) -> str:
    """Give the engine that holds a lease, "" for none."""
    return str(_spec(lease).get("holderIdentity") or "")


def is_free(lease: Manifest | None, unchanged: float, pace: Pace) -> bool:
    """Say whether a lease may be taken that has been seen not to change for so many seconds."""
    return not holder(lease) or unchanged >= held_for(lease, pace)


def held_for(lease: Manifest | None, pace: Pace) -> float:
    """Return for how many seconds a lease holds: not shorter than ours do, whatever it says, and not much longer.

    Its holder renews it in time for what it wrote itself, and somebody else may have written something else since.
    """
    given = _spec(lease).get("leaseDurationSeconds")
    wanted = float(given) if isinstance(given, int | float) else pace.holds
    return min(max(wanted, pace.holds), _LONGEST * pace.holds)


def kept_by(lease: Manifest, now: datetime) -> str:
    """Give the engine that keeps a lease which was read once, "" for none; as right as its clock is: only to warn."""
    spec = _spec(lease)
    if not spec.get("renewTime"):
        return ""
    age = (now - datetime.fromisoformat(spec["renewTime"])).total_seconds()
    return "" if is_free(lease, age, Pace()) else holder(lease)


def new(ref: Ref, identity: str, owner: Owner, now: datetime, pace: Pace) -> Manifest:
    """Give the lease that an engine makes where there is none."""
    meta = {
        "name": ref.name,
        "namespace": ref.namespace,
        "labels": owner.label,
        "annotations": owner.signed(owner.upper),
    }
    spec = {**_terms(now, pace), "holderIdentity": identity, "acquireTime": now.strftime(_MICRO), "leaseTransitions": 0}
    return {"apiVersion": LEASE.api, "kind": LEASE.name, "metadata": meta, "spec": spec}


def taken(lease: Manifest, identity: str, now: datetime, pace: Pace) -> Patch:
    """Give the write by which an engine takes a lease; it fails where somebody else was quicker."""
    transitions = min(int(_spec(lease).get("leaseTransitions") or 0) + 1, _MOST_TRANSITIONS)
    times = {**_terms(now, pace), "acquireTime": now.strftime(_MICRO)}
    return _written(lease, {**times, "holderIdentity": identity, "leaseTransitions": transitions})


def renewed(lease: Manifest, now: datetime, pace: Pace) -> Patch:
    """Give the write by which its holder keeps a lease."""
    return _written(lease, _terms(now, pace))


def given_back(lease: Manifest) -> Patch:
    """Give the write by which its holder leaves a lease to others at once."""
    return _written(lease, {"holderIdentity": ""})


def _terms(now: datetime, pace: Pace) -> dict[str, Any]:
    return {"leaseDurationSeconds": int(pace.holds), "renewTime": now.strftime(_MICRO)}


def _written(lease: Manifest, spec: dict[str, Any]) -> Patch:
    return Patch("merge-patch", {"metadata": as_read(lease), "spec": spec})


def _spec(lease: Manifest | None) -> dict[str, Any]:
    return (lease or {}).get("spec") or {}
