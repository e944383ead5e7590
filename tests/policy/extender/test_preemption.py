"""Preemption on behalf of the scheduler: in its steps, with its words, and only where it would come to nothing else."""

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
from tensile.policy.extender.preemption import PATIENCE, PreemptionController

if TYPE_CHECKING:
    from tensile.policy.extender.extender import SchedulerExtender

Manifest = dict[str, Any]
NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
FULL = (There("a", "n", "3"), There("b", "m", "3", 50))
DONE = ["patch Pod comer", "patch Pod a", "delete Pod a", "create Event"]


class Upper(Answering):
    """The upper cluster, with disruption budgets, or an error that it refuses them with."""

    def __init__(self, *budgets: Manifest) -> None:
        super().__init__("")
        self.budgets = budgets
        self.refusal: Exception | None = None

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Return the budgets."""
        assert (kind, selection) == (DISRUPTION_BUDGET, Selection())
        if self.refusal is not None:
            raise self.refusal
        return Listing([read(orjson.dumps(one)) for one in self.budgets], "1")


def done(upper: Upper) -> list[str]:
    """Return what was written, in order; names of events say nothing."""
    return [one if "Event" not in one else "create Event" for one in upper.verbs() if not one.startswith("read")]


class Scene:
    """An extender, which has been asked about a pod that somebody could go for, and who sees to that."""

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
        """Ask where the pod may go, as the scheduler does."""
        self.extender.filter({"Pod": self.comer, "NodeNames": ["v"]}, self.time)

    async def look(self, **now: Any) -> list[str]:
        """Decide in time about a pod that changed in this only, and return what was written."""
        self.upper.answer("read", {**self.comer, **now})
        self.time += PATIENCE
        await self.made.look()
        return done(self.upper)


async def test_it_preempts_as_the_scheduler_does() -> None:
    """The pod is nominated, its victim is told why and deleted, each of them only if it is still the same."""
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
    assert here.behind.ground.promises["default", "comer"].node == "n"
    assert [one["event"] for one in said] == ["preempting"]
    assert here.extender.wants == {}
    assert here.made.evicted == {"v": 1}


async def test_the_scheduler_has_its_turn() -> None:
    """Before that nothing is done; where it asks who has to go, and is told, nothing at all is."""
    here = Scene()
    here.time = PATIENCE / 2
    await here.made.look()
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
async def test_a_pod_that_is_another_now_costs_nobody(now: Manifest) -> None:
    """It is read again before anybody goes for it."""
    here = Scene()
    assert await here.look(**now) == []
    assert here.behind.ground.promises == {}


async def test_nobody_goes_while_others_are_going_for_it() -> None:
    """A scheduler that has preempted on a virtual node waits until that is over; afterwards it is done again."""
    here = Scene()
    said = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    ending = {**There("a", "n", "3", ending=True).above("v"), "status": {"conditions": said}}
    here.behind.residents.put(("default", "a"), ending)
    assert await here.look(status={"nominatedNodeName": "v"}) == []
    here.behind.residents.put(("default", "a"), FULL[0].above("v"))
    here.ask()
    assert await here.look(status={"nominatedNodeName": "v"}) == DONE[1:]


async def test_who_is_going_anyway_is_not_told_twice() -> None:
    """The pod is nominated and waits."""
    here = Scene(There("a", "n", "3", ending=True), FULL[1])
    assert await here.look() == DONE[:1]


async def test_a_pod_that_has_changed_costs_nobody() -> None:
    """Somebody else has written to it: the scheduler, as a rule, which asks again."""
    here = Scene()
    here.upper.answer("patch", Conflict("changed"))
    assert await here.look() == DONE[:1]
    assert here.behind.ground.promises == {}
    assert here.extender.wants == {}


async def test_a_pod_that_is_gone_costs_nobody() -> None:
    """Nobody goes on behalf of what is not there."""
    here = Scene()
    here.upper.answer("read", NotFound("gone"))
    here.time = PATIENCE
    await here.made.look()
    assert done(here.upper) == []


async def test_what_a_cluster_does_not_take_is_tried_again() -> None:
    """Later, and it is told; unless the scheduler asks about the pod again before that."""
    here = Scene()
    here.upper.answer("patch", Unreachable("away"))
    with capture_logs() as said:
        assert await here.look() == DONE[:1]
    assert [one["event"] for one in said] == ["preemption failed"]
    here.time += 5.0
    assert (await here.look())[1:] == DONE


async def test_the_victims_of_a_failed_attempt_are_its_own() -> None:
    """They do not leave anyway: the next attempt deletes them."""
    here = Scene()
    here.upper.answer("patch", {"metadata": {}}, Unreachable("away"))
    assert await here.look() == ["patch Pod comer", "patch Pod a"]
    here.time += 5
    nominated = {"nominatedNodeName": "v"}
    assert (await here.look(status=nominated))[2:] == ["patch Pod a", "delete Pod a", "create Event"]


async def test_one_victim_that_cannot_be_deleted_spares_no_other() -> None:
    """What failed is tried again, while the others are terminating already."""
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


async def test_budgets_that_cannot_be_read_for_a_moment_are_read_again() -> None:
    """As for a pod that cannot be read; without permission to read budgets, no pod is evicted."""
    here = Scene()
    here.upper.refusal = Unreachable("away")
    assert await here.look() == []
    here.upper.refusal = None
    here.time += 5
    assert await here.look() == DONE


async def test_a_victim_that_is_gone_already_is_left() -> None:
    """Nothing that has its name by now is touched, and the others go on their way."""
    here = Scene(There("a", "n", "2"), There("c", "n", "2", 1), There("b", "m", "4", 100), cpu="4")
    here.upper.answer("patch", {"metadata": {}}, Conflict("another pod of that name"))
    assert await here.look() == ["patch Pod comer", "patch Pod c", "patch Pod a", "delete Pod a", "create Event"]


async def test_an_event_is_not_what_it_depends_on() -> None:
    """Though it is refused, the pods go."""
    here = Scene()
    here.upper.answer("create", Denied("no"))
    assert await here.look() == DONE


async def test_without_knowing_the_budgets_nobody_goes() -> None:
    """That is told once in a while, with what is wrong."""
    here = Scene()
    here.upper.refusal = Denied("may not list")
    with capture_logs() as said:
        assert await here.look() == []
        assert await here.made.budgets() is None
    assert [one["event"] for one in said] == ["preemption is disabled: PodDisruptionBudgets cannot be read"]


async def test_it_looks_when_the_extender_has_answered() -> None:
    """And sleeps otherwise; what comes while it is at it has its turn as well."""
    here = Scene()
    here.time = PATIENCE
    held, last = Held(orjson.dumps(here.comer)), Held()
    here.upper.answer("read", held)
    here.upper.answer("create", last)
    running = asyncio.create_task(here.made.run())
    here.made.heed()
    await held.began.wait()
    assert done(here.upper) == []
    held.go.set()
    await last.began.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert done(here.upper) == DONE


async def test_without_an_extender_there_is_nothing_to_do() -> None:
    """As after it was switched off."""
    made = PreemptionController(Upper(), lambda: None, clock=lambda: 0.0, now=lambda: NOW)
    made.heed()
    await made.look()
