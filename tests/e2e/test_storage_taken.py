"""Tests of occupied names of storage objects: they are reported, not touched, and used once they are free."""

import pytest
from enginekit import A, EngineHarness
from provisionkit import VOLUMES
from sitekit import Manifest, is_ready
from storekit import Store, claim, claims, create_scheduled_pod, spec_with_claims

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def freed(harness: EngineHarness, name: str) -> None:
    """Wait until the pod runs with the name that is now free, and delete it."""
    await harness.upper.until(harness.pod_path(name), is_ready)
    await harness.end_pods(name)


def of_a_stranger(name: str, claim_name: str) -> Manifest:
    """Return a volume that a user created for another claim."""
    return {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/theirs"},
            "storageClassName": "theirs",
            "claimRef": {"namespace": "default", "name": claim_name},
        },
    }


async def test_a_lower_claim_of_another_owner_keeps_its_name_until_it_is_deleted(
    harness: EngineHarness, store: Store
) -> None:
    """The engine does not cache such claims, so only a read finds the owner."""
    assert store
    await harness.run_pod("first")
    theirs = await harness.sites[A].create(claims(harness), claim(harness, "taken"))
    made = await harness.upper.create(claims(harness), claim(harness, "taken"))
    await create_scheduled_pod(harness, "taken", spec_with_claims("taken"), A)
    assert "has another owner" in await harness.wait_for_event(made, "ProvisioningFailed")
    await harness.wait_idle()
    assert (await harness.sites[A].read(claims(harness, "taken")))["metadata"]["uid"] == theirs["metadata"]["uid"]
    await harness.sites[A].delete(claims(harness, "taken"))
    await freed(harness, "taken")


async def test_an_upper_volume_of_another_owner_keeps_its_name_until_it_is_deleted(
    harness: EngineHarness, store: Store
) -> None:
    """The engine does not cache volumes of other owners either."""
    assert store
    made = await harness.upper.create(claims(harness), claim(harness, "named"))
    name = f"pvc-{made['metadata']['uid']}"
    theirs = await harness.upper.create(VOLUMES, of_a_stranger(name, "elsewhere"))
    await create_scheduled_pod(harness, "named", spec_with_claims("named"), A)
    assert "has another owner" in await harness.wait_for_event(made, "NameConflict")
    await harness.wait_idle()
    assert (await harness.upper.read(f"{VOLUMES}/{name}"))["spec"] == theirs["spec"]
    await harness.upper.delete(f"{VOLUMES}/{name}")
    await freed(harness, "named")
