"""Tests of occupied names of storage objects: they are reported, not touched, and used once they are free."""

import pytest
from enginekit import A, Ground
from provisionkit import VOLUMES
from sitekit import Manifest, is_ready
from storekit import Store, claim, claims, scheduled, using

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def freed(ground: Ground, name: str) -> None:
    """Wait until the pod runs with the name that is now free, and delete it."""
    await ground.upper.until(ground.pod_path(name), is_ready)
    await ground.end_pods(name)


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


async def test_a_lower_claim_of_another_owner_keeps_its_name_until_it_is_deleted(ground: Ground, store: Store) -> None:
    """The engine does not cache such claims, so only a read finds the owner."""
    assert store
    await ground.run_pod("first")
    theirs = await ground.sites[A].create(claims(ground), claim(ground, "taken"))
    made = await ground.upper.create(claims(ground), claim(ground, "taken"))
    await scheduled(ground, "taken", using("taken"), A)
    assert "has another owner" in await ground.told(made, "ProvisioningFailed")
    await ground.calm()
    assert (await ground.sites[A].read(claims(ground, "taken")))["metadata"]["uid"] == theirs["metadata"]["uid"]
    await ground.sites[A].delete(claims(ground, "taken"))
    await freed(ground, "taken")


async def test_an_upper_volume_of_another_owner_keeps_its_name_until_it_is_deleted(
    ground: Ground, store: Store
) -> None:
    """The engine does not cache volumes of other owners either."""
    assert store
    made = await ground.upper.create(claims(ground), claim(ground, "named"))
    name = f"pvc-{made['metadata']['uid']}"
    theirs = await ground.upper.create(VOLUMES, of_a_stranger(name, "elsewhere"))
    await scheduled(ground, "named", using("named"), A)
    assert "has another owner" in await ground.told(made, "NameConflict")
    await ground.calm()
    assert (await ground.upper.read(f"{VOLUMES}/{name}"))["spec"] == theirs["spec"]
    await ground.upper.delete(f"{VOLUMES}/{name}")
    await freed(ground, "named")
