"""Tests of claims with forged marks in place of a copy: none is used, bound or deleted, and each is reported."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import A, EngineHarness, running_engine
from forgerkit import create_forged_object
from provisionkit import VOLUMES
from sitekit import Manifest, condition_of
from storekit import Store, claim, claims, class_name, is_bound, spec_with_claims, storage_classes, volume_of

from tensile.names import MIRRORED, OWNER, UPPER_UID
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine, with the harness's namespace in lower-a."""
    async with running_engine(sandbox, tmp_path_factory.mktemp("claims")) as harness:
        await harness.make_namespace(A, harness.namespace)
        yield harness


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(harness: EngineHarness) -> AsyncIterator[Store]:
    """Create storage classes in the upper and the lower clusters."""
    async with storage_classes(harness) as made:
        yield made


def expected_lower_claim(harness: EngineHarness, name: str, **spec: object) -> Manifest:
    """Return the lower claim that the engine would create, with other fields of its spec."""
    made = claim(harness, name)
    return {"spec": {**made["spec"], "storageClassName": class_name(harness, "disk"), **spec}}


async def test_a_forged_claim_with_a_volume_name_is_refused_before_a_volume_is_bound(
    harness: EngineHarness, store: Store
) -> None:
    """A tenant who knows the upper claim's UID would otherwise choose whose data the pod gets."""
    assert store
    upper = await harness.upper.create(claims(harness), claim(harness, "bait"))
    body = expected_lower_claim(harness, "bait", volumeName="of-another-tenant")
    made = await create_forged_object(
        harness, harness.sites[A], claims(harness), upper["metadata"]["uid"], body, name="bait"
    )
    await harness.bind("bait", spec_with_claims("bait"))
    found = await harness.upper.until(claims(harness, "bait"), lambda one: condition_of(one, MIRRORED))
    assert condition_of(found, MIRRORED)["reason"] == "NameConflict"
    assert "of-another-tenant" in condition_of(found, MIRRORED)["message"]
    await harness.wait_idle()
    assert "volumeName" not in (await harness.upper.read(claims(harness, "bait")))["spec"]
    assert (await harness.sites[A].read(claims(harness, "bait")))["metadata"]["uid"] == made["metadata"]["uid"]
    assert await harness.sites[A].read(harness.pod_path("bait")) == {}
    await removed(harness, "bait")
    await harness.sites[A].delete(claims(harness, "bait"))


async def removed(harness: EngineHarness, name: str) -> None:
    """Delete the pod and the claim in the upper cluster."""
    await harness.end_pods(name)
    await harness.upper.delete(claims(harness, name))
    await harness.upper.gone(claims(harness, name))


async def test_a_forged_claim_in_place_of_the_placeholders_claim_is_neither_used_nor_deleted(
    harness: EngineHarness, store: Store
) -> None:
    """The data were in the lower claim that the volume refers to.

    Another claim of that name is reported as a conflict and kept.
    """
    assert store
    upper = await harness.upper.create(claims(harness), claim(harness, "swapped"))
    await harness.run_pod("swapped", spec_with_claims("swapped"))
    await harness.upper.until(claims(harness, "swapped"), is_bound)
    volume = await volume_of(harness, "swapped")
    await harness.end_pods("swapped")
    site = harness.sites[A]
    await site.delete(claims(harness, "swapped"))
    await site.gone(claims(harness, "swapped"))
    made = await create_forged_object(
        harness,
        site,
        claims(harness),
        upper["metadata"]["uid"],
        expected_lower_claim(harness, "swapped"),
        name="swapped",
    )
    await harness.bind("swapped", spec_with_claims("swapped"))
    found = await harness.upper.until(
        claims(harness, "swapped"), lambda one: condition_of(one, MIRRORED).get("reason") == "NameConflict"
    )
    assert volume["metadata"]["name"] in condition_of(found, MIRRORED)["message"]
    await harness.wait_idle()
    assert (await site.read(claims(harness, "swapped")))["metadata"]["uid"] == made["metadata"]["uid"]
    assert await site.read(harness.pod_path("swapped")) == {}
    await removed(harness, "swapped")
    await site.delete(claims(harness, "swapped"))
    await harness.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")


async def test_the_claim_that_a_placeholder_refers_to_is_used_despite_a_changed_uid_annotation(
    harness: EngineHarness, store: Store
) -> None:
    """A tenant who changes the UID annotation on the lower claim cuts no pod off from its data."""
    assert store
    await harness.upper.create(claims(harness), claim(harness, "renamed"))
    await harness.run_pod("renamed", spec_with_claims("renamed"))
    await harness.upper.until(claims(harness, "renamed"), is_bound)
    site = harness.sites[A]
    await site.patch(claims(harness, "renamed"), {"metadata": {"annotations": {UPPER_UID: "another"}}})
    await harness.end_pods("renamed")
    await harness.run_pod("renamed", spec_with_claims("renamed"))
    lower = await site.read(claims(harness, "renamed"))
    assert lower["metadata"]["labels"][OWNER] == harness.owner.mark
    volume = await volume_of(harness, "renamed")
    upper = await harness.upper.read(claims(harness, "renamed"))
    notes = {"annotations": {UPPER_UID: upper["metadata"]["uid"]}}
    await site.patch(f"{claims(harness, 'renamed')}?fieldManager=tensile-kube", {"metadata": notes})
    await removed(harness, "renamed")
    await harness.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")
