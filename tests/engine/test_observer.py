"""Tests of the log lines and metrics for the actions of the reconcile loop."""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import CapturingLogger, capture_logs

from tensile.engine.metrics import Metrics
from tensile.engine.observer import LoggingObserver
from tensile.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Denied,
    Expired,
    NotFound,
    Throttled,
    Unauthorized,
    Unreachable,
)
from tensile.kube.cluster import Patch
from tensile.kube.limits import PAUSE
from tensile.objects import CONFIG_MAP, NODE, POD, SECRET, Ref
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem

KEY = Key("pod", "lower-a", "default", "web")
NODE_KEY = Key("node", "lower-a", "", "lower-a")
CREATE = Step("create", Ref("lower-a", POD, "default", "web"), "is bound to lower-a", body={"kind": "Pod"})


class ObserverLogReader:
    """An observer with a captured log and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        self._sink = CapturingLogger()
        log = structlog.wrap_logger(
            self._sink, processors=[], wrapper_class=structlog.make_filtering_bound_logger("debug")
        )
        self.narration = LoggingObserver(self.metrics, lambda: self.now, log)

    def read(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return level, event and fields of every line that was logged since the last call."""
        calls, self._sink.calls = self._sink.calls, []
        return [(call.method_name, call.kwargs.pop("event"), call.kwargs) for call in calls]

    def levels(self) -> list[str]:
        """Return the levels of the lines that were logged since the last call."""
        return [level for level, _, _ in self.read()]

    def counted(self, name: str) -> float:
        """Return the value of a series such as `tensile_reconcile_panics_total{rule="pod"}`, 0 if it does not exist."""
        found = [line for line in self.metrics.text().decode().splitlines() if line.startswith(name + " ")]
        return float(found[0].rsplit(" ", 1)[1]) if found else 0.0


@pytest.fixture
def reader() -> ObserverLogReader:
    """Return an observer whose log can be read."""
    return ObserverLogReader()


def decide(message: str) -> None:
    """Raise an error, as a rule should not."""
    raise ValueError(message)


def defect(message: str = "no such thing") -> ValueError:
    """Return an error as a rule raises it."""
    with pytest.raises(ValueError, match=message) as caught:
        decide(message)
    return caught.value


def test_a_step_is_logged_as_one_line(reader: ObserverLogReader) -> None:
    """The line has the action, the cluster, the object and the reason."""
    reader.narration.on_step(KEY, CREATE, None)
    fields = {"cluster": "lower-a", "object": "default/web", "because": "is bound to lower-a"}
    assert reader.read() == [("info", "Pod created", fields)]


@pytest.mark.parametrize(("error", "count"), [(None, 1), (Throttled("a budget forbids it"), 0)])
def test_an_eviction_is_only_counted_if_it_succeeds(
    reader: ObserverLogReader, error: ClusterError | None, count: int
) -> None:
    """The labels are the lower that the pod leaves, and the cause."""
    step = Step("delete", Ref("", POD, "default", "web"), "is drained", subresource="eviction", cause="drained")
    reader.narration.on_step(KEY, step, error)
    reader.narration.on_step(KEY, Step("delete", CREATE.ref, "the upper pod was deleted"), None)
    assert reader.counted('tensile_evictions_total{lower="lower-a",reason="drained"}') == count


def test_an_object_without_a_namespace_is_logged_by_its_name_alone(reader: ObserverLogReader) -> None:
    """The upper cluster, which has no name, is logged as upper."""
    reader.narration.on_step(NODE_KEY, Step("create", Ref("", NODE, "", "lower-a"), "is in the topology"), None)
    assert reader.read() == [
        ("info", "Node created", {"cluster": "upper", "object": "lower-a", "because": "is in the topology"})
    ]


def test_a_change_is_logged_with_its_fields_and_without_values(reader: ObserverLogReader) -> None:
    """A Secret for example must not be readable in the log."""
    operations = ({"op": "replace", "path": "/data/password", "value": "aHVudGVyMg=="},)
    ref = Ref("lower-a", SECRET, "default", "db")
    step = Step("patch", ref, "differs", patch=Patch("json-patch", list(operations)), operations=operations)
    reader.narration.on_step(KEY, step, None)
    ((level, message, fields),) = reader.read()
    assert (level, message) == ("info", "Secret changed")
    assert fields["fields"] == ["data.password"]
    assert "aHVudGVyMg" not in repr(fields)


def test_a_change_of_many_fields_is_logged_with_the_first_eight(reader: ObserverLogReader) -> None:
    """Eight fields are enough to recognize the change."""
    operations = tuple({"op": "add", "path": f"/data/k{number}", "value": "v"} for number in range(9))
    step = Step("patch", Ref("lower-a", CONFIG_MAP, "default", "c"), "differs", operations=operations)
    reader.narration.on_step(KEY, step, None)
    ((_, _, fields),) = reader.read()
    assert fields["fields"] == [*(f"data.k{number}" for number in range(8)), "..."]


@pytest.mark.parametrize("is_requested", [True, False])
def test_a_deletion_that_was_not_requested_is_marked_in_the_log(
    reader: ObserverLogReader, *, is_requested: bool
) -> None:
    """The guard limits such deletions."""
    reader.narration.on_step(KEY, Step("delete", CREATE.ref, "has no upper pod", uid="u", requested=is_requested), None)
    ((level, message, fields),) = reader.read()
    assert (level, message) == ("info", "Pod deleted")
    assert fields.get("unrequested", False) is not is_requested


@pytest.mark.parametrize(
    "step",
    [
        Step("patch", Ref("", POD, "default", "web"), "status", subresource="status", in_plan=False),
        Step("confirm", Ref("lower-a", POD, "default", "web"), "may be gone"),
    ],
)
def test_steps_that_no_plan_contains_are_logged_at_level_debug(reader: ObserverLogReader, step: Step) -> None:
    """These are status updates and confirming reads."""
    reader.narration.on_step(KEY, step, None)
    assert reader.levels() == ["debug"]


@pytest.mark.parametrize("error", [Conflict("x"), AlreadyExists("x"), NotFound("x"), Throttled("x"), Denied("x")])
def test_errors_that_the_loop_handles_are_logged_at_level_debug(reader: ObserverLogReader, error: ClusterError) -> None:
    """A denial is logged with its key, and the others only cause another reconciliation."""
    reader.narration.on_step(KEY, CREATE, error)
    assert reader.levels() == ["debug"]


@pytest.mark.parametrize("kind", [Unreachable, Unauthorized, Expired, ClusterError])
def test_an_error_that_is_not_reported_elsewhere_is_logged_as_a_warning(
    reader: ObserverLogReader, kind: type[ClusterError]
) -> None:
    """It has the cluster, the attempted action and the message."""
    error = kind("boom", cluster="lower-a", doing="create Pod default/web")
    reader.narration.on_step(KEY, CREATE, error)
    ((level, message, fields),) = reader.read()
    assert (level, message) == ("warning", "step failed")
    assert fields == {"rule": "pod", "error": f"lower-a: create Pod default/web: {kind.title}: boom"}


def test_repeated_errors_of_a_cluster_are_logged_once_per_interval(reader: ObserverLogReader) -> None:
    """The next warning has their number; another cluster and another type of error are logged separately."""
    for _ in range(1000):
        reader.narration.on_step(KEY, CREATE, Unreachable("boom"))
    assert reader.levels() == ["warning", *["debug"] * 999]
    elsewhere = Step("create", Ref("lower-b", POD, "default", "web"), "is bound")
    reader.narration.on_step(KEY, elsewhere, Unreachable("boom"))
    reader.narration.on_step(KEY, CREATE, Unauthorized("boom"))
    assert reader.levels() == ["warning", "warning"]
    reader.now = PAUSE - 0.1
    reader.narration.on_step(KEY, CREATE, Unreachable("boom"))
    assert reader.levels() == ["debug"]
    reader.now = PAUSE
    reader.narration.on_step(KEY, CREATE, Unreachable("boom"))
    ((level, _, fields),) = reader.read()
    assert (level, fields["more_since"]) == ("warning", 1000)


def test_a_blocked_key_is_logged_once_per_interval_and_reason(reader: ObserverLogReader) -> None:
    """The message can vary each time; another reason and another key are logged at once."""
    for number in range(100):
        reader.narration.on_blocked(KEY, Problem("Forbidden", f"no {number}"))
    assert reader.levels() == ["warning", *["debug"] * 99]
    reader.narration.on_blocked(KEY, Problem("Invalid", "no"))
    reader.narration.on_blocked(NODE_KEY, Problem("Forbidden", "no"))
    assert reader.levels() == ["warning", "warning"]


def test_a_blocked_key_is_logged_as_a_warning(reader: ObserverLogReader) -> None:
    """It has the reason and the message that users see on the pod."""
    reader.narration.on_blocked(KEY, Problem("Forbidden", 'pods "web" is forbidden: exceeded quota'))
    assert reader.read() == [
        (
            "warning",
            "reconcile blocked",
            {
                "lower": "lower-a",
                "rule": "pod",
                "object": "default/web",
                "reason": "Forbidden",
                "error": 'pods "web" is forbidden: exceeded quota',
            },
        )
    ]


def test_an_exception_in_a_rule_is_logged_as_an_error_with_its_key(reader: ObserverLogReader) -> None:
    """The exception is passed on, so that the log can add its type, its message and its source line."""
    error = defect()
    reader.narration.on_unexpected_error(NODE_KEY, error)
    ((level, message, fields),) = reader.read()
    assert (level, message) == ("error", "a rule failed (bug, please report)")
    assert fields == {"lower": "lower-a", "rule": "node", "object": "lower-a", "exc_info": error}


def test_an_exception_that_affects_many_keys_is_logged_once_per_interval(reader: ObserverLogReader) -> None:
    """Its message does not matter; an exception of another source line is logged separately."""
    for number in range(50):
        reader.narration.on_unexpected_error(KEY._replace(name=f"web-{number}"), defect(f"no pod {number}"))
    reader.narration.on_unexpected_error(KEY, ValueError("never raised"))
    assert reader.levels() == ["error", "error"]
    assert reader.counted('tensile_reconcile_panics_total{rule="pod"}') == 51


def results() -> Iterator[ClusterError | None]:
    """Yield the possible results of a step."""
    yield from (None, None, Denied("x"), Unreachable("x"))


def test_every_step_is_counted_whether_it_is_logged_or_not(reader: ObserverLogReader) -> None:
    """The labels are cluster, verb, kind and result."""
    for error in results():
        reader.narration.on_step(KEY, CREATE, error)
    reader.narration.on_step(KEY, Step("patch", Ref("", POD, "default", "web"), "status", in_plan=False), None)
    series = 'tensile_steps_total{{cluster="{}",kind="Pod",result="{}",verb="{}"}}'.format
    counted = [
        reader.counted(series("lower-a", "ok", "create")),
        reader.counted(series("lower-a", "Denied", "create")),
        reader.counted(series("lower-a", "Unreachable", "create")),
        reader.counted(series("upper", "ok", "patch")),
    ]
    assert counted == [2, 1, 1, 1]


def test_the_observer_uses_the_engines_log_by_default() -> None:
    """That is the log that `configure` sets up."""
    with capture_logs() as logs:
        LoggingObserver(Metrics(), lambda: 0.0).on_blocked(KEY, Problem("Denied", "no"))
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("reconcile blocked", "Denied")]
