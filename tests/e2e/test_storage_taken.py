"""Names that a claim's objects need and somebody else has: it is said, nothing of theirs is touched, and it goes on."""

import pytest
from enginekit import A, Ground
from provisionkit import VOLUMES
from sitekit import Manifest, is_ready
from storekit import Store, claim, claims, scheduled, using

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def freed(ground: Ground, name: str) -> None:
    """Run a pod now that the name is free, and end it."""
    await ground.upper.until(ground.pod_path(name), is_ready)
    await ground.end_pods(name)


def of_a_stranger(name: str, claim_name: str) -> Manifest:
    """Make a volume that somebody made by hand for another claim."""
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


async def test_a_strangers_claim_below_keeps_its_name(ground: Ground, store: Store) -> None:
    """It is not followed, so only a read can tell whose it is."""
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


async def test_a_strangers_volume_above_keeps_its_name(ground: Ground, store: Store) -> None:
    """As the claim below: volumes of others are not followed either."""
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
