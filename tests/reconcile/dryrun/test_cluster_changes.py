"""What a cluster answers to a change of a running pod, in memory and before a real apiserver alike."""

import pytest
from rehearsal_ground import ClusterUnderTest, version_of

from tensile.errors import Conflict
from tensile.objects import POD
from tensile.reconcile.ownership import our_keys


async def test_resizing_changes_resources_alone(ground: ClusterUnderTest) -> None:
    """An image and a label sent along are passed over."""
    amounts = {"resources": {"requests": {"cpu": "1"}}}
    containers = [{"name": one, "image": f"{one}:1", **amounts} for one in ("main", "side")]
    pod = await ground.pod("p", containers=containers)
    change = {"name": "main", "image": "other", "resources": {"requests": {"cpu": "2"}}}
    ref = ground.at("p", POD)
    changed = await ground.laid_over(pod, ref, "resize", metadata={"labels": {"a": "1"}}, spec={"containers": [change]})
    found = [(one["image"], one["resources"]) for one in changed["spec"]["containers"]]
    assert found == [("main:1", {"requests": {"cpu": "2"}}), ("side:1", {"requests": {"cpu": "1"}})]
    assert "labels" not in changed["metadata"]


async def test_tolerations_are_replaced_as_a_whole(ground: ClusterUnderTest) -> None:
    """By whoever has seen them as they are, and the generation counts it."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p")
    more = [*pod["spec"]["tolerations"], {"key": "gpu", "operator": "Exists"}]
    fence = {"resourceVersion": version_of(pod)}
    changed = await ground.laid_over(pod, ref, metadata=fence, spec={"tolerations": more})
    assert changed["spec"]["tolerations"] == more
    assert changed["metadata"]["generation"] == pod["metadata"]["generation"] + 1
    more.append({"key": "other", "operator": "Exists"})
    with pytest.raises(Conflict):
        await ground.laid_over(pod, ref, metadata=fence, spec={"tolerations": more})


async def test_an_image_and_its_note_are_one_write(ground: ClusterUnderTest) -> None:
    """The container is found by its name, annotations merge, and the note is booked as its writer's."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p", meta={"annotations": {"a": "1"}})
    image = [{"name": "side", "image": "side:2"}]
    changed = await ground.laid_over(pod, ref, metadata={"annotations": {"n": "2"}}, spec={"containers": image})
    assert [one["image"] for one in changed["spec"]["containers"]] == ["main:1", "side:2"]
    assert changed["metadata"]["annotations"] == {"a": "1", "n": "2"}
    assert our_keys(changed, "annotations") == {"a", "n"}


@pytest.mark.parametrize("added", ["e2", "e1"])
async def test_ephemeral_containers_merge_by_name(ground: ClusterUnderTest, added: str) -> None:
    """One is added after those that are named, and the same one again changes nothing."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p")
    first = {"ephemeralContainers": [{"name": "e1", "image": "e:1"}]}
    seen = await ground.laid_over(pod, ref, "ephemeralcontainers", spec=first)
    named = {"e1": {"name": "e1"}, added: {"name": added, "image": "e:1"}}
    more = {"ephemeralContainers": list(named.values())}
    changed = await ground.laid_over(seen, ref, "ephemeralcontainers", spec=more)
    assert [one["name"] for one in changed["spec"]["ephemeralContainers"]] == list(named)
    assert (changed == seen) is (added == "e1")


async def test_ephemeral_containers_are_added_by_a_way_of_their_own(ground: ClusterUnderTest) -> None:
    """And by no other; what is sent along is passed over."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p")
    spec = {"containers": [{"name": "main", "image": "other"}], "ephemeralContainers": [{"name": "e", "image": "e:1"}]}
    changed = await ground.laid_over(pod, ref, "ephemeralcontainers", spec=spec)
    assert [one["name"] for one in changed["spec"]["ephemeralContainers"]] == ["e"]
    assert [one["image"] for one in changed["spec"]["containers"]] == ["main:1", "side:1"]
