"""Event loops round the times of their timers, to milliseconds as a rule: one may fire a moment early."""

import asyncio
import math

from answering import Answering
from loopkit import LoopUnderTest, present

from bench.kit.virtualtime import _Loop
from tensile.errors import ClusterError, Unreachable
from tensile.reconcile.desired import Decision

GRAIN = 0.01


class Coarse(_Loop):
    """A loop whose timers fire up to a hundredth of a second before their time."""

    def call_at(self, when: float, *rest: object, **named: object) -> asyncio.TimerHandle:  # type: ignore[override]
        """Round the time down, but not into the past."""
        rounded = math.floor(when / GRAIN + 1e-6) * GRAIN
        return super().call_at(max(rounded, self.time()), *rest, **named)  # type: ignore[arg-type]


def test_a_timer_that_fires_a_moment_early_loses_no_key() -> None:
    """The refused step still rests then, so its key has to come back once more."""

    async def refused_three_times() -> tuple[Answering, list[ClusterError | None], int]:
        """Run a key on a cluster that is away for a while, and look much later."""
        bench = LoopUnderTest()
        bench.lower.answer("create", *[Unreachable("no answer")] * 3)
        await bench.run(Decision((present(),)))
        await asyncio.sleep(60)
        return bench.lower, bench.noted.errors, bench.loop.delayed

    with asyncio.Runner(loop_factory=Coarse) as runner:
        lower, errors, delayed = runner.run(refused_three_times())
    assert [one.verb for one in lower.asked] == ["create"] * 4
    assert (errors[-1], delayed) == (None, 0)
