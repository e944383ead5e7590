"""Holds back a plan that would end much of what nobody deleted.

A wrong kubeconfig, a lost role or a restored etcd all look like "everything is gone above". Deletions that follow from
deleting the upper object pass; the others are in one plan per lower, and wait when they are many, or rest on
caches that
are not complete.
"""

from typing import NamedTuple

from tensile.reconcile.plan import Plan
from tensile.topology import Guard


class Guarded(NamedTuple):
    """The plan that may be carried out, and why the rest of it is held back ("" when nothing is)."""

    plan: Plan
    held: str = ""


def guard(plan: Plan, limits: Guard, *, owned: int, settled: bool, forced: bool = False) -> Guarded:
    """Take the unasked steps out of a plan when they are too many for `owned` objects, or `settled` is false."""
    unasked = sum(not step.asked for step in plan.steps)
    held = "" if forced or not unasked else _objection(unasked, limits, owned, settled=settled)
    if not held:
        return Guarded(plan)
    return Guarded(plan._replace(steps=tuple(step for step in plan.steps if step.asked)), held)


def _objection(unasked: int, limits: Guard, owned: int, *, settled: bool) -> str:
    if not settled:
        return f"{unasked} deletions wait until every cache is complete"
    percent = 100 * unasked // max(owned, unasked)
    if unasked > limits.max_deletes and percent > limits.max_delete_percent:
        return (
            f"{unasked} deletions ({percent} % of what is owned there) that nobody asked for are held back by "
            f"guard.maxDeletes: {limits.max_deletes} and guard.maxDeletePercent: {limits.max_delete_percent}; "
            "if they are right, run: tensile apply --force"
        )
    return ""
