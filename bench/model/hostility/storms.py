"""Faults that affect all plays on one engine together: the engine is killed, or the watches of a cluster are late.

The class is also the director of the rig's proxies, to record whose logs the engine reads.
"""

from random import Random

from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Fault
from bench.kit.rig import Rig
from bench.model.sequences.real import STORMS, FaultPlan

_SORTS = {"crash": "crash", "hold": "hold"}


class Storms(FaultPlan):
    """Faults of one engine, for all plays on it.

    `blurred` is whether the engine cannot know the current state at the moment, `count` how often that has happened.
    `logs` holds lower cluster, namespace and name of each pod whose log was read.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, Random(1))
        self.blurred = False
        self.count = 0
        self.logs: list[tuple[str, str, str]] = []

    async def meet(self, asked: Asked) -> Fault:
        """Let every request pass, and record whose log is read."""
        if (asked.resource, asked.subresource) == ("pods", "log"):
            self.logs.append((asked.cluster, asked.namespace, asked.name))
        return await super().meet(asked)

    async def befall(self, what: str, number: int) -> None:
        """Apply a fault; faults other than those of `_SORTS` affect plays in memory only."""
        if what in _SORTS and not self.blurred:
            self.blurred = True
            self.count += 1
            try:
                await self.storm(number * len(STORMS) + STORMS.index(_SORTS[what]))
            finally:
                self.blurred = False
