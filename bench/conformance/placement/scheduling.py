"""Builds a random cluster in a real one, and finds out where its real kube-scheduler would place a pod.

The controllers are suspended during a trial, so that only the trial changes objects.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from bench.conformance.placement.nodes import NAMESPACES, RandomCluster
from bench.conformance.placement.random_storage import DRIVER, TRACKED
from bench.conformance.placement.recorder import Recorder
from bench.kit.sites import MERGE, NODES, PODS, Refused, Site, until
from tensile.policy.placement.snapshot import Snapshot, snapshot_of, storage_of

Manifest = dict[str, Any]
STORAGE = "/apis/storage.k8s.io/v1"
CLASSES, CSI_NODES = f"{STORAGE}/storageclasses", f"{STORAGE}/csinodes"
ATTACHMENTS, DRIVERS = f"{STORAGE}/volumeattachments", f"{STORAGE}/csidrivers"
CAPACITIES = f"{STORAGE}/namespaces/default/csistoragecapacities"
VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/namespaces/{}/persistentvolumeclaims"
HOME = "main"
SETTLED = 0.5
"""Seconds until the scheduler has received all objects: it has a separate watch for each kind."""
LIMIT = 60.0
AT_ONCE = 16


class Answer(NamedTuple):
    """The scheduler's answer for a pod: the nodes that it found, and its message."""

    pod: Manifest
    found: frozenset[str]
    message: str


class SchedulingCluster:
    """The cluster; `recorder` is the extender of its scheduler."""

    def __init__(self, site: Site, recorder: Recorder) -> None:
        self._site = site
        self._recorder = recorder

    async def prepare(self) -> None:
        """Create the objects that stay: namespaces, of which each gets its ServiceAccount, and the CSI drivers."""
        for name in NAMESPACES:
            labels = {"kind": name}
            await self._made("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
            accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
            await until(partial(self._site.items, accounts), f"{name} has its account", LIMIT)
        for name in (DRIVER, TRACKED):
            spec = {"storageCapacity": name == TRACKED, "attachRequired": True}
            await self._made(DRIVERS, {"metadata": {"name": name}, "spec": spec})

    async def build(self, place: RandomCluster) -> Snapshot:
        """Create the objects of a random cluster, and return the snapshot of it that placement uses."""
        shelf = place.random_storage
        plain = {CLASSES: shelf.classes, CSI_NODES: shelf.nodes, ATTACHMENTS: shelf.attachments}
        await _each(place.nodes, self._node)
        for path, manifests in {**plain, CAPACITIES: shelf.capacities}.items():
            await _each(manifests, lambda one, path=path: self._made(path, one))
        await _each(shelf.volumes, lambda one: self._stored(VOLUMES, one))
        await _each(shelf.claims, lambda one: self._stored(CLAIMS.format(HOME), one))
        await _each(place.pods, self._resident)
        await asyncio.sleep(SETTLED)
        return await self.seen()

    async def seen(self) -> Snapshot:
        """Read the cluster as the engine would."""
        paths = {
            "claims": CLAIMS.format(HOME),
            "volumes": VOLUMES,
            "classes": CLASSES,
            "csi_nodes": CSI_NODES,
            "attachments": ATTACHMENTS,
            "drivers": DRIVERS,
            "capacities": CAPACITIES,
        }
        storage = storage_of(**{name: await self._site.items(path) for name, path in paths.items()})
        pods = await self._site.items("/api/v1/pods")
        return snapshot_of(await self._site.items(NODES), pods, await self._site.items("/api/v1/namespaces"), storage)

    async def schedule(self, seekers: Iterable[Manifest]) -> list[Answer]:
        """Let the scheduler find nodes for these pods, of which it gets none, and delete the pods again."""
        made = [await self._pod(one) for one in seekers]
        names = {one["metadata"]["name"] for one in made}
        messages: dict[str, str] = {}

        async def have_all_messages() -> bool:
            """Report whether the scheduler has set a message on each pod."""
            pods = await self._site.items("/api/v1/pods?fieldSelector=spec.nodeName=")
            messages.update({pod["metadata"]["name"]: _message(pod) for pod in pods if _message(pod)})
            return names <= messages.keys()

        await until(have_all_messages, "the scheduler has looked at every pod", LIMIT)
        await _each(made, self._gone)
        found = self._recorder.found
        return [
            Answer(one, found.get(one["metadata"]["uid"], frozenset()), messages[one["metadata"]["name"]])
            for one in made
        ]

    async def clear(self, place: RandomCluster) -> None:
        """Delete all objects of one random cluster."""
        shelf = place.random_storage
        await _each(await self._site.items("/api/v1/pods"), self._gone)
        everything = {
            NODES: place.nodes,
            CLASSES: shelf.classes,
            CSI_NODES: shelf.nodes,
            ATTACHMENTS: shelf.attachments,
            CAPACITIES: shelf.capacities,
            CLAIMS.format(HOME): shelf.claims,
            VOLUMES: shelf.volumes,
        }
        for path, manifests in everything.items():
            await _each(manifests, lambda one, path=path: self._site.delete(f"{path}/{one['metadata']['name']}"))

    async def _made(self, path: str, manifest: Manifest) -> Manifest:
        try:
            return await self._site.call("POST", path, manifest)
        except Refused as error:
            raise Refused(error.status, f"{error}: {manifest}") from None

    async def _stored(self, path: str, manifest: Manifest) -> None:
        """Create an object with a status and without finalizers."""
        await self._made(path, manifest)
        one = f"{path}/{manifest['metadata']['name']}"
        await self._site.call("PATCH", one, {"metadata": {"finalizers": None}}, MERGE)
        await self._site.call("PATCH", f"{one}/status", {"status": manifest["status"]}, MERGE)

    async def _node(self, manifest: Manifest) -> None:
        """Create a node with exactly the intended taints."""
        await self._made(NODES, manifest)
        one = f"{NODES}/{manifest['metadata']['name']}"
        await self._site.call("PATCH", one, {"spec": {"taints": manifest["spec"]["taints"]}}, MERGE)

    async def _pod(self, manifest: Manifest) -> Manifest:
        return await self._made(PODS.format(manifest["metadata"]["namespace"]), manifest)

    async def _resident(self, manifest: Manifest) -> None:
        """Create a pod on its node, and bring it to the intended phase or make it terminating."""
        made = await self._pod(manifest)
        path = f"{PODS.format(made['metadata']['namespace'])}/{made['metadata']['name']}"
        if manifest["status"]:
            await self._site.call("PATCH", f"{path}/status", {"status": manifest["status"]}, MERGE)
        if manifest["metadata"].get("finalizers"):
            await self._site.delete(path)

    async def _gone(self, pod: Manifest) -> None:
        """Delete a pod, also one with finalizers."""
        path = f"{PODS.format(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
        if pod["metadata"].get("finalizers"):
            await self._site.call("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
        await self._site.delete(f"{path}?gracePeriodSeconds=0")


def _message(pod: Manifest) -> str:
    """Return the scheduler's message on a pod, "" while there is none."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")


async def _each(manifests: Iterable[Manifest], make: Callable[[Manifest], Awaitable[object]]) -> None:
    """Call a function for each manifest, several at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(manifest: Manifest) -> None:
        """Wait for a free slot, and call the function."""
        async with gate:
            await make(manifest)

    await asyncio.gather(*(one(manifest) for manifest in manifests))
