"""The MutatingAdmissionPolicy on a real apiserver: pods are created as the engine needs them, and not written to."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import LIMIT, A, Edit, Ground, policies_of, standing
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
    """Return an edit that gives every virtual node a taint of these effects, which no other topology's node has."""

    def edit(file: Manifest) -> None:
        for lower in file["lowers"]:
            lower["node"]["taints"] = [{"key": KEY, "value": "a.b", "effect": effect} for effect in effects]

    return edit


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """An engine whose virtual nodes have a taint that keeps pods off, and one that evicts them."""
    async with standing(sandbox, tmp_path_factory.mktemp("ground"), tainted("NoSchedule", "NoExecute")) as made:
        yield made


async def tried(ground: Ground, *tolerations: Manifest, spec: Manifest | None = None, **labels: str) -> Manifest:
    """Return for how long a pod that is created now tolerates a failed node; nothing is stored."""
    wanted = {"containers": [{"name": "main", "image": "app:1"}], "tolerations": list(tolerations), **(spec or {})}
    pod = {"metadata": {"name": "tried", "labels": labels}, "spec": wanted}
    return seconds(await ground.upper.create(f"{ground.path('pods')}?dryRun=All", pod))


def seconds(pod: Manifest) -> Manifest:
    """Return for how long a pod tolerates a node that is not ready or unreachable."""
    found = pod["spec"]["tolerations"]
    return {one["key"]: one.get("tolerationSeconds") for one in found if one.get("key") in ENDS}


async def until_tried(ground: Ground, wanted: Manifest, *tolerations: Manifest) -> None:
    """Wait until pods with these tolerations are created like that: the apiserver knows of a policy after a moment."""
    async with asyncio.timeout(LIMIT):
        while await tried(ground, *tolerations) != wanted:  # noqa: ASYNC110 - nothing tells when an apiserver knows it
            await asyncio.sleep(0.05)


async def test_a_pod_on_a_virtual_node_is_never_written_to_but_for_its_status(ground: Ground) -> None:
    """Its generation stays 1 until it is ready, and the audit log has no write of the engine to its spec."""
    await until_tried(ground, ENDLESS, EXISTS)
    await ground.note()
    made = await ground.bind("quiet", {"tolerations": [EXISTS]})
    found = await ground.upper.until(ground.pod_path("quiet"), is_ready)
    assert (made["metadata"]["generation"], found["metadata"]["generation"]) == (1, 1)
    await ground.calm()
    assert [one for one in await ground.writes() if one.cluster == "upper"] == []


@pytest.mark.parametrize("tolerations", [[EXISTS], [EQUAL, {**EQUAL, "effect": "NoSchedule"}], [OTHER, EXISTS]])
async def test_a_pod_that_tolerates_a_virtual_nodes_taints_stays_without_a_limit(
    ground: Ground, tolerations: list[Manifest]
) -> None:
    """However it says that it does."""
    await until_tried(ground, ENDLESS, EXISTS)
    assert await tried(ground, *tolerations) == ENDLESS


@pytest.mark.parametrize(
    "tolerations", [[], [OTHER], [EQUAL], [{**EXISTS, "effect": "NoSchedule"}], [{**EXISTS, "operator": "Equal"}]]
)
async def test_a_pod_that_no_virtual_node_takes_is_left_alone(ground: Ground, tolerations: list[Manifest]) -> None:
    """It runs on real nodes, and is to be evicted when one fails."""
    await until_tried(ground, ENDLESS, EXISTS)
    assert await tried(ground, *tolerations) == ENDS


async def test_a_pod_that_asks_for_a_virtual_node_otherwise_stays_without_a_limit(ground: Ground) -> None:
    """By its label, or by the node's name."""
    await until_tried(ground, ENDLESS, EXISTS)
    assert await tried(ground, **{"virtual-pod": "true"}) == ENDLESS
    assert await tried(ground, spec={"nodeName": ground.nodes[A]}) == ENDLESS


async def test_tolerations_that_are_written_anew_lose_their_limit_again(ground: Ground) -> None:
    """Kubernetes gives the pod its 300 seconds once more; the engine has nothing to write."""
    await until_tried(ground, ENDLESS, EXISTS)
    path = ground.pod_path("written")
    await ground.bind("written", {"tolerations": [EXISTS]})
    found = await ground.upper.until(path, is_ready)
    await ground.note()
    changed = await ground.upper.patch(path, {"spec": {"tolerations": [*found["spec"]["tolerations"], OTHER]}})
    assert (seconds(changed), changed["metadata"]["generation"]) == (ENDLESS, 2)
    await ground.calm()
    assert [one for one in await ground.writes() if one.cluster == "upper"] == []


async def test_a_pod_that_names_another_node_is_left_alone(ground: Ground) -> None:
    """It runs there, whatever it tolerates, and is to be evicted when that node fails."""
    await until_tried(ground, ENDLESS, EXISTS)
    assert await tried(ground, EXISTS, spec={"nodeName": "real"}) == ENDS


async def test_seconds_that_an_author_wrote_go_as_well(ground: Ground) -> None:
    """The engine would take them off after the pod is bound."""
    await until_tried(ground, ENDLESS, EXISTS)
    short = {"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    assert await tried(ground, short, EXISTS) == ENDLESS


async def test_an_edit_of_the_taints_counts_and_a_real_node_keeps_its_evictions(ground: Ground) -> None:
    """Where a virtual node has no taints, every pod may run there; not so once the upper has a real node as well."""
    await ground.reload(tainted())
    await until_tried(ground, ENDLESS)
    await ground.upper.create("/api/v1/nodes", {"metadata": {"name": f"real-{ground.mark}"}})
    try:
        await ground.reload(tainted(), lambda file: file.update(ignoreLabels=[]))
        await until_tried(ground, ENDS)
    finally:
        await ground.upper.delete(f"/api/v1/nodes/real-{ground.mark}")


async def test_it_is_taken_back_with_the_last_lower_cluster(ground: Ground) -> None:
    """A topology without lower clusters leaves nothing behind that takes part in the creation of pods."""
    await ground.reload(lambda file: file.update(lowers=[]))
    await ground.upper.gone(*policies_of(ground.namespace))
    await ground.reload(tainted("NoSchedule", "NoExecute"))
    await until_tried(ground, ENDLESS, EXISTS)
