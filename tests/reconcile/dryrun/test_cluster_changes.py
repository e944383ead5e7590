"""Tests of changes of a running pod, with the same results in memory and on a real apiserver."""

import pytest
from dryrunkit import ClusterUnderTest, version_of

from tensile.errors import Conflict
from tensile.objects import POD
from tensile.reconcile.ownership import our_keys


async def test_resizing_changes_resources_only(cluster_under_test: ClusterUnderTest) -> None:
    """An image and a label in the same patch are ignored."""
    amounts = {"resources": {"requests": {"cpu": "1"}}}
    containers = [{"name": one, "image": f"{one}:1", **amounts} for one in ("main", "side")]
    pod = await cluster_under_test.pod("p", containers=containers)
    change = {"name": "main", "image": "other", "resources": {"requests": {"cpu": "2"}}}
    ref = cluster_under_test.ref("p", POD)
    changed = await cluster_under_test.strategic_merge_patch(
        pod, ref, "resize", metadata={"labels": {"a": "1"}}, spec={"containers": [change]}
    )
    found = [(one["image"], one["resources"]) for one in changed["spec"]["containers"]]
    assert found == [("main:1", {"requests": {"cpu": "2"}}), ("side:1", {"requests": {"cpu": "1"}})]
    assert "labels" not in changed["metadata"]


async def test_tolerations_are_replaced_as_a_whole(cluster_under_test: ClusterUnderTest) -> None:
    """The patch requires the resourceVersion that was read, and the generation increases."""
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p")
    more = [*pod["spec"]["tolerations"], {"key": "gpu", "operator": "Exists"}]
    fence = {"resourceVersion": version_of(pod)}
    changed = await cluster_under_test.strategic_merge_patch(pod, ref, metadata=fence, spec={"tolerations": more})
    assert changed["spec"]["tolerations"] == more
    assert changed["metadata"]["generation"] == pod["metadata"]["generation"] + 1
    more.append({"key": "other", "operator": "Exists"})
    with pytest.raises(Conflict):
        await cluster_under_test.strategic_merge_patch(pod, ref, metadata=fence, spec={"tolerations": more})


async def test_an_image_and_an_annotation_are_one_patch(cluster_under_test: ClusterUnderTest) -> None:
    """The container is found by its name, annotations merge, and managedFields names the writer of the annotation."""
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p", meta={"annotations": {"a": "1"}})
    image = [{"name": "side", "image": "side:2"}]
    changed = await cluster_under_test.strategic_merge_patch(
        pod, ref, metadata={"annotations": {"n": "2"}}, spec={"containers": image}
    )
    assert [one["image"] for one in changed["spec"]["containers"]] == ["main:1", "side:2"]
    assert changed["metadata"]["annotations"] == {"a": "1", "n": "2"}
    assert our_keys(changed, "annotations") == {"a", "n"}


@pytest.mark.parametrize("added", ["e2", "e1"])
async def test_ephemeral_containers_merge_by_name(cluster_under_test: ClusterUnderTest, added: str) -> None:
    """A new one is added after the named ones, and an existing one changes nothing."""
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p")
    first = {"ephemeralContainers": [{"name": "e1", "image": "e:1"}]}
    seen = await cluster_under_test.strategic_merge_patch(pod, ref, "ephemeralcontainers", spec=first)
    named = {"e1": {"name": "e1"}, added: {"name": added, "image": "e:1"}}
    more = {"ephemeralContainers": list(named.values())}
    changed = await cluster_under_test.strategic_merge_patch(seen, ref, "ephemeralcontainers", spec=more)
    assert [one["name"] for one in changed["spec"]["ephemeralContainers"]] == list(named)
    assert (changed == seen) is (added == "e1")


async def test_ephemeral_containers_are_added_by_their_own_subresource(cluster_under_test: ClusterUnderTest) -> None:
    """Other fields in the same patch are ignored."""
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p")
    spec = {"containers": [{"name": "main", "image": "other"}], "ephemeralContainers": [{"name": "e", "image": "e:1"}]}
    changed = await cluster_under_test.strategic_merge_patch(pod, ref, "ephemeralcontainers", spec=spec)
    assert [one["name"] for one in changed["spec"]["ephemeralContainers"]] == ["e"]
    assert [one["image"] for one in changed["spec"]["containers"]] == ["main:1", "side:1"]
