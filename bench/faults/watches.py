"""Watches with wrong events: late, duplicated, reordered, missing, from an expired version, or none at all.

    .venv/bin/python -m bench.faults.watches [--namespaces 15] [--faults stale,dropped] [--slack 5]

In each namespace a pod is deleted, another created, and a ConfigMap changed while the watches of one cluster are
disturbed; all namespaces are affected at once. Each has to be right within the time that its fault may take, and
nothing may have run twice. The engine runs in this process with watches of three seconds, so that recovery takes
seconds instead of minutes; missing events are detected by the list that compares everything, here every four seconds
instead of every half an hour.
"""

import argparse
import asyncio
import logging
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import structlog

from bench.kit import histories
from bench.kit.clusters import on_clusters
from bench.kit.faultproxy.event_faults import DropEvents, DuplicateEvents, EventFault, ReorderEvents
from bench.kit.faultproxy.proxy import Proxy
from bench.kit.faultproxy.watch_streams import unchanged
from bench.kit.histories import PodEvent
from bench.kit.oracles import Manifest, is_ready, uid_of, upper_uid_of
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import MERGE, PODS, NotInTime, Refused, until
from tensile.engine.engine import Engine
from tensile.engine.lower import ClusterAccess
from tensile.errors import ClusterError
from tensile.kube.fleet import Fleet
from tensile.kube.limits import InformerTimings
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER
from tensile.topology import parse

LOWER = LOWERS[0]
PACE = InformerTimings(shortest=3, longest=3, relist=4.0)
DEADLINE = PACE.shortest + 10.0 + 30.0
"""Seconds after which a silent watch that does not even end is given up, and so is a call after it."""
HOLD = 2.0
MAPS = "/api/v1/namespaces/{}/configmaps"
PATIENCE = 120.0
Strike = Callable[[Proxy], Awaitable[Callable[[], object]]]


@dataclass(frozen=True)
class Fault:
    """A fault of the watches of one cluster.

    `strike` starts it and returns a function that ends it; `limit` is the allowed time of the recovery after that, in
    seconds.
    """

    name: str
    strike: Strike
    limit: float


async def _stale(proxy: Proxy) -> Callable[[], object]:
    """Delay all events."""
    held = list(proxy.streams)
    for stream in held:
        stream.hold()
    return lambda: [stream.release() for stream in held]


async def _expired(proxy: Proxy) -> Callable[[], object]:
    """Hold all events back, and then report their version as expired."""
    held = list(proxy.streams)
    for stream in held:
        stream.hold()
    return lambda: [stream.end("expired") for stream in held]


async def _hung(proxy: Proxy) -> Callable[[], object]:
    """Let the apiserver send nothing, neither to watches nor to requests."""
    proxy.freeze()
    return proxy.thaw


async def _half_open(proxy: Proxy) -> Callable[[], object]:
    """Make every connection dead without closing it."""
    proxy.leave_half_open()
    return lambda: None


def _tampered(sort: type[EventFault]) -> Strike:
    """Tamper with every other event of pods and ConfigMaps; the event after it moves the watch beyond it."""

    async def strike(proxy: Proxy) -> Callable[[], object]:
        """Start the tampering."""
        turns = cycle((True, False))
        proxy.tamper = sort(
            lambda request, _event: request.resource in ("pods", "configmaps") and next(turns), times=1 << 30
        )
        return lambda: setattr(proxy, "tamper", unchanged)

    return strike


FAULTS = (
    Fault("stale", _stale, 0.0),
    Fault("dropped", _tampered(DropEvents), PACE.relist),
    Fault("duplicated", _tampered(DuplicateEvents), 0.0),
    Fault("reordered", _tampered(ReorderEvents), PACE.relist),
    Fault("410", _expired, 0.0),
    Fault("hang", _hung, 0.0),
    Fault("half-open", _half_open, DEADLINE),
)


class DefectRecorder:
    """An observer that records defects: rules that raised an error."""

    def __init__(self) -> None:
        self.defects: list[str] = []

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Ignore a step."""

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Ignore a problem."""

    def on_unexpected_error(self, key: Key, error: Exception) -> None:
        """Record a defect."""
        self.defects.append(f"{key}: {error!r}")


class WatchTrial:
    """Namespaces of a rig, each with one pod and one ConfigMap of the current generation."""

    def __init__(self, rig: Rig, count: int) -> None:
        self.rig = rig
        self.namespaces = [f"{rig.name}-n{number}" for number in range(count)]
        self.generation = 0
        self.pod_events: list[PodEvent] = []

    async def create_objects(self) -> None:
        """Create everything, and return when it runs."""
        for namespace in self.namespaces:
            await self.rig.upper.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            body = {"metadata": {"name": "settings", "labels": self._labels()}, "data": {"n": "0"}}
            await self.rig.upper.call("POST", MAPS.format(namespace), body)
            await until(lambda namespace=namespace: self._bind(namespace), "a pod is accepted", PATIENCE)
        await self.settled(time.monotonic(), PATIENCE)

    async def advance(self) -> None:
        """Advance every namespace: delete its pod, create the next one, and change the ConfigMap."""
        self.generation += 1
        for namespace in self.namespaces:
            await self.rig.upper.delete(f"{PODS.format(namespace)}/pod-{self.generation - 1}")
            await self._bind(namespace)
            change = {"data": {"n": str(self.generation)}}
            await self.rig.upper.call("PATCH", f"{MAPS.format(namespace)}/settings", change, MERGE)

    async def settled(self, begin: float, limit: float) -> dict[str, float]:
        """Return the seconds from `begin` until each namespace was right, without those that were not in time."""
        took: dict[str, float] = {}

        async def are_all() -> bool:
            """Report whether all namespaces are right."""
            wrong = await self.wrong()
            for namespace in self.namespaces:
                if namespace not in wrong:
                    took.setdefault(namespace, round(time.monotonic() - begin, 2))
            return not wrong

        with suppress(NotInTime):
            await until(are_all, "all is right", limit)
        return took

    async def wrong(self) -> dict[str, str]:
        """Return the namespaces in which something is wrong, with a description."""
        upper, lower = await self._items(UPPER, "pods"), await self._items(LOWER, "pods")
        maps = await self._items(LOWER, "configmaps")
        found = {one: self._wrong(upper.get(one, []), lower.get(one, []), maps.get(one, [])) for one in self.namespaces}
        return {namespace: failure for namespace, failure in found.items() if failure}

    async def clear(self) -> None:
        """Delete all pods, and the namespaces."""
        for namespace in self.namespaces:
            await self.rig.upper.delete(f"{PODS.format(namespace)}/pod-{self.generation}")

        async def are_gone() -> bool:
            """Report whether no pod is left."""
            return not await self._items(UPPER, "pods")

        await until(are_gone, "the pods are gone", PATIENCE)
        for namespace in self.namespaces:
            await self.rig.upper.delete(f"/api/v1/namespaces/{namespace}")

    async def follow(self, cluster: str) -> None:
        """Record all events of the pods of a cluster, without the proxy."""
        async for sort, pod in self.rig.sites[cluster].watch("/api/v1/pods", f"labelSelector=rig={self.rig.name}"):
            self.pod_events.append(PodEvent(cluster, sort, pod))

    def _wrong(self, upper: list[Manifest], lower: list[Manifest], maps: list[Manifest]) -> str:
        wanted = [f"pod-{self.generation}"]
        if [one["metadata"]["name"] for one in upper] != wanted or not all(map(is_ready, upper)):
            return f"above are {[one['metadata']['name'] for one in upper]}"
        if [upper_uid_of(one) for one in lower] != [uid_of(one) for one in upper]:
            return f"below are {[one['metadata']['name'] for one in lower]}"
        values = [one["data"]["n"] for one in maps]
        return "" if values == [str(self.generation)] else f"the ConfigMap below says {values}"

    async def _items(self, cluster: str, plural: str) -> dict[str, list[Manifest]]:
        found: dict[str, list[Manifest]] = {}
        for one in await self.rig.sites[cluster].items(f"/api/v1/{plural}?labelSelector=rig={self.rig.name}"):
            found.setdefault(one["metadata"]["namespace"], []).append(one)
        return found

    async def _bind(self, namespace: str) -> bool:
        """Create the pod of this generation; return whether the namespace accepts pods already."""
        spec = {
            "nodeName": self.rig.nodes[LOWER],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "app:1"}],
            "volumes": [{"name": "c", "configMap": {"name": "settings"}}],
        }
        meta = {"name": f"pod-{self.generation}", "labels": self._labels()}
        with suppress(Refused):
            await self.rig.upper.call("POST", PODS.format(namespace), {"metadata": meta, "spec": spec})
            return True
        return False

    def _labels(self) -> dict[str, str]:
        return {"rig": self.rig.name}


async def run_fault(trial: WatchTrial, fault: Fault, victim: str, slack: float) -> dict[str, Any]:
    """Disturb the watches of one cluster while objects change, and return the result with the failures."""
    proxy = trial.rig.proxies[victim]
    start = len(trial.rig.journal)
    mend = await fault.strike(proxy)
    await trial.advance()
    await asyncio.sleep(HOLD)
    begin = time.monotonic()
    mend()
    took = await trial.settled(begin, PATIENCE)
    wrong = await trial.wrong() if len(took) < len(trial.namespaces) else {}
    broken = [f"{namespace} is never right: {failure}" for namespace, failure in wrong.items()]
    limit = fault.limit + slack
    broken += [f"{namespace} only after {seconds} s" for namespace, seconds in took.items() if seconds > limit]
    broken += histories.unfenced(trial.rig.journal.since(start))
    broken += histories.lived_twice(pod_event for pod_event in trial.pod_events if pod_event.cluster != UPPER)
    broken += histories.reverted(pod_event for pod_event in trial.pod_events if pod_event.cluster == UPPER)
    fields = {"fault": fault.name, "victim": victim, "recovered": len(took), "of": len(trial.namespaces)}
    slowest = max(took.values(), default=0.0)
    return {
        **fields,
        "slowest_s": slowest,
        "limit_s": limit,
        "broken": [f"{fault.name}, {victim}: {it}" for it in broken],
    }


@asynccontextmanager
async def laid_out(sandbox: Sandbox, directory: Path, namespaces: int) -> AsyncIterator[WatchTrial]:
    """Yield a field whose engine runs in this process; none of its rules may raise an error."""
    recorder = DefectRecorder()
    async with Rig(sandbox, directory) as rig:
        topology = parse((directory / "topology.yaml").read_text(), name="topology.yaml")
        engine = Engine(topology, ClusterAccess(directory), recorder, Fleet(chance=random.random, pace=PACE))
        trial = WatchTrial(rig, namespaces)
        following = [asyncio.create_task(trial.follow(cluster)) for cluster in (UPPER, *LOWERS)]
        try:
            await engine.start()
            await rig.wait_until_usable()
            await trial.create_objects()
            yield trial
            await trial.clear()
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await engine.stop()
    assert recorder.defects == [], recorder.defects


async def run_faults(
    trial: WatchTrial, faults: Iterable[Fault], victims: Iterable[str], slack: float
) -> list[dict[str, Any]]:
    """Run all faults, each in each of these clusters, and return the results."""
    found = []
    for fault in faults:
        for victim in victims:
            found.append(await run_fault(trial, fault, victim, slack))
            print(" ".join(f"{key}={value}" for key, value in found[-1].items()), flush=True)
    return found


def main() -> int:
    """Parse the arguments, run on an own sandbox, store the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--namespaces", type=int, default=15, help="the number of namespaces with a workload")
    parser.add_argument(
        "--faults",
        default="",
        help="the faults to run, separated by commas; default: all of " + ",".join(fault.name for fault in FAULTS),
    )
    parser.add_argument(
        "--slack", type=float, default=5.0, help="the seconds by which a slow machine may exceed each limit"
    )
    parser.add_argument(
        "--sandbox", type=Path, default=None, help="the directory of a running sandbox; default: start one"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    wanted = [fault for fault in FAULTS if not args.faults or fault.name in args.faults.split(",")]

    async def scenario(sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
        """Run with the arguments of the command line."""
        async with laid_out(sandbox, scratch, args.namespaces) as trial:
            runs = await run_faults(trial, wanted, (UPPER, LOWER), args.slack)
        fields = {"watch_s": PACE.shortest, "audit_s": PACE.relist, "namespaces": args.namespaces}
        return {**fields, "runs": runs, "broken": [failure for one in runs for failure in one["broken"]]}

    kubernetes, result = on_clusters(scenario, args.sandbox)
    path = keep(args.results, "faults-watches", kubernetes, result)
    return verdict("watches", result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
