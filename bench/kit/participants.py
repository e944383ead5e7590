"""The participants of a race, each of which runs alone: its program and its nodes exist only in its own rounds.

The pods of a race tolerate all taints, so cordoning the nodes of the other participants would not keep the pods off
them. Between rounds the nodes are therefore removed, and a round begins only once the machine is calm.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.kit.child_processes import Child, alike_ceiling, ceiling, engine
from bench.kit.sites import NODES, Manifest, Site, until, until_gone
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

IDLE_PERCENT = 25.0
"""Percent of all processors: three idle clusters use about ten."""
SAMPLE_SECONDS = 1.0
LIMIT = 60.0
PATIENCE = 30.0


@dataclass(frozen=True)
class Participant:
    """A participant; `start` is None for a cluster that runs its pods itself, which is then `cluster`."""

    name: str
    cluster: str
    start: Callable[[Sandbox, Path], Child] | None


PARTICIPANTS = (
    Participant("engine", UPPER, engine),
    Participant("ceiling", UPPER, ceiling),
    Participant("alone", "lower-a", None),
)
ALIKE = Participant("alike", UPPER, alike_ceiling)
"""A ceiling for the load of the control planes: it writes nodes and lower pods as the engine has to."""


class Turn(NamedTuple):
    """A participant's turn: its cluster, its program, and the load of the machine just before, in percent."""

    site: Site
    child: Child | None
    load: float


@asynccontextmanager
async def running_participant(participant: Participant, sandbox: Sandbox) -> AsyncIterator[Turn]:
    """Yield the participant's turn once the machine is calm; remove its program and its nodes afterwards."""
    async with Site(sandbox.clusters[participant.cluster]) as site:
        child = participant.start(sandbox, sandbox.directory / f"{participant.name}.log") if participant.start else None
        try:
            if child is not None:
                await wait_until_nodes_usable(site, len(sandbox.clusters) - 1)
            yield Turn(site, child, await wait_until_machine_idle())
        finally:
            if child is not None:
                child.stop()
                await remove_nodes(site)


async def wait_until_nodes_usable(site: Site, wanted: int, limit: float = LIMIT) -> None:
    """Return when so many nodes are Ready and without a taint of the node controller."""

    async def are_there() -> bool:
        """Report whether enough nodes are usable."""
        return sum(map(is_usable, await site.items(NODES))) >= wanted

    await until(are_there, f"{site.name}: {wanted} usable nodes", limit)


async def remove_nodes(site: Site) -> None:
    """Remove every node of a cluster that has only virtual nodes."""
    for node in await site.items(NODES):
        await site.delete(f"{NODES}/{node['metadata']['name']}")


async def wait_until_no_pods(sandbox: Sandbox, namespace: str, limit: float) -> None:
    """Return when no cluster has a pod in a namespace any more."""
    for cluster in sandbox.clusters.values():
        async with Site(cluster) as site:
            await until_gone(site, f"/api/v1/namespaces/{namespace}/pods", "", limit)


async def wait_until_machine_idle(limit: float = PATIENCE) -> float:
    """Wait until the machine was idle for a second, at most `limit` seconds, and return the load in percent."""
    psutil.cpu_percent()
    load = 100.0
    for _ in range(round(limit / SAMPLE_SECONDS)):
        await asyncio.sleep(SAMPLE_SECONDS)
        load = psutil.cpu_percent()
        if load < IDLE_PERCENT:
            break
    return load


def is_usable(node: Manifest) -> bool:
    """Report whether a node is Ready and accepts pods, apart from a virtual node's own taint."""
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions") or ())
    taints = [one["key"] for one in node["spec"].get("taints") or ()]
    return ready and not any(key.startswith("node.kubernetes.io/") for key in taints)
