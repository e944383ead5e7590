"""Storage for tests: the shipped upper class, a provisioner in each lower, and claims and pods that use them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import yaml
from enginekit import LOWERS, TOLERATION, EngineHarness, edit_lower
from provisionkit import CLASSES, VOLUMES, Provisioner, serving
from sitekit import Manifest, Refused

from tensile.names import LOWER

APPS = "apis/apps/v1"
SHIPPED = Path(__file__).parents[2] / "manifests" / "storageclass.yaml"
Store = dict[str, Provisioner]


def class_name(harness: EngineHarness, role: str) -> str:
    """Return a name for a storage class that is unique to the test."""
    return f"{role}-{harness.mark}"


def shipped_class(name: str) -> Manifest:
    """Return the storage class of the manifests, under a name of the test."""
    found: Manifest = yaml.safe_load(SHIPPED.read_text())
    return {**found, "metadata": {"name": name}}


@asynccontextmanager
async def storage_classes(harness: EngineHarness) -> AsyncIterator[Store]:
    """Create two upper classes, one that retains volumes, mapped to a lower class; yield each lower's provisioner."""
    for word, policy in (("goes", "Delete"), ("stays", "Retain")):
        await harness.upper.create(CLASSES, {**shipped_class(class_name(harness, word)), "reclaimPolicy": policy})
    classes = {class_name(harness, word): class_name(harness, "disk") for word in ("goes", "stays")}
    async with AsyncExitStack() as stack:
        made = {
            name: await stack.enter_async_context(serving(harness.sites[name], class_name(harness, "disk")))
            for name in LOWERS
        }
        await harness.reload(*(edit_lower(name, storageClasses=classes) for name in LOWERS))
        yield made
        await _cleared(harness)
    for word in ("goes", "stays"):
        await harness.upper.delete(f"{CLASSES}/{class_name(harness, word)}")


async def _cleared(harness: EngineHarness) -> None:
    """Delete everything that tests left, so that lower clusters are empty when the engine ends."""
    for volume in await placeholders(harness):
        patch = {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}
        with suppress(Refused):
            await harness.upper.patch(f"{VOLUMES}/{volume['metadata']['name']}", patch)
    await harness.upper.delete(harness.path("statefulsets", api=APPS) + "?propagationPolicy=Background")
    await harness.upper.delete(harness.path("pods"), 0)
    await harness.upper.delete(claims(harness))
    await harness.upper.until_all(
        f"{VOLUMES}?labelSelector=tensile-kube.io/owner={harness.owner.mark}", lambda found: not found
    )


async def placeholders(harness: EngineHarness) -> list[Manifest]:
    """Return every upper volume that this engine created."""
    found = await harness.upper.read(f"{VOLUMES}?labelSelector=tensile-kube.io/owner={harness.owner.mark}")
    items: list[Manifest] = found["items"]
    return items


def claims(harness: EngineHarness, name: str = "") -> str:
    """Return the path of the namespace's claims, or of one."""
    return harness.path("persistentvolumeclaims", name)


def claim(harness: EngineHarness, name: str, role: str = "goes", size: str = "1Gi") -> Manifest:
    """Make a claim of one of the two classes."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class_name(harness, role),
        "resources": {"requests": {"storage": size}},
    }
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def spec_with_claims(*names: str) -> Manifest:
    """Make the part of a pod's spec that uses claims."""
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in names]
    return {"volumes": volumes, "containers": [{"name": "main", "image": "app:1", "volumeMounts": mounts}]}


async def create_scheduled_pod(harness: EngineHarness, name: str, spec: Manifest, lower: str = "") -> None:
    """Create a pod that the stock upper scheduler binds to any virtual node, or to that of `lower`."""
    selector = {"e2e": harness.mark, **({"clusterID": lower} if lower else {})}
    basis = {"nodeSelector": selector, "tolerations": [TOLERATION]}
    await harness.upper.create(harness.path("pods"), {"metadata": {"name": name}, "spec": {**basis, **spec}})


def is_bound(found: Manifest) -> bool:
    """Report whether a claim or a volume is bound."""
    return bool(found.get("status", {}).get("phase") == "Bound")


async def volume_of(harness: EngineHarness, name: str) -> Manifest:
    """Return the upper volume of a bound claim."""
    bound = await harness.upper.until(claims(harness, name), is_bound)
    return await harness.upper.read(f"{VOLUMES}/{bound['spec']['volumeName']}")


def lower_of(volume: Manifest) -> str:
    """Return the lower that has the data of a volume."""
    return str(volume["metadata"]["annotations"][LOWER])
