"""Services whose Deployments are all rolled out at once: their lower slices must be correct within seconds.

    .venv/bin/python -m bench.speed.services --pods 1000 --rounds 2 [--seed N]

Fifty Services (fewer if there are fewer than 1,000 pods) share the pods over two lower clusters. Each round rolls out
every Deployment. At the end one lower cluster's apiserver is stopped until its pods are not ready in the other, and is
started again. A state of an upper slice is in the lower clusters two seconds later at most. A pod's readiness is in the
lower slices no later than two seconds after the longest time that Kubernetes itself needed for the upper slices. At the
end no slice is stale, and lower Services and slices of other owners are unchanged. The number of writes to each lower
cluster is no more than the number of upper changes.
"""

import asyncio
import sys
import time
from argparse import Namespace
from collections import Counter
from http import HTTPStatus
from typing import Any, Self

from bench.kit import audit
from bench.kit.oracles import is_ready
from bench.kit.sites import DEPLOYMENTS, MERGE, PODS, Manifest, Site, until
from bench.kit.trial import AGENT, NAMESPACE, Trial, run
from bench.kit.workload import deployment
from bench.speed.propagation import Readiness, Slices, content, figures, ready, service_of
from tensile.names import OWNER
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
ENDPOINTS = 20
STRANGERS = 5
TAKEN = "taken"
GRACE = 2
RIGHT_IN = 2.0
ROLLED_IN = 300.0
SETTLED_IN = 30.0
AWAY_IN = 120.0
APISERVER = "kube-apiserver"
CONTROLLERS = "kube-controller-manager"


class Watched:
    """The watches of all clusters, and the observed delays; used with `async with`."""

    def __init__(self, trial: Trial) -> None:
        self.slices = Slices(trial.lowers)
        self.readiness = {"above": Readiness([UPPER]), "below": Readiness(trial.lowers)}
        self._trial = trial
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        watches = [self._slices_above(self._trial.upper), self._pods(self._trial.upper)]
        watches += [self._slices_below(site) for site in self._trial.lowers.values()]
        self._tasks = [asyncio.create_task(watch) for watch in watches]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_until_settled(self) -> bool:
        """Report whether every upper state is in the lower clusters; a watch that failed ends the program."""
        for task in self._tasks:
            if task.done():
                task.result()
        return not self.slices.stale() and not any(one.waiting for one in self.readiness.values())

    def begin(self) -> None:
        """Restart the measurements."""
        for one in (self.slices, *self.readiness.values()):
            one.lags.clear()

    def lags(self) -> dict[str, dict[str, float]]:
        """Return the delays of slices, and those from a pod's readiness to the upper and to the lower slices."""
        readiness = {f"readiness_{side}": figures(one.lags) for side, one in self.readiness.items()}
        return {"slice": figures(self.slices.lags), **readiness}

    async def _slices_above(self, site: Site) -> None:
        async for kind, found in site.watch(SLICES):
            if service_of(found).startswith("s-"):
                now, name, gone = time.monotonic(), found["metadata"]["name"], kind == "DELETED"
                self.slices.above(now, name, None if gone else content(found))
                self._say_ready("above", UPPER, found, gone=gone)

    async def _slices_below(self, site: Site) -> None:
        async for kind, found in site.watch(SLICES, f"labelSelector={OWNER}={self._trial.mark}"):
            now, name, gone = time.monotonic(), found["metadata"]["name"], kind == "DELETED"
            if service_of(found).startswith("s-"):
                self.slices.below(now, site.name, name, None if gone else content(found))
                self._say_ready("below", site.name, found, gone=gone)

    async def _pods(self, site: Site) -> None:
        async for kind, found in site.watch(PODS.format(NAMESPACE)):
            for one in self.readiness.values():
                one.pod(time.monotonic(), found, gone=kind == "DELETED")

    def _say_ready(self, side: str, cluster: str, found: Manifest, *, gone: bool) -> None:
        addresses = frozenset[str]() if gone else frozenset(ready(found))
        name = found["metadata"]["name"]
        self.readiness[side].record(time.monotonic(), cluster, (service_of(found), name), addresses)


def service(name: str) -> Manifest:
    """Return a Service of the pods of the Deployment of that name."""
    return {"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}]}}


async def strangers(site: Site) -> dict[str, str]:
    """Create Services and slices of another owner in a lower cluster, one with the name of an upper Service."""
    names = [TAKEN, *(f"theirs-{number}" for number in range(STRANGERS))]
    for name in names:
        await site.call("POST", SERVICES, {**service(name), "metadata": {"name": name}})
        body = {"metadata": {"name": f"{name}-by-hand"}, "addressType": "IPv4", "endpoints": []}
        await site.call("POST", SLICES, body)

    async def are_there() -> bool:
        """Report whether they exist, with the slice that Kubernetes creates for each Service."""
        return len(await versions(site)) == 3 * len(names)

    await until(are_there, "the strangers are there", 30.0)
    return await versions(site)


async def versions(site: Site) -> dict[str, str]:
    """Return the resourceVersions of all objects of other owners, by kind and name."""
    found = {}
    for path in (SERVICES, SLICES):
        for one in await site.items(path):
            meta = one["metadata"]
            if OWNER not in (meta.get("labels") or {}) and not meta["name"].startswith("kubernetes"):
                found[f"{path.rpartition('/')[2]}/{meta['name']}"] = meta["resourceVersion"]
    return found


async def roll(trial: Trial, names: list[str], number: int) -> None:
    """Roll out every Deployment, and wait until all of their pods are new."""
    template = {"spec": {"template": {"metadata": {"annotations": {"round": str(number)}}}}}
    for name in names:
        await trial.upper.call("PATCH", f"{DEPLOYMENTS.format(NAMESPACE)}/{name}", template, MERGE)

    async def are_new() -> bool:
        """Report whether all Deployments are rolled out."""
        return all(map(_is_rolled, await trial.upper.items(DEPLOYMENTS.format(NAMESPACE))))

    await until(are_new, f"round {number} is rolled out", ROLLED_IN)


def _is_rolled(found: Manifest) -> bool:
    spec, status = found["spec"], found.get("status", {})
    counts = [status.get(field, 0) for field in ("updatedReplicas", "replicas", "availableReplicas")]
    return status.get("observedGeneration", 0) >= found["metadata"]["generation"] and counts == [spec["replicas"]] * 3


def writes(trial: Trial) -> dict[str, Counter[str]]:
    """Count the engine's writes to Services and slices, by lower cluster, verb and resource."""
    found: dict[str, Counter[str]] = {}
    for lower in trial.lowers:
        records = audit.writes(trial.records(lower), AGENT, without=())
        ours = [one for one in records if one["objectRef"]["resource"] in ("services", "endpointslices")]
        done = [one for one in ours if one["responseStatus"]["code"] < HTTPStatus.MULTIPLE_CHOICES]
        found[lower] = Counter(f"{one['verb']} {one['objectRef']['resource']}" for one in done)
    return found


async def laid_out(trial: Trial, watched: Watched, names: list[str]) -> None:
    """Create the Services and their Deployments, and wait until all are ready and every lower slice is correct."""
    await trial.upper.call("POST", SERVICES, service(TAKEN))
    for name in names:
        await trial.upper.call("POST", SERVICES, service(name))
        await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), deployment(name, ENDPOINTS, grace=GRACE))
    await trial.wait_until_settled(len(names) * ENDPOINTS, ROLLED_IN)
    await until(watched.wait_until_settled, "slices are below", SETTLED_IN)


async def rolled(trial: Trial, watched: Watched, names: list[str], rounds: int) -> dict[str, Any]:
    """Run all rounds; return the measurements."""
    assert trial.engine is not None
    watched.begin()
    before, changes, used = writes(trial), watched.slices.changes, trial.engine.usage()
    for number in range(rounds):
        await roll(trial, names, number)
        await trial.wait_until_settled(len(names) * ENDPOINTS, ROLLED_IN)
        await until(watched.wait_until_settled, "slices are right", SETTLED_IN)
    after, now = writes(trial), trial.engine.usage()
    return {
        "changes_above": watched.slices.changes - changes,
        "writes": {lower: dict(after[lower] - before[lower]) for lower in trial.lowers},
        "lags": watched.lags(),
        "engine_cpu_s": round(now.cpu - used.cpu, 2),
        "engine_rss_mib": round(now.rss / 2**20, 1),
    }


def breaches(found: dict[str, Any]) -> list[str]:
    """Return which measurements are over their bar."""
    changed = found["changes_above"]
    broken = [
        f"{lower}: {verbs} for {changed} changes above"
        for lower, verbs in found["writes"].items()
        if sum(verbs.values()) > changed
    ]
    longest = {what: lags["longest_s"] for what, lags in found["lags"].items()}
    behind = {"slice": longest["slice"], "readiness": longest["readiness_below"] - longest["readiness_above"]}
    return [*broken, *(f"{what}: {late:.2f} s behind" for what, late in behind.items() if late > RIGHT_IN)]


async def rolls(trial: Trial, pods: int, rounds: int, *, cut: bool = False) -> dict[str, Any]:
    """Create everything and roll it out; with `cut` one lower cluster is cut off too. Return the result."""
    names = [f"s-{number}" for number in range(1, max(pods // ENDPOINTS, 1) + 1)]
    theirs = {lower: await strangers(site) for lower, site in trial.lowers.items()}
    await trial.start_engine_and_nodes()
    async with Watched(trial) as watched:
        await laid_out(trial, watched, names)
        found = await rolled(trial, watched, names, rounds)
        if cut:
            found["cut_off"] = await cut_off(trial, watched, len(names) * ENDPOINTS)
        stale = watched.slices.stale()
    touched = [lower for lower, site in trial.lowers.items() if await versions(site) != theirs[lower]]
    broken = [*stale, *(f"{lower}: something of others was touched" for lower in touched), *breaches(found)]
    return {"services": len(names), **found, "broken": broken}


async def cut_off(trial: Trial, watched: Watched, pods: int) -> dict[str, Any]:
    """Stop a lower cluster's apiserver until no endpoint of its pods is ready in the other one, and start it again.

    Its controllers are stopped too, because otherwise they would mark its nodes as failed, and kwok makes no pod ready
    a second time.
    """
    victim, other = list(trial.lowers)[:2]

    async def are_out() -> bool:
        """Report whether no upper pod of the cluster is ready, and the slices in the other one are correct."""
        bound = [
            one for one in await trial.upper.items(PODS.format(NAMESPACE)) if one["spec"].get("nodeName") == victim
        ]
        late = [failure for failure in watched.slices.stale() if failure.startswith(other)]
        return bool(bound) and not any(map(is_ready, bound)) and not late

    began = time.monotonic()
    for component in (CONTROLLERS, APISERVER):
        trial.sandbox.kill(victim, component)
    await until(are_out, f"no endpoint of {victim} is ready", AWAY_IN)
    seconds = time.monotonic() - began
    await asyncio.to_thread(trial.sandbox.restart, victim, APISERVER)
    back = time.monotonic()
    await asyncio.to_thread(trial.sandbox.restart, victim, CONTROLLERS)
    await trial.wait_until_settled(pods, ROLLED_IN)
    await until(watched.wait_until_settled, "slices are right again", SETTLED_IN)
    return {"out_s": round(seconds, 1), "back_s": round(time.monotonic() - back, 1)}


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Run with the options of the command line."""
    async with Trial(sandbox) as trial:
        result = await rolls(trial, args.pods, args.rounds, cut=True)
    print(" ".join(f"{key}={value}" for key, value in result.items()), flush=True)
    return result


if __name__ == "__main__":
    sys.exit(run("services", scenario, Options(), pods=1000, rounds=2, doc=__doc__ or ""))
