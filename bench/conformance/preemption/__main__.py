"""Compares preemption through virtual nodes with a stock kube-scheduler for the same real nodes in one cluster.

    .venv/bin/python -m bench.conformance.preemption --rounds 100 --seed 1

Each round is a random scene: nodes of various sizes behind one or two virtual nodes, with pods of several priorities,
of which some have disruption budgets or host ports and some belong to other owners. Then one more pod, the preemptor,
is created, in most cases with a higher priority. Whether it is placed has to be the same on both sides, and no victim
may be needless: none for a pod that is not placed, and none that the pod's node does not need.
"""

import asyncio
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Awaitable, Iterable
from http import HTTPStatus
from random import Random
from typing import Any, NamedTuple

import orjson
import yaml

from bench.conformance.burst import is_refused
from bench.conformance.preemption.scenes import CLASSES, PORT, Member, Scene, SceneNode, needless, scene, situation
from bench.kit.oracles import is_ready
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.sites import NODES, PODS, Manifest, Refused, Site, until
from bench.kit.trial import NAMESPACE, Trial, run
from bench.kit.workload import PROVIDER
from tensile.names import CLUSTER_SELECTOR
from tensile.resources import parse
from tensile.sandbox.apiserver import node_info
from tensile.sandbox.binaries import KUBERNETES
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

STOCK = "lower-c"
"""The cluster that has all real nodes itself."""
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
HOST = "kubernetes.io/hostname"
AGREED = 0.98
QUIET = 5.0
"""Seconds without any change after which an unschedulable pod is considered not placed."""
LIMIT = 60.0


class Outcome(NamedTuple):
    """What happened to the preemptor: its real node, "" for none; the victims; the seconds that it took."""

    node: str
    gone: frozenset[str]
    seconds: float


def manifest(member: Member, place: SceneNode | None, *, above: bool) -> Manifest:
    """Return a pod for the upper cluster, or for one that has its real node itself."""
    container: Manifest = {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": f"{member.cpu}m"}}}
    if member.port:
        container["ports"] = [{"containerPort": PORT, "hostPort": PORT}]
    labels = {"app": member.app or "none", "exclusive": str(member.exclusive and bool(member.node)).lower()}
    spec: Manifest = {
        "priorityClassName": member.kind,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [PROVIDER],
        "containers": [container],
    }
    if place is None and member.exclusive:
        term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"exclusive": "true"}}}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    notes = {}
    if place is not None:
        spec["nodeName"] = place.lower if above else place.name
        notes = {CLUSTER_SELECTOR: orjson.dumps({"nodeSelector": {HOST: place.name}}).decode()} if above else {}
    return {"metadata": {"name": member.name, "labels": labels, "annotations": notes}, "spec": spec}


def node(place: SceneNode) -> Manifest:
    """Return a real node."""
    room = {"cpu": f"{place.cpu}m", "memory": "64Gi", "pods": "50"}
    meta = {"name": place.name, "labels": {HOST: place.name}, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    status = {"capacity": room, "allocatable": room, "nodeInfo": node_info(KUBERNETES)}
    return {"metadata": meta, "spec": {"unschedulable": place.cordoned}, "status": status}


def budget(app: str, least: int) -> Manifest:
    """Return a disruption budget."""
    return {"metadata": {"name": app}, "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}}}


class PreemptionClusters:
    """Both sides; `upper` is the side with virtual nodes, `stock` the cluster with all real nodes."""

    def __init__(self, trial: Trial) -> None:
        self.upper = trial.upper
        self.stock = trial.lowers[STOCK]
        self.lowers = {name: site for name, site in trial.lowers.items() if name != STOCK}

    async def prepare(self) -> None:
        """Create the priority classes."""
        for site in (self.upper, self.stock):
            for name, value in CLASSES.items():
                policy = "Never" if name == "never" else "PreemptLowerPriority"
                await _made(site, PRIORITIES, {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy})

    async def build(self, made: Scene) -> None:
        """Create a scene on both sides, and wait until the virtual nodes show it and every pod runs."""
        places = {place.name: place for place in made.places}
        for place in made.places:
            await _both(_made(self.stock, NODES, node(place)), _made(self.lowers[place.lower], NODES, node(place)))
        for place in made.places:
            for site in (self.stock, self.lowers[place.lower]):
                await until(lambda site=site, place=place: _ready(site, place), f"{place.name} is Ready", LIMIT)
        strangers = [one for one in made.members if one.kind == "stranger"]
        for one in strangers:
            alien = manifest(one, places[one.node], above=False)
            del alien["spec"]["priorityClassName"]
            await _made(self.lowers[places[one.node].lower], PODS.format(NAMESPACE), alien)
        await until(lambda: self._shown(made), "virtual nodes show what there is", LIMIT)
        for app, least in made.budgets.items():
            await _both(_made(self.upper, BUDGETS, budget(app, least)), _made(self.stock, BUDGETS, budget(app, least)))
        for one in made.members:
            place = places[one.node]
            if one.kind != "stranger":
                await _made(self.upper, PODS.format(NAMESPACE), manifest(one, place, above=True))
            await _made(self.stock, PODS.format(NAMESPACE), manifest(one, place, above=False))
        await until(lambda: self._run(made), "every pod runs", LIMIT)

    async def outcome(self, site: Site, made: Scene) -> Outcome:
        """Create the preemptor on one side, and return what happens to it."""
        begin = time.monotonic()
        comer = made.comer
        before = {pod["metadata"]["name"] for pod in await site.items(PODS.format(NAMESPACE))}
        await _made(site, PODS.format(NAMESPACE), manifest(comer, None, above=site is self.upper))
        seen, since = "", begin
        while time.monotonic() < begin + LIMIT:
            pods = {pod["metadata"]["name"]: pod for pod in await site.items(PODS.format(NAMESPACE))}
            placed = await self._node_of(site, pods[comer.name])
            ending = any("deletionTimestamp" in pod["metadata"] for pod in pods.values())
            state = str([sorted(pods), ending, pods[comer.name]["status"].get("nominatedNodeName")])
            since = time.monotonic() if state != seen else since
            seen = state
            quiet = time.monotonic() - since > QUIET and is_refused(pods[comer.name])
            if not ending and (placed or quiet):
                return Outcome(placed, frozenset(before - pods.keys()), round(time.monotonic() - begin, 1))
            await asyncio.sleep(0.1)
        gone = {name for name in before if name not in pods or "deletionTimestamp" in pods[name]["metadata"]}
        return Outcome(placed, frozenset(gone), LIMIT)

    async def clear(self, made: Scene) -> None:
        """Delete all objects of a scene; its pods are deleted before its nodes."""
        for site in (self.upper, self.stock, *self.lowers.values()):
            for path in (BUDGETS, PODS.format(NAMESPACE)):
                for one in await site.items(path) if path == BUDGETS or site in (self.upper, self.stock) else ():
                    await site.delete(f"{path}/{one['metadata']['name']}")
        for one in made.members:
            place = next(place for place in made.places if place.name == one.node)
            if one.kind == "stranger":
                await self.lowers[place.lower].delete(f"{PODS.format(NAMESPACE)}/{one.name}?gracePeriodSeconds=0")
        await until(self._is_empty, "no pod is left", LIMIT)
        for place in made.places:
            for site in (self.stock, self.lowers[place.lower]):
                await site.delete(f"{NODES}/{place.name}")

    async def _node_of(self, site: Site, pod: Manifest) -> str:
        """Return the real node of a pod, "" while it has none."""
        bound = str(pod["spec"].get("nodeName") or "")
        if site is self.stock or not bound:
            return bound
        below = await self.lowers[bound].items(PODS.format(NAMESPACE))
        name = pod["metadata"]["name"]
        return next((str(one["spec"].get("nodeName") or "") for one in below if one["metadata"]["name"] == name), "")

    async def _shown(self, made: Scene) -> bool:
        """Report whether each virtual node offers the capacity that pods of other owners leave free."""
        strangers = {one.node: 0 for one in made.members}
        for one in made.members:
            strangers[one.node] += one.cpu if one.kind == "stranger" else 0
        for lower in self.lowers:
            own = [place for place in made.places if place.lower == lower and not place.cordoned]
            wanted = sum(place.cpu - strangers.get(place.name, 0) for place in own)
            shown = (await self.upper.call("GET", f"{NODES}/{lower}"))["status"]["allocatable"]["cpu"]
            if parse(shown) != wanted:
                return False
        return True

    async def _run(self, made: Scene) -> bool:
        """Report whether every pod runs, and every budget has counted its pods."""
        ours = {one.name for one in made.members if one.kind != "stranger"}
        for site, names in ((self.upper, ours), (self.stock, {one.name for one in made.members})):
            pods = await site.items(PODS.format(NAMESPACE))
            states = {one["metadata"]["name"]: one["status"] for one in await site.items(BUDGETS)}
            healthy = {name: state.get("currentHealthy") for name, state in states.items()}
            counted = Counter(one.app for one in made.members if one.app)
            if {pod["metadata"]["name"] for pod in pods if is_ready(pod)} != names or healthy != dict(counted):
                return False
        return True

    async def _is_empty(self) -> bool:
        sites = (self.upper, self.stock, *self.lowers.values())
        return not any([await site.items(PODS.format(NAMESPACE)) for site in sites])


async def _both(*calls: Awaitable[object]) -> None:
    await asyncio.gather(*calls)


async def _made(site: Site, path: str, body: Manifest) -> None:
    """Create an object, unless one of that name exists."""
    try:
        await site.call("POST", path, body)
    except Refused as error:
        if error.status != HTTPStatus.CONFLICT:
            raise


async def _ready(site: Site, place: SceneNode) -> bool:
    found = await site.call("GET", f"{NODES}/{place.name}")
    return is_ready(found) and not [one for one in found["spec"].get("taints") or () if "not-ready" in one["key"]]


def judged(made: Scene, ours: Outcome, stock: Outcome) -> dict[str, Any]:
    """Return the comparison of one scene, with its needless victims."""
    members = {one.name: one for one in made.members}
    odd = [name for name in ours.gone if members[name].priority >= made.comer.priority]
    return {
        "agreed": bool(ours.node) == bool(stock.node),
        "ours": ours.node,
        "stock": stock.node,
        "gone": sorted(ours.gone),
        "gone_stock": sorted(stock.gone),
        "in_vain": sorted({*needless(made, ours.node, ours.gone, virtual=True), *odd}),
        "in_vain_stock": needless(made, stock.node, stock.gone, virtual=False),
        "seconds": ours.seconds,
    }


def summed(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Sum up the scenes, and list what is wrong."""
    rows = list(found)
    agreed = sum(row["agreed"] for row in rows)
    vain = sum(len(row["in_vain"]) for row in rows)
    broken = [f"{agreed} of {len(rows)} scenes end alike"] if agreed < AGREED * len(rows) else []
    broken += [f"{vain} pods went in vain"] if vain else []
    return {
        "scenes": len(rows),
        "agreed": agreed,
        "plights": dict(Counter(row["plight"] for row in rows)),
        "placed_with_victims": sum(bool(row["ours"] and row["gone"]) for row in rows),
        "placed_without": sum(bool(row["ours"] and not row["gone"]) for row in rows),
        "pending": sum(not row["ours"] for row in rows),
        "by_engine": sum(row["by_engine"] for row in rows),
        "victims": sum(len(row["gone"]) for row in rows),
        "victims_stock": sum(len(row["gone_stock"]) for row in rows),
        "in_vain": vain,
        "in_vain_stock": sum(len(row["in_vain_stock"]) for row in rows),
        "broken": broken,
    }


def without(sandbox: Sandbox, lower: str) -> None:
    """Remove a lower from the topology file."""
    path = sandbox.directory / "topology.yaml"
    topology = yaml.safe_load(path.read_text())
    topology["lowers"] = [one for one in topology["lowers"] if one["name"] != lower]
    path.write_text(yaml.safe_dump(topology, sort_keys=False))


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Play one scene after the other."""
    without(sandbox, STOCK)
    rows: list[dict[str, Any]] = []
    nominated = 0
    lowers = tuple(name for name in sandbox.clusters if name not in (UPPER, STOCK))
    async with Trial(sandbox) as trial:
        stage = PreemptionClusters(trial)
        await stage.prepare()
        trial.start_engine()
        await wait_until_nodes_usable(trial.upper, len(lowers))
        for number in range(args.first, args.first + args.rounds):
            made = scene(Random(f"{args.seed}/{number}"), number, lowers)
            await stage.build(made)
            ours, stock = await asyncio.gather(stage.outcome(stage.upper, made), stage.outcome(stage.stock, made))
            by_engine = sum(b'"preempting"' in line for line in trial.log.read_bytes().splitlines())
            row = {
                "scene": number,
                "plight": situation(made),
                **judged(made, ours, stock),
                "by_engine": by_engine - nominated,
            }
            nominated = by_engine
            rows.append(row)
            if not row["agreed"] or row["in_vain"]:
                print(made, flush=True)
            print(row, flush=True)
            await stage.clear(made)
    return {**summed(rows), "rows": rows}


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--first", type=int, default=0, help="the number of the first scene")


if __name__ == "__main__":
    size = Options(lowers=3, nodes=0, extender=True)
    doc = __doc__ or ""
    sys.exit(run("preemption", scenario, size, pods=1, rounds=100, doc=doc, arguments=_arguments))
