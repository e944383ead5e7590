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
from hookedkit import OPTED, Hooked
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


class Wide(Hooked):
    """A ground on three lowers."""

    lowers = (A, B, C)


class Case(NamedTuple):
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
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wide]:
    """Start clusters of this module's own, an engine, and its webhook, which is registered."""
    with Sandbox.start(tmp_path_factory.mktemp("wide") / "sandbox", Options(lowers=3, nodes=2), progress=print) as own:
        made = Wide(own, tmp_path_factory.mktemp("ground"))
        (made.hook_port,) = spare_ports(1)
        try:
            await made.open()
            await made.start(made.hooked())
            await made.registered()
            await all_open(made)
            yield made
            await made.clear()
        finally:
            await made.close()
        assert made.heard.defects == []


async def all_open(ground: Wide, *closed: str) -> None:
    """Wait until every node but the closed ones is schedulable and untainted, and those have the taint."""
    for lower in ground.lowers:
        wanted = {"node.kubernetes.io/unschedulable"} if lower in closed else set()
        await ground.upper.until(
            f"/api/v1/nodes/{ground.nodes[lower]}",
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
    "even": Case(even(), (2, 2, 2)),
    "one replica more": Case(even(), (2, 2, 3), replicas=7),
    "match label keys": Case(even(matchLabelKeys=["pod-template-hash"]), (2, 2, 2)),
    "cordoned cluster counts": Case(even(), (0, 1, 1), edits=(CLOSED_C,)),
    "cordoned cluster allows maxSkew": Case(even(skew=2), (0, 2, 2), edits=(CLOSED_C,)),
    "taints honored": Case(even(nodeTaintsPolicy="Honor"), (0, 3, 3), edits=(CLOSED_C,)),
    "clusters outside of affinity ignored": Case({**even(), **only_in(A, B)}, (0, 3, 3)),
    "node affinity ignored": Case({**even(nodeAffinityPolicy="Ignore"), **only_in(A, B)}, (0, 1, 1)),
    "fewer clusters than minDomains": Case(even(minDomains=4), (1, 1, 1)),
    "as many clusters as minDomains": Case(even(minDomains=3), (2, 2, 2)),
    "required anti-affinity": Case(near("podAntiAffinity"), (1, 1, 1), replicas=5),
    "required affinity": Case(near("podAffinity"), (0, 0, 6)),
    "by clusters and by lower hosts": Case(
        {"topologySpreadConstraints": [*even()["topologySpreadConstraints"], *even(HOST)["topologySpreadConstraints"]]},
        (2, 2, 2),
    ),
}


async def deployed(ground: Wide, case: Case, app: str = "web") -> None:
    """Create a Deployment of a case, and wait until the expected numbers of its pods run and wait."""
    labels = {"app": app, **OPTED}
    template = ground.template(labels, {"terminationGracePeriodSeconds": 1, **case.spec})
    body = {"replicas": case.replicas, "selector": {"matchLabels": labels}, "template": template}
    await ground.upper.create(ground.path("deployments", api=DEPLOYMENTS), {"metadata": {"name": app}, "spec": body})
    await ground.upper.until_all(
        f"{ground.path('pods')}?labelSelector=app%3D{app}",
        lambda pods: (
            (sum(map(is_ready, pods.values())), sum(map(is_refused, pods.values())))
            == (case.replicas - case.waits, case.waits)
        ),
    )


def is_refused(pod: Manifest) -> bool:
    """Report whether the upper scheduler has found no node for a pod."""
    return bool(condition_of(pod, "PodScheduled").get("reason") == "Unschedulable")


async def removed(ground: Wide, *apps: str) -> None:
    """Delete Deployments, and wait until no pod of them is left."""
    for app in apps:
        await ground.upper.delete(f"{ground.path('deployments', app, api=DEPLOYMENTS)}?propagationPolicy=Background")
    for name in ("upper", *ground.lowers):
        await ground.sites[name].until_all(ground.path("pods"), lambda pods: not pods)


async def pods_below(ground: Wide, app: str = "web") -> dict[str, list[Manifest]]:
    """Return the pods in each lower."""
    query = f"{ground.path('pods')}?labelSelector=app%3D{app}"
    return {lower: (await ground.sites[lower].read(query))["items"] for lower in ground.lowers}


async def explained(ground: Wide) -> set[str]:
    """Return the sentences of `tensile explain` about the upper pods that wait."""
    pods = (await ground.upper.read(ground.path("pods")))["items"]
    topology, ways = ground.topology(ground.hooked()), ClusterAccess(ground.sandbox.directory)
    told = [
        await asyncio.to_thread(commands.explain, topology, ways, pod["metadata"]["name"], ground.namespace, "json")
        for pod in pods
        if is_refused(pod)
    ]
    return {str(orjson.loads(one)["why"]) for one in told}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_pods_spread_over_clusters_as_constraints_and_affinity_require(ground: Wide, case: Case) -> None:
    """The other pods stay Pending; lower pods run, and their specs have no constraint by `clusterID`."""
    await ground.reload(ground.hooked(), *case.edits)
    await all_open(ground, *([C] if case.edits else []))
    await deployed(ground, case)
    below = await pods_below(ground)
    assert tuple(sorted(map(len, below.values()))) == case.runs
    assert all(is_ready(pod) for pods in below.values() for pod in pods)
    assert CLUSTER_ID not in orjson.dumps([pod["spec"] for pods in below.values() for pod in pods]).decode()
    await removed(ground, "web")
    await ground.reload(ground.hooked())
    await all_open(ground)


async def test_explain_names_the_constraint_that_keeps_a_pod_pending(ground: Wide) -> None:
    """It uses the upper scheduler's words, and lists the numbers of matching pods for each cluster."""
    await deployed(ground, Case(near("podAntiAffinity"), (1, 1, 1), replicas=4))
    (why,) = await explained(ground)
    assert why.startswith("no virtual node accepts it: node(s) didn't match pod anti-affinity rules"), why
    await removed(ground, "web")
    await deployed(ground, Case(even(minDomains=4), (1, 1, 1), replicas=4))
    (why,) = await explained(ground)
    skewed = "node(s) didn't match pod topology spread constraints"
    told = (f"{ground.nodes[name]}: {skewed} (clusterID={name}: matching pods 1, allowed 0)" for name in ground.lowers)
    assert why == f"no virtual node accepts it: {'; '.join(told)}"
    await removed(ground, "web")


async def test_preferred_anti_affinity_and_soft_spread_keep_no_pod_pending(ground: Wide) -> None:
    """Each cluster gets one pod before any gets two; with one cluster cordoned, the pods spread over the others."""
    await deployed(ground, Case(near("podAntiAffinity", preferred=True), (1, 1, 2), replicas=4))
    assert sorted(map(len, (await pods_below(ground)).values())) == [1, 1, 2]
    await removed(ground, "web")
    await ground.reload(ground.hooked(), CLOSED_C)
    await all_open(ground, C)
    await deployed(ground, Case(even(whenUnsatisfiable="ScheduleAnyway"), (0, 3, 3)))
    assert {lower: len(pods) for lower, pods in (await pods_below(ground)).items()} == {A: 3, B: 3, C: 0}
    await removed(ground, "web")
    await ground.reload(ground.hooked())
    await all_open(ground)


async def test_pods_follow_or_avoid_the_clusters_of_other_apps(ground: Wide) -> None:
    """One app runs where another one is, and a third one where neither is."""
    await deployed(ground, Case({**only_in(B)}, (0, 0, 1), replicas=1))
    await deployed(ground, Case(near("podAffinity"), (0, 0, 2), replicas=2), "friend")
    alone = {"affinity": {**near("podAntiAffinity")["affinity"], **only_in(A, B)["affinity"]}}
    await deployed(ground, Case(alone, (0, 0, 2), replicas=2), "stranger")
    found = {app: counts(await pods_below(ground, app)) for app in ("web", "friend", "stranger")}
    assert found == {"web": {B: 1}, "friend": {B: 2}, "stranger": {A: 2}}
    await deployed(ground, Case({**only_in(A)}, (), replicas=0), "late")
    await removed(ground, "web", "friend", "stranger", "late")


def counts(below: dict[str, list[Manifest]]) -> dict[str, int]:
    """Return the number of pods of each lower that has any."""
    return {lower: len(pods) for lower, pods in below.items() if pods}


@pytest.mark.parametrize("key", ["example.com/region", "topology.kubernetes.io/region"])
async def test_a_constraint_by_a_label_that_another_client_set_on_virtual_nodes_is_not_copied(
    ground: Wide, key: str
) -> None:
    """No lower node has the label, so a lower scheduler could never satisfy the constraint."""
    for lower, region in zip(ground.lowers, ("east", "east", "west"), strict=True):
        await ground.upper.patch(f"/api/v1/nodes/{ground.nodes[lower]}", {"metadata": {"labels": {key: region}}})
    await ground.calm()
    await deployed(ground, Case(even(key), (), replicas=4)._replace(runs=(2, 2)))
    below = await pods_below(ground)
    assert len(below[A]) + len(below[B]) == len(below[C]) == 2
    await removed(ground, "web")
    for lower in ground.lowers:
        await ground.upper.patch(f"/api/v1/nodes/{ground.nodes[lower]}", {"metadata": {"labels": {key: None}}})


async def test_the_documented_deployment_spreads_as_documented(ground: Wide) -> None:
    """The Deployment of docs/placement.md runs two pods in each cluster, on different lower nodes."""
    section = DOCUMENT.read_text().partition("## Spread across clusters")[2]
    (text,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    await ground.upper.create(ground.path("deployments", api=DEPLOYMENTS), yaml.safe_load(text))
    await ground.upper.until_all(
        f"{ground.path('pods')}?labelSelector=app%3Dweb",
        lambda pods: len(pods) == 6 and all(map(is_ready, pods.values())),
    )
    below = await pods_below(ground)
    nodes = {lower: len({pod["spec"]["nodeName"] for pod in pods}) for lower, pods in below.items()}
    assert counts(below) == nodes == {A: 2, B: 2, C: 2}
    await removed(ground, "web")
