"""Tests of the copying of events: at low priority, once each, and without delays for other namespaces."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from answering import FakeCluster, HeldResponse
from eventkit import lower_event, lower_of, mirrored_world
from tasks import background
from virtualtime import in_virtual_time
from worldkit import delete_observed, put

from tensile.errors import AlreadyExists, Conflict, Denied, NotFound, Throttled, Unreachable
from tensile.kube.cluster import WatchEvent
from tensile.kubelet.pods.event_mirror import (
    MAX_WAIT_SECONDS,
    MOST_KEPT,
    MOST_WAITING,
    NAMESPACE_RATE,
    OBJECT_RATE,
    PAUSE_SECONDS,
    EventMirror,
)
from tensile.kubelet.pods.events import CarriedEvent
from tensile.objects import Manifest
from tensile.reconcile.world import World

LOUD = [f"loud/pod-{number}" for number in range(80)]
QUIET = "quiet/web"


class RunningMirror:
    """A mirror with mirrored pods, and an upper cluster with configurable answers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.upper = FakeCluster("")
        self.is_busy = False
        self._heard = 0
        self.mirror = EventMirror(lower_of(world), world, self.upper, lambda: self.is_busy)

    def hear(self, sort: str = "ADDED", name: str = "web", uid: str = "e-1", **fields: Any) -> None:
        """Send an event of a lower pod to the mirror."""
        self.mirror.on_event(WatchEvent(sort, lower_event(name, uid, **fields)))

    def hear_many(self, name: str, count: int = 1, **fields: Any) -> None:
        """Send several different events of a pod."""
        for _ in range(count):
            self._heard += 1
            self.hear(name=name, uid=f"e-{self._heard}", **fields)

    def flood(self) -> None:
        """Send as many events as eighty pods of one namespace may have."""
        for name in LOUD:
            self.hear_many(name, OBJECT_RATE[0], message="x" * 20_000)

    def created(self) -> Counter[str]:
        """Count the created events by namespace."""
        return Counter(one.ref.namespace for one in self.upper.calls if one.verb == "create")

    def written(self) -> list[tuple[str, int]]:
        """Return the writes in order, with the count that each contains."""
        bodies = [
            (one.verb, one.payload if one.verb == "create" else one.payload[0].body)
            for one in self.upper.calls
            if one.verb != "read"
        ]
        return [(verb, body["count"]) for verb, body in bodies]

    def copy(self, **fields: Any) -> Manifest:
        """Return the first created copy as it is stored."""
        made = next(one.payload for one in self.upper.calls if one.verb == "create")
        return {**made, "metadata": {**made["metadata"], "uid": "copy-1"}, **fields}


@asynccontextmanager
async def mirroring(*names: str) -> AsyncIterator[RunningMirror]:
    """Run a mirror."""
    bench = RunningMirror(mirrored_world(*names))
    async with background(bench.mirror.run()):
        yield bench


async def turn(count: int = 1) -> None:
    """Wait for some pauses."""
    await asyncio.sleep(count * PAUSE_SECONDS + PAUSE_SECONDS / 2)


@in_virtual_time
async def test_an_event_is_copied_after_a_pause() -> None:
    """The pause lets a status change that occurs with it be written first."""
    async with mirroring() as bench:
        bench.hear()
        await asyncio.sleep(PAUSE_SECONDS / 2)
        assert bench.written() == []
        await turn()
        assert bench.written() == [("create", 1)]
        assert bench.mirror.counts == {"copied": 1, "dropped": 0, "failed": 0}


@in_virtual_time
async def test_unrelated_events_are_not_queued() -> None:
    """Events of pods of another owner, deletions, bookmarks and invalid events are ignored."""
    async with mirroring() as bench:
        bench.hear(name="stranger")
        bench.hear("DELETED")
        bench.mirror.on_event(WatchEvent("BOOKMARK", b'{"metadata":{"resourceVersion":"5"}}'))
        bench.mirror.on_event(WatchEvent("ADDED", b"nonsense"))
        assert len(bench.mirror) == 0
        await turn(3)
        assert bench.upper.calls == []


@in_virtual_time
async def test_the_last_events_of_a_pod_are_kept() -> None:
    """Each is kept in its last state, the latest first, and not for other pods."""
    async with mirroring("web", "other") as bench:
        bench.hear(count=2)
        bench.hear(uid="e-2", lastTimestamp="2026-03-01T12:00:05Z", reason="Pulled", message="done", type="Normal")
        bench.hear(name="other", uid="e-3")
        await turn()
        bench.hear("MODIFIED", count=3)
        await turn(2)
        found = [(one.time[-3:], one.type, one.reason, one.message, one.times) for one in last(bench)]
    assert found == [
        ("05Z", "Normal", "Pulled", "done", 1),
        ("00Z", "Warning", "BackOff", "Back-off pulling image", 3),
    ]
    assert bench.mirror.last("default", "nobody") == []


@in_virtual_time
async def test_a_namespace_with_many_events_does_not_displace_kept_events_of_others() -> None:
    """The kept events of a pod in another namespace survive a flood."""
    async with mirroring(QUIET, *LOUD) as bench:
        bench.hear(name=QUIET, uid="quiet-1")
        bench.flood()
        await asyncio.sleep(60)
        quiet = lower_of(bench.world).upper_pods.get("quiet", "web")
        assert quiet is not None
        assert len(bench.mirror.last("quiet", quiet.uid)) == 1
        kept = sum(len(bench.mirror.last("loud", f"Pod-pod-{number}")) for number in range(80))
    assert MOST_KEPT // 2 < kept < MOST_KEPT


def last(bench: RunningMirror) -> list[CarriedEvent]:
    """Return the kept events of the pod web."""
    return bench.mirror.last("default", "Pod-web")


@in_virtual_time
async def test_repetitions_of_a_waiting_event_are_copied_once() -> None:
    """The copy has the latest count, and a later repetition patches the copy with its UID."""
    async with mirroring() as bench:
        for count in (1, 2, 3):
            bench.hear("MODIFIED", count=count)
        await turn()
        bench.hear("MODIFIED", count=4)
        await turn(2)
        assert bench.written() == [("create", 3), ("patch", 4)]
        patch, _ = bench.upper.calls[-1].payload
        assert patch.body["metadata"] == {"uid": f"made-{bench.upper.calls[-1].ref.name}"}


@in_virtual_time
async def test_events_wait_while_the_engine_is_busy() -> None:
    """One is sent now and then, so that events arrive even if the engine is never idle."""
    async with mirroring("one", "two") as bench:
        bench.is_busy = True
        for number in range(100):
            bench.hear(name=("one", "two")[number % 2], uid=f"e-{number}")
        await asyncio.sleep(MAX_WAIT_SECONDS - PAUSE_SECONDS)
        assert bench.written() == []
        await asyncio.sleep(9 * MAX_WAIT_SECONDS + 3 * PAUSE_SECONDS)
        assert 7 <= len(bench.written()) <= 10
        bench.is_busy = False
        await turn(10)
        assert len(bench.written()) == 100


@in_virtual_time
async def test_a_round_stops_as_soon_as_the_engine_is_busy() -> None:
    """The mirror stops between two events of one round."""
    async with mirroring() as bench:
        held = HeldResponse(orjson.dumps({"metadata": {"uid": "copy-1"}}))
        bench.upper.queue_responses("create", held)
        for number in range(5):
            bench.hear(uid=f"e-{number}")
        await held.started.wait()
        bench.is_busy = True
        held.release.set()
        await turn(3)
        assert len(bench.written()) == 1


@in_virtual_time
async def test_the_oldest_events_are_dropped_beyond_the_limit() -> None:
    """They are counted, because the newest events are the most useful."""
    names = [f"web-{number}" for number in range(50)]
    async with mirroring(*names) as bench:
        bench.is_busy = True
        for number in range(MOST_WAITING + 3):
            bench.hear(name=names[number % 50], uid=f"e-{number}", count=number)
        assert (len(bench.mirror), bench.mirror.counts["dropped"]) == (MOST_WAITING, 3)
        bench.is_busy = False
        await turn()
        assert bench.written()[0] == ("create", 3)


@in_virtual_time
async def test_a_copy_from_an_earlier_run_is_updated() -> None:
    """It has the same name; if it is equal already, nothing is written."""
    async with mirroring() as earlier:
        earlier.hear()
        await turn()
        stored = earlier.copy()
    for count, written in ((2, [("create", 2), ("patch", 2)]), (1, [("create", 1)])):
        async with mirroring() as bench:
            bench.upper.queue_responses("create", AlreadyExists("exists", status=409))
            bench.upper.queue_responses("read", stored)
            bench.hear("MODIFIED", count=count)
            await turn(2)
            assert bench.written() == written
            assert bench.mirror.counts["copied"] == 1


@in_virtual_time
async def test_an_event_of_another_writer_under_the_name_is_not_changed() -> None:
    """The copy counts as failed."""
    async with mirroring() as bench:
        bench.upper.queue_responses("create", AlreadyExists("exists", status=409))
        bench.upper.queue_responses("read", {"metadata": {"uid": "x"}, "involvedObject": {"uid": "Pod-web"}})
        bench.hear()
        await turn(2)
        assert [verb for verb, _ in bench.written()] == ["create"]
        assert bench.mirror.counts == {"copied": 0, "dropped": 0, "failed": 1}


@in_virtual_time
async def test_a_deleted_copy_is_created_again() -> None:
    """Events expire after an hour, or are deleted by a client."""
    for error in (NotFound("gone", status=404), Conflict("another", status=409)):
        async with mirroring() as bench:
            bench.hear()
            await turn()
            bench.upper.queue_responses("patch", error)
            bench.hear("MODIFIED", count=2)
            await turn(2)
            assert bench.written() == [("create", 1), ("patch", 2), ("create", 2)]


@in_virtual_time
async def test_an_event_is_retried_if_the_upper_is_unreachable_or_throttles() -> None:
    """It keeps its position, and is sent with the newest count that has arrived in between."""
    async with mirroring() as bench:
        bench.upper.queue_responses("create", Unreachable("away"), Throttled("slower", retry_after=30))
        bench.hear()
        bench.hear(uid="e-2", count=7)
        await turn()
        bench.hear("MODIFIED", count=2)
        await asyncio.sleep(60)
        assert bench.written() == [("create", 1), ("create", 2), ("create", 2), ("create", 7)]
        assert bench.mirror.counts == {"copied": 2, "dropped": 0, "failed": 0}


@in_virtual_time
async def test_a_rejected_event_does_not_delay_the_next() -> None:
    """A terminating namespace accepts no events, and other namespaces do."""
    async with mirroring() as bench:
        bench.upper.queue_responses("create", Denied("no", status=403))
        bench.hear()
        bench.hear(uid="e-2")
        await turn()
        assert bench.mirror.counts == {"copied": 1, "dropped": 0, "failed": 1}


@in_virtual_time
async def test_an_event_is_dropped_if_its_pod_is_deleted_before_the_copy() -> None:
    """Otherwise the copy would refer to a pod that does not exist."""
    async with mirroring() as bench:
        bench.hear()
        delete_observed(lower_of(bench.world).pods, "web")
        await turn(2)
        assert bench.upper.calls == []
        assert len(bench.mirror) == 0


@in_virtual_time
async def test_an_event_that_arrives_before_its_pod_is_cached_is_kept() -> None:
    """The lower scheduler may report a pod before its creation is answered; an event with a foreign UID is dropped."""
    async with mirroring() as bench:
        pods = lower_of(bench.world).pods
        (lower_entry,) = pods
        delete_observed(pods, "web")
        bench.hear()
        bench.hear(uid="e-2", involvedObject={"uid": "a stranger's"})
        assert len(bench.mirror) == 2
        put(
            pods, {**lower_entry.manifest(), "metadata": {**lower_entry.manifest()["metadata"], "uid": "below-Pod-web"}}
        )
        await turn(2)
        assert bench.written() == [("create", 1)]


# Rate limits.


@in_virtual_time
async def test_the_events_of_one_pod_are_limited_to_a_burst_and_a_rate() -> None:
    """Fifty of 600 are copied, then one a minute; the others count as dropped."""
    burst, seconds = OBJECT_RATE
    async with mirroring(QUIET) as bench:
        bench.hear_many(QUIET, 600)
        await asyncio.sleep(10 * PAUSE_SECONDS)
        assert bench.created() == {"quiet": burst}
        assert bench.mirror.counts["dropped"] == 600 - burst
        for _ in range(10):
            await asyncio.sleep(seconds)
            bench.hear_many(QUIET, 20)
        await asyncio.sleep(PAUSE_SECONDS * 2)
        assert bench.created() == {"quiet": burst + 10}


@in_virtual_time
async def test_repetitions_of_a_waiting_event_do_not_count_against_the_limit() -> None:
    """Only the latest repetition is sent, and the burst is still available."""
    async with mirroring(QUIET) as bench:
        for count in range(1000):
            bench.mirror.on_event(WatchEvent("MODIFIED", lower_event(QUIET, "e-same", count=count)))
        await asyncio.sleep(PAUSE_SECONDS * 2)
        bench.hear_many(QUIET, OBJECT_RATE[0] - 1)
        await asyncio.sleep(PAUSE_SECONDS * 10)
        assert bench.created() == {"quiet": OBJECT_RATE[0]}
        assert bench.mirror.counts["dropped"] == 0


@in_virtual_time
async def test_a_flood_of_one_namespace_does_not_delay_another_namespace() -> None:
    """An event behind four thousand of another tenant is the first or second to be sent."""
    async with mirroring(*LOUD, QUIET) as bench:
        bench.flood()
        bench.hear_many(QUIET)
        assert len(bench.mirror) == MOST_WAITING
        await asyncio.sleep(PAUSE_SECONDS * 1.5)
        assert bench.created()["quiet"] == 1
        assert [one.ref.namespace for one in bench.upper.calls].index("quiet") <= 1


@in_virtual_time
async def test_a_namespace_over_its_rate_does_not_delay_another_namespace() -> None:
    """It waits after its burst, while events of another namespace are copied immediately."""
    burst, seconds = NAMESPACE_RATE
    async with mirroring(*LOUD, QUIET) as bench:
        for _ in range(2):
            bench.flood()
            await asyncio.sleep(40)
        loud = bench.created()["loud"]
        assert burst <= loud <= burst + 80 / seconds
        for _ in range(20):
            bench.hear_many(QUIET)
            await asyncio.sleep(PAUSE_SECONDS * 2)
        assert bench.created()["quiet"] == 20


@in_virtual_time
async def test_waiting_events_are_truncated_to_what_is_copied() -> None:
    """Otherwise 2,000 events of 60 KB would need 120 MB for each lower."""
    async with mirroring(*LOUD) as bench:
        for name in LOUD:
            bench.hear_many(name, 25, message="x" * 60_000, metadata={"labels": {"a": "y" * 2000}})
        assert len(bench.mirror) == MOST_WAITING
        waiting = [bench.mirror._queue.take(lambda _: True) for _ in range(MOST_WAITING)]
        assert max(len(repr(one)) for one in waiting) < 4096


@in_virtual_time
async def test_only_the_namespace_whose_copy_failed_is_paused() -> None:
    """A failing webhook for one namespace is retried after seconds, and other namespaces do not wait."""
    async with mirroring(LOUD[0], QUIET) as bench:
        bench.upper.queue_responses("create", Unreachable("webhook down", status=500))
        bench.hear_many(LOUD[0])
        bench.hear_many(QUIET, 3)
        await asyncio.sleep(PAUSE_SECONDS * 1.5)
        assert bench.created() == {"loud": 1, "quiet": 3}
        await asyncio.sleep(6)
        assert bench.created() == {"loud": 2, "quiet": 3}
        assert bench.mirror.counts == {"copied": 4, "dropped": 0, "failed": 0}


@in_virtual_time
async def test_an_event_that_cannot_be_decoded_does_not_stop_the_mirror() -> None:
    """A number that is too large is valid JSON for one parser and invalid for another."""
    async with mirroring(QUIET) as bench:
        raw = lower_event(QUIET, "e-bad").replace(b'"count":1', b'"count":1e400')
        bench.mirror.on_event(WatchEvent("ADDED", raw))
        bench.hear_many(QUIET)
        await asyncio.sleep(PAUSE_SECONDS * 1.5)
        assert bench.created() == {"quiet": 1}
