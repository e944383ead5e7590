"""Tests of claims with forged marks in place of a copy: none is used, bound or deleted, and each is reported."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import A, Ground, standing
from forgerkit import forged
from provisionkit import VOLUMES
from sitekit import Manifest, condition_of
from storekit import Store, claim, claims, is_bound, mark, stocked, using, volume_of

from tensile.names import MIRRORED, OWNER, UPPER_UID
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start an engine, with the ground's namespace in lower-a."""
    async with standing(sandbox, tmp_path_factory.mktemp("claims")) as made:
        await made.make_namespace(A, made.namespace)
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(ground: Ground) -> AsyncIterator[Store]:
    """Create storage classes in the upper and the lower clusters."""
    async with stocked(ground) as made:
        yield made


def below(ground: Ground, name: str, **spec: object) -> Manifest:
    """Return the lower claim that the engine would create, with other fields of its spec."""
    made = claim(ground, name)
    return {"spec": {**made["spec"], "storageClassName": mark(ground, "disk"), **spec}}


async def test_a_forged_claim_with_a_volume_name_is_refused_before_a_volume_is_bound(
    ground: Ground, store: Store
) -> None:
    """A tenant who knows the upper claim's UID would otherwise choose whose data the pod gets."""
    assert store
    upper = await ground.upper.create(claims(ground), claim(ground, "bait"))
    body = below(ground, "bait", volumeName="of-another-tenant")
    made = await forged(ground, ground.sites[A], claims(ground), upper["metadata"]["uid"], body, name="bait")
    await ground.bind("bait", using("bait"))
    found = await ground.upper.until(claims(ground, "bait"), lambda one: condition_of(one, MIRRORED))
    assert condition_of(found, MIRRORED)["reason"] == "NameConflict"
    assert "of-another-tenant" in condition_of(found, MIRRORED)["message"]
    await ground.calm()
    assert "volumeName" not in (await ground.upper.read(claims(ground, "bait")))["spec"]
    assert (await ground.sites[A].read(claims(ground, "bait")))["metadata"]["uid"] == made["metadata"]["uid"]
    assert await ground.sites[A].read(ground.pod_path("bait")) == {}
    await removed(ground, "bait")
    await ground.sites[A].delete(claims(ground, "bait"))


async def removed(ground: Ground, name: str) -> None:
    """Delete the pod and the claim in the upper cluster."""
    await ground.end_pods(name)
    await ground.upper.delete(claims(ground, name))
    await ground.upper.gone(claims(ground, name))


async def test_a_forged_claim_in_place_of_the_placeholders_claim_is_neither_used_nor_deleted(
    ground: Ground, store: Store
) -> None:
    """The data were in the lower claim that the volume refers to.

    Another claim of that name is reported as a conflict and kept.
    """
    assert store
    upper = await ground.upper.create(claims(ground), claim(ground, "swapped"))
    await ground.run_pod("swapped", using("swapped"))
    await ground.upper.until(claims(ground, "swapped"), is_bound)
    volume = await volume_of(ground, "swapped")
    await ground.end_pods("swapped")
    site = ground.sites[A]
    await site.delete(claims(ground, "swapped"))
    await site.gone(claims(ground, "swapped"))
    made = await forged(
        ground, site, claims(ground), upper["metadata"]["uid"], below(ground, "swapped"), name="swapped"
    )
    await ground.bind("swapped", using("swapped"))
    found = await ground.upper.until(
        claims(ground, "swapped"), lambda one: condition_of(one, MIRRORED).get("reason") == "NameConflict"
    )
    assert volume["metadata"]["name"] in condition_of(found, MIRRORED)["message"]
    await ground.calm()
    assert (await site.read(claims(ground, "swapped")))["metadata"]["uid"] == made["metadata"]["uid"]
    assert await site.read(ground.pod_path("swapped")) == {}
    await removed(ground, "swapped")
    await site.delete(claims(ground, "swapped"))
    await ground.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")


async def test_the_claim_that_a_placeholder_refers_to_is_used_despite_a_changed_uid_annotation(
    ground: Ground, store: Store
) -> None:
    """A tenant who changes the UID annotation on the lower claim cuts no pod off from its data."""
    assert store
    await ground.upper.create(claims(ground), claim(ground, "renamed"))
    await ground.run_pod("renamed", using("renamed"))
    await ground.upper.until(claims(ground, "renamed"), is_bound)
    site = ground.sites[A]
    await site.patch(claims(ground, "renamed"), {"metadata": {"annotations": {UPPER_UID: "another"}}})
    await ground.end_pods("renamed")
    await ground.run_pod("renamed", using("renamed"))
    lower = await site.read(claims(ground, "renamed"))
    assert lower["metadata"]["labels"][OWNER] == ground.owner.mark
    volume = await volume_of(ground, "renamed")
    upper = await ground.upper.read(claims(ground, "renamed"))
    notes = {"annotations": {UPPER_UID: upper["metadata"]["uid"]}}
    await site.patch(f"{claims(ground, 'renamed')}?fieldManager=tensile-kube", {"metadata": notes})
    await removed(ground, "renamed")
    await ground.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")
