"""Tests of preemption on the scheduler's behalf: its steps, its messages, and that no pod is preempted in error."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from answering import FakeCluster, HeldResponse
from preemptkit import ExistingPod, VirtualNodeFixture, extender, pending_pod
from structlog.testing import capture_logs

from tensile.errors import Conflict, Denied, NotFound, Unreachable
from tensile.kube.cluster import Listing, Read, Selection
from tensile.objects import DISRUPTION_BUDGET, Kind
from tensile.policy.extender.preemption_controller import SCHEDULER_SECONDS, PreemptionController

if TYPE_CHECKING:
    from tensile.policy.extender.extender import SchedulerExtender

Manifest = dict[str, Any]
NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
FULL = (ExistingPod("a", "n", "3"), ExistingPod("b", "m", "3", 50))
DONE = ["patch Pod comer", "patch Pod a", "delete Pod a", "create Event"]


class UpperWithBudgets(FakeCluster):
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


def done(upper: UpperWithBudgets) -> list[str]:
    """Return the verbs of the writes in order; names of events are omitted."""
    return [one if "Event" not in one else "create Event" for one in upper.verbs() if not one.startswith("read")]


class PreemptionHarness:
    """An extender with a request for a pod that has possible victims, and the controller that preempts them."""

    def __init__(self, *pods: ExistingPod, **comer: Any) -> None:
        self.time = 0.0
        self.virtual_node = VirtualNodeFixture({"n": "4", "m": "4"}, *(pods or FULL))
        self.extender: SchedulerExtender = extender(self.virtual_node)
        self.upper = UpperWithBudgets()
        self.pod = pending_pod(**comer)
        self.pod["metadata"]["resourceVersion"] = "7"
        self.made = PreemptionController(self.upper, lambda: self.extender, clock=lambda: self.time, now=lambda: NOW)
        self.ask()

    def ask(self) -> None:
        """Request nodes for the pod as the scheduler does."""
        self.extender.filter({"Pod": self.pod, "NodeNames": ["v"]}, self.time)

    async def reconcile(self, **now: Any) -> list[str]:
        """Run the controller after its waiting time on the pod with these changes, and return what was written."""
        self.upper.queue_responses("read", {**self.pod, **now})
        self.time += SCHEDULER_SECONDS
        await self.made.handle_due()
        return done(self.upper)


async def test_the_controller_preempts_as_the_scheduler_does() -> None:
    """The pod is nominated, the victim gets a condition and is deleted, each with a UID precondition."""
    harness = PreemptionHarness()
    with capture_logs() as logs:
        assert await harness.reconcile() == DONE
    nominated, condition_patch, deleted, event = harness.upper.calls[1:]
    assert nominated.payload[0].body == {
        "metadata": {"uid": "uid-comer", "resourceVersion": "7"},
        "status": {"nominatedNodeName": "v"},
    }
    assert condition_patch.payload[0].body == {
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
    assert [one.payload[1] for one in (nominated, condition_patch)] == ["status", "status"]
    assert deleted.payload == ("uid-a", None)
    message = "Preempted by pod uid-comer on node v"
    assert (event.payload["reason"], event.payload["message"], event.payload["type"]) == (
        "Preempted",
        message,
        "Normal",
    )
    assert harness.virtual_node.node_cache.reservations["default", "comer"].node == "n"
    assert [one["event"] for one in logs] == ["preempting"]
    assert harness.extender.wants == {}
    assert harness.made.evicted == {"v": 1}


async def test_nothing_is_preempted_before_the_schedulers_turn_is_over() -> None:
    """The scheduler may find victims itself within that time."""
    harness = PreemptionHarness()
    harness.time = SCHEDULER_SECONDS / 2
    await harness.made.handle_due()
    assert harness.upper.calls == []
    assert list(harness.extender.wants) == ["uid-comer"]


@pytest.mark.parametrize(
    "now",
    [
        pytest.param({"spec": {**pending_pod()["spec"], "nodeName": "w"}}, id="bound"),
        pytest.param({"metadata": {**pending_pod()["metadata"], "deletionTimestamp": "x"}}, id="deleted"),
        pytest.param({"metadata": {**pending_pod()["metadata"], "uid": "another"}}, id="another"),
        pytest.param({"spec": {**pending_pod()["spec"], "preemptionPolicy": "Never"}}, id="never"),
        pytest.param({"status": {"nominatedNodeName": "worker"}}, id="nominated-elsewhere"),
    ],
)
async def test_no_pod_is_preempted_if_the_preemptor_has_changed(now: Manifest) -> None:
    """The pod is read again before any victim is deleted."""
    harness = PreemptionHarness()
    assert await harness.reconcile(**now) == []
    assert harness.virtual_node.node_cache.reservations == {}


async def test_no_pod_is_preempted_while_earlier_victims_are_terminating() -> None:
    """A scheduler waits for its victims on a virtual node too; after that the preemption is repeated."""
    harness = PreemptionHarness()
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    ending = {**ExistingPod("a", "n", "3", is_terminating=True).upper_pod("v"), "status": {"conditions": conditions}}
    harness.virtual_node.residents.put(("default", "a"), ending)
    assert await harness.reconcile(status={"nominatedNodeName": "v"}) == []
    harness.virtual_node.residents.put(("default", "a"), FULL[0].upper_pod("v"))
    harness.ask()
    assert await harness.reconcile(status={"nominatedNodeName": "v"}) == DONE[1:]


async def test_a_terminating_victim_is_not_deleted_again() -> None:
    """The pod is only nominated, and waits."""
    harness = PreemptionHarness(ExistingPod("a", "n", "3", is_terminating=True), FULL[1])
    assert await harness.reconcile() == DONE[:1]


async def test_a_conflict_on_the_nomination_preempts_no_pod() -> None:
    """Another client changed the pod, usually the scheduler, which will call the extender again."""
    harness = PreemptionHarness()
    harness.upper.queue_responses("patch", Conflict("changed"))
    assert await harness.reconcile() == DONE[:1]
    assert harness.virtual_node.node_cache.reservations == {}
    assert harness.extender.wants == {}


async def test_no_pod_is_preempted_for_a_deleted_pod() -> None:
    """The pod no longer exists when it is read again."""
    harness = PreemptionHarness()
    harness.upper.queue_responses("read", NotFound("gone"))
    harness.time = SCHEDULER_SECONDS
    await harness.made.handle_due()
    assert done(harness.upper) == []


async def test_a_failed_nomination_is_logged_and_retried() -> None:
    """The retry is five seconds later."""
    harness = PreemptionHarness()
    harness.upper.queue_responses("patch", Unreachable("away"))
    with capture_logs() as logs:
        assert await harness.reconcile() == DONE[:1]
    assert [one["event"] for one in logs] == ["preemption failed"]
    harness.time += 5.0
    assert (await harness.reconcile())[1:] == DONE


async def test_the_victims_of_a_failed_attempt_are_deleted_by_the_next_one() -> None:
    """They do not terminate by themselves."""
    harness = PreemptionHarness()
    harness.upper.queue_responses("patch", {"metadata": {}}, Unreachable("away"))
    assert await harness.reconcile() == ["patch Pod comer", "patch Pod a"]
    harness.time += 5
    nominated = {"nominatedNodeName": "v"}
    assert (await harness.reconcile(status=nominated))[2:] == ["patch Pod a", "delete Pod a", "create Event"]


async def test_a_failed_deletion_does_not_keep_the_other_victims() -> None:
    """The failed deletion is retried while the other victims are terminating."""
    harness = PreemptionHarness(
        ExistingPod("a", "n", "2"), ExistingPod("c", "n", "2", 1), ExistingPod("b", "m", "4", 100), cpu="4"
    )
    harness.upper.queue_responses("delete", Unreachable("away"))
    first = await harness.reconcile()
    assert [one for one in first if one.startswith("delete")] == ["delete Pod c", "delete Pod a"]
    gone = ExistingPod("a", "n", "2", is_terminating=True)
    harness.virtual_node.add_pod(gone)
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    harness.virtual_node.residents.put(("default", "a"), {**gone.upper_pod("v"), "status": {"conditions": conditions}})
    harness.time += 5
    again = (await harness.reconcile(status={"nominatedNodeName": "v"}))[len(first) :]
    assert again == ["patch Pod c", "delete Pod c", "create Event"]


async def test_temporarily_unreadable_budgets_are_read_again() -> None:
    """The preemption is done at the retry."""
    harness = PreemptionHarness()
    harness.upper.refusal = Unreachable("away")
    assert await harness.reconcile() == []
    harness.upper.refusal = None
    harness.time += 5
    assert await harness.reconcile() == DONE


async def test_a_victim_that_was_replaced_is_skipped() -> None:
    """A new pod of the same name is not changed, and the other victims are deleted."""
    harness = PreemptionHarness(
        ExistingPod("a", "n", "2"), ExistingPod("c", "n", "2", 1), ExistingPod("b", "m", "4", 100), cpu="4"
    )
    harness.upper.queue_responses("patch", {"metadata": {}}, Conflict("another pod of that name"))
    assert await harness.reconcile() == [
        "patch Pod comer",
        "patch Pod c",
        "patch Pod a",
        "delete Pod a",
        "create Event",
    ]


async def test_a_refused_event_does_not_stop_the_preemption() -> None:
    """The victims are deleted before the event is created."""
    harness = PreemptionHarness()
    harness.upper.queue_responses("create", Denied("no"))
    assert await harness.reconcile() == DONE


async def test_no_pod_is_preempted_if_budgets_may_not_be_listed() -> None:
    """The warning with its cause is rate-limited."""
    harness = PreemptionHarness()
    harness.upper.refusal = Denied("may not list")
    with capture_logs() as logs:
        assert await harness.reconcile() == []
        assert await harness.made.budgets() is None
    assert [one["event"] for one in logs] == ["preemption is disabled: PodDisruptionBudgets cannot be read"]


async def test_run_handles_a_want_after_it_is_woken() -> None:
    """Nothing is written before the preemptor is read."""
    harness = PreemptionHarness()
    harness.time = SCHEDULER_SECONDS
    held, last = HeldResponse(orjson.dumps(harness.pod)), HeldResponse()
    harness.upper.queue_responses("read", held)
    harness.upper.queue_responses("create", last)
    running = asyncio.create_task(harness.made.run())
    harness.made.wake()
    await held.started.wait()
    assert done(harness.upper) == []
    held.release.set()
    await last.started.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert done(harness.upper) == DONE


async def test_the_controller_does_nothing_without_an_extender() -> None:
    """There is none after it was disabled."""
    made = PreemptionController(UpperWithBudgets(), lambda: None, clock=lambda: 0.0, now=lambda: NOW)
    made.wake()
    await made.handle_due()
