"""Storage for tests: the shipped upper class, a provisioner in each lower, and claims and pods that use them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import yaml
from enginekit import LOWERS, TOLERATION, Ground, edit_lower
from provisionkit import CLASSES, VOLUMES, Provisioner, serving
from sitekit import Manifest, Refused

from tensile.names import LOWER

APPS = "apis/apps/v1"
SHIPPED = Path(__file__).parents[2] / "manifests" / "storageclass.yaml"
Store = dict[str, Provisioner]


def mark(ground: Ground, word: str) -> str:
    """Return a name for a storage class that is unique to the test."""
    return f"{word}-{ground.mark}"


def shipped(name: str) -> Manifest:
    """Return the storage class of the manifests, under a name of the test."""
    found: Manifest = yaml.safe_load(SHIPPED.read_text())
    return {**found, "metadata": {"name": name}}


@asynccontextmanager
async def stocked(ground: Ground) -> AsyncIterator[Store]:
    """Create two upper classes, one that retains volumes, mapped to a lower class; yield each lower's provisioner."""
    for word, policy in (("goes", "Delete"), ("stays", "Retain")):
        await ground.upper.create(CLASSES, {**shipped(mark(ground, word)), "reclaimPolicy": policy})
    classes = {mark(ground, word): mark(ground, "disk") for word in ("goes", "stays")}
    async with AsyncExitStack() as stack:
        made = {
            name: await stack.enter_async_context(serving(ground.sites[name], mark(ground, "disk"))) for name in LOWERS
        }
        await ground.reload(*(edit_lower(name, storageClasses=classes) for name in LOWERS))
        yield made
        await _cleared(ground)
    for word in ("goes", "stays"):
        await ground.upper.delete(f"{CLASSES}/{mark(ground, word)}")


async def _cleared(ground: Ground) -> None:
    """Delete everything that tests left, so that lower clusters are empty when the engine ends."""
    for volume in await placeholders(ground):
        patch = {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}
        with suppress(Refused):
            await ground.upper.patch(f"{VOLUMES}/{volume['metadata']['name']}", patch)
    await ground.upper.delete(ground.path("statefulsets", api=APPS) + "?propagationPolicy=Background")
    await ground.upper.delete(ground.path("pods"), 0)
    await ground.upper.delete(claims(ground))
    await ground.upper.until_all(
        f"{VOLUMES}?labelSelector=tensile-kube.io/owner={ground.owner.mark}", lambda found: not found
    )


async def placeholders(ground: Ground) -> list[Manifest]:
    """Return every upper volume that this engine created."""
    found = await ground.upper.read(f"{VOLUMES}?labelSelector=tensile-kube.io/owner={ground.owner.mark}")
    items: list[Manifest] = found["items"]
    return items


def claims(ground: Ground, name: str = "") -> str:
    """Return the path of the namespace's claims, or of one."""
    return ground.path("persistentvolumeclaims", name)


def claim(ground: Ground, name: str, word: str = "goes", size: str = "1Gi") -> Manifest:
    """Make a claim of one of the two classes."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": mark(ground, word),
        "resources": {"requests": {"storage": size}},
    }
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def using(*names: str) -> Manifest:
    """Make the part of a pod's spec that uses claims."""
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in names]
    return {"volumes": volumes, "containers": [{"name": "main", "image": "app:1", "volumeMounts": mounts}]}


async def scheduled(ground: Ground, name: str, spec: Manifest, lower: str = "") -> None:
    """Create a pod that the stock upper scheduler binds to any virtual node, or to that of `lower`."""
    selector = {"e2e": ground.mark, **({"clusterID": lower} if lower else {})}
    basis = {"nodeSelector": selector, "tolerations": [TOLERATION]}
    await ground.upper.create(ground.path("pods"), {"metadata": {"name": name}, "spec": {**basis, **spec}})


def is_bound(found: Manifest) -> bool:
    """Report whether a claim or a volume is bound."""
    return bool(found.get("status", {}).get("phase") == "Bound")


async def volume_of(ground: Ground, name: str) -> Manifest:
    """Return the upper volume of a bound claim."""
    bound = await ground.upper.until(claims(ground, name), is_bound)
    return await ground.upper.read(f"{VOLUMES}/{bound['spec']['volumeName']}")


def lower_of(volume: Manifest) -> str:
    """Return the lower that has the data of a volume."""
    return str(volume["metadata"]["annotations"][LOWER])
