"""Tests of the namespace mapping over restarts: running pods keep their place, claim, tokens and name.

The mapping determines the places. An engine that starts with another mapping therefore uses the one that its Nodes
record until no object is left at the old places. A renamed topology keeps using its former places.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from adoptionkit import nodes_taken, stored
from enginekit import UPPER, A, Edit, Ground, advertised, polled, standing, with_fields
from forgerkit import HOLD, forge, release
from provisionkit import CLASSES, VOLUMES, serving
from sitekit import Manifest, is_ready
from storekit import claim, claims, is_bound, mark, shipped, using, volume_of

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


def mapped(ground: Ground, mapping: str) -> tuple[Edit, ...]:
    """Return the edits of such a topology with a storage class."""
    return *identified(ground.sandbox, mapping), stored(ground)


@asynccontextmanager
async def storing(sandbox: Sandbox, directory: Path, mapping: str) -> AsyncIterator[Ground]:
    """Run an engine with a mapping, and create a storage class in both clusters."""
    async with standing(sandbox, directory, *identified(sandbox, mapping)) as ground:
        await ground.upper.create(CLASSES, shipped(mark(ground, "goes")))
        await ground.upper.create(ground.path("serviceaccounts"), {"metadata": {"name": "payer"}})
        async with serving(ground.sites[A], mark(ground, "disk")):
            await ground.reload(*mapped(ground, mapping))
            yield ground
            await ground.upper.delete(claims(ground))
            await ground.upper.until_all(f"{VOLUMES}?labelSelector={OWNER}={ground.owner.mark}", lambda one: not one)
        await ground.upper.delete(f"{CLASSES}/{mark(ground, 'goes')}")


def place(ground: Ground, mapping: str) -> str:
    """Return the lower namespace of the ground's namespace."""
    return ground.namespace if mapping == "same" else f"{ground.namespace}-{ground.namespace}"


async def a_pod_with_all(ground: Ground) -> str:
    """Run a pod that has a claim and upper tokens, and return its UID."""
    await ground.upper.create(claims(ground), claim(ground, "data"))
    spec = {"serviceAccountName": "payer", **using("data")}
    pod = await ground.run_pod("stays", spec)
    await ground.upper.until(claims(ground, "data"), is_bound)
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
    async with storing(sandbox, tmp_path, before) as ground:
        uid, site, there = await a_pod_with_all(ground), ground.sites[A], place(ground, before)
        paths = [ground.path(*at, namespace=there) for at in (("pods", "stays"), ("persistentvolumeclaims", "data"))]
        volume = (await volume_of(ground, "data"))["metadata"]["name"]
        seen = identities(*[await site.read(path) for path in paths], await ground.upper.read(f"{VOLUMES}/{volume}"))
        await ground.calm()
        await ground.stop()
        stray = await a_stray(ground)
        if not note:
            node = f"/api/v1/nodes/{ground.nodes[A]}"
            await ground.upper.patch(node, {"metadata": {"annotations": {NAMESPACE_MAPPING: None}}})
        await ground.start(*mapped(ground, after))
        await ground.run_pod("new")
        await ground.calm()
        assert await site.read(ground.path("pods", "new", namespace=there))
        now = identities(*[await site.read(path) for path in paths], await ground.upper.read(f"{VOLUMES}/{volume}"))
        assert now == seen
        assert is_ready(await ground.upper.read(ground.pod_path("stays")))
        assert (await ground.kubectl("exec", "stays", "--", "echo", "here")).out == "here\n"
        assert await site.read(ground.path("secrets", secret_name(uid), namespace=there))
        await emptied(ground, volume)
        await switched(ground, after)
        await release(site, stray)
        await site.delete(stray, 0)
        await site.delete(f"/api/v1/namespaces/{stray.split('/')[4]}")


async def a_stray(ground: Ground) -> str:
    """Create a forged pod with a finalizer in a lower namespace to which no upper one maps, and return its path."""
    space = f"aaa-{ground.mark}"
    await ground.make_namespace(A, space)
    await forge(ground, ground.sites[A], space, "stray", "nobody", finalizers=[HOLD])
    return ground.path("pods", "stray", namespace=space)


async def emptied(ground: Ground, volume: str) -> None:
    """Delete the pods and the claim, and wait until the volume is deleted."""
    await ground.end_pods("stays", "new")
    await ground.upper.delete(claims(ground, "data"))
    await ground.upper.gone(f"{VOLUMES}/{volume}")


async def switched(ground: Ground, mapping: str) -> None:
    """Wait until the mapping comes into force by itself, and assert that a new pod uses it."""
    await polled(lambda: not ground.engine.pending)
    note = "same" if mapping == "same" else f"prefix={ground.namespace}"
    node = f"/api/v1/nodes/{ground.nodes[A]}"
    await ground.upper.until(node, lambda one: one["metadata"]["annotations"][NAMESPACE_MAPPING] == note)
    await ground.run_pod("later")
    assert await ground.sites[A].read(ground.path("pods", "later", namespace=place(ground, mapping)))
    await ground.end_pods("later")


@pytest.mark.parametrize("mapping", ["same", "prefix"])
async def test_a_renamed_topology_keeps_the_places_of_its_pods_and_claims(
    sandbox: Sandbox, tmp_path: Path, mapping: str
) -> None:
    """Under a prefix, the places contain the former name; no lower object is created again."""
    async with storing(sandbox, tmp_path, mapping) as ground:
        await a_pod_with_all(ground)
        site, there = ground.sites[A], place(ground, mapping)
        paths = [ground.path(*at, namespace=there) for at in (("pods", "stays"), ("persistentvolumeclaims", "data"))]
        seen = identities(*[await site.read(path) for path in paths])
        volume = (await volume_of(ground, "data"))["metadata"]["name"]
        await ground.calm()
        await ground.stop()
        name = f"{ground.namespace}-renamed"
        await ground.start(*mapped(ground, mapping), with_fields(name=name, onConflict="adopt"), await_nodes=False)
        owner = owner_of(ground.owner.upper, name)
        await nodes_taken(ground, owner)
        for path in paths:
            await site.until(path, lambda one: one["metadata"]["labels"].get(OWNER) == owner.mark)
        await ground.upper.until(f"{VOLUMES}/{volume}", lambda one: one["metadata"]["labels"][OWNER] == owner.mark)
        await ground.calm()
        assert identities(*[await site.read(path) for path in paths]) == seen
        assert is_ready(await ground.upper.read(ground.pod_path("stays")))
        ground.owner = owner
        await ground.run_pod("new")
        assert await site.read(ground.path("pods", "new", namespace=there))
        await emptied(ground, volume)


async def test_a_prefixed_namespace_of_another_client_is_not_adopted_despite_its_marks(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Its creator may already use it, so neither `global: "true"` nor forged marks lead to its adoption."""
    edits = with_fields(onConflict="adopt", lowerDefaults={"namespaces": {"mapping": "prefix"}})
    async with standing(sandbox, tmp_path, edits) as ground:
        site, there = ground.sites[A], place(ground, "prefix")
        for meta in (
            {"annotations": {"global": "true"}},
            {"labels": {OWNER: ground.owner.mark}, "annotations": {UPPER_NAMESPACE: ground.namespace}},
        ):
            made = await site.create("/api/v1/namespaces", {"metadata": {"name": there, **meta}})
            await ground.bind("waits")
            message = await ground.told(await ground.upper.read(ground.pod_path("waits")), "NameConflict")
            assert there in message
            await ground.calm()
            now = await site.read(f"/api/v1/namespaces/{there}")
            assert now["metadata"].get("annotations") == made["metadata"].get("annotations")
            await ground.end_pods("waits")
            await site.delete(f"/api/v1/namespaces/{there}")
            await site.gone(f"/api/v1/namespaces/{there}")


async def test_a_namespace_named_like_a_truncated_lower_name_reaches_no_other_pods(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Its pods get another lower namespace, and the pods of the truncated one are not touched."""
    edits = with_fields(lowerDefaults={"namespaces": {"mapping": "prefix"}})
    async with standing(sandbox, tmp_path, edits) as ground:
        victim = f"v-{ground.mark}-".ljust(61, "v")
        await ground.make_namespace(UPPER, victim)
        path = ground.path("pods", "r", namespace=victim)
        await ground.upper.create(ground.path("pods", namespace=victim), ground.pod("r"))
        await ground.upper.until(path, is_ready)
        site = ground.sites[A]
        found = await site.read(f"/api/v1/namespaces?labelSelector={OWNER}={ground.owner.mark}")
        notes = {one["metadata"]["annotations"][UPPER_NAMESPACE]: one["metadata"]["name"] for one in found["items"]}
        there = notes[victim]
        before = await site.read(ground.path("pods", "r", namespace=there))
        attackers = there.removeprefix(f"{ground.namespace}-")
        await ground.make_namespace(UPPER, attackers)
        await ground.upper.create(ground.path("pods", namespace=attackers), ground.pod("r"))
        await ground.upper.until(ground.path("pods", "r", namespace=attackers), is_ready)
        await ground.calm()
        assert identities(await site.read(ground.path("pods", "r", namespace=there))) == identities(before)
        assert is_ready(await ground.upper.read(path))
        for space in (victim, attackers):
            await ground.upper.delete(ground.path("pods", "r", namespace=space))
            await ground.upper.gone(ground.path("pods", "r", namespace=space))
            await ground.upper.delete(f"/api/v1/namespaces/{space}")
