"""Objects that a tenant of a lower cluster can forge in a namespace, with tensile's marks and field manager.

Only the request distinguishes a forged object from one of the engine: here an administrator sends it, with
`fieldManager=tensile-kube` if the forger uses that name.
"""

from typing import Any, Literal

from enginekit import EngineHarness
from sitekit import Manifest, Site

from tensile.names import FIELD_MANAGER, OWNER, OWNER_NAME, UPPER_UID

Marks = Literal["label", "all"]
HOLD = "example.com/hold"
BY_US = f"fieldManager={FIELD_MANAGER}"


def forged_metadata(harness: EngineHarness, upper_uid: str, marks: Marks = "all", **meta: Any) -> Manifest:
    """Return metadata with the marks of a harness's engine: the label alone, or all that the engine would write."""
    labels = {OWNER: harness.owner.mark, **meta.pop("labels", {})}
    notes = {OWNER_NAME: harness.owner.name, UPPER_UID: upper_uid} if marks == "all" else {}
    return {**meta, "labels": labels, "annotations": {**notes, **meta.pop("annotations", {})}}


async def create_forged_pod(
    harness: EngineHarness,
    site: Site,
    namespace: str,
    name: str,
    upper_uid: str,
    *,
    marks: Marks = "all",
    spec: Manifest | None = None,
    **meta: Any,
) -> Manifest:
    """Create a lower pod with forged marks and return it."""
    basis = {"containers": [{"name": "main", "image": "app:1"}], **(spec or {})}
    body = {"metadata": forged_metadata(harness, upper_uid, marks, name=name, **meta), "spec": basis}
    return await site.create(f"{harness.path('pods', namespace=namespace)}?{BY_US}", body)


async def create_forged_object(
    harness: EngineHarness, site: Site, path: str, upper_uid: str, body: Manifest, **meta: Any
) -> Manifest:
    """Create another object with all forged marks in a collection and return it."""
    return await site.create(f"{path}?{BY_US}", {**body, "metadata": forged_metadata(harness, upper_uid, **meta)})


async def remove_finalizers(site: Site, path: str) -> None:
    """Remove the finalizers of an object."""
    await site.patch(path, {"metadata": {"finalizers": None}})
