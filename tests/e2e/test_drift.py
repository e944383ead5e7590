"""Tests of changes that other clients make to the engine's objects.

Content is reverted, and an object that loses its marks is no longer the engine's.
"""

import pytest
from enginekit import A, EngineHarness
from sitekit import Manifest, condition_of, is_ready, phase_of

from tensile.names import MIRRORED, OWNER, SYNCED, UPPER_UID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

BOTH = {"configMap": {"name": "settings"}}


async def running(harness: EngineHarness, name: str) -> Manifest:
    """Run a pod that refers to a ConfigMap, and return its lower pod."""
    if not await harness.upper.read(harness.path("configmaps", "settings")):
        body = {"metadata": {"name": "settings"}, "data": {"key": "value"}}
        await harness.upper.create(harness.path("configmaps"), body)
    await harness.run_pod(name, {"volumes": [{"name": "settings", **BOTH}]}, labels={"app": name})
    return await harness.sites[A].until(harness.pod_path(name), is_ready)


async def test_an_edited_copy_is_reverted(harness: EngineHarness) -> None:
    """Changed data get the upper value again, added keys are removed, and a DriftReverted Event names the fields.

    An edit of the upper ConfigMap is not counted as drift.
    """
    await running(harness, "reader")
    path = harness.path("configmaps", "settings")
    before = await harness.sites[A].read(path)
    await harness.sites[A].patch(path, {"data": {"key": "edited", "more": "added"}})
    after = await harness.sites[A].until(path, lambda one: one["data"] == {"key": "value"})
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    original = await harness.upper.read(path)
    what, _, rest = (await harness.wait_for_event(original, "DriftReverted")).partition(" (")
    assert what == f"another client changed ConfigMap {harness.namespace}/settings in lower cluster {A}"
    fields, _, remedy = rest.partition("): ")
    assert set(fields.split(", ")) == {"data.key", "data.more"}
    assert remedy == "the engine puts it back; change the upper ConfigMap instead"
    assert harness.engine.loop.drift.counts[A, "ConfigMap"] == 1
    await harness.upper.patch(path, {"data": {"key": "of the upper cluster"}})
    await harness.sites[A].until(path, lambda one: one["data"] == {"key": "of the upper cluster"})
    await harness.upper.patch(path, {"data": {"key": "value"}})
    await harness.sites[A].until(path, lambda one: one["data"] == {"key": "value"})
    await harness.engine.loop.wait_idle()
    assert harness.engine.loop.drift.counts[A, "ConfigMap"] == 1, "an edit of the original is no drift"
    await harness.end_pods("reader")


async def test_a_deleted_copy_is_recreated(harness: EngineHarness) -> None:
    """A lower ConfigMap to which a pod refers is created again, and the pod runs on."""
    lower_object = await running(harness, "holder")
    path = harness.path("configmaps", "settings")
    before = await harness.sites[A].read(path)
    await harness.sites[A].delete(path)
    await harness.sites[A].until(path, lambda one: one and one["metadata"]["uid"] != before["metadata"]["uid"])
    after = await harness.sites[A].read(harness.pod_path("holder"))
    assert after["metadata"]["uid"] == lower_object["metadata"]["uid"]
    await harness.end_pods("holder")


async def test_a_changed_emptied_or_immutable_secret_is_reverted(harness: EngineHarness) -> None:
    """Data, labels and immutability of the lower Secret are those of the upper Secret again."""
    path, site = harness.path("secrets", "password"), harness.sites[A]
    body = {"metadata": {"name": "password", "labels": {"team": "web"}}, "data": {"key": "dmFsdWU="}}
    await harness.upper.create(harness.path("secrets"), body)
    await harness.run_pod("keeper", {"volumes": [{"name": "p", "secret": {"secretName": "password"}}]})

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
    await harness.end_pods("keeper")


async def test_lower_changes_that_cannot_be_reverted_are_reported_on_the_upper_pod(harness: EngineHarness) -> None:
    """A deadline and a toleration on the lower pod are permanent, so a condition and an Event name them."""
    await running(harness, "limited")
    site, path = harness.sites[A], harness.pod_path("limited")
    found = await site.read(path)
    tolerations = [*found["spec"]["tolerations"], {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    await site.patch(path, {"spec": {"activeDeadlineSeconds": 100000, "tolerations": tolerations}})
    pod = await harness.upper.until(path, lambda one: condition_of(one, SYNCED))
    condition = condition_of(pod, SYNCED)
    assert (condition["status"], condition["reason"]) == ("False", "ModifiedInLower")
    assert condition["message"].endswith("activeDeadlineSeconds is 100000, toleration of gpu added")
    assert await harness.wait_for_event(pod, "ModifiedInLower") == condition["message"]
    assert is_ready(pod)
    await harness.wait_idle()
    await harness.mark_audit_logs()
    await harness.wait_idle()
    assert await harness.writes() == []
    await harness.end_pods("limited")


async def test_labels_of_an_engine_namespace_are_reverted(harness: EngineHarness) -> None:
    """The lower namespace gets the Pod Security label of the upper one again."""
    await running(harness, "guarded")
    enforce = "pod-security.kubernetes.io/warn"
    above = f"/api/v1/namespaces/{harness.namespace}"
    await harness.upper.patch(above, {"metadata": {"labels": {enforce: "baseline"}}})
    await harness.sites[A].until(above, lambda one: one["metadata"]["labels"].get(enforce) == "baseline")
    await harness.sites[A].patch(above, {"metadata": {"labels": {enforce: "privileged"}}})
    await harness.sites[A].until(above, lambda one: one["metadata"]["labels"].get(enforce) == "baseline")
    await harness.upper.patch(above, {"metadata": {"labels": {enforce: None}}})
    await harness.end_pods("guarded")


async def test_a_deleted_node_is_recreated_and_its_pods_are_kept(harness: EngineHarness) -> None:
    """The pods keep their UIDs in both clusters after `kubectl delete node`."""
    lower_object = await running(harness, "steady")
    upper_object = await harness.upper.read(harness.pod_path("steady"))
    node = f"/api/v1/nodes/{harness.nodes[A]}"
    before = await harness.upper.read(node)
    await harness.upper.delete(node)
    await harness.upper.until(node, lambda one: one and one["metadata"]["uid"] != before["metadata"]["uid"])
    await harness.wait_for_node(harness.nodes[A])
    await harness.engine.loop.wait_idle()
    assert (await harness.upper.read(harness.pod_path("steady")))["metadata"]["uid"] == upper_object["metadata"]["uid"]
    assert (await harness.sites[A].read(harness.pod_path("steady")))["metadata"]["uid"] == lower_object["metadata"][
        "uid"
    ]
    await harness.end_pods("steady")


@pytest.mark.parametrize("mark", [{"labels": {OWNER: None}}, {"annotations": {UPPER_UID: None}}], ids=["label", "uid"])
async def test_a_lower_pod_that_lost_a_mark_is_reported_as_a_name_conflict_and_not_touched(
    harness: EngineHarness, mark: Manifest
) -> None:
    """It does not count as lost, and it stays when its upper pod is deleted."""
    name = f"without-{next(iter(mark))}"
    site, path = harness.sites[A], harness.pod_path(name)
    await running(harness, name)
    lower_object = await site.patch(path, {"metadata": mark})
    pod = await harness.upper.until(path, lambda one: condition_of(one, MIRRORED))
    assert condition_of(pod, MIRRORED)["reason"] == "NameConflict"
    await harness.wait_idle()
    pod = await harness.upper.read(path)
    assert phase_of(pod) == "Running"
    assert "another owner" in await harness.wait_for_event(pod, "NameConflict")
    await harness.end_pods(name)
    await harness.wait_idle()
    assert (await site.read(path))["metadata"] == lower_object["metadata"]
    await site.delete(path)
    await site.gone(path)


async def test_an_upper_pod_fails_if_its_unmarked_lower_pod_is_deleted(harness: EngineHarness) -> None:
    """The upper pod gets the reason LowerPodLost, so that its controller can replace it."""
    site, path = harness.sites[A], harness.pod_path("unmarked-gone")
    await running(harness, "unmarked-gone")
    await site.patch(path, {"metadata": {"labels": {OWNER: None}}})
    await harness.upper.until(path, lambda one: condition_of(one, MIRRORED))
    await harness.wait_idle()
    await site.delete(path)
    pod = await harness.upper.until(path, lambda one: phase_of(one) == "Failed")
    assert pod["status"]["reason"] == "LowerPodLost"
    await harness.end_pods("unmarked-gone")


async def test_a_lower_pod_with_a_restored_owner_label_is_mirrored_again(harness: EngineHarness) -> None:
    """The conflict condition is removed, the upper pod is ready, and its deletion deletes the lower pod."""
    site, path = harness.sites[A], harness.pod_path("returned")
    await running(harness, "returned")
    await site.patch(path, {"metadata": {"labels": {OWNER: None}}})
    await harness.upper.until(path, lambda one: condition_of(one, MIRRORED))
    await site.patch(path, {"metadata": {"labels": {OWNER: harness.owner.mark}}})
    pod = await harness.upper.until(path, lambda one: not condition_of(one, MIRRORED))
    assert is_ready(pod)
    await harness.end_pods("returned")
    await site.gone(path)


async def test_an_upper_pod_fails_if_another_owners_pod_replaces_its_lower_pod(harness: EngineHarness) -> None:
    """The lower pod is replaced while no engine runs; the other pod is not touched."""
    site, path = harness.sites[A], harness.pod_path("taken")
    await running(harness, "taken")
    await harness.stop()
    await site.delete(path)
    await site.gone(path)
    await site.create(
        harness.path("pods"),
        {"metadata": {"name": "taken"}, "spec": {"containers": [{"name": "main", "image": "s:1"}]}},
    )
    stranger = await site.until(path, is_ready)
    await harness.start()
    pod = await harness.upper.until(path, lambda one: phase_of(one) == "Failed")
    assert pod["status"]["reason"] == "LowerPodLost"
    await harness.end_pods("taken")
    await harness.wait_idle()
    assert (await site.read(path))["metadata"] == stranger["metadata"]
    await site.delete(path)
    await site.gone(path)
