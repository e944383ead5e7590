"""What people and metrics are told of the loop's doings."""

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


class Reader:
    """Who reads the log, and sets the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        self._sink = CapturingLogger()
        log = structlog.wrap_logger(
            self._sink, processors=[], wrapper_class=structlog.make_filtering_bound_logger("debug")
        )
        self.narration = LoggingObserver(self.metrics, lambda: self.now, log)

    def read(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the level, the words and the fields of everything told since the last time."""
        calls, self._sink.calls = self._sink.calls, []
        return [(call.method_name, call.kwargs.pop("event"), call.kwargs) for call in calls]

    def levels(self) -> list[str]:
        """Return the levels of everything told since the last time."""
        return [level for level, _, _ in self.read()]

    def counted(self, name: str) -> float:
        """Return the value of a series such as `tensile_reconcile_panics_total{rule="pod"}`, 0 when there is none."""
        found = [line for line in self.metrics.text().decode().splitlines() if line.startswith(name + " ")]
        return float(found[0].rsplit(" ", 1)[1]) if found else 0.0


@pytest.fixture
def reader() -> Reader:
    """Return a narration's reader."""
    return Reader()


def decide(message: str) -> None:
    """Fail, as a rule should not."""
    raise ValueError(message)


def defect(message: str = "no such thing") -> ValueError:
    """Return an error as it comes out of a rule."""
    with pytest.raises(ValueError, match=message) as caught:
        decide(message)
    return caught.value


def test_a_decision_is_one_line(reader: Reader) -> None:
    """What was done, where, to what, and why."""
    reader.narration.on_step(KEY, CREATE, None)
    fields = {"cluster": "lower-a", "object": "default/web", "because": "is bound to lower-a"}
    assert reader.read() == [("info", "Pod created", fields)]


@pytest.mark.parametrize(("error", "count"), [(None, 1), (Throttled("a budget forbids it"), 0)])
def test_an_eviction_is_counted_when_it_succeeds(reader: Reader, error: ClusterError | None, count: int) -> None:
    """By the lower that the pod leaves, and the cause."""
    step = Step("delete", Ref("", POD, "default", "web"), "is drained", subresource="eviction", cause="drained")
    reader.narration.on_step(KEY, step, error)
    reader.narration.on_step(KEY, Step("delete", CREATE.ref, "the upper pod was deleted"), None)
    assert reader.counted('tensile_evictions_total{lower="lower-a",reason="drained"}') == count


def test_an_object_without_a_namespace_has_none(reader: Reader) -> None:
    """And the upper cluster, which has no name, is called so."""
    reader.narration.on_step(NODE_KEY, Step("create", Ref("", NODE, "", "lower-a"), "is in the topology"), None)
    assert reader.read() == [
        ("info", "Node created", {"cluster": "upper", "object": "lower-a", "because": "is in the topology"})
    ]


def test_a_change_is_told_by_its_fields_and_never_by_what_is_in_them(reader: Reader) -> None:
    """A Secret's values least of all."""
    operations = ({"op": "replace", "path": "/data/password", "value": "aHVudGVyMg=="},)
    ref = Ref("lower-a", SECRET, "default", "db")
    step = Step("patch", ref, "differs", patch=Patch("json-patch", list(operations)), operations=operations)
    reader.narration.on_step(KEY, step, None)
    ((level, words, fields),) = reader.read()
    assert (level, words) == ("info", "Secret changed")
    assert fields["fields"] == ["data.password"]
    assert "aHVudGVyMg" not in repr(fields)


def test_a_change_of_many_fields_is_cut(reader: Reader) -> None:
    """Eight tell what it is about."""
    operations = tuple({"op": "add", "path": f"/data/k{number}", "value": "v"} for number in range(9))
    step = Step("patch", Ref("lower-a", CONFIG_MAP, "default", "c"), "differs", operations=operations)
    reader.narration.on_step(KEY, step, None)
    ((_, _, fields),) = reader.read()
    assert fields["fields"] == [*(f"data.k{number}" for number in range(8)), "..."]


@pytest.mark.parametrize("asked", [True, False])
def test_a_deletion_that_nobody_asked_for_says_so(reader: Reader, *, asked: bool) -> None:
    """It is what the guard counts."""
    reader.narration.on_step(KEY, Step("delete", CREATE.ref, "has no upper pod", uid="u", requested=asked), None)
    ((level, words, fields),) = reader.read()
    assert (level, words) == ("info", "Pod deleted")
    assert fields.get("unrequested", False) is not asked


@pytest.mark.parametrize(
    "step",
    [
        Step("patch", Ref("", POD, "default", "web"), "status", subresource="status", in_plan=False),
        Step("confirm", Ref("lower-a", POD, "default", "web"), "may be gone"),
    ],
)
def test_what_nobody_decides_about_is_for_debugging(reader: Reader, step: Step) -> None:
    """Status and second looks."""
    reader.narration.on_step(KEY, step, None)
    assert reader.levels() == ["debug"]


@pytest.mark.parametrize("error", [Conflict("x"), AlreadyExists("x"), NotFound("x"), Throttled("x"), Denied("x")])
def test_what_the_loop_settles_or_tells_elsewhere_is_for_debugging(reader: Reader, error: ClusterError) -> None:
    """A denial is told with its key, the others are how the loop learns that it must look again."""
    reader.narration.on_step(KEY, CREATE, error)
    assert reader.levels() == ["debug"]


@pytest.mark.parametrize("kind", [Unreachable, Unauthorized, Expired, ClusterError])
def test_an_error_that_nobody_else_tells_is_a_warning(reader: Reader, kind: type[ClusterError]) -> None:
    """With the cluster, what was tried, and what it said."""
    error = kind("boom", cluster="lower-a", doing="create Pod default/web")
    reader.narration.on_step(KEY, CREATE, error)
    ((level, words, fields),) = reader.read()
    assert (level, words) == ("warning", "step failed")
    assert fields == {"rule": "pod", "error": f"lower-a: create Pod default/web: {kind.title}: boom"}


def test_a_cluster_that_fails_a_thousand_times_is_told_once_in_a_while(reader: Reader) -> None:
    """The next warning says how many there were; another cluster, and another sort of error, has its own."""
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


def test_a_reason_in_ever_other_words_is_told_once_in_a_while(reader: Reader) -> None:
    """A cluster may word its refusal anew each time; another reason, and another key, are told at once."""
    for number in range(100):
        reader.narration.on_blocked(KEY, Problem("Forbidden", f"no {number}"))
    assert reader.levels() == ["warning", *["debug"] * 99]
    reader.narration.on_blocked(KEY, Problem("Invalid", "no"))
    reader.narration.on_blocked(NODE_KEY, Problem("Forbidden", "no"))
    assert reader.levels() == ["warning", "warning"]


def test_a_key_that_cannot_go_on_is_a_warning(reader: Reader) -> None:
    """With the reason and the sentence that people see on the pod."""
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


def test_a_defect_is_an_error_with_its_key(reader: Reader) -> None:
    """The error goes along, so that the log can say its type, its words and its line."""
    error = defect()
    reader.narration.on_rule_error(NODE_KEY, error)
    ((level, words, fields),) = reader.read()
    assert (level, words) == ("error", "a rule failed (bug, please report)")
    assert fields == {"lower": "lower-a", "rule": "node", "object": "lower-a", "exc_info": error}


def test_a_defect_that_meets_every_key_is_told_once_in_a_while(reader: Reader) -> None:
    """Whatever its words are; one raised elsewhere is another one."""
    for number in range(50):
        reader.narration.on_rule_error(KEY._replace(name=f"web-{number}"), defect(f"no pod {number}"))
    reader.narration.on_rule_error(KEY, ValueError("never raised"))
    assert reader.levels() == ["error", "error"]
    assert reader.counted('tensile_reconcile_panics_total{rule="pod"}') == 51


def results() -> Iterator[ClusterError | None]:
    """Yield what may come of a step."""
    yield from (None, None, Denied("x"), Unreachable("x"))


def test_every_step_is_counted(reader: Reader) -> None:
    """Whether it is told or not, by cluster, verb, kind and what came of it."""
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


def test_without_a_log_of_its_own_it_tells_the_engine_s() -> None:
    """Which is where `configure` sends everything."""
    with capture_logs() as logs:
        LoggingObserver(Metrics(), lambda: 0.0).on_blocked(KEY, Problem("Denied", "no"))
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("reconcile blocked", "Denied")]
