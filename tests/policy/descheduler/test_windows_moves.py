"""Tests that pods move only within maintenance windows, in 45 cases of time zones and clock changes.

The openings are listed in UTC, derived from the rules of each zone instead of computed by the tested code.
"""

from datetime import datetime, timedelta

import pytest
from deschedulingkit import ON, A, B, descheduling_world, owned_by, put_waiting_pods, requesting_pod
from worldkit import add_virtual_node, decision_and_plan, make_upper_pod, put

from tensile.policy.descheduler import rule
from tensile.policy.descheduler.limits import next_opening
from tensile.policy.descheduler.rule import DeschedulerRule, DrainRule
from tensile.reconcile.plan import Step
from tensile.reconcile.world import World

TICK = timedelta(microseconds=1)
STEP = timedelta(minutes=15)

CASES = [
    # The clock goes forward, and the start is in the hour that is skipped, or next to it.
    ("Europe/Berlin", "0 2 * * *", 60, "03-28T01:00 03-29T01:00 03-30T00:00"),
    ("Europe/Berlin", "30 2 * * *", 30, "03-28T01:30 03-29T01:00 03-30T00:30"),
    ("Europe/Berlin", "0 3 * * *", 120, "03-28T02:00 03-29T01:00 03-30T01:00"),
    ("Europe/Berlin", "0 22 * * *", 480, "03-27T21:00 03-28T21:00 03-29T20:00"),
    ("Europe/London", "30 1 * * *", 30, "03-28T01:30 03-29T01:00 03-30T00:30"),
    ("Europe/Dublin", "30 1 * * *", 60, "03-28T01:30 03-29T01:00 03-30T00:30"),
    ("America/New_York", "30 2 * * *", 60, "03-07T07:30 03-08T07:00 03-09T06:30"),
    ("America/Los_Angeles", "0 2 * * *", 120, "03-07T10:00 03-08T10:00 03-09T09:00"),
    ("America/St_Johns", "15 2 * * *", 60, "03-07T05:45 03-08T05:30 03-09T04:45"),
    ("America/Havana", "30 0 * * *", 60, "03-07T05:30 03-08T05:00 03-09T04:30"),
    ("America/Santiago", "0 0 * * *", 60, "09-05T04:00 09-06T04:00 09-07T03:00"),
    ("Africa/Cairo", "0 0 * * *", 120, "04-22T22:00 04-23T22:00 04-24T21:00"),
    ("Africa/Casablanca", "0 2 * * *", 60, "03-21T02:00 03-22T02:00 03-23T01:00"),
    ("Asia/Beirut", "0 0 * * *", 60, "03-27T22:00 03-28T22:00 03-29T21:00"),
    ("Asia/Jerusalem", "0 2 * * *", 60, "03-26T00:00 03-27T00:00 03-27T23:00"),
    ("Antarctica/Troll", "30 1 * * *", 60, "03-28T01:30 03-29T01:00 03-29T23:30"),
    ("Australia/Sydney", "30 2 * * *", 30, "10-02T16:30 10-03T16:00 10-04T15:30"),
    ("Australia/Lord_Howe", "15 2 * * *", 60, "10-02T15:45 10-03T15:30 10-04T15:15"),
    ("Pacific/Chatham", "0 3 * * *", 60, "09-25T14:15 09-26T14:00 09-27T13:15"),
    ("Pacific/Auckland", "0 2 * * *", 240, "09-25T14:00 09-26T14:00 09-27T13:00"),
    # The clock goes back, and the start occurs twice: the first one counts, once.
    ("Europe/Berlin", "0 2 * * *", 60, "10-24T00:00 10-25T00:00 10-26T01:00"),
    ("Europe/Berlin", "30 2 * * *", 30, "10-24T00:30 10-25T00:30 10-26T01:30"),
    ("Europe/Berlin", "0 3 * * *", 120, "10-24T01:00 10-25T02:00 10-26T02:00"),
    ("Europe/London", "30 1 * * *", 30, "10-24T00:30 10-25T00:30 10-26T01:30"),
    ("Atlantic/Azores", "30 0 * * *", 60, "10-24T00:30 10-25T00:30 10-26T01:30"),
    ("America/New_York", "30 1 * * *", 60, "10-31T05:30 11-01T05:30 11-02T06:30"),
    ("America/Los_Angeles", "0 1 * * *", 60, "10-31T08:00 11-01T08:00 11-02T09:00"),
    ("America/St_Johns", "15 1 * * *", 60, "10-31T03:45 11-01T03:45 11-02T04:45"),
    ("America/Havana", "30 0 * * *", 30, "10-31T04:30 11-01T04:30 11-02T05:30"),
    ("America/Santiago", "30 23 * * *", 30, "04-04T02:30 04-05T02:30 04-06T03:30"),
    ("Antarctica/Troll", "30 1 * * *", 60, "10-23T23:30 10-24T23:30 10-26T01:30"),
    ("Australia/Sydney", "30 2 * * *", 30, "04-03T15:30 04-04T15:30 04-05T16:30"),
    ("Australia/Lord_Howe", "45 1 * * *", 30, "04-03T14:45 04-04T14:45 04-05T15:15"),
    ("Pacific/Chatham", "0 3 * * *", 60, "04-03T13:15 04-04T13:15 04-05T14:15"),
    # The clock never changes.
    ("UTC", "0 2 * * *", 240, "06-09T02:00 06-10T02:00 06-11T02:00"),
    ("Asia/Kolkata", "30 1 * * *", 120, "06-09T20:00 06-10T20:00 06-11T20:00"),
    ("Asia/Kathmandu", "0 2 * * *", 60, "06-09T20:15 06-10T20:15 06-11T20:15"),
    ("Asia/Tokyo", "0 3 * * *", 60, "06-09T18:00 06-10T18:00 06-11T18:00"),
    ("Australia/Eucla", "0 0 * * *", 60, "06-09T15:15 06-10T15:15 06-11T15:15"),
    ("America/Sao_Paulo", "0 2 * * *", 60, "06-09T05:00 06-10T05:00 06-11T05:00"),
    ("Pacific/Honolulu", "0 22 * * *", 60, "06-09T08:00 06-10T08:00 06-11T08:00"),
    ("Pacific/Kiritimati", "0 1 * * *", 60, "06-09T11:00 06-10T11:00 06-11T11:00"),
    ("Pacific/Marquesas", "0 0 * * *", 60, "06-09T09:30 06-10T09:30 06-11T09:30"),
    ("Pacific/Pago_Pago", "0 1 * * *", 60, "06-09T12:00 06-10T12:00 06-11T12:00"),
    ("Etc/GMT-12", "0 12 * * *", 60, "06-09T00:00 06-10T00:00 06-11T00:00"),
]
"""Zone, schedule, minutes, and three openings one after the other in UTC, without the year 2026."""
EACH = pytest.mark.parametrize(("zone", "schedule", "minutes", "openings"), CASES)


def written(zone: str, schedule: str, minutes: int) -> str:
    """Return a window in the notation of the topology file."""
    return f"windows: [{{schedule: '{schedule}', duration: {minutes}m, timeZone: {zone}}}]\n"


def times(openings: str) -> list[datetime]:
    """Parse openings."""
    return [datetime.fromisoformat(f"2026-{one}Z") for one in openings.split()]


def to_drain(more: str) -> World:
    """Return a world with a drained lower that has a pod of a controller and a bare pod."""
    world = descheduling_world(f"name: {A}, maintenance: drain", f"name: {B}", more=more)
    node = add_virtual_node(world).manifest()
    put(world.upper.nodes, {**node, "spec": {**node["spec"], "unschedulable": True}})
    bare = make_upper_pod("bare", {"containers": [{"name": "main", "image": "app:1"}]})
    put(world.lowers[A].upper_pods, make_upper_pod(ownerReferences=owned_by("rs")), bare)
    return world


def to_deschedule(more: str) -> World:
    """Return a world with a pod that no node of its lower fits, and a bare pod."""
    world = descheduling_world(more=more, cpus=(("2", "2"), ("4", "4")))
    put_waiting_pods(world, requesting_pod(), requesting_pod("bare", ownerReferences=[]))
    return world


def moves(world: World) -> list[Step]:
    """Return all steps of both rules for the pods of lower-a: evictions, their records, and backups of bare pods."""
    found = decision_and_plan(DeschedulerRule(), rule.key_of(A), world)[1].steps
    for name in ("web", "bare"):
        found += decision_and_plan(DrainRule(), rule.drain_key(A, "default", name), world)[1].steps
    return list(found)


def is_evicted(steps: list[Step]) -> bool:
    """Report whether the pod with a controller is evicted."""
    return any(step.subresource == "eviction" and step.ref.name == "web" for step in steps)


@EACH
def test_pods_are_moved_only_between_the_opening_and_the_end_of_a_window(
    zone: str, schedule: str, minutes: int, openings: str
) -> None:
    """Outside the window, the drain and the descheduler write no eviction, no backup and no record."""
    window = written(zone, schedule, minutes)
    for world in (to_drain(ON + window), to_deschedule(ON + window)):
        for opening in times(openings):
            end = opening + timedelta(minutes=minutes)
            for world.now in (opening, end - TICK):
                assert is_evicted(moves(world)), f"nothing was moved at {world.now}"
            for world.now in (opening - TICK, end):
                assert moves(world) == [], f"something was moved at {world.now}"


@EACH
def test_no_other_window_opens_in_the_days_around(zone: str, schedule: str, minutes: int, openings: str) -> None:
    """Every quarter of an hour is checked, from half a day before the first opening to half a day after the last."""
    world = descheduling_world(more=written(zone, schedule, minutes))
    starts, half = times(openings), timedelta(hours=12)
    now, last = starts[0] - half, starts[-1] + half
    while now < last:
        is_inside = any(start <= now < start + timedelta(minutes=minutes) for start in starts)
        opening = next_opening(world.topology.windows, now)
        assert (opening is None) == is_inside, now
        assert opening is None or opening > now, "a wait for a time that has passed never ends"
        now += STEP
