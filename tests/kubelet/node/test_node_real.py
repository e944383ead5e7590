"""Tests of the virtual node on a real apiserver: what the engine writes equals what it reads, so it stops writing."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
import pytest
from sitekit import Site
from worldkit import NOW, apply_topology, make_lower_node, make_world, put

from tensile.errors import ClusterError, Conflict, NotFound
from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.kubelet.node.rule import NodeRule
from tensile.names import CORDONED_BY, UNREACHABLE_TAINT
from tensile.objects import NODE, UPPER, Manifest, Ref
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.world import Key, Problem

if TYPE_CHECKING:
    from tensile.reconcile.plan import Step
    from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

PROVIDER = "virtual-kubelet.io/provider"


class VirtualNodeLoop:
    """A virtual node in the upper cluster and the loop that maintains it, with another client for other writes."""

    def __init__(self, upper: HttpCluster, somebody: Site) -> None:
        self.upper = upper
        self.other_client = somebody
        self.name = f"vk-{uuid4().hex[:8]}"
        self.ref = Ref(UPPER, NODE, "", self.name)
        self.world = make_world(f"name: {self.name}")
        self.lower = self.world.lowers[self.name]
        self.steps: list[str] = []
        self.problems: list[object] = []
        self.loop = Loop(self.world, (NodeRule(),), {UPPER: upper}, self, Timing(lambda: NOW, lambda: 0.0))
        put(self.lower.nodes, make_lower_node())

    def on_step(self, _key: Key, step: "Step", error: ClusterError | None) -> None:
        """Record a step that succeeded; a conflict with the node controller is no failure."""
        if error is None:
            self.steps.append(f"{step.verb} {step.subresource}".strip())
        elif not isinstance(error, Conflict):
            self.problems.append(error)

    def on_blocked(self, _key: Key, problem: Problem) -> None:
        """Record a problem."""
        self.problems.append(problem)

    def on_unexpected_error(self, _key: Key, error: Exception) -> None:
        """Record a defect of a rule."""
        self.problems.append(error)

    async def settled(self) -> list[str]:
        """Let the loop observe the current Node until it is idle, and return the steps that this took."""
        with suppress(NotFound):
            self.world.upper.nodes.put(await self.upper.read(self.ref))
        self.steps.clear()
        self.loop.add(Key("node", self.name, "", self.name))
        await self.loop.wait_idle()
        while self.loop.expedite(5.0):
            await self.loop.wait_idle()
        assert self.problems == []
        return list(self.steps)

    async def written(self, body: Manifest, subresource: str = "") -> None:
        """Write to the Node as another client."""
        await self.other_client.patch(self.ref.path(subresource), body, "strategic")

    async def seen(self) -> Any:
        """Read the Node."""
        return orjson.loads(await self.upper.read(self.ref))

    def taint(self, *taints: str) -> None:
        """Reload a topology that gives the node these taints and the label zone, and no others."""
        given = ", ".join(f"{{key: {key}, effect: NoSchedule}}" for key in taints)
        apply_topology(self.world, f"name: {self.name}, node: {{labels: {{zone: z1}}, taints: [{given}]}}")


@pytest.fixture
async def virtual(sandbox: "Sandbox") -> AsyncIterator[VirtualNodeLoop]:
    """Create a node for the test by the loop, and delete it afterwards."""
    upper = HttpCluster(UPPER, await from_kubeconfig(sandbox.directory / "upper.kubeconfig"))
    made = VirtualNodeLoop(upper, Site(sandbox.clusters["upper"]))
    made.loop.open(made.name)
    await made.loop.wait_idle()
    yield made
    await made.loop.close(made.name)
    await upper.delete(made.ref, uid=(await made.seen())["metadata"]["uid"])
    await made.other_client.close()
    await upper.close()


def keys(node: Manifest) -> set[str]:
    """Return the keys of the Node's taints."""
    return {taint["key"] for taint in node["spec"].get("taints") or ()}


async def test_a_created_node_needs_no_further_write(virtual: VirtualNodeLoop) -> None:
    """The API's defaults and dropped fields do not count as differences."""
    assert virtual.steps == ["create"]
    assert await virtual.settled() == []
    node = await virtual.seen()
    assert node["status"]["allocatable"] == {"cpu": "4", "memory": "8Gi", "pods": "110"}
    assert PROVIDER in keys(node)


async def test_a_change_of_the_topology_needs_one_write(virtual: VirtualNodeLoop) -> None:
    """Labels and taints that were removed from the topology are removed from the Node by one patch."""
    virtual.taint("example.com/one", "example.com/two")
    assert await virtual.settled() == ["patch"]
    node = await virtual.seen()
    assert node["metadata"]["labels"]["zone"] == "z1"
    assert {"example.com/one", "example.com/two"} <= keys(node)
    assert PROVIDER not in keys(node)
    apply_topology(virtual.world, f"name: {virtual.name}")
    assert await virtual.settled() == ["patch"]
    node = await virtual.seen()
    assert "zone" not in node["metadata"]["labels"]
    assert not {"example.com/one", "example.com/two"} & keys(node)
    assert await virtual.settled() == []


async def test_labels_annotations_cordon_and_taints_of_other_writers_are_kept(virtual: VirtualNodeLoop) -> None:
    """They cause no write, and a later change of the topology's taints preserves them."""
    node = await virtual.seen()
    theirs = {"key": "example.com/theirs", "effect": "NoExecute"}
    await virtual.written(
        {
            "metadata": {"labels": {"theirs": "yes"}, "annotations": {"theirs": "yes"}},
            "spec": {"unschedulable": True, "taints": [theirs, *node["spec"]["taints"]]},
        }
    )
    assert await virtual.settled() == []
    virtual.taint("example.com/one")
    await virtual.settled()
    node = await virtual.seen()
    assert {"example.com/theirs", "example.com/one"} <= keys(node)
    assert node["metadata"]["labels"]["theirs"] == node["metadata"]["annotations"]["theirs"] == "yes"
    assert node["spec"]["unschedulable"] is True


async def test_changed_or_removed_labels_are_restored(virtual: VirtualNodeLoop) -> None:
    """The engine restores the labels of the topology and creates an Event about it."""
    await virtual.written({"metadata": {"labels": {"type": "wrong", "clusterID": None}}})
    assert await virtual.settled() == ["create", "patch"]
    labels = (await virtual.seen())["metadata"]["labels"]
    assert (labels["type"], labels["clusterID"]) == ("virtual-kubelet", virtual.name)


async def test_maintenance_cordons_the_node_and_its_end_uncordons_it(virtual: VirtualNodeLoop) -> None:
    """An annotation marks the cordon, to distinguish it from one by another client."""
    apply_topology(virtual.world, f"name: {virtual.name}, maintenance: cordon")
    assert await virtual.settled() == ["patch"]
    node = await virtual.seen()
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"][CORDONED_BY] == "maintenance-cordon"
    assert await virtual.settled() == []
    apply_topology(virtual.world, f"name: {virtual.name}")
    assert await virtual.settled() == ["patch"]
    node = await virtual.seen()
    assert "unschedulable" not in node["spec"]
    assert CORDONED_BY not in node["metadata"]["annotations"]
    assert await virtual.settled() == []


async def test_a_write_based_on_an_outdated_node_is_computed_again(virtual: VirtualNodeLoop) -> None:
    """Taints are replaced as a list, so only the resourceVersion protects one that was added in between."""
    node = await virtual.seen()
    virtual.taint("example.com/one")
    theirs = {"key": "example.com/theirs", "effect": "NoSchedule"}
    await virtual.written({"spec": {"taints": [*node["spec"]["taints"], theirs]}})
    virtual.loop.add(Key("node", virtual.name, "", virtual.name))
    await virtual.loop.wait_idle()
    await virtual.settled()
    assert {"example.com/theirs", "example.com/one"} <= keys(await virtual.seen())


def _silent(virtual: VirtualNodeLoop) -> None:
    virtual.lower.unreachable_seconds = 60.0


def _smaller(virtual: VirtualNodeLoop) -> None:
    put(virtual.lower.nodes, make_lower_node(cpu="1"))


def _left(virtual: VirtualNodeLoop) -> None:
    virtual.lower.in_topology = False
    virtual.lower.pods.mark_stale()


@pytest.mark.parametrize(
    ("change", "steps"),
    [(_silent, ["patch", "patch status"]), (_smaller, ["patch status"]), (_left, ["patch", "patch status"])],
)
async def test_a_changed_status_is_written_once(
    virtual: VirtualNodeLoop, change: Callable[[VirtualNodeLoop], None], steps: list[str]
) -> None:
    """Conditions are merged by type, and conditions of other writers are kept."""
    await virtual.written({"status": {"conditions": [{"type": "Theirs", "status": "True"}]}}, "status")
    change(virtual)
    assert await virtual.settled() == steps
    assert await virtual.settled() == []
    node = await virtual.seen()
    assert "Theirs" in {one["type"] for one in node["status"]["conditions"]}
    assert (UNREACHABLE_TAINT in keys(node)) is (change is _silent)


GPU = "example.com/gpu"


def with_gpus(**spec: bool) -> Manifest:
    """Return a lower node with an extra resource."""
    node = make_lower_node("large", **spec)
    return {**node, "status": {**node["status"], "allocatable": {"cpu": "4", GPU: "8"}}}


async def test_a_lost_resource_or_address_is_removed_by_one_write(virtual: VirtualNodeLoop) -> None:
    """A plain merge patch would keep the old entries indefinitely."""
    put(virtual.lower.nodes, with_gpus())
    assert await virtual.settled() == ["patch status"]
    status = (await virtual.seen())["status"]
    assert (status["capacity"][GPU], status["allocatable"][GPU]) == ("8", "8")
    assert [one["type"] for one in status["addresses"]] == ["InternalIP"]
    put(virtual.lower.nodes, with_gpus(unschedulable=True))
    virtual.world.node_address = ""
    assert await virtual.settled() == ["patch status"]
    assert await virtual.settled() == []
    status = (await virtual.seen())["status"]
    assert GPU not in status["capacity"].keys() | status["allocatable"].keys()
    assert status["addresses"] == [{"type": "Hostname", "address": virtual.name}]


async def test_additions_of_other_writers_to_the_status_are_removed_by_one_write(virtual: VirtualNodeLoop) -> None:
    """A client may advertise a resource by hand, but the engine owns these fields of a virtual node's status."""
    address = {"type": "ExternalIP", "address": "192.0.2.1"}
    status = {"capacity": {GPU: "8"}, "allocatable": {GPU: "8"}, "addresses": [address], "declaredFeatures": ["X"]}
    await virtual.written({"status": {**status, "nodeInfo": {"swap": {"capacity": 1}}}}, "status")
    assert await virtual.settled() == ["patch status"]
    assert await virtual.settled() == []
    status = (await virtual.seen())["status"]
    assert GPU not in status["capacity"].keys() | status["allocatable"].keys()
    assert [one["type"] for one in status["addresses"]] == ["InternalIP"]
    assert ("swap" in status["nodeInfo"], status.get("declaredFeatures")) == (False, None)
