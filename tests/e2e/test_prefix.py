"""Tests of lower namespaces with the topology's name as prefix: several topologies and upper clusters share a lower."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, Edit, Ground, polled, standing, unstarted, with_fields
from sitekit import Manifest, is_ready

from tensile.names import OWNER, UPPER_NAMESPACE, UPPER_UID, owner_of
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PREFIX = with_fields(lowerDefaults={"namespaces": {"mapping": "prefix"}})
NEEDS = {
    "volumes": [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "password", "secret": {"secretName": "password"}},
    ]
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start a topology whose lower namespaces have its name as their prefix."""
    async with standing(sandbox, tmp_path_factory.mktemp("ground"), PREFIX) as made:
        yield made


def below(ground: Ground, namespace: str = "") -> str:
    """Return the lower name of a namespace."""
    return f"{ground.namespace}-{namespace or ground.namespace}"


async def provided(ground: Ground, namespace: str) -> None:
    """Create the objects that the pods need in the upper cluster."""
    await ground.upper.create(
        ground.path("configmaps", namespace=namespace), {"metadata": {"name": "settings"}, "data": {"key": "value"}}
    )
    await ground.upper.create(
        ground.path("secrets", namespace=namespace), {"metadata": {"name": "password"}, "data": {"key": "dmFsdWU="}}
    )


async def test_a_pod_runs_in_the_prefixed_namespace_with_all_that_it_needs(ground: Ground) -> None:
    """Its copies, exec, logs and affinity terms use that namespace, and its deletion removes the copies."""
    await provided(ground, ground.namespace)
    term = {
        "labelSelector": {"matchLabels": {"app": "none"}},
        "topologyKey": "kubernetes.io/hostname",
        "namespaces": [ground.namespace],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ground.namespace}},
    }
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod = await ground.run_pod("web", {**NEEDS, "affinity": away})
    site, there = ground.sites[A], below(ground)
    lower = await site.read(ground.path("pods", "web", namespace=there))
    assert lower["metadata"]["annotations"][UPPER_UID] == pod["metadata"]["uid"]
    (kept,) = lower["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert kept["namespaces"] == [there]
    assert kept["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": there}
    for plural, name in (("configmaps", "settings"), ("secrets", "password")):
        assert (await site.read(ground.path(plural, name, namespace=there)))["metadata"]["labels"][OWNER]
        assert await site.read(ground.path(plural, name)) == {}
    space = await site.read(f"/api/v1/namespaces/{there}")
    assert space["metadata"]["annotations"][UPPER_NAMESPACE] == ground.namespace
    assert (await ground.kubectl("exec", "web", "--", "echo", "here")).out == "here\n"
    assert (await ground.kubectl("logs", "web")).code == 0
    await ground.end_pods("web")
    await site.gone(*(ground.path(plural, name, namespace=there) for plural, name in (("configmaps", "settings"),)))


async def test_events_of_a_pod_in_a_prefixed_namespace_are_mirrored(ground: Ground) -> None:
    """They are created in the namespace of the upper pod."""
    pod = await ground.run_pod("told")
    there = await ground.sites[A].read(ground.path("pods", "told", namespace=below(ground)))
    about = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": below(ground),
        "name": "told",
        "uid": there["metadata"]["uid"],
    }
    said = {"reason": "Pulling", "message": "hello", "type": "Normal", "source": {"component": "e2e"}}
    event = {"metadata": {"name": "told.1"}, "involvedObject": about, **said}
    await ground.sites[A].create(ground.path("events", namespace=below(ground)), event)
    fields = f"involvedObject.uid={pod['metadata']['uid']},reason=Pulling"
    await ground.upper.until_all(f"{ground.path('events')}?fieldSelector={fields}", bool)
    await ground.end_pods("told")


async def test_the_mapping_changes_only_while_no_pods_are_mirrored(ground: Ground) -> None:
    """While the lower has pods, the change is pending.

    After the deletion of the last pod it comes into force by itself, and new pods use the other namespace.
    """
    await ground.run_pod("first")
    lower = ground.engine.clusters.joined[A].lower
    await ground.reload()
    await ground.calm()
    assert ground.engine.clusters.joined[A].lower is lower
    assert lower.naming is not None, "the prefix stays in force"
    words = f"lowers[{A}].namespaces.mapping: prefix -> same: waits until no pods are mirrored to {A}; "
    assert any(one.startswith(words) for one in ground.engine.pending)
    await ground.run_pod("second")
    assert await ground.sites[A].read(ground.path("pods", "second", namespace=below(ground)))
    await ground.end_pods("first", "second")
    await polled(lambda: not ground.engine.pending and _has_prefix(ground) is False)
    await ground.run_pod("third")
    assert await ground.sites[A].read(ground.pod_path("third"))
    await ground.sites[A].until(
        f"/api/v1/namespaces/{below(ground)}", lambda one: not one or "deletionTimestamp" in one["metadata"]
    )
    await ground.end_pods("third")
    await back_to_prefix(ground)


def _has_prefix(ground: Ground) -> bool | None:
    """Report whether the prefix is in force, None while the lower is being reopened."""
    joined = ground.engine.clusters.joined.get(A)
    return joined.lower.naming is not None if joined else None


async def back_to_prefix(ground: Ground) -> None:
    """Load the prefix mapping again, and wait until it is in force after the last pod's deletion."""
    await ground.reload(PREFIX)
    await polled(lambda: not ground.engine.pending and _has_prefix(ground) is True)


@pytest_asyncio.fixture(loop_scope="module")
async def another(sandbox: Sandbox, tmp_path: Path, ground: Ground) -> AsyncIterator[Ground]:
    """Start a second topology with the same upper and lower clusters."""
    second = Ground(sandbox, tmp_path)
    async with AsyncExitStack() as last:
        await second.open()
        last.push_async_callback(second.close)
        await second.start(PREFIX)
        yield second
        await second.reload(_empty)
        await second.upper.gone(*(f"/api/v1/nodes/{node}" for node in second.nodes.values()))
    assert second.heard.defects == []
    assert ground.heard.defects == []


def _empty(file: Manifest) -> None:
    file["lowers"] = []


async def test_two_topologies_with_pods_in_one_upper_namespace_share_a_lower(ground: Ground, another: Ground) -> None:
    """Each has its own copies, and the deletion of one topology's pod does not change those of the other."""
    shared = f"{ground.namespace}-shared"
    await ground.make_namespace("upper", shared)
    await provided(ground, shared)
    pods = ground.path("pods", namespace=shared)
    for name, one in (("mine", ground), ("theirs", another)):
        await ground.upper.create(pods, one.pod(name, NEEDS))
        await ground.upper.until(f"{pods}/{name}", is_ready)
    site = ground.sites[A]
    here, there = below(ground, shared), f"{another.namespace}-{shared}"
    before = [await site.read(ground.path("configmaps", "settings", namespace=space)) for space in (here, there)]
    assert [one["metadata"]["labels"][OWNER] for one in before] == [ground.owner.mark, another.owner.mark]
    pod = await site.read(ground.path("pods", "theirs", namespace=there))
    await ground.upper.delete(f"{pods}/mine")
    await site.gone(ground.path("configmaps", "settings", namespace=here))
    await ground.calm()
    await another.calm()
    assert await site.read(ground.path("configmaps", "settings", namespace=there)) == before[1]
    after = await site.read(ground.path("pods", "theirs", namespace=there))
    assert after["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
    await ground.upper.delete(f"{pods}/theirs")
    await ground.upper.gone(f"{pods}/theirs")
    await ground.upper.delete(f"/api/v1/namespaces/{shared}")


class OtherUpper(Ground):
    """A ground whose upper cluster is lower-b, and whose only lower cluster is lower-a."""

    home = "kube-system"

    def rendered(self) -> dict[str, list[Manifest]]:
        """Return the roles of the upper cluster for lower-b."""
        found = super().rendered()
        return {B: found[UPPER], A: found[A]}

    async def open(self) -> None:
        """Connect as usual, and use lower-b as the upper cluster."""
        await super().open()
        self.upper = self.sites[B]
        await self.make_namespace(B, self.namespace)
        system = await self.upper.read("/api/v1/namespaces/kube-system")
        self.owner = owner_of(system["metadata"]["uid"], self.namespace)

    def file(self, *edits: Edit) -> Manifest:
        """Return the topology as the file contains it.

        Its nodes have no label `e2e`. To the other engines they are nodes of lower-b, and a selector for a label that
        nodes of a lower cluster have is left to the scheduler there.
        """
        found = super().file(*edits)
        for lower in found["lowers"]:
            lower["node"]["labels"] = {}
        found["upper"]["kubeconfig"] = f"{B}.kubeconfig"
        found["lowers"] = [one for one in found["lowers"] if one["name"] == A]
        return found

    async def close(self) -> None:
        """Delete the namespace in lower-b, which is no other ground's upper cluster."""
        await self.upper.delete(f"/api/v1/namespaces/{self.namespace}")
        await super().close()


@pytest_asyncio.fixture(loop_scope="module")
async def other(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Ground]:
    """Return a ground of another upper cluster that has not been started."""
    async with unstarted(OtherUpper(sandbox, tmp_path)) as made:
        yield made


@pytest.mark.parametrize("mapping", ["same", "prefix"])
async def test_two_upper_clusters_with_the_same_namespace_share_a_lower(
    ground: Ground, other: Ground, mapping: str
) -> None:
    """With a prefix both pods run.

    Without one, the second pod gets a name conflict, and the first one is not touched.
    """
    edit = with_fields(lowerDefaults={"namespaces": {"mapping": mapping}})
    await ground.calm()
    await ground.reload(edit)
    await other.start(edit)
    space = f"{other.namespace}-both"
    for cluster, one in (("upper", ground), (B, other)):
        await one.make_namespace(cluster, space)
        await provided(one, space)
    pods, site = ground.path("pods", namespace=space), ground.sites[A]
    await ground.upper.create(pods, ground.pod("first", NEEDS))
    await ground.upper.until(f"{pods}/first", is_ready)
    here = space if mapping == "same" else below(ground, space)
    before = await site.read(ground.path("configmaps", "settings", namespace=here))
    await other.upper.create(pods, other.pod("second", NEEDS))
    if mapping == "prefix":
        await other.upper.until(f"{pods}/second", is_ready)
    else:
        await other.upper.until(f"{pods}/second", lambda one: one["status"].get("reason") == "NameConflict")
    await other.calm()
    await ground.calm()
    assert await site.read(ground.path("configmaps", "settings", namespace=here)) == before
    assert is_ready(await ground.upper.read(f"{pods}/first"))
    for one, name in ((other, "second"), (ground, "first")):
        await one.upper.delete(f"{pods}/{name}")
        await one.upper.gone(f"{pods}/{name}")
        await one.upper.delete(f"/api/v1/namespaces/{space}")
