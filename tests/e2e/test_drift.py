"""Tests of changes that other clients make to the engine's objects.

Content is reverted, and an object that loses its marks is no longer the engine's.
"""

import pytest
from enginekit import A, Ground
from sitekit import Manifest, condition_of, is_ready, phase_of

from tensile.names import MIRRORED, OWNER, SYNCED, UPPER_UID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

BOTH = {"configMap": {"name": "settings"}}


async def running(ground: Ground, name: str) -> Manifest:
    """Run a pod that refers to a ConfigMap, and return its lower pod."""
    if not await ground.upper.read(ground.path("configmaps", "settings")):
        body = {"metadata": {"name": "settings"}, "data": {"key": "value"}}
        await ground.upper.create(ground.path("configmaps"), body)
    await ground.run_pod(name, {"volumes": [{"name": "settings", **BOTH}]}, labels={"app": name})
    return await ground.sites[A].until(ground.pod_path(name), is_ready)


async def test_an_edited_copy_is_reverted(ground: Ground) -> None:
    """Changed data get the upper value again, added keys are removed, and a DriftReverted Event names the fields.

    An edit of the upper ConfigMap is not counted as drift.
    """
    await running(ground, "reader")
    path = ground.path("configmaps", "settings")
    before = await ground.sites[A].read(path)
    await ground.sites[A].patch(path, {"data": {"key": "edited", "more": "added"}})
    after = await ground.sites[A].until(path, lambda one: one["data"] == {"key": "value"})
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    original = await ground.upper.read(path)
    what, _, rest = (await ground.told(original, "DriftReverted")).partition(" (")
    assert what == f"another client changed ConfigMap {ground.namespace}/settings in lower cluster {A}"
    fields, _, remedy = rest.partition("): ")
    assert set(fields.split(", ")) == {"data.key", "data.more"}
    assert remedy == "the engine puts it back; change the upper ConfigMap instead"
    assert ground.engine.loop.drift.counts[A, "ConfigMap"] == 1
    await ground.upper.patch(path, {"data": {"key": "of the upper cluster"}})
    await ground.sites[A].until(path, lambda one: one["data"] == {"key": "of the upper cluster"})
    await ground.upper.patch(path, {"data": {"key": "value"}})
    await ground.sites[A].until(path, lambda one: one["data"] == {"key": "value"})
    await ground.engine.loop.wait_idle()
    assert ground.engine.loop.drift.counts[A, "ConfigMap"] == 1, "an edit of the original is no drift"
    await ground.end_pods("reader")


async def test_a_deleted_copy_is_recreated(ground: Ground) -> None:
    """A lower ConfigMap to which a pod refers is created again, and the pod runs on."""
    below = await running(ground, "holder")
    path = ground.path("configmaps", "settings")
    before = await ground.sites[A].read(path)
    await ground.sites[A].delete(path)
    await ground.sites[A].until(path, lambda one: one and one["metadata"]["uid"] != before["metadata"]["uid"])
    after = await ground.sites[A].read(ground.pod_path("holder"))
    assert after["metadata"]["uid"] == below["metadata"]["uid"]
    await ground.end_pods("holder")


async def test_a_changed_emptied_or_immutable_secret_is_reverted(ground: Ground) -> None:
    """Data, labels and immutability of the lower Secret are those of the upper Secret again."""
    path, site = ground.path("secrets", "password"), ground.sites[A]
    body = {"metadata": {"name": "password", "labels": {"team": "web"}}, "data": {"key": "dmFsdWU="}}
    await ground.upper.create(ground.path("secrets"), body)
    await ground.run_pod("keeper", {"volumes": [{"name": "p", "secret": {"secretName": "password"}}]})

    def is_as_above(one: Manifest) -> bool:
        """Report whether content and label are those of the upper Secret."""
        meta = one.get("metadata", {"labels": {}})
        return (one.get("data"), one.get("immutable"), meta["labels"].get("team")) == (body["data"], None, "web")

    for change in (
        {"data": {"key": "ZWRpdGVk", "more": "YWRkZWQ="}},
        {"data": None},
        {"metadata": {"labels": {"team": "edited"}}},
        {"data": {"key": "ZWRpdGVk"}, "immutable": True},
        {"immutable": True},
    ):
        changed = await site.patch(path, change)
        version = changed["metadata"]["resourceVersion"]
        await site.until(
            path,
            lambda one, version=version: one and one["metadata"]["resourceVersion"] != version and is_as_above(one),
        )
    await ground.end_pods("keeper")


async def test_lower_changes_that_cannot_be_reverted_are_reported_on_the_upper_pod(ground: Ground) -> None:
    """A deadline and a toleration on the lower pod are permanent, so a condition and an Event name them."""
    await running(ground, "limited")
    site, path = ground.sites[A], ground.pod_path("limited")
    found = await site.read(path)
    tolerations = [*found["spec"]["tolerations"], {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    await site.patch(path, {"spec": {"activeDeadlineSeconds": 100000, "tolerations": tolerations}})
    pod = await ground.upper.until(path, lambda one: condition_of(one, SYNCED))
    said = condition_of(pod, SYNCED)
    assert (said["status"], said["reason"]) == ("False", "ModifiedInLower")
    assert said["message"].endswith("activeDeadlineSeconds is 100000, toleration of gpu added")
    assert await ground.told(pod, "ModifiedInLower") == said["message"]
    assert is_ready(pod)
    await ground.calm()
    await ground.note()
    await ground.calm()
    assert await ground.writes() == []
    await ground.end_pods("limited")


async def test_labels_of_an_engine_namespace_are_reverted(ground: Ground) -> None:
    """The lower namespace gets the Pod Security label of the upper one again."""
    await running(ground, "guarded")
    enforce = "pod-security.kubernetes.io/warn"
    above = f"/api/v1/namespaces/{ground.namespace}"
    await ground.upper.patch(above, {"metadata": {"labels": {enforce: "baseline"}}})
    await ground.sites[A].until(above, lambda one: one["metadata"]["labels"].get(enforce) == "baseline")
    await ground.sites[A].patch(above, {"metadata": {"labels": {enforce: "privileged"}}})
    await ground.sites[A].until(above, lambda one: one["metadata"]["labels"].get(enforce) == "baseline")
    await ground.upper.patch(above, {"metadata": {"labels": {enforce: None}}})
    await ground.end_pods("guarded")


async def test_a_deleted_node_is_recreated_and_its_pods_are_kept(ground: Ground) -> None:
    """The pods keep their UIDs in both clusters after `kubectl delete node`."""
    below = await running(ground, "steady")
    above = await ground.upper.read(ground.pod_path("steady"))
    node = f"/api/v1/nodes/{ground.nodes[A]}"
    before = await ground.upper.read(node)
    await ground.upper.delete(node)
    await ground.upper.until(node, lambda one: one and one["metadata"]["uid"] != before["metadata"]["uid"])
    await ground.usable(ground.nodes[A])
    await ground.engine.loop.wait_idle()
    assert (await ground.upper.read(ground.pod_path("steady")))["metadata"]["uid"] == above["metadata"]["uid"]
    assert (await ground.sites[A].read(ground.pod_path("steady")))["metadata"]["uid"] == below["metadata"]["uid"]
    await ground.end_pods("steady")


@pytest.mark.parametrize("mark", [{"labels": {OWNER: None}}, {"annotations": {UPPER_UID: None}}], ids=["label", "uid"])
async def test_a_lower_pod_that_lost_a_mark_is_reported_as_a_name_conflict_and_not_touched(
    ground: Ground, mark: Manifest
) -> None:
    """It does not count as lost, and it stays when its upper pod is deleted."""
    name = f"without-{next(iter(mark))}"
    site, path = ground.sites[A], ground.pod_path(name)
    await running(ground, name)
    below = await site.patch(path, {"metadata": mark})
    pod = await ground.upper.until(path, lambda one: condition_of(one, MIRRORED))
    assert condition_of(pod, MIRRORED)["reason"] == "NameConflict"
    await ground.calm()
    pod = await ground.upper.read(path)
    assert phase_of(pod) == "Running"
    assert "another owner" in await ground.told(pod, "NameConflict")
    await ground.end_pods(name)
    await ground.calm()
    assert (await site.read(path))["metadata"] == below["metadata"]
    await site.delete(path)
    await site.gone(path)


async def test_an_upper_pod_fails_if_its_unmarked_lower_pod_is_deleted(ground: Ground) -> None:
    """The upper pod gets the reason LowerPodLost, so that its controller can replace it."""
    site, path = ground.sites[A], ground.pod_path("unmarked-gone")
    await running(ground, "unmarked-gone")
    await site.patch(path, {"metadata": {"labels": {OWNER: None}}})
    await ground.upper.until(path, lambda one: condition_of(one, MIRRORED))
    await ground.calm()
    await site.delete(path)
    pod = await ground.upper.until(path, lambda one: phase_of(one) == "Failed")
    assert pod["status"]["reason"] == "LowerPodLost"
    await ground.end_pods("unmarked-gone")


async def test_a_lower_pod_with_a_restored_owner_label_is_mirrored_again(ground: Ground) -> None:
    """The conflict condition is removed, the upper pod is ready, and its deletion deletes the lower pod."""
    site, path = ground.sites[A], ground.pod_path("returned")
    await running(ground, "returned")
    await site.patch(path, {"metadata": {"labels": {OWNER: None}}})
    await ground.upper.until(path, lambda one: condition_of(one, MIRRORED))
    await site.patch(path, {"metadata": {"labels": {OWNER: ground.owner.mark}}})
    pod = await ground.upper.until(path, lambda one: not condition_of(one, MIRRORED))
    assert is_ready(pod)
    await ground.end_pods("returned")
    await site.gone(path)


async def test_an_upper_pod_fails_if_another_owners_pod_replaces_its_lower_pod(ground: Ground) -> None:
    """The lower pod is replaced while no engine runs; the other pod is not touched."""
    site, path = ground.sites[A], ground.pod_path("taken")
    await running(ground, "taken")
    await ground.stop()
    await site.delete(path)
    await site.gone(path)
    await site.create(
        ground.path("pods"), {"metadata": {"name": "taken"}, "spec": {"containers": [{"name": "main", "image": "s:1"}]}}
    )
    stranger = await site.until(path, is_ready)
    await ground.start()
    pod = await ground.upper.until(path, lambda one: phase_of(one) == "Failed")
    assert pod["status"]["reason"] == "LowerPodLost"
    await ground.end_pods("taken")
    await ground.calm()
    assert (await site.read(path))["metadata"] == stranger["metadata"]
    await site.delete(path)
    await site.gone(path)
