"""How many events come up, and that a tenant who makes thousands delays and displaces its own alone."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from answering import Answering
from eventkit import lower_event, lower_of, mirrored
from tasks import background
from virtualtime import in_virtual_time

from tensile.errors import Unreachable
from tensile.kube.cluster import WatchEvent
from tensile.kubelet.pods.event_mirror import MOST_WAITING, OF_A_NAMESPACE, OF_AN_OBJECT, PAUSE, EventMirror

LOUD = [f"loud/pod-{number}" for number in range(80)]
QUIET = "quiet/web"


class RunningMirror:
    """A mirror on a world of mirrored pods, and an upper cluster that takes what it is sent."""

    def __init__(self, *names: str) -> None:
        self.upper = Answering("")
        here = mirrored(*names)
        self.mirror = EventMirror(lower_of(here), here, self.upper, lambda: False)
        self._heard = 0

    def hear(self, name: str, count: int = 1, **fields: object) -> None:
        """Let so many different events of a pod be heard."""
        for _ in range(count):
            self._heard += 1
            self.mirror.hear(WatchEvent("ADDED", lower_event(name, f"e-{self._heard}", **fields)))

    def flood(self) -> None:
        """Let as many events be heard as eighty pods of one namespace may have."""
        for name in LOUD:
            self.hear(name, OF_AN_OBJECT[0], message="x" * 20_000)

    def written(self) -> Counter[str]:
        """Count the events that came up by namespace."""
        return Counter(one.ref.namespace for one in self.upper.asked if one.verb == "create")


@asynccontextmanager
async def mirroring(*names: str) -> AsyncIterator[RunningMirror]:
    """Run a mirror."""
    bench = RunningMirror(*names)
    async with background(bench.mirror.run()):
        yield bench


@in_virtual_time
async def test_one_pod_has_so_many_events_at_once_and_few_later() -> None:
    """Of 600 fifty come up, and one a minute from then on; the rest is counted as dropped."""
    burst, seconds = OF_AN_OBJECT
    async with mirroring(QUIET) as bench:
        bench.hear(QUIET, 600)
        await asyncio.sleep(10 * PAUSE)
        assert bench.written() == {"quiet": burst}
        assert bench.mirror.counts["dropped"] == 600 - burst
        for _ in range(10):
            await asyncio.sleep(seconds)
            bench.hear(QUIET, 20)
        await asyncio.sleep(PAUSE * 2)
        assert bench.written() == {"quiet": burst + 10}


@in_virtual_time
async def test_a_repeat_of_what_waits_counts_once() -> None:
    """A program that counts up in one event is told with its last word, and has used up nothing by it."""
    async with mirroring(QUIET) as bench:
        for count in range(1000):
            bench.mirror.hear(WatchEvent("MODIFIED", lower_event(QUIET, "e-same", count=count)))
        await asyncio.sleep(PAUSE * 2)
        bench.hear(QUIET, OF_AN_OBJECT[0] - 1)
        await asyncio.sleep(PAUSE * 10)
        assert bench.written() == {"quiet": OF_AN_OBJECT[0]}
        assert bench.mirror.counts["dropped"] == 0


@in_virtual_time
async def test_the_flood_of_one_namespace_delays_no_other() -> None:
    """An event that comes behind four thousand of another tenant is the first or second to go up."""
    async with mirroring(*LOUD, QUIET) as bench:
        bench.flood()
        bench.hear(QUIET)
        assert len(bench.mirror) == MOST_WAITING
        await asyncio.sleep(PAUSE * 1.5)
        assert bench.written()["quiet"] == 1
        assert [one.ref.namespace for one in bench.upper.asked].index("quiet") <= 1


@in_virtual_time
async def test_a_namespace_beyond_its_rate_holds_up_no_other() -> None:
    """It has used up its burst and waits; what another tells still comes up at once."""
    burst, seconds = OF_A_NAMESPACE
    async with mirroring(*LOUD, QUIET) as bench:
        for _ in range(2):
            bench.flood()
            await asyncio.sleep(40)
        loud = bench.written()["loud"]
        assert burst <= loud <= burst + 80 / seconds
        for _ in range(20):
            bench.hear(QUIET)
            await asyncio.sleep(PAUSE * 2)
        assert bench.written()["quiet"] == 20


@in_virtual_time
async def test_what_waits_is_small_however_large_the_events_are() -> None:
    """Of each only what is told is kept: two thousand of 60 KB would be 120 MB a lower."""
    async with mirroring(*LOUD) as bench:
        for name in LOUD:
            bench.hear(name, 25, message="x" * 60_000, metadata={"labels": {"a": "y" * 2000}})
        assert len(bench.mirror) == MOST_WAITING
        waiting = [bench.mirror._queue.take(lambda _: True) for _ in range(MOST_WAITING)]
        assert max(len(repr(one)) for one in waiting) < 4096


@in_virtual_time
async def test_a_namespace_whose_events_the_upper_fails_to_take_rests_alone() -> None:
    """A webhook above that fails for one namespace is asked again seconds later; others do not wait for that."""
    async with mirroring(LOUD[0], QUIET) as bench:
        bench.upper.answer("create", Unreachable("webhook down", status=500))
        bench.hear(LOUD[0])
        bench.hear(QUIET, 3)
        await asyncio.sleep(PAUSE * 1.5)
        assert bench.written() == {"loud": 1, "quiet": 3}
        await asyncio.sleep(6)
        assert bench.written() == {"loud": 2, "quiet": 3}
        assert bench.mirror.counts == {"copied": 4, "dropped": 0, "failed": 0}


@in_virtual_time
async def test_an_event_that_cannot_be_decoded_ends_nothing() -> None:
    """A number beyond all bounds is JSON to one reader and none to another."""
    async with mirroring(QUIET) as bench:
        raw = lower_event(QUIET, "e-bad").replace(b'"count":1', b'"count":1e400')
        bench.mirror.hear(WatchEvent("ADDED", raw))
        bench.hear(QUIET)
        await asyncio.sleep(PAUSE * 1.5)
        assert bench.written() == {"quiet": 1}
