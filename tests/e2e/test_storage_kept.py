"""Tests that data are kept through a restart, a plan, a deletion in the lower cluster, and a recreated claim."""

import asyncio

import orjson
import pytest
from enginekit import A, Ground, edit_lower
from plankit import apart_from_room
from provisionkit import CLASSES, VOLUMES, serving
from sitekit import Manifest, condition_of, is_ready
from storekit import Store, claim, claims, is_bound, mark, scheduled, shipped, using, volume_of

from tensile.cli import plan
from tensile.names import LOWER_VOLUME, MIRRORED, UPPER_UID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def used(ground: Ground, name: str, word: str = "goes") -> Manifest:
    """Run a pod with a claim of the same name in lower-a, and return the upper volume."""
    await ground.upper.create(claims(ground), claim(ground, name, word))
    await scheduled(ground, name, using(name), A)
    await ground.upper.until(ground.pod_path(name), is_ready)
    bound = await ground.upper.until(claims(ground, name), is_bound)
    path = f"{VOLUMES}/{bound['spec']['volumeName']}"
    return await ground.upper.until(path, lambda one: LOWER_VOLUME in one["metadata"]["annotations"])


async def planned(ground: Ground) -> set[tuple[str, str, str, str]]:
    """Return the changes of `tensile plan`: cluster, action, kind and name.

    The capacity of nodes is left out, because it depends on the nodes that other tests add.
    """
    classes = {mark(ground, word): mark(ground, "disk") for word in ("goes", "stays")}
    topology = ground.topology(*(edit_lower(name, storageClasses=classes) for name in ground.nodes))
    text, _, _ = await asyncio.to_thread(plan.plan, topology, ground.ways, "json", colour=False)
    changes = apart_from_room(orjson.loads(text)["changes"])
    return {(one["cluster"], one["action"], one["kind"], one["name"]) for one in changes}


async def test_a_lower_class_with_immediate_binding_works_with_an_upper_class_that_waits(
    ground: Ground, store: Store
) -> None:
    """Both classes have the same name, so no mapping is needed; the lower volume is provisioned at once."""
    assert store
    name = mark(ground, "now")
    await ground.upper.create(CLASSES, shipped(name))
    async with serving(ground.sites[A], name, volumeBindingMode="Immediate") as provisioner:
        volume = await used(ground, "prompt", "now")
        made = volume["metadata"]["annotations"][LOWER_VOLUME]
        await ground.end_pods("prompt")
        assert provisioner.destroyed == []
        await ground.upper.delete(claims(ground, "prompt"))
        await ground.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")
        await ground.sites[A].gone(f"{VOLUMES}/{made}")
        assert provisioner.destroyed == [made]
    await ground.upper.delete(f"{CLASSES}/{name}")


async def test_a_restarted_engine_deletes_only_the_data_of_a_claim_that_was_deleted_meanwhile(
    ground: Ground, store: Store
) -> None:
    """The plan lists these data before; those of the other claim are not in it, and are kept."""
    going, staying = await used(ground, "going"), await used(ground, "staying")
    await ground.end_pods("going")
    await ground.calm()
    assert await planned(ground) == set()
    classes = {mark(ground, word): mark(ground, "disk") for word in ("goes", "stays")}
    edits = [edit_lower(name, storageClasses=classes) for name in ground.nodes]
    await ground.stop()
    path = f"{VOLUMES}/{going['metadata']['name']}"
    await ground.upper.delete(claims(ground, "going"))
    await ground.upper.until(path, lambda one: one["status"]["phase"] == "Released")
    assert await planned(ground) == {
        (A, "delete", "PersistentVolumeClaim", "going"),
        ("upper", "delete", "PersistentVolume", going["metadata"]["name"]),
    }
    await ground.start(*edits)
    await ground.upper.gone(path)
    lost, kept = (one["metadata"]["annotations"][LOWER_VOLUME] for one in (going, staying))
    await ground.sites[A].gone(f"{VOLUMES}/{lost}")
    assert lost in store[A].destroyed
    assert kept not in store[A].destroyed
    await ground.end_pods("staying")


async def test_a_claim_that_is_deleted_in_the_lower_cluster_is_not_recreated(ground: Ground, store: Store) -> None:
    """Its data are lost, so its next pod waits, and claim and pod report LowerClaimLost.

    Deleting the upper claim also deletes the placeholder volume.
    """
    assert store
    volume = await used(ground, "robbed")
    await ground.end_pods("robbed")
    await ground.sites[A].delete(claims(ground, "robbed"))
    await ground.sites[A].gone(claims(ground, "robbed"))
    found = await ground.upper.until(claims(ground, "robbed"), lambda one: condition_of(one, MIRRORED))
    assert condition_of(found, MIRRORED)["reason"] == "LowerClaimLost"
    assert "delete the upper claim" in await ground.told(found, "LowerClaimLost")
    await scheduled(ground, "robbed", using("robbed"))
    pod = await ground.upper.until(ground.pod_path("robbed"), lambda one: condition_of(one, MIRRORED))
    assert pod["status"]["reason"] == "LowerClaimLost"
    assert await ground.sites[A].read(claims(ground, "robbed")) == {}
    await ground.end_pods("robbed")
    await ground.upper.delete(claims(ground, "robbed"))
    await ground.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")


async def test_retained_data_are_used_by_a_new_claim_that_is_bound_to_their_volume(
    ground: Ground, store: Store
) -> None:
    """A new claim without the volume's name gets an Event that the earlier data are in the way."""
    volume = await used(ground, "archive", "stays")
    path = f"{VOLUMES}/{volume['metadata']['name']}"
    below = await ground.sites[A].read(claims(ground, "archive"))
    await ground.end_pods("archive")
    await ground.upper.delete(claims(ground, "archive"))
    await ground.upper.until(path, lambda one: one["status"]["phase"] == "Released")
    second = await ground.upper.create(claims(ground), claim(ground, "archive", "stays"))
    await scheduled(ground, "archive", using("archive"), A)
    assert "has the data of an earlier claim" in await ground.told(second, "ProvisioningFailed")
    await ground.end_pods("archive")
    await ground.upper.delete(claims(ground, "archive"))
    await ground.upper.gone(claims(ground, "archive"))
    await ground.upper.patch(path, {"spec": {"claimRef": None}})
    asking = claim(ground, "archive", "stays")
    asking["spec"]["volumeName"] = volume["metadata"]["name"]
    third = await ground.upper.create(claims(ground), asking)
    await ground.upper.until(claims(ground, "archive"), is_bound)
    await scheduled(ground, "archive", using("archive"))
    await ground.upper.until(ground.pod_path("archive"), is_ready)
    now = await ground.sites[A].read(claims(ground, "archive"))
    assert now["metadata"]["uid"] == below["metadata"]["uid"]
    assert now["metadata"]["annotations"][UPPER_UID] == third["metadata"]["uid"]
    assert below["spec"]["volumeName"] not in store[A].destroyed
    assert (await volume_of(ground, "archive"))["metadata"]["name"] == volume["metadata"]["name"]
    await ground.end_pods("archive")
