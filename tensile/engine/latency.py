"""How long pods take: until a lower pod exists, and until the status of a lower pod stands on the upper one.

Both are measured at the caches, where a pod is first known to be bound, and where the result of a write arrives. So
they include the time in the work queue, waiting for other objects, and every retry. What was there before the engine
listed it is not counted, since it is not known since when.
"""

import time
from collections import defaultdict
from collections.abc import Callable

from tensile.kube.measures import Histogram
from tensile.kube.store import Delta
from tensile.reconcile.pods.index import differ
from tensile.reconcile.world import LowerWorld

_Name = tuple[str, str]


class SyncLatency:
    """The latencies of all lowers by name: `created` until lower pods exist, `reported` until upper statuses do.

    They stay when a lower leaves, as it may come back. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.created: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.reported: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._clock = clock

    def follow(self, lower: LowerWorld) -> None:
        """Measure a lower from now on, for as long as its caches exist."""
        found = _PodTimes(lower, self.created[lower.name], self.reported[lower.name], self._clock)
        lower.upper_pods.on_sync(found.list)
        lower.upper_pods.subscribe(found.hear_upper)
        lower.pods.subscribe(found.hear_lower)


class _PodTimes:
    """Since when each pod of one lower waits, by its upper name: to be created, or to have its status reported."""

    def __init__(self, lower: LowerWorld, created: Histogram, reported: Histogram, clock: Callable[[], float]) -> None:
        self._lower = lower
        self._created = created
        self._reported = reported
        self._clock = clock
        self._bound: dict[_Name, float] = {}
        self._changed: dict[_Name, float] = {}
        self._is_listed = lower.upper_pods.synced

    def list(self) -> None:
        """Record that the first list is complete: pods that appear from now on were bound a moment ago."""
        self._is_listed = True

    def hear_upper(self, delta: Delta) -> None:
        """Note a pod that was bound, and one whose status has arrived."""
        before, after = delta
        name = (delta.entry.namespace, delta.entry.name)
        if after is None:
            self._bound.pop(name, None)
            self._changed.pop(name, None)
        elif before is None or before.uid != after.uid:
            self._changed.pop(name, None)
            if self._is_listed:
                self._bound[name] = self._clock()
        elif name in self._changed:
            below = self._lower.pods.get(self._lower.namespace(after.namespace), after.name)
            if not differ(after, below):
                self._reported.observe(self._clock() - self._changed.pop(name))

    def hear_lower(self, delta: Delta) -> None:
        """Note a lower pod that was created, and one whose status differs from that of its upper pod."""
        before, after = delta
        if after is None or (before is not None and before.facts.shown == after.facts.shown):
            return
        name = (self._lower.upper_namespace(after.namespace), after.name)
        upper = self._lower.upper_pods.get(*name)
        if upper is None or upper.uid != after.facts.upper_uid:
            return
        if name in self._bound:
            self._created.observe(self._clock() - self._bound.pop(name))
        if differ(upper, after):
            self._changed.setdefault(name, self._clock())
        else:
            self._changed.pop(name, None)
