"""Spread and (anti-)affinity across three lower clusters: above as Kubernetes says it, and no trace of it below.

A real scheduler places the pods above by the virtual nodes' label `clusterID`, real ones below by what is left.
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
    """A spec for so many replicas, and how many of them come to run in each lower, the fewest first."""

    spec: Manifest
    runs: tuple[int, ...]
    replicas: int = 6
    edits: tuple[Edit, ...] = ()
    """Of the topology, while the pods are placed."""

    @property
    def waits(self) -> int:
        """How many have to stay Pending above."""
        return self.replicas - sum(self.runs)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wide]:
    """Clusters of its own, an engine, and its webhook, which is registered."""
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
    """Wait until the scheduler has every node open and untainted but for those, which have the taint of closed ones."""
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
    """Make a constraint over the pods of "web"."""
    basis = {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selecting("web"),
    }
    return {"topologySpreadConstraints": [{**basis, **fields}]}


def selecting(app: str) -> Manifest:
    """Select the pods of an app."""
    return {"matchLabels": {"app": app}}


def near(kind: str, app: str = "web", *, preferred: bool = False) -> Manifest:
    """Make an affinity of pods by clusters: `kind` is podAffinity or podAntiAffinity."""
    term = {"topologyKey": CLUSTER_ID, "labelSelector": selecting(app)}
    terms = {PREFERRED: [{"weight": 100, "podAffinityTerm": term}]} if preferred else {REQUIRED: [term]}
    return {"affinity": {kind: terms}}


def only_in(*lowers: str) -> Manifest:
    """Make an affinity for some of the lowers."""
    expression = {"key": CLUSTER_ID, "operator": "In", "values": list(lowers)}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}


CASES = {
    "even": Case(even(), (2, 2, 2)),
    "one more": Case(even(), (2, 2, 3), replicas=7),
    "hash": Case(even(matchLabelKeys=["pod-template-hash"]), (2, 2, 2)),
    "a closed cluster counts": Case(even(), (0, 1, 1), edits=(CLOSED_C,)),
    "and allows as much skew as is said": Case(even(skew=2), (0, 2, 2), edits=(CLOSED_C,)),
    "but for taints that are honoured": Case(even(nodeTaintsPolicy="Honor"), (0, 3, 3), edits=(CLOSED_C,)),
    "clusters that are not asked for do not count": Case({**even(), **only_in(A, B)}, (0, 3, 3)),
    "but for affinity that is ignored": Case({**even(nodeAffinityPolicy="Ignore"), **only_in(A, B)}, (0, 1, 1)),
    "fewer clusters than wanted": Case(even(minDomains=4), (1, 1, 1)),
    "as many clusters as wanted": Case(even(minDomains=3), (2, 2, 2)),
    "required anti-affinity": Case(near("podAntiAffinity"), (1, 1, 1), replicas=5),
    "required affinity": Case(near("podAffinity"), (0, 0, 6)),
    "by clusters, and by hosts below": Case(
        {"topologySpreadConstraints": [*even()["topologySpreadConstraints"], *even(HOST)["topologySpreadConstraints"]]},
        (2, 2, 2),
    ),
}


async def deployed(ground: Wide, case: Case, app: str = "web") -> None:
    """Make a Deployment of a case, and wait until as many of its pods run and wait as are to."""
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
    """Take Deployments away, and wait until nothing is left of them."""
    for app in apps:
        await ground.upper.delete(f"{ground.path('deployments', app, api=DEPLOYMENTS)}?propagationPolicy=Background")
    for name in ("upper", *ground.lowers):
        await ground.sites[name].until_all(ground.path("pods"), lambda pods: not pods)


async def pods_below(ground: Wide, app: str = "web") -> dict[str, list[Manifest]]:
    """Return the pods in each lower."""
    query = f"{ground.path('pods')}?labelSelector=app%3D{app}"
    return {lower: (await ground.sites[lower].read(query))["items"] for lower in ground.lowers}


async def explained(ground: Wide) -> set[str]:
    """Return the sentences of `tensile explain` about the pods that wait above."""
    pods = (await ground.upper.read(ground.path("pods")))["items"]
    topology, ways = ground.topology(ground.hooked()), ClusterAccess(ground.sandbox.directory)
    told = [
        await asyncio.to_thread(commands.explain, topology, ways, pod["metadata"]["name"], ground.namespace, "json")
        for pod in pods
        if is_refused(pod)
    ]
    return {str(orjson.loads(one)["why"]) for one in told}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_pods_spread_over_clusters_as_kubernetes_says(ground: Wide, case: Case) -> None:
    """So many in each, the rest Pending above; below each runs, and is asked for no domain of the upper cluster."""
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


async def test_who_waits_is_told_why(ground: Wide) -> None:
    """The constraint that keeps it, in the upper scheduler's words, and the cluster that is too full."""
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


async def test_what_is_only_preferred_keeps_nobody_waiting(ground: Wide) -> None:
    """More replicas than clusters: each has one before any has two, and with one closed the rest go on."""
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


async def test_others_are_kept_away_and_followed_by_clusters(ground: Wide) -> None:
    """One app is where another is, a third is where neither is; also the other way about."""
    await deployed(ground, Case({**only_in(B)}, (0, 0, 1), replicas=1))
    await deployed(ground, Case(near("podAffinity"), (0, 0, 2), replicas=2), "friend")
    alone = {"affinity": {**near("podAntiAffinity")["affinity"], **only_in(A, B)["affinity"]}}
    await deployed(ground, Case(alone, (0, 0, 2), replicas=2), "stranger")
    found = {app: counts(await pods_below(ground, app)) for app in ("web", "friend", "stranger")}
    assert found == {"web": {B: 1}, "friend": {B: 2}, "stranger": {A: 2}}
    await deployed(ground, Case({**only_in(A)}, (), replicas=0), "late")
    await removed(ground, "web", "friend", "stranger", "late")


def counts(below: dict[str, list[Manifest]]) -> dict[str, int]:
    """Count the pods of lowers that have any."""
    return {lower: len(pods) for lower, pods in below.items() if pods}


@pytest.mark.parametrize("key", ["example.com/region", "topology.kubernetes.io/region"])
async def test_a_domain_that_somebody_else_labelled_stays_above(ground: Wide, key: str) -> None:
    """No lower node has the label, so below the constraint could never be met."""
    for lower, region in zip(ground.lowers, ("east", "east", "west"), strict=True):
        await ground.upper.patch(f"/api/v1/nodes/{ground.nodes[lower]}", {"metadata": {"labels": {key: region}}})
    await ground.calm()
    await deployed(ground, Case(even(key), (), replicas=4)._replace(runs=(2, 2)))
    below = await pods_below(ground)
    assert len(below[A]) + len(below[B]) == len(below[C]) == 2
    await removed(ground, "web")
    for lower in ground.lowers:
        await ground.upper.patch(f"/api/v1/nodes/{ground.nodes[lower]}", {"metadata": {"labels": {key: None}}})


async def test_the_documents_example_does_what_it_says(ground: Wide) -> None:
    """The Deployment of docs/placement.md: two in each cluster, on real nodes of their own."""
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
