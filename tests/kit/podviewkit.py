"""The functions that take views of pods, for tests that have decoded pods."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tensile.kubelet.pods import conditions, deletion, rule, status, sync, update
from tensile.reconcile.pods.index import view_of

P = ParamSpec("P")
R = TypeVar("R")


def viewing(function: Callable[P, R], *places: int) -> Callable[..., R]:
    """Return the function with decoded pods instead of views as the arguments at these positions."""

    @wraps(function)
    def called(*given: object, **named: object) -> R:
        """Call the function with views."""
        views = [view_of(one) if at in places and isinstance(one, dict) else one for at, one in enumerate(given)]
        return function(*views, **named)

    return called


condition = viewing(conditions.condition, 0)
is_disrupted = viewing(conditions.is_disrupted, 0, 1)
reflected_conditions = viewing(conditions.reflected_conditions, 0, 1)
status_patch = viewing(conditions.status_patch, 0)
delete_lower = viewing(deletion.delete_lower, 0)
remove_upper = viewing(deletion.remove_upper, 0, 1)
is_kept_out = viewing(rule.is_kept_out, 0)
ending = viewing(status.terminal_status, 0, 1)
lost = viewing(status.lost_status, 0)
pending_because = viewing(status.pending_status, 0)
present_statuses = viewing(status.present_statuses, 0)
reflected_statuses = viewing(status.reflected_statuses, 0, 1)
status_write = viewing(status.status_write, 0)
unreachable = viewing(status.unreachable_status, 0)
upper_status = viewing(status.upper_status, 0, 1)
create = viewing(sync.create, 1)
out_of_reach = viewing(sync.out_of_reach, 0)
report_blocked = viewing(sync.report_blocked, 0)
sync_pod = viewing(sync.sync, 1)
lasting_change_condition = viewing(update.lasting_change_condition, 0)
sync_condition = viewing(update.sync_condition, 0)
