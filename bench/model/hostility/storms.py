"""What befalls all plays on one engine together: it is killed, or watches of a cluster are late.

It is the director of the rig's proxies as well, to see whose logs the engine reads.
"""

from random import Random

from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Fault
from bench.kit.rig import Rig
from bench.model.sequences.real import STORMS, FaultPlan

_SORTS = {"crash": "crash", "hold": "hold"}


class Storms(FaultPlan):
    """`blurred` is whether the engine cannot know what is, `count` how often that was.

    `logs` has lower, namespace and name of each that was read.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, Random(1))
        self.blurred = False
        self.count = 0
        self.logs: list[tuple[str, str, str]] = []

    async def meet(self, asked: Asked) -> Fault:
        """Let everything pass, and note whose log is read."""
        if (asked.resource, asked.subresource) == ("pods", "log"):
            self.logs.append((asked.cluster, asked.namespace, asked.name))
        return await super().meet(asked)

    async def befall(self, what: str, number: int) -> None:
        """Apply a fault; what plays in memory do besides, they do alone."""
        if what in _SORTS and not self.blurred:
            self.blurred = True
            self.count += 1
            try:
                await self.storm(number * len(STORMS) + STORMS.index(_SORTS[what]))
            finally:
                self.blurred = False
