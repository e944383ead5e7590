"""Tests of `onConflict: adopt` on real clusters.

Objects that lost their owner are adopted while they run, and objects of other owners are not touched.
"""

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from adoptionkit import nodes_taken, stored
from enginekit import A, Ground, standing, with_fields
from provisionkit import CLASSES, VOLUMES, serving
from sitekit import Manifest, condition_of, is_ready, phase_of
from storekit import claim, claims, is_bound, mark, shipped, using, volume_of

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
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start a topology with `onConflict: adopt`, whose namespace exists in lower-a already."""
    async with standing(sandbox, tmp_path_factory.mktemp("ground"), ADOPT) as made:
        await made.make_namespace(A, made.namespace)
        yield made


async def placed(ground: Ground, plural: str, name: str, body: Manifest, **meta: object) -> Manifest:
    """Create an object in lower-a as another client."""
    return await ground.sites[A].create(ground.path(plural), {"metadata": {"name": name, **meta}, **body})


async def made_above(ground: Ground) -> None:
    """Create a ConfigMap and a Secret in the upper cluster."""
    await ground.upper.create(ground.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"key": "ours"}})
    await ground.upper.create(ground.path("secrets"), {"metadata": {"name": "password"}, "data": {"key": "b3Vycw=="}})


async def test_objects_of_tensile_kube_are_adopted_without_a_restart_of_the_pod(ground: Ground) -> None:
    """The lower pod keeps its UID and start time, and the ConfigMap and the Secret get the upper content.

    When the upper pod is deleted, the engine deletes these lower objects too.
    """
    site = ground.sites[A]
    running = {"containers": [{"name": "main", "image": "app:1"}], "volumes": NEEDS["volumes"]}
    mark = {"annotations": {LEGACY: "true"}}
    settings = await placed(ground, "configmaps", "settings", {"data": {"key": "old"}}, **mark)
    await placed(ground, "secrets", "password", {"data": {"key": "b2xk"}, "immutable": True}, **mark)
    await placed(ground, "pods", "web", {"spec": running}, labels={VIRTUAL_POD: "true"})
    before = await site.until(ground.pod_path("web"), is_ready)
    await made_above(ground)
    pod = await ground.run_pod("web", NEEDS)
    after = await site.read(ground.pod_path("web"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["startTime"] == before["status"]["startTime"]
    assert after["metadata"]["annotations"][UPPER_UID] == pod["metadata"]["uid"]
    assert [one["kind"] for one in after["metadata"]["ownerReferences"]] == ["Namespace"]
    copy = await site.until(ground.path("configmaps", "settings"), lambda one: one["data"] == {"key": "ours"})
    assert copy["metadata"]["uid"] == settings["metadata"]["uid"]
    assert copy["metadata"]["labels"][OWNER] == ground.owner.mark
    await site.until(ground.path("secrets", "password"), lambda one: one and one["data"] == {"key": "b3Vycw=="})
    await ground.end_pods("web")
    await site.gone(ground.path("configmaps", "settings"), ground.path("secrets", "password"))


async def test_a_pod_with_a_different_image_is_not_adopted(ground: Ground) -> None:
    """The lower pod runs on untouched, and the condition of the upper pod names the difference."""
    other = {"spec": {"containers": [{"name": "main", "image": "other:1"}]}}
    await placed(ground, "pods", "other", other, labels={VIRTUAL_POD: "true"})
    before = await ground.sites[A].until(ground.pod_path("other"), is_ready)
    await ground.bind("other")
    pod = await ground.upper.until(ground.pod_path("other"), lambda one: condition_of(one, MIRRORED))
    assert "it is not adopted: container main has a different image" in condition_of(pod, MIRRORED)["message"]
    await ground.calm()
    assert (await ground.sites[A].read(ground.pod_path("other")))["metadata"] == before["metadata"]
    await ground.end_pods("other")
    await ground.sites[A].delete(ground.pod_path("other"), 0)


def plain(_ground: Ground) -> Manifest:
    """Return no metadata."""
    return {}


def other_upper(_ground: Ground) -> Manifest:
    """Return the marks of a topology of another upper cluster."""
    owner = owner_of("22222222-0000-4000-8000-000000000000", "prod")
    return {"labels": {OWNER: owner.mark}, "annotations": {UPPER_UID: "33333333-0000-4000-8000-000000000000"}}


@pytest.mark.parametrize("marks", [plain, other_upper])
async def test_unmarked_objects_and_objects_of_another_upper_cluster_are_not_adopted(
    ground: Ground, marks: Callable[[Ground], Manifest]
) -> None:
    """Another client may need them.

    They are adopted once the owner label is removed, or the annotation of tensile-kube is set on an unmarked object.
    """
    name = f"theirs-{marks.__name__.replace('_', '-')}"
    site, path = ground.sites[A], ground.path("configmaps", name)
    before = await placed(ground, "configmaps", name, {"data": {"key": "theirs"}}, **marks(ground))
    await ground.upper.create(ground.path("configmaps"), {"metadata": {"name": name}, "data": {"key": "ours"}})
    await ground.bind(name, {"volumes": [{"name": "c", "configMap": {"name": name}}]})
    pod = await ground.upper.until(ground.pod_path(name), lambda one: condition_of(one, MIRRORED))
    assert "it is not adopted" in condition_of(pod, MIRRORED)["message"]
    await ground.calm()
    assert await site.read(path) == before
    change = {"labels": {OWNER: None}} if marks is other_upper else {"annotations": {LEGACY: "true"}}
    await site.patch(path, {"metadata": change})
    await ground.upper.until(ground.pod_path(name), is_ready)
    taken = await site.read(path)
    assert taken["data"] == {"key": "ours"}
    assert taken["metadata"]["uid"] == before["metadata"]["uid"]
    await ground.end_pods(name)
    await site.gone(path)
    await ground.upper.delete(path)


async def test_the_uid_annotation_on_a_pod_with_another_image_does_not_make_it_adoptable(ground: Ground) -> None:
    """Every client that may create pods there can set the annotation, so the engine compares the spec too."""
    other = {"spec": {"containers": [{"name": "main", "image": "other:1"}], "schedulerName": "nobody"}}
    await ground.stop()
    upper = await ground.bind("forged")
    uid = upper["metadata"]["uid"]
    before = await placed(ground, "pods", "forged", other, annotations={UPPER_UID: uid}, labels={OWNER: "0" * 16})
    await ground.start(ADOPT)
    found = await ground.upper.until(ground.pod_path("forged"), lambda one: condition_of(one, MIRRORED))
    assert "container main has a different image" in condition_of(found, MIRRORED)["message"]
    await ground.calm()
    assert (await ground.sites[A].read(ground.pod_path("forged")))["metadata"] == before["metadata"]
    await ground.end_pods("forged")
    await ground.sites[A].delete(ground.pod_path("forged"), 0)


async def test_a_renamed_topology_adopts_the_objects_of_its_former_name(ground: Ground) -> None:
    """The nodes are adopted once no engine renews them; then the pod, its objects and its volume follow."""
    if not await ground.upper.read(ground.path("configmaps", "settings")):
        await made_above(ground)
    await ground.upper.create(CLASSES, shipped(mark(ground, "goes")))
    async with serving(ground.sites[A], mark(ground, "disk")):
        await has_storage_and_service(ground)
        await is_renamed(ground)
    await ground.upper.delete(f"{CLASSES}/{mark(ground, 'goes')}")


async def has_storage_and_service(ground: Ground) -> None:
    """Create a claim, an account and a Service in the upper cluster, and reload with the claim's class."""
    await ground.reload(ADOPT, stored(ground))
    await ground.upper.create(ground.path("serviceaccounts"), {"metadata": {"name": "robot"}})
    await ground.upper.create(claims(ground), claim(ground, "data"))
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    await ground.upper.create(ground.path("services"), service)


async def is_renamed(ground: Ground) -> None:
    """Run a pod, restart the engine under another name, and assert that everything is adopted.

    The pod keeps running.
    """
    site = ground.sites[A]
    needs = {"serviceAccountName": "robot", "volumes": [*NEEDS["volumes"], *using("data")["volumes"]]}
    await ground.run_pod("kept", needs, labels={"app": "web"})
    await ground.upper.until(claims(ground, "data"), is_bound)
    await site.until(ground.path("services", "web"), bool)
    before = await site.read(ground.pod_path("kept"))
    await ground.calm()
    await ground.stop()
    renamed = with_fields(name=f"{ground.namespace}-renamed", onConflict="adopt")
    await ground.start(renamed, stored(ground), await_nodes=False)
    await ground.calm()
    assert (await site.read(ground.pod_path("kept")))["metadata"] == before["metadata"]
    said = [problem.message for key, problem in ground.heard.problems if key.rule == "node"]
    assert any("another engine updates it" in one for one in said)
    owner = owner_of(ground.owner.upper, f"{ground.namespace}-renamed")
    await nodes_taken(ground, owner)
    for path in (ground.pod_path("kept"), *(ground.path(*place) for place in PLACES), claims(ground, "data")):
        await site.until(path, lambda one: one["metadata"]["labels"].get(OWNER) == owner.mark)
    volume = f"{VOLUMES}/{(await volume_of(ground, 'data'))['metadata']['name']}"
    await ground.upper.until(volume, lambda one: one["metadata"]["labels"][OWNER] == owner.mark)
    after = await site.read(ground.pod_path("kept"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await ground.calm()
    pod = await ground.upper.read(ground.pod_path("kept"))
    assert (phase_of(pod), is_ready(pod)) == ("Running", True)
    ground.owner = owner
    await gone_with_the_pod(ground, volume)


async def gone_with_the_pod(ground: Ground, volume: str) -> None:
    """Delete the pod and the claim, and wait until all copies and the placeholder volume are deleted."""
    await ground.end_pods("kept")
    await ground.upper.delete(claims(ground, "data"))
    await ground.sites[A].gone(*(ground.path(*place) for place in PLACES), claims(ground, "data"))
    await ground.upper.gone(volume)
