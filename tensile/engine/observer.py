"""Logs and counts what the loop does.

Each decision is logged once. What a person decides about gets a line. Status, heartbeats and the many small refusals
that resolve themselves are counted, and logged at level debug. Bodies are never logged: a change is described by the
names of its fields.
"""

from collections.abc import Callable, Hashable
from typing import Any

import structlog

from tensile.engine.metrics import Metrics
from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, Throttled, raised_at
from tensile.kube.limits import LogThrottle
from tensile.objects import Ref
from tensile.reconcile.diff import fields
from tensile.reconcile.plan import Step
from tensile.reconcile.report import Recorder
from tensile.reconcile.world import Key, Problem

_PAST = {"create": "created", "patch": "changed", "delete": "deleted", "confirm": "looked up"}
_MOST_FIELDS = 8
_ROUTINE = (AlreadyExists, Conflict, Denied, NotFound, Throttled)


class LoggingObserver:
    """Logs and counts what the loop does; `clock` returns monotonic seconds, `log` is the logger.

    `changed` is called with each step that succeeded and that a person decides about.
    """

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        log: Any = None,
        changed: Callable[[Step], object] = lambda _: None,
    ) -> None:
        self._metrics = metrics
        self._changed = changed
        self._log = log or structlog.get_logger("tensile.reconcile").bind()
        self._seldom = LogThrottle(clock)

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Count a step; log it if a person would want to know, and an error that is logged nowhere else.

        A denial is logged with its key, which is then blocked. The other errors of `_ROUTINE` only tell the loop to
        decide again.
        """
        ref = step.ref
        self._metrics.step(ref.cluster, step.verb, ref.kind.name, type(error).__name__ if error else "ok")
        if error is None:
            if step.cause is not None:
                self._metrics.eviction(key.lower, step.cause)
            self._told(step)
        elif isinstance(error, _ROUTINE):
            self._log.debug("step refused", rule=key.rule, error=str(error))
        else:
            self._warn((ref.cluster, type(error)), "step failed", rule=key.rule, error=str(error))

    def _told(self, step: Step) -> None:
        """Log a step that succeeded."""
        what = f"{step.ref.kind.name} {_PAST[step.verb]}"
        if step.in_plan and step.verb != "confirm":
            self._log.info(what, **place(step.ref), because=step.reason, **_more(step))
            self._changed(step)
        else:
            self._log.debug(what, **place(step.ref), because=step.reason)

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Log that a key is blocked, and why: once for each reason, and again with another message after a while."""
        said = {**_names(key), "reason": problem.reason, "error": problem.message}
        self._warn((key, problem.reason), "reconcile blocked", **said)

    def on_rule_error(self, key: Key, error: Exception) -> None:
        """Log a defect: the error, its line and the key; the traceback at level debug only."""
        self._metrics.defect(key.rule)
        sort = key.rule, type(error), raised_at(error)
        said = {**_names(key), "exc_info": error}
        self._seldom.tell(sort, lambda more: self._log.error("a rule failed (bug, please report)", **said, **more))

    def _warn(self, sort: Hashable, event: str, **said: Any) -> None:
        """Log a warning, rate-limited per sort; otherwise log it at level debug."""
        if not self._seldom.tell(sort, lambda more: self._log.warning(event, **said, **more)):
            self._log.debug(event, **said)


class LoggingRecorder(Recorder):
    """A recorder that also logs, for commands that change clusters: that takes time, and people watch it."""

    def __init__(self, observer: LoggingObserver) -> None:
        super().__init__()
        self._observer = observer

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Record and log a step."""
        super().on_step(key, step, error)
        self._observer.on_step(key, step, error)

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Log a key whose reconciliation is blocked."""
        self._observer.on_blocked(key, problem)


def place(ref: Ref) -> dict[str, str]:
    """Return the log fields of an object."""
    return {"cluster": ref.cluster or "upper", "object": ref.namespaced_name}


def first_fields(names: list[str]) -> list[str]:
    """Return the names of changed fields for a log line: the first ones of many."""
    return names[:_MOST_FIELDS] + (["..."] if len(names) > _MOST_FIELDS else [])


def _names(key: Key) -> dict[str, str]:
    """Return the log fields of a key."""
    return {
        "lower": key.lower,
        "rule": key.rule,
        "object": f"{key.namespace}/{key.name}" if key.namespace else key.name,
    }


def _more(step: Step) -> dict[str, Any]:
    """Return the names of the fields that a patch changes, not their values; `unrequested` for such a deletion."""
    if step.verb == "patch":
        return {"fields": first_fields(fields(list(step.operations)))}
    return {} if step.requested else {"unrequested": True}
