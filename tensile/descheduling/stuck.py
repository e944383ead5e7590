"""Which pods wait below for a node that does not come."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from tensile.cache import Entry
from tensile.kubelet.nodestatus import is_reachable
from tensile.kubelet.statuspatch import conditions_of, unplaced
from tensile.objects import Manifest, metadata, moment_of
from tensile.policy import live
from tensile.reconcile.observed import has_node
from tensile.reconcile.ownership import upper_of
from tensile.reconcile.podfacts import lives_below, mirrors
from tensile.world import LowerWorld, World

REASONS = frozenset({"Unschedulable", "SchedulerError"})
"""Of condition PodScheduled: the scheduler has tried, and found no node. One with a gate has not been tried."""


class Stuck(NamedTuple):
    """A pod that has waited for too long: the upper one, its lower's name, and since when."""

    upper: Entry
    lower: str
    since: datetime


def is_open(lower: LowerWorld, world: World) -> bool:
    """Say whether a lower is one to work with: it answers, all of it is known, and its Node is there and ours."""
    node = world.upper.nodes.get("", lower.node)
    if node is None or not (lower.in_topology and lower.connected and has_node(lower, world)):
        return False
    return live.is_known(lower) and is_reachable(node.manifest(), lower)


def stuck_in(lower: LowerWorld, world: World) -> Iterator[Stuck]:
    """Give the pods of a lower that have waited for longer than the topology allows."""
    patience = world.topology.descheduler.pending_longer_than
    for below in lower.pods:
        facts = below.facts
        upper = None if facts.ran or facts.terminating or facts.terminal else upper_of(below, lower)
        if upper is None or not _is_alive(upper, world) or not mirrors(below, upper, world.owner):
            continue
        since = waiting_since(below.manifest())
        if since is not None and world.now - since >= patience:
            yield Stuck(upper, lower.name, since)


def waiting_since(pod: Manifest) -> datetime | None:
    """Say since when the lower scheduler finds no node for a pod, None where that is not what it waits for.

    A pod that no scheduler has looked at waits since it was made.
    """
    if pod["spec"].get("nodeName"):
        return None
    said = unplaced(pod, REASONS) or {}
    since = said.get("lastTransitionTime")
    if "PodScheduled" not in conditions_of(pod):
        since = metadata(pod).get("creationTimestamp")
    return moment_of(since) if since else None


def _is_alive(upper: Entry, world: World) -> bool:
    return not upper.facts.terminating and lives_below(upper, world.topology.exclude_namespaces)
