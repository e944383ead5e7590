"""Tests of the MutatingAdmissionPolicy on a real apiserver.

It sets the tolerations of pods at creation, so that the engine never has to write to the pods afterwards.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import LIMIT, A, Edit, EngineHarness, policies_of, running_engine
from sitekit import Manifest, is_ready

from tensile.reconcile.pods.scheduling import NOT_READY, UNREACHABLE
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

KEY = "e2e.example.com/admission"
ENDS = {NOT_READY: 300, UNREACHABLE: 300}
ENDLESS = {NOT_READY: None, UNREACHABLE: None}
EXISTS, EQUAL = {"key": KEY, "operator": "Exists"}, {"key": KEY, "value": "a.b", "effect": "NoExecute"}
OTHER = {"key": "example.com/other", "operator": "Exists"}


def tainted(*effects: str) -> Edit:
    """Return an edit that sets taints with these effects, whose key no other topology uses, on every virtual node."""

    def edit(file: Manifest) -> None:
        for lower in file["lowers"]:
            lower["node"]["taints"] = [{"key": KEY, "value": "a.b", "effect": effect} for effect in effects]

    return edit


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine whose virtual nodes have a NoSchedule taint and a NoExecute taint."""
    async with running_engine(
        sandbox, tmp_path_factory.mktemp("ground"), tainted("NoSchedule", "NoExecute")
    ) as harness:
        yield harness


async def tried(
    harness: EngineHarness, *tolerations: Manifest, spec: Manifest | None = None, **labels: str
) -> Manifest:
    """Return for how long a pod that is created now tolerates a failed node.

    The request is a dry run, which stores nothing.
    """
    wanted = {"containers": [{"name": "main", "image": "app:1"}], "tolerations": list(tolerations), **(spec or {})}
    pod = {"metadata": {"name": "tried", "labels": labels}, "spec": wanted}
    return seconds(await harness.upper.create(f"{harness.path('pods')}?dryRun=All", pod))


def seconds(pod: Manifest) -> Manifest:
    """Return for how long a pod tolerates a node that is not ready or unreachable."""
    found = pod["spec"]["tolerations"]
    return {one["key"]: one.get("tolerationSeconds") for one in found if one.get("key") in ENDS}


async def until_tried(harness: EngineHarness, wanted: Manifest, *tolerations: Manifest) -> None:
    """Wait until new pods get the wanted tolerations, because an apiserver applies a new policy with a delay."""
    async with asyncio.timeout(LIMIT):
        while await tried(harness, *tolerations) != wanted:  # noqa: ASYNC110 - no watch reports it
            await asyncio.sleep(0.05)


async def test_the_engine_writes_only_to_the_status_of_a_pod_on_a_virtual_node(harness: EngineHarness) -> None:
    """The generation stays 1 until the pod is ready, and the audit log has no write of the engine in the upper cluster.

    Writes to the status are not counted.
    """
    await until_tried(harness, ENDLESS, EXISTS)
    await harness.mark_audit_logs()
    made = await harness.bind("quiet", {"tolerations": [EXISTS]})
    found = await harness.upper.until(harness.pod_path("quiet"), is_ready)
    assert (made["metadata"]["generation"], found["metadata"]["generation"]) == (1, 1)
    await harness.wait_idle()
    assert [one for one in await harness.writes() if one.cluster == "upper"] == []


@pytest.mark.parametrize("tolerations", [[EXISTS], [EQUAL, {**EQUAL, "effect": "NoSchedule"}], [OTHER, EXISTS]])
async def test_a_pod_that_tolerates_the_taints_of_a_virtual_node_has_no_limit_for_failed_nodes(
    harness: EngineHarness, tolerations: list[Manifest]
) -> None:
    """This holds for every form of a toleration of these taints."""
    await until_tried(harness, ENDLESS, EXISTS)
    assert await tried(harness, *tolerations) == ENDLESS


@pytest.mark.parametrize(
    "tolerations", [[], [OTHER], [EQUAL], [{**EXISTS, "effect": "NoSchedule"}], [{**EXISTS, "operator": "Equal"}]]
)
async def test_a_pod_that_tolerates_the_taints_of_no_virtual_node_is_not_changed(
    harness: EngineHarness, tolerations: list[Manifest]
) -> None:
    """Such a pod runs on real nodes, and must be evicted when one of them fails."""
    await until_tried(harness, ENDLESS, EXISTS)
    assert await tried(harness, *tolerations) == ENDS


async def test_a_pod_with_the_virtual_pod_label_or_a_virtual_node_name_has_no_limit(harness: EngineHarness) -> None:
    """The label `virtual-pod` or the name of a virtual node in `nodeName` is enough, without a toleration."""
    await until_tried(harness, ENDLESS, EXISTS)
    assert await tried(harness, **{"virtual-pod": "true"}) == ENDLESS
    assert await tried(harness, spec={"nodeName": harness.nodes[A]}) == ENDLESS


async def test_rewritten_tolerations_lose_their_limit_at_admission(harness: EngineHarness) -> None:
    """Kubernetes adds its 300 seconds to the update again, the policy removes them, and the engine writes nothing."""
    await until_tried(harness, ENDLESS, EXISTS)
    path = harness.pod_path("written")
    await harness.bind("written", {"tolerations": [EXISTS]})
    found = await harness.upper.until(path, is_ready)
    await harness.mark_audit_logs()
    changed = await harness.upper.patch(path, {"spec": {"tolerations": [*found["spec"]["tolerations"], OTHER]}})
    assert (seconds(changed), changed["metadata"]["generation"]) == (ENDLESS, 2)
    await harness.wait_idle()
    assert [one for one in await harness.writes() if one.cluster == "upper"] == []


async def test_a_pod_with_the_node_name_of_a_real_node_is_not_changed(harness: EngineHarness) -> None:
    """The pod runs on that node even if it tolerates a virtual one, and must be evicted when the node fails."""
    await until_tried(harness, ENDLESS, EXISTS)
    assert await tried(harness, EXISTS, spec={"nodeName": "real"}) == ENDS


async def test_toleration_seconds_that_the_author_set_are_removed_too(harness: EngineHarness) -> None:
    """Otherwise the engine would have to remove them after the pod is bound."""
    await until_tried(harness, ENDLESS, EXISTS)
    short = {"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    assert await tried(harness, short, EXISTS) == ENDLESS


async def test_the_policy_follows_edits_of_the_taints_and_the_creation_of_a_real_node(harness: EngineHarness) -> None:
    """If a virtual node has no taints, every pod may run on it.

    Once the upper cluster has a real node too, pods keep their limit of 300 seconds.
    """
    await harness.reload(tainted())
    await until_tried(harness, ENDLESS)
    await harness.upper.create("/api/v1/nodes", {"metadata": {"name": f"real-{harness.mark}"}})
    try:
        await harness.reload(tainted(), lambda file: file.update(ignoreLabels=[]))
        await until_tried(harness, ENDS)
    finally:
        await harness.upper.delete(f"/api/v1/nodes/real-{harness.mark}")


async def test_the_policy_is_deleted_with_the_last_lower_cluster(harness: EngineHarness) -> None:
    """A topology without lower clusters leaves no policy or binding that takes part in the creation of pods."""
    await harness.reload(lambda file: file.update(lowers=[]))
    await harness.upper.gone(*policies_of(harness.namespace))
    await harness.reload(tainted("NoSchedule", "NoExecute"))
    await until_tried(harness, ENDLESS, EXISTS)
