"""The ceiling: a bare loop with the fewest writes that a mirrored pod needs, as a reference for the engine.

    .venv/bin/python -m bench.speed.ceiling --sandbox DIRECTORY [--alike]

It registers a virtual node for each lower cluster and mirrors pods until it is ended. It checks, retries and recovers
nothing, owns nothing, and leaves out the objects that a pod refers to. So it shows the limit for any mirror on this
machine, and is not a design for one.

It also leaves out writes that the engine needs. The scheduler spreads a Deployment's pods over nodes with the label
`kubernetes.io/hostname`, which each kubelet and the engine set, and computes less for nodes without it. A lower pod of
the engine has ownership marks, an owner reference and its ServiceAccount, so it is larger. With `--alike` the loop's
nodes have that label, and its lower pods are those of the engine.
"""

import argparse
import asyncio
from collections.abc import Coroutine, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from bench.kit.sites import MERGE, NAMESPACES, NODE_LEASES, NODES, Manifest, Site
from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.names import VIRTUAL_POD, owner_of
from tensile.resources import add, parse_all, render_all
from tensile.sandbox.apiserver import RESOURCES
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

PREFIX = "ceiling-"
APPLY = "application/apply-patch+yaml"
RENEW, DURATION = 10.0, 40
AT_ONCE = "?gracePeriodSeconds=0"
OWNER = owner_of("the loop's upper cluster", "sandbox")


def room(nodes: Iterable[Manifest]) -> Manifest:
    """Return the total of what a lower cluster's nodes offer.

    If a scheduler had more, it would overfill one lower cluster.
    """
    total: dict[str, int] = {}
    for one in nodes:
        total = add(total, parse_all(one["status"]["allocatable"]))
    return render_all({name: total[name] for name in RESOURCES})


def node(name: str, offer: Manifest, *, alike: bool) -> Manifest:
    """Return a virtual node that is Ready from the start, with its name as the label of that name if `alike`."""
    labels = {"type": "virtual-kubelet"} | ({"kubernetes.io/hostname": name} if alike else {})
    ready = {"type": "Ready", "status": "True", "reason": "Up", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"capacity": offer, "allocatable": offer, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def lease(name: str, now: datetime) -> Manifest:
    """Return a node's lease as renewed at the given time."""
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": name, "leaseDurationSeconds": DURATION, "renewTime": renewed}
    meta = {"name": name, "namespace": "kube-node-lease"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def least_pod(pod: Manifest) -> Manifest:
    """Return the smallest pod that runs the same containers."""
    containers = [{key: one[key] for key in one if key != "volumeMounts"} for one in pod["spec"]["containers"]]
    meta = {"name": pod["metadata"]["name"], "labels": pod["metadata"].get("labels", {})}
    return {"metadata": meta, "spec": {"containers": containers, "automountServiceAccountToken": False}}


def collection(pod: Manifest) -> str:
    """Return the path of the pods of its namespace."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"


def itself(pod: Manifest) -> str:
    """Return the path of the pod."""
    return f"{collection(pod)}/{pod['metadata']['name']}"


class Ceiling:
    """The loop, over an upper site and the lower sites by the name of their node."""

    def __init__(self, upper: Site, lowers: dict[str, Site], *, alike: bool) -> None:
        self._upper = upper
        self._lowers = lowers
        self._alike = alike
        self._contexts: dict[tuple[str, str], LowerContext] = {}
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Register the nodes and mirror, until it is cancelled."""
        for name, lower in self._lowers.items():
            offer = room(await lower.items(NODES))
            await self._upper.call("POST", NODES, node(name, offer, alike=self._alike))
            for one in await lower.items(NAMESPACES) if self._alike else ():
                space, uid = one["metadata"]["name"], one["metadata"]["uid"]
                self._contexts[name, space] = LowerContext(OWNER, name, space, uid, identity="lower")
        followed = (self._follow_lower(lower) for lower in self._lowers.values())
        await asyncio.gather(self._beat(), self._follow_upper(), *followed)

    async def _beat(self) -> None:
        while True:
            for name in self._lowers:
                body = lease(name, datetime.now(UTC))
                await self._upper.call("PATCH", f"{NODE_LEASES}/{name}?fieldManager=ceiling&force=true", body, APPLY)
            await asyncio.sleep(RENEW)

    async def _follow_upper(self) -> None:
        async for event, pod in self._upper.watch("/api/v1/pods"):
            lower = self._lowers.get(pod["spec"].get("nodeName", ""))
            if lower is not None and event != "DELETED":
                self._upper_pod(lower, pod)

    def _upper_pod(self, lower: Site, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            if uid not in self._ended:
                self._ended.add(uid)
                self._start(lower.call("DELETE", itself(pod) + AT_ONCE))
        elif uid not in self._begun:
            self._begun.add(uid)
            place = self._contexts.get((pod["spec"]["nodeName"], pod["metadata"]["namespace"]))
            body = least_pod(pod) if place is None else to_lower_pod(pod, place)
            self._start(lower.call("POST", collection(pod), body))

    async def _follow_lower(self, lower: Site) -> None:
        async for event, pod in lower.watch("/api/v1/pods", f"labelSelector={VIRTUAL_POD}%3Dtrue"):
            if event == "DELETED":
                self._start(self._upper.call("DELETE", itself(pod) + AT_ONCE))
            elif "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running":
                status = {"status": pod["status"]}
                self._start(self._upper.call("PATCH", f"{itself(pod)}/status", status, MERGE))

    def _start(self, call: Coroutine[Any, Any, object]) -> None:
        """Start a request in the background; its outcome is ignored."""
        task = asyncio.ensure_future(call)
        self._running.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()


async def mirror(directory: Path, *, alike: bool) -> None:
    """Mirror between the clusters of a sandbox, until it is ended."""
    clusters = Sandbox.attach(directory).clusters
    lowers = {f"{PREFIX}{name}": Site(found) for name, found in clusters.items() if name != UPPER}
    await Ceiling(Site(clusters[UPPER]), lowers, alike=alike).run()


def main() -> None:
    """Parse the arguments and mirror."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sandbox", type=Path, required=True, help="the directory of a running sandbox")
    parser.add_argument(
        "--alike", action="store_true", help="write nodes and lower pods of the same size as the engine does"
    )
    args = parser.parse_args()
    uvloop.run(mirror(args.sandbox, alike=args.alike))


if __name__ == "__main__":
    main()
