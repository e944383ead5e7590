"""Tests that data are kept through a restart, a plan, a deletion in the lower cluster, and a recreated claim."""

import asyncio

import orjson
import pytest
from enginekit import A, EngineHarness, edit_lower
from plankit import without_capacity_changes
from provisionkit import CLASSES, VOLUMES, serving
from sitekit import Manifest, condition_of, is_ready
from storekit import (
    Store,
    claim,
    claims,
    class_name,
    create_scheduled_pod,
    is_bound,
    shipped_class,
    spec_with_claims,
    volume_of,
)

from tensile.cli import plan
from tensile.names import LOWER_VOLUME, MIRRORED, UPPER_UID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def used(harness: EngineHarness, name: str, word: str = "goes") -> Manifest:
    """Run a pod with a claim of the same name in lower-a, and return the upper volume."""
    await harness.upper.create(claims(harness), claim(harness, name, word))
    await create_scheduled_pod(harness, name, spec_with_claims(name), A)
    await harness.upper.until(harness.pod_path(name), is_ready)
    bound = await harness.upper.until(claims(harness, name), is_bound)
    path = f"{VOLUMES}/{bound['spec']['volumeName']}"
    return await harness.upper.until(path, lambda one: LOWER_VOLUME in one["metadata"]["annotations"])


async def planned(harness: EngineHarness) -> set[tuple[str, str, str, str]]:
    """Return the changes of `tensile plan`: cluster, action, kind and name.

    The capacity of nodes is left out, because it depends on the nodes that other tests add.
    """
    classes = {class_name(harness, word): class_name(harness, "disk") for word in ("goes", "stays")}
    topology = harness.topology(*(edit_lower(name, storageClasses=classes) for name in harness.nodes))
    text, _, _ = await asyncio.to_thread(plan.plan, topology, harness.cluster_access, "json", colour=False)
    changes = without_capacity_changes(orjson.loads(text)["changes"])
    return {(one["cluster"], one["action"], one["kind"], one["name"]) for one in changes}


async def test_a_lower_class_with_immediate_binding_works_with_an_upper_class_that_waits(
    harness: EngineHarness, store: Store
) -> None:
    """Both classes have the same name, so no mapping is needed; the lower volume is provisioned at once."""
    assert store
    name = class_name(harness, "now")
    await harness.upper.create(CLASSES, shipped_class(name))
    async with serving(harness.sites[A], name, volumeBindingMode="Immediate") as provisioner:
        volume = await used(harness, "prompt", "now")
        made = volume["metadata"]["annotations"][LOWER_VOLUME]
        await harness.end_pods("prompt")
        assert provisioner.destroyed == []
        await harness.upper.delete(claims(harness, "prompt"))
        await harness.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")
        await harness.sites[A].gone(f"{VOLUMES}/{made}")
        assert provisioner.destroyed == [made]
    await harness.upper.delete(f"{CLASSES}/{name}")


async def test_a_restarted_engine_deletes_only_the_data_of_a_claim_that_was_deleted_meanwhile(
    harness: EngineHarness, store: Store
) -> None:
    """The plan lists these data before; those of the other claim are not in it, and are kept."""
    going, staying = await used(harness, "going"), await used(harness, "staying")
    await harness.end_pods("going")
    await harness.wait_idle()
    assert await planned(harness) == set()
    classes = {class_name(harness, word): class_name(harness, "disk") for word in ("goes", "stays")}
    edits = [edit_lower(name, storageClasses=classes) for name in harness.nodes]
    await harness.stop()
    path = f"{VOLUMES}/{going['metadata']['name']}"
    await harness.upper.delete(claims(harness, "going"))
    await harness.upper.until(path, lambda one: one["status"]["phase"] == "Released")
    assert await planned(harness) == {
        (A, "delete", "PersistentVolumeClaim", "going"),
        ("upper", "delete", "PersistentVolume", going["metadata"]["name"]),
    }
    await harness.start(*edits)
    await harness.upper.gone(path)
    lost, kept = (one["metadata"]["annotations"][LOWER_VOLUME] for one in (going, staying))
    await harness.sites[A].gone(f"{VOLUMES}/{lost}")
    assert lost in store[A].destroyed
    assert kept not in store[A].destroyed
    await harness.end_pods("staying")


async def test_a_claim_that_is_deleted_in_the_lower_cluster_is_not_recreated(
    harness: EngineHarness, store: Store
) -> None:
    """Its data are lost, so its next pod waits, and claim and pod report LowerClaimLost.

    Deleting the upper claim also deletes the placeholder volume.
    """
    assert store
    volume = await used(harness, "robbed")
    await harness.end_pods("robbed")
    await harness.sites[A].delete(claims(harness, "robbed"))
    await harness.sites[A].gone(claims(harness, "robbed"))
    found = await harness.upper.until(claims(harness, "robbed"), lambda one: condition_of(one, MIRRORED))
    assert condition_of(found, MIRRORED)["reason"] == "LowerClaimLost"
    assert "delete the upper claim" in await harness.wait_for_event(found, "LowerClaimLost")
    await create_scheduled_pod(harness, "robbed", spec_with_claims("robbed"))
    pod = await harness.upper.until(harness.pod_path("robbed"), lambda one: condition_of(one, MIRRORED))
    assert pod["status"]["reason"] == "LowerClaimLost"
    assert await harness.sites[A].read(claims(harness, "robbed")) == {}
    await harness.end_pods("robbed")
    await harness.upper.delete(claims(harness, "robbed"))
    await harness.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")


async def test_retained_data_are_used_by_a_new_claim_that_is_bound_to_their_volume(
    harness: EngineHarness, store: Store
) -> None:
    """A new claim without the volume's name gets an Event that the earlier data are in the way."""
    volume = await used(harness, "archive", "stays")
    path = f"{VOLUMES}/{volume['metadata']['name']}"
    lower_object = await harness.sites[A].read(claims(harness, "archive"))
    await harness.end_pods("archive")
    await harness.upper.delete(claims(harness, "archive"))
    await harness.upper.until(path, lambda one: one["status"]["phase"] == "Released")
    second = await harness.upper.create(claims(harness), claim(harness, "archive", "stays"))
    await create_scheduled_pod(harness, "archive", spec_with_claims("archive"), A)
    assert "has the data of an earlier claim" in await harness.wait_for_event(second, "ProvisioningFailed")
    await harness.end_pods("archive")
    await harness.upper.delete(claims(harness, "archive"))
    await harness.upper.gone(claims(harness, "archive"))
    await harness.upper.patch(path, {"spec": {"claimRef": None}})
    asking = claim(harness, "archive", "stays")
    asking["spec"]["volumeName"] = volume["metadata"]["name"]
    third = await harness.upper.create(claims(harness), asking)
    await harness.upper.until(claims(harness, "archive"), is_bound)
    await create_scheduled_pod(harness, "archive", spec_with_claims("archive"))
    await harness.upper.until(harness.pod_path("archive"), is_ready)
    now = await harness.sites[A].read(claims(harness, "archive"))
    assert now["metadata"]["uid"] == lower_object["metadata"]["uid"]
    assert now["metadata"]["annotations"][UPPER_UID] == third["metadata"]["uid"]
    assert lower_object["spec"]["volumeName"] not in store[A].destroyed
    assert (await volume_of(harness, "archive"))["metadata"]["name"] == volume["metadata"]["name"]
    await harness.end_pods("archive")
