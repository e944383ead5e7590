"""Tests of the loop with an event loop whose timers fire slightly early, because event loops round their times."""

import asyncio
import math

from answering import FakeCluster
from loopkit import LoopUnderTest, present

from bench.kit.virtualtime import _Loop
from tensile.errors import ClusterError, Unreachable
from tensile.reconcile.desired import Decision

GRAIN = 0.01


class CoarseTimerLoop(_Loop):
    """An event loop whose timers fire up to a hundredth of a second early."""

    def call_at(self, when: float, *rest: object, **named: object) -> asyncio.TimerHandle:  # type: ignore[override]
        """Round the time down, but not to before now."""
        rounded = math.floor(when / GRAIN + 1e-6) * GRAIN
        return super().call_at(max(rounded, self.time()), *rest, **named)  # type: ignore[arg-type]


def test_a_timer_that_fires_early_loses_no_key() -> None:
    """The refused step is still in back-off then, so its key has to be enqueued once more."""

    async def refused_three_times() -> tuple[FakeCluster, list[ClusterError | None], int]:
        """Reconcile a key while its cluster does not respond, and return the state a minute later."""
        bench = LoopUnderTest()
        bench.lower.queue_responses("create", *[Unreachable("no answer")] * 3)
        await bench.run(Decision((present(),)))
        await asyncio.sleep(60)
        return bench.lower, bench.observer.errors, bench.loop.delayed

    with asyncio.Runner(loop_factory=CoarseTimerLoop) as runner:
        lower, errors, delayed = runner.run(refused_three_times())
    assert [one.verb for one in lower.calls] == ["create"] * 4
    assert (errors[-1], delayed) == (None, 0)
