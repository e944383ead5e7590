"""The delay from a change of upper endpoints to the same change in lower clusters, measured by watches of all clusters.

Under load an upper slice changes again before the lower slice has the last change, so the time until both are equal
would measure the load. Instead, the age of each state is measured when it, or a later one, is first observed in a lower
cluster.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

Manifest = dict[str, Any]
Content = tuple[Any, ...]
SERVICE = "kubernetes.io/service-name"


def content(found: Manifest) -> Content:
    """Return the content that must be the same in every cluster."""
    endpoints = [
        (*one["addresses"], *sorted(one.get("conditions", {}).items())) for one in found.get("endpoints") or ()
    ]
    ports = [tuple(sorted(one.items())) for one in found.get("ports") or ()]
    return (service_of(found), tuple(sorted(endpoints)), tuple(sorted(ports)))


def service_of(found: Manifest) -> str:
    """Return the name of the Service of a slice."""
    return str((found["metadata"].get("labels") or {}).get(SERVICE, ""))


def ready(found: Manifest) -> Iterator[str]:
    """Yield the ready addresses of a slice."""
    for one in found.get("endpoints") or ():
        if one.get("conditions", {}).get("ready"):
            yield from one["addresses"]


class Slices:
    """The states of upper slices, and the age of each when it was observed in each lower cluster; times in seconds."""

    def __init__(self, lowers: Iterable[str]) -> None:
        self.lags: list[float] = []
        self._recorded: dict[str, list[tuple[float, Content | None]]] = defaultdict(list)
        self._seen: dict[str, dict[str, Content | None]] = {lower: {} for lower in lowers}
        self._done: dict[str, dict[str, int]] = {lower: defaultdict(int) for lower in lowers}

    def above(self, now: float, name: str, state: Content | None) -> None:
        """Record an upper state, None for deleted; a state without a relevant change is ignored."""
        changes = self._recorded[name]
        if (changes[-1][1] if changes else None) == state:
            return
        changes.append((now, state))
        for lower in self._seen:
            self._compare(now, lower, name)

    def below(self, now: float, lower: str, name: str, state: Content | None) -> None:
        """Record a lower state."""
        self._seen[lower][name] = state
        self._compare(now, lower, name)

    @property
    def changes(self) -> int:
        """The number of upper states."""
        return sum(len(changes) for changes in self._recorded.values())

    def stale(self) -> list[str]:
        """Return the lower slices that differ from the upper ones, or for which there is no upper one."""
        found = []
        for lower, seen in self._seen.items():
            for name in sorted(self._recorded.keys() | seen.keys()):
                changes = self._recorded.get(name)
                if (changes[-1][1] if changes else None) != seen.get(name):
                    found.append(f"{lower}: slice {name} is not as it is above")
        return found

    def _compare(self, now: float, lower: str, name: str) -> None:
        """Measure the ages of all states up to the newest upper state that equals the lower one."""
        changes, done, state = self._recorded[name], self._done[lower][name], self._seen[lower].get(name)
        for place in range(len(changes) - 1, done - 1, -1):
            if changes[place][1] == state:
                self.lags += [now - since for since, _ in changes[done : place + 1]]
                self._done[lower][name] = place + 1
                return


class Readiness:
    """Delays from a pod's readiness to its address among the ready ones of each cluster's slices, or to its removal."""

    def __init__(self, clusters: Iterable[str]) -> None:
        self.lags: list[float] = []
        self._ready: dict[str, dict[str, dict[str, frozenset[str]]]] = {one: defaultdict(dict) for one in clusters}
        self._pods: dict[str, tuple[str, str]] = {}
        self._waiting: dict[tuple[str, str, str], tuple[float, bool]] = {}

    def pod(self, now: float, found: Manifest, *, gone: bool) -> None:
        """Record an upper pod, whose label `app` names its Service."""
        meta = found["metadata"]
        conditions = found.get("status", {}).get("conditions") or ()
        is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        is_ready = is_ready and not gone and "deletionTimestamp" not in meta
        known = self._pods.get(meta["uid"])
        if is_ready and known is None:
            self._pods[meta["uid"]] = (meta["labels"]["app"], found["status"]["podIP"])
            self._await(now, self._pods[meta["uid"]], wanted=True)
        elif known is not None and not is_ready:
            del self._pods[meta["uid"]]
            if known not in self._pods.values():
                self._await(now, known, wanted=False)

    def record(self, now: float, cluster: str, place: tuple[str, str], addresses: frozenset[str]) -> None:
        """Record which addresses of a slice, by Service and name, are ready in a cluster."""
        service, name = place
        self._ready[cluster][service][name] = addresses
        for address in [key[2] for key in self._waiting if key[:2] == (cluster, service)]:
            self._compare(now, (cluster, service, address))

    @property
    def waiting(self) -> int:
        """The number of addresses that do not match the readiness of their pods."""
        return len(self._waiting)

    def _await(self, now: float, place: tuple[str, str], *, wanted: bool) -> None:
        for cluster in self._ready:
            self._waiting[cluster, *place] = (now, wanted)
            self._compare(now, (cluster, *place))

    def _compare(self, now: float, key: tuple[str, str, str]) -> None:
        cluster, service, address = key
        since, wanted = self._waiting[key]
        if any(address in ready for ready in self._ready[cluster][service].values()) == wanted:
            self.lags.append(now - since)
            del self._waiting[key]


def figures(lags: list[float]) -> dict[str, float]:
    """Return delays as a result, in seconds."""
    ordered = sorted(lags)
    places = {"p50_s": 0.5, "p99_s": 0.99}
    found = {name: round(ordered[int(place * (len(ordered) - 1))], 4) for name, place in places.items()}
    return {"count": len(ordered), **found, "longest_s": round(ordered[-1], 4)}
