"""Tests of preemption on the scheduler's behalf: its steps, its messages, and that no pod is preempted in error."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from answering import Answering, Held
from preemptkit import Behind, There, extender, wants
from structlog.testing import capture_logs

from tensile.errors import Conflict, Denied, NotFound, Unreachable
from tensile.kube.cluster import Listing, Read, Selection
from tensile.objects import DISRUPTION_BUDGET, Kind
from tensile.policy.extender.preemption_controller import SCHEDULER_SECONDS, PreemptionController

if TYPE_CHECKING:
    from tensile.policy.extender.extender import SchedulerExtender

Manifest = dict[str, Any]
NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
FULL = (There("a", "n", "3"), There("b", "m", "3", 50))
DONE = ["patch Pod comer", "patch Pod a", "delete Pod a", "create Event"]


class Upper(Answering):
    """The upper cluster with disruption budgets, or with an error for listing them."""

    def __init__(self, *budgets: Manifest) -> None:
        super().__init__("")
        self.budgets = budgets
        self.refusal: Exception | None = None

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Return the disruption budgets."""
        assert (kind, selection) == (DISRUPTION_BUDGET, Selection())
        if self.refusal is not None:
            raise self.refusal
        return Listing([read(orjson.dumps(one)) for one in self.budgets], "1")


def done(upper: Upper) -> list[str]:
    """Return the verbs of the writes in order; names of events are omitted."""
    return [one if "Event" not in one else "create Event" for one in upper.verbs() if not one.startswith("read")]


class Scene:
    """An extender with a request for a pod that has possible victims, and the controller that preempts them."""

    def __init__(self, *pods: There, **comer: Any) -> None:
        self.time = 0.0
        self.behind = Behind({"n": "4", "m": "4"}, *(pods or FULL))
        self.extender: SchedulerExtender = extender(self.behind)
        self.upper = Upper()
        self.comer = wants(**comer)
        self.comer["metadata"]["resourceVersion"] = "7"
        self.made = PreemptionController(self.upper, lambda: self.extender, clock=lambda: self.time, now=lambda: NOW)
        self.ask()

    def ask(self) -> None:
        """Request nodes for the pod as the scheduler does."""
        self.extender.filter({"Pod": self.comer, "NodeNames": ["v"]}, self.time)

    async def look(self, **now: Any) -> list[str]:
        """Run the controller after its waiting time on the pod with these changes, and return what was written."""
        self.upper.answer("read", {**self.comer, **now})
        self.time += SCHEDULER_SECONDS
        await self.made.handle_due()
        return done(self.upper)


async def test_the_controller_preempts_as_the_scheduler_does() -> None:
    """The pod is nominated, the victim gets a condition and is deleted, each with a UID precondition."""
    here = Scene()
    with capture_logs() as said:
        assert await here.look() == DONE
    nominated, told, deleted, event = here.upper.asked[1:]
    assert nominated.carried[0].body == {
        "metadata": {"uid": "uid-comer", "resourceVersion": "7"},
        "status": {"nominatedNodeName": "v"},
    }
    assert told.carried[0].body == {
        "metadata": {"uid": "uid-a"},
        "status": {
            "conditions": [
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "PreemptionByScheduler",
                    "message": "tensile-kube: preempting to accommodate a higher priority pod",
                    "lastTransitionTime": "2031-05-06T07:08:09Z",
                }
            ]
        },
    }
    assert [one.carried[1] for one in (nominated, told)] == ["status", "status"]
    assert deleted.carried == ("uid-a", None)
    words = "Preempted by pod uid-comer on node v"
    assert (event.carried["reason"], event.carried["message"], event.carried["type"]) == ("Preempted", words, "Normal")
    assert here.behind.ground.reservations["default", "comer"].node == "n"
    assert [one["event"] for one in said] == ["preempting"]
    assert here.extender.wants == {}
    assert here.made.evicted == {"v": 1}


async def test_nothing_is_preempted_before_the_schedulers_turn_is_over() -> None:
    """The scheduler may find victims itself within that time."""
    here = Scene()
    here.time = SCHEDULER_SECONDS / 2
    await here.made.handle_due()
    assert here.upper.asked == []
    assert list(here.extender.wants) == ["uid-comer"]


@pytest.mark.parametrize(
    "now",
    [
        pytest.param({"spec": {**wants()["spec"], "nodeName": "w"}}, id="bound"),
        pytest.param({"metadata": {**wants()["metadata"], "deletionTimestamp": "x"}}, id="deleted"),
        pytest.param({"metadata": {**wants()["metadata"], "uid": "another"}}, id="another"),
        pytest.param({"spec": {**wants()["spec"], "preemptionPolicy": "Never"}}, id="never"),
        pytest.param({"status": {"nominatedNodeName": "worker"}}, id="nominated-elsewhere"),
    ],
)
async def test_no_pod_is_preempted_if_the_preemptor_has_changed(now: Manifest) -> None:
    """The pod is read again before any victim is deleted."""
    here = Scene()
    assert await here.look(**now) == []
    assert here.behind.ground.reservations == {}


async def test_no_pod_is_preempted_while_earlier_victims_are_terminating() -> None:
    """A scheduler waits for its victims on a virtual node too; after that the preemption is repeated."""
    here = Scene()
    said = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    ending = {**There("a", "n", "3", ending=True).above("v"), "status": {"conditions": said}}
    here.behind.residents.put(("default", "a"), ending)
    assert await here.look(status={"nominatedNodeName": "v"}) == []
    here.behind.residents.put(("default", "a"), FULL[0].above("v"))
    here.ask()
    assert await here.look(status={"nominatedNodeName": "v"}) == DONE[1:]


async def test_a_terminating_victim_is_not_deleted_again() -> None:
    """The pod is only nominated, and waits."""
    here = Scene(There("a", "n", "3", ending=True), FULL[1])
    assert await here.look() == DONE[:1]


async def test_a_conflict_on_the_nomination_preempts_no_pod() -> None:
    """Another client changed the pod, usually the scheduler, which will call the extender again."""
    here = Scene()
    here.upper.answer("patch", Conflict("changed"))
    assert await here.look() == DONE[:1]
    assert here.behind.ground.reservations == {}
    assert here.extender.wants == {}


async def test_no_pod_is_preempted_for_a_deleted_pod() -> None:
    """The pod no longer exists when it is read again."""
    here = Scene()
    here.upper.answer("read", NotFound("gone"))
    here.time = SCHEDULER_SECONDS
    await here.made.handle_due()
    assert done(here.upper) == []


async def test_a_failed_nomination_is_logged_and_retried() -> None:
    """The retry is five seconds later."""
    here = Scene()
    here.upper.answer("patch", Unreachable("away"))
    with capture_logs() as said:
        assert await here.look() == DONE[:1]
    assert [one["event"] for one in said] == ["preemption failed"]
    here.time += 5.0
    assert (await here.look())[1:] == DONE


async def test_the_victims_of_a_failed_attempt_are_deleted_by_the_next_one() -> None:
    """They do not terminate by themselves."""
    here = Scene()
    here.upper.answer("patch", {"metadata": {}}, Unreachable("away"))
    assert await here.look() == ["patch Pod comer", "patch Pod a"]
    here.time += 5
    nominated = {"nominatedNodeName": "v"}
    assert (await here.look(status=nominated))[2:] == ["patch Pod a", "delete Pod a", "create Event"]


async def test_a_failed_deletion_does_not_keep_the_other_victims() -> None:
    """The failed deletion is retried while the other victims are terminating."""
    here = Scene(There("a", "n", "2"), There("c", "n", "2", 1), There("b", "m", "4", 100), cpu="4")
    here.upper.answer("delete", Unreachable("away"))
    first = await here.look()
    assert [one for one in first if one.startswith("delete")] == ["delete Pod c", "delete Pod a"]
    gone = There("a", "n", "2", ending=True)
    here.behind.put(gone)
    said = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    here.behind.residents.put(("default", "a"), {**gone.above("v"), "status": {"conditions": said}})
    here.time += 5
    again = (await here.look(status={"nominatedNodeName": "v"}))[len(first) :]
    assert again == ["patch Pod c", "delete Pod c", "create Event"]


async def test_temporarily_unreadable_budgets_are_read_again() -> None:
    """The preemption is done at the retry."""
    here = Scene()
    here.upper.refusal = Unreachable("away")
    assert await here.look() == []
    here.upper.refusal = None
    here.time += 5
    assert await here.look() == DONE


async def test_a_victim_that_was_replaced_is_skipped() -> None:
    """A new pod of the same name is not changed, and the other victims are deleted."""
    here = Scene(There("a", "n", "2"), There("c", "n", "2", 1), There("b", "m", "4", 100), cpu="4")
    here.upper.answer("patch", {"metadata": {}}, Conflict("another pod of that name"))
    assert await here.look() == ["patch Pod comer", "patch Pod c", "patch Pod a", "delete Pod a", "create Event"]


async def test_a_refused_event_does_not_stop_the_preemption() -> None:
    """The victims are deleted before the event is created."""
    here = Scene()
    here.upper.answer("create", Denied("no"))
    assert await here.look() == DONE


async def test_no_pod_is_preempted_if_budgets_may_not_be_listed() -> None:
    """The warning with its cause is rate-limited."""
    here = Scene()
    here.upper.refusal = Denied("may not list")
    with capture_logs() as said:
        assert await here.look() == []
        assert await here.made.budgets() is None
    assert [one["event"] for one in said] == ["preemption is disabled: PodDisruptionBudgets cannot be read"]


async def test_run_handles_a_want_after_it_is_woken() -> None:
    """Nothing is written before the preemptor is read."""
    here = Scene()
    here.time = SCHEDULER_SECONDS
    held, last = Held(orjson.dumps(here.comer)), Held()
    here.upper.answer("read", held)
    here.upper.answer("create", last)
    running = asyncio.create_task(here.made.run())
    here.made.wake()
    await held.began.wait()
    assert done(here.upper) == []
    held.go.set()
    await last.began.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert done(here.upper) == DONE


async def test_the_controller_does_nothing_without_an_extender() -> None:
    """There is none after it was disabled."""
    made = PreemptionController(Upper(), lambda: None, clock=lambda: 0.0, now=lambda: NOW)
    made.wake()
    await made.handle_due()
