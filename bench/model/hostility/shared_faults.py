"""Faults that affect all sequences on one engine together: the engine is killed, or the watches of a cluster are late.

The class is also the director of the rig's proxies, to record whose logs the engine reads.
"""

from random import Random

from bench.kit.faultproxy.faults import Fault
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.rig import Rig
from bench.model.sequences.real import SHARED_FAULTS, FaultPlan

_SORTS = {"crash": "crash", "hold": "hold"}


class SharedFaults(FaultPlan):
    """Faults of one engine, for all sequences on it.

    `is_state_uncertain` is whether the engine cannot know the current state at the moment, `count` how often that has
    happened. `logs` holds lower cluster, namespace and name of each pod whose log was read.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, Random(1))
        self.is_state_uncertain = False
        self.count = 0
        self.logs: list[tuple[str, str, str]] = []

    async def fault_for(self, request: ProxiedRequest) -> Fault:
        """Let every request pass, and record whose log is read."""
        if (request.resource, request.subresource) == ("pods", "log"):
            self.logs.append((request.cluster, request.namespace, request.name))
        return await super().fault_for(request)

    async def inject_fault(self, what: str, number: int) -> None:
        """Apply a fault; faults other than those of `_SORTS` affect sequences in memory only."""
        if what in _SORTS and not self.is_state_uncertain:
            self.is_state_uncertain = True
            self.count += 1
            try:
                await self.apply_to_all(number * len(SHARED_FAULTS) + SHARED_FAULTS.index(_SORTS[what]))
            finally:
                self.is_state_uncertain = False
