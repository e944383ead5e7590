"""A real cluster made to look like a random one, and its real kube-scheduler asked where a pod would go.

Its controllers stand still meanwhile, so that nothing changes but by our hand.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from bench.conformance.placement.nodes import NAMESPACES, RandomCluster
from bench.conformance.placement.recorder import Recorder
from bench.conformance.placement.storage import DRIVER, TRACKED
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
"""Seconds in which the scheduler has heard of everything: each kind comes to it on a watch of its own."""
LIMIT = 60.0
AT_ONCE = 16


class Answer(NamedTuple):
    """What the scheduler said of a pod: the nodes that it found, and its message."""

    pod: Manifest
    found: frozenset[str]
    message: str


class Stage:
    """The cluster; `recorder` is asked by its scheduler."""

    def __init__(self, site: Site, recorder: Recorder) -> None:
        self._site = site
        self._recorder = recorder

    async def prepare(self) -> None:
        """Make what stays: namespaces, in which a controller makes the account of pods, and the drivers."""
        for name in NAMESPACES:
            labels = {"kind": name}
            await self._made("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
            accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
            await until(partial(self._site.items, accounts), f"{name} has its account", LIMIT)
        for name in (DRIVER, TRACKED):
            spec = {"storageCapacity": name == TRACKED, "attachRequired": True}
            await self._made(DRIVERS, {"metadata": {"name": name}, "spec": spec})

    async def build(self, place: RandomCluster) -> Snapshot:
        """Make a cluster like this, and give what we see of it."""
        shelf = place.shelf
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

    async def ask(self, seekers: Iterable[Manifest]) -> list[Answer]:
        """Let the scheduler look for nodes for these pods, none of which it gets, and delete them again."""
        made = [await self._pod(one) for one in seekers]
        names = {one["metadata"]["name"] for one in made}
        told: dict[str, str] = {}

        async def all_told() -> bool:
            """Report whether the scheduler has said something of each."""
            pods = await self._site.items("/api/v1/pods?fieldSelector=spec.nodeName=")
            told.update({pod["metadata"]["name"]: _message(pod) for pod in pods if _message(pod)})
            return names <= told.keys()

        await until(all_told, "the scheduler has looked at every pod", LIMIT)
        await _each(made, self._gone)
        found = self._recorder.found
        return [
            Answer(one, found.get(one["metadata"]["uid"], frozenset()), told[one["metadata"]["name"]]) for one in made
        ]

    async def clear(self, place: RandomCluster) -> None:
        """Take everything away that belongs to one cluster."""
        shelf = place.shelf
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
        """Make an object with a status, that nothing protects from being deleted."""
        await self._made(path, manifest)
        one = f"{path}/{manifest['metadata']['name']}"
        await self._site.call("PATCH", one, {"metadata": {"finalizers": None}}, MERGE)
        await self._site.call("PATCH", f"{one}/status", {"status": manifest["status"]}, MERGE)

    async def _node(self, manifest: Manifest) -> None:
        """Make a node with the taints that it shall have, and no others."""
        await self._made(NODES, manifest)
        one = f"{NODES}/{manifest['metadata']['name']}"
        await self._site.call("PATCH", one, {"spec": {"taints": manifest["spec"]["taints"]}}, MERGE)

    async def _pod(self, manifest: Manifest) -> Manifest:
        return await self._made(PODS.format(manifest["metadata"]["namespace"]), manifest)

    async def _resident(self, manifest: Manifest) -> None:
        """Make a pod on its node, as far in its life as it shall be."""
        made = await self._pod(manifest)
        path = f"{PODS.format(made['metadata']['namespace'])}/{made['metadata']['name']}"
        if manifest["status"]:
            await self._site.call("PATCH", f"{path}/status", {"status": manifest["status"]}, MERGE)
        if manifest["metadata"].get("finalizers"):
            await self._site.delete(path)

    async def _gone(self, pod: Manifest) -> None:
        """Take a pod away, whatever holds it."""
        path = f"{PODS.format(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
        if pod["metadata"].get("finalizers"):
            await self._site.call("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
        await self._site.delete(f"{path}?gracePeriodSeconds=0")


def _message(pod: Manifest) -> str:
    """Return what the scheduler said of a pod, "" while it has said nothing."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")


async def _each(manifests: Iterable[Manifest], make: Callable[[Manifest], Awaitable[object]]) -> None:
    """Do something for each, some at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(manifest: Manifest) -> None:
        """Wait for a place first."""
        async with gate:
            await make(manifest)

    await asyncio.gather(*(one(manifest) for manifest in manifests))
