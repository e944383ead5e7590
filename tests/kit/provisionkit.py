"""A small provisioner of local volumes for a lower cluster, which the sandbox does not have.

It does what a driver's provisioner and resizer do in the API (creates a volume for a claim, deletes it by its policy,
lets it grow) with an administrator's rights. No disk is behind it, and kwok's pods mount nothing: the API, the
schedulers and the volume controllers of Kubernetes on both sides are real.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from sitekit import Manifest, Refused, Site
from tasks import background

CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"
SELECTED = "volume.kubernetes.io/selected-node"
_RESIZED = {"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": "2026-03-01T12:00:00Z"}


class Provisioner:
    """A provisioner of one storage class; `destroyed` are the names of the volumes whose data it deleted."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.name = name
        self.destroyed: list[str] = []

    async def register(self, **fields: Any) -> None:
        """Create the storage class, with WaitForFirstConsumer and expansion; `fields` replace its own."""
        basis = {
            "metadata": {"name": self.name},
            "provisioner": f"example.com/{self.name}",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": True,
        }
        await self.site.create(CLASSES, {**basis, **fields})

    async def run(self) -> None:
        """Serve until it is canceled."""
        await asyncio.gather(self._each(CLAIMS, self._claim), self._each(VOLUMES, self._volume))

    async def _each(self, collection: str, serve: Any) -> None:
        while True:
            async for objects in self.site.followed(collection):
                for one in objects.values():
                    if one["spec"].get("storageClassName") == self.name:
                        with suppress(Refused):
                            await serve(one)

    async def _claim(self, claim: Manifest) -> None:
        """Create a volume for a claim that waits for one, or expand the volume of a bound claim."""
        wanted = claim["spec"]["resources"]["requests"]["storage"]
        notes = claim["metadata"].get("annotations", {})
        if not claim["spec"].get("volumeName"):
            if notes.get(PROVISIONER) == f"example.com/{self.name}":
                await self._make(claim, notes.get(SELECTED))
        elif claim["status"].get("capacity", {}).get("storage") not in (None, wanted):
            await self.site.patch(f"{VOLUMES}/{claim['spec']['volumeName']}", _sized({"storage": wanted}))
            status = {"capacity": {"storage": wanted}, "conditions": [_RESIZED]}
            await self.site.patch(_path(claim) + "/status", {"status": status})

    async def _make(self, claim: Manifest, node: str | None) -> None:
        """Create a volume on the selected node, or for all nodes if the class binds immediately."""
        meta, spec = claim["metadata"], claim["spec"]
        policy = (await self.site.read(f"{CLASSES}/{self.name}"))["reclaimPolicy"]
        there = {"operator": "In", "values": [node]} if node else {"operator": "Exists"}
        here = {"key": "kubernetes.io/hostname", **there}
        holder = {"kind": "PersistentVolumeClaim", **{field: meta[field] for field in ("namespace", "name", "uid")}}
        body = {
            "metadata": {
                "name": f"made-{meta['uid']}",
                "annotations": {"pv.kubernetes.io/provisioned-by": f"example.com/{self.name}"},
            },
            "spec": {
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "accessModes": spec["accessModes"],
                "storageClassName": self.name,
                "persistentVolumeReclaimPolicy": policy,
                "claimRef": {"apiVersion": "v1", **holder},
                "local": {"path": f"/disks/{meta['uid']}"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        }
        await self.site.create(VOLUMES, body)

    async def _volume(self, volume: Manifest) -> None:
        """Delete a released volume and its data, if its policy is Delete."""
        spec, name = volume["spec"], volume["metadata"]["name"]
        if volume["status"].get("phase") == "Released" and spec["persistentVolumeReclaimPolicy"] == "Delete":
            if name not in self.destroyed:
                self.destroyed.append(name)
            await self.site.delete(f"{VOLUMES}/{name}")


@asynccontextmanager
async def serving(site: Site, name: str, **fields: Any) -> AsyncIterator[Provisioner]:
    """Serve a storage class while the block runs, and delete all of its objects afterwards."""
    provisioner = Provisioner(site, name)
    await provisioner.register(**fields)
    try:
        async with background(provisioner.run()):
            yield provisioner
    finally:
        await site.delete(f"{CLASSES}/{name}")
        await _swept(site, name)


async def _swept(site: Site, name: str) -> None:
    """Delete every claim and volume of a class that is left."""
    for collection in (CLAIMS, VOLUMES):
        for one in (await site.read(collection))["items"]:
            if one["spec"].get("storageClassName") == name:
                path = _path(one) if collection == CLAIMS else f"{VOLUMES}/{one['metadata']['name']}"
                await site.delete(path)


def _sized(capacity: Manifest) -> Manifest:
    return {"spec": {"capacity": capacity}}


def _path(claim: Manifest) -> str:
    meta = claim["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}"
