"""Tells logs and metrics what the loop does, so that a person who reads along sees each decision once.

What a person decides about is worth a line; status, heartbeats and the many small refusals that sort themselves out are
counted, and told at level debug. Bodies are never told: a change is told by the names of its fields.
"""

from collections.abc import Callable, Hashable
from typing import Any

import structlog

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, Throttled, raised_at
from tensile.objects import Ref
from tensile.reconcile.diff import fields
from tensile.reconcile.plan import Step
from tensile.telemetry import Metrics, Seldom
from tensile.world import Key, Problem

_PAST = {"create": "created", "patch": "changed", "delete": "deleted", "confirm": "looked up"}
_MOST_FIELDS = 8
_ROUTINE = (AlreadyExists, Conflict, Denied, NotFound, Throttled)


class Narration:
    """Hears of what the loop does. `clock` gives monotonic seconds; `log` is where to tell it."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float], log: Any = None) -> None:
        self._metrics = metrics
        self._log = log or structlog.get_logger("tensile.reconcile").bind()
        self._seldom = Seldom(clock)

    def stepped(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Count a step; tell it when a person would want to know, and an error that nobody else tells.

        A denial is told with its key, which is then stuck; the others of _ROUTINE are how the loop finds out that it
        has to look again.
        """
        ref = step.ref
        self._metrics.step(ref.cluster, step.verb, ref.kind.name, type(error).__name__ if error else "ok")
        if error is None:
            self._told(step)
        elif isinstance(error, _ROUTINE):
            self._log.debug("step refused", rule=key.rule, error=str(error))
        else:
            self._warn((ref.cluster, type(error)), "step failed", rule=key.rule, error=str(error))

    def _told(self, step: Step) -> None:
        """Tell a step that came through."""
        what = f"{step.ref.kind.name} {_PAST[step.verb]}"
        if step.shown and step.verb != "confirm":
            self._log.info(what, **_place(step.ref), because=step.reason, **_more(step))
        else:
            self._log.debug(what, **_place(step.ref), because=step.reason)

    def stuck(self, key: Key, problem: Problem) -> None:
        """Tell that a key cannot go on, and why: once for each reason, and in other words a while later."""
        said = {**_names(key), "reason": problem.reason, "error": problem.message}
        self._warn((key, problem.reason), "cannot go on", **said)

    def broke(self, key: Key, error: Exception) -> None:
        """Tell of a defect: what, on which line, for which key; the traceback is for level debug."""
        self._metrics.defect(key.rule)
        sort = key.rule, type(error), raised_at(error)
        said = {**_names(key), "exc_info": error}
        self._seldom.tell(sort, lambda more: self._log.error("a rule failed: please report this", **said, **more))

    def _warn(self, sort: Hashable, event: str, **said: Any) -> None:
        """Warn, but at most once in a while of one sort."""
        if not self._seldom.tell(sort, lambda more: self._log.warning(event, **said, **more)):
            self._log.debug(event, **said)


def _where(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _place(ref: Ref) -> dict[str, str]:
    """Say where an object is."""
    return {"cluster": ref.cluster or "upper", "object": _where(ref.namespace, ref.name)}


def _names(key: Key) -> dict[str, str]:
    """Say what a key stands for."""
    return {"lower": key.lower, "rule": key.rule, "object": _where(key.namespace, key.name)}


def _more(step: Step) -> dict[str, Any]:
    """Say which fields a change touches, without what is in them; a deletion that nobody asked for says so."""
    if step.verb == "patch":
        touched = fields(list(step.operations))
        return {"fields": touched[:_MOST_FIELDS] + (["..."] if len(touched) > _MOST_FIELDS else [])}
    return {} if step.asked else {"unasked": True}
