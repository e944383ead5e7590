"""Tests of spread and (anti-)affinity across three lower clusters, which the upper scheduler applies.

A real scheduler places upper pods by the label `clusterID` of the virtual nodes, and real lower schedulers place lower
pods by the remaining constraints.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import pytest_asyncio
import yaml
from enginekit import A, B, Edit, edit_lower
from hookedkit import OPTED, WebhookEngineHarness
from sitekit import Manifest, condition_of, is_ready

from bench.kit.spareports import spare_ports
from tensile import diagnostics
from tensile.diagnostics import commands
from tensile.engine.lower import ClusterAccess
from tensile.names import CLUSTER_ID
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

C = "lower-c"
HOST = "kubernetes.io/hostname"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
DEPLOYMENTS = "apis/apps/v1"
CLOSED_C = edit_lower(C, maintenance="cordon")
DOCUMENT = Path(diagnostics.__file__).parents[2] / "docs" / "placement.md"


class ThreeLowersHarness(WebhookEngineHarness):
    """A harness on three lowers."""

    lowers = (A, B, C)


class SpreadCase(NamedTuple):
    """A spec for a number of replicas, and how many of them run in each lower, in ascending order."""

    spec: Manifest
    runs: tuple[int, ...]
    replicas: int = 6
    edits: tuple[Edit, ...] = ()
    """Edits of the topology during the placement."""

    @property
    def waits(self) -> int:
        """The number of pods that have to stay Pending in the upper cluster."""
        return self.replicas - sum(self.runs)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ThreeLowersHarness]:
    """Start clusters of this module's own, an engine, and its webhook, which is registered."""
    with Sandbox.start(tmp_path_factory.mktemp("wide") / "sandbox", Options(lowers=3, nodes=2), progress=print) as own:
        harness = ThreeLowersHarness(own, tmp_path_factory.mktemp("ground"))
        (harness.hook_port,) = spare_ports(1)
        try:
            await harness.open()
            await harness.start(harness.webhook_edit())
            await harness.wait_registered()
            await all_open(harness)
            yield harness
            await harness.clear()
        finally:
            await harness.close()
        assert harness.loop_recorder.defects == []


async def all_open(harness: ThreeLowersHarness, *closed: str) -> None:
    """Wait until every node but the closed ones is schedulable and untainted, and those have the taint."""
    for lower in harness.lowers:
        wanted = {"node.kubernetes.io/unschedulable"} if lower in closed else set()
        await harness.upper.until(
            f"/api/v1/nodes/{harness.nodes[lower]}",
            lambda node, wanted=wanted: (
                wanted
                == {taint["key"] for taint in node["spec"]["taints"] if taint["key"].startswith("node.kubernetes.io/")}
            ),
        )


def even(key: str = CLUSTER_ID, skew: int = 1, **fields: Any) -> Manifest:
    """Return a constraint over the pods of "web"."""
    basis = {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selecting("web"),
    }
    return {"topologySpreadConstraints": [{**basis, **fields}]}


def selecting(app: str) -> Manifest:
    """Return a selector for the pods of an app."""
    return {"matchLabels": {"app": app}}


def near(kind: str, app: str = "web", *, preferred: bool = False) -> Manifest:
    """Return a pod affinity by clusters: `kind` is podAffinity or podAntiAffinity."""
    term = {"topologyKey": CLUSTER_ID, "labelSelector": selecting(app)}
    terms = {PREFERRED: [{"weight": 100, "podAffinityTerm": term}]} if preferred else {REQUIRED: [term]}
    return {"affinity": {kind: terms}}


def only_in(*lowers: str) -> Manifest:
    """Return a node affinity for some of the lowers."""
    expression = {"key": CLUSTER_ID, "operator": "In", "values": list(lowers)}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}


CASES = {
    "even": SpreadCase(even(), (2, 2, 2)),
    "one replica more": SpreadCase(even(), (2, 2, 3), replicas=7),
    "match label keys": SpreadCase(even(matchLabelKeys=["pod-template-hash"]), (2, 2, 2)),
    "cordoned cluster counts": SpreadCase(even(), (0, 1, 1), edits=(CLOSED_C,)),
    "cordoned cluster allows maxSkew": SpreadCase(even(skew=2), (0, 2, 2), edits=(CLOSED_C,)),
    "taints honored": SpreadCase(even(nodeTaintsPolicy="Honor"), (0, 3, 3), edits=(CLOSED_C,)),
    "clusters outside of affinity ignored": SpreadCase({**even(), **only_in(A, B)}, (0, 3, 3)),
    "node affinity ignored": SpreadCase({**even(nodeAffinityPolicy="Ignore"), **only_in(A, B)}, (0, 1, 1)),
    "fewer clusters than minDomains": SpreadCase(even(minDomains=4), (1, 1, 1)),
    "as many clusters as minDomains": SpreadCase(even(minDomains=3), (2, 2, 2)),
    "required anti-affinity": SpreadCase(near("podAntiAffinity"), (1, 1, 1), replicas=5),
    "required affinity": SpreadCase(near("podAffinity"), (0, 0, 6)),
    "by clusters and by lower hosts": SpreadCase(
        {"topologySpreadConstraints": [*even()["topologySpreadConstraints"], *even(HOST)["topologySpreadConstraints"]]},
        (2, 2, 2),
    ),
}


async def deployed(harness: ThreeLowersHarness, case: SpreadCase, app: str = "web") -> None:
    """Create a Deployment of a case, and wait until the expected numbers of its pods run and wait."""
    labels = {"app": app, **OPTED}
    template = harness.template(labels, {"terminationGracePeriodSeconds": 1, **case.spec})
    body = {"replicas": case.replicas, "selector": {"matchLabels": labels}, "template": template}
    await harness.upper.create(harness.path("deployments", api=DEPLOYMENTS), {"metadata": {"name": app}, "spec": body})
    await harness.upper.until_all(
        f"{harness.path('pods')}?labelSelector=app%3D{app}",
        lambda pods: (
            (sum(map(is_ready, pods.values())), sum(map(is_refused, pods.values())))
            == (case.replicas - case.waits, case.waits)
        ),
    )


def is_refused(pod: Manifest) -> bool:
    """Report whether the upper scheduler has found no node for a pod."""
    return bool(condition_of(pod, "PodScheduled").get("reason") == "Unschedulable")


async def removed(harness: ThreeLowersHarness, *apps: str) -> None:
    """Delete Deployments, and wait until no pod of them is left."""
    for app in apps:
        await harness.upper.delete(f"{harness.path('deployments', app, api=DEPLOYMENTS)}?propagationPolicy=Background")
    for name in ("upper", *harness.lowers):
        await harness.sites[name].until_all(harness.path("pods"), lambda pods: not pods)


async def pods_below(harness: ThreeLowersHarness, app: str = "web") -> dict[str, list[Manifest]]:
    """Return the pods in each lower."""
    query = f"{harness.path('pods')}?labelSelector=app%3D{app}"
    return {lower: (await harness.sites[lower].read(query))["items"] for lower in harness.lowers}


async def explained(harness: ThreeLowersHarness) -> set[str]:
    """Return the sentences of `tensile explain` about the upper pods that wait."""
    pods = (await harness.upper.read(harness.path("pods")))["items"]
    topology, cluster_access = harness.topology(harness.webhook_edit()), ClusterAccess(harness.sandbox.directory)
    explanations = [
        await asyncio.to_thread(
            commands.explain, topology, cluster_access, pod["metadata"]["name"], harness.namespace, "json"
        )
        for pod in pods
        if is_refused(pod)
    ]
    return {str(orjson.loads(one)["why"]) for one in explanations}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_pods_spread_over_clusters_as_constraints_and_affinity_require(
    harness: ThreeLowersHarness, case: SpreadCase
) -> None:
    """The other pods stay Pending; lower pods run, and their specs have no constraint by `clusterID`."""
    await harness.reload(harness.webhook_edit(), *case.edits)
    await all_open(harness, *([C] if case.edits else []))
    await deployed(harness, case)
    lower_object = await pods_below(harness)
    assert tuple(sorted(map(len, lower_object.values()))) == case.runs
    assert all(is_ready(pod) for pods in lower_object.values() for pod in pods)
    assert CLUSTER_ID not in orjson.dumps([pod["spec"] for pods in lower_object.values() for pod in pods]).decode()
    await removed(harness, "web")
    await harness.reload(harness.webhook_edit())
    await all_open(harness)


async def test_explain_names_the_constraint_that_keeps_a_pod_pending(harness: ThreeLowersHarness) -> None:
    """It uses the upper scheduler's words, and lists the numbers of matching pods for each cluster."""
    await deployed(harness, SpreadCase(near("podAntiAffinity"), (1, 1, 1), replicas=4))
    (why,) = await explained(harness)
    assert why.startswith("no virtual node accepts it: node(s) didn't match pod anti-affinity rules"), why
    await removed(harness, "web")
    await deployed(harness, SpreadCase(even(minDomains=4), (1, 1, 1), replicas=4))
    (why,) = await explained(harness)
    skewed = "node(s) didn't match pod topology spread constraints"
    reasons = (
        f"{harness.nodes[name]}: {skewed} (clusterID={name}: matching pods 1, allowed 0)" for name in harness.lowers
    )
    assert why == f"no virtual node accepts it: {'; '.join(reasons)}"
    await removed(harness, "web")


async def test_preferred_anti_affinity_and_soft_spread_keep_no_pod_pending(harness: ThreeLowersHarness) -> None:
    """Each cluster gets one pod before any gets two; with one cluster cordoned, the pods spread over the others."""
    await deployed(harness, SpreadCase(near("podAntiAffinity", preferred=True), (1, 1, 2), replicas=4))
    assert sorted(map(len, (await pods_below(harness)).values())) == [1, 1, 2]
    await removed(harness, "web")
    await harness.reload(harness.webhook_edit(), CLOSED_C)
    await all_open(harness, C)
    await deployed(harness, SpreadCase(even(whenUnsatisfiable="ScheduleAnyway"), (0, 3, 3)))
    assert {lower: len(pods) for lower, pods in (await pods_below(harness)).items()} == {A: 3, B: 3, C: 0}
    await removed(harness, "web")
    await harness.reload(harness.webhook_edit())
    await all_open(harness)


async def test_pods_follow_or_avoid_the_clusters_of_other_apps(harness: ThreeLowersHarness) -> None:
    """One app runs where another one is, and a third one where neither is."""
    await deployed(harness, SpreadCase({**only_in(B)}, (0, 0, 1), replicas=1))
    await deployed(harness, SpreadCase(near("podAffinity"), (0, 0, 2), replicas=2), "friend")
    alone = {"affinity": {**near("podAntiAffinity")["affinity"], **only_in(A, B)["affinity"]}}
    await deployed(harness, SpreadCase(alone, (0, 0, 2), replicas=2), "stranger")
    found = {app: counts(await pods_below(harness, app)) for app in ("web", "friend", "stranger")}
    assert found == {"web": {B: 1}, "friend": {B: 2}, "stranger": {A: 2}}
    await deployed(harness, SpreadCase({**only_in(A)}, (), replicas=0), "late")
    await removed(harness, "web", "friend", "stranger", "late")


def counts(lower_object: dict[str, list[Manifest]]) -> dict[str, int]:
    """Return the number of pods of each lower that has any."""
    return {lower: len(pods) for lower, pods in lower_object.items() if pods}


@pytest.mark.parametrize("key", ["example.com/region", "topology.kubernetes.io/region"])
async def test_a_constraint_by_a_label_that_another_client_set_on_virtual_nodes_is_not_copied(
    harness: ThreeLowersHarness, key: str
) -> None:
    """No lower node has the label, so a lower scheduler could never satisfy the constraint."""
    for lower, region in zip(harness.lowers, ("east", "east", "west"), strict=True):
        await harness.upper.patch(f"/api/v1/nodes/{harness.nodes[lower]}", {"metadata": {"labels": {key: region}}})
    await harness.wait_idle()
    await deployed(harness, SpreadCase(even(key), (), replicas=4)._replace(runs=(2, 2)))
    lower_object = await pods_below(harness)
    assert len(lower_object[A]) + len(lower_object[B]) == len(lower_object[C]) == 2
    await removed(harness, "web")
    for lower in harness.lowers:
        await harness.upper.patch(f"/api/v1/nodes/{harness.nodes[lower]}", {"metadata": {"labels": {key: None}}})


async def test_the_documented_deployment_spreads_as_documented(harness: ThreeLowersHarness) -> None:
    """The Deployment of docs/placement.md runs two pods in each cluster, on different lower nodes."""
    section = DOCUMENT.read_text().partition("## Spread across clusters")[2]
    (text,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    await harness.upper.create(harness.path("deployments", api=DEPLOYMENTS), yaml.safe_load(text))
    await harness.upper.until_all(
        f"{harness.path('pods')}?labelSelector=app%3Dweb",
        lambda pods: len(pods) == 6 and all(map(is_ready, pods.values())),
    )
    lower_object = await pods_below(harness)
    nodes = {lower: len({pod["spec"]["nodeName"] for pod in pods}) for lower, pods in lower_object.items()}
    assert counts(lower_object) == nodes == {A: 2, B: 2, C: 2}
    await removed(harness, "web")
