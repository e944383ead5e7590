"""How events get up: when nothing is better to do, once each, and so that who makes thousands delays nobody else."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from answering import Answering, Held
from eventkit import lower_event, lower_of, mirrored
from tasks import background
from virtualtime import in_virtual_time
from worldkit import drop, put

from tensile.errors import AlreadyExists, Conflict, Denied, NotFound, Throttled, Unreachable
from tensile.kube.cluster import WatchEvent
from tensile.kubelet.pods.event_mirror import (
    MOST_KEPT,
    MOST_WAITING,
    OF_A_NAMESPACE,
    OF_AN_OBJECT,
    PATIENCE,
    PAUSE,
    EventMirror,
)
from tensile.kubelet.pods.events import CarriedEvent
from tensile.objects import Manifest
from tensile.reconcile.world import World

LOUD = [f"loud/pod-{number}" for number in range(80)]
QUIET = "quiet/web"


class RunningMirror:
    """A mirror on a world of mirrored pods, and an upper cluster that answers on demand."""

    def __init__(self, here: World) -> None:
        self.world = here
        self.upper = Answering("")
        self.is_busy = False
        self._heard = 0
        self.mirror = EventMirror(lower_of(here), here, self.upper, lambda: self.is_busy)

    def hear(self, sort: str = "ADDED", name: str = "web", uid: str = "e-1", **fields: Any) -> None:
        """Let an event of a lower pod be heard."""
        self.mirror.hear(WatchEvent(sort, lower_event(name, uid, **fields)))

    def hear_many(self, name: str, count: int = 1, **fields: Any) -> None:
        """Let so many different events of a pod be heard."""
        for _ in range(count):
            self._heard += 1
            self.hear(name=name, uid=f"e-{self._heard}", **fields)

    def flood(self) -> None:
        """Let as many events be heard as eighty pods of one namespace may have."""
        for name in LOUD:
            self.hear_many(name, OF_AN_OBJECT[0], message="x" * 20_000)

    def created(self) -> Counter[str]:
        """Count the events that came up by namespace."""
        return Counter(one.ref.namespace for one in self.upper.asked if one.verb == "create")

    def written(self) -> list[tuple[str, int]]:
        """Return what was written, in order, with the count that it told."""
        bodies = [
            (one.verb, one.carried if one.verb == "create" else one.carried[0].body)
            for one in self.upper.asked
            if one.verb != "read"
        ]
        return [(verb, body["count"]) for verb, body in bodies]

    def copy(self, **fields: Any) -> Manifest:
        """Return the copy that was made first as it is stored."""
        made = next(one.carried for one in self.upper.asked if one.verb == "create")
        return {**made, "metadata": {**made["metadata"], "uid": "copy-1"}, **fields}


@asynccontextmanager
async def mirroring(*names: str) -> AsyncIterator[RunningMirror]:
    """Run a mirror."""
    bench = RunningMirror(mirrored(*names))
    async with background(bench.mirror.run()):
        yield bench


async def turn(count: int = 1) -> None:
    """Let so many pauses pass."""
    await asyncio.sleep(count * PAUSE + PAUSE / 2)


@in_virtual_time
async def test_an_event_is_carried_up_after_a_pause() -> None:
    """A moment later, so that a status which comes with it is first."""
    async with mirroring() as bench:
        bench.hear()
        await asyncio.sleep(PAUSE / 2)
        assert bench.written() == []
        await turn()
        assert bench.written() == [("create", 1)]
        assert bench.mirror.counts == {"copied": 1, "dropped": 0, "failed": 0}


@in_virtual_time
async def test_what_is_not_ours_is_not_even_kept() -> None:
    """Thousands of strangers' events pass; a deletion and a bookmark are no news either."""
    async with mirroring() as bench:
        bench.hear(name="stranger")
        bench.hear("DELETED")
        bench.mirror.hear(WatchEvent("BOOKMARK", b'{"metadata":{"resourceVersion":"5"}}'))
        bench.mirror.hear(WatchEvent("ADDED", b"nonsense"))
        assert len(bench.mirror) == 0
        await turn(3)
        assert bench.upper.asked == []


@in_virtual_time
async def test_the_last_events_of_a_pod_are_kept_to_be_shown() -> None:
    """Each in its last state, the latest first, by the upper pod; and not those of another pod."""
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
async def test_a_tenant_with_many_events_displaces_no_other_one_from_what_is_kept() -> None:
    """Whatever it sends, the events of a pod of another namespace stay."""
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
    """Return what is kept of the events of the pod web."""
    return bench.mirror.last("default", "Pod-web")


@in_virtual_time
async def test_repeats_that_wait_are_carried_once() -> None:
    """With what was said last; a later one changes the copy by its UID."""
    async with mirroring() as bench:
        for count in (1, 2, 3):
            bench.hear("MODIFIED", count=count)
        await turn()
        bench.hear("MODIFIED", count=4)
        await turn(2)
        assert bench.written() == [("create", 3), ("patch", 4)]
        patch, _ = bench.upper.asked[-1].carried
        assert patch.body["metadata"] == {"uid": f"made-{bench.upper.asked[-1].ref.name}"}


@in_virtual_time
async def test_events_wait_while_the_engine_is_busy() -> None:
    """All of them, but for one in a while, so that they get up even where it never rests."""
    async with mirroring("one", "two") as bench:
        bench.is_busy = True
        for number in range(100):
            bench.hear(name=("one", "two")[number % 2], uid=f"e-{number}")
        await asyncio.sleep(PATIENCE - PAUSE)
        assert bench.written() == []
        await asyncio.sleep(9 * PATIENCE + 3 * PAUSE)
        assert 7 <= len(bench.written()) <= 10
        bench.is_busy = False
        await turn(10)
        assert len(bench.written()) == 100


@in_virtual_time
async def test_an_engine_that_becomes_busy_has_its_way_at_once() -> None:
    """Between two events of one turn."""
    async with mirroring() as bench:
        held = Held(orjson.dumps({"metadata": {"uid": "copy-1"}}))
        bench.upper.answer("create", held)
        for number in range(5):
            bench.hear(uid=f"e-{number}")
        await held.began.wait()
        bench.is_busy = True
        held.go.set()
        await turn(3)
        assert len(bench.written()) == 1


@in_virtual_time
async def test_beyond_a_bound_the_oldest_are_dropped() -> None:
    """And counted; the newest are what a person looks for."""
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
async def test_a_copy_of_an_earlier_life_is_brought_up_to_date() -> None:
    """The name finds it; where it says the same already, nothing is written."""
    async with mirroring() as earlier:
        earlier.hear()
        await turn()
        stored = earlier.copy()
    for count, written in ((2, [("create", 2), ("patch", 2)]), (1, [("create", 1)])):
        async with mirroring() as bench:
            bench.upper.answer("create", AlreadyExists("exists", status=409))
            bench.upper.answer("read", stored)
            bench.hear("MODIFIED", count=count)
            await turn(2)
            assert bench.written() == written
            assert bench.mirror.counts["copied"] == 1


@in_virtual_time
async def test_what_somebody_else_put_under_the_name_is_left_alone() -> None:
    """It counts as failed."""
    async with mirroring() as bench:
        bench.upper.answer("create", AlreadyExists("exists", status=409))
        bench.upper.answer("read", {"metadata": {"uid": "x"}, "involvedObject": {"uid": "Pod-web"}})
        bench.hear()
        await turn(2)
        assert [verb for verb, _ in bench.written()] == ["create"]
        assert bench.mirror.counts == {"copied": 0, "dropped": 0, "failed": 1}


@in_virtual_time
async def test_a_copy_that_went_is_made_again() -> None:
    """Events live for an hour, or for as long as nobody deletes them."""
    for error in (NotFound("gone", status=404), Conflict("another", status=409)):
        async with mirroring() as bench:
            bench.hear()
            await turn()
            bench.upper.answer("patch", error)
            bench.hear("MODIFIED", count=2)
            await turn(2)
            assert bench.written() == [("create", 1), ("patch", 2), ("create", 2)]


@in_virtual_time
async def test_a_cluster_that_is_away_gets_it_later() -> None:
    """The event is the first again, with the newest word of it that has come meanwhile."""
    async with mirroring() as bench:
        bench.upper.answer("create", Unreachable("away"), Throttled("slower", retry_after=30))
        bench.hear()
        bench.hear(uid="e-2", count=7)
        await turn()
        bench.hear("MODIFIED", count=2)
        await asyncio.sleep(60)
        assert bench.written() == [("create", 1), ("create", 2), ("create", 2), ("create", 7)]
        assert bench.mirror.counts == {"copied": 2, "dropped": 0, "failed": 0}


@in_virtual_time
async def test_a_refusal_does_not_hold_up_the_next() -> None:
    """A namespace that ends takes no events; the others do."""
    async with mirroring() as bench:
        bench.upper.answer("create", Denied("no", status=403))
        bench.hear()
        bench.hear(uid="e-2")
        await turn()
        assert bench.mirror.counts == {"copied": 1, "dropped": 0, "failed": 1}


@in_virtual_time
async def test_a_pod_that_went_meanwhile_gets_no_event() -> None:
    """It would stand there about nothing."""
    async with mirroring() as bench:
        bench.hear()
        drop(lower_of(bench.world).pods, "web")
        await turn(2)
        assert bench.upper.asked == []
        assert len(bench.mirror) == 0


@in_virtual_time
async def test_news_that_is_faster_than_the_answer_is_kept() -> None:
    """The lower scheduler may speak of a pod before its creation is answered; a stranger that took the name is none."""
    async with mirroring() as bench:
        pods = lower_of(bench.world).pods
        (below,) = pods
        drop(pods, "web")
        bench.hear()
        bench.hear(uid="e-2", involvedObject={"uid": "a stranger's"})
        assert len(bench.mirror) == 2
        put(pods, {**below.manifest(), "metadata": {**below.manifest()["metadata"], "uid": "below-Pod-web"}})
        await turn(2)
        assert bench.written() == [("create", 1)]


# How many.


@in_virtual_time
async def test_one_pod_has_so_many_events_at_once_and_few_later() -> None:
    """Of 600 fifty come up, and one a minute from then on; the rest is counted as dropped."""
    burst, seconds = OF_AN_OBJECT
    async with mirroring(QUIET) as bench:
        bench.hear_many(QUIET, 600)
        await asyncio.sleep(10 * PAUSE)
        assert bench.created() == {"quiet": burst}
        assert bench.mirror.counts["dropped"] == 600 - burst
        for _ in range(10):
            await asyncio.sleep(seconds)
            bench.hear_many(QUIET, 20)
        await asyncio.sleep(PAUSE * 2)
        assert bench.created() == {"quiet": burst + 10}


@in_virtual_time
async def test_a_repeat_of_what_waits_counts_once() -> None:
    """A program that counts up in one event is told with its last word, and has used up nothing by it."""
    async with mirroring(QUIET) as bench:
        for count in range(1000):
            bench.mirror.hear(WatchEvent("MODIFIED", lower_event(QUIET, "e-same", count=count)))
        await asyncio.sleep(PAUSE * 2)
        bench.hear_many(QUIET, OF_AN_OBJECT[0] - 1)
        await asyncio.sleep(PAUSE * 10)
        assert bench.created() == {"quiet": OF_AN_OBJECT[0]}
        assert bench.mirror.counts["dropped"] == 0


@in_virtual_time
async def test_the_flood_of_one_namespace_delays_no_other() -> None:
    """An event that comes behind four thousand of another tenant is the first or second to go up."""
    async with mirroring(*LOUD, QUIET) as bench:
        bench.flood()
        bench.hear_many(QUIET)
        assert len(bench.mirror) == MOST_WAITING
        await asyncio.sleep(PAUSE * 1.5)
        assert bench.created()["quiet"] == 1
        assert [one.ref.namespace for one in bench.upper.asked].index("quiet") <= 1


@in_virtual_time
async def test_a_namespace_beyond_its_rate_holds_up_no_other() -> None:
    """It has used up its burst and waits; what another tells still comes up at once."""
    burst, seconds = OF_A_NAMESPACE
    async with mirroring(*LOUD, QUIET) as bench:
        for _ in range(2):
            bench.flood()
            await asyncio.sleep(40)
        loud = bench.created()["loud"]
        assert burst <= loud <= burst + 80 / seconds
        for _ in range(20):
            bench.hear_many(QUIET)
            await asyncio.sleep(PAUSE * 2)
        assert bench.created()["quiet"] == 20


@in_virtual_time
async def test_what_waits_is_small_however_large_the_events_are() -> None:
    """Of each only what is told is kept: two thousand of 60 KB would be 120 MB a lower."""
    async with mirroring(*LOUD) as bench:
        for name in LOUD:
            bench.hear_many(name, 25, message="x" * 60_000, metadata={"labels": {"a": "y" * 2000}})
        assert len(bench.mirror) == MOST_WAITING
        waiting = [bench.mirror._queue.take(lambda _: True) for _ in range(MOST_WAITING)]
        assert max(len(repr(one)) for one in waiting) < 4096


@in_virtual_time
async def test_a_namespace_whose_events_the_upper_fails_to_take_rests_alone() -> None:
    """A webhook above that fails for one namespace is asked again seconds later; others do not wait for that."""
    async with mirroring(LOUD[0], QUIET) as bench:
        bench.upper.answer("create", Unreachable("webhook down", status=500))
        bench.hear_many(LOUD[0])
        bench.hear_many(QUIET, 3)
        await asyncio.sleep(PAUSE * 1.5)
        assert bench.created() == {"loud": 1, "quiet": 3}
        await asyncio.sleep(6)
        assert bench.created() == {"loud": 2, "quiet": 3}
        assert bench.mirror.counts == {"copied": 4, "dropped": 0, "failed": 0}


@in_virtual_time
async def test_an_event_that_cannot_be_decoded_ends_nothing() -> None:
    """A number beyond all bounds is JSON to one reader and none to another."""
    async with mirroring(QUIET) as bench:
        raw = lower_event(QUIET, "e-bad").replace(b'"count":1', b'"count":1e400')
        bench.mirror.hear(WatchEvent("ADDED", raw))
        bench.hear_many(QUIET)
        await asyncio.sleep(PAUSE * 1.5)
        assert bench.created() == {"quiet": 1}
