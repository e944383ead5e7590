"""Holds back a plan that would end much of what nobody deleted.

A wrong kubeconfig, a lost role or a restored etcd all look like "everything is gone above". Deletions that follow from
deleting the upper object pass; the others are in one plan per lower, and wait when they are many, or rest on caches
that are not complete. Where a store is known to have been restored, none passes: what is missing there was not deleted,
and only a person can say whether it is to go. The Node keeps note of that, for engines to come.
"""

from typing import NamedTuple

from tensile.names import DELETIONS_HELD, STORE_RESTORED
from tensile.objects import Manifest
from tensile.reconcile.observed import is_ours
from tensile.reconcile.plan import Plan
from tensile.topology import Guard
from tensile.world import LowerWorld, World

HOLDS = "GuardHolds"
_FORCE = "if they are right, run: tensile apply --force"


class Guarded(NamedTuple):
    """The plan that may be carried out, and why the rest of it is held back: words and a reason, "" when nothing is."""

    plan: Plan
    held: str = ""
    reason: str = ""


def guard(
    plan: Plan, limits: Guard, *, owned: int, settled: bool, restored: bool = False, forced: bool = False
) -> Guarded:
    """Take the unasked steps out of a plan when they are too many for `owned` objects, or `settled` is false.

    Where a store is known to be `restored`, or one of them rests on what a store lost, they are always too many.
    """
    unasked = [step for step in plan.steps if not step.asked]
    if forced or not unasked:
        return Guarded(plan)
    lost = restored or any(step.lost for step in unasked)
    reason = STORE_RESTORED if lost else HOLDS
    held = _restored(len(unasked)) if lost else _objection(len(unasked), limits, owned, settled=settled)
    if not held:
        return Guarded(plan)
    return Guarded(plan._replace(steps=tuple(step for step in plan.steps if step.asked)), held, reason)


def is_restored(lower: LowerWorld, world: World) -> bool:
    """Say whether a lower's Node notes that deletions wait because a store was restored."""
    entry = world.upper.nodes.get("", lower.node)
    node = entry.manifest() if entry is not None else {}
    return bool(node) and is_ours(node, world.owner) and noted(node) is not None


def noted(node: Manifest) -> Manifest | None:
    """Give the condition of a Node by which deletions wait because a store was restored, None where it has none."""
    said = (node.get("status") or {}).get("conditions") or ()
    held = (one for one in said if one["type"] == DELETIONS_HELD and one["status"] == "True")
    return next((one for one in held if one.get("reason") == STORE_RESTORED), None)


def _restored(unasked: int) -> str:
    return (
        f"{unasked} deletions that nobody asked for wait: the store of a cluster went back to an earlier state, "
        f"so that what is missing there may only be forgotten; {_FORCE}"
    )


def _objection(unasked: int, limits: Guard, owned: int, *, settled: bool) -> str:
    if not settled:
        return f"{unasked} deletions wait until every cache is complete"
    percent = 100 * unasked // max(owned, unasked)
    if unasked > limits.max_deletes and percent > limits.max_delete_percent:
        return (
            f"{unasked} deletions ({percent} % of what is owned there) that nobody asked for are held back by "
            f"guard.maxDeletes: {limits.max_deletes} and guard.maxDeletePercent: {limits.max_delete_percent}; {_FORCE}"
        )
    return ""
