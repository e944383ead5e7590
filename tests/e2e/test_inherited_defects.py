"""Tests on real clusters of defects of tensile-kube that affect its users.

The numbers are those of the project's list of these defects. The others are tested with their subject: changes (1, 12),
references (13, 14), Services, the webhook, the descheduler and the scheduler.
"""

import pytest
from enginekit import A, EngineHarness, edit_lower, running_engine, with_fields
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


async def provided(harness: EngineHarness, name: str, value: str = "b3Vycw==") -> None:
    """Create an upper ConfigMap and an upper Secret of a name."""
    for plural in ("configmaps", "secrets"):
        await harness.upper.create(harness.path(plural), {"metadata": {"name": name}, "data": {"key": value}})


async def strangers(harness: EngineHarness, name: str) -> list[Manifest]:
    """Create a ConfigMap and a Secret of that name in lower-a as another client."""
    if not await harness.sites[A].read(f"/api/v1/namespaces/{harness.namespace}"):
        await harness.make_namespace(A, harness.namespace)
    body = {"metadata": {"name": name}, "data": {"key": "dGhlaXJz"}}
    return [await harness.sites[A].create(harness.path(plural), body) for plural in ("configmaps", "secrets")]


async def both(harness: EngineHarness, name: str) -> list[Manifest]:
    """Read the ConfigMap and the Secret of a name in lower-a."""
    return [await harness.sites[A].read(harness.path(plural, name)) for plural in ("configmaps", "secrets")]


async def runs(harness: EngineHarness, name: str, spec: Manifest | None = None, **meta: object) -> Manifest:
    """Bind an upper pod, and return its lower pod once the upper one is ready."""
    await harness.run_pod(name, spec, **meta)
    return await harness.sites[A].read(harness.pod_path(name))


async def advertises(harness: EngineHarness, resource: str, amount: str) -> None:
    """Assert that the first virtual node has this much allocatable, once the engine is idle."""
    await harness.wait_idle()
    found = await harness.upper.read(f"/api/v1/nodes/{harness.nodes[A]}")
    assert found["status"]["allocatable"][resource] == amount


async def test_defect_2_a_start_overwrites_no_objects_of_other_owners(harness: EngineHarness) -> None:
    """Objects with the name of an upper object, such as `kube-root-ca.crt`, stay unchanged, with and without a pod."""
    await strangers(harness, "taken")
    await provided(harness, "taken")
    root = harness.path("configmaps", "kube-root-ca.crt")
    await harness.sites[A].until(root, bool)
    before = [*await both(harness, "taken"), await harness.sites[A].read(root)]
    await harness.stop()
    await harness.start()
    await harness.wait_idle()
    await harness.bind("taken", volumes("taken"))
    await harness.upper.until(
        harness.pod_path("taken"), lambda one: condition_of(one, MIRRORED).get("reason") == "NameConflict"
    )
    await harness.wait_idle()
    assert [*await both(harness, "taken"), await harness.sites[A].read(root)] == before
    await harness.end_pods("taken")


async def test_defect_3_a_deletion_of_upper_objects_deletes_no_lower_objects_of_other_owners(
    harness: EngineHarness,
) -> None:
    """The lower objects of that name are kept after the deletion of the upper ones and after a restart."""
    before = await strangers(harness, "kept")
    await provided(harness, "kept")
    await harness.bind("kept", volumes("kept"))
    await harness.upper.until(harness.pod_path("kept"), lambda one: condition_of(one, MIRRORED))
    await harness.end_pods("kept")
    for plural in ("configmaps", "secrets"):
        await harness.upper.delete(harness.path(plural, "kept"))
    await harness.wait_idle()
    await harness.stop()
    await harness.start()
    await harness.wait_idle()
    assert await both(harness, "kept") == before


async def test_defect_6_two_topologies_share_a_lower_namespace_without_deleting_each_others_pods(
    harness: EngineHarness, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both engines restart and collect garbage, and each one's pods stay."""
    await provided(harness, "shared")
    mine = await runs(harness, "mine", volumes("shared"))
    async with running_engine(sandbox, tmp_path_factory.mktemp("second")) as second:
        pods = harness.path("pods")
        await second.upper.create(pods, second.pod("theirs"))
        await second.upper.until(f"{pods}/theirs", is_ready)
        theirs = await harness.sites[A].read(f"{pods}/theirs")
        for one in (harness, second):
            await one.stop()
            await one.start()
            await one.wait_idle()
        assert (await harness.sites[A].read(f"{pods}/mine"))["metadata"]["uid"] == mine["metadata"]["uid"]
        assert (await harness.sites[A].read(f"{pods}/theirs"))["metadata"]["uid"] == theirs["metadata"]["uid"]
        await harness.end_pods("mine")
        await harness.wait_idle()
        assert (await harness.sites[A].read(f"{pods}/theirs"))["metadata"]["uid"] == theirs["metadata"]["uid"]
        await harness.end_pods("theirs")


async def test_defect_7_capacity_does_not_depend_on_the_history_of_pods(harness: EngineHarness) -> None:
    """A mirrored pod is not subtracted from allocatable, because the upper scheduler counts it.

    A restart does not change that. The test uses a resource that no pod of another test requests, because those pods
    are created and deleted at the same time.
    """
    free = edit_lower(A, capacity={"basis": "free"})
    device = f"example.com/{harness.mark}"
    lower = (await harness.sites[A].read("/api/v1/nodes"))["items"][0]["metadata"]["name"]
    offer = f"/api/v1/nodes/{lower}/status"
    await harness.sites[A].patch(offer, {"status": {"capacity": {device: "5"}, "allocatable": {device: "5"}}})
    await harness.reload(free)
    node = f"/api/v1/nodes/{harness.nodes[A]}"
    await harness.upper.until(node, lambda found: found["status"]["allocatable"].get(device) == "5")
    demand = {"requests": {device: "3"}, "limits": {device: "3"}}
    await runs(harness, "demanding", {"containers": [{"name": "main", "image": "app:1", "resources": demand}]})
    await advertises(harness, device, "5")
    await harness.stop()
    await harness.start(free)
    await advertises(harness, device, "5")
    await harness.end_pods("demanding")
    await advertises(harness, device, "5")
    await harness.sites[A].patch(offer, {"status": {"capacity": {device: None}, "allocatable": {device: None}}})
    await harness.reload()


async def test_defect_15_a_pod_that_is_not_mirrored_reports_the_reason_and_can_be_deleted(
    harness: EngineHarness,
) -> None:
    """A pod in kube-system is Pending with reason NamespaceExcluded, rather than indefinitely without a reason."""
    name = f"left-{harness.mark}"
    path = harness.path("pods", name, namespace="kube-system")
    await harness.upper.create(harness.path("pods", namespace="kube-system"), harness.pod(name))
    pod = await harness.upper.until(path, lambda one: condition_of(one, MIRRORED))
    assert (phase_of(pod), pod["status"]["reason"]) == ("Pending", "NamespaceExcluded")
    assert condition_of(pod, SYNCED) == {}
    assert await harness.sites[A].read(path) == {}
    await harness.upper.delete(path)
    await harness.upper.gone(path)


async def test_defect_16_objects_that_were_deleted_while_no_engine_ran_cause_no_error(harness: EngineHarness) -> None:
    """Upper and lower objects were deleted; the engine cleans up the rest, and no rule raises an error."""
    await provided(harness, "unseen")
    await runs(harness, "unseen", volumes("unseen"))
    await harness.stop()
    for site in (harness.upper, harness.sites[A]):
        await site.delete(harness.path("configmaps", "unseen"))
    await harness.sites[A].delete(harness.path("secrets", "unseen"))
    await harness.upper.delete(harness.pod_path("unseen"), 0)
    await harness.start(with_fields(guard={"maxDeletes": 20}))
    await harness.sites[A].gone(harness.pod_path("unseen"), harness.path("secrets", "unseen"))
    assert harness.loop_recorder.defects == []
