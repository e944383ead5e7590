"""Tests of maintenance windows: when pods may be moved, in many time zones and at clock changes."""

from datetime import datetime, timedelta

import pytest
from deschedulingkit import A, B, descheduling_world, owned_by, put_waiting_pods, requesting_pod
from worldkit import add_virtual_node, apply_topology, decision_and_plan, make_upper_pod, put

from tensile.policy.descheduler import rule
from tensile.policy.descheduler.limits import next_opening, seconds_until
from tensile.policy.descheduler.rule import DeschedulerRule, DrainRule, drain_key
from tensile.reconcile.desired import Decision
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import World
from tensile.topology import Topology, parse

HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n"
ON, DRAINED = "descheduler: {enabled: true, cooldown: 10m}\n", (f"name: {A}, maintenance: drain", f"name: {B}")
NIGHT = "windows: [{schedule: 0 2 * * *, duration: 4h}]\n"
"""The tests of the rules are at noon UTC on 1 March 2026."""
NIGHT_OPENS = "2026-03-02T02:00+00:00"
OPEN = ""


def windows(*entries: str) -> Topology:
    """Parse a topology with windows, each in YAML flow style without braces."""
    return parse(f"{HEAD}windows: [" + ", ".join(f"{{{entry}}}" for entry in entries) + "]\n")


def opening(now: str, *entries: str) -> str:
    """Return the next opening of a window that is closed at a time in UTC; "" if a window is open."""
    found = next_opening(windows(*entries).windows, datetime.fromisoformat(f"{now}Z"))
    return OPEN if found is None else found.isoformat(timespec="minutes")


NIGHTLY = "schedule: 0 2 * * *, duration: 4h"
BERLIN = "schedule: 0 2 * * *, duration: 1h, timeZone: Europe/Berlin"
HALF_PAST = "schedule: 30 2 * * *, duration: 30m, timeZone: Europe/Berlin"
NEW_YORK = "schedule: 0 22 * * 5, duration: 8h, timeZone: America/New_York"
LORD_HOWE = "schedule: 0 2 * * *, duration: 1h, timeZone: Australia/Lord_Howe"
KOLKATA = "schedule: 30 1 * * *, duration: 2h, timeZone: Asia/Kolkata"


@pytest.mark.parametrize(
    ("now", "window", "expected"),
    [
        ("2026-06-10T01:59:59.999", NIGHTLY, "2026-06-10T02:00+00:00"),
        ("2026-06-10T02:00", NIGHTLY, OPEN),
        ("2026-06-10T02:00:30", NIGHTLY, OPEN),
        ("2026-06-10T05:59:59.999", NIGHTLY, OPEN),
        ("2026-06-10T06:00", NIGHTLY, "2026-06-11T02:00+00:00"),
        ("2026-12-31T23:00", NIGHTLY, "2027-01-01T02:00+00:00"),
        ("2026-06-10T01:00", "schedule: 0 22 * * *, duration: 4h", OPEN),
        ("2026-06-10T02:00", "schedule: 0 22 * * *, duration: 4h", "2026-06-10T22:00+00:00"),
        ("2026-06-10T12:00", "schedule: 0 0 1 * *, duration: 240h", OPEN),
        ("2026-06-11T00:00", "schedule: 0 0 1 * *, duration: 240h", "2026-07-01T00:00+00:00"),
        ("2026-06-10T12:34", "schedule: 0 0 * * *, duration: 24h", OPEN),
        ("2026-06-10T12:34", "schedule: 0 0 * * *, duration: 25h", OPEN),
        ("2026-06-10T12:34", "schedule: '*/10 * * * *', duration: 5m", OPEN),
        ("2026-06-10T12:35", "schedule: '*/10 * * * *', duration: 5m", "2026-06-10T12:40+00:00"),
        ("2026-06-10T12:34:40", "schedule: '34 12 * * *', duration: 30s", "2026-06-11T12:34+00:00"),
        ("2026-06-13T12:00", "schedule: 0 9 * * 1-5, duration: 8h", "2026-06-15T09:00+00:00"),
        ("2026-06-12T12:00", "schedule: 0 9 * * 1-5, duration: 8h", OPEN),
        ("2026-06-13T12:00", "schedule: 0 9 * * sat, duration: 8h", OPEN),
        ("2026-06-13T12:00", "schedule: 0 9 ? * 1-5, duration: 8h", "2026-06-15T09:00+00:00"),
        ("2026-06-12T12:00", "schedule: 0 9 ? * 1-5, duration: 8h", OPEN),
        ("2026-06-14T12:00", "schedule: 0 9 13 * ?, duration: 8h", "2026-07-13T09:00+00:00"),
        ("2026-06-13T12:00", "schedule: 0 9 13 * ?, duration: 8h", OPEN),
        ("2026-06-13T12:00", "schedule: 0 9 13 * 1, duration: 8h", OPEN),
        ("2026-06-15T12:00", "schedule: 0 9 13 * 1, duration: 8h", OPEN),
        ("2026-06-14T12:00", "schedule: 0 9 13 * 1, duration: 8h", "2026-06-15T09:00+00:00"),
        ("2026-03-01T00:00", "schedule: 0 0 29 2 *, duration: 24h", "2028-02-29T00:00+00:00"),
        ("2028-02-29T12:00", "schedule: 0 0 29 2 *, duration: 24h", OPEN),
        ("2026-06-10T00:30", BERLIN, OPEN),
        ("2026-06-10T01:00", BERLIN, "2026-06-11T02:00+02:00"),
        ("2026-12-10T01:30", BERLIN, OPEN),
        ("2026-12-10T00:30", BERLIN, "2026-12-10T02:00+01:00"),
        # The clock goes from 02:00 to 03:00, which is 01:00 UTC.
        ("2026-03-29T00:59", BERLIN, "2026-03-29T03:00+02:00"),
        ("2026-03-29T01:00", BERLIN, OPEN),
        ("2026-03-29T02:00", BERLIN, "2026-03-30T02:00+02:00"),
        ("2026-03-29T01:29", HALF_PAST, OPEN),
        ("2026-03-29T01:30", HALF_PAST, "2026-03-30T02:30+02:00"),
        # The clock goes from 03:00 back to 02:00, which is 01:00 UTC: the first 02:00 is 00:00 UTC.
        ("2026-10-25T00:00", BERLIN, OPEN),
        ("2026-10-25T00:59", BERLIN, OPEN),
        ("2026-10-25T01:00", BERLIN, "2026-10-26T02:00+01:00"),
        ("2026-10-25T01:30", HALF_PAST, "2026-10-26T02:30+01:00"),
        ("2026-06-13T05:59", NEW_YORK, OPEN),
        ("2026-06-13T10:00", NEW_YORK, "2026-06-19T22:00-04:00"),
        ("2026-12-12T02:59", NEW_YORK, "2026-12-11T22:00-05:00"),
        ("2026-12-12T10:59", NEW_YORK, OPEN),
        # The clock of this island changes by half an hour only: from 02:00 to 02:30, which is 15:30 UTC.
        ("2026-10-03T15:29", LORD_HOWE, "2026-10-04T02:30+11:00"),
        ("2026-10-03T16:29", LORD_HOWE, OPEN),
        ("2026-10-03T16:30", LORD_HOWE, "2026-10-05T02:00+11:00"),
        ("2026-06-10T20:00", KOLKATA, OPEN),
        ("2026-06-10T19:59", KOLKATA, "2026-06-11T01:30+05:30"),
    ],
)
def test_a_window_is_open_from_its_start_for_its_duration(now: str, window: str, expected: str) -> None:
    """A closed window has its next opening as the result."""
    assert opening(now, window) == expected


def test_pods_may_be_moved_at_any_time_without_windows() -> None:
    """A topology without windows has no restriction."""
    assert opening("2026-06-10T12:00") == OPEN


def test_one_open_window_is_enough_and_the_earliest_opening_counts() -> None:
    """Windows of several time zones are compared by the times of their openings."""
    weekend, night = "schedule: 0 0 * * 6, duration: 48h, timeZone: Asia/Tokyo", "schedule: 0 22 * * *, duration: 1h"
    assert opening("2026-06-13T12:00", night, weekend) == OPEN
    assert opening("2026-06-12T12:00", night, weekend) == "2026-06-13T00:00+09:00"
    assert opening("2026-06-10T12:00", night, weekend) == "2026-06-10T22:00+00:00"


@pytest.mark.parametrize(("ahead", "expected"), [(30, 30), (3600, 3600), (9000, 3600), (0, 0), (-5, 0)])
def test_a_wait_for_a_window_is_at_most_an_hour_long(ahead: int, expected: int) -> None:
    """A clock that is set forward during the wait does not skip the window."""
    now = datetime.fromisoformat("2026-06-10T12:00Z")
    assert seconds_until(now + timedelta(seconds=ahead), now) == expected


def decision_and_plan_of_a(world: World) -> tuple[Decision, Plan]:
    """Return the descheduler rule's decision and plan for lower-a."""
    return decision_and_plan(DeschedulerRule(), rule.key_of(A), world)


def evictions(found: Plan) -> list[Step]:
    """Return the evictions of a plan."""
    return [step for step in found.steps if step.subresource == "eviction"]


def test_the_descheduler_waits_for_the_window_and_reports_it() -> None:
    """The pods are evicted when the window is open."""
    world = descheduling_world(more=ON + NIGHT)
    put_waiting_pods(world, requesting_pod())
    decision, found = decision_and_plan_of_a(world)
    assert (found.steps, decision.requeue_after) == ((), 60.0)
    assert found.problem is not None
    assert found.problem.reason == "OutsideWindow"
    assert f"opens at {NIGHT_OPENS}; pods to move: 1" in found.problem.message
    world.now += timedelta(hours=14)
    assert [step.ref.name for step in evictions(decision_and_plan_of_a(world)[1])] == ["web"]


def test_the_next_pass_is_at_the_opening_if_that_is_earlier() -> None:
    """The requeue delay is the time until the window opens."""
    world = descheduling_world(more=ON + NIGHT)
    put_waiting_pods(world, requesting_pod())
    world.now += timedelta(hours=13, minutes=59, seconds=50)
    assert decision_and_plan_of_a(world)[0].requeue_after == 10.0


def test_a_descheduler_without_pods_to_move_reports_nothing() -> None:
    """A closed window alone is no problem."""
    assert decision_and_plan_of_a(descheduling_world(more=ON + NIGHT))[1] == Plan((), None)


def test_a_dry_run_shows_the_moves_while_the_window_is_closed() -> None:
    """An administrator can review during the day what would be moved at night."""
    world = descheduling_world(more="descheduler: {enabled: true, dryRun: true}\n" + NIGHT)
    put_waiting_pods(world, requesting_pod())
    problem = decision_and_plan_of_a(world)[1].problem
    assert problem is not None
    assert problem.reason == "DryRun"


def drained(more: str = "", **pod: object) -> World:
    """Return a world with a controller's pod in lower-a, which is drained and whose node is cordoned."""
    world = descheduling_world(*DRAINED, more=more)
    node = add_virtual_node(world).manifest()
    put(world.upper.nodes, {**node, "spec": {**node["spec"], "unschedulable": True}})
    put(world.lowers[A].upper_pods, make_upper_pod(**{"ownerReferences": owned_by("rs"), **pod}))
    return world


def leaves(world: World) -> tuple[Decision, Plan]:
    """Return the drain rule's decision and plan for the pod."""
    return decision_and_plan(DrainRule(), drain_key(A, "default", "web"), world)


def test_a_drain_waits_for_the_window_and_reports_it_once() -> None:
    """The descheduler rule reports the wait for all pods of the lower cluster."""
    world = drained(NIGHT)
    decision, found = leaves(world)
    assert (found, decision.requeue_after) == (Plan((), None), 3600.0)
    problem = decision_and_plan_of_a(world)[1].problem
    assert problem is not None
    assert problem.message.startswith("the drain waits for the maintenance window")
    world.now += timedelta(hours=14)
    assert [step.ref.name for step in evictions(leaves(world)[1])] == ["web"]
    assert decision_and_plan_of_a(world)[1].problem is None


def watched_windows(hour: int, read: list[str]) -> World:
    """Return a world with a drain of three pods and 32 closed windows; `read` gets each schedule that is computed."""

    class Schedule(str):
        """A schedule that records when it is read."""

        __slots__ = ()

        def upper(self) -> str:
            """Return the upper-case text, which is the library's first access."""
            read.append(str(self))
            return super().upper()

    world = drained(
        "windows:\n" + "".join(f"- {{schedule: {minute} {hour} 7 7 *, duration: 1m}}\n" for minute in range(32))
    )
    put(world.lowers[A].upper_pods, *(make_upper_pod(name, ownerReferences=owned_by("rs")) for name in ("api", "job")))
    found = [one.model_copy(update={"schedule": Schedule(one.schedule)}) for one in world.topology.windows]
    world.topology = world.topology.model_copy(update={"windows": tuple(found)})
    return world


def test_the_openings_of_a_window_are_computed_once_a_minute() -> None:
    """All pods of a drain share the result, also while two other topologies are planned beside the engine."""
    read: list[str] = []
    worlds = [watched_windows(hour, read) for hour in (1, 2, 3)]
    assert leaves(worlds[0])[0].requeue_after == 3600.0
    once = len(read)
    assert len(set(read)) == 32
    for minute in (1, 2):
        for second in (0, 30):
            for name in ("web", "api", "job"):
                for world in worlds:
                    world.now = world.now.replace(minute=minute - 1, second=second)
                    assert decision_and_plan(DrainRule(), drain_key(A, "default", name), world)[0].requeue_after
        assert len(read) == minute * len(worlds) * once


def test_an_edit_that_opens_a_window_continues_the_drain() -> None:
    """The result for the former windows is not reused."""
    world = drained(NIGHT)
    assert not evictions(leaves(world)[1])
    apply_topology(world, *DRAINED, more="windows: [{schedule: 0 11 * * *, duration: 2h}]\n")
    assert evictions(leaves(world)[1])


FORBID = [
    {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    {"karpenter.sh/do-not-disrupt": "true"},
]
ALLOW = [
    {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    {"karpenter.sh/do-not-disrupt": "false"},
    {},
]


@pytest.mark.parametrize("notes", FORBID)
def test_a_drain_does_not_evict_a_pod_whose_annotation_forbids_it(notes: dict[str, str]) -> None:
    """The drain reports the annotation, and continues when it is removed."""
    world = drained(annotations=notes)
    found = leaves(world)[1]
    assert not found.steps
    assert found.problem is not None
    assert found.problem.reason == "EvictionForbidden"
    assert next(iter(notes)) in found.problem.message
    put(world.lowers[A].upper_pods, make_upper_pod(ownerReferences=owned_by("rs")))
    assert evictions(leaves(world)[1])


@pytest.mark.parametrize("notes", FORBID)
def test_the_descheduler_does_not_move_a_pod_whose_annotation_forbids_it(notes: dict[str, str]) -> None:
    """That is so with and without a controller."""
    more = "descheduler: {enabled: true, recreateBarePods: true}\n"
    world = descheduling_world(more=more)
    put_waiting_pods(
        world, requesting_pod(annotations=notes), requesting_pod("bare", annotations=notes, ownerReferences=[])
    )
    found = decision_and_plan_of_a(world)[1]
    assert not found.steps
    assert found.problem is not None
    assert found.problem.reason == "EvictionForbidden"


@pytest.mark.parametrize("notes", ALLOW)
def test_other_values_of_the_annotations_forbid_no_eviction(notes: dict[str, str]) -> None:
    """Each annotation has one value that forbids the eviction."""
    world = descheduling_world(more=ON)
    put_waiting_pods(world, requesting_pod(annotations=notes))
    assert evictions(decision_and_plan_of_a(world)[1])
