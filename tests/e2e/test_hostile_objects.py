"""Objects that an apiserver takes from whoever may write some, made to be hard to read: they cost only themselves.

Each is written by an administrator here; a tenant with `edit` in one namespace may write the same.
"""

from typing import Any

import orjson
import pytest
from enginekit import A, Ground, edit_lower
from sitekit import Manifest, is_ready

from tensile.names import OWNER

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ZEROS = "0" * 90
DEEP = 3_000
UNBURIED = {"metadata": {"managedFields": [{}]}}


async def runs(ground: Ground, name: str) -> None:
    """See a pod that is made now run through the lower, and its status come back."""
    await ground.bind(name)
    await ground.upper.until(ground.pod_path(name), is_ready)


async def stranger(ground: Ground, name: str, spec: Manifest | None = None, **meta: Any) -> Manifest:
    """Have somebody make a pod in the lower, on no node that runs it; it has a finalizer if it is to stay."""
    if not await ground.sites[A].read(f"/api/v1/namespaces/{ground.namespace}"):
        await ground.make_namespace(A, ground.namespace)
    basis = {"nodeName": "nowhere", "containers": [{"name": "main", "image": "app:1"}]}
    body = {"metadata": {"name": name, **meta}, "spec": {**basis, **(spec or {})}}
    return await ground.sites[A].create(ground.path("pods"), body)


async def gone(ground: Ground, *names: str) -> None:
    """See strangers off, whatever holds them."""
    for name in names:
        await ground.sites[A].patch(ground.pod_path(name), {"metadata": {"finalizers": None, **UNBURIED["metadata"]}})
        await ground.sites[A].delete(ground.pod_path(name), 0)


async def buried(ground: Ground, cluster: str, pod: str) -> None:
    """Have somebody write a pod whose book-keeping nests as deep as an apiserver takes it."""
    fields = orjson.Fragment(b'{"f:a":' * DEEP + b"{}" + b"}" * DEEP)
    book = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}
    body = orjson.dumps({"metadata": {"managedFields": [book]}}).decode()
    done = await ground.kubectl(
        "patch", "pod", pod, "--type=merge", "--patch-file=/dev/stdin", cluster=cluster, stdin=body
    )
    assert done.code == 0, done.err


async def test_book_keeping_that_nests_without_end_hides_nothing(ground: Ground) -> None:
    """On a pod above and on a stranger's below: both clusters are followed on, and the pod itself is."""
    await runs(ground, "deep-above")
    await stranger(ground, "deep-below", labels={OWNER: ground.owner.mark})
    await buried(ground, "upper", "deep-above")
    await buried(ground, A, "deep-below")
    await runs(ground, "after-deep")
    assert (await ground.kubectl("label", "pod", "deep-above", "is=read")).code == 0
    await ground.sites[A].until(ground.pod_path("deep-above"), lambda pod: pod["metadata"]["labels"]["is"] == "read")
    await ground.upper.patch(ground.pod_path("deep-above"), UNBURIED)
    await gone(ground, "deep-below")


async def test_an_amount_with_many_zeros_hides_nothing(ground: Ground) -> None:
    """A stranger's pod on a node of the lower, and one above: what is offered is still worked out."""
    asks = {"containers": [{"name": "main", "image": "app:1", "resources": {"requests": {"memory": f"{ZEROS}1Gi"}}}]}
    (node, *_) = sorted(one["metadata"]["name"] for one in (await ground.sites[A].read("/api/v1/nodes"))["items"])
    await ground.reload(edit_lower(A, capacity={"basis": "free"}))
    virtual = f"/api/v1/nodes/{ground.nodes[A]}"
    before = (await ground.upper.read(virtual))["status"]["allocatable"]["memory"]
    await stranger(ground, "zeros-below", {**asks, "nodeName": node})
    await ground.bind("zeros-above", asks)
    await ground.upper.until(ground.pod_path("zeros-above"), is_ready)
    await ground.upper.until(virtual, lambda one: one["status"]["allocatable"]["memory"] != before)
    await runs(ground, "after-zeros")
    await gone(ground, "zeros-below")
    await ground.reload()
