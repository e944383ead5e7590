"""Tests of `onConflict: adopt` on real clusters.

Objects that lost their owner are adopted while they run, and objects of other owners are not touched.
"""

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from adoptionkit import map_storage_class, wait_for_adoption
from enginekit import A, EngineHarness, running_engine, with_fields
from provisionkit import CLASSES, VOLUMES, serving
from sitekit import Manifest, condition_of, is_ready, phase_of
from storekit import claim, claims, class_name, is_bound, shipped_class, spec_with_claims, volume_of

from tensile.names import LEGACY, MIRRORED, OWNER, UPPER_UID, VIRTUAL_POD, owner_of
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ADOPT = with_fields(onConflict="adopt")
NEEDS: Manifest = {
    "volumes": [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "password", "secret": {"secretName": "password"}},
    ]
}
PLACES = (("configmaps", "settings"), ("secrets", "password"), ("serviceaccounts", "robot"), ("services", "web"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start a topology with `onConflict: adopt`, whose namespace exists in lower-a already."""
    async with running_engine(sandbox, tmp_path_factory.mktemp("ground"), ADOPT) as harness:
        await harness.make_namespace(A, harness.namespace)
        yield harness


async def placed(harness: EngineHarness, plural: str, name: str, body: Manifest, **meta: object) -> Manifest:
    """Create an object in lower-a as another client."""
    return await harness.sites[A].create(harness.path(plural), {"metadata": {"name": name, **meta}, **body})


async def made_above(harness: EngineHarness) -> None:
    """Create a ConfigMap and a Secret in the upper cluster."""
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"key": "ours"}})
    await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "password"}, "data": {"key": "b3Vycw=="}})


async def test_objects_of_tensile_kube_are_adopted_without_a_restart_of_the_pod(harness: EngineHarness) -> None:
    """The lower pod keeps its UID and start time, and the ConfigMap and the Secret get the upper content.

    When the upper pod is deleted, the engine deletes these lower objects too.
    """
    site = harness.sites[A]
    running = {"containers": [{"name": "main", "image": "app:1"}], "volumes": NEEDS["volumes"]}
    mark = {"annotations": {LEGACY: "true"}}
    settings = await placed(harness, "configmaps", "settings", {"data": {"key": "old"}}, **mark)
    await placed(harness, "secrets", "password", {"data": {"key": "b2xk"}, "immutable": True}, **mark)
    await placed(harness, "pods", "web", {"spec": running}, labels={VIRTUAL_POD: "true"})
    before = await site.until(harness.pod_path("web"), is_ready)
    await made_above(harness)
    pod = await harness.run_pod("web", NEEDS)
    after = await site.read(harness.pod_path("web"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["startTime"] == before["status"]["startTime"]
    assert after["metadata"]["annotations"][UPPER_UID] == pod["metadata"]["uid"]
    assert [one["kind"] for one in after["metadata"]["ownerReferences"]] == ["Namespace"]
    copy = await site.until(harness.path("configmaps", "settings"), lambda one: one["data"] == {"key": "ours"})
    assert copy["metadata"]["uid"] == settings["metadata"]["uid"]
    assert copy["metadata"]["labels"][OWNER] == harness.owner.mark
    await site.until(harness.path("secrets", "password"), lambda one: one and one["data"] == {"key": "b3Vycw=="})
    await harness.end_pods("web")
    await site.gone(harness.path("configmaps", "settings"), harness.path("secrets", "password"))


async def test_a_pod_with_a_different_image_is_not_adopted(harness: EngineHarness) -> None:
    """The lower pod runs on untouched, and the condition of the upper pod names the difference."""
    other = {"spec": {"containers": [{"name": "main", "image": "other:1"}]}}
    await placed(harness, "pods", "other", other, labels={VIRTUAL_POD: "true"})
    before = await harness.sites[A].until(harness.pod_path("other"), is_ready)
    await harness.bind("other")
    pod = await harness.upper.until(harness.pod_path("other"), lambda one: condition_of(one, MIRRORED))
    assert "it is not adopted: container main has a different image" in condition_of(pod, MIRRORED)["message"]
    await harness.wait_idle()
    assert (await harness.sites[A].read(harness.pod_path("other")))["metadata"] == before["metadata"]
    await harness.end_pods("other")
    await harness.sites[A].delete(harness.pod_path("other"), 0)


def plain(_ground: EngineHarness) -> Manifest:
    """Return no metadata."""
    return {}


def other_upper(_ground: EngineHarness) -> Manifest:
    """Return the marks of a topology of another upper cluster."""
    owner = owner_of("22222222-0000-4000-8000-000000000000", "prod")
    return {"labels": {OWNER: owner.mark}, "annotations": {UPPER_UID: "33333333-0000-4000-8000-000000000000"}}


@pytest.mark.parametrize("marks", [plain, other_upper])
async def test_unmarked_objects_and_objects_of_another_upper_cluster_are_not_adopted(
    harness: EngineHarness, marks: Callable[[EngineHarness], Manifest]
) -> None:
    """Another client may need them.

    They are adopted once the owner label is removed, or the annotation of tensile-kube is set on an unmarked object.
    """
    name = f"theirs-{marks.__name__.replace('_', '-')}"
    site, path = harness.sites[A], harness.path("configmaps", name)
    before = await placed(harness, "configmaps", name, {"data": {"key": "theirs"}}, **marks(harness))
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": name}, "data": {"key": "ours"}})
    await harness.bind(name, {"volumes": [{"name": "c", "configMap": {"name": name}}]})
    pod = await harness.upper.until(harness.pod_path(name), lambda one: condition_of(one, MIRRORED))
    assert "it is not adopted" in condition_of(pod, MIRRORED)["message"]
    await harness.wait_idle()
    assert await site.read(path) == before
    change = {"labels": {OWNER: None}} if marks is other_upper else {"annotations": {LEGACY: "true"}}
    await site.patch(path, {"metadata": change})
    await harness.upper.until(harness.pod_path(name), is_ready)
    taken = await site.read(path)
    assert taken["data"] == {"key": "ours"}
    assert taken["metadata"]["uid"] == before["metadata"]["uid"]
    await harness.end_pods(name)
    await site.gone(path)
    await harness.upper.delete(path)


async def test_the_uid_annotation_on_a_pod_with_another_image_does_not_make_it_adoptable(
    harness: EngineHarness,
) -> None:
    """Every client that may create pods there can set the annotation, so the engine compares the spec too."""
    other = {"spec": {"containers": [{"name": "main", "image": "other:1"}], "schedulerName": "nobody"}}
    await harness.stop()
    upper = await harness.bind("forged")
    uid = upper["metadata"]["uid"]
    before = await placed(harness, "pods", "forged", other, annotations={UPPER_UID: uid}, labels={OWNER: "0" * 16})
    await harness.start(ADOPT)
    found = await harness.upper.until(harness.pod_path("forged"), lambda one: condition_of(one, MIRRORED))
    assert "container main has a different image" in condition_of(found, MIRRORED)["message"]
    await harness.wait_idle()
    assert (await harness.sites[A].read(harness.pod_path("forged")))["metadata"] == before["metadata"]
    await harness.end_pods("forged")
    await harness.sites[A].delete(harness.pod_path("forged"), 0)


async def test_a_renamed_topology_adopts_the_objects_of_its_former_name(harness: EngineHarness) -> None:
    """The nodes are adopted once no engine renews them; then the pod, its objects and its volume follow."""
    if not await harness.upper.read(harness.path("configmaps", "settings")):
        await made_above(harness)
    await harness.upper.create(CLASSES, shipped_class(class_name(harness, "goes")))
    async with serving(harness.sites[A], class_name(harness, "disk")):
        await has_storage_and_service(harness)
        await is_renamed(harness)
    await harness.upper.delete(f"{CLASSES}/{class_name(harness, 'goes')}")


async def has_storage_and_service(harness: EngineHarness) -> None:
    """Create a claim, an account and a Service in the upper cluster, and reload with the claim's class."""
    await harness.reload(ADOPT, map_storage_class(harness))
    await harness.upper.create(harness.path("serviceaccounts"), {"metadata": {"name": "robot"}})
    await harness.upper.create(claims(harness), claim(harness, "data"))
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    await harness.upper.create(harness.path("services"), service)


async def is_renamed(harness: EngineHarness) -> None:
    """Run a pod, restart the engine under another name, and assert that everything is adopted.

    The pod keeps running.
    """
    site = harness.sites[A]
    needs = {"serviceAccountName": "robot", "volumes": [*NEEDS["volumes"], *spec_with_claims("data")["volumes"]]}
    await harness.run_pod("kept", needs, labels={"app": "web"})
    await harness.upper.until(claims(harness, "data"), is_bound)
    await site.until(harness.path("services", "web"), bool)
    before = await site.read(harness.pod_path("kept"))
    await harness.wait_idle()
    await harness.stop()
    renamed = with_fields(name=f"{harness.namespace}-renamed", onConflict="adopt")
    await harness.start(renamed, map_storage_class(harness), await_nodes=False)
    await harness.wait_idle()
    assert (await site.read(harness.pod_path("kept")))["metadata"] == before["metadata"]
    messages = [problem.message for key, problem in harness.loop_recorder.problems if key.rule == "node"]
    assert any("another engine updates it" in one for one in messages)
    owner = owner_of(harness.owner.upper, f"{harness.namespace}-renamed")
    await wait_for_adoption(harness, owner)
    for path in (harness.pod_path("kept"), *(harness.path(*place) for place in PLACES), claims(harness, "data")):
        await site.until(path, lambda one: one["metadata"]["labels"].get(OWNER) == owner.mark)
    volume = f"{VOLUMES}/{(await volume_of(harness, 'data'))['metadata']['name']}"
    await harness.upper.until(volume, lambda one: one["metadata"]["labels"][OWNER] == owner.mark)
    after = await site.read(harness.pod_path("kept"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await harness.wait_idle()
    pod = await harness.upper.read(harness.pod_path("kept"))
    assert (phase_of(pod), is_ready(pod)) == ("Running", True)
    harness.owner = owner
    await gone_with_the_pod(harness, volume)


async def gone_with_the_pod(harness: EngineHarness, volume: str) -> None:
    """Delete the pod and the claim, and wait until all copies and the placeholder volume are deleted."""
    await harness.end_pods("kept")
    await harness.upper.delete(claims(harness, "data"))
    await harness.sites[A].gone(*(harness.path(*place) for place in PLACES), claims(harness, "data"))
    await harness.upper.gone(volume)
