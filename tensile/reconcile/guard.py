"""The guard: block many deletions, or pods set to Failed, that no user requested.

A wrong kubeconfig, a missing role and a restored etcd all look like "every upper object is gone". Deletions that follow
from a deleted upper object pass. The others are in one plan per lower. They are blocked if they exceed both limits, a
number and a percentage, or rest on caches that are not synced. The limits apply per upper namespace first, and a
blocked namespace is not counted further, so that one tenant's deletions do not block another's. Then they apply to the
rest of the lower as a whole.

If a store is known to have been restored, none passes: objects missing there were not deleted, and only a person can
decide whether to delete their copies. That is recorded on the Node, for later engines.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tensile.names import DELETIONS_BLOCKED, STORE_RESTORED, ProblemReason
from tensile.objects import NAMESPACE, POD, UPPER, Manifest, Ref
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import LowerWorld, World
from tensile.text import listed
from tensile.topology import Guard

NOT_SYNCED: ProblemReason = "CachesNotSynced"
"""Deletions that no user requested wait until the engine has seen all objects of both clusters. Remedy: wait; if it
stays, look for rights that are missing: `tensile doctor`."""
LIMIT_EXCEEDED: ProblemReason = "DeletionLimitExceeded"
"""More deletions that no user requested are due than `guard` allows, so they wait. Remedy: see [blocked
deletions](../howto/held-deletions.md)."""
_FORCE = "if they are correct, run: tensile apply --force"
_REPLACE = "to set them to Failed, so that their controllers replace them, run: tensile apply --force"


class OwnedTotals(NamedTuple):
    """What a lower can lose: the number of bound upper pods that have run, by upper namespace.

    `without_upper` counts by upper namespace what a plan would delete besides: objects whose upper object is gone.
    """

    owned: Mapping[str, int]
    without_upper: Mapping[str, int]

    def of(self, namespace: str) -> int:
        """Return the number for an upper namespace."""
        return self.owned.get(namespace, 0) + self.without_upper.get(namespace, 0)

    def excluding(self, namespaces: Iterable[str]) -> int:
        """Return the number for all namespaces but these."""
        remaining = (self.owned.keys() | self.without_upper.keys()) - set(namespaces)
        return sum(map(self.of, remaining))


class GuardedPlan(NamedTuple):
    """The part of a plan that may be carried out, why the rest is blocked, and the `blocked` steps.

    `message` is the message and `reason` the reason, both "" if nothing is blocked.
    """

    plan: Plan
    message: str = ""
    reason: str = ""
    blocked: tuple[Step, ...] = ()


def guard(plan: Plan, limits: Guard, lower: LowerWorld, *, restored: bool = False, forced: bool = False) -> GuardedPlan:
    """Remove the steps that were not requested if they are too many, or if caches are not synced.

    They are always too many if a store is known to be `restored`, or if one of them rests on a store's lost history.
    """
    unrequested = [step for step in plan.steps if not step.requested]
    if forced or not unrequested:
        return GuardedPlan(plan)
    if restored or any(step.after_restore for step in unrequested):
        return _without(plan, unrequested, _restored_message(len(unrequested)), STORE_RESTORED)
    if not lower.settled:
        return _without(plan, unrequested, f"{len(unrequested)} deletions wait until all caches are synced", NOT_SYNCED)
    namespaces = {id(step): namespace_of(step.ref, lower) for step in unrequested}
    totals = _totals(unrequested, namespaces, lower)
    counts = Counter(namespaces.values())
    exceeding = sorted(name for name, count in counts.items() if _exceeds_limits(count, totals.of(name), limits))
    rest = [step for step in unrequested if namespaces[id(step)] not in exceeding]
    if _exceeds_limits(len(rest), totals.excluding(exceeding), limits):
        return _without(plan, unrequested, _too_many(unrequested, totals.excluding(()), "", limits), LIMIT_EXCEEDED)
    if not exceeding:
        return GuardedPlan(plan)
    blocked = [step for step in unrequested if namespaces[id(step)] in exceeding]
    message = _too_many(blocked, sum(totals.of(name) for name in exceeding), f" in {_named(exceeding)}", limits)
    return _without(plan, blocked, message, LIMIT_EXCEEDED)


def namespace_of(ref: Ref, lower: LowerWorld) -> str:
    """Return the upper namespace of an object of either cluster, "" if none is known."""
    name = ref.name if ref.kind == NAMESPACE else ref.namespace
    return name if ref.cluster == UPPER else lower.upper_namespace(name)


def _totals(unrequested: Iterable[Step], namespaces: Mapping[int, str], lower: LowerWorld) -> OwnedTotals:
    """Count what a lower owns, and besides that what the steps are about."""
    ran = [pod for pod in lower.upper_pods if pod.facts.ran and not pod.facts.terminal]
    known = {(pod.namespace, pod.name) for pod in ran}
    others = (namespaces[id(step)] for step in unrequested if not _is_about(step, namespaces[id(step)], known))
    return OwnedTotals(Counter(pod.namespace for pod in ran), Counter(others))


def _is_about(step: Step, namespace: str, pods: set[tuple[str, str]]) -> bool:
    return step.ref.kind == POD and (namespace, step.ref.name) in pods


def _without(plan: Plan, blocked: list[Step], message: str, reason: str) -> GuardedPlan:
    """Remove steps from a plan, with the message."""
    removed = set(map(id, blocked))
    remaining = tuple(step for step in plan.steps if id(step) not in removed)
    return GuardedPlan(plan._replace(steps=remaining), message, reason, tuple(blocked))


def is_restored(lower: LowerWorld, world: World) -> bool:
    """Report whether a lower's Node records that deletions are blocked because a store was restored."""
    entry = world.upper.nodes.get("", lower.node)
    node = entry.manifest() if entry is not None else {}
    return bool(node) and is_ours(node, world.owner) and restored_condition(node) is not None


def restored_condition(node: Manifest) -> Manifest | None:
    """Return the condition of a Node that blocks deletions because a store was restored, None if there is none."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    blocking = (
        condition
        for condition in conditions
        if condition["type"] == DELETIONS_BLOCKED and condition["status"] == "True"
    )
    return next((condition for condition in blocking if condition.get("reason") == STORE_RESTORED), None)


def _restored_message(unrequested: int) -> str:
    return (
        f"{unrequested} deletions that no user requested are blocked: a cluster was restored from a backup, so missing "
        f"objects may be lost; {_FORCE}"
    )


def _exceeds_limits(count: int, total: int, limits: Guard) -> bool:
    """Report whether both limits are exceeded: the number, and the percentage of what is owned."""
    return count > limits.max_deletes and 100 * count > limits.max_delete_percent * max(count, total)


def _percent(count: int, total: int) -> int:
    """Return the percentage for people, rounded up: what exceeds a limit of 0 % is not 0 %."""
    return -(-100 * count // max(count, total))


def _too_many(blocked: Sequence[Step], total: int, place: str, limits: Guard) -> str:
    """Return the message about blocked steps: for objects only in the lower cluster, pods only in the upper."""
    bounds = f"guard.maxDeletes: {limits.max_deletes} and guard.maxDeletePercent: {limits.max_delete_percent}"
    count, lost = len(blocked), sum(map(_is_about_lost_lower_pod, blocked))
    scope = f"{place} ({_percent(count, total)} % of the owned objects there)"
    if lost == count:
        return (
            f"{count} pods{scope} were deleted in the lower cluster, but not in the upper one, where {bounds} keep "
            f"them unchanged; {_REPLACE}"
        )
    details = f": {count - lost} deletions there, and {lost} pods that were deleted only there" if lost else ""
    noun = "changes" if lost else "deletions"
    return f"{count} {noun}{scope} that no user requested are blocked by {bounds}{details}; {_FORCE}"


def _is_about_lost_lower_pod(step: Step) -> bool:
    """Report whether a step sets an upper pod to Failed, or reads before that whether its lower pod is really gone."""
    return step.ref.kind == POD and step.verb == ("patch" if step.ref.cluster == UPPER else "confirm")


def _named(namespaces: list[str]) -> str:
    """Format namespaces, only the first ones of many."""
    return f"namespace{'' if len(namespaces) == 1 else 's'} {listed(namespaces)}"
