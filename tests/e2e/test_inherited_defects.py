"""Tests on real clusters of defects of tensile-kube that affect its users.

The numbers are those of the project's list of these defects. The others are tested with their subject: changes (1, 12),
references (13, 14), Services, the webhook, the descheduler and the scheduler.
"""

import pytest
from enginekit import A, Ground, edit_lower, standing, with_fields
from sitekit import Manifest, condition_of, is_ready, phase_of

from tensile.names import MIRRORED, SYNCED
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


def volumes(name: str) -> Manifest:
    """Return the part of a pod's spec that refers to a ConfigMap and a Secret of a name."""
    return {
        "volumes": [
            {"name": "c", "configMap": {"name": name}},
            {"name": "s", "secret": {"secretName": name}},
        ]
    }


async def provided(ground: Ground, name: str, value: str = "b3Vycw==") -> None:
    """Create an upper ConfigMap and an upper Secret of a name."""
    for plural in ("configmaps", "secrets"):
        await ground.upper.create(ground.path(plural), {"metadata": {"name": name}, "data": {"key": value}})


async def strangers(ground: Ground, name: str) -> list[Manifest]:
    """Create a ConfigMap and a Secret of that name in lower-a as another client."""
    if not await ground.sites[A].read(f"/api/v1/namespaces/{ground.namespace}"):
        await ground.make_namespace(A, ground.namespace)
    body = {"metadata": {"name": name}, "data": {"key": "dGhlaXJz"}}
    return [await ground.sites[A].create(ground.path(plural), body) for plural in ("configmaps", "secrets")]


async def both(ground: Ground, name: str) -> list[Manifest]:
    """Read the ConfigMap and the Secret of a name in lower-a."""
    return [await ground.sites[A].read(ground.path(plural, name)) for plural in ("configmaps", "secrets")]


async def runs(ground: Ground, name: str, spec: Manifest | None = None, **meta: object) -> Manifest:
    """Bind an upper pod, and return its lower pod once the upper one is ready."""
    await ground.run_pod(name, spec, **meta)
    return await ground.sites[A].read(ground.pod_path(name))


async def advertises(ground: Ground, resource: str, amount: str) -> None:
    """Assert that the first virtual node has this much allocatable, once the engine is idle."""
    await ground.calm()
    found = await ground.upper.read(f"/api/v1/nodes/{ground.nodes[A]}")
    assert found["status"]["allocatable"][resource] == amount


async def test_defect_2_a_start_overwrites_no_objects_of_other_owners(ground: Ground) -> None:
    """Objects with the name of an upper object, such as `kube-root-ca.crt`, stay unchanged, with and without a pod."""
    await strangers(ground, "taken")
    await provided(ground, "taken")
    root = ground.path("configmaps", "kube-root-ca.crt")
    await ground.sites[A].until(root, bool)
    before = [*await both(ground, "taken"), await ground.sites[A].read(root)]
    await ground.stop()
    await ground.start()
    await ground.calm()
    await ground.bind("taken", volumes("taken"))
    await ground.upper.until(
        ground.pod_path("taken"), lambda one: condition_of(one, MIRRORED).get("reason") == "NameConflict"
    )
    await ground.calm()
    assert [*await both(ground, "taken"), await ground.sites[A].read(root)] == before
    await ground.end_pods("taken")


async def test_defect_3_a_deletion_of_upper_objects_deletes_no_lower_objects_of_other_owners(ground: Ground) -> None:
    """The lower objects of that name are kept after the deletion of the upper ones and after a restart."""
    before = await strangers(ground, "kept")
    await provided(ground, "kept")
    await ground.bind("kept", volumes("kept"))
    await ground.upper.until(ground.pod_path("kept"), lambda one: condition_of(one, MIRRORED))
    await ground.end_pods("kept")
    for plural in ("configmaps", "secrets"):
        await ground.upper.delete(ground.path(plural, "kept"))
    await ground.calm()
    await ground.stop()
    await ground.start()
    await ground.calm()
    assert await both(ground, "kept") == before


async def test_defect_6_two_topologies_share_a_lower_namespace_without_deleting_each_others_pods(
    ground: Ground, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both engines restart and collect garbage, and each one's pods stay."""
    await provided(ground, "shared")
    mine = await runs(ground, "mine", volumes("shared"))
    async with standing(sandbox, tmp_path_factory.mktemp("second")) as second:
        pods = ground.path("pods")
        await second.upper.create(pods, second.pod("theirs"))
        await second.upper.until(f"{pods}/theirs", is_ready)
        theirs = await ground.sites[A].read(f"{pods}/theirs")
        for one in (ground, second):
            await one.stop()
            await one.start()
            await one.calm()
        assert (await ground.sites[A].read(f"{pods}/mine"))["metadata"]["uid"] == mine["metadata"]["uid"]
        assert (await ground.sites[A].read(f"{pods}/theirs"))["metadata"]["uid"] == theirs["metadata"]["uid"]
        await ground.end_pods("mine")
        await ground.calm()
        assert (await ground.sites[A].read(f"{pods}/theirs"))["metadata"]["uid"] == theirs["metadata"]["uid"]
        await ground.end_pods("theirs")


async def test_defect_7_capacity_does_not_depend_on_the_history_of_pods(ground: Ground) -> None:
    """A mirrored pod is not subtracted from allocatable, because the upper scheduler counts it.

    A restart does not change that. The test uses a resource that no pod of another test requests, because those pods
    are created and deleted at the same time.
    """
    free = edit_lower(A, capacity={"basis": "free"})
    device = f"example.com/{ground.mark}"
    lower = (await ground.sites[A].read("/api/v1/nodes"))["items"][0]["metadata"]["name"]
    offer = f"/api/v1/nodes/{lower}/status"
    await ground.sites[A].patch(offer, {"status": {"capacity": {device: "5"}, "allocatable": {device: "5"}}})
    await ground.reload(free)
    node = f"/api/v1/nodes/{ground.nodes[A]}"
    await ground.upper.until(node, lambda found: found["status"]["allocatable"].get(device) == "5")
    demand = {"requests": {device: "3"}, "limits": {device: "3"}}
    await runs(ground, "demanding", {"containers": [{"name": "main", "image": "app:1", "resources": demand}]})
    await advertises(ground, device, "5")
    await ground.stop()
    await ground.start(free)
    await advertises(ground, device, "5")
    await ground.end_pods("demanding")
    await advertises(ground, device, "5")
    await ground.sites[A].patch(offer, {"status": {"capacity": {device: None}, "allocatable": {device: None}}})
    await ground.reload()


async def test_defect_15_a_pod_that_is_not_mirrored_reports_the_reason_and_can_be_deleted(ground: Ground) -> None:
    """A pod in kube-system is Pending with reason NamespaceExcluded, rather than indefinitely without a reason."""
    name = f"left-{ground.mark}"
    path = ground.path("pods", name, namespace="kube-system")
    await ground.upper.create(ground.path("pods", namespace="kube-system"), ground.pod(name))
    pod = await ground.upper.until(path, lambda one: condition_of(one, MIRRORED))
    assert (phase_of(pod), pod["status"]["reason"]) == ("Pending", "NamespaceExcluded")
    assert condition_of(pod, SYNCED) == {}
    assert await ground.sites[A].read(path) == {}
    await ground.upper.delete(path)
    await ground.upper.gone(path)


async def test_defect_16_objects_that_were_deleted_while_no_engine_ran_cause_no_error(ground: Ground) -> None:
    """Upper and lower objects were deleted; the engine cleans up the rest, and no rule raises an error."""
    await provided(ground, "unseen")
    await runs(ground, "unseen", volumes("unseen"))
    await ground.stop()
    for site in (ground.upper, ground.sites[A]):
        await site.delete(ground.path("configmaps", "unseen"))
    await ground.sites[A].delete(ground.path("secrets", "unseen"))
    await ground.upper.delete(ground.pod_path("unseen"), 0)
    await ground.start(with_fields(guard={"maxDeletes": 20}))
    await ground.sites[A].gone(ground.pod_path("unseen"), ground.path("secrets", "unseen"))
    assert ground.heard.defects == []
