"""A namespace to compare a cluster's answers: the same one in memory and in a real control plane."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson

from tensile.errors import ClusterError, NotFound
from tensile.kube.cluster import Cluster, Patch, Selection
from tensile.objects import CONFIG_MAP, NAMESPACE, NODE, POD, SERVICE_ACCOUNT, Kind, Manifest, Ref

FINALIZER = "example.com/hold"
STRANGER = "11111111-2222-4333-8444-555555555555"
TIME = "%Y-%m-%dT%H:%M:%SZ"
ROOM = {"cpu": "64", "pods": "100"}
_WAIT = 20


@dataclass(frozen=True)
class ClusterUnderTest:
    """A cluster with a namespace for the test, and a node without a kubelet."""

    cluster: Cluster
    namespace: str
    node: str

    def ref(self, name: str, kind: Kind = CONFIG_MAP, namespace: str = "") -> Ref:
        """Make the reference to an object of the namespace."""
        space = (namespace or self.namespace) if kind.namespaced else ""
        return Ref(self.cluster.name, kind, space, name)

    async def create(self, ref: Ref, meta: Manifest | None = None, **more: Any) -> Manifest:
        """Create an object, and return it as stored."""
        return decoded(await self.cluster.create(ref, {"metadata": {"name": ref.name, **(meta or {})}, **more}))

    async def pod(self, name: str, *, bound: bool = True, meta: Manifest | None = None, **spec: Any) -> Manifest:
        """Create a pod of two containers that no kubelet runs."""
        containers = [{"name": one, "image": f"{one}:1"} for one in ("main", "side")]
        place = {"nodeName": self.node} if bound else {"schedulerName": "nobody"}
        basis = {"containers": containers, "tolerations": [{"operator": "Exists"}], **place}
        return await self.create(self.ref(name, POD), meta, spec={**basis, **spec})

    async def read(self, ref: Ref) -> Manifest:
        """Read an object."""
        return decoded(await self.cluster.read(ref))

    async def json_patch(self, seen: Manifest, ref: Ref, *operations: Manifest) -> Manifest:
        """Send a JSON patch with the object's UID, as the engine does."""
        fence = {"op": "replace", "path": "/metadata/uid", "value": seen["metadata"]["uid"]}
        return decoded(await self.cluster.patch(ref, Patch("json-patch", [fence, *operations])))

    async def strategic_merge_patch(self, seen: Manifest, ref: Ref, subresource: str = "", **body: Any) -> Manifest:
        """Send a strategic merge patch with the object's UID, as the engine does."""
        meta = {"uid": seen["metadata"]["uid"], **body.pop("metadata", {})}
        patch = Patch("strategic-merge-patch", {"metadata": meta, **body})
        return decoded(await self.cluster.patch(ref, patch, subresource))

    async def delete(self, seen: Manifest, ref: Ref, grace: int | None = None) -> Manifest:
        """Delete an object, and return the answer."""
        return decoded(await self.cluster.delete(ref, uid=seen["metadata"]["uid"], grace=grace))

    async def is_deleted(self, ref: Ref) -> bool:
        """Report whether the object does not exist."""
        try:
            await self.cluster.read(ref)
        except NotFound:
            return True
        return False


def decoded(raw: bytes) -> Manifest:
    """Decode an answer."""
    found: Manifest = orjson.loads(raw)
    return found


def version_of(manifest: Manifest) -> str:
    """Return an object's resourceVersion."""
    return str(manifest["metadata"]["resourceVersion"])


def error_fields(error: ClusterError) -> tuple[int, str, tuple[str, ...]]:
    """Return all parts of an error that decisions may depend on."""
    return (error.status, error.reason, error.causes)


@asynccontextmanager
async def prepared_namespace(cluster: Cluster) -> AsyncIterator[ClusterUnderTest]:
    """Create the namespace and the node, and delete them with all objects at the end."""
    mark = uuid4().hex[:8]
    cluster_under_test = ClusterUnderTest(cluster, f"rehearsal-{mark}", f"rehearsal-{mark}")
    space = await cluster_under_test.create(cluster_under_test.ref(cluster_under_test.namespace, NAMESPACE))
    node = await cluster_under_test.create(
        cluster_under_test.ref(cluster_under_test.node, NODE), status={"capacity": ROOM, "allocatable": ROOM}
    )
    await _account(cluster_under_test)
    try:
        yield cluster_under_test
    finally:
        for kind in (POD, CONFIG_MAP):
            await _emptied(cluster_under_test, kind)
        await cluster_under_test.delete(node, cluster_under_test.ref(cluster_under_test.node, NODE))
        await cluster_under_test.delete(space, cluster_under_test.ref(cluster_under_test.namespace, NAMESPACE))


async def _account(cluster_under_test: ClusterUnderTest) -> None:
    """Wait until pods can be created in the namespace."""
    selection = Selection(cluster_under_test.namespace, fields="metadata.name=default")
    listing = await cluster_under_test.cluster.list(SERVICE_ACCOUNT, selection)
    if not listing.items:
        await anext(cluster_under_test.cluster.watch(SERVICE_ACCOUNT, selection, listing.version, _WAIT))


async def _emptied(cluster_under_test: ClusterUnderTest, kind: Kind) -> None:
    """Delete the test's objects, including those with finalizers."""
    for raw in (await cluster_under_test.cluster.list(kind, Selection(cluster_under_test.namespace))).items:
        found = decoded(raw)
        ref = cluster_under_test.ref(found["metadata"]["name"], kind)
        await cluster_under_test.cluster.patch(ref, Patch("merge-patch", {"metadata": {"finalizers": None}}))
        if not await cluster_under_test.is_deleted(ref):
            await cluster_under_test.delete(found, ref, grace=0)
