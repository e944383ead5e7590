"""Tests of the namespace mapping over restarts: running pods keep their place, claim, tokens and name.

The mapping determines the places. An engine that starts with another mapping therefore uses the one that its Nodes
record until no object is left at the old places. A renamed topology keeps using its former places.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from adoptionkit import map_storage_class, wait_for_adoption
from enginekit import UPPER, A, Edit, EngineHarness, advertised, running_engine, wait_until, with_fields
from forgerkit import HOLD, create_forged_pod, remove_finalizers
from provisionkit import CLASSES, VOLUMES, serving
from sitekit import Manifest, is_ready
from storekit import claim, claims, class_name, is_bound, shipped_class, spec_with_claims, volume_of

from tensile.kubelet.pods.service_account import secret_name
from tensile.names import NAMESPACE_MAPPING, OWNER, UPPER_NAMESPACE, owner_of
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="function")]


def identified(sandbox: Sandbox, mapping: str) -> tuple[Edit, ...]:
    """Return the edits of a topology with a mapping, whose pods get tokens of the upper cluster."""
    server = advertised(sandbox)
    return (
        with_fields(serviceAccounts={"identity": "upper"}, lowerDefaults={"namespaces": {"mapping": mapping}}),
        lambda file: file["upper"].update(advertiseURL=server),
    )


def mapped(harness: EngineHarness, mapping: str) -> tuple[Edit, ...]:
    """Return the edits of such a topology with a storage class."""
    return *identified(harness.sandbox, mapping), map_storage_class(harness)


@asynccontextmanager
async def storing(sandbox: Sandbox, directory: Path, mapping: str) -> AsyncIterator[EngineHarness]:
    """Run an engine with a mapping, and create a storage class in both clusters."""
    async with running_engine(sandbox, directory, *identified(sandbox, mapping)) as harness:
        await harness.upper.create(CLASSES, shipped_class(class_name(harness, "goes")))
        await harness.upper.create(harness.path("serviceaccounts"), {"metadata": {"name": "payer"}})
        async with serving(harness.sites[A], class_name(harness, "disk")):
            await harness.reload(*mapped(harness, mapping))
            yield harness
            await harness.upper.delete(claims(harness))
            await harness.upper.until_all(f"{VOLUMES}?labelSelector={OWNER}={harness.owner.mark}", lambda one: not one)
        await harness.upper.delete(f"{CLASSES}/{class_name(harness, 'goes')}")


def lower_namespace(harness: EngineHarness, mapping: str) -> str:
    """Return the lower namespace of the harness's namespace."""
    return harness.namespace if mapping == "same" else f"{harness.namespace}-{harness.namespace}"


async def a_pod_with_all(harness: EngineHarness) -> str:
    """Run a pod that has a claim and upper tokens, and return its UID."""
    await harness.upper.create(claims(harness), claim(harness, "data"))
    spec = {"serviceAccountName": "payer", **spec_with_claims("data")}
    pod = await harness.run_pod("stays", spec)
    await harness.upper.until(claims(harness, "data"), is_bound)
    return str(pod["metadata"]["uid"])


def identities(*found: Manifest) -> list[str]:
    """Return the UIDs of objects."""
    return [one["metadata"]["uid"] for one in found]


@pytest.mark.parametrize(("before", "after"), [("same", "prefix"), ("prefix", "same")])
@pytest.mark.parametrize("note", [True, False], ids=["noted", "without the note"])
async def test_a_restart_with_another_mapping_moves_no_object(
    sandbox: Sandbox, tmp_path: Path, before: str, after: str, *, note: bool
) -> None:
    """Pod, claim, volume and tokens stay, and new pods use the old mapping.

    The engine switches to the new mapping after the last of these objects.
    """
    async with storing(sandbox, tmp_path, before) as harness:
        uid, site, there = await a_pod_with_all(harness), harness.sites[A], lower_namespace(harness, before)
        paths = [harness.path(*at, namespace=there) for at in (("pods", "stays"), ("persistentvolumeclaims", "data"))]
        volume = (await volume_of(harness, "data"))["metadata"]["name"]
        seen = identities(*[await site.read(path) for path in paths], await harness.upper.read(f"{VOLUMES}/{volume}"))
        await harness.wait_idle()
        await harness.stop()
        stray = await a_stray(harness)
        if not note:
            node = f"/api/v1/nodes/{harness.nodes[A]}"
            await harness.upper.patch(node, {"metadata": {"annotations": {NAMESPACE_MAPPING: None}}})
        await harness.start(*mapped(harness, after))
        await harness.run_pod("new")
        await harness.wait_idle()
        assert await site.read(harness.path("pods", "new", namespace=there))
        now = identities(*[await site.read(path) for path in paths], await harness.upper.read(f"{VOLUMES}/{volume}"))
        assert now == seen
        assert is_ready(await harness.upper.read(harness.pod_path("stays")))
        assert (await harness.kubectl("exec", "stays", "--", "echo", "here")).out == "here\n"
        assert await site.read(harness.path("secrets", secret_name(uid), namespace=there))
        await emptied(harness, volume)
        await switched(harness, after)
        await remove_finalizers(site, stray)
        await site.delete(stray, 0)
        await site.delete(f"/api/v1/namespaces/{stray.split('/')[4]}")


async def a_stray(harness: EngineHarness) -> str:
    """Create a forged pod with a finalizer in a lower namespace to which no upper one maps, and return its path."""
    space = f"aaa-{harness.mark}"
    await harness.make_namespace(A, space)
    await create_forged_pod(harness, harness.sites[A], space, "stray", "nobody", finalizers=[HOLD])
    return harness.path("pods", "stray", namespace=space)


async def emptied(harness: EngineHarness, volume: str) -> None:
    """Delete the pods and the claim, and wait until the volume is deleted."""
    await harness.end_pods("stays", "new")
    await harness.upper.delete(claims(harness, "data"))
    await harness.upper.gone(f"{VOLUMES}/{volume}")


async def switched(harness: EngineHarness, mapping: str) -> None:
    """Wait until the mapping comes into force by itself, and assert that a new pod uses it."""
    await wait_until(lambda: not harness.engine.pending)
    note = "same" if mapping == "same" else f"prefix={harness.namespace}"
    node = f"/api/v1/nodes/{harness.nodes[A]}"
    await harness.upper.until(node, lambda one: one["metadata"]["annotations"][NAMESPACE_MAPPING] == note)
    await harness.run_pod("later")
    assert await harness.sites[A].read(harness.path("pods", "later", namespace=lower_namespace(harness, mapping)))
    await harness.end_pods("later")


@pytest.mark.parametrize("mapping", ["same", "prefix"])
async def test_a_renamed_topology_keeps_the_places_of_its_pods_and_claims(
    sandbox: Sandbox, tmp_path: Path, mapping: str
) -> None:
    """Under a prefix, the places contain the former name; no lower object is created again."""
    async with storing(sandbox, tmp_path, mapping) as harness:
        await a_pod_with_all(harness)
        site, there = harness.sites[A], lower_namespace(harness, mapping)
        paths = [harness.path(*at, namespace=there) for at in (("pods", "stays"), ("persistentvolumeclaims", "data"))]
        seen = identities(*[await site.read(path) for path in paths])
        volume = (await volume_of(harness, "data"))["metadata"]["name"]
        await harness.wait_idle()
        await harness.stop()
        name = f"{harness.namespace}-renamed"
        await harness.start(*mapped(harness, mapping), with_fields(name=name, onConflict="adopt"), await_nodes=False)
        owner = owner_of(harness.owner.upper, name)
        await wait_for_adoption(harness, owner)
        for path in paths:
            await site.until(path, lambda one: one["metadata"]["labels"].get(OWNER) == owner.mark)
        await harness.upper.until(f"{VOLUMES}/{volume}", lambda one: one["metadata"]["labels"][OWNER] == owner.mark)
        await harness.wait_idle()
        assert identities(*[await site.read(path) for path in paths]) == seen
        assert is_ready(await harness.upper.read(harness.pod_path("stays")))
        harness.owner = owner
        await harness.run_pod("new")
        assert await site.read(harness.path("pods", "new", namespace=there))
        await emptied(harness, volume)


async def test_a_prefixed_namespace_of_another_client_is_not_adopted_despite_its_marks(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Its creator may already use it, so neither `global: "true"` nor forged marks lead to its adoption."""
    edits = with_fields(onConflict="adopt", lowerDefaults={"namespaces": {"mapping": "prefix"}})
    async with running_engine(sandbox, tmp_path, edits) as harness:
        site, there = harness.sites[A], lower_namespace(harness, "prefix")
        for meta in (
            {"annotations": {"global": "true"}},
            {"labels": {OWNER: harness.owner.mark}, "annotations": {UPPER_NAMESPACE: harness.namespace}},
        ):
            made = await site.create("/api/v1/namespaces", {"metadata": {"name": there, **meta}})
            await harness.bind("waits")
            message = await harness.wait_for_event(await harness.upper.read(harness.pod_path("waits")), "NameConflict")
            assert there in message
            await harness.wait_idle()
            now = await site.read(f"/api/v1/namespaces/{there}")
            assert now["metadata"].get("annotations") == made["metadata"].get("annotations")
            await harness.end_pods("waits")
            await site.delete(f"/api/v1/namespaces/{there}")
            await site.gone(f"/api/v1/namespaces/{there}")


async def test_a_namespace_named_like_a_truncated_lower_name_reaches_no_other_pods(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Its pods get another lower namespace, and the pods of the truncated one are not touched."""
    edits = with_fields(lowerDefaults={"namespaces": {"mapping": "prefix"}})
    async with running_engine(sandbox, tmp_path, edits) as harness:
        victim = f"v-{harness.mark}-".ljust(61, "v")
        await harness.make_namespace(UPPER, victim)
        path = harness.path("pods", "r", namespace=victim)
        await harness.upper.create(harness.path("pods", namespace=victim), harness.pod("r"))
        await harness.upper.until(path, is_ready)
        site = harness.sites[A]
        found = await site.read(f"/api/v1/namespaces?labelSelector={OWNER}={harness.owner.mark}")
        notes = {one["metadata"]["annotations"][UPPER_NAMESPACE]: one["metadata"]["name"] for one in found["items"]}
        there = notes[victim]
        before = await site.read(harness.path("pods", "r", namespace=there))
        attackers = there.removeprefix(f"{harness.namespace}-")
        await harness.make_namespace(UPPER, attackers)
        await harness.upper.create(harness.path("pods", namespace=attackers), harness.pod("r"))
        await harness.upper.until(harness.path("pods", "r", namespace=attackers), is_ready)
        await harness.wait_idle()
        assert identities(await site.read(harness.path("pods", "r", namespace=there))) == identities(before)
        assert is_ready(await harness.upper.read(path))
        for space in (victim, attackers):
            await harness.upper.delete(harness.path("pods", "r", namespace=space))
            await harness.upper.gone(harness.path("pods", "r", namespace=space))
            await harness.upper.delete(f"/api/v1/namespaces/{space}")
