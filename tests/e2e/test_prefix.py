"""Tests of lower namespaces with the topology's name as prefix: several topologies and upper clusters share a lower."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, Edit, EngineHarness, running_engine, unstarted_engine, wait_until, with_fields
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
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start a topology whose lower namespaces have its name as their prefix."""
    async with running_engine(sandbox, tmp_path_factory.mktemp("ground"), PREFIX) as harness:
        yield harness


def lower_name(harness: EngineHarness, namespace: str = "") -> str:
    """Return the lower name of a namespace."""
    return f"{harness.namespace}-{namespace or harness.namespace}"


async def provided(harness: EngineHarness, namespace: str) -> None:
    """Create the objects that the pods need in the upper cluster."""
    await harness.upper.create(
        harness.path("configmaps", namespace=namespace), {"metadata": {"name": "settings"}, "data": {"key": "value"}}
    )
    await harness.upper.create(
        harness.path("secrets", namespace=namespace), {"metadata": {"name": "password"}, "data": {"key": "dmFsdWU="}}
    )


async def test_a_pod_runs_in_the_prefixed_namespace_with_all_that_it_needs(harness: EngineHarness) -> None:
    """Its copies, exec, logs and affinity terms use that namespace, and its deletion removes the copies."""
    await provided(harness, harness.namespace)
    term = {
        "labelSelector": {"matchLabels": {"app": "none"}},
        "topologyKey": "kubernetes.io/hostname",
        "namespaces": [harness.namespace],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": harness.namespace}},
    }
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod = await harness.run_pod("web", {**NEEDS, "affinity": away})
    site, there = harness.sites[A], lower_name(harness)
    lower = await site.read(harness.path("pods", "web", namespace=there))
    assert lower["metadata"]["annotations"][UPPER_UID] == pod["metadata"]["uid"]
    (kept,) = lower["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert kept["namespaces"] == [there]
    assert kept["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": there}
    for plural, name in (("configmaps", "settings"), ("secrets", "password")):
        assert (await site.read(harness.path(plural, name, namespace=there)))["metadata"]["labels"][OWNER]
        assert await site.read(harness.path(plural, name)) == {}
    space = await site.read(f"/api/v1/namespaces/{there}")
    assert space["metadata"]["annotations"][UPPER_NAMESPACE] == harness.namespace
    assert (await harness.kubectl("exec", "web", "--", "echo", "here")).out == "here\n"
    assert (await harness.kubectl("logs", "web")).code == 0
    await harness.end_pods("web")
    await site.gone(*(harness.path(plural, name, namespace=there) for plural, name in (("configmaps", "settings"),)))


async def test_events_of_a_pod_in_a_prefixed_namespace_are_mirrored(harness: EngineHarness) -> None:
    """They are created in the namespace of the upper pod."""
    pod = await harness.run_pod("told")
    there = await harness.sites[A].read(harness.path("pods", "told", namespace=lower_name(harness)))
    about = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": lower_name(harness),
        "name": "told",
        "uid": there["metadata"]["uid"],
    }
    event_fields = {"reason": "Pulling", "message": "hello", "type": "Normal", "source": {"component": "e2e"}}
    event = {"metadata": {"name": "told.1"}, "involvedObject": about, **event_fields}
    await harness.sites[A].create(harness.path("events", namespace=lower_name(harness)), event)
    fields = f"involvedObject.uid={pod['metadata']['uid']},reason=Pulling"
    await harness.upper.until_all(f"{harness.path('events')}?fieldSelector={fields}", bool)
    await harness.end_pods("told")


async def test_the_mapping_changes_only_while_no_pods_are_mirrored(harness: EngineHarness) -> None:
    """While the lower has pods, the change is pending.

    After the deletion of the last pod it comes into force by itself, and new pods use the other namespace.
    """
    await harness.run_pod("first")
    lower = harness.engine.clusters.joined[A].lower
    await harness.reload()
    await harness.wait_idle()
    assert harness.engine.clusters.joined[A].lower is lower
    assert lower.naming is not None, "the prefix stays in force"
    message = f"lowers[{A}].namespaces.mapping: prefix -> same: waits until no pods are mirrored to {A}; "
    assert any(one.startswith(message) for one in harness.engine.pending)
    await harness.run_pod("second")
    assert await harness.sites[A].read(harness.path("pods", "second", namespace=lower_name(harness)))
    await harness.end_pods("first", "second")
    await wait_until(lambda: not harness.engine.pending and _has_prefix(harness) is False)
    await harness.run_pod("third")
    assert await harness.sites[A].read(harness.pod_path("third"))
    await harness.sites[A].until(
        f"/api/v1/namespaces/{lower_name(harness)}", lambda one: not one or "deletionTimestamp" in one["metadata"]
    )
    await harness.end_pods("third")
    await back_to_prefix(harness)


def _has_prefix(harness: EngineHarness) -> bool | None:
    """Report whether the prefix is in force, None while the lower is being reopened."""
    joined = harness.engine.clusters.joined.get(A)
    return joined.lower.naming is not None if joined else None


async def back_to_prefix(harness: EngineHarness) -> None:
    """Load the prefix mapping again, and wait until it is in force after the last pod's deletion."""
    await harness.reload(PREFIX)
    await wait_until(lambda: not harness.engine.pending and _has_prefix(harness) is True)


@pytest_asyncio.fixture(loop_scope="module")
async def another(sandbox: Sandbox, tmp_path: Path, harness: EngineHarness) -> AsyncIterator[EngineHarness]:
    """Start a second topology with the same upper and lower clusters."""
    second = EngineHarness(sandbox, tmp_path)
    async with AsyncExitStack() as last:
        await second.open()
        last.push_async_callback(second.close)
        await second.start(PREFIX)
        yield second
        await second.reload(_empty)
        await second.upper.gone(*(f"/api/v1/nodes/{node}" for node in second.nodes.values()))
    assert second.loop_recorder.defects == []
    assert harness.loop_recorder.defects == []


def _empty(file: Manifest) -> None:
    file["lowers"] = []


async def test_two_topologies_with_pods_in_one_upper_namespace_share_a_lower(
    harness: EngineHarness, another: EngineHarness
) -> None:
    """Each has its own copies, and the deletion of one topology's pod does not change those of the other."""
    shared = f"{harness.namespace}-shared"
    await harness.make_namespace("upper", shared)
    await provided(harness, shared)
    pods = harness.path("pods", namespace=shared)
    for name, one in (("mine", harness), ("theirs", another)):
        await harness.upper.create(pods, one.pod(name, NEEDS))
        await harness.upper.until(f"{pods}/{name}", is_ready)
    site = harness.sites[A]
    here, there = lower_name(harness, shared), f"{another.namespace}-{shared}"
    before = [await site.read(harness.path("configmaps", "settings", namespace=space)) for space in (here, there)]
    assert [one["metadata"]["labels"][OWNER] for one in before] == [harness.owner.mark, another.owner.mark]
    pod = await site.read(harness.path("pods", "theirs", namespace=there))
    await harness.upper.delete(f"{pods}/mine")
    await site.gone(harness.path("configmaps", "settings", namespace=here))
    await harness.wait_idle()
    await another.wait_idle()
    assert await site.read(harness.path("configmaps", "settings", namespace=there)) == before[1]
    after = await site.read(harness.path("pods", "theirs", namespace=there))
    assert after["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
    await harness.upper.delete(f"{pods}/theirs")
    await harness.upper.gone(f"{pods}/theirs")
    await harness.upper.delete(f"/api/v1/namespaces/{shared}")


class SwappedUpperHarness(EngineHarness):
    """A harness whose upper cluster is lower-b, and whose only lower cluster is lower-a."""

    engine_namespace = "kube-system"

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
async def other(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[EngineHarness]:
    """Return a harness of another upper cluster that has not been started."""
    async with unstarted_engine(SwappedUpperHarness(sandbox, tmp_path)) as harness:
        yield harness


@pytest.mark.parametrize("mapping", ["same", "prefix"])
async def test_two_upper_clusters_with_the_same_namespace_share_a_lower(
    harness: EngineHarness, other: EngineHarness, mapping: str
) -> None:
    """With a prefix both pods run.

    Without one, the second pod gets a name conflict, and the first one is not touched.
    """
    edit = with_fields(lowerDefaults={"namespaces": {"mapping": mapping}})
    await harness.wait_idle()
    await harness.reload(edit)
    await other.start(edit)
    space = f"{other.namespace}-both"
    for cluster, one in (("upper", harness), (B, other)):
        await one.make_namespace(cluster, space)
        await provided(one, space)
    pods, site = harness.path("pods", namespace=space), harness.sites[A]
    await harness.upper.create(pods, harness.pod("first", NEEDS))
    await harness.upper.until(f"{pods}/first", is_ready)
    here = space if mapping == "same" else lower_name(harness, space)
    before = await site.read(harness.path("configmaps", "settings", namespace=here))
    await other.upper.create(pods, other.pod("second", NEEDS))
    if mapping == "prefix":
        await other.upper.until(f"{pods}/second", is_ready)
    else:
        await other.upper.until(f"{pods}/second", lambda one: one["status"].get("reason") == "NameConflict")
    await other.wait_idle()
    await harness.wait_idle()
    assert await site.read(harness.path("configmaps", "settings", namespace=here)) == before
    assert is_ready(await harness.upper.read(f"{pods}/first"))
    for one, name in ((other, "second"), (harness, "first")):
        await one.upper.delete(f"{pods}/{name}")
        await one.upper.gone(f"{pods}/{name}")
        await one.upper.delete(f"/api/v1/namespaces/{space}")
